"""Which tools run by execute_readonly_tool: hosts run that one without asking anybody.

A server says of a tool that it only reads. That counts where a person configured the server or
agreed to it, where no rule wants more, and where the tool is what it was when it was first pinned:
a server cannot make a tool a reading one later.
"""

from collections.abc import Mapping

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.errors import PolicyDenied
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin, RegisteredServer
from emceepee_stdio.session.suggestions import SHOWN_NAME_CHARS

__all__ = ["READ_ONLY_ROAD", "require_read_only", "why_not_read_only"]

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
