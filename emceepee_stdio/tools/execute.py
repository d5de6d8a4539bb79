"""execute_tool: runs a tool of a server, and forgives common mistakes of models.

One road for every call: it is prepared, sent, and answered when its outcome is there. Most need no
task to wait in: with a named server and plain arguments the request is sent at once, and the
outcome comes back by itself. Whatever has to be seen to before that is seen to in a task, which
then sends the same request in the same way.
"""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Annotated

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import replace

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.base import NotTaken, RemoteError, with_meta
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.config import Timeouts
from emceepee_stdio.errors import (
    InvalidArguments,
    PolicyDenied,
    ProxyError,
    ServerDisconnected,
    ServerNotFound,
    TaskLimit,
    ToolNotFound,
)
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.exposed_lists import ExposedItem
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin, RegisteredServer
from emceepee_stdio.state import Phase
from emceepee_stdio.tools.listing import (
    QUICK_LIST_TIMEOUT_S,
    is_remembered,
    say_starting,
    shown_names,
)
from emceepee_stdio.tools.registry import Params, Result, always_loaded, open_world, pages, tool
from emceepee_stdio.tools.repair import depends_on_schema, is_plain, repaired
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS, close_names
from emceepee_stdio.wire.peer import OutgoingRequest

# Which tools run by execute_readonly_tool: hosts run that one without asking anybody.
#
# A server says of a tool that it only reads. That counts where a person configured the server or
# agreed to it, where no rule wants more, and where the tool is what it was when it was first
# pinned: a server cannot make a tool a reading one later.


READ_ONLY_ROAD = "execute_readonly_tool"


def why_not_read_only(
    member: RegisteredServer | None, tool: Mapping[str, object] | None
) -> str | None:
    """Why a tool cannot be taken for one that only reads, as it is listed now."""
    if member is None or tool is None:
        return "its server does not list it"
    if mapping(tool.get("annotations")).get("readOnlyHint") is not True:
        return "its server does not say that it only reads"
    if member.origin is not Origin.CONFIGURATION and member.admission.approval is None:
        return "no person has configured its server or agreed to it"
    rules = member.backend.rules
    if rules is not None and rules.rule(tool.get("name")) != "allow":
        return "a rule of the configuration wants more"
    return None


async def require_read_only(
    runtime: Runtime, backend: Backend, tool: str, *, within: float
) -> None:
    """Raise, with the name of the tool to call instead, unless this one is known to only read."""
    tools = await backend.list_all(Kind.TOOLS, within=within)
    await runtime.permissions.require(backend, tool, within=within)  # nothing else would run it
    member = runtime.servers.members.get(backend.name)
    why = why_not_read_only(member, backend.lists.tool(tool))
    listed = runtime.servers.listed(backend.name, tools)
    if why is None and (listed is None or not await runtime.pins.is_as_pinned(listed, tool)):
        why = "it is not what it was when its server was first seen"
    if why is not None:
        raise PolicyDenied(
            f"{tool[:SHOWN_NAME_CHARS]} of {backend.name} does not run as a tool that only reads: "
            f"{why}.",
            hint="Call execute_tool instead.",
        )


# Names as a client lists them, SERVER__TOOL, in places where they are no names of tools.
#
# Models mix them up with the names that tools have at their servers. Where it is clear what is
# meant, that is taken; else the error says how to call it.


_FIND = "Call list_tools to find the tools of servers, and execute_tool to run one."
_SHOWN_CHARS = 200  # every name that a client is listed is shorter


def own_name(runtime: Runtime, server: str, tool: str) -> str:
    """What a tool is called at its server, where it was asked for as it is listed."""
    item, member = runtime.surface.lists.tools.get(tool), runtime.servers.members.get(server)
    if item is None or item.server != server:
        return tool
    is_own = member is not None and member.backend.lists.tool(tool) is not None
    return tool if is_own else item.own


