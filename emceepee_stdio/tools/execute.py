"""execute_tool: runs a tool of a server, and forgives common mistakes of models.

One road for every call: it is prepared, sent, and answered when its outcome is there. Most need no
task to wait in: with a named server and plain arguments the request is sent at once, and the
outcome comes back by itself. Whatever has to be seen to before that is seen to in a task, which
then sends the same request in the same way.
"""

import re
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Annotated, ClassVar, NamedTuple

import anyio
import msgspec
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import UNSET, Meta, Raw, UnsetType
from msgspec.structs import replace

import emceepee_stdio.tools.diverted_results as diverted
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import Kind, NotTaken, RemoteError
from emceepee_stdio.config.settings import Timeouts
from emceepee_stdio.errors import (
    InvalidArguments,
    PolicyDenied,
    ProxyError,
    ServerDisconnected,
    ServerNotFound,
    TaskLimit,
    ToolNotFound,
)
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call, ServerRun
from emceepee_stdio.session.exposed_lists import ExposedItem
from emceepee_stdio.session.reply import OWN, Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin, RegisteredServer
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.tools.listing import (
    QUICK_LIST_TIMEOUT_S,
    is_remembered,
    say_starting,
    shown_names,
)
from emceepee_stdio.tools.registry import (
    Params,
    Result,
    WaitMs,
    always_loaded,
    open_world,
    pages,
    tool,
)
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS, close_names
from emceepee_stdio.wire.codec import to_json
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
    if refused := backend.refusal(tool):
        raise refused  # nothing else would run it
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
        runtime.session.state.starting -= missing
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


# Arguments as models send them: objects in strings, fields in the wrong place, quoted numbers.
#
# Only what cannot be meant otherwise is corrected, and the journal names every correction.


Schema = Mapping[str, object]
Extra = Mapping[str, Raw]
_NO_EXTRA: Extra = {}


class SentArguments(NamedTuple):
    """The arguments of a tool as a client gave them; `extra` stood beside them."""

    args: Raw | None
    extra: Extra = _NO_EXTRA


_BRACE = ord("{")

_HOLDS_A_STRING = re.compile(rb':\s*+"|^"')
# A string that may stand for a number or a boolean; an escape may hide one.
_CONVERTIBLE = re.compile(rb':\s*+"\s*+(?:[-\d\\\x80-\xff]|true|false)')
_KINDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def repaired(given: SentArguments, schema: Schema, *, tool: str) -> tuple[Raw, list[str]]:
    """The arguments to send, and what was put right to get them."""
    args, extra = given
    repairs: list[str] = []
    properties = mapping(schema.get("properties"))
    if args is None and extra:
        _refuse_strangers(extra, properties, tool)
        args = Raw(to_json(dict(extra)))
        repairs.append("arguments beside `tool` were taken as args")
    elif extra:
        names = ", ".join(sorted(extra))
        raise InvalidArguments(
            f"execute_tool has no argument {names}.", hint="Put the tool's own arguments in args."
        )
    if args is None or bytes(args) == b"null":
        return Raw(b"{}"), repairs
    if bytes(memoryview(args)[:1]) == b'"':
        args = _opened(args, tool)
        repairs.append("args was a string that holds an object")
    if bytes(memoryview(args)[:1]) != b"{":
        raise InvalidArguments(f"The args of {tool} must be an object.")
    return _converted(args, properties, repairs), repairs


def is_plain(given: SentArguments) -> bool:
    """Whether nothing about these arguments could be put right, whatever the schema."""
    args, extra = given
    if extra or args is None:
        return not extra
    return memoryview(args)[0] == _BRACE and not _CONVERTIBLE.search(args)


