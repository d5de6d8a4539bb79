"""Health checks: a ping to a connected server from time to time.

Missing it a few times is worth a warning, never a reconnect: a server that is busy is not dead, and
one that is dead is noticed by its channel.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from emceepee_stdio.backends.base import RemoteError
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ProxyError


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How often, how long to wait, and how many misses make a warning."""

    interval: float = 120.0
    jitter: float = 0.1
    within: float = 60.0
    misses: int = 3


class Health:
    """The health of one server. A turn for the worse or the better is told with its misses."""

    def __init__(
        self,
        policy: HealthPolicy,
        *,
        uniform: Callable[[float, float], float],
        on_degraded: Callable[[int], None],
        on_restored: Callable[[int], None],
    ) -> None:
        self._policy = policy
        self._uniform = uniform
        self._on_degraded = on_degraded
        self._on_restored = on_restored
        self._misses = 0
        self.degraded = False

    def __repr__(self) -> str:
        return f"<Health {'degraded' if self.degraded else 'well'} misses={self._misses}>"

    async def watch(self, look: Callable[[float], Awaitable[object]]) -> None:
        """Look for as long as the connection lives; the caller ends it with the connection."""
        p = self._policy
        while True:
            await anyio.sleep(p.interval * self._uniform(1 - p.jitter, 1 + p.jitter))
            try:
                await look(p.within)
            except RemoteError:  # it refuses, so it lives
                self.well()
            except ProxyError:
                self._missed()
            else:
                self.well()

    def well(self) -> None:
        """It answered, or it is new."""
        misses, self._misses = self._misses, 0
        if self.degraded:
            self.degraded = False
            self._on_restored(misses)

    def _missed(self) -> None:
        self._misses += 1
        if self._misses >= self._policy.misses and not self.degraded:
            self.degraded = True
            self._on_degraded(self._misses)


# Stopping a server that nobody has used for a while.
#
# Polled: a use costs a call nothing but a count. Between the last look and the stop nothing can
# come in between, because both happen in one step.


_LOOKS = 10  # in the time after which it is stopped: it may take a tenth longer
_MIN_PAUSE_S = 0.01  # between two looks, however short that time is


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleStop:
    """When to stop one server: `uses` counts, `is_held` says whether anything is open now."""

    after: float
    clock: Clock
    uses: Callable[[], int]
    is_held: Callable[[], bool]
    stop: Callable[[], None]

    async def watch(self) -> None:
        """Look for as long as the connection lives; the caller ends it with the connection."""
        uses, since = self.uses(), self.clock.now()
        while True:
            await anyio.sleep(max(self.after / _LOOKS, _MIN_PAUSE_S))
            now = self.clock.now()
            if self.is_held() or self.uses() != uses:
                uses, since = self.uses(), now
            elif now - since >= self.after:
                self.stop()
                return