def lead_of(runtime: Runtime, name: str) -> str | None:
    """How to call what begins like the names of a server, whether it is exposed or not."""
    meant = max(runtime.servers.claiming(name), key=len, default=None)
    if meant is None or not (tool := name[len(meant) + 2 :]):
        return None
    shown = tool[:SHOWN_NAME_CHARS]
    return f"Call execute_tool with server {meant!r} and tool {shown!r}."


def unknown_tool(runtime: Runtime, name: str) -> str:
    """What is said to a client that calls what is neither ours nor exposed."""
    return f"Unknown tool: {name[:_SHOWN_CHARS]}. {lead_of(runtime, name) or _FIND}"


# Which server a call means that names none: the only one that has the tool.
#
# It is not known to be the only one before every configured server has listed its tools; whoever is
# asked first must not get what another was meant for. So they are waited for, a moment, and then
# the model has to say which it means. Names that begin with `SERVER__` are those of that server,
# whatever another one lists: so its tools are called where it is exposed.


_LISTING_S = 1.0  # as long as a list waits for a server that is still connecting
_SAY_WHICH = "Say which is meant with `server`."


async def server_of_tool(
    runtime: Runtime, tool: str, *, greeted: str | None = None, hint: str = _SAY_WHICH
) -> Backend:
    """The one; the error says between whom to choose, and `hint` how.

    `greeted` is a server that had the tool when it was listed last, and need not be up.
    """
    failed = await _list_tools(runtime, tool, greeted)
    having = _having(runtime, tool, greeted)
    names = ", ".join(sorted(backend.name for backend in having))
    if len(having) > 1:
        raise InvalidArguments(
            f"Several servers have a tool {tool[:SHOWN_NAME_CHARS]!r}: {names}.", hint=hint
        )
    if not having and (meant := runtime.servers.claiming(tool)):
        raise InvalidArguments(
            f"A name that begins with {meant[0]}__ means a tool of {meant[0]}, which does not list "
            f"{tool[:SHOWN_NAME_CHARS]!r}.",
            hint=f"{hint} The tool's own name goes without {meant[0]}__.",
        )
    missing = _unlisted(runtime) - {greeted}
    if not having or _is_configured(runtime, having[0]):
        missing -= failed  # a bad server costs itself, unless one of a model would stand in for it
    if missing:
        runtime.session.starting -= missing
        listed = f"{names} has a tool {tool[:SHOWN_NAME_CHARS]!r}, but " if having else ""
        have = "have not listed their" if len(missing) > 1 else "has not listed its"
        raise InvalidArguments(f"{listed}{', '.join(sorted(missing))} {have} tools yet.", hint=hint)
    if having:
        return having[0]
    known = ", ".join(runtime.servers.marked_names().values()) or "none"
    raise ServerNotFound(
        f"No server has a tool {tool[:SHOWN_NAME_CHARS]!r}; the servers are: {known}.",
        hint="Call list_servers, or add_server to add the one that has it.",
    )


async def _list_tools(runtime: Runtime, tool: str, greeted: str | None) -> set[str]:
    """Have the tools listed that have to be known; the servers that cannot list theirs."""
    failed = {name for name, entry in runtime.servers.broken.items() if not entry.switched_off}

    async def ask(backend: Backend) -> None:
        try:
            await backend.list_all("tools", within=_LISTING_S * 2)  # the wait ends before
        except ProxyError:
            failed.add(backend.name)

    asked = [one for one in runtime.servers if not is_remembered(one, Kind.TOOLS)]
    if _having(runtime, tool, greeted):
        unlisted = _unlisted(runtime) - {greeted}
        asked = [backend for backend in asked if backend.name in unlisted]
    with anyio.move_on_after(_LISTING_S):
        async with anyio.create_task_group() as tasks:
            for backend in asked:
                if backend.phase is Phase.FAILED:  # it is not started again for a list
                    failed.add(backend.name)
                else:
                    tasks.start_soon(ask, backend)
    return failed


