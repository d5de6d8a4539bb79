"""The settings of the proxy (the `emceepee` object), their defaults, limits and fixed values.

A value that does not fit costs only itself: its default is used, and a warning says so.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from emceepee_stdio.config.fields import (
    Vocabulary,
    expand,
    fit,
    given_fields,
    hints_of,
    schema_of,
    snake,
)
from emceepee_stdio.config.server import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    BrokenServer,
    IdleStopMs,
    NamedEntry,
    RestartConfig,
    ServerConfig,
    ServerEntry,
    StartMode,
    marked_names,
    within,
)
from emceepee_stdio.errors import ConfigInvalid

# Values that nobody has to set: what the proxy does without asking, with the reason for each.
#
# They travel with the settings, so that a test may pass others; the configuration file cannot name
# them. Most were settings once: a file that still names one is warned with the value that holds.


class FixedValues(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times in seconds, sizes in the unit of their name, all others are counts."""

    # Calls and tasks
    promotion_grace_s: float = 0.1  # lets calls finish that were nearly done when a question came
    question_pending_s: float = 1.0  # a server that waits for an answer seldom answers calls before
    heartbeat_s: float = 15.0  # clients give a silent call up after a minute or more
    await_s: float = 30.0  # below the 45 s that an unknown client waits
    task_ttl_max_s: float = 86_400.0  # an honest build may take a day; nobody comes back for older
    result_retention_s: float = 300.0  # a client that lost the answer asks again soon or never
    finished_tasks: int = 1_000  # far more than one session looks back on
    timers: int = 100  # a model that sets more has lost count of them

    # Events and what each response shows of them: a host cuts long answers
    events: int = 1_000  # hours of a quiet session; a flood is folded or counted
    response_events: int = 20  # the rest stays undelivered and is counted
    response_event_bytes: int = 8 << 10  # some 2,000 tokens, beside the result itself
    event_data_bytes: int = 1 << 10  # the whole notification is in get_notifications
    notifications: int = 100  # for each server
    log_lines: int = 500  # for each server; the journal has them all
    output_lines: int = (
        3_000  # a minute and server: a flood must not push others out of the journal
    )

    # Questions of servers: every response shows all of them
    pending_requests: int = 100
    server_questions: int = 20  # no server fills the 100 alone
    question_bytes: int = 32 << 10  # a form is far smaller; what is larger is no question
    question_chars: int = 2_000  # as much as a person reads
    sampling_preview_chars: int = 200  # get_sampling_requests has the whole
    automatic_answer_s: float = 0.3  # nobody reads a question and refuses it faster
    roots_s: float = 10.0  # a client knows its directories; one that does not answer has none
    roots_settle_s: float = 0.25  # a server asks, is told, and looks at the directories; once
    roots_hold_s: float = 50.0  # till a modern client makes a call; servers wait 60 s by default
    rounds: int = 10  # a form in ten steps; a server that never stops is stopped

    # Talking to servers
    probe_s: float = 5.0  # a server that knows the question answers at once
    health_interval_s: float = 120.0  # often enough to warn, rare enough to cost nothing
    health_s: float = 60.0  # a busy server may be slow and healthy
    health_misses: int = 3  # one lost ping is no news
    keyring_s: float = 60.0  # a person may have to unlock it first
    unread_bytes: int = 64 << 20  # as much as one line may have
    client_line_bytes: int = 8 << 20  # no host shows as much, and it reads the line whole
    pattern_chars: int = 500  # what a person writes is shorter
    pattern_s: float = 0.1  # a sane expression needs microseconds; the loop waits meanwhile

    # What is exposed
    exposed_settle_s: float = 0.1  # servers that connect at once make one change of the lists
    exposed_pace_s: float = 1.0  # a server that changes all the time does not flood the client

    # Starting again
    restart_factor: float = 2.0  # each delay is twice the one before
    restart_jitter: float = 0.1  # servers that died together do not start together
    restart_stable_s: float = 60.0  # who lives so long did not crash at its start
    restart_http_cap_s: float = 180.0  # a URL is tried for ever: a little slower

    # Ending
    stop_term_s: float = 2.0  # on removal, from closing stdin to SIGTERM: time to save
    stop_kill_s: float = 4.0  # on removal, from closing stdin to SIGKILL
    eof_term_s: float = 0.5  # when the client hangs up: some clients kill us after 2 s
    eof_kill_s: float = 1.2  # leaves time to be gone before those 2 s
    signal_kill_s: float = 0.25  # who sends a signal waits even less
    last_resort_s: float = 15.0  # twice what the slowest orderly end takes: then the process exits
    exit_drain_s: float = 0.1  # reads what a server wrote just before it exited
    stderr_tail_lines: int = 10  # the reason of a crash is in the last lines

    config_poll_s: float = 1.0  # an edit counts at once for a person; a stat costs microseconds


