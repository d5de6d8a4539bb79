"""execute_tool: run a tool of a server, forgiving what models get wrong and nothing else."""

import difflib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from emceepee_stdio.backends.base import RemoteError, Settled
from emceepee_stdio.backends.link import Link
from emceepee_stdio.errors import (
    InvalidArguments,
    ProxyError,
    ServerDisconnected,
    ServerNotFound,
    ToolNotFound,
)
from emceepee_stdio.journal import Event
from emceepee_stdio.session.calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.listing import gather
from emceepee_stdio.tools.registry import Params
from emceepee_stdio.tools.repair import depends_on_schema, repaired

__all__ = ["ExecuteTool", "begin_tool", "execute_tool"]


class ExecuteTool(Params, forbid_unknown_fields=False):
    """Which tool, with what."""

    tool: Annotated[str, Meta(description="The tool's name on that server.")]
    server: (
        Annotated[
            str,
            Meta(description="The server; may be left out when only one has the tool."),
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
                ge=0, le=900_000, description="Wait this long, then get a task; 0: a task at once."
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


class _Exactly(ExecuteTool, forbid_unknown_fields=True):
    """The same, without anything to put right."""


_read_exactly = msgspec.json.Decoder(_Exactly).decode


def begin_tool(
    runtime: Runtime,
    arguments: Raw | None,
    call: Call,
    finish: Callable[[Callable[[], Reply]], None],
    go_on: Callable[[], object],
) -> bool:
    """The common case without a task: a connected server, a plain result. False for all others.

    `finish` answers with what its argument makes; `go_on` runs `execute_tool` for what came to
    something else than a plain result.
    """
    try:
        p = _read_exactly(arguments or b"{}")
    except (msgspec.MsgspecError, RecursionError):
        return False
    link = None if p.server is UNSET else runtime.servers.find(p.server)
    if link is None or not link.is_lean or runtime.pins.enforced or p.timeout_ms == 0:
        return False
    if link.known("tools") is None and depends_on_schema(_given(p), call.extra):
        return False
    args = _repaired(runtime, link, p, call)
    _begin(runtime, link, p, call)

    is_over = False

    def on_done(settled: Settled) -> None:
        nonlocal is_over
        is_over = True
        call.underway = None
        outcome = settled.outcome
        if isinstance(outcome, Raw):
            finish(lambda: Reply.result(outcome, server=link.name))
        else:
            call.settled = settled
            go_on()

    underway = link.begin_tool(
        p.tool, args, within=call.limit, on_done=on_done, call=call, on_progress=call.on_progress
    )
    if not is_over:
        call.underway = underway
    return underway is not None


async def execute_tool(runtime: Runtime, p: ExecuteTool, call: Call) -> Reply:
    link = await _resolve(runtime, p, call)
    needs_schema = depends_on_schema(_given(p), call.extra) and link.known("tools") is None
    args = None if needs_schema else _repaired(runtime, link, p, call)
    if call.slot is None:
        _begin(runtime, link, p, call)
    if runtime.pins.enforced:
        await _learn(link, runtime)
        member = runtime.servers.member(link.name)
        if member is not None:
            await runtime.pins.check(member.config, p.tool)
    if args is None:
        await _learn(link, runtime)
        args = _repaired(runtime, link, p, call)
    try:
        result = await link.call_tool(
            p.tool,
            args,
            within=call.limit,
            call=call,
            on_progress=call.on_progress,
            settled=call.settled,
        )
    except ServerDisconnected as error:
        raise ServerDisconnected(
            f"{error.fact}\n{_repeatable(link, p.tool)}", hint=error.next_step
        ) from None
    except RemoteError as error:
        refused = error
    else:
        return Reply.result(result, server=link.name)
    await _check_tool_exists(link, p.tool, refused)
    raise refused


def _begin(runtime: Runtime, link: Link, p: ExecuteTool, call: Call) -> None:
    runtime.session.begin(
        call,
        server=link.name,
        tool=p.tool,
        within=_patience(runtime, p, call),
        ttl=None if p.task_ttl_ms is UNSET else p.task_ttl_ms / 1000,
    )


def _given(p: ExecuteTool) -> Raw | None:
    return None if p.args is UNSET else p.args


def _repaired(runtime: Runtime, link: Link, p: ExecuteTool, call: Call) -> Raw:
    args, repairs = repaired(_given(p), call.extra, _schema(link, p.tool), tool=p.tool)
    if repairs:
        runtime.journal.record(
            Event.TOOL_ARGUMENTS_REPAIRED, server=link.name, tool=p.tool, repairs=repairs
        )
    return args


async def _learn(link: Link, runtime: Runtime) -> None:
    """The tools of a server that nobody has listed yet."""
    with suppress(ProxyError):
        await link.list_all("tools", within=runtime.settings.timeouts.request_ms / 1000)


async def _resolve(runtime: Runtime, p: ExecuteTool, call: Call) -> Link:
    """The named server, or the only one that has the tool."""
    if p.server is not UNSET:
        return runtime.servers.get(p.server)
    having = [link for link in runtime.servers if link.tool(p.tool) is not None]
    if not having:
        await gather(runtime, "tools", ".*", call)
        having = [link for link in runtime.servers if link.tool(p.tool) is not None]
    if len(having) == 1:
        return having[0]
    if having:
        names = ", ".join(sorted(link.name for link in having))
        raise InvalidArguments(
            f"Several servers have a tool {p.tool!r}: {names}.", hint="Say which with `server`."
        )
    names = ", ".join(runtime.servers.names()) or "none"
    raise ServerNotFound(
        f"No server has a tool {p.tool[:100]!r}; the servers are: {names}.",
        hint="Call list_servers, or add_server to add the one that has it.",
    )


def _patience(runtime: Runtime, p: ExecuteTool, call: Call) -> float:
    """How long this client may be kept waiting; a word is noted when it asked for more."""
    times = runtime.settings.timeouts
    wanted = (times.call_ms if p.timeout_ms is UNSET else p.timeout_ms) / 1000
    wanted = min(wanted, times.call_max_ms / 1000)
    if p.timeout_ms is not UNSET and wanted > call.ceiling:
        lowered = round(call.ceiling * 1000)
        call.note = f"timeout_ms was lowered to {lowered}, because this client waits no longer."
    return min(wanted, call.ceiling)


def _schema(link: Link, tool: str) -> Mapping[str, object]:
    schema = (link.tool(tool) or {}).get("inputSchema")
    return cast("Mapping[str, object]", schema) if isinstance(schema, dict) else {}


def _repeatable(link: Link, tool: str) -> str:
    """Whether the call may be made again without doing something twice."""
    hints = (link.tool(tool) or {}).get("annotations")
    known = cast("dict[str, object]", hints) if isinstance(hints, dict) else dict[str, object]()
    if known.get("readOnlyHint") is True or known.get("idempotentHint") is True:
        return "The call may be repeated safely: the tool says so."
    return "The call may or may not have been carried out: check before repeating it."


async def _check_tool_exists(link: Link, tool: str, error: RemoteError) -> None:
    """A failed call of a tool that the server does not list is better told as that."""
    try:
        tools = await link.list_all("tools", within=5.0)
    except ProxyError:
        return
    names = [str(item.get("name")) for item in tools]
    if tool in names:
        return
    close = difflib.get_close_matches(tool[:100], names, n=3, cutoff=0.5)
    shown = f" Close are: {', '.join(close)}." if close else f" Tools that it has: {len(names)}."
    raise ToolNotFound(f"{link.name} has no tool {tool[:100]!r}.{shown}") from error