def _having(runtime: Runtime, tool: str, greeted: str | None) -> list[Backend]:
    """Those that list it; one in which it is off only where no other has it."""
    found = [
        backend
        for backend in runtime.servers
        if (backend.lists.tool(tool) is not None or backend.name == greeted)
        and not runtime.servers.claiming(tool, but=backend.name)
    ]
    return [one for one in found if one.rules is None or not one.rules.hides(tool)] or found[:1]


def _unlisted(runtime: Runtime) -> set[str]:
    """The configured servers of whose tools nothing is known."""
    broken = {name for name, entry in runtime.servers.broken.items() if not entry.switched_off}
    return broken | {
        backend.name
        for backend in runtime.servers
        if backend.lists.tools is None and _is_configured(runtime, backend)
    }


def _is_configured(runtime: Runtime, backend: Backend) -> bool:
    member = runtime.servers.members.get(backend.name)
    return member is not None and member.origin is Origin.CONFIGURATION


_LATE_TOOLS_S = 1.0  # as long as a list waits for a server that is still connecting
_NO_ARGUMENTS = Raw(b"{}")


class ExecuteTool(Params):
    tool: Annotated[str, Meta(description="The tool's name on that server.")]
    server: (
        Annotated[
            str,
            Meta(description="The server; not needed where only one has the tool."),
        ]
        | UnsetType
    ) = UNSET
    args: (
        Annotated[
            Raw,
            Meta(
                description="The tool's own arguments, as an object.",
                extra_json_schema={"type": "object"},
            ),
        ]
        | UnsetType
    ) = UNSET
    timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=900_000,
                description="Longest wait, then a task; 0: a task at once.",
                extra_json_schema={"default": Timeouts().call_ms},
            ),
        ]
        | UnsetType
    ) = UNSET
    task_ttl_ms: (
        Annotated[
            int,
            Meta(ge=1, le=86_400_000, description="How long a task may run."),
        ]
        | UnsetType
    ) = UNSET


class ExecuteReadonlyTool(ExecuteTool):
    """Which tool that only reads, with what."""


@tool(open_world, meta=always_loaded | pages, forgiving=True)
def execute_tool(
    runtime: Runtime, p: ExecuteTool, call: Call
) -> Coroutine[object, object, None] | None:
    """Run a tool of a server: call any MCP tool with its arguments.

    Answers with its result; with a task_id when it takes long or its server asks a question:
    answer the question, then get_task_result.
    """
    member = None if p.server is UNSET else runtime.servers.members.get(p.server)
    enforced = runtime.configured.config.settings.policy.pin == "enforce"
    args = None if p.args is UNSET else p.args
    if (
        member is None
        or enforced
        or not is_plain(args, call.extra)
        or member.backend.channel.needs_tools
        or member.backend.rules is not None
        or member.backend.lists.remembered
        or p.tool in runtime.surface.lists.tools
    ):
        return _prepare(runtime, p, call)
    try:
        _send(runtime, member.backend, p, call, args or _NO_ARGUMENTS)
    except TaskLimit:  # it has to wait for a place
        return _prepare(runtime, p, call)
    return None


@tool({"readOnlyHint": True, "openWorldHint": True}, meta=always_loaded | pages)
def execute_readonly_tool(
    runtime: Runtime, p: ExecuteReadonlyTool, call: Call
) -> Coroutine[object, object, None]:
    """Run a tool of a server that only reads; list_tools marks it with run_with.

    Else as execute_tool.
    """
    return _prepare(runtime, p, call)