def _former_settings() -> Iterator[tuple[str, str]]:
    for name, value in msgspec.structs.asdict(FixedValues()).items():
        key = name.removeprefix("restart_")
        if not key.endswith("_s"):
            yield key, f"it is always {value if isinstance(value, int) else f'{value:g}'}"
        else:
            shown = f"{value * 1000:g} ms" if value < 1 else f"{value:g} s"
            yield f"{key.removesuffix('_s')}_ms", f"it is always {shown}"


# Each fixed value as a file would name it, and what holds instead.
FORMER: Mapping[str, str] = {
    **dict(_former_settings()),
    "call_max_ms": "a call may ask for 900 s at most, and timeouts.call_ms counts as it is written",
}


# What the configuration says, once it has been understood: the settings, and the whole.
#
# Every key, default, bound and description stands here or in `server` and nowhere else; the JSON
# Schema is generated from these structs.


_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB

_ABSOLUTE = r"(/|[A-Za-z]:[\\/]|\\\\)"


QuestionsMode = Literal["auto", "client", "tools", "page"]
PolicyMode = Literal["auto", "ask", "allow", "deny"]


class Policy(Struct, frozen=True, kw_only=True):
    """Which servers a model may add by itself, and what to do when a server's tools change.

    Fields:
      mode: Whether servers that a model adds are connected, or need a person.
      pin: What to do when the tools of a known server have changed.
      page: Ask the person on a page in their browser where the client cannot ask, if there is a
          desktop.
    """

    mode: PolicyMode = "auto"
    pin: Literal["off", "warn", "enforce"] = "warn"
    page: bool = True


class Timeouts(Struct, frozen=True, kw_only=True):
    """How long things may take, in milliseconds.

    Fields:
      call_ms: A call, before it becomes a task.
      client_ceiling_ms: The longest time that a client waits, unless more is known of it.
      connect_ms: Start and handshake of a server; a first start may download it.
      request_ms: Any other request to a server, such as a completion.
      client_request_ms: An elicitation or a sampling request, before it expires.
      task_ttl_ms: A task, before it expires.
    """

    call_ms: Annotated[int, within(0, DAY_MS)] = 2 * MINUTE_MS
    client_ceiling_ms: Annotated[int, within(1, DAY_MS)] = 45_000
    connect_ms: Annotated[int, within(1, HOUR_MS)] = 2 * MINUTE_MS
    request_ms: Annotated[int, within(1, DAY_MS)] = MINUTE_MS
    client_request_ms: Annotated[int, within(1, DAY_MS)] = 10 * MINUTE_MS
    task_ttl_ms: Annotated[int, within(1, DAY_MS)] = 30 * MINUTE_MS


class Limits(Struct, frozen=True, kw_only=True):
    """How much is kept, shown and accepted.

    Fields:
      memory_bytes: Bytes of events, notifications and log lines kept in all.
      tasks: Calls and tasks at work at the same time.
      server_calls: Calls and tasks of one server at work at the same time.
      stored_bytes: Bytes of results kept for one session.
      result_bytes: Bytes of text over which an answer is stored and paged; 0 never does. By default
          what the client shows.
      line_bytes: Bytes of one line from a server.
      servers: Servers at the same time.
    """

    memory_bytes: Annotated[int, within(_MIB, _GIB)] = 32 * _MIB
    tasks: Annotated[int, within(1, 10_000)] = 100
    server_calls: Annotated[int, within(1, 10_000)] = 50
    stored_bytes: Annotated[int, within(0, 16 * _GIB)] = 64 * _MIB
    result_bytes: Annotated[int, within(0, _GIB)] | None = None
    line_bytes: Annotated[int, within(_KIB, _GIB)] = 64 * _MIB
    servers: Annotated[int, within(1, 10_000)] = 100


