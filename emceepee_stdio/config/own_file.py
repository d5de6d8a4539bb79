"""Our own configuration file as text to edit: adds, removes and changes servers, rules, exposure.

Works on texts that the loader accepts; what the loader does not, is refused as it says it.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from emceepee_stdio.config import jsonc
from emceepee_stdio.config.clients import Client, is_ours
from emceepee_stdio.config.entries import Entries, what_runs
from emceepee_stdio.config.fields import UnsetVariable, expand, fit, is_list, is_object, is_template
from emceepee_stdio.config.jsonc import Steps, overridden
from emceepee_stdio.config.load import SECTIONS, load_text
from emceepee_stdio.config.server import Rule, label
from emceepee_stdio.config.tool_rules import ToolRules, check_patterns, read_rules, rule_keys
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.json_values import elements, mapping

_KEYRING_REFERENCE = re.compile(r"\$\{keyring:[^}]*\}")
# What only an editor can fill in.
_EDITOR_VARIABLE = re.compile(
    r"\$\{(?:(?:input|command|config):[^}]*|workspaceFolder[^}]*|userHome|file\w*|pathSeparator|/)\}"
)


class ConfigLocation(NamedTuple):
    """One entry of the file, as it is written there."""

    name: str
    entry: object
    steps: Steps

    @property
    def fields(self) -> Mapping[str, object]:
        return mapping(self.entry)


class Outcome(NamedTuple):
    """What became of one server of a client."""

    result: str
    reason: str


def places(text: str | None) -> Iterator[ConfigLocation]:
    """Every entry that has a name."""
    document = mapping(jsonc.read(text or ""))
    for section in SECTIONS:
        found = document.get(section)
        for name, entry in mapping(found).items():
            yield ConfigLocation(name, entry, (section, name))
        for index, entry in enumerate(elements(found)):
            if isinstance(name := mapping(entry).get("name"), str):
                yield ConfigLocation(name, entry, (section, index))


def find(text: str | None, name: str) -> ConfigLocation | None:
    """The entry of this name that is used: the first."""
    return next((place for place in places(text) if place.name == name), None)


def ignored(text: str | None) -> Iterator[ConfigLocation]:
    """Entries that another one of the same key, further down, takes the place of."""
    document = mapping(jsonc.read(text or ""))
    for section in SECTIONS:
        for name, entry in overridden(mapping(document.get(section))):
            yield ConfigLocation(name, entry, (section, name))


def put_server(text: str | None, name: str, entry: Mapping[str, object], *, source: str) -> str:
    """The text with this server: in the place of one of its name, or after the others."""
    text = text or ""
    if text.strip():
        load_text(text, environ={}, source=source)
    if (found := find(text, name)) is None:
        return jsonc.put(text, (SECTIONS[0], name), dict(entry))
    in_list = isinstance(found.steps[-1], int)
    return jsonc.put(text, found.steps, {"name": name, **entry} if in_list else dict(entry))


def remove_server(text: str | None, name: str, *, source: str) -> str | None:
    """The text without the servers of this name; None if there is none."""
    if not (text or "").strip():
        return None
    text = text or ""
    load_text(text, environ={}, source=source)
    found = [place for place in places(text) if place.name == name]
    for place in reversed(found):
        text = jsonc.remove(text, place.steps)
    return text if found else None


def judge(name: str, entry: object, *, environ: Mapping[str, str]) -> str | None:
    """A warning on an entry that works, or may once a variable is set; raises if it never will."""
    section = SECTIONS[0]
    try:
        expand(entry, environ=environ, path=f"{section}.{label(name)}", in_keyring=True)
    except UnsetVariable as error:
        return error.fact
    except ConfigInvalid:
        pass
    entries = Entries(environ)
    entries.add(name, entry, section=section)
    off = [server for server in entries.disabled if server.switched_off]
    if entries.servers or off:
        return " ".join(entries.warnings) or None
    broken = [server.reason for server in entries.disabled]
    raise ConfigInvalid(" ".join(broken or entries.skipped or entries.warnings))


def take_over(
    client: Client,
    name: str,
    theirs: object,
    text: str | None,
    *,
    environ: Mapping[str, str],
    source: str,
) -> tuple[str | None, Outcome]:
    """Our text with a server of a client, and what became of it."""
    entry = client.our_entry(theirs)
    present = {place.name: place.entry for place in places(text)}
    if obstacle := _obstacle(name, theirs, entry, present):
        return text, obstacle
    try:
        ours, became = _with_rules(name, entry)
        warning = judge(name, ours, environ=environ)
        text = put_server(text, name, mapping(ours), source=source)
    except ConfigInvalid as error:
        return text, Outcome("skipped", error.fact)
    said = (became or _from_modes(theirs, entry), warning)
    return text, Outcome("taken", " ".join(filter(None, said)))


def _from_modes(theirs: object, entry: object) -> str:
    """A client may say in its own way when it asks: those are rules in our entry already."""
    ours = mapping(entry).get("tools")
    if not is_object(ours) or ours == mapping(theirs).get("tools"):
        return ""
    return "what it asks for and leaves out became rules for its tools."


def _with_rules(name: str, entry: object) -> tuple[object, str]:
    """The entry with rules in the place of a client's own lists, and what became of those."""
    keys = [key for key in rule_keys(entry) if key != "tools"] if is_object(entry) else []
    if not is_object(entry) or not (keys or is_list(entry.get("tools"))):
        return entry, ""
    keys = keys or ["tools"]
    rules = read_rules(entry, environ={}, path=f"{SECTIONS[0]}.{label(name)}")
    rest = {key: value for key, value in entry.items() if key not in keys}
    runs = [pattern for pattern, rule in rules.items() if rule == "allow"]
    off = [pattern for pattern, rule in rules.items() if rule == "off" and pattern != "*"]
    said = [f"only {', '.join(runs)} may run" if runs else "none may run"] if "*" in rules else []
    said += [f"{', '.join(off)} may not run"] if off else []
    told = f"{', '.join(keys)} became rules for its tools: {'; '.join(said) or 'all may run'}."
    return ({**rest, "tools": rules} if rules else rest), told