async def _prepare(runtime: Runtime, p: ExecuteTool, call: Call) -> None:
    """Find the server, learn its tools, see that they may run and a person has seen them; send."""
    if p.server is not UNSET:
        p = replace(p, tool=own_name(runtime, p.server, p.tool))
    try:
        backend = (
            await server_of_tool(runtime, p.tool)
            if p.server is UNSET
            else runtime.servers.get(p.server)
        )
    finally:
        call.trace.server_tool = p.tool  # also where nobody has it
    call.trace.server = backend.name  # also where it is refused before it is sent
    await checkpoint_if_cancelled()  # it may have been cancelled in the same moment
    arrived = runtime.clock.now()
    if isinstance(p, ExecuteReadonlyTool):
        within = min(_request_s(runtime), call.ceiling)
        await require_read_only(runtime, backend, p.tool, within=within)
    if backend.rules is not None and backend.rules.rule(p.tool) != "allow":
        args = await _permitted(runtime, backend, p, call)
    else:
        args = None if _needs_schema(backend, p, call) else _repaired(runtime, backend, p, call)
    left = max(call.ceiling - (runtime.clock.now() - arrived), 0.0)
    within = min(_within(runtime, p, call), left)
    await runtime.session.begin_in_turn(
        call, server=backend.name, tool=p.tool, within=within, ttl=_ttl(p)
    )
    if Kind.TOOLS in backend.lists.remembered:
        await _confirm(runtime, backend, p.tool, call)
    await _check_pins(runtime, backend, p)
    if args is None:
        await _learn(backend, runtime)
        args = _repaired(runtime, backend, p, call)
    if backend.rules is not None:
        await runtime.permissions.require(backend, p.tool, within=_request_s(runtime))
    await checkpoint_if_cancelled()
    _send(runtime, backend, p, call, args)


async def _confirm(runtime: Runtime, backend: Backend, tool: str, call: Call) -> None:
    """Start the server, and see that it still has the tool that it is remembered to have."""
    say_starting(backend, call)
    try:
        await backend.list_all(Kind.TOOLS, within=_request_s(runtime))
    except ProxyError:
        if backend.phase in (Phase.FAILED, Phase.RECONNECTING):
            raise
        return  # the call itself waits longer, and finds out
    if await _is_gone(runtime, backend, tool):
        # Names that nobody has seen are not told where that is the policy.
        shown = () if runtime.pins.enforced else backend.lists.tools or ()
        raise _missing(runtime, backend, tool, shown_names(backend, shown))


async def _is_gone(runtime: Runtime, backend: Backend, tool: str) -> bool:
    """Whether it is not listed any more; some servers add tools a moment after they started."""
    lists, until = backend.lists, runtime.clock.now() + _LATE_TOOLS_S
    while lists.had_until(tool) is not None:
        seen, left = lists.changes(Kind.TOOLS), until - runtime.clock.now()
        if not await runtime.session.until(
            lambda seen=seen: lists.changes(Kind.TOOLS) != seen, within=left
        ):
            return True
        await _learn(backend, runtime)
    return False


async def _permitted(runtime: Runtime, backend: Backend, p: ExecuteTool, call: Call) -> Raw:
    """The arguments that a person agrees to.

    Before the call begins: once it is a task, it can no longer be answered with a question.
    """
    within = min(_request_s(runtime), call.ceiling)
    await runtime.permissions.require(backend, p.tool, within=within)
    args = _repaired(runtime, backend, p, call)
    return await runtime.permissions.admit(backend, p.tool, args, call)


def _send(
    runtime: Runtime,
    backend: Backend,
    p: ExecuteTool,
    call: Call,
    args: Raw,
    *,
    again: bool = False,
) -> None:
    if call.slot is None:
        within = _within(runtime, p, call)
        runtime.session.begin(call, server=backend.name, tool=p.tool, within=within, ttl=_ttl(p))
    if call.on_status is not None:
        say_starting(backend, call)
    call.args = args
    params = {"name": p.tool, "arguments": args}
    request = OutgoingRequest(
        method="tools/call",
        params=with_meta(params, call) if call.meta else params,
        call=call,
        on_progress=call.on_progress,
    )

    def on_done(outcome: Raw | ProxyError) -> None:
        if isinstance(outcome, NotTaken) and not again:
            call.proceed(partial(_send_again, runtime, backend, p, call, args))
        else:
            call.proceed(partial(_answered, runtime, backend, call, outcome))

    call.cancel_request = backend.send(request, on_done)


