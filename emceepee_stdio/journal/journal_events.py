"""The table of journal events: name, usual level and meaning."""

from enum import StrEnum
from typing import Self


class Level(StrEnum):
    """How much a line matters, from least to most."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


_Row = tuple[str, Level, str]


def _debug(name: str, meaning: str) -> _Row:
    return name, Level.DEBUG, meaning


def _info(name: str, meaning: str) -> _Row:
    return name, Level.INFO, meaning


def _warning(name: str, meaning: str) -> _Row:
    return name, Level.WARNING, meaning


def _error(name: str, meaning: str) -> _Row:
    return name, Level.ERROR, meaning


class JournalEvent(StrEnum):
    """One row each: the name in the journal, its level, and what happened."""

    level: Level
    meaning: str

    def __new__(cls, name: str, level: Level, meaning: str) -> Self:
        event = str.__new__(cls, name)
        event._value_ = name
        event.level = level
        event.meaning = meaning
        return event

    SERVER_SPAWNED = _info("server_spawned", "A backend's process was started.")
    SERVER_CONNECTED = _info(
        "server_connected", "A backend answered the handshake; `url`, if it has one."
    )
    SERVER_DISCONNECTED = _info(
        "server_disconnected",
        "A backend's connection ended: `reason`. A warning with `exit_code`, `stderr` if it broke.",
    )
    SERVER_RECONNECTING = _info(
        "server_reconnecting",
        "A backend is tried again: `attempt`, after `delay_ms`. A warning after a failed start.",
    )
    SERVER_IDLE = _info(
        "server_idle",
        "A backend was not used for `idle_stop_ms` and is stopped; the next call starts it.",
    )
    SERVER_FAILED = _warning(
        "server_failed", "A backend cannot be reached, and is not tried again by itself."
    )
    SERVER_RECONNECT_FAILED = _warning(
        "server_reconnect_failed", "One attempt to reach a lost backend failed: `attempt`, `error`."
    )
    SESSION_SERVER_RECONCILIATION_COMPLETE = _info(
        "session_server_reconciliation_complete",
        "What a backend had open when it was lost or left has been ended; `invalidated_*` counts.",
    )
    SERVER_CONFIG_ADDED = _info("server_config_added", "A server was added: `by` whom, `target`.")
    SERVER_CONFIG_UPDATED = _info(
        "server_config_updated", "A server got other settings: `by` whom, `target`."
    )
    SERVER_CONFIG_REMOVED = _info(
        "server_config_removed", "A server was removed: `by` whom, `target`."
    )
    TOOL_EXECUTION_START = _debug("tool_execution_start", "A tool call went to its backend.")
    TOOL_EXECUTION_COMPLETE = _debug(
        "tool_execution_complete",
        "A tool call ended: `outcome` (completed, failed, cancelled, expired), `duration_ms`.",
    )
    TOOL_EXECUTION_TIMEOUT = _info(
        "tool_execution_timeout", "A tool call took too long and became a task."
    )
    TOOL_ARGUMENTS_REPAIRED = _info(
        "tool_arguments_repaired", "Arguments of the wrong type were put right before the call."
    )
    TASK_COMPLETED = _info("task_completed", "A task of `tool` has its result.")
    TASK_FAILED = _warning(
        "task_failed", "A task of `tool` ended with an error, also because its server was lost."
    )
    ELICITATION_RECEIVED = _info("elicitation_received", "A backend asked the client something.")
    ELICITATION_RESPONDED = _info("elicitation_responded", "The client answered a backend.")
    ELICITATION_TIMEOUT = _warning(
        "elicitation_timeout", "Nobody answered a backend's question in time."
    )
    APPROVAL_REQUESTED = _warning(
        "approval_requested", "A new server waits for a person, or a call of `tool`."
    )
    APPROVAL_GRANTED = _info("approval_granted", "A person allowed a server, or a call of `tool`.")
    APPROVAL_UNWRITABLE = _warning(
        "approval_unwritable",
        "An agreement counts for this session only: it could not be written down.",
    )
    CATALOGUE_UNWRITABLE = _warning(
        "catalogue_unwritable", "What servers list could not be kept for the next session: `error`."
    )
    SIGN_IN_REQUIRED = _warning(
        "sign_in_required", "A person has to sign in to a server: `command` does it."
    )
    SIGNED_IN = _info("signed_in", "A person has signed in to a server, which is connected.")
    TOOLS_CHANGED = _warning(
        "tools_changed", "Tools of a server are not what they were when they were first seen."
    )
    LEFTOVERS = _warning("leftovers", "Processes of an earlier proxy are still there.")
    TELEMETRY_UNAVAILABLE = _warning(
        "telemetry_unavailable",
        "A collector of OpenTelemetry is named, but nothing can be sent to it: `reason`.",
    )
    WATCHDOG_UNAVAILABLE = _warning(
        "watchdog_unavailable",
        "The watchdog cannot be started: servers may survive a proxy that is killed.",
    )
    APPROVAL_DENIED = _warning("approval_denied", "A server was refused, or a call of `tool`.")
    SERVER_OUTPUT = _info("server_output", "A line that a backend printed or logged.")
    SERVER_OUTPUT_DROPPED = _warning(
        "server_output_dropped",
        "A server printed more than is written down; `count` lines are missing before this.",
    )
    SERVER_NOT_ADDED = _warning("server_not_added", "A server could not be added.")
    EXPOSED_LEFT_OUT = _warning(
        "exposed_left_out",
        "Exposed items of a server are not listed: `count` are malformed, too large, or too many.",
    )
    CONFIG_WARNING = _warning("config_warning", "Something in the configuration looks wrong.")
    CONFIG_BROKEN = _warning("config_broken", "An entry of the configuration is broken.")
    CONFIG_INVALID = _error("config_invalid", "The configuration could not be read.")
    CLIENT_NOISE = _warning("client_noise", "The client wrote something that is no message.")
    LATE_RESULT = _debug("late_result", "A result came after its task had ended.")
    UNEXPECTED_ERROR = _error("unexpected_error", "A bug; `request_id` is its reference.")
    EVENT_STORE_EVICTION = _warning(
        "event_store_eviction", "Events had to leave the full event log."
    )
    EVENT_STORE_APPROACHING_LIMIT = _warning(
        "event_store_approaching_limit",
        "The event log is nearly full of events that nobody has been told: `percent_full`.",
    )
    EVENT_CURSOR_NOT_FOUND = _warning(
        "event_cursor_not_found",
        "The client named a `last_event_id` that is not kept, and got all events that are.",
    )
    EVENT_ADDED = _info(
        "event_added",
        "An event for the client of which no other line speaks: `type`. Some are warnings.",
    )
    CLIENT_CONNECTED = _info(
        "client_connected",
        "A client is served: its `name` and `version`, the `protocol`, and the proxy's `pid`.",
    )
    REGISTRY_SHUTDOWN_START = _info("registry_shutdown_start", "The proxy began to stop: `reason`.")
    REGISTRY_SHUTDOWN_COMPLETE = _info("registry_shutdown_complete", "Every backend is gone.")
    JOURNAL_DROPPED = _warning("journal_dropped", "Lines were lost; `count` says how many.")
    JOURNAL_RENEWED = _warning(
        "journal_renewed", "The journal's file was removed while in use, and started anew."
    )
    JOURNAL_UNWRITABLE = _error(
        "journal_unwritable", "The journal cannot be written; lines are lost until it can."
    )
    JOURNAL_RECOVERED = _warning("journal_recovered", "The journal can be written again.")
