"""What is gone, and why: a name that was valid once deserves more than "unknown"."""

from emceepee_stdio.clock import HOUR_S, MINUTE_S

__all__ = ["Tombstones"]


class Tombstones:
    """The last so many that went; older ones are unknown again."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._reasons: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, name: str, reason: str, *, now: float) -> None:
        self._reasons.pop(name, None)
        self._reasons[name] = (reason, now)
        if len(self._reasons) > self._capacity:
            del self._reasons[next(iter(self._reasons))]

    def describe(self, name: str, *, now: float) -> str | None:
        """`reason, so long ago`, or None for a name that was never here or is long forgotten."""
        if name not in self._reasons:
            return None
        reason, gone_at = self._reasons[name]
        return f"{reason}, {_span(now - gone_at)} ago"


def _span(seconds: float) -> str:
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"