async def _send_again(
    runtime: Runtime, backend: Backend, p: ExecuteTool, call: Call, args: Raw
) -> None:
    """The server has not seen the call; the one that it meets now may be another one."""
    await _check_pins(runtime, backend, p)
    if isinstance(p, ExecuteReadonlyTool):
        await require_read_only(runtime, backend, p.tool, within=_request_s(runtime))
    if backend.rules is not None:
        await runtime.permissions.require(backend, p.tool, within=_request_s(runtime))
    await checkpoint_if_cancelled()
    _send(runtime, backend, p, call, args, again=True)


async def _check_pins(runtime: Runtime, backend: Backend, p: ExecuteTool) -> None:
    """Whether a person has seen this tool as it is, where that is asked for."""
    if runtime.pins.enforced:
        await _learn(backend, runtime)
        tools = backend.lists.known(Kind.TOOLS)
        listed = None if tools is None else runtime.servers.listed(backend.name, tools)
        await runtime.pins.check(backend.name, listed, p.tool)


def _answered(runtime: Runtime, backend: Backend, call: Call, outcome: Raw | ProxyError) -> Result:
    if isinstance(outcome, Raw):
        native = call.native and call.task is None
        return Reply.result(outcome, server=backend.name, native=native)
    tool = call.tool
    if isinstance(outcome, RemoteError):
        if runtime.pins.enforced:  # the names of its other tools may be what nobody has seen
            raise outcome
        return _refused(runtime, backend, tool, outcome)
    if isinstance(outcome, ServerDisconnected) and not isinstance(outcome, NotTaken):
        fact = f"{outcome.fact}\n{_repeatable(backend, tool)}"
        raise ServerDisconnected(fact, hint=outcome.next_step)
    raise outcome


def _needs_schema(backend: Backend, p: ExecuteTool, call: Call) -> bool:
    """Whether the arguments cannot be read, or sent, before the server has listed its tools."""
    unlisted = backend.lists.tools is None or Kind.TOOLS in backend.lists.remembered
    return backend.channel.needs_tools or (unlisted and depends_on_schema(_given(p), call.extra))


def _within(runtime: Runtime, p: ExecuteTool, call: Call) -> float:
    """How long this client may be kept waiting; a word is noted when it asked for more."""
    call.args = _given(p)  # it may become a task at once
    times = runtime.settings.timeouts
    wanted = (times.call_ms if p.timeout_ms is UNSET else p.timeout_ms) / 1000
    if p.timeout_ms is not UNSET and wanted > call.ceiling:
        lowered = round(call.ceiling * 1000)
        call.note = f"timeout_ms was lowered to {lowered}, because this client waits no longer."
    return min(wanted, call.ceiling)


def _ttl(p: ExecuteTool) -> float | None:
    return None if p.task_ttl_ms is UNSET else p.task_ttl_ms / 1000


def _given(p: ExecuteTool) -> Raw | None:
    return None if p.args is UNSET else p.args


def _repaired(runtime: Runtime, backend: Backend, p: ExecuteTool, call: Call) -> Raw:
    args, repairs = repaired(_given(p), call.extra, _schema(backend, p.tool), tool=p.tool)
    if repairs:
        runtime.journal.record(
            JournalEvent.TOOL_ARGUMENTS_REPAIRED, server=backend.name, tool=p.tool, repairs=repairs
        )
    return args


async def _learn(backend: Backend, runtime: Runtime) -> None:
    """The tools of a server that nobody has listed yet."""
    with suppress(ProxyError):
        await backend.list_all("tools", within=_request_s(runtime))


