"""Tools that add, remove, reconnect and list servers."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal
from unicodedata import category

import anyio
import anyio.to_thread
import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import Hello, Kind, SessionIds, Snapshot
from emceepee_stdio.config.entries import starts_emceepee
from emceepee_stdio.config.server import RestartOverrides, ServerConfig
from emceepee_stdio.errors import (
    ConfigInvalid,
    InvalidArguments,
    ProxyError,
    ServerExists,
    ServerFailed,
)
from emceepee_stdio.journal import JournalEvent, redact_argv, redact_url
from emceepee_stdio.session.catalogue import TOO_LARGE
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import OWN_NAME, Admission, Origin, RegisteredServer
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.tools.listing import (
    MAX_SERVER_TEXT_CHARS,
    QUICK_LIST_TIMEOUT_S,
    cut_text,
    is_signed_in,
    shown_names,
    sign_in,
    sign_in_first,
)
from emceepee_stdio.tools.registry import (
    Params,
    always_loaded,
    destructive,
    open_world,
    read_only,
    tool,
)
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.visible_text import shell_line
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.environment import BEHIND_HTTP

# Names that a model may give to a server.


_UNSEEN = frozenset({"Cf", "Co", "Cs", "Zl", "Zp", "Mn", "Me"})
_FILLERS = "\u115f\u1160\u2800\u3164\uffa0"


LAST_ERROR = "emceepee/last_error"  # in `_meta` of list_servers with a name


def name_problem(name: str) -> str | None:
    """A model names a server as a person would read it, and not like another, or like us."""
    if name != name.strip() or "  " in name:
        return "A name has no spaces around it, and no two in a row."
    if any(category(char) in _UNSEEN or char in _FILLERS for char in name):
        return "A name has no characters that cannot be seen."
    if name.lower() == OWN_NAME:
        return f"The name {OWN_NAME} is the proxy's own."
    return None


# What a client is shown of a server: a line, or all that is known of it.


_SHORT = (
    "name",
    "phase",
    "counts",
    "from_catalogue",
    "not_remembered",
    "sign_in",
    "last_error",
    "next_retry_ms",
    "health",
)
_SHOWN_EXPOSED = 50  # names of tools: a page
_SHORT_ERROR_CHARS = 300  # the fact; what a server printed before it is longer
_SHOWN_ID_CHARS = 8  # enough to find it in a server's log


def short_line(facts: Mapping[str, object]) -> dict[str, object]:
    """A server in short: whether it can be used, what it has, and what is wrong with it."""
    line = {key: facts[key] for key in _SHORT if key in facts}
    error = line.get("last_error")
    if isinstance(error, str) and len(error) > _SHORT_ERROR_CHARS:
        line["last_error"] = f"{error[:_SHORT_ERROR_CHARS]} … (whole with name)"
    return line


async def described(runtime: Runtime, backend: Backend) -> dict[str, object]:
    """As `describe`, without what a person has to see first."""
    snapshot = backend.snapshot()
    facts = describe(runtime, snapshot)
    if "instructions" in facts and runtime.pins.enforced:
        listed = runtime.servers.listed(backend.name, ())
        said = None if listed is None else await runtime.pins.instructions(listed)
        facts["instructions"] = cut_text(said or "")
    exposed = runtime.surface.lists.listed_names().items()
    if names := [name for (server, _), name in exposed if server == backend.name]:
        more = [f"and {len(names) - _SHOWN_EXPOSED} more: list_tools"]
        facts["exposed_as"] = names[:_SHOWN_EXPOSED] + more * (len(names) > _SHOWN_EXPOSED)
    return facts


def describe(runtime: Runtime, snapshot: Snapshot) -> dict[str, object]:
    """A server as the client sees it."""
    clock, now = runtime.clock, runtime.clock.now()
    shown: dict[str, object] = {
        "name": snapshot.name,
        "phase": snapshot.phase.value,
        "transport": snapshot.transport,
        "target": runtime.session.secrets.mask(snapshot.target),
    }
    member = runtime.servers.members.get(snapshot.name)
    if member is not None and member.origin is Origin.CLIENT:
        shown["admitted"] = member.admission.grounds
    if snapshot.pid is not None:
        shown["pid"] = snapshot.pid
    if snapshot.up_since is not None:
        shown["connected_at"] = clock.iso(snapshot.up_since)
        shown["uptime_ms"] = round((now - snapshot.up_since) * 1000)
    if snapshot.hello is not None:
        shown |= _introduction(snapshot.hello)
    if snapshot.session is not None:
        shown["session"] = _session(snapshot.session, runtime.environment.environ)
    shown |= _known(None if member is None else member.backend, snapshot)
    if member is not None and runtime.servers.is_too_large(member.admission):
        shown["not_remembered"] = TOO_LARGE
    shown["restarts"] = max(snapshot.starts - 1, 0)
    shown |= runtime.sign_ins.facts(snapshot.name, snapshot.error)
    if snapshot.last_error is not None:
        shown["last_error"] = runtime.session.secrets.mask(snapshot.last_error)
    if snapshot.next_retry_at is not None:
        shown["next_retry_ms"] = max(round((snapshot.next_retry_at - now) * 1000), 0)
    if snapshot.degraded:
        shown["health"] = "degraded"
    return shown


def _session(ids: SessionIds, environ: Mapping[str, str]) -> dict[str, object]:
    """Our name for a connection beside the server's, of which no client over HTTP needs all."""
    theirs = ids.upstream_id
    if BEHIND_HTTP not in environ:
        return {"proxy_id": ids.proxy_id, "upstream_id": theirs}
    cut = None if theirs is None else f"{theirs[: min(_SHOWN_ID_CHARS, len(theirs) // 2)]}…"
    return {"http_id": environ[BEHIND_HTTP], "proxy_id": ids.proxy_id, "upstream_id": cut}


