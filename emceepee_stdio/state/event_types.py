"""The table of event types: meaning and data of each, and the event itself."""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple, Self

import msgspec

_LONGEST_KEY_BYTES = 64  # a longer one is remembered by its digest


class EventField(NamedTuple):
    """One field of an event's data; an optional one is there only where it says something."""

    meaning: str
    optional: bool = False


_REQUEST_ID = EventField("the question; the question itself stands under pending_client_action")
_CLOSED_BY = EventField("timeout, disconnected, removed or withdrawn")
_TASK_ID = EventField("the task")
_TOOL = EventField("the tool that it runs")
_ERROR = EventField("what went wrong")
_ERA = EventField("legacy or modern", optional=True)
_VERSION = EventField("the version of MCP that is spoken", optional=True)
_SERVER_INFO = EventField("what the server calls itself", optional=True)
_BY = EventField("configuration or client")
_ATTEMPT = EventField("the number of the attempt")
_ATTEMPTS = EventField("how many there may be; null is any number")
_RETRY = EventField("the pause before it", optional=True)
_LAST_ERROR = EventField("what went wrong last", optional=True)
_MISSED = EventField("how many looks in a row went unanswered")
_EXIT_CODE = EventField("its exit code; null after a signal")


class EventType(StrEnum):
    """One row each: the name that the client sees, what happened, and the fields of its data."""

    meaning: str
    fields: Mapping[str, EventField]

    def __new__(cls, name: str, meaning: str, fields: Mapping[str, EventField]) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        kind.fields = fields
        return kind

    NOTIFICATION = (
        "notification",
        "A server sent a notification. `count` says how many equal ones it stands for.",
        {
            "method": EventField("its method"),
            "params": EventField("its params", optional=True),
            "since_reconnect": EventField(
                "true where a list was found to differ after a reconnect", optional=True
            ),
        },
    )
    ELICITATION_REQUEST = (
        "elicitation_request",
        "A server asks the user something.",
        {"request_id": _REQUEST_ID},
    )
    ELICITATION_EXPIRED = (
        "elicitation_expired",
        "A question to the user ended without an answer.",
        {"request_id": EventField("the question"), "reason": _CLOSED_BY},
    )
    SAMPLING_REQUEST = (
        "sampling_request",
        "A server asks the model for a text.",
        {"request_id": _REQUEST_ID},
    )
    SAMPLING_EXPIRED = (
        "sampling_expired",
        "A sampling request ended without an answer.",
        {"request_id": EventField("the request"), "reason": _CLOSED_BY},
    )
    TASK_CREATED = (
        "task_created",
        "A call became a task. The answer that names the task counts as having told it.",
        {
            "task_id": _TASK_ID,
            "tool": _TOOL,
            "reason": EventField("timeout or input_required"),
            "ttl_ms": EventField("how long it may run"),
        },
    )
    TASK_COMPLETED = (
        "task_completed",
        "A task has its result.",
        {"task_id": _TASK_ID, "tool": _TOOL},
    )
    TASK_FAILED = (
        "task_failed",
        "A task ended with an error, or with its server.",
        {"task_id": _TASK_ID, "tool": _TOOL, "error": _ERROR},
    )
    TASK_CANCELLED = (
        "task_cancelled",
        "A task was cancelled. The answer of cancel_task counts as having told it.",
        {"task_id": _TASK_ID, "tool": _TOOL, "error": EventField("cancelled")},
    )
    TASK_EXPIRED = (
        "task_expired",
        "A task had no result within its time to live.",
        {"task_id": _TASK_ID, "tool": _TOOL, "error": EventField("how long it had lived")},
    )
    TIMER_EXPIRED = (
        "timer_expired",
        "A timer fired.",
        {
            "timer_id": EventField("the timer"),
            "message": EventField("what was to be told"),
            "fired": EventField("how often a repeating one has fired", optional=True),
            "missed": EventField("how many moments of it went by unnoticed", optional=True),
        },
    )
    SERVER_ADDED = (
        "server_added",
        "There is a new server.",
        {"by": _BY, "target": EventField("its command line or address, without secrets")},
    )
    SERVER_REMOVED = ("server_removed", "A server was removed.", {"by": _BY})
    SERVER_CONNECTED = (
        "server_connected",
        "A server is connected; at the start told only of one that an answer named as missing.",
        {"era": _ERA, "protocol_version": _VERSION, "server_info": _SERVER_INFO},
    )
    SERVER_DISCONNECTED = (
        "server_disconnected",
        "The connection to a server ended, by accident or because it was removed.",
        {"reason": EventField("exit code, signal, HTTP status, or that it was removed")},
    )
    SERVER_RECONNECTING = (
        "server_reconnecting",
        "A server is tried again; told once for each outage.",
        {
            "attempt": _ATTEMPT,
            "attempts": _ATTEMPTS,
            "retry_in_ms": _RETRY,
            "error": _LAST_ERROR,
        },
    )
    SERVER_RECONNECTED = (
        "server_reconnected",
        "A lost server is connected again.",
        {
            "era": _ERA,
            "protocol_version": _VERSION,
            "server_info": _SERVER_INFO,
            "type": EventField(
                "restart where the server began anew: another process, a forgotten session, or it"
                " introduces itself otherwise; network_blip where nothing shows that"
            ),
            "invalidated_tasks": EventField("how many tasks failed with the outage"),
            "invalidated_elicitations": EventField("how many questions to the user it ended"),
            "invalidated_sampling_requests": EventField("how many sampling requests it ended"),
        },
    )
    SERVER_RESTART_FAILED = (
        "server_restart_failed",
        "A server cannot be reached, and is not tried again by itself.",
        {
            "attempt": _ATTEMPT,
            "attempts": _ATTEMPTS,
            "retry_in_ms": _RETRY,
            "error": _LAST_ERROR,
        },
    )
    SERVER_HEALTH_DEGRADED = (
        "server_health_degraded",
        "A server does not answer the health check.",
        {"missed": _MISSED},
    )
    SERVER_HEALTH_RESTORED = (
        "server_health_restored",
        "A server answers the health check again.",
        {"missed": _MISSED},
    )
    PROCESS_STARTED = (
        "process_started",
        "The process of a server was started; not told at the start of the proxy.",
        {"pid": EventField("its process id")},
    )
    PROCESS_CRASHED = (
        "process_crashed",
        "The process of a server ended by itself.",
        {
            "reason": EventField("exit code or signal, in words"),
            "exit_code": _EXIT_CODE,
            "stderr": EventField("its last lines on stderr"),
        },
    )
    PROCESS_STOPPED = (
        "process_stopped",
        "The process of a server was stopped by the proxy.",
        {"reason": EventField("exit code or signal, in words"), "exit_code": _EXIT_CODE},
    )
    TOOLS_CHANGED = (
        "tools_changed",
        "Tools of a server are not what they were when they were first seen.",
        {
            "changed": EventField("tools that differ, and how"),
            "added": EventField("new tools"),
            "removed": EventField("tools that are gone"),
            "enforced": EventField("whether they are refused until a person agrees"),
            "a_person_agrees_with": EventField("the command to run"),
        },
    )
    SIGN_IN_REQUIRED = (
        "sign_in_required",
        "A person has to sign in to a server before it can be used.",
        {
            "command": EventField("what the person can run to sign in"),
            "url": EventField("where the person can sign in, once that is known", optional=True),
            "error": EventField("why it is not known where to sign in", optional=True),
        },
    )
    SIGNED_IN = (
        "signed_in",
        "A person has signed in to a server, and it is connected.",
        dict[str, EventField](),
    )
    CONFIG_REJECTED = (
        "config_rejected",
        "The configuration file cannot be read: at the start, or after a change.",
        {"error": _ERROR, "kept": EventField("what is in use instead")},
    )
    EVENTS_DROPPED = (
        "events_dropped",
        "Events were dropped before anybody was told of them.",
        {
            "count": EventField("how many"),
            "first_id": EventField("the first of them"),
            "last_id": EventField("the last of them"),
        },
    )


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