def _request_s(runtime: Runtime) -> float:
    return runtime.settings.timeouts.request_ms / 1000


def _schema(backend: Backend, tool: str) -> Mapping[str, object]:
    return mapping((backend.lists.tool(tool) or {}).get("inputSchema"))


def _repeatable(backend: Backend, tool: str) -> str:
    """Whether the call may be made again without doing something twice."""
    hints = mapping((backend.lists.tool(tool) or {}).get("annotations"))
    if hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True:
        return "The call may be repeated safely: the tool says so."
    return "The call may or may not have been carried out: check before repeating it."


async def _refused(runtime: Runtime, backend: Backend, tool: str, error: RemoteError) -> Reply:
    """A failed call of a tool that the server does not list is better told as that."""
    try:
        tools = await backend.list_all("tools", within=QUICK_LIST_TIMEOUT_S)
    except ProxyError:
        raise error from None
    names = [str(item.get("name")) for item in tools]
    if tool in names:
        raise error
    raise _missing(runtime, backend, tool, shown_names(backend, names))


def _missing(runtime: Runtime, backend: Backend, tool: str, names: list[str]) -> ToolNotFound:
    if (until := backend.lists.had_until(tool)) is not None:
        now = ", ".join(names[:LISTED_NAMES]) or "nothing that is shown here"
        more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
        return ToolNotFound(
            f"{backend.name} no longer has {tool[:SHOWN_NAME_CHARS]!r}: it had this tool until "
            f"{until}; its list now: {now}{more}."
        )
    close = close_names(tool, names)
    shown = f" Close are: {', '.join(close)}." if close else f" Tools that it has: {len(names)}."
    fact = f"{backend.name} has no tool {tool[:SHOWN_NAME_CHARS]!r}.{shown}"
    return ToolNotFound(fact, hint=lead_of(runtime, tool))


# Tools of exposed servers, called by the names under which the client is listed them.
#
# Such a call is one of execute_tool in every respect; only its result is the server's own. One by
# the name that a tool has at its server is execute_tool without a server: it waits for those that
# have not listed their tools, and goes to nobody where several have it.


@dataclass(frozen=True, slots=True)
class ExposedTool:
    """Called as a tool of ours is."""

    item: ExposedItem
    by_own_name: bool

    @property
    def name(self) -> str:
        return self.item.shown

    def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Result:
        item = self.item
        call.native = True
        call.trace.server, call.trace.server_tool = item.server, item.own
        if not runtime.surface.shows(item.server):
            raise _gone(item)
        if item.page is not None:  # which reads all of the result
            call.budget = 0
        args = UNSET if arguments is None else arguments
        p = ExecuteTool(server=item.server, tool=item.own, args=args)
        if self.by_own_name:
            return _resolve(runtime, item, p, call)
        return execute_tool(runtime, p, call)


async def _resolve(runtime: Runtime, item: ExposedItem, p: ExecuteTool, call: Call) -> Reply | None:
    """Run it where no other server has it."""
    hint = f"Call it by the name under which it is listed: {item.shown}."
    backend = await server_of_tool(runtime, item.own, greeted=item.server, hint=hint)
    await checkpoint_if_cancelled()  # it may have been cancelled in the same moment
    if backend.name != item.server or not runtime.surface.shows(item.server):
        raise _gone(item)
    result = execute_tool(runtime, p, call)
    return await result if isawaitable(result) else result


def _gone(item: ExposedItem) -> ProxyError:
    return ToolNotFound(
        f"{item.shown} is not there any more: {item.server} is not what was exposed.",
        hint="Call list_tools to see what there is now.",
    )


def exposed_tool(runtime: Runtime, name: str) -> ExposedTool | None:
    """The tool that a client means by a name that is none of ours."""
    item = runtime.surface.tool(name)
    return None if item is None else ExposedTool(item, by_own_name=name != item.shown)
