"""What servers said without being asked, as it is kept until somebody reads it.

What is larger than anybody reads at once is kept cut, with its size. Nothing kept holds on to the
line that it came in.
"""

from dataclasses import dataclass
from sys import getsizeof

from msgspec import Raw

from emceepee_stdio.backends.backend_events import LogLine
from emceepee_stdio.config import Limits, Settings
from emceepee_stdio.state import EventData, Excerpt, Rings
from emceepee_stdio.wire.codec import to_json

__all__ = [
    "Logged",
    "Notified",
    "cut_name",
    "event_bytes",
    "excerpt_of",
    "kept_data",
    "kept_params",
    "output_rings",
]

_EVENTS_DIVISOR = 4  # events are cut to what is shown of them, notifications and logs are not

_KEPT_BYTES = 64 << 10  # of one notification or log line: more than a client shows of an answer
_NAME_CHARS = 200  # of a method, level or logger, which are single words
_OBJECT_BYTES = 400  # what is kept beside texts and params


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """A notification as it was received."""

    server: str
    method: str
    params: Raw | Excerpt | None
    created_at: float

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        params = self.params
        held = getsizeof(params.text) if isinstance(params, Excerpt) else len(params or b"")
        return _OBJECT_BYTES + getsizeof(self.method) + held


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log line and when it came."""

    server: str
    line: LogLine
    created_at: float

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return _OBJECT_BYTES + getsizeof(self.line.text)


def event_bytes(limits: Limits) -> int:
    """How much of the memory is for events; notifications and log lines share the rest."""
    return limits.memory_bytes // _EVENTS_DIVISOR


def output_rings(settings: Settings) -> tuple[Rings[Notified], Rings[Logged]]:
    limits, fixed = settings.limits, settings.fixed
    max_bytes = (limits.memory_bytes - event_bytes(limits)) // 2
    return (
        Rings(capacity=fixed.notifications, servers=limits.servers, max_bytes=max_bytes),
        Rings(capacity=fixed.log_lines, servers=limits.servers, max_bytes=max_bytes),
    )


def kept_data(data: EventData, limit: int) -> tuple[EventData, int]:
    """No more of an event's data than is ever shown, and how many bytes that takes."""
    if isinstance(data, Excerpt):
        return data, len(data.text)
    encoded = to_json(data)
    if len(encoded) <= limit:
        return data, len(encoded)
    return Excerpt(encoded[:limit].decode(errors="ignore"), len(encoded)), limit


def kept_params(params: Raw | None) -> Raw | Excerpt | None:
    """The params on their own, or the beginning of them."""
    if params is None:
        return None
    if len(memoryview(params)) <= _KEPT_BYTES:
        return params.copy()
    return excerpt_of(params, _KEPT_BYTES)


def excerpt_of(params: Raw, limit: int) -> Excerpt:
    view = memoryview(params)
    return Excerpt(bytes(view[:limit]).decode(errors="ignore"), len(view))


def cut_name(name: str) -> str:
    if len(name) <= _NAME_CHARS:
        return name
    return f"{name[:_NAME_CHARS]} … (cut from {len(name)} characters)"