def _known(backend: Backend | None, snapshot: Snapshot) -> dict[str, object]:
    """How much it has, and from when that is known where it does not run."""
    known: dict[str, object] = {}
    if snapshot.counts:
        known["counts"] = shown_counts(backend, snapshot)
    if snapshot.remembered_at is not None:
        known["from_catalogue"] = snapshot.remembered_at
    return known


def _introduction(hello: Hello) -> dict[str, object]:
    """What a server says of itself, no more of it than fits beside the others."""
    shown: dict[str, object] = {
        "era": hello.era.value,
        "protocol_version": hello.protocol_version,
        "server_info": _bounded(hello.server_info),
        "capabilities": _bounded(hello.capabilities),
    }
    if hello.instructions:
        shown["instructions"] = cut_text(hello.instructions)
    return shown


def _bounded(said: Mapping[str, object]) -> object:
    text = to_json(said).decode()
    return said if len(text) <= MAX_SERVER_TEXT_CHARS else cut_text(text)


def shown_counts(backend: Backend | None, snapshot: Snapshot) -> dict[str, int]:
    """How much there is of each kind, without the tools that a rule hides."""
    counts = dict(snapshot.counts)
    if backend is not None and backend.rules is not None and Kind.TOOLS in counts:
        tools = backend.lists.known(Kind.TOOLS) or ()
        counts[Kind.TOOLS] = len(shown_names(backend, (str(tool.get("name")) for tool in tools)))
    return counts


_OWN_EVENTS = frozenset(
    {
        EventType.SERVER_ADDED,
        EventType.SERVER_REMOVED,
        EventType.SERVER_CONNECTED,
        EventType.SERVER_DISCONNECTED,
        EventType.SERVER_RECONNECTED,
        EventType.SERVER_RECONNECTING,
        EventType.SERVER_RESTART_FAILED,
        EventType.SIGN_IN_REQUIRED,
        EventType.SIGNED_IN,
        EventType.PROCESS_STARTED,
        EventType.PROCESS_STOPPED,
        EventType.PROCESS_CRASHED,
    }
)
_SHOWN_WAITING = 10  # of all that waits for a person, the newest
_PRINTED_LINES = 5  # of a server that is still connecting: enough to see what it is

Name = Annotated[str, Meta(description="The server's name.")]
EraChoice = Annotated[
    Literal["auto", "legacy", "modern"],
    Meta(description="Protocol era; auto finds out."),
]