def _obstacle(
    name: str, theirs: object, entry: object, present: Mapping[str, object]
) -> Outcome | None:
    if is_ours(theirs):
        return Outcome("itself", "it is emceepee's own entry.")
    if name in present:
        if _is_same(name, present[name], entry):
            return Outcome("there", "the configuration has the same server.")
        return Outcome("skipped", "the configuration has another server of this name; rename one.")
    for variable in filter(None, map(_EDITOR_VARIABLE.search, texts_in(entry))):
        return Outcome("skipped", f"only the client can fill in {variable[0]}.")
    if any(map(is_template, texts_in(entry))):
        return Outcome(
            "skipped", "it refers to the keyring, which only our own configuration may do."
        )
    return None


def _is_same(name: str, ours: object, theirs: object) -> bool:
    """Whether they run the same server, and ours keeps every rule that theirs has for its tools."""
    if not is_object(ours) or not is_object(theirs):
        return ours == theirs
    run, wanted = what_runs(ours), what_runs(theirs)
    if "transport" not in run or "transport" not in wanted:  # one of them finds out
        run.pop("transport", None)
        wanted.pop("transport", None)
    rules = _rules(name, theirs)
    return _agrees(run, wanted) and (not rules or rules == _rules(name, ours))


def _rules(name: str, entry: Mapping[str, object]) -> object:
    """As rules, or as they are written where they cannot be read."""
    try:
        ruled = _with_rules(name, entry)[0]
    except ConfigInvalid:
        return {key: entry[key] for key in rule_keys(entry)}
    return mapping(ruled).get("tools")


def _agrees(ours: object, theirs: object) -> bool:
    """The same, where a reference to the keyring stands for the text that was moved there."""
    if is_object(ours) and is_object(theirs):
        return ours.keys() == theirs.keys() and all(_agrees(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, str) and isinstance(theirs, str) and is_template(ours):
        parts = _KEYRING_REFERENCE.split(ours)
        return re.fullmatch(".+".join(map(re.escape, parts)), theirs, re.DOTALL) is not None
    return ours == theirs


def texts_in(value: object) -> Iterator[str]:
    """Every text inside of it, at any depth."""
    if isinstance(value, str):
        yield value
    for part in (*mapping(value).values(), *elements(value)):
        yield from texts_in(part)


# What a server exposes, read and changed in our own file, whose form stays as it is.


Exposed = bool | tuple[str, ...]


def exposed_at(place: ConfigLocation) -> Exposed:
    """What the entry says now; raises if that cannot be read."""
    path = f"{'.'.join(map(str, place.steps))}.expose"
    said = place.fields.get("expose")
    if said is None or isinstance(said, bool):
        return bool(said)
    patterns = fit(said, tuple[str, ...], path=path)
    check_patterns(patterns, path=path)
    return patterns


def set_exposed(text: str, place: ConfigLocation, exposed: Exposed) -> str:
    """The text with this; nothing exposed is the same as no word of it."""
    steps = (*place.steps, "expose")
    if not exposed:
        return jsonc.remove(text, steps)
    return jsonc.put(text, steps, True if exposed is True else list(exposed))


# Rules for tools, changed in our own file, whose form stays as it is.
#
# The last match counts, so a rule that is set goes behind the others.


def rules_at(place: ConfigLocation) -> dict[str, Rule]:
    """What the entry says now; raises if that cannot be read."""
    return read_rules(place.fields, environ={}, path=".".join(map(str, place.steps)))


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
    keys = rule_keys(place.fields)
    if not keys or is_object(place.fields.get("tools")):
        return text
    rules = rules_at(place)
    for key in keys:
        text = jsonc.remove(text, (*place.steps, key))
    return jsonc.put(text, (*place.steps, "tools"), dict(rules)) if rules else text
