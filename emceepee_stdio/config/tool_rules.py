"""Tool rules by pattern (allow, ask, off): which one holds for a tool, and why a call is refused.

A rule is a pattern and what holds for the tools whose name it matches; the last match counts, and
what nothing matches is allowed. Clients write the same as lists of names, which are understood.

`ToolRules.refusal` decides about a call. The backend asks it whenever it sends one, so no road
leads around it, and a rule that became stricter meanwhile holds.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import translate
from typing import Final, cast

from emceepee_stdio.config.fields import expand, fit, is_list
from emceepee_stdio.config.jsonc import Repeated
from emceepee_stdio.config.server import Rule, label
from emceepee_stdio.errors import (
    ConfigInvalid,
    NeedsApproval,
    PolicyDenied,
    ProxyError,
    ToolNotFound,
)
from emceepee_stdio.visible_text import SHOWN_NAME_CHARS, close_names, shell_word

NOTHING_RUNS: Final[Mapping[str, Rule]] = {"*": "off"}  # for rules that cannot be read

# Names of tools as clients list them in an entry: only these, and never these.
_ONLY = ("includeTools", "include_tools", "enabledTools", "enabled_tools")
_NEVER = ("excludeTools", "exclude_tools", "disabledTools", "disabled_tools")
_MAX_RULES = 1_000  # for each tool that is listed, all of them may be looked at
_MAX_PATTERN_CHARS = 200  # names of tools are shorter
_STRICTNESS: Sequence[Rule] = ("allow", "ask", "off")
_SET_OF_CHARS = re.compile(r"\[!?+\]?+[^\]]*+\]")
_SPECIAL = re.compile(r"[*?[]")
# A server chooses the name, and a person may paste it into a shell, where it is also a pattern.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", re.ASCII)


class ToolRules:
    """What holds for each tool. Of several sets of rules the strictest word counts.

    `entries` are those of the configuration in which the sets stand.
    """

    def __init__(self, *sets: Mapping[str, Rule], entries: Sequence[str] = ()) -> None:
        self._entries = entries
        self._sets = [[_compiled(*one) for one in reversed([*rules.items()])] for rules in sets]

    def rule(self, tool: object) -> Rule:
        """What holds for the tool of exactly this name."""
        name = str(tool)
        found: list[Rule] = [_last_match(rules, name) for rules in self._sets]
        return max(found, key=_STRICTNESS.index)

    def hides(self, tool: object) -> bool:
        return self.rule(tool) == "off"

    def entry(self, tool: object) -> str | None:
        """The entry whose word counts for the tool; None where nobody said whose rules they are."""
        said = dict(zip(self._entries, self._sets, strict=False))
        rule = self.rule(tool)
        return next((one for one in said if _last_match(said[one], str(tool)) == rule), None)

    def refusal(
        self,
        tool: object,
        *,
        server: str,
        listed: Mapping[str, object],
        permitted: bool,
    ) -> ProxyError | None:
        """Why a call of this tool is not sent; `permitted` where a person agreed, or will be asked.

        `listed` has the tools that the server itself has listed since it was started.
        """
        shown, rule = repr(str(tool)[:SHOWN_NAME_CHARS]), self.rule(tool)
        if rule == "off":
            command = f"emceepee config rules {shell_word(self.entry(tool) or server)}"
            return PolicyDenied(
                f"{shown} of {server} is off by a rule of the configuration.",
                hint=f"Do without it. A person can change it with `{command}`.",
                command=f"{command} {tool} allow" if _PLAIN_NAME.fullmatch(str(tool)) else command,
            )
        if not isinstance(tool, str) or tool not in listed:
            close = close_names(str(tool), [name for name in listed if not self.hides(name)])
            more = f" Close are: {', '.join(close)}." if close else ""
            return ToolNotFound(
                f"{server} does not list a tool {shown}.{more}",
                hint="It has rules for its tools: only what list_tools shows runs, by its exact "
                "name.",
            )
        if rule == "ask" and not permitted:
            return NeedsApproval(
                f"By a rule of the configuration a person is asked before {shown} of {server} "
                "runs, and was not.",
                hint="Call it again with execute_tool: then they are asked.",
            )
        return None


_Compiled = tuple[Callable[[str], object], Rule]


def _compiled(pattern: str, rule: Rule) -> _Compiled:
    return re.compile(translate(pattern)).match, rule


def _last_match(rules: Sequence[_Compiled], name: str) -> Rule:
    """They stand in the reverse order."""
    for matches, rule in rules:
        if matches(name):
            return rule
    return "allow"


def rules_of(entries: Mapping[str, Mapping[str, Rule]]) -> ToolRules | None:
    """The rules of these entries by their names; None where nothing is ruled: most servers."""
    given = {name: rules for name, rules in entries.items() if rules}
    return ToolRules(*given.values(), entries=list(given)) if given else None


def rule_keys(entry: Mapping[str, object]) -> list[str]:
    """The keys of an entry that say which tools may run."""
    keys = ("tools", *_ONLY, *_NEVER)
    return [key for key in keys if entry.get(key) is not None]


def read_rules(
    entry: Mapping[str, object], *, environ: Mapping[str, str], path: str
) -> dict[str, Rule]:
    """The rules of an entry, in the words of whichever client; raises if one is unreadable."""
    given = {key: entry[key] for key in rule_keys(entry)}
    tools = given.pop("tools", None)
    if tools is not None and given:
        raise ConfigInvalid(
            f"{path} has both tools and {', '.join(given)}; write all of it as rules in tools."
        )
    if is_list(tools):  # as some clients write it: only these, or all of them
        names = fit(tools, tuple[str, ...], path=f"{path}.tools")
        return {} if "*" in names else _from_lists([names], [])
    if tools is not None:
        return _checked(tools, environ=environ, path=f"{path}.tools")
    names_of = {key: fit(given[key], tuple[str, ...], path=f"{path}.{key}") for key in given}
    only = [names_of[key] for key in _ONLY if key in names_of]
    return _from_lists(only, [names_of[key] for key in _NEVER if key in names_of])


def _from_lists(only: Sequence[Sequence[str]], never: Sequence[Sequence[str]]) -> dict[str, Rule]:
    """An exclusion goes before an inclusion, as it does in the clients."""
    rules: dict[str, Rule] = dict(NOTHING_RUNS) if only else {}
    for names in only:
        rules |= {escaped(name): "allow" for name in names}
    for names in never:
        for name in names:
            rules.pop(escaped(name), None)  # so that it stands last
            rules[escaped(name)] = "off"
    return rules


def _checked(tools: object, *, environ: Mapping[str, str], path: str) -> dict[str, Rule]:
    if isinstance(tools, Repeated):
        raise ConfigInvalid(f"{path} has the same pattern twice; keep the one that is meant.")
    rules = fit(expand(tools, environ=environ, path=path), _RULES, path=path)
    check_patterns(tuple(rules), path=path)
    return rules


_RULES = dict[str, Rule]


def check_patterns(patterns: object, *, path: str) -> None:
    """Raise for a tuple of patterns of which one is none, or that are too many to look at."""
    given = cast("tuple[str, ...]", patterns) if isinstance(patterns, tuple) else ()
    if len(given) > _MAX_RULES:
        raise ConfigInvalid(f"{path} has {len(given)} patterns; {_MAX_RULES} are possible.")
    for pattern in given:
        if problem := pattern_problem(pattern):
            raise ConfigInvalid(f"{path}.{label(pattern)}: {problem}.")


def pattern_problem(pattern: str) -> str | None:
    if not pattern or len(pattern) > _MAX_PATTERN_CHARS:
        return f"a pattern has 1 to {_MAX_PATTERN_CHARS} characters"
    if "[" in _SET_OF_CHARS.sub("", pattern):
        return "a [ without its ]; a plain [ is written [[]"
    return None


def escaped(name: str) -> str:
    """The pattern that matches this name alone."""
    return _SPECIAL.sub(r"[\g<0>]", name)
