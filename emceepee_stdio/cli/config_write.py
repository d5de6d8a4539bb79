"""`emceepee config` commands that change the file: switch, expose, rules, add-json, edit.

The editor works on a copy beside the file, so a running proxy never reads half an edit. A copy that
cannot be used stays there, and the file stays as it was.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from emceepee_stdio.cli import config
from emceepee_stdio.cli.command_line import argument, flag
from emceepee_stdio.cli.keyring_secrets import note_plain_secrets
from emceepee_stdio.cli.secret_values import references
from emceepee_stdio.cli.shared_options import ServerArgument, complete_patterns, place_of
from emceepee_stdio.cli.terminal import ExitCode, confirm, is_person_there, terminal, with_command
from emceepee_stdio.config import jsonc, own_file
from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.config.edit import EditRefused, guard, read_file
from emceepee_stdio.config.entries import KNOWN_KEYS, OFF_KEYS, is_off
from emceepee_stdio.config.fields import is_object, keyring_names, keyring_reference
from emceepee_stdio.config.jsonc import Unreadable
from emceepee_stdio.config.load import SECTIONS, load_text
from emceepee_stdio.config.server import Rule, label
from emceepee_stdio.config.tool_rules import pattern_problem
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.json_values import mapping
from emceepee_stdio.storage.private_file import make_private, write_whole
from emceepee_stdio.visible_text import shell_line, shell_word, shell_words
from emceepee_stdio.wire import system

# `emceepee config enable` and `disable`: keep an entry, and say whether it is used.


@config.changes_config(*config.PREVIEWED)
def enable(file: config.EditedFile, name: ServerArgument) -> config.Edit:
    """Enable a server.

    Running proxies connect to it within a second or two.

    Example: emceepee config enable github
    """
    after = _switched(file, name, off=False)
    if after == file.text:
        loaded = load_text(after, environ=os.environ, source=str(file.path))
        if config.state_of(name, loaded)[0] == "broken":
            raise EditRefused(
                f"{label(name)} is not disabled, but broken.", hint="See why: emceepee config check"
            )
    return config.Edit(what=f"Enabled {label(name)}", after=after)


@config.changes_config(*config.PREVIEWED)
def disable(file: config.EditedFile, name: ServerArgument) -> config.Edit:
    """Disable a server, and keep its entry.

    Running proxies stop it within a second or two.

    Example: emceepee config disable github
    """
    return config.Edit(what=f"Disabled {label(name)}", after=_switched(file, name, off=True))


def _switched(file: config.EditedFile, name: str, *, off: bool) -> str:
    text = file.text or ""
    place = place_of(text, name)
    if not is_object(place.entry):
        raise EditRefused(
            f"The entry of {label(place.name)} is no object.",
            hint=f"Nothing was changed; replace it: emceepee config add {place.name} --replace …",
        )
    present = {key: value for key, value in OFF_KEYS.items() if key in place.entry}
    if not off:
        for key in present:
            text = jsonc.remove(text, (*place.steps, key))
        return text
    if is_off(place.entry):
        return text
    key = next(iter(present), "disabled")
    return jsonc.put(text, (*place.steps, key), OFF_KEYS[key])


# `emceepee config expose`: which tools of a server show in the client as themselves.


_WHEN = (
    "Running sessions follow within seconds. The first new session lists new tools when the server "
    "is up, and tells its client then; later ones list them at once."
)


@config.changes_config(*config.PREVIEWED, "as_json")
def expose(
    file: config.EditedFile,
    name: ServerArgument,
    patterns: Annotated[
        list[str] | None, argument("['PATTERN']...", autocompletion=complete_patterns)
    ] = None,
    *,
    everything: Annotated[bool, flag("--all")] = False,
    remove: Annotated[bool, flag("--remove")] = False,
) -> config.Edit | None:
    """Choose tools that the client sees natively.

    A tool is listed as SERVER__TOOL, beside emceepee's own. Patterns are added to those that are
    there.

    Takes:
      patterns: Names of tools; * and ? stand for others.
      everything: All tools, and prompts, resources and templates.
      remove: Take these patterns out; without any, all of it.

    Example: emceepee config expose github 'search_*'
    """
    text = file.text or ""
    place = place_of(text, name)
    given = tuple(patterns or ())
    changes = bool(given or everything or remove)
    try:
        before = own_file.exposed_at(place)
    except ConfigInvalid as error:
        if not changes:
            command = f"emceepee config expose {shell_word(name)} 'PATTERN'"
            raise EditRefused(error.fact, hint=f"To replace it: {command}") from None
        terminal.note("What stands there cannot be read, and is replaced.")
        before = False
    if not changes:
        _show_exposed(name, before, _known_exposure(file, text, name), as_json=file.as_json)
        return None
    wanted = _wanted(name, before, given, everything=everything, remove=remove)
    after = own_file.set_exposed(text, place, wanted)

    def tell() -> None:
        if wanted and not file.as_json:
            config.say_listed(name, _known_exposure(file, after, name))
            if not file.dry_run:
                terminal.line(_WHEN)

    return config.Edit(what=f"Changed what {label(name)} exposes", after=after, then=tell)


def _known_exposure(file: config.EditedFile, text: str, name: str) -> config.KnownExposure | None:
    loaded = load_text(text, environ=os.environ, source=str(file.path))
    return config.known_exposure(loaded, os.environ).get(name)


def _wanted(
    name: str, before: own_file.Exposed, given: tuple[str, ...], *, everything: bool, remove: bool
) -> own_file.Exposed:
    if everything and (given or remove):
        raise typer.BadParameter(
            "--all exposes everything: give it without patterns and without --remove."
        )
    if everything:
        return True
    for pattern in given:
        if problem := pattern_problem(pattern):
            raise typer.BadParameter(f"{problem}.", param_hint="PATTERN")
    known = () if isinstance(before, bool) else before
    if not remove:
        if before is True:
            raise EditRefused(
                f"{label(name)} exposes everything already.",
                hint="To expose less, first run "
                f"`emceepee config expose {shell_word(name)} --remove`.",
            )
        return tuple(dict.fromkeys((*known, *given)))
    if not given:
        return False
    if missing := [pattern for pattern in given if pattern not in known]:
        raise EditRefused(
            f"{label(name)} does not expose {label(missing[0])}.",
            hint=f"See `emceepee config expose {shell_word(name)}` for what it exposes.",
        )
    return tuple(pattern for pattern in known if pattern not in given)


def _show_exposed(
    name: str, exposed: own_file.Exposed, known: config.KnownExposure | None, *, as_json: bool
) -> None:
    if as_json:
        shown: dict[str, object] = {"server": name, "expose": exposed}
        if known is not None:
            shown |= {"listed_as": known.names, "matches_nothing": known.idle, "known_at": known.at}
        terminal.document(shown)
        return
    if exposed is True:
        terminal.line("All tools, prompts, resources and templates.")
    elif exposed:
        terminal.verbatim("\n".join(exposed))
    else:
        command = f"emceepee config expose {shell_word(name)} 'PATTERN'"
        terminal.line(f"Nothing is exposed. To expose tools: {command}")
        return
    config.say_listed(name, known)


# `emceepee config rules`: which tools of a server run, are asked for, or are off.


_STYLES = {"allow": "green", "ask": "yellow", "off": "red"}


@config.changes_config(*config.PREVIEWED, "as_json")
def rules(
    file: config.EditedFile,
    name: ServerArgument,
    pattern: Annotated[
        str | None, argument("['PATTERN']", autocompletion=complete_patterns)
    ] = None,
    rule: Annotated[Rule | None, argument("[allow|ask|off]")] = None,
    *,
    remove: Annotated[bool, flag("--remove")] = False,
) -> config.Edit | None:
    """Show or change the rules for tools.

    allow: they run. ask: you are asked before each call. off: they are hidden and refused. If
    several rules match, the last one counts; a new rule becomes the last. A tool without a rule is
    allowed.

    Takes:
      pattern: Names of tools; * and ? stand for others.
      rule: What holds for them.
      remove: Take the rule for this pattern out.

    Example: emceepee config rules github 'delete_*' off
    """
    text = file.text or ""
    place = place_of(text, name)
    if pattern is None:
        _show_rules(place, as_json=file.as_json)
        return None
    if remove == (rule is not None):
        raise typer.BadParameter("give either a rule, allow, ask or off, or --remove.")
    if problem := pattern_problem(pattern):
        raise typer.BadParameter(f"{problem}.", param_hint="PATTERN")
    what = f"Changed the rules of {label(name)}"
    if rule is not None:
        after = own_file.set_rule(text, name, pattern, rule)
        return config.Edit(what=what, after=after, then=partial(_warn, place, pattern, rule))
    after = own_file.remove_rule(text, name, pattern)
    if after is None:
        raise EditRefused(
            f"{label(name)} has no rule for {label(pattern)}.",
            hint=f"See `emceepee config rules {shell_word(name)}` for those that it has.",
        )
    return config.Edit(what=what, after=after)


def _show_rules(place: own_file.ConfigLocation, *, as_json: bool) -> None:
    found = own_file.rules_at(place)
    if as_json:
        listed = [{"pattern": pattern, "rule": rule} for pattern, rule in found.items()]
        terminal.document({"server": place.name, "rules": listed})
    elif found:
        terminal.table(("PATTERN", "RULE"), list(found.items()), styles=_STYLES)
    else:
        name = shell_word(place.name)
        terminal.line(f"No rules: every tool runs. Set one: emceepee config rules {name} '*' ask")


def _warn(place: own_file.ConfigLocation, pattern: str, rule: Rule) -> None:
    """What the new rule, as the last one, takes the effect from."""
    for earlier, said in own_file.overruled(own_file.rules_at(place), pattern, rule).items():
        again = f"emceepee config rules {shell_word(place.name)} {shell_word(earlier)} {said}"
        terminal.note(
            f"It stands last, so it counts for {label(earlier)} as well, which was {said}. "
            f"To put that behind it: {again}"
        )


# `emceepee config add-json`: a server from the JSON that its documentation shows.


_MAX_JSON_CHARS = 1_000_000  # no entry is longer; a wrong file on stdin may be
# Under these names clients keep their servers; VS Code's settings had them inside of `mcp`.
_SECTIONS = frozenset(("mcp", *(client.section for client in CLIENTS.values())))


@config.changes_config(*config.PREVIEWED)
def add_json(
    file: config.EditedFile,
    name: config.NewNameArgument,
    document: Annotated[str, argument("JSON")],
    *,
    replace: Annotated[bool, flag("--replace")] = False,
) -> config.Edit:
    """Add a server from JSON.

    JSON is one entry, or the entry inside of "mcpServers" or "servers". Use - and stdin where it
    holds a secret: others see the command line.

    Takes:
      document: Its entry, in single quotes; - reads stdin.
      replace: Take the place of a server of this name.

    Example: emceepee config add-json time '{"command": "mcp-server-time"}'
    """
    entry = _entry(name, document)
    source = str(file.path)
    _refuse_references(name, entry, is_known=own_file.find(file.text, name) is not None)
    base = (
        own_file.remove_server(file.text, name, source=source) if replace else None
    ) or file.text
    after, outcome = own_file.take_over(
        CLIENTS["claude-desktop"], name, entry, base, environ=os.environ, source=source
    )
    if outcome.result in {"skipped", "itself"}:
        taken = own_file.find(base, name)
        step = "choose another name, or add --replace." if taken else "correct the entry."
        if outcome.result == "itself":
            step = "add the servers that it is to serve, one by one."
        raise EditRefused(
            f"{label(name)} was not added: {outcome.reason}",
            hint=f"Nothing was changed; {step}",
        )

    def tell() -> None:
        if outcome.reason and outcome.result == "taken":
            terminal.note(outcome.reason)
        if not file.dry_run:
            note_plain_secrets(file.path, [name])

    return config.Edit(what=f"Added {label(name)}", after=after, then=tell)


def _refuse_references(name: str, entry: Mapping[str, object], *, is_known: bool) -> None:
    """`config add` may refer to the keyring: there a person types each reference."""
    secrets = references(json.dumps({SECTIONS[0]: {name: entry}}))
    if not secrets:
        return
    words = ["emceepee", "config", "add", name, *(["--replace"] if is_known else ())]
    found = entry.get("env" if "command" in entry else "headers")
    referring = [
        (key, str(text), names[0])
        for key, text in mapping(found).items()
        if (names := keyring_names(str(text)))
    ]
    if "command" in entry:
        for key in [key for key, _, _ in referring] or ["K"]:
            words += ["--secret-env", key]
        words += ["--", "COMMAND"]
    else:
        for key, text, secret in referring:  # without what else is in it
            scheme = "Bearer " if text.startswith("Bearer ") else ""
            words += ["--header", f"{key}: {scheme}{keyring_reference(secret)}"]
        words += ["--url", "URL"]
    raise EditRefused(
        f"{label(name)} was not added: it refers to the keyring ({', '.join(secrets)}). JSON that "
        "is pasted comes from elsewhere, so it must not read your keyring.",
        hint=with_command(
            "Nothing was changed. To give the server a secret from the keyring", shell_line(words)
        ),
    )


def _entry(name: str, document: str) -> dict[str, object]:
    """The one entry that the document holds, in whatever it is wrapped."""
    text = sys.stdin.read(_MAX_JSON_CHARS) if document == "-" else document
    try:
        found = whole = jsonc.read(text)
    except jsonc.Unreadable as error:
        # Its text may hold a secret, so only the place is shown.
        fact = f"this is not JSON at line {error.line}, column {error.column}: {error.reason}."
        raise typer.BadParameter(fact, param_hint="JSON") from None
    while is_object(found) and (sections := _SECTIONS & found.keys()):
        found = found[min(sections)]
    in_section = found is not whole
    while is_object(found) and _holds_servers(found, in_section=in_section):
        inner = [value for value in found.values() if is_object(value)]
        if name not in found and len(inner) > 1:
            raise ConfigInvalid(
                f"The JSON holds several servers: {', '.join(map(label, found))}.",
                hint="Add them one by one; NAME chooses the one that has this name.",
            )
        found, in_section = found.get(name, inner[0]), False
    if not is_object(found):
        raise typer.BadParameter(
            "expected the entry of one server: an object with command or url.", param_hint="JSON"
        )
    return found


def _holds_servers(found: Mapping[str, object], *, in_section: bool) -> bool:
    """Whether it has servers by their names, and is not itself an entry."""
    are_objects = [is_object(value) for value in found.values()]
    is_entry = KNOWN_KEYS & found.keys() and not (in_section and all(are_objects))
    return any(are_objects) and not is_entry


_NEW_FILE = '{\n  "mcpServers": {\n  }\n}\n'


@config.changes_config("config", waits=True)
def edit(
    file: config.EditedFile,
    *,
    resume: Annotated[bool, flag("--resume")] = False,
) -> config.Edit | None:
    """Edit the configuration in your editor.

    The editor is $VISUAL, else $EDITOR. You edit a copy. When the editor ends, the copy is checked.
    It takes the place of the file unless it cannot be read or a changed entry cannot be used; then
    it is kept, and --resume opens it again. What others change in the file meanwhile stays.

    Takes:
      resume: Go on with an edit that was not taken.

    Example: emceepee config edit
    """
    copy = file.path.with_name(f"{file.path.stem}.edit{file.path.suffix}")
    command = _editor()
    base = _prepare(copy, file.text, resume=resume)
    while True:
        _run(command, copy, base)
        edited = read_file(copy)
        if edited is None or edited == base:
            _drop(copy)
            terminal.line(f"Nothing was changed: {file.path}")
            return None
        if not (problems := list(_problems(edited, file.text or "", str(copy)))):
            break
        terminal.note("\n".join(problems))
        if not (is_person_there() and confirm("Edit it again?", usual=True)):
            terminal.note(_kept(copy))
            raise typer.Exit(ExitCode.FAILED)
    with _keeping(copy), guard(file.path):
        after = _merged(edited, base, file.read_again() or _NEW_FILE, copy)
    return config.Edit(
        what="Changed the configuration",
        after=after,
        writing=partial(_putting_in_place, copy),
        then=lambda: config.note_warnings(load_text(after, environ=os.environ, source="it")),
    )


def _prepare(copy: Path, text: str | None, *, resume: bool) -> str:
    """Make the copy that is edited; what the file was when that was made."""
    there = read_file(copy) is not None
    if resume and not there:
        raise EditRefused(
            f"There is no edit to go on with: {copy} does not exist.",
            hint="Begin one: emceepee config edit",
        )
    if there and not resume:
        raise EditRefused(
            f"An edit that was not taken is still there: {copy}.",
            hint="Go on with it: emceepee config edit --resume; or remove that file to begin anew.",
        )
    if there:  # without a base, what is in the file stays, unless the edit says otherwise
        return read_file(_base_of(copy)) or _NEW_FILE
    make_private(copy.parent)
    for path in (_base_of(copy), copy):
        write_whole(path, (text or _NEW_FILE).encode())
    return text or _NEW_FILE


def _base_of(copy: Path) -> Path:
    return copy.with_suffix(".base")


def _drop(copy: Path) -> None:
    for path in (copy, _base_of(copy)):
        path.unlink(missing_ok=True)


def _merged(edited: str, base: str, now: str, copy: Path) -> str:
    """The edit with what others have changed in the file since it began: both, or a refusal."""
    ours, before, theirs = map(_members, (edited, base, now))
    for steps in dict.fromkeys((*before, *theirs)):
        if theirs.get(steps) in (before.get(steps), ours.get(steps)):
            continue
        if ours.get(steps) != before.get(steps):
            raise EditRefused(
                f"{'.'.join(steps)} was changed in the file meanwhile, and otherwise in your edit.",
                hint=f"Write it into {copy} as it is in the file.",
            )
        in_file = theirs.get(steps)
        edited = (
            jsonc.remove(edited, steps) if in_file is None else jsonc.put(edited, steps, in_file)
        )
    return edited


def _members(text: str) -> dict[tuple[str, ...], object]:
    """What stands in a configuration by its place: each server, each setting, or a whole list."""
    found: dict[tuple[str, ...], object] = {}
    for key, value in mapping(jsonc.read(text)).items():
        found |= (
            {(key, name): one for name, one in value.items()}
            if is_object(value)
            else {(key,): value}
        )
    return found


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    try:
        words = shell_words(chosen) if chosen else []
    except ValueError:
        raise EditRefused(
            f"The name of the editor has a quote that does not end: {chosen}.",
            hint="Set EDITOR to a command, for example: EDITOR=nano",
        ) from None
    if not words and not is_person_there():
        raise EditRefused(
            "An editor needs a terminal.",
            hint="Run this at one, or set EDITOR to a command that needs none.",
        )
    found = next(filter(shutil.which, system.EDITORS), None)
    if not words and found is None:
        raise EditRefused("No editor was found.", hint="Name one, for example: EDITOR=nano")
    return words or [str(found)]


def _run(command: list[str], copy: Path, text: str) -> None:
    """Wait for the editor; Ctrl-C in it is the editor's."""
    before = signal.signal(signal.SIGINT, _leave_to_the_editor)
    try:
        code = subprocess.run([*command, str(copy)], check=False).returncode  # noqa: S603 - theirs
        reason = f"its exit code is {code}" if code else None
    except OSError as error:
        reason = (error.strerror or type(error).__name__).lower()
    finally:
        signal.signal(signal.SIGINT, before)
    if reason is None:
        return
    is_same = read_file(copy) == text
    if is_same:
        _drop(copy)
    raise EditRefused(
        f"The editor `{shell_line(command)}` failed: {reason}.",
        hint="Nothing was changed; name another one, for example: EDITOR=nano"
        if is_same
        else f"The configuration is as it was; your edit is kept in {copy}.",
    )


