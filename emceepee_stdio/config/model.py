"""What the configuration says, once it has been understood: the settings, and the whole.

Every key, default, bound and description stands here or in `server` and nowhere else; the JSON
Schema is generated from these structs.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct, field

from emceepee_stdio.config.fixed import FixedValues
from emceepee_stdio.config.server import (
    BrokenServer,
    IdleStopMs,
    NamedEntry,
    RestartConfig,
    RestartOverrides,
    ServerConfig,
    ServerEntry,
    StartMode,
    marked_names,
)

__all__ = [
    "BrokenServer",
    "Config",
    "Limits",
    "Logging",
    "Policy",
    "PolicyMode",
    "QuestionsMode",
    "RestartConfig",
    "RestartOverrides",
    "ServerConfig",
    "ServerEntry",
    "Settings",
    "SettingsSection",
    "Timeouts",
    "config_schema",
]

_MINUTE = 60_000
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_ABSOLUTE = r"(/|[A-Za-z]:[\\/]|\\\\)"


def _within(low: float, high: float, description: str) -> Meta:
    return Meta(ge=low, le=high, description=description)


QuestionsMode = Literal["auto", "client", "tools"]
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
    client_ceiling_ms: Annotated[
        int, _within(1, _DAY, "The longest time that a client waits, unless more is known of it.")
    ] = 45_000
    connect_ms: Annotated[
        int, _within(1, _HOUR, "Start and handshake of a server; a first start may download it.")
    ] = 2 * _MINUTE
    request_ms: Annotated[
        int, _within(1, _DAY, "Any other request to a server, such as a completion.")
    ] = _MINUTE
    client_request_ms: Annotated[
        int, _within(1, _DAY, "An elicitation or a sampling request, before it expires.")
    ] = 10 * _MINUTE
    task_ttl_ms: Annotated[int, _within(1, _DAY, "A task, before it expires.")] = 30 * _MINUTE


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept, shown and accepted."""

    memory_bytes: Annotated[
        int, _within(_MIB, _GIB, "Bytes of events, notifications and log lines kept in all.")
    ] = 32 * _MIB
    tasks: Annotated[int, _within(1, 10_000, "Calls and tasks at work at the same time.")] = 100
    server_calls: Annotated[
        int, _within(1, 10_000, "Calls and tasks of one server at work at the same time.")
    ] = 50
    stored_bytes: Annotated[
        int, _within(0, 16 * _GIB, "Bytes of results kept for one session.")
    ] = 64 * _MIB
    result_chars: (
        Annotated[
            int,
            _within(
                0,
                _GIB,
                "Bytes of text over which an answer is stored and paged; 0 never does. "
                "By default what the client shows.",
            ),
        ]
        | None
    ) = None
    line_bytes: Annotated[int, _within(_KIB, _GIB, "Bytes of one line from a server.")] = 64 * _MIB
    servers: Annotated[int, _within(1, 10_000, "Servers at the same time.")] = 100


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
    payloads: Annotated[
        bool,
        Meta(
            description="Record arguments and results of requests, too: cut, known secrets hidden."
        ),
    ] = False


class SettingsSection(Struct, frozen=True, kw_only=True):
    """The proxy's own settings."""

    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    restart: RestartConfig = field(default_factory=RestartConfig)
    logging: Logging = field(default_factory=Logging)
    start: Annotated[
        StartMode | None,
        Meta(
            description="When configured servers are started, unless their entry says; null is"
            " eager, and auto for sessions over HTTP."
        ),
    ] = None
    idle_stop_ms: IdleStopMs = 0
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
        Meta(description="Directories that servers work in, where the client lists none."),
    ] = ()
    promote_on_input: Annotated[
        bool, Meta(description="Make a call a task as soon as its server asks something.")
    ] = True
    questions: Annotated[
        QuestionsMode,
        Meta(
            description="Who is asked what a server asks: the person where the client can ask, else"
            " the model (auto); never the model (client); never the person through the client"
            " (tools)."
        ),
    ] = "auto"
    client_ceilings_ms: Annotated[
        dict[str, Annotated[int, _within(1, _DAY, "The longest time that this client waits.")]],
        Meta(description="The longest time that a client waits, by the client's name."),
    ] = {}


class Settings(SettingsSection, frozen=True, kw_only=True):
    """What a person has set, and what nobody can."""

    fixed: FixedValues = field(default_factory=FixedValues)


class Config(Struct, frozen=True, kw_only=True):
    """A configuration that was read: what to use, what not and why, and what to tell the person."""

    servers: tuple[ServerConfig, ...] = ()
    disabled: tuple[BrokenServer, ...] = ()
    settings: Settings = field(default_factory=Settings)
    warnings: tuple[str, ...] = ()
    problem: str | None = None  # why the file cannot be read; what is here comes from elsewhere

    @property
    def names(self) -> set[str]:
        """Of all servers, used or not."""
        return {entry.name for entry in (*self.servers, *self.disabled)}

    @property
    def marked_names(self) -> dict[str, str]:
        """All names, and how a list of names has them."""
        return marked_names((server.name for server in self.servers), self.disabled)


class ConfigFile(Struct, frozen=True, kw_only=True, rename={"mcp_servers": "mcpServers"}):
    """The configuration of emceepee: servers by name, or as a list, and its own settings."""

    mcp_servers: Annotated[
        dict[str, ServerEntry], Meta(description="Servers by name, as MCP clients write them.")
    ] = {}
    servers: Annotated[
        dict[str, ServerEntry] | tuple[NamedEntry, ...],
        Meta(description="Servers as a list, each with its name, or by name."),
    ] = ()
    context_servers: Annotated[
        dict[str, ServerEntry], Meta(description="Servers by name, as Zed writes them.")
    ] = {}
    emceepee: SettingsSection = field(default_factory=SettingsSection)


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
