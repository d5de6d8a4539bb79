"""How much of what a server prints goes into the journal: so many lines in a minute."""

import math

from emceepee_stdio.clock import MINUTE_S

__all__ = ["RateLimit", "RateLimits"]

_FORMER_SERVERS = 50  # beside those there are now: one that comes back goes on where it was


class RateLimit:
    """So many in a minute, and a count of those over it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._began = -math.inf
        self._count = 0
        self._over = 0

    def __repr__(self) -> str:
        return f"<RateLimit {self._count}/{self._limit} over={self._over}>"

    def takes(self, now: float) -> bool:
        if now - self._began >= MINUTE_S:
            self._began = now
            self._count = 0
        self._count += 1
        if self._count > self._limit:
            self._over += 1
            return False
        return True

    def take_over(self) -> int:
        """How many did not pass since this was asked last."""
        over, self._over = self._over, 0
        return over


class RateLimits:
    """The flow of each server; those that were silent for long are forgotten."""

    def __init__(self, limit: int, *, servers: int) -> None:
        self._limit = limit
        self._most = servers + _FORMER_SERVERS
        self._flows: dict[str, RateLimit] = {}

    def __repr__(self) -> str:
        return f"<RateLimits of {len(self._flows)} servers>"

    def takes(self, server: str, now: float) -> tuple[bool, int]:
        """Whether one more passes, and if so how many did not since the last that did."""
        flow = self._flows.pop(server, None) or RateLimit(self._limit)
        self._flows[server] = flow
        if len(self._flows) > self._most:
            del self._flows[next(iter(self._flows))]
        return (True, flow.take_over()) if flow.takes(now) else (False, 0)
