"""Rules for tools, changed in our own file, whose form stays as it is.

The last match counts, so a rule that is set goes behind the others.
"""

from emceepee_stdio.config import jsonc
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.own_file import ConfigLocation, places
from emceepee_stdio.config.server import Rule
from emceepee_stdio.config.tool_rules import ToolRules, read_rules, rule_keys

__all__ = ["overruled", "remove_rule", "rules_at", "set_rule"]


def rules_at(place: ConfigLocation) -> dict[str, Rule]:
    """What the entry says now; raises if that cannot be read."""
    entry = place.entry if is_object(place.entry) else {}
    return read_rules(entry, environ={}, path=".".join(map(str, place.steps)))


def set_rule(text: str, name: str, pattern: str, rule: Rule) -> str:
    """The text with this rule, behind all others of the server."""
    text = _as_rules(text, name)
    place = _place(text, name)
    if rules_at(place).get(pattern) == rule and list(rules_at(place))[-1] == pattern:
        return text
    text = jsonc.remove(text, (*place.steps, "tools", pattern))
    return jsonc.put(text, (*place.steps, "tools", pattern), rule)


def remove_rule(text: str, name: str, pattern: str) -> str | None:
    """The text without this rule; None where there is none."""
    text = _as_rules(text, name)
    place = _place(text, name)
    rules = rules_at(place)
    if pattern not in rules:
        return None
    steps = (*place.steps, "tools")
    return jsonc.remove(text, steps if len(rules) == 1 else (*steps, pattern))


def overruled(rules: dict[str, Rule], pattern: str, rule: Rule) -> dict[str, Rule]:
    """Rules for single names that the new one, behind them, takes the effect from."""
    covers = ToolRules({pattern: "off"})
    return {
        earlier: said
        for earlier, said in rules.items()
        if earlier != pattern and said != rule and covers.hides(earlier)
    }


def _place(text: str, name: str) -> ConfigLocation:
    return next(place for place in places(text) if place.name == name)


def _as_rules(text: str, name: str) -> str:
    """With rules in the place of the lists of names that a client wrote."""
    place = _place(text, name)
    entry = place.entry if is_object(place.entry) else {}
    keys = rule_keys(entry)
    if not keys or is_object(entry.get("tools")):
        return text
    rules = rules_at(place)
    for key in keys:
        text = jsonc.remove(text, (*place.steps, key))
    return jsonc.put(text, (*place.steps, "tools"), dict(rules)) if rules else text