class Logging(Struct, frozen=True, kw_only=True):
    """What the journal keeps, and where.

    Fields:
      level: The least important level that is written.
      directory: Directory of the journal, an absolute path; null is the platform's own.
      max_bytes: Size at which a file is rotated, in bytes.
      files: Files kept for each process, with the one in use.
      max_age_days: Days after which a file is removed.
      payloads: Record arguments and results of requests, too: cut, known secrets hidden.
    """

    level: Literal["debug", "info", "warning", "error"] = "info"
    directory: (
        Annotated[str, Meta(pattern=f"^{_ABSOLUTE}", description="An absolute path.")] | None
    ) = None
    max_bytes: Annotated[int, within(_KIB, _GIB)] = 10 * _MIB
    files: Annotated[int, within(1, 1_000)] = 5
    max_age_days: Annotated[int, within(1, 3_650)] = 14
    payloads: bool = False


class SettingsSection(Struct, frozen=True, kw_only=True):
    """The proxy's own settings.

    Fields:
      start: When configured servers are started, unless their entry says; null is eager, and auto
          for sessions over HTTP.
      roots: Directories that servers work in, where the client lists none.
      promote_on_input: Make a call a task as soon as its server asks something.
      questions: Who is asked what a server asks: the person where the client can ask, else the
          model (auto); never the model (client); never the person through the client (tools); as
          auto, but on a page in their browser before the model (page).
      client_ceilings_ms: The longest time that a client waits, by the client's name.
    """

    policy: Policy = field(default_factory=Policy)
    limits: Limits = field(default_factory=Limits)
    timeouts: Timeouts = field(default_factory=Timeouts)
    restart: RestartConfig = field(default_factory=RestartConfig)
    logging: Logging = field(default_factory=Logging)
    start: StartMode | None = None
    idle_stop_ms: IdleStopMs = 0
    roots: tuple[
        Annotated[
            str,
            Meta(
                pattern=f"^(file://|{_ABSOLUTE})", description="A file:// URI or an absolute path."
            ),
        ],
        ...,
    ] = ()
    promote_on_input: bool = True
    questions: QuestionsMode = "auto"
    client_ceilings_ms: dict[
        str, Annotated[int, within(1, DAY_MS, "The longest time that this client waits.")]
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
    """The configuration of emceepee: servers by name, or as a list, and its own settings.

    Fields:
      mcpServers: Servers by name, as MCP clients write them.
      servers: Servers as a list, each with its name, or by name.
      context_servers: Servers by name, as Zed writes them.
    """

    mcp_servers: dict[str, ServerEntry] = {}
    servers: dict[str, ServerEntry] | tuple[NamedEntry, ...] = ()
    context_servers: dict[str, ServerEntry] = {}
    emceepee: SettingsSection = field(default_factory=SettingsSection)


def config_schema() -> dict[str, object]:
    """JSON Schema of the file as a person writes it."""
    return schema_of(ConfigFile, title="emceepee configuration")


# Former names of settings that are still understood.
_RENAMED: Mapping[type[Struct], Mapping[str, str]] = {Limits: {"result_chars": "result_bytes"}}


def read_settings(section: object, *, environ: Mapping[str, str], warnings: list[str]) -> Settings:
    if section is None:
        return Settings()
    try:
        fitting = _fitting(
            SettingsSection, section, path="emceepee", environ=environ, warnings=warnings
        )
    except ConfigInvalid as error:
        warnings.append(_fallback(error))
        return Settings()
    return msgspec.convert(fitting, Settings)


def _fitting(
    struct: type[Struct],
    section: object,
    *,
    path: str,
    environ: Mapping[str, str],
    warnings: list[str],
) -> dict[str, object]:
    """The part of the section that fits the struct; raises if it is no object at all."""
    hints = hints_of(struct)
    members = fit(section, dict[str, object], path=path)
    fitting: dict[str, object] = {}
    renamed = _RENAMED.get(struct, {})
    words = Vocabulary(hints, renamed, former=FORMER)
    found = given_fields(members, words, path=path, warnings=warnings)
    warnings += [
        f"{path}.{key} is now called {new}; rename it."
        for key in members
        if (new := renamed.get(snake(key)))
    ]
    for name, (key, value) in found.items():
        hint, where = hints[name], f"{path}.{key}"
        try:
            if _is_section(hint):
                fitting[name] = _fitting(
                    hint, value, path=where, environ=environ, warnings=warnings
                )
            else:
                fitting[name] = fit(expand(value, environ=environ, path=where), hint, path=where)
        except ConfigInvalid as error:
            warnings.append(_fallback(error))
    return fitting


def _fallback(error: ConfigInvalid) -> str:
    return f"{error.fact} The default is used."


def _is_section(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Struct)
