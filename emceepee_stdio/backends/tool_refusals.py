"""Why a call of a tool is not sent: the rules of its server.

Looked at where every request of a server passes, at the moment in which it is sent: no road leads
around it, and a rule that became stricter meanwhile holds.
"""

import re
import shlex
from typing import Protocol

from emceepee_stdio.backends.lists import Lists
from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import NeedsApproval, PolicyDenied, ProxyError, ToolNotFound
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["Ruled", "name_refusal", "tool_refusal"]

_SHOWN_NAME_CHARS = 100  # names are shorter
# A server chooses the name, and a person may paste it into a shell, where it is also a pattern.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", re.ASCII)


class Ruled(Protocol):
    """A server and the rules of its tools."""

    name: str
    lists: Lists
    rules: ToolRules | None


def tool_refusal(server: Ruled, request: OutgoingRequest) -> ProxyError | None:
    """Why this request must not be sent; None for all that are no calls of tools."""
    if request.method != "tools/call":
        return None
    params = request.params or {}
    tool = params.get("name")
    refused = name_refusal(server, tool)
    # What a person agrees to is kept with the client's call: those very arguments.
    permit = getattr(request.call, "permit", None)
    permitted = permit is not None and permit is params.get("arguments")
    if refused is None and not permitted and _rule(server, tool) == "ask":
        return NeedsApproval(
            f"By a rule of the configuration a person is asked before {_shown(tool)} of "
            f"{server.name} runs, and was not.",
            hint="Call it again with execute_tool: then they are asked.",
        )
    return refused


def name_refusal(server: Ruled, tool: object) -> ProxyError | None:
    """Why a tool does not run, whatever its arguments are and whoever agrees."""
    if server.rules is None:
        return None
    if _rule(server, tool) == "off":
        entry = server.rules.entry(tool) or server.name
        command = f"emceepee config rules {shlex.quote(entry)}"
        return PolicyDenied(
            f"{_shown(tool)} of {server.name} is off by a rule of the configuration.",
            hint=f"Do without it. A person can change it with `{command}`.",
            command=f"{command} {tool} allow" if _PLAIN_NAME.fullmatch(str(tool)) else command,
        )
    if not isinstance(tool, str) or not server.lists.lists_tool(tool):
        return ToolNotFound(
            f"{server.name} does not list a tool {_shown(tool)}.",
            hint="It has rules for its tools: only what list_tools shows runs, by its exact name.",
        )
    return None


def _rule(server: Ruled, tool: object) -> str:
    return "allow" if server.rules is None else server.rules.rule(tool)


def _shown(tool: object) -> str:
    return repr(str(tool)[:_SHOWN_NAME_CHARS])
