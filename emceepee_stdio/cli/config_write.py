"""`emceepee config` commands that change the file: switch, expose, rules, add-json, edit.

The editor works on a copy beside the file, so a running proxy never reads half an edit. A copy that
cannot be used stays there, and the file stays as it was.
"""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, get_args

import typer

from emceepee_stdio.cli.config import (
    PREVIEWED,
    Edit,
    EditedFile,
    KnownExposure,
    changes_config,
    known_exposure,
    note_warnings,
    say_listed,
    state_of,
)
from emceepee_stdio.cli.doctor.report import with_command
from emceepee_stdio.cli.keyring_secrets import note_copies, offer_to_move
from emceepee_stdio.cli.secret_values import references
from emceepee_stdio.cli.shared_options import ServerArgument, complete_patterns, place_of
from emceepee_stdio.cli.terminal import FAILED, Terminal, confirm
from emceepee_stdio.config import jsonc
from emceepee_stdio.config.clients import CLIENTS
from emceepee_stdio.config.edit import EditRefused, read_file, write_whole
from emceepee_stdio.config.entries import KNOWN_KEYS, OFF_KEYS, is_off
from emceepee_stdio.config.fields import is_object, keyring_names, keyring_reference
from emceepee_stdio.config.jsonc import Unreadable
from emceepee_stdio.config.load import SECTIONS, load_text
from emceepee_stdio.config.own_file import (
    ConfigLocation,
    Exposed,
    Outcome,
    exposed_at,
    judge,
    overruled,
    places,
    remove_rule,
    remove_server,
    rules_at,
    set_exposed,
    set_rule,
    take_over,
)
from emceepee_stdio.config.server import Rule, label, name_problem
from emceepee_stdio.config.tool_rules import pattern_problem
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.storage.private_file import make_private

# `emceepee config enable` and `disable`: keep an entry, and say whether it is used.


@changes_config(*PREVIEWED)
def enable(file: EditedFile, name: ServerArgument) -> Edit:
    """Enable a server.

    Running proxies connect to it within a second or two.

    Example: emceepee config enable github
    """
    text = file.text or ""
    after = _switched(text, place_of(text, name), off=False)
    if after == text:
        loaded = load_text(text, environ=os.environ, source=str(file.path))
        if state_of(name, loaded)[0] == "broken":
            raise EditRefused(
                f"{label(name)} is not disabled, but broken.", hint="See why: emceepee config check"
            )
    return Edit(what=f"Enabled {label(name)}", after=after)


@changes_config(*PREVIEWED)
def disable(file: EditedFile, name: ServerArgument) -> Edit:
    """Disable a server, and keep its entry.

    Running proxies stop it within a second or two.

    Example: emceepee config disable github
    """
    text = file.text or ""
    after = _switched(text, place_of(text, name), off=True)
    return Edit(what=f"Disabled {label(name)}", after=after)


def _switched(text: str, place: ConfigLocation, *, off: bool) -> str:
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


@changes_config(*PREVIEWED, "as_json")
def expose(
    file: EditedFile,
    name: ServerArgument,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="['PATTERN']...",
            help="Names of tools; * and ? stand for others.",
            autocompletion=complete_patterns,
        ),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All tools, and prompts, resources and templates.")
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take these patterns out; without any, all of it.")
    ] = False,
) -> Edit | None:
    """Choose tools that the client sees natively.

    A tool is listed as SERVER__TOOL, beside emceepee's own. Patterns are added to those that are
    there.

    Example: emceepee config expose github 'search_*'
    """
    text = file.text or ""
    place = place_of(text, name)
    given = tuple(patterns or ())
    changes = bool(given or everything or remove)
    before = _before(place, changes=changes)
    if not changes:
        known = _known_exposure(file, text, name)
        _show_exposed(name, before, known, as_json=file.as_json)
        return None
    wanted = _wanted(name, before, given, everything=everything, remove=remove)
    after = set_exposed(text, place, wanted)

    def tell(terminal: Terminal) -> None:
        if wanted and not file.as_json:
            say_listed(name, _known_exposure(file, after, name))
            if not file.dry_run:
                terminal.line(_WHEN)

    return Edit(what=f"Changed what {label(name)} exposes", after=after, then=tell)


def _known_exposure(file: EditedFile, text: str, name: str) -> KnownExposure | None:
    loaded = load_text(text, environ=os.environ, source=str(file.path))
    return known_exposure(loaded, os.environ).get(name)


