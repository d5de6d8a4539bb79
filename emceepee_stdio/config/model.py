"""What the configuration says, once it has been understood: the settings, and the whole.

Every key, default, bound and description stands here or in `server` and nowhere else; the JSON
Schema is generated from these structs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from emceepee_stdio.config.server import (
    BrokenServer,
    RestartConfig,
    RestartOverrides,
    RestartSettings,
    ServerConfig,
    ServerEntry,
)

__all__ = [
    "BrokenServer",
    "Config",
    "Limits",
    "Logging",
    "Policy",
    "PolicyMode",
    "RestartConfig",
    "RestartOverrides",
    "RestartSettings",
    "ServerConfig",
    "ServerEntry",
    "Settings",
    "Timeouts",
    "config_schema",
]

_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_ABSOLUTE = r"(/|[A-Za-z]:[\\/]|\\\\)"


def _within(low: float, high: float, description: str) -> Meta:
    return Meta(ge=low, le=high, description=description)


PolicyMode = Literal["auto", "ask", "allow", "deny"]


class Policy(Struct, frozen=True, kw_only=True):
    """Which servers a model may add by itself, and what to do when a server's tools change."""

    mode: Annotated[
        PolicyMode,
        Meta(description="Whether servers that a model adds are connected, or need a person."),
    ] = "auto"
    pin: Annotated[
        Literal["off", "warn", "enforce"],
        Meta(description="What to do when the tools of a known server have changed."),
    ] = "warn"


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long things may take, in milliseconds."""

    call_ms: Annotated[int, _within(0, _DAY, "A call, before it becomes a task.")] = 2 * _MINUTE
    call_max_ms: Annotated[int, _within(1, _DAY, "The longest wait that a call may ask for.")] = (
        15 * _MINUTE
    )
    client_ceiling_ms: Annotated[
        int, _within(1, _DAY, "The longest wait that a client bears, unless it is known better.")
    ] = 45_000
    promotion_grace_ms: Annotated[
        int, _within(0, _MINUTE, "Time to finish for calls whose server has asked something.")
    ] = 100
    question_pending_ms: Annotated[
        int, _within(0, _HOUR, "A call to a server that waits for an answer, before it is a task.")
    ] = 1_000
    connect_ms: Annotated[
        int, _within(1, _HOUR, "Start and handshake of a server; a first start may download it.")
    ] = 2 * _MINUTE
    probe_ms: Annotated[int, _within(1, _HOUR, "Finding out what a server speaks.")] = 5_000
    request_ms: Annotated[
        int, _within(1, _DAY, "Any other request to a server, such as a list.")
    ] = _MINUTE
    client_request_ms: Annotated[
        int, _within(1, _DAY, "An elicitation or a sampling request, before it expires.")
    ] = 10 * _MINUTE
    await_ms: Annotated[int, _within(0, _DAY, "await_activity, when it names no time.")] = 30_000
    task_ttl_ms: Annotated[int, _within(1, _WEEK, "A task, before it expires.")] = 30 * _MINUTE
    task_ttl_max_ms: Annotated[
        int, _within(1, _WEEK, "The longest life that a task may ask for.")
    ] = _DAY
    result_retention_ms: Annotated[
        int, _within(0, _WEEK, "How long a result is kept after it was fetched.")
    ] = 5 * _MINUTE
    health_interval_ms: Annotated[
        int, _within(1, _DAY, "From one look at a server's health to the next.")
    ] = 2 * _MINUTE
    health_ms: Annotated[int, _within(1, _HOUR, "One look at a server's health.")] = _MINUTE
    stop_term_ms: Annotated[
        int, _within(0, _MINUTE, "On removal, from closing stdin to SIGTERM.")
    ] = 2_000
    stop_kill_ms: Annotated[
        int, _within(0, _MINUTE, "On removal, from closing stdin to SIGKILL.")
    ] = 4_000
    eof_term_ms: Annotated[
        int, _within(0, _MINUTE, "When the client hangs up, from then to SIGTERM.")
    ] = 500
    eof_kill_ms: Annotated[
        int, _within(0, _MINUTE, "When the client hangs up, from then to SIGKILL.")
    ] = 1_200
    signal_kill_ms: Annotated[
        int, _within(0, _MINUTE, "When the proxy is told to end, from SIGTERM to SIGKILL.")
    ] = 250
    exit_drain_ms: Annotated[
        int, _within(0, _MINUTE, "Reading the last output of a server that exited.")
    ] = 100
    config_poll_ms: Annotated[
        int, _within(1, _HOUR, "From one look at the configuration file to the next.")
    ] = 1_000
    pattern_ms: Annotated[int, _within(1, _MINUTE, "Matching one regular expression.")] = 100


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept, shown and accepted."""

    events: Annotated[int, _within(1, 1_000_000, "Events kept for the client.")] = 1_000
    response_events: Annotated[int, _within(1, 10_000, "Events shown in one response.")] = 20
    response_event_bytes: Annotated[
        int, _within(1, _MIB, "Bytes of events shown in one response.")
    ] = 8 * _KIB
    event_data_bytes: Annotated[int, _within(1, _MIB, "Bytes of data shown of one event.")] = _KIB
    notifications: Annotated[int, _within(1, 100_000, "Notifications kept for each server.")] = 100
    log_lines: Annotated[int, _within(1, 100_000, "Log lines kept for each server.")] = 500
    tasks: Annotated[int, _within(1, 10_000, "Calls and tasks at work at the same time.")] = 100
    server_calls: Annotated[
        int, _within(1, 10_000, "Calls and tasks of one server at work at the same time.")
    ] = 50
    finished_tasks: Annotated[int, _within(1, 100_000, "Finished tasks kept.")] = 1_000
    timers: Annotated[int, _within(1, 10_000, "Active timers.")] = 100
    pending_requests: Annotated[
        int, _within(1, 10_000, "Questions of servers that wait for an answer.")
    ] = 100
    question_chars: Annotated[
        int, _within(1, 1_000_000, "Characters of a question shown in every response.")
    ] = 2_000
    question_bytes: Annotated[
        int, _within(_KIB, 64 * _MIB, "Bytes of a question to the user; a larger one is refused.")
    ] = 32 * _KIB
    server_questions: Annotated[
        int, _within(1, 10_000, "Questions of one server that wait for an answer.")
    ] = 20
    sampling_preview_chars: Annotated[
        int, _within(1, 1_000_000, "Characters of a sampling request shown in every response.")
    ] = 200
    stored_bytes: Annotated[
        int, _within(0, 16 * _GIB, "Bytes of results kept for one session.")
    ] = 64 * _MIB
    result_chars: Annotated[
        int, _within(0, _GIB, "Characters over which a result is stored and paged; 0 never does.")
    ] = 40_000
    line_bytes: Annotated[int, _within(_KIB, _GIB, "Bytes of one line from a server.")] = 64 * _MIB
    output_lines: Annotated[
        int,
        _within(1, 1_000_000, "Lines of one server's output written to the journal in a minute."),
    ] = 3_000
    unread_bytes: Annotated[
        int, _within(_KIB, _GIB, "Bytes that a server may leave unread before it is refused more.")
    ] = 64 * _MIB
    client_line_bytes: Annotated[
        int, _within(_KIB, 64 * _MIB, "Bytes of one line to the client.")
    ] = 8 * _MIB
    pattern_chars: Annotated[int, _within(1, 100_000, "Characters of a regular expression.")] = 500
    stderr_tail_lines: Annotated[
        int, _within(0, 1_000, "Lines of stderr shown when a server died.")
    ] = 10
    health_misses: Annotated[
        int, _within(1, 1_000, "Missed looks before a server's health counts as degraded.")
    ] = 3
    servers: Annotated[int, _within(1, 10_000, "Servers at the same time.")] = 100
    rounds: Annotated[int, _within(1, 1_000, "Rounds of questions that one request may take.")] = 10


