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


_QUESTION = {
    "request_id": "the question; the question itself stands under pending_client_action",
}
_CLOSED_BY = "timeout, disconnected, removed or withdrawn"
_TASK = {"task_id": "the task", "tool": "the tool that it runs"}
_ERROR = {"error": "what went wrong"}
_HELLO = {
    "era?": "legacy or modern",
    "protocol_version?": "the version of MCP that is spoken",
    "server_info?": "what the server calls itself",
}
_BY = {"by": "configuration, client, or approval: a person agreed after the call had ended"}
_DECIDED = {"what": "the server, or the tool and its server", "next_step": "what to do now"}
_ATTEMPT = {
    "attempt": "the number of the attempt",
    "attempts": "how many there may be; null is any number",
    "retry_in_ms?": "the pause before it",
    "error?": "what went wrong last",
}
_MISSED = {"missed": "how many looks in a row went unanswered"}
_EXIT = {
    "reason": "exit code or signal, in words",
    "exit_code": "its exit code; null after a signal",
}


class EventType(StrEnum):
    """One row each: the name that the client sees, what happened, and the fields of its data.

    A field with a question mark is there only where it says something.
    """

    meaning: str
    fields: Mapping[str, EventField]

    def __new__(cls, name: str, meaning: str, fields: Mapping[str, str]) -> Self:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning = meaning
        kind.fields = {
            field.rstrip("?"): EventField(what, optional=field.endswith("?"))
            for field, what in fields.items()
        }
        return kind

    NOTIFICATION = (
        "notification",
        "A server sent a notification. `count` says how many equal ones it stands for.",
        {
            "method": "its method",
            "params?": "its params",
            "since_reconnect?": "true where a list was found to differ after a reconnect",
        },
    )
    ELICITATION_REQUEST = ("elicitation_request", "A server asks the user something.", _QUESTION)
    ELICITATION_EXPIRED = (
        "elicitation_expired",
        "A question to the user ended without an answer.",
        {"request_id": "the question", "reason": _CLOSED_BY},
    )
    LATE_ANSWER = (
        "late_answer",
        "The user answered a question after the call had ended in which it was asked.",
        {
            "tool": "the tool that was called",
            "delivered": "whether the server still got the answer",
            "note": "what became of the call",
        },
    )
    SAMPLING_REQUEST = ("sampling_request", "A server asks the model for a text.", _QUESTION)
    SAMPLING_EXPIRED = (
        "sampling_expired",
        "A sampling request ended without an answer.",
        {"request_id": "the request", "reason": _CLOSED_BY},
    )
    TASK_CREATED = (
        "task_created",
        "A call became a task. The answer that names the task counts as having told it.",
        {
            **_TASK,
            "reason": "timeout, input_required or question_pending",
            "ttl_ms": "how long it may run",
        },
    )
    TASK_COMPLETED = ("task_completed", "A task has its result.", _TASK)
    TASK_FAILED = ("task_failed", "A task ended with an error, or with its server.", _TASK | _ERROR)
    TASK_CANCELLED = (
        "task_cancelled",
        "A task was cancelled. The answer of cancel_task counts as having told it.",
        {**_TASK, "error": "cancelled"},
    )
    TASK_EXPIRED = (
        "task_expired",
        "A task had no result within its time to live.",
        {**_TASK, "error": "how long it had lived"},
    )
    TIMER_EXPIRED = (
        "timer_expired",
        "A timer fired.",
        {
            "timer_id": "the timer",
            "message": "what was to be told",
            "fired?": "how often a repeating one has fired",
            "missed?": "how many moments of it went by unnoticed",
        },
    )
    SERVER_ADDED = (
        "server_added",
        "There is a new server.",
        {**_BY, "target": "its command line or address, without secrets"},
    )
    SERVER_REMOVED = ("server_removed", "A server was removed.", _BY)
    SERVER_CONNECTED = (
        "server_connected",
        "A server is connected; at the start told only of one that an answer named as missing.",
        _HELLO,
    )
    SERVER_DISCONNECTED = (
        "server_disconnected",
        "The connection to a server ended, by accident or because it was removed.",
        {"reason": "exit code, signal, HTTP status, or that it was removed"},
    )
    SERVER_RECONNECTING = (
        "server_reconnecting",
        "A server is tried again; told once for each outage.",
        _ATTEMPT,
    )
    SERVER_RECONNECTED = (
        "server_reconnected",
        "A lost server is connected again.",
        {
            **_HELLO,
            "type": "restart where the server began anew: another process, a forgotten session, or"
            " it introduces itself otherwise; network_blip where nothing shows that",
            "invalidated_tasks": "how many tasks failed with the outage",
            "invalidated_elicitations": "how many questions to the user it ended",
            "invalidated_sampling_requests": "how many sampling requests it ended",
        },
    )
    SERVER_RESTART_FAILED = (
        "server_restart_failed",
        "A server cannot be reached, and is not tried again by itself.",
        _ATTEMPT,
    )
    SERVER_HEALTH_DEGRADED = (
        "server_health_degraded",
        "A server does not answer the health check.",
        _MISSED,
    )
    SERVER_HEALTH_RESTORED = (
        "server_health_restored",
        "A server answers the health check again.",
        _MISSED,
    )
    PROCESS_STARTED = (
        "process_started",
        "The process of a server was started; not told at the start of the proxy.",
        {"pid": "its process id"},
    )
    PROCESS_CRASHED = (
        "process_crashed",
        "The process of a server ended by itself.",
        {**_EXIT, "stderr": "its last lines on stderr"},
    )
    PROCESS_STOPPED = (
        "process_stopped",
        "The process of a server was stopped by the proxy.",
        _EXIT,
    )
    TOOLS_CHANGED = (
        "tools_changed",
        "Tools of a server are not what they were when they were first seen.",
        {
            "changed": "tools that differ, and how",
            "added": "new tools",
            "removed": "tools that are gone",
            "enforced": "whether they are refused until a person agrees",
            "a_person_agrees_with": "the command to run",
        },
    )
    APPROVAL_GRANTED = (
        "approval_granted",
        "A person agreed to what they had been asked about, after the call had ended.",
        _DECIDED,
    )
    APPROVAL_REFUSED = (
        "approval_refused",
        "A person refused what they had been asked about, after the call had ended.",
        _DECIDED,
    )
    SIGN_IN_REQUIRED = (
        "sign_in_required",
        "A person has to sign in to a server before it can be used.",
        {
            "command": "what the person can run to sign in",
            "url?": "where the person can sign in, once that is known",
            "error?": "why it is not known where to sign in",
        },
    )
    SIGNED_IN = (
        "signed_in",
        "A person has signed in to a server, and it is connected.",
        dict[str, str](),
    )
    CONFIG_REJECTED = (
        "config_rejected",
        "The configuration file cannot be read: at the start, or after a change.",
        {**_ERROR, "kept": "what is in use instead"},
    )
    EVENTS_DROPPED = (
        "events_dropped",
        "Events were dropped before anybody was told of them.",
        {"count": "how many", "first_id": "the first of them", "last_id": "the last of them"},
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