def _before(place: ConfigLocation, *, changes: bool) -> Exposed:
    """What the entry exposes; what cannot be read is replaced by a change."""
    try:
        return exposed_at(place)
    except ConfigInvalid as error:
        if not changes:
            command = f"emceepee config expose {shlex.quote(place.name)} 'PATTERN'"
            raise EditRefused(error.fact, hint=f"To replace it: {command}") from None
        Terminal().note("What stands there cannot be read, and is replaced.")
        return False


def _wanted(
    name: str, before: Exposed, given: tuple[str, ...], *, everything: bool, remove: bool
) -> Exposed:
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
                f"`emceepee config expose {shlex.quote(name)} --remove`.",
            )
        return tuple(dict.fromkeys((*known, *given)))
    if not given:
        return False
    if missing := [pattern for pattern in given if pattern not in known]:
        raise EditRefused(
            f"{label(name)} does not expose {label(missing[0])}.",
            hint=f"See `emceepee config expose {shlex.quote(name)}` for what it exposes.",
        )
    return tuple(pattern for pattern in known if pattern not in given)


def _show_exposed(
    name: str, exposed: Exposed, known: KnownExposure | None, *, as_json: bool
) -> None:
    terminal = Terminal()
    if as_json:
        shown: dict[str, object] = {"server": name, "expose": exposed}
        if known is not None:
            shown |= {"listed_as": known.names, "matches_nothing": known.idle, "known_at": known.at}
        terminal.document(shown)
        return
    if exposed is True:
        terminal.line("All tools, prompts, resources and templates.")
    elif exposed:
        for pattern in exposed:
            terminal.line(pattern)
    else:
        command = f"emceepee config expose {shlex.quote(name)} 'PATTERN'"
        terminal.line(f"Nothing is exposed. To expose tools: {command}")
        return
    say_listed(name, known)


# `emceepee config rules`: which tools of a server run, are asked for, or are off.


_STYLES = {"allow": "green", "ask": "yellow", "off": "red"}


@changes_config(*PREVIEWED, "as_json")
def rules(
    file: EditedFile,
    name: ServerArgument,
    pattern: Annotated[
        str | None,
        typer.Argument(
            metavar="['PATTERN']",
            help="Names of tools; * and ? stand for others.",
            autocompletion=complete_patterns,
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Argument(
            metavar="[allow|ask|off]",
            help="What holds for them.",
            autocompletion=lambda: list(get_args(Rule)),
        ),
    ] = None,
    *,
    remove: Annotated[
        bool, typer.Option("--remove", help="Take the rule for this pattern out.")
    ] = False,
) -> Edit | None:
    """Show or change the rules for tools.

    allow: they run. ask: you are asked before each call. off: they are hidden and refused. If
    several rules match, the last one counts; a new rule becomes the last. A tool without a rule is
    allowed.

    Example: emceepee config rules github 'delete_*' off
    """
    text = file.text or ""
    place = place_of(text, name)
    if pattern is None:
        _show_rules(place, Terminal(), as_json=file.as_json)
        return None
    chosen = _chosen(rule, remove=remove)
    if problem := pattern_problem(pattern):
        raise typer.BadParameter(f"{problem}.", param_hint="PATTERN")
    what = f"Changed the rules of {label(name)}"
    if chosen is not None:
        after = set_rule(text, name, pattern, chosen)
        return Edit(what=what, after=after, then=partial(_warn, place, pattern, chosen))
    after = remove_rule(text, name, pattern)
    if after is None:
        raise EditRefused(
            f"{label(name)} has no rule for {label(pattern)}.",
            hint=f"See `emceepee config rules {shlex.quote(name)}` for those that it has.",
        )
    return Edit(what=what, after=after)


def _chosen(rule: str | None, *, remove: bool) -> Rule | None:
    """The rule to set; None to take one out."""
    if remove:
        if rule is not None:
            raise typer.BadParameter("give either a rule or --remove.")
        return None
    for known in get_args(Rule):
        if rule == known:
            return known
    raise typer.BadParameter("expected allow, ask or off, or --remove.", param_hint="RULE")


def _show_rules(place: ConfigLocation, terminal: Terminal, *, as_json: bool) -> None:
    found = rules_at(place)
    if as_json:
        listed = [{"pattern": pattern, "rule": rule} for pattern, rule in found.items()]
        terminal.document({"server": place.name, "rules": listed})
    elif found:
        terminal.table(("PATTERN", "RULE"), list(found.items()), styles=_STYLES)
    else:
        name = shlex.quote(place.name)
        terminal.line(f"No rules: every tool runs. Set one: emceepee config rules {name} '*' ask")


def _warn(place: ConfigLocation, pattern: str, rule: Rule, terminal: Terminal) -> None:
    """What the new rule, as the last one, takes the effect from."""
    for earlier, said in overruled(rules_at(place), pattern, rule).items():
        again = f"emceepee config rules {shlex.quote(place.name)} {shlex.quote(earlier)} {said}"
        terminal.note(
            f"It stands last, so it counts for {label(earlier)} as well, which was {said}. "
            f"To put that behind it: {again}"
        )


# `emceepee config add-json`: a server from the JSON that its documentation shows.


_MAX_JSON_CHARS = 1_000_000  # no entry is longer; a wrong file on stdin may be
# Under these names clients keep their servers; VS Code's settings had them inside of `mcp`.
_SECTIONS = frozenset(("mcp", *(client.section for client in CLIENTS.values())))


@changes_config(*PREVIEWED)
def add_json(
    file: EditedFile,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server is to be called.")],
    document: Annotated[
        str, typer.Argument(metavar="JSON", help="Its entry, in single quotes; - reads stdin.")
    ],
    *,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a server of this name.")
    ] = False,
) -> Edit:
    """Add a server from JSON.

    JSON is one entry, or the entry inside of "mcpServers" or "servers". Use - and stdin where it
    holds a secret: others see the command line.

    Example: emceepee config add-json time '{"command": "mcp-server-time"}'
    """
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="NAME")
    entry = _entry(name, _read(document))
    source = str(file.path)
    _refuse_references(name, entry, is_known=_has(file.text, name))
    base = (remove_server(file.text, name, source=source) if replace else None) or file.text
    after, [outcome] = take_over(
        CLIENTS["claude-desktop"], {name: entry}, base, environ=os.environ, source=source
    )
    if outcome.result in {"skipped", "itself"}:
        raise EditRefused(
            f"{label(name)} was not added: {outcome.reason}",
            hint=f"Nothing was changed; {_next_step(outcome, is_known=_has(base, name))}",
        )

    def tell(terminal: Terminal) -> None:
        if outcome.reason and outcome.result == "taken":
            terminal.note(outcome.reason)
        if not file.dry_run:
            offer_to_move(file.path, [name], terminal, asks=True, moves=False)
            note_copies(file.path, after, name, terminal)

    return Edit(what=f"Added {label(name)}", after=after, then=tell)


