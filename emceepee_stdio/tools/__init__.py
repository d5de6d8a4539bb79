"""The tools: one family a module, in the order of `_FAMILIES`, in which a client sees them."""

from emceepee_stdio.tools import (
    execute,
    log_tools,
    question_tools,
    resource_tools,
    server_tools,
    task_tools,
    timer_tools,
    tool_search,
)
from emceepee_stdio.tools.registry import tools_of

__all__ = ["TABLE"]

_FAMILIES = (
    server_tools,
    tool_search,
    execute,
    resource_tools,
    log_tools,
    task_tools,
    question_tools,
    timer_tools,
)

TABLE = {tool.name: tool for family in _FAMILIES for tool in tools_of(family.__name__)}