class Restart(Params):
    attempts: Annotated[int, Meta(ge=0, le=1000, description="Restarts before giving up.")] = 5
    base_ms: Annotated[int, Meta(ge=1, description="First delay.")] = 1000
    cap_ms: Annotated[int, Meta(ge=1, description="Longest delay.")] = 60000


class AddServer(Params):
    name: Annotated[str, Meta(description="A short name of your choice.")]
    command: Annotated[str | UnsetType, Meta(description="Program that speaks MCP on stdio.")] = (
        UNSET
    )
    args: Annotated[list[str], Meta(description="Its arguments.")] = field(default_factory=list)
    env: Annotated[dict[str, str], Meta(description="Environment variables for it.")] = field(
        default_factory=dict
    )
    cwd: Annotated[str | UnsetType, Meta(description="Directory to start it in.")] = UNSET
    url: Annotated[str | UnsetType, Meta(description="Or: http(s) address of a server.")] = UNSET
    headers: Annotated[dict[str, str], Meta(description="HTTP headers for the url.")] = field(
        default_factory=dict
    )
    transport: Annotated[
        Literal["auto", "http", "sse", "stdio"], Meta(description="auto finds out.")
    ] = "auto"
    era: EraChoice = "auto"
    restart: Annotated[Restart | UnsetType, Meta(description="Restart policy.")] = UNSET
    replace: Annotated[bool, Meta(description="Take the place of a server of that name.")] = False


class RemoveServer(Params):
    name: Name


class ReconnectServer(Params):
    name: Name
    era: Annotated[
        Literal["auto", "legacy", "modern"] | UnsetType,
        Meta(description="Change the protocol era."),
    ] = UNSET


class ListServers(Params):
    name: Annotated[str | UnsetType, Meta(description="One server: everything about it.")] = UNSET


@tool(open_world)
async def add_server(runtime: Runtime, p: AddServer, call: Call) -> Reply:
    """Connect to an MCP server now: start a command, or connect by url.

    Answers with what it offers. It stays for this session; `keep_with` is the command line that
    keeps it.
    """
    config = _config(p)
    session = runtime.session
    before = session.state.events.latest
    present = list(runtime.servers)
    member = runtime.servers.members.get(config.name)
    if member is not None and member.config.is_same_but_rules(config):
        backend = member.backend
    elif member is not None and not p.replace:
        raise ServerExists(f"{config.name} exists already, with other settings.")
    else:
        late = partial(_add_late, runtime, member)
        admission = await runtime.admission.admit(config, call, add_late=late)
        backend = await runtime.servers.add(admission, runtime.group(), replacing=member)
    is_new = backend not in present
    if is_new:
        by, target = Origin.CLIENT.value, backend.snapshot().target
        session.tell_added(config.name, by=by, target=target)
    failure = await _connection_failure(runtime, backend, call)
    if failure is not None and is_new and backend in list(runtime.servers):
        await runtime.servers.remove(config.name)
    needed = backend.snapshot().error
    if await is_signed_in(runtime, backend, needed, call):
        failure = await _connection_failure(runtime, backend, call)
    _claim_events(runtime, config.name, call, before)
    if failure is not None:
        raise failure
    facts = await described(runtime, backend)
    facts["keep_with"] = _config_line(p)
    if isinstance(needed, SignInNeeded) and backend.phase is Phase.NEEDS_SIGN_IN:
        return Reply.sentence(sign_in_first(runtime, config.name, needed), facts)
    if backend.phase is not Phase.CONNECTED:
        session.state.starting.discard(config.name)
        printed = _printed(runtime, config.name)
        if printed:
            facts["printed"] = printed
        return Reply.sentence(
            f"{config.name} is still {facts['phase']}; it goes on in the background. "
            "list_servers or await_activity tells when it is there."
            + (" What it printed so far is no answer: see printed." if printed else ""),
            facts,
        )
    counts = await _counts(runtime, backend)
    return Reply.json({**facts, "counts": counts})