def _has(text: str | None, name: str) -> bool:
    return any(place.name == name for place in places(text))


def _refuse_references(name: str, entry: Mapping[str, object], *, is_known: bool) -> None:
    """`config add` may refer to the keyring: there a person types each reference."""
    secrets = references(json.dumps({SECTIONS[0]: {name: entry}}))
    if not secrets:
        return
    replace = ["--replace"] if is_known else []
    words = ["emceepee", "config", "add", name, *replace, *_options(entry)]
    raise EditRefused(
        f"{label(name)} was not added: it refers to the keyring ({', '.join(secrets)}). JSON that "
        "is pasted comes from elsewhere, so it must not read your keyring.",
        hint=with_command(
            "Nothing was changed. To give the server a secret from the keyring", shlex.join(words)
        ),
    )


def _options(entry: Mapping[str, object]) -> list[str]:
    """What gives `config add` the secrets to which the entry refers."""
    if "command" in entry:
        keys = list(_referring(entry, "env")) or ["K"]
        return [*(word for key in keys for word in ("--secret-env", key)), "--", "COMMAND"]
    headers = [f"{name}: {value}" for name, value in _referring(entry, "headers").items()]
    return [*(word for header in headers for word in ("--header", header)), "--url", "URL"]


def _referring(entry: Mapping[str, object], key: str) -> dict[str, str]:
    """Its variables or headers that are references, without what else is in them."""
    found = entry.get(key)
    texts = {name: str(text) for name, text in found.items()} if is_object(found) else {}
    scheme = "Bearer "
    return {
        name: f"{scheme if text.startswith(scheme) else ''}{keyring_reference(names[0])}"
        for name, text in texts.items()
        if (names := keyring_names(text))
    }


def _next_step(outcome: Outcome, *, is_known: bool) -> str:
    if outcome.result == "itself":
        return "add the servers that it is to serve, one by one."
    return "choose another name, or add --replace." if is_known else "correct the entry."


