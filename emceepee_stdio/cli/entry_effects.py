"""What the rules and the exposing of an entry come to, for the tools that its server lists."""

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from emceepee_stdio.backends.lists import Item
from emceepee_stdio.cli.exposed_view import some_of
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.config.server import Rule
from emceepee_stdio.config.tool_rules import ToolRules, rules_of
from emceepee_stdio.session.exposed_entries import exposed_as, idle_patterns

__all__ = ["EntryEffect", "exposing", "ruling"]

_RULES: tuple[Rule, Rule] = ("ask", "off")
_SHOWN_NAMES = 5  # of exposed tools: --json has all


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryEffect:
    """A sentence, the facts, and what is perhaps a slip of the pen, with its remedy."""

    sentence: str = ""
    details: Mapping[str, object] = field(default_factory=dict[str, object])
    slip: str = ""
    remedy: str = ""


def ruling(server: ServerConfig, tools: Sequence[Item]) -> EntryEffect:
    rules = rules_of({server.name: server.tools})
    if rules is None:
        return EntryEffect()
    names = [str(tool.get("name")) for tool in tools]
    found = {rule: [name for name in names if rules.rule(name) == rule] for rule in _RULES}
    ask, off = (len(found[rule]) for rule in _RULES)
    each = {pattern: ToolRules({pattern: "off"}) for pattern in server.tools}
    idle = [one for one, rule in each.items() if not any(map(rule.hides, names))]
    look = f"emceepee config rules {shlex.quote(server.name)}"
    return EntryEffect(
        sentence=_ruled(ask, off),
        details={"rules": {"written": server.tools, **found}},
        slip=f" No tool matches {', '.join(map(repr, idle))} of your rules." if idle else "",
        remedy=with_command("Look whether the rules say what you mean", look),
    )


def _ruled(ask: int, off: int) -> str:
    are_off = f"{off} {'is' if off == 1 else 'are'} off"
    if ask and off:
        return f" By your rules you are asked for {ask} of its tools, and {are_off}."
    if ask:
        return f" By your rules you are asked for {ask} of its tools."
    return f" By your rules {are_off.replace(' ', ' of its tools ', 1)}." if off else ""


def exposing(
    server: ServerConfig, tools: Sequence[Item], configured: Collection[str]
) -> EntryEffect:
    """`configured` are the names of all servers, on which those of exposed tools depend."""
    names = list(exposed_as(server, tools, configured).values())
    idle = idle_patterns(server, tools)
    look = f"emceepee config expose {shlex.quote(server.name)}"
    return EntryEffect(
        sentence=f" Exposed as: {some_of(names, _SHOWN_NAMES)}." if names else "",
        details={"exposed_as": names} if server.expose else {},
        slip=f" No tool matches {', '.join(map(repr, idle))} of expose." if idle else "",
        remedy=with_command("Look whether the patterns say what you mean", look),
    )
