"""The table of journal events: name, usual level and meaning."""

from enum import StrEnum
from typing import Self


class Level(StrEnum):
    """How much a line matters, from least to most."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


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

    SERVER_SPAWNED = "server_spawned", Level.INFO, "A backend's process was started."
    SERVER_CONNECTED = (
        "server_connected",
        Level.INFO,
        "A backend answered the handshake; `url`, if it has one.",
    )
    SERVER_DISCONNECTED = (
        "server_disconnected",
        Level.INFO,
        "A backend's connection ended: `reason`. A warning with `exit_code`, `stderr` if it broke.",
    )
    SERVER_RECONNECTING = (
        "server_reconnecting",
        Level.INFO,
        "A backend is tried again: `attempt`, after `delay_ms`. A warning after a failed start.",
    )
    SERVER_IDLE = (
        "server_idle",
        Level.INFO,
        "A backend was not used for `idle_stop_ms` and is stopped; the next call starts it.",
    )
    SERVER_FAILED = (
        "server_failed",
        Level.WARNING,
        "A backend cannot be reached, and is not tried again by itself.",
    )
    SERVER_RECONNECT_FAILED = (
        "server_reconnect_failed",
        Level.WARNING,
        "One attempt to reach a lost backend failed: `attempt`, `error`.",
    )
    SESSION_SERVER_RECONCILIATION_COMPLETE = (
        "session_server_reconciliation_complete",
        Level.INFO,
        "What a backend had open when it was lost or left has been ended; `invalidated_*` counts.",
    )
    SERVER_CONFIG_ADDED = (
        "server_config_added",
        Level.INFO,
        "A server was added: `by` whom, `target`.",
    )
    SERVER_CONFIG_UPDATED = (
        "server_config_updated",
        Level.INFO,
        "A server got other settings: `by` whom, `target`.",
    )
    SERVER_CONFIG_REMOVED = (
        "server_config_removed",
        Level.INFO,
        "A server was removed: `by` whom, `target`.",
    )
    TOOL_EXECUTION_START = "tool_execution_start", Level.DEBUG, "A tool call went to its backend."
    TOOL_EXECUTION_COMPLETE = (
        "tool_execution_complete",
        Level.DEBUG,
        "A tool call ended: `outcome` (completed, failed, cancelled, expired), `duration_ms`.",
    )
    TOOL_EXECUTION_TIMEOUT = (
        "tool_execution_timeout",
        Level.INFO,
        "A tool call took too long and became a task.",
    )
    TOOL_ARGUMENTS_REPAIRED = (
        "tool_arguments_repaired",
        Level.INFO,
        "Arguments of the wrong type were put right before the call.",
    )
    TASK_COMPLETED = "task_completed", Level.INFO, "A task of `tool` has its result."
    TASK_FAILED = (
        "task_failed",
        Level.WARNING,
        "A task of `tool` ended with an error, also because its server was lost.",
    )
    ELICITATION_RECEIVED = (
        "elicitation_received",
        Level.INFO,
        "A backend asked the client something.",
    )
    ELICITATION_RESPONDED = "elicitation_responded", Level.INFO, "The client answered a backend."
    ELICITATION_TIMEOUT = (
        "elicitation_timeout",
        Level.WARNING,
        "Nobody answered a backend's question in time.",
    )
    APPROVAL_REQUESTED = (
        "approval_requested",
        Level.WARNING,
        "A new server waits for a person, or a call of `tool`.",
    )
    APPROVAL_GRANTED = (
        "approval_granted",
        Level.INFO,
        "A person allowed a server, or a call of `tool`.",
    )
    APPROVAL_UNWRITABLE = (
        "approval_unwritable",
        Level.WARNING,
        "An agreement counts for this session only: it could not be written down.",
    )
    CATALOGUE_UNWRITABLE = (
        "catalogue_unwritable",
        Level.WARNING,
        "What servers list could not be kept for the next session: `error`.",
    )
    SIGN_IN_REQUIRED = (
        "sign_in_required",
        Level.WARNING,
        "A person has to sign in to a server: `command` does it.",
    )
    SIGNED_IN = "signed_in", Level.INFO, "A person has signed in to a server, which is connected."
    TOOLS_CHANGED = (
        "tools_changed",
        Level.WARNING,
        "Tools of a server are not what they were when they were first seen.",
    )
    LEFTOVERS = (
        "leftovers",
        Level.WARNING,
        "Processes of an earlier proxy are still there.",
    )
    TELEMETRY_UNAVAILABLE = (
        "telemetry_unavailable",
        Level.WARNING,
        "A collector of OpenTelemetry is named, but nothing can be sent to it: `reason`.",
    )
    WATCHDOG_UNAVAILABLE = (
        "watchdog_unavailable",
        Level.WARNING,
        "The watchdog cannot be started: servers may survive a proxy that is killed.",
    )
    APPROVAL_DENIED = (
        "approval_denied",
        Level.WARNING,
        "A server was refused, or a call of `tool`.",
    )
    SERVER_OUTPUT = "server_output", Level.INFO, "A line that a backend printed or logged."
    SERVER_OUTPUT_DROPPED = (
        "server_output_dropped",
        Level.WARNING,
        "A server printed more than is written down; `count` lines are missing before this.",
    )
    SERVER_NOT_ADDED = "server_not_added", Level.WARNING, "A server could not be added."
    EXPOSED_LEFT_OUT = (
        "exposed_left_out",
        Level.WARNING,
        "Exposed items of a server are not listed: `count` are malformed, too large, or too many.",
    )
    CONFIG_WARNING = "config_warning", Level.WARNING, "Something in the configuration looks wrong."
    CONFIG_BROKEN = "config_broken", Level.WARNING, "An entry of the configuration is broken."
    CONFIG_INVALID = "config_invalid", Level.ERROR, "The configuration could not be read."
    CLIENT_NOISE = "client_noise", Level.WARNING, "The client wrote something that is no message."
    LATE_RESULT = "late_result", Level.DEBUG, "A result came after its task had ended."
    UNEXPECTED_ERROR = "unexpected_error", Level.ERROR, "A bug; `request_id` is its reference."
    EVENT_STORE_EVICTION = (
        "event_store_eviction",
        Level.WARNING,
        "Events had to leave the full event log.",
    )
    EVENT_STORE_APPROACHING_LIMIT = (
        "event_store_approaching_limit",
        Level.WARNING,
        "The event log is nearly full of events that nobody has been told: `percent_full`.",
    )
    EVENT_CURSOR_NOT_FOUND = (
        "event_cursor_not_found",
        Level.WARNING,
        "The client named a `last_event_id` that is not kept, and got all events that are.",
    )
    EVENT_ADDED = (
        "event_added",
        Level.INFO,
        "An event for the client of which no other line speaks: `type`. Some are warnings.",
    )
    CLIENT_CONNECTED = (
        "client_connected",
        Level.INFO,
        "A client is served: its `name` and `version`, the `protocol`, and the proxy's `pid`.",
    )
    REGISTRY_SHUTDOWN_START = (
        "registry_shutdown_start",
        Level.INFO,
        "The proxy began to stop: `reason`.",
    )
    REGISTRY_SHUTDOWN_COMPLETE = "registry_shutdown_complete", Level.INFO, "Every backend is gone."
    JOURNAL_DROPPED = "journal_dropped", Level.WARNING, "Lines were lost; `count` says how many."
    JOURNAL_RENEWED = (
        "journal_renewed",
        Level.WARNING,
        "The journal's file was removed while in use, and started anew.",
    )
    JOURNAL_UNWRITABLE = (
        "journal_unwritable",
        Level.ERROR,
        "The journal cannot be written; lines are lost until it can.",
    )
    JOURNAL_RECOVERED = (
        "journal_recovered",
        Level.WARNING,
        "The journal can be written again.",
    )
