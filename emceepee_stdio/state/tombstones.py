"""What is gone, and why: a name that was valid once deserves more than "unknown"."""

__all__ = ["Graves"]

_MINUTE = 60
_HOUR = 3600


class Graves:
    """The last so many that went; older ones are unknown again."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._graves: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._graves)

    def bury(self, name: str, reason: str, *, now: float) -> None:
        self._graves.pop(name, None)
        self._graves[name] = (reason, now)
        if len(self._graves) > self._capacity:
            del self._graves[next(iter(self._graves))]

    def tell(self, name: str, *, now: float) -> str | None:
        """`reason, so long ago`, or None for a name that was never here or is long forgotten."""
        if name not in self._graves:
            return None
        reason, gone_at = self._graves[name]
        return f"{reason}, {_span(now - gone_at)} ago"


def _span(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.1f} s"
    if seconds < _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h"