def _leave_to_the_editor(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which the editor would inherit."""


def _problems(edited: str, before: str, source: str) -> Iterator[str]:
    """Why the edit cannot be used; what was wrong before is no obstacle."""
    try:
        load_text(edited, environ=os.environ, source=source)
    except ConfigInvalid as error:
        yield error.fact
        return
    known = _entries(before)
    for name, entry in _entries(edited):
        if (name, entry) in known:
            continue
        try:
            own_file.judge(name, entry, environ=os.environ)
        except ConfigInvalid as error:
            yield error.fact


def _entries(text: str) -> list[tuple[str, object]]:
    try:
        return [(place.name, place.entry) for place in own_file.places(text)]
    except Unreadable:
        return []


@contextmanager
def _putting_in_place(copy: Path) -> Generator[None]:
    with _keeping(copy):
        yield
    _drop(copy)


@contextmanager
def _keeping(copy: Path) -> Generator[None]:
    """An edit that cannot be taken now is kept, and the next step is to go on with it."""
    try:
        yield
    except EditRefused as error:
        raise EditRefused(error.fact, hint=_kept(copy, error.next_step)) from None


def _kept(copy: Path, first: str = "") -> str:
    return (
        f"The configuration is as it was. Your edit is kept in {copy}. {first} "
        "Go on with it: emceepee config edit --resume; drop it: remove that file."
    ).replace("  ", " ")