async def _add_late(
    runtime: Runtime, replacing: RegisteredServer | None, admission: Admission
) -> None:
    """A person agreed when the call was over; what came in under its name since then stays."""
    name = admission.config.name
    try:
        backend = await runtime.servers.add(admission, runtime.group(), replacing=replacing)
    except ProxyError as error:  # the same call, made again, says so to the model
        runtime.journal.record(JournalEvent.SERVER_NOT_ADDED, server=name, error=str(error))
        return
    runtime.session.tell_added(name, by="approval", target=backend.snapshot().target)


@tool(destructive)
async def remove_server(runtime: Runtime, p: RemoveServer, call: Call) -> Reply:
    """Disconnect a server and forget it. Its running tasks fail."""
    session = runtime.session
    before = session.state.events.latest
    tasks = [task.id for task in session.state.tasks.working(server=p.name)]
    questions = [asked.id for asked in session.state.requests.pending(server=p.name)]
    with on_leg(Leg.SERVER, p.name):
        await runtime.servers.remove(p.name)
    session.tell(EventType.SERVER_REMOVED, server=p.name, data={"by": Origin.CLIENT.value})
    _claim_events(runtime, p.name, call, before)
    return Reply.json({"removed": p.name, "failed_tasks": tasks, "rejected_requests": questions})


@tool()
async def reconnect_server(runtime: Runtime, p: ReconnectServer, call: Call) -> Reply:
    """Restart a server that failed or hangs, or connect to it anew, whatever its state."""
    backend = runtime.servers.get(p.name)
    before = runtime.session.state.events.latest
    member = runtime.servers.members.get(p.name)
    try:
        if member is not None and p.era not in (UNSET, member.config.era):
            changed = msgspec.structs.replace(member.config, era=p.era)
            backend = await runtime.servers.add(
                replace(member.admission, config=changed), runtime.group(), replacing=member
            )
            await backend.connect(within=call.client.ceiling)
        else:
            await _reconnected(runtime, backend, call)
    except SignInNeeded as needed:
        await sign_in(runtime, backend, needed, call)
        await backend.connect(within=call.client.ceiling)
    finally:
        _claim_events(runtime, p.name, call, before)
    return Reply.json(await described(runtime, backend))


@tool(read_only, meta=always_loaded)
async def list_servers(runtime: Runtime, p: ListServers, _call: Call) -> Reply:
    """Show the servers that are connected: status, how much each offers, last_error.

    All of one with name.
    """
    starting = runtime.session.state.starting
    starting -= {backend.name for backend in runtime.servers if backend.phase is Phase.CONNECTING}
    is_broken = p.name in runtime.servers.broken and p.name not in runtime.servers.names()
    if p.name is not UNSET and not is_broken:
        backend = runtime.servers.get(p.name)
        meta = _error_parts(runtime, backend.snapshot().error)
        return Reply.json({"servers": [await described(runtime, backend)]}, meta=meta)
    lines = [short_line(describe(runtime, backend.snapshot())) for backend in runtime.servers]
    lines += [
        {
            "name": broken.name,
            "phase": Phase.DISABLED.value,
            **({"switched_off": True} if broken.switched_off else {}),
            "last_error": broken.reason,
        }
        for broken in runtime.servers.broken.values()
        if broken.name not in runtime.servers.names()
    ]
    wanted = [line for line in lines if p.name in (UNSET, line["name"])]
    shown: dict[str, object] = {"servers": wanted}
    if (problem := runtime.configured.config.problem) is not None:
        shown["configuration_error"] = problem
    waiting = await anyio.to_thread.run_sync(runtime.trust.waiting)
    if mine := [one for one in waiting if one.token == runtime.approvals.token]:
        shown["waiting_for_a_person"] = [
            {"server": one.name, "about": one.about, "approve": f"emceepee approve {one.id}"}
            for one in mine[-_SHOWN_WAITING:]
        ]
    return Reply.json(shown)


def _error_parts(runtime: Runtime, error: ProxyError | None) -> Mapping[str, object] | None:
    """`last_error` in parts, for a program: `emceepee doctor --http`."""
    if error is None:
        return None
    shown = error.masked(runtime.session.secrets.mask)
    stderr = [cut_text(line) for line in shown.stderr]
    return {LAST_ERROR: {"code": shown.code, "fact": cut_text(shown.fact), "stderr": stderr}}