def depends_on_schema(given: SentArguments) -> bool:
    """Whether the tool's schema may change how these arguments are read."""
    args, extra = given
    if extra:
        return True
    if args is None or not _HOLDS_A_STRING.search(args):
        return False
    try:
        if bytes(memoryview(args)[:1]) == b'"':
            args = Raw(msgspec.json.decode(args, type=str).encode())
        fields = msgspec.json.decode(args, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return any(_unquoted(value, kind) for value in fields.values() for kind in _KINDS)


def _opened(args: Raw, tool: str) -> Raw:
    text = msgspec.json.decode(args, type=str)
    try:
        opened = msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidArguments(f"The args of {tool} are a string that is no JSON object.") from None
    return Raw(to_json(opened))


def _refuse_strangers(extra: Mapping[str, Raw], properties: Schema, tool: str) -> None:
    strangers = sorted(set(extra) - set(properties))
    if strangers:
        raise InvalidArguments(
            f"execute_tool has no argument {', '.join(strangers)}, and neither has {tool}.",
            hint="Put the tool's own arguments in args.",
        )


def _converted(args: Raw, properties: Schema, repairs: list[str]) -> Raw:
    """Numbers and booleans that came as strings, where the tool's schema wants the real thing."""
    wanting = {
        name: kind
        for name, schema in properties.items()
        if (kind := mapping(schema).get("type")) in list(_KINDS)
    }
    if not wanting or b'"' not in bytes(args):
        return args
    fields = msgspec.json.decode(args, type=dict[str, Raw])
    better = {
        name: value
        for name, kind in wanting.items()
        if name in fields and (value := _unquoted(fields[name], str(kind))) is not None
    }
    repairs += [f"{name} was a string and is a {wanting[name]}" for name in better]
    return Raw(to_json(fields | better)) if better else args


def _unquoted(value: Raw, kind: str) -> Raw | None:
    if bytes(memoryview(value)[:1]) != b'"':
        return None
    text = msgspec.json.decode(value, type=str).strip()
    return Raw(text.encode()) if type(decoded(text, object)) in _KINDS[kind] else None


_LATE_TOOLS_S = 1.0  # as long as a list waits for a server that is still connecting
_NO_ARGUMENTS = Raw(b"{}")


TaskTtl = Annotated[int, Meta(ge=1, le=86_400_000, description="How long a task may run.")]


class _RunTool(Params):
    tool: Annotated[str, Meta(description="The tool's name on that server.")]
    server: Annotated[
        str | UnsetType, Meta(description="The server; not needed where only one has the tool.")
    ] = UNSET
    args: Annotated[
        Raw | UnsetType,
        Meta(
            description="The tool's own arguments, as an object.",
            extra_json_schema={"type": "object"},
        ),
    ] = UNSET
    timeout_ms: Annotated[
        WaitMs | UnsetType,
        Meta(
            description="Longest wait, then a task; 0: a task at once.",
            extra_json_schema={"default": Timeouts().call_ms},
        ),
    ] = UNSET
    task_ttl_ms: TaskTtl | UnsetType = UNSET
    select: diverted.SelectProgram | UnsetType = UNSET


class ExecuteTool(_RunTool):
    save_to: diverted.SavePath | UnsetType = UNSET
    overwrite: diverted.Overwrite = False


class ExecuteReadonlyTool(_RunTool):
    """The same arguments, for a tool that only reads."""


@tool(open_world, meta=always_loaded | pages, forgiving=True)
def execute_tool(
    runtime: Runtime, p: ExecuteTool, call: Call, extra: Extra = _NO_EXTRA
) -> Coroutine[object, object, Reply | None] | None:
    """Run a tool of a server: call any MCP tool with its arguments.

    Answers with its result; with a task_id when it takes long or its server asks a question:
    answer the question, then get_task_result.
    """
    given = SentArguments(None if p.args is UNSET else p.args, extra)
    member = None if p.server is UNSET else runtime.servers.members.get(p.server)
    if (
        member is None
        or runtime.configured.config.settings.policy.pin == "enforce"
        or not is_plain(given)
        or member.backend.channel.needs_tools
        or member.backend.rules is not None
        or member.backend.lists.remembered
        or p.tool in runtime.surface.lists.tools
        or p.select is not UNSET
        or p.save_to is not UNSET
    ):
        return _prepare(runtime, p, call, given)
    try:
        _Execution(runtime, member.backend, p, call, given).send(given.args or _NO_ARGUMENTS)
    except TaskLimit:  # it has to wait for a place
        return _prepare(runtime, p, call, given)
    return None


@tool({"readOnlyHint": True, "openWorldHint": True}, meta=always_loaded | pages)
def execute_readonly_tool(
    runtime: Runtime, p: ExecuteReadonlyTool, call: Call
) -> Coroutine[object, object, Reply | None]:
    """Run a tool of a server that only reads; list_tools marks it with run_with.

    Else as execute_tool.
    """
    given = SentArguments(None if p.args is UNSET else p.args)
    return _prepare(runtime, p, call, given)


async def _prepare(runtime: Runtime, p: _RunTool, call: Call, given: SentArguments) -> Reply | None:
    """Find the server, then do what the call has to wait for before it is sent."""
    if p.server == OWN and isinstance(p, ExecuteTool) and p.tool == diverted.SAVE_RESULT:
        return await diverted.save_result(
            runtime, call, repaired(given, {}, tool=diverted.SAVE_RESULT)[0]
        )
    if p.server is not UNSET:
        p = replace(p, tool=own_name(runtime, p.server, p.tool))
    try:
        backend = (
            await server_of_tool(runtime, p.tool)
            if p.server is UNSET
            else runtime.servers.get(p.server)
        )
    finally:
        call.trace.server_tool = p.tool  # also if no server has it
    call.trace.server = backend.name  # also if it is refused before it is sent
    await checkpoint_if_cancelled()  # it may have been cancelled in the same moment
    execution = _Execution
    if p.select is not UNSET:
        await runtime.selection.run(p.select)
        execution = _DivertedExecution
    if isinstance(p, ExecuteTool) and p.save_to is not UNSET:
        if p.select is not UNSET:
            raise InvalidArguments("Give either select or save_to, which writes the whole result.")
        await diverted.check_saving(runtime, call, diverted.Saving(p.save_to, p.overwrite))
        execution = _DivertedExecution
    await execution(runtime, backend, p, call, given).prepare_and_send()
    return None


class _Execution(msgspec.Struct, frozen=True):
    """One run of a tool."""

    runtime: Runtime
    backend: Backend
    p: _RunTool
    call: Call
    given: SentArguments

    async def prepare_and_send(self) -> None:
        """Learn the tools of the server, check that this one may run as a person saw it; send."""
        runtime, backend, p, call = self.runtime, self.backend, self.p, self.call
        arrived = runtime.clock.now()
        if isinstance(p, ExecuteReadonlyTool):
            within = min(self._request_s, call.client.ceiling)
            await require_read_only(runtime, backend, p.tool, within=within)
        is_agreed = False
        if backend.rules is not None and backend.rules.rule(p.tool) != "allow":
            args, is_agreed = await self._permitted()
        else:
            args = None if self._needs_schema() else self._repaired()
        if Kind.TOOLS not in backend.lists.remembered:  # else the server is started first
            await self._check_pins(within=call.client.ceiling)
        left = max(call.client.ceiling - (runtime.clock.now() - arrived), 0.0)
        run, within = self._run(args)
        await runtime.session.begin_in_turn(call, run, within=min(within, left))
        if Kind.TOOLS in backend.lists.remembered:
            await self._confirm()
        await self._check_pins()
        if args is None:
            await self._learn()
            args = self._repaired()
        if backend.rules is not None:
            await backend.list_ruled(p.tool, within=self._request_s)
        await checkpoint_if_cancelled()
        self.send(args, is_agreed=is_agreed)

    def send(self, args: Raw, *, is_agreed: bool = False) -> None:
        call, asked = self.call, self.call.request
        if call.slot is None:
            run, within = self._run(args)
            self.runtime.session.begin(call, run, within=within)
        params: Mapping[str, object] = {"name": self.p.tool, "arguments": args}
        if asked.meta:
            params = {**params, "_meta": asked.meta}
        on_progress = None
        if asked.token is not None:
            say_starting(self.backend, call)
            on_progress = partial(call.client.end.progress, call)
        request = OutgoingRequest(
            method="tools/call",
            params=params,
            call=call,
            on_progress=on_progress,
            is_agreed=is_agreed,
        )
        call.cancel_request = self.backend.send(request, self._on_done, self._recheck)

    def _on_done(self, outcome: Raw | ProxyError) -> None:
        self.call.client.end.proceed(self.call, partial(self._answered, outcome))

    async def _recheck(self) -> None:
        """The server has not seen the call; the one that it meets now may be another one."""
        runtime, backend, tool = self.runtime, self.backend, self.p.tool
        await self._check_pins()
        if isinstance(self.p, ExecuteReadonlyTool):
            await require_read_only(runtime, backend, tool, within=self._request_s)
        if backend.rules is not None:
            await backend.list_ruled(tool, within=self._request_s)
        say_starting(backend, self.call)

    async def _confirm(self) -> None:
        """Start the server, and see that it still has the tool that it is remembered to have."""
        backend = self.backend
        say_starting(backend, self.call)
        try:
            await backend.list_all(Kind.TOOLS, within=self._request_s)
        except ProxyError:
            if backend.phase in (Phase.FAILED, Phase.RECONNECTING):
                raise
            return  # the call itself waits longer, and finds out
        if await self._is_gone():
            # The policy may hide the names of tools that no person has seen.
            shown = () if self.runtime.pins.enforced else backend.lists.tools or ()
            raise self._missing(shown_names(backend, shown))

    async def _is_gone(self) -> bool:
        """Whether it is not listed any more; some servers add tools a moment after they started."""
        lists, now = self.backend.lists, self.runtime.clock.now
        until = now() + _LATE_TOOLS_S
        while lists.had_until(self.p.tool) is not None:
            seen = lists.changes(Kind.TOOLS)
            if not await self.runtime.session.until(
                lambda seen=seen: lists.changes(Kind.TOOLS) != seen, within=until - now()
            ):
                return True
            await self._learn()
        return False

    async def _permitted(self) -> tuple[Raw, bool]:
        """The arguments, and whether a person agreed to them.

        Before the call begins: once it is a task, it can no longer be answered with a question.
        """
        permissions, tool = self.runtime.permissions, self.p.tool
        within = min(self._request_s, self.call.client.ceiling)
        await self.backend.list_ruled(tool, within=within)
        if refused := self.backend.refusal(tool):
            raise refused  # the person need not be asked
        return await permissions.admit(self.backend, tool, self._repaired(), self.call)

    async def _check_pins(self, *, within: float = 0.0) -> None:
        """Whether a person has seen this tool as it is, if that is required, or sees it now."""
        runtime, backend = self.runtime, self.backend
        if runtime.pins.enforced:
            await self._learn()
            tools = backend.lists.known(Kind.TOOLS)
            listed = None if tools is None else runtime.servers.listed(backend.name, tools)
            await runtime.pins.check(backend.name, listed, self.p.tool, within=within)

    async def _learn(self) -> None:
        """The tools of a server that has not listed them yet."""
        with suppress(ProxyError):
            await self.backend.list_all("tools", within=self._request_s)

    def _needs_schema(self) -> bool:
        """Whether the arguments cannot be read, or sent, before the server has listed its tools."""
        lists = self.backend.lists
        unlisted = lists.tools is None or Kind.TOOLS in lists.remembered
        return self.backend.channel.needs_tools or (unlisted and depends_on_schema(self.given))

    def _run(self, args: Raw | None) -> tuple[ServerRun, float]:
        """What is run, and how long this client waits; with a note if it asked for longer."""
        p, ceiling, note = self.p, self.call.client.ceiling, None
        wanted = self.runtime.settings.timeouts.call_ms / 1000
        if p.timeout_ms is not UNSET:
            wanted = p.timeout_ms / 1000
            if wanted > ceiling:
                lowered = round(ceiling * 1000)
                note = f"timeout_ms was lowered to {lowered}, because this client waits no longer."
        ttl = None if p.task_ttl_ms is UNSET else p.task_ttl_ms / 1000
        args = self.given.args if args is None else args
        run = ServerRun(server=self.backend.name, tool=p.tool, args=args, ttl=ttl, note=note)
        return run, min(wanted, ceiling)

    @property
    def _request_s(self) -> float:
        return self.runtime.settings.timeouts.request_ms / 1000

    def _repaired(self) -> Raw:
        tool, server = self.p.tool, self.backend.name
        schema = mapping((self.backend.lists.tool(tool) or {}).get("inputSchema"))
        args, repairs = repaired(self.given, schema, tool=tool)
        if repairs:
            self.runtime.journal.record(
                JournalEvent.TOOL_ARGUMENTS_REPAIRED, server=server, tool=tool, repairs=repairs
            )
        return args

    def _answered(self, outcome: Raw | ProxyError) -> Result:
        call = self.call
        if isinstance(outcome, Raw):
            native = call.request.native and call.task is None
            whole = native and call.request.whole
            return Reply.result(
                outcome,
                server=self.backend.name,
                native=native,
                whole=whole,
                keeps_data=call.task is not None,
            )
        # With pins enforced, no person may have seen the names of its other tools.
        if isinstance(outcome, RemoteError) and not self.runtime.pins.enforced:
            return self._refused(outcome)
        if isinstance(outcome, ServerDisconnected) and not isinstance(outcome, NotTaken):
            fact = f"{outcome.whole_fact}\n{self._repeatable()}"
            raise ServerDisconnected(fact, hint=outcome.next_step)
        raise outcome

    def _repeatable(self) -> str:
        """Whether the call may be made again without doing something twice."""
        hints = mapping((self.backend.lists.tool(self.p.tool) or {}).get("annotations"))
        if hints.get("readOnlyHint") is True or hints.get("idempotentHint") is True:
            return "The call may be repeated safely: the tool says so."
        return "The call may or may not have been carried out: check before repeating it."

    async def _refused(self, error: RemoteError) -> Reply:
        """A failed call of a tool that the server does not list is reported as that."""
        try:
            tools = await self.backend.list_all("tools", within=QUICK_LIST_TIMEOUT_S)
        except ProxyError:
            raise error from None
        names = [str(item.get("name")) for item in tools]
        if self.p.tool in names:
            raise error
        raise self._missing(shown_names(self.backend, names))

    def _missing(self, names: list[str]) -> ToolNotFound:
        server, tool = self.backend.name, self.p.tool
        shown = repr(tool[:SHOWN_NAME_CHARS])
        if (until := self.backend.lists.had_until(tool)) is not None:
            now = ", ".join(names[:LISTED_NAMES]) or "nothing that is shown here"
            more = f" and {len(names) - LISTED_NAMES} more" if len(names) > LISTED_NAMES else ""
            return ToolNotFound(
                f"{server} no longer has {shown}: it had this tool until {until}; "
                f"its list now: {now}{more}."
            )
        close = close_names(tool, names)
        others = f"Close are: {', '.join(close)}." if close else f"Tools that it has: {len(names)}."
        hint = lead_of(self.runtime, tool)
        return ToolNotFound(f"{server} has no tool {shown}. {others}", hint=hint)


class _DivertedExecution(_Execution, frozen=True):
    """One whose result does not go to the client whole."""

    def _answered(self, outcome: Raw | ProxyError) -> Result:
        if isinstance(outcome, ProxyError):
            return super()._answered(outcome)
        reply = Reply.result(outcome, server=self.backend.name, keeps_data=True)
        p = self.p
        if not isinstance(p, ExecuteTool) or p.save_to is UNSET:
            return diverted.selected(self.runtime, self.call, reply, p.select)
        return diverted.saved(self.runtime, reply, diverted.Saving(p.save_to, p.overwrite))


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
    timeout_ms: int | UnsetType = UNSET

    native: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.item.shown

    @property
    def whole(self) -> bool:
        return self.item.page is not None

    def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Result:
        item = self.item
        call.trace.server, call.trace.server_tool = item.server, item.own
        if not runtime.surface.shows(item.server):
            raise _gone(item)
        args = UNSET if arguments is None else arguments
        p = ExecuteTool(server=item.server, tool=item.own, args=args, timeout_ms=self.timeout_ms)
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


class UnknownTool(ToolNotFound):
    """Answered as a call is that was refused at once."""


@dataclass(frozen=True, slots=True)
class AwaitedTool:
    """Called before its server has listed its tools: it is waited for, within the call's time."""

    name: str
    servers: Sequence[str]

    native: ClassVar[bool] = True
    whole: ClassVar[bool] = False

    async def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Reply | None:
        longest = min(runtime.settings.timeouts.call_ms / 1000, call.client.ceiling)
        until = runtime.clock.now() + longest
        try:
            for server in self.servers:
                await runtime.surface.learn(server, within=until - runtime.clock.now())
        except ProxyError as error:
            raise UnknownTool(f"Unknown tool: {self.name[:_SHOWN_CHARS]}. {error}") from None
        item = runtime.surface.tool(self.name)
        if item is None:
            raise UnknownTool(unknown_tool(runtime, self.name))
        left_ms = int(max(until - runtime.clock.now(), 0.0) * 1000)
        found = ExposedTool(item, by_own_name=False, timeout_ms=left_ms)
        call.request = replace(call.request, whole=found.whole)
        result = found.call(runtime, arguments, call)
        return await result if isawaitable(result) else result


def exposed_tool(runtime: Runtime, name: str) -> ExposedTool | AwaitedTool | None:
    """The tool that a client means by a name that is none of ours."""
    item = runtime.surface.tool(name)
    if item is not None:
        return ExposedTool(item, by_own_name=name != item.shown)
    servers = runtime.surface.awaited(name)
    return AwaitedTool(name, servers) if servers else None