class Logging(Struct, frozen=True, kw_only=True):
    """What the journal keeps, and where."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Meta(description="The least important level that is written."),
    ] = "info"
    directory: Annotated[
        Annotated[str, Meta(pattern=f"^{_ABSOLUTE}", description="An absolute path.")] | None,
        Meta(description="Directory of the journal, an absolute path; null is the platform's own."),
    ] = None
    max_bytes: Annotated[int, _within(_KIB, _GIB, "Size at which a file is rotated, in bytes.")] = (
        10 * _MIB
    )
    files: Annotated[
        int, _within(1, 1_000, "Files kept for each process, with the one in use.")
    ] = 5
    max_age_days: Annotated[int, _within(1, 3_650, "Days after which a file is removed.")] = 14


class Settings(Struct, frozen=True, kw_only=True):
    """The proxy's own settings."""

    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    restart: RestartSettings = field(default_factory=RestartSettings)
    logging: Logging = field(default_factory=Logging)
    roots: Annotated[
        tuple[
            Annotated[
                str,
                Meta(
                    pattern=f"^(file://|{_ABSOLUTE})",
                    description="A file:// URI or an absolute path.",
                ),
            ],
            ...,
        ],
        Meta(description="Directories that servers are told to work in."),
    ] = ()
    promote_on_input: Annotated[
        bool, Meta(description="Make a call a task as soon as its server asks something.")
    ] = True
    client_ceilings_ms: Annotated[
        dict[str, Annotated[int, _within(1, _DAY, "The longest wait that this client bears.")]],
        Meta(description="The longest wait that a client bears, by the name it gives itself."),
    ] = {}


class Config(Struct, frozen=True, kw_only=True):
    """A configuration that was read: what to use, what not and why, and what to tell the person."""

    servers: tuple[ServerConfig, ...] = ()
    disabled: tuple[BrokenServer, ...] = ()
    settings: Settings = field(default_factory=Settings)
    warnings: tuple[str, ...] = ()


class ConfigFile(Struct, frozen=True, kw_only=True, rename={"mcp_servers": "mcpServers"}):
    """The configuration of emceepee: servers by name, or as a list, and its own settings."""

    mcp_servers: Annotated[
        dict[str, ServerEntry], Meta(description="Servers by name, as MCP clients write them.")
    ] = {}
    servers: Annotated[
        dict[str, ServerEntry] | tuple[ServerConfig, ...],
        Meta(description="Servers as a list, each with its name, or by name."),
    ] = ()
    context_servers: Annotated[
        dict[str, ServerEntry], Meta(description="Servers by name, as Zed writes them.")
    ] = {}
    emceepee: Settings = field(default_factory=Settings)


def config_schema() -> dict[str, object]:
    """JSON Schema of the file as a person writes it."""
    (root,), definitions = msgspec.json.schema_components(
        [ConfigFile], ref_template="#/$defs/{name}"
    )
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "emceepee configuration",
        **root,
        "$defs": definitions,
    }
    # Defaults that are tuples become the arrays that JSON has.
    return msgspec.json.decode(msgspec.json.encode(schema), type=dict[str, object])
