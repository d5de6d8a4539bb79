"""Names as a client lists them, SERVER__TOOL, in places where they are no names of tools.

Models mix them up with the names that tools have at their servers. Where it is clear what is meant,
that is taken; else the error says how to call it.
"""

from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.suggestions import SHOWN_NAME_CHARS

__all__ = ["lead_of", "own_name", "unknown_tool"]

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
