"""Tools of exposed servers, called by the names under which the client is listed them.

Such a call is one of execute_tool in every respect; only its result is the server's own.
"""

from dataclasses import dataclass

from msgspec import UNSET, Raw

from emceepee_stdio.errors import ToolNotFound
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.exposed_lists import ExposedItem
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.execute import ExecuteTool, execute_tool
from emceepee_stdio.tools.registry import Result

__all__ = ["ExposedTool", "exposed_tool"]


@dataclass(frozen=True, slots=True)
class ExposedTool:
    """Called as a tool of ours is."""

    item: ExposedItem

    @property
    def name(self) -> str:
        return self.item.shown

    def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Result:
        item = self.item
        if not runtime.surface.shows(item.server):
            raise ToolNotFound(
                f"{item.shown} is not there any more: {item.server} is not what was exposed.",
                hint="Call list_tools to see what there is now.",
            )
        call.native = True
        if item.page is not None:  # which reads all of the result
            call.budget = 0
        args = UNSET if arguments is None else arguments
        return execute_tool(
            runtime, ExecuteTool(server=item.server, tool=item.own, args=args), call
        )


def exposed_tool(runtime: Runtime, name: str) -> ExposedTool | None:
    """The tool that a client means by a name that is none of ours."""
    item = runtime.surface.tool(name)
    return None if item is None else ExposedTool(item)
