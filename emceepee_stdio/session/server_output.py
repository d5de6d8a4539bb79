"""What servers said without being asked, as it is kept until somebody reads it."""

from dataclasses import dataclass
from typing import TypeVar

from msgspec import Raw

from emceepee_stdio.backends.backend_events import LogLine
from emceepee_stdio.state import Ring

__all__ = ["Logged", "Notified", "ring_of"]

T = TypeVar("T")

_FORMER_SERVERS = 50  # beside those there are now: what a server that is gone has said still counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """A notification as it was received."""

    server: str
    method: str
    params: Raw | None
    created_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log line and when it came."""

    server: str
    line: LogLine
    created_at: float


def ring_of(rings: dict[str, Ring[T]], server: str, *, capacity: int, servers: int) -> Ring[T]:
    """The ring of a server, made if need be; those that nothing was added to for long make room."""
    ring = rings.pop(server, None)
    if ring is None:
        ring = Ring[T](capacity)
    rings[server] = ring
    if len(rings) > servers + _FORMER_SERVERS:
        del rings[next(iter(rings))]
    return ring