def _printed(runtime: Runtime, name: str) -> list[str]:
    """The last lines that a server wrote, whatever they were meant to be."""
    ring = runtime.session.state.logs.get(name)
    return [] if ring is None else [cut_text(each.line.text) for each in ring.last(_PRINTED_LINES)]


def _claim_events(runtime: Runtime, name: str, call: Call, before: int) -> None:
    """What the tool itself did to the server is told by its answer; the rest stays news."""
    events = runtime.session.state.events
    own = [e.id for e in events.since(before) if e.server == name and e.type in _OWN_EVENTS]
    runtime.session.report_in(call, events.take_these(own))


async def _connection_failure(
    runtime: Runtime, backend: Backend, call: Call
) -> ServerFailed | None:
    """Wait until it is connected, fails, asks something, or the client stops waiting."""
    unfinished = (Phase.CONNECTING, None)
    session = runtime.session
    asked = len(session.state.requests.at_tools(server=backend.name))
    with on_leg(Leg.CONNECTING, backend.name):
        await session.until(
            lambda: (
                backend.phase not in unfinished
                or len(session.state.requests.at_tools(server=backend.name)) > asked
            ),
            within=call.client.ceiling,
        )
    error = backend.snapshot().error
    if error is None or backend.phase not in (Phase.FAILED, Phase.RECONNECTING):
        return None
    own = f"{error.next_step} Then call add_server again."
    usual = "Fix what it names, then call add_server again."
    return error.turned_into(ServerFailed, hint=usual if error.reconnects else own)


async def _reconnected(runtime: Runtime, backend: Backend, call: Call) -> None:
    starts = backend.snapshot().starts
    with anyio.move_on_after(call.client.ceiling):
        await backend.reconnect(within=call.client.ceiling)
    if backend.snapshot().starts == starts:
        runtime.session.wake()


async def _counts(runtime: Runtime, backend: Backend) -> dict[str, int]:
    """How much the server offers, as far as it says so quickly."""
    within = min(runtime.settings.timeouts.request_ms / 1000, QUICK_LIST_TIMEOUT_S)
    for kind in Kind:
        try:
            await backend.list_all(kind, within=within)
        except ProxyError:
            continue
    return shown_counts(backend, backend.snapshot())


def _config(p: AddServer) -> ServerConfig:
    if problem := name_problem(p.name):
        raise InvalidArguments(problem, hint="Choose another.")
    if p.command is not UNSET and starts_emceepee(p.command, p.args):
        raise InvalidArguments(
            "This command starts emceepee inside emceepee.",
            hint="Add the servers behind it here instead.",
        )
    restart = RestartOverrides()
    if p.restart is not UNSET:
        restart = RestartOverrides(**msgspec.structs.asdict(p.restart))
    try:
        return ServerConfig(
            name=p.name,
            command=None if p.command is UNSET else p.command,
            args=tuple(p.args),
            env=p.env,
            cwd=None if p.cwd is UNSET else p.cwd,
            url=None if p.url is UNSET else p.url,
            headers=p.headers,
            transport=p.transport,
            era=p.era,
            restart=restart,
        )
    except ConfigInvalid as error:
        raise InvalidArguments(error.fact) from None


def _config_line(p: AddServer) -> str:
    """What a person would type to keep this server; secrets are left for them to fill in."""
    words = ["emceepee", "config", "add", p.name]
    words += [part for name in p.env for part in ("--env", f"{name}=…")]
    words += [part for name in p.headers for part in ("--header", f"{name}: …")]
    if p.url is not UNSET:
        return shell_line([*words, "--url", _literal(redact_url(p.url))])
    command = "" if p.command is UNSET else p.command
    return shell_line([*words, "--", *map(_literal, redact_argv([command, *p.args]))])


def _literal(text: str) -> str:
    """As the configuration writes it: there a `${…}` of a model would refer to a secret of ours."""
    return text.replace("${", "$${")
