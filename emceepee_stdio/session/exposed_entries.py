"""What of a server's lists its entry exposes: the tools that its patterns name, or all of it. Pure.

A tool that a rule hides is not shown; it stays known, so that a call of it is told why.
"""

import re
from collections.abc import Callable, Collection, Sequence
from fnmatch import translate

from emceepee_stdio.backends.lists import Item, Kind
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.session.exposed_lists import ExposedServer, list_exposed

__all__ = ["exposed_as", "exposed_server", "idle_patterns"]


def exposed_server(
    entry: ServerConfig,
    listed: Callable[[Kind], Sequence[Item]],
    *,
    unseen: frozenset[str] = frozenset(),
    unpinned: frozenset[str] = frozenset(),
) -> ExposedServer:
    """The part of what is `listed`.

    `unseen` are tools that a person has to see first, `unpinned` those that are not what they were.
    """
    tools = listed(Kind.TOOLS)
    if not isinstance(entry.expose, bool):
        fits = re.compile("|".join(map(translate, entry.expose)) or "(?!)").match
        tools = [tool for tool in tools if fits(str(tool.get("name")))]
    rules = rules_of({entry.name: entry.tools})
    names = [str(tool.get("name")) for tool in tools]
    hidden = frozenset(name for name in names if rules is not None and rules.hides(name))
    items: dict[Kind, Sequence[Item]] = {Kind.TOOLS: tools}
    if entry.expose is True:
        items |= {kind: listed(kind) for kind in Kind if kind is not Kind.TOOLS}
    return ExposedServer(name=entry.name, items=items, hidden=hidden | unseen, unpinned=unpinned)


def exposed_as(
    entry: ServerConfig, tools: Sequence[Item], configured: Collection[str]
) -> dict[str, str]:
    """Under which names a client is listed these tools; `configured` are all servers by name."""
    if not entry.expose:
        return {}
    server = exposed_server(entry, lambda kind: tools if kind is Kind.TOOLS else ())
    names = list_exposed([server], configured).listed_names()
    return {own: shown for (_, own), shown in names.items()}


def idle_patterns(entry: ServerConfig, tools: Sequence[Item]) -> list[str]:
    """Patterns that match no tool: perhaps a slip of the pen."""
    if isinstance(entry.expose, bool):
        return []
    names = [str(tool.get("name")) for tool in tools]
    return [one for one in entry.expose if not any(map(re.compile(translate(one)).match, names))]
