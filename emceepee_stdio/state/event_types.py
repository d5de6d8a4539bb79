"""What an event is: something that happened and is told to the client exactly once."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

import msgspec

__all__ = ["Event", "EventData", "EventType", "Excerpt", "fold_key", "short_key"]

_LONGEST_KEY_BYTES = 64  # a longer one is remembered by its digest


class EventType(StrEnum):
    """Every kind of event, as the client sees it."""

    NOTIFICATION = "notification"
    ELICITATION_REQUEST = "elicitation_request"
    ELICITATION_EXPIRED = "elicitation_expired"
    SAMPLING_REQUEST = "sampling_request"
    SAMPLING_EXPIRED = "sampling_expired"
    TASK_CREATED = "task_created"
    TASK_COMPLETED = "task_completed"
    TASK_FAILED = "task_failed"
    TASK_CANCELLED = "task_cancelled"
    TASK_EXPIRED = "task_expired"
    TIMER_EXPIRED = "timer_expired"
    SERVER_ADDED = "server_added"
    SERVER_REMOVED = "server_removed"
    SERVER_CONNECTED = "server_connected"
    SERVER_DISCONNECTED = "server_disconnected"
    SERVER_RECONNECTING = "server_reconnecting"
    SERVER_RECONNECTED = "server_reconnected"
    SERVER_RESTART_FAILED = "server_restart_failed"
    SERVER_HEALTH_DEGRADED = "server_health_degraded"
    SERVER_HEALTH_RESTORED = "server_health_restored"
    PROCESS_STARTED = "process_started"
    PROCESS_CRASHED = "process_crashed"
    PROCESS_STOPPED = "process_stopped"
    TOOLS_CHANGED = "tools_changed"
    CONFIG_REJECTED = "config_rejected"
    EVENTS_DROPPED = "events_dropped"


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The beginning of something that is too large to keep, and how many bytes it had."""

    text: str
    size: int


EventData = Mapping[str, object] | Excerpt


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened. `seq` orders; `id` identifies; `count` is how many it stands for."""

    seq: int
    id: str
    type: EventType
    server: str | None
    created_at: float
    data: EventData
    count: int = 1

    def __repr__(self) -> str:
        times = f" ×{self.count}" if self.count > 1 else ""
        return f"<Event {self.seq} {self.type.value} {self.server or '-'}{times}>"


def fold_key(server: str, method: str, params: Mapping[str, object]) -> Hashable:
    """What makes two notifications say the same, so that the later can stand for both."""
    if method == "notifications/progress" and "progressToken" in params:
        return server, method, _plain(params["progressToken"])
    if method == "notifications/resources/updated" and "uri" in params:
        return server, method, _plain(params["uri"])
    if method.endswith("/list_changed"):
        return server, method
    return server, method, _plain(params)


def _plain(value: object) -> bytes:
    return short_key(msgspec.json.encode(value, order="deterministic"))


def short_key(key: bytes) -> bytes:
    """The key itself, or what stands for it where it is long."""
    return key if len(key) <= _LONGEST_KEY_BYTES else blake2b(key, digest_size=16).digest()