def _read(document: str) -> object:
    text = sys.stdin.read(_MAX_JSON_CHARS) if document == "-" else document
    try:
        return jsonc.read(text)
    except jsonc.Unreadable as error:
        # Its text may hold a secret, so only the place is shown.
        raise typer.BadParameter(
            f"this is not JSON at line {error.line}, column {error.column}: {error.reason}.",
            param_hint="JSON",
        ) from None


def _entry(name: str, document: object) -> dict[str, object]:
    """The one entry that the document holds, in whatever it is wrapped."""
    found = document
    while is_object(found) and (sections := _SECTIONS & found.keys()):
        found = found[min(sections)]
    in_section = found is not document
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


_FALLBACKS = ("notepad",) if sys.platform == "win32" else ("sensible-editor", "nano", "vi")
_STREAMS = (0, 2)  # a person answers on the one what is asked on the other
_NEW_FILE = '{\n  "mcpServers": {\n  }\n}\n'


@changes_config("config")
def edit(
    file: EditedFile,
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an edit that was not taken.")
    ] = False,
) -> Edit | None:
    """Edit the configuration in your editor.

    The editor is $VISUAL, else $EDITOR. You edit a copy. When the editor ends, the copy is checked.
    It takes the place of the file unless it cannot be read or a changed entry cannot be used; then
    it is kept, and --resume opens it again.

    Example: emceepee config edit
    """
    terminal = Terminal()
    copy = file.path.with_name(f"{file.path.stem}.edit{file.path.suffix}")
    text = file.text
    command = _editor()
    _prepare(copy, text, resume=resume)
    while True:
        _run(command, copy, text or _NEW_FILE)
        edited = read_file(copy)
        if edited is None or edited == (text or _NEW_FILE):
            copy.unlink(missing_ok=True)
            terminal.line(f"Nothing was changed: {file.path}")
            return None
        problems = list(_problems(edited, text, str(copy)))
        if not problems:
            break
        for problem in problems:
            terminal.note(problem)
        if not _again(terminal):
            terminal.note(_kept(copy))
            raise typer.Exit(FAILED)
    return Edit(
        what="Changed the configuration",
        after=edited,
        writing=partial(_putting_in_place, copy, terminal),
        then=partial(_note_warnings_of, edited),
    )


def _prepare(copy: Path, text: str | None, *, resume: bool) -> None:
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
    if not there:
        make_private(copy.parent)
        write_whole(copy, text or _NEW_FILE)


def _editor() -> list[str]:
    chosen = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    try:
        words = shlex.split(chosen) if chosen else []
    except ValueError:
        raise EditRefused(
            f"The name of the editor has a quote that does not end: {chosen}.",
            hint="Set EDITOR to a command, for example: EDITOR=nano",
        ) from None
    if not words and not all(map(os.isatty, _STREAMS)):
        raise EditRefused(
            "An editor needs a terminal.",
            hint="Run this at one, or set EDITOR to a command that needs none.",
        )
    found = next(filter(shutil.which, _FALLBACKS), None)
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
        copy.unlink()
    raise EditRefused(
        f"The editor `{shlex.join(command)}` failed: {reason}.",
        hint="Nothing was changed; name another one, for example: EDITOR=nano"
        if is_same
        else f"The configuration is as it was; your edit is kept in {copy}.",
    )


def _leave_to_the_editor(_number: int, _frame: FrameType | None) -> None:
    """Not SIG_IGN, which the editor would inherit."""


def _problems(edited: str, before: str | None, source: str) -> Iterator[str]:
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
            judge(name, entry, environ=os.environ)
        except ConfigInvalid as error:
            yield error.fact


def _entries(text: str | None) -> list[tuple[str, object]]:
    try:
        return [(place.name, place.entry) for place in places(text)]
    except Unreadable:
        return []


def _again(terminal: Terminal) -> bool:
    if not all(map(os.isatty, _STREAMS)):
        return False
    return bool(confirm("Edit it again?", terminal, usual=True))


@contextmanager
def _putting_in_place(copy: Path, terminal: Terminal) -> Generator[None]:
    try:
        yield
    except EditRefused:
        terminal.note(_kept(copy))
        raise
    copy.unlink()


def _note_warnings_of(edited: str, terminal: Terminal) -> None:
    note_warnings(load_text(edited, environ=os.environ, source="it"), terminal)


def _kept(copy: Path) -> str:
    return (
        f"The configuration is as it was. Your edit is kept in {copy}. "
        "Go on with it: emceepee config edit --resume; drop it: remove that file."
    )
