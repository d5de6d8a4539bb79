"""Tools of exposed servers, called by the names under which the client is listed them.

Such a call is one of execute_tool in every respect; only its result is the server's own. One by the
name that a tool has at its server is execute_tool without a server: it waits for those that have
not listed their tools, and goes to nobody where several have it.
"""

from dataclasses import dataclass
from inspect import isawaitable

from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import UNSET, Raw

from emceepee_stdio.errors import ProxyError, ToolNotFound
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.exposed_lists import ExposedItem
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.execute import ExecuteTool, execute_tool
from emceepee_stdio.tools.registry import Result
from emceepee_stdio.tools.tool_resolution import server_of_tool

__all__ = ["ExposedTool", "exposed_tool"]


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
