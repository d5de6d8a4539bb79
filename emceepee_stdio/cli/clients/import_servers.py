"""`emceepee config import`: copies or moves the servers of a client into our configuration."""

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from emceepee_stdio.cli.clients.install import (
    ClientArgument,
    ClientScope,
    DryRunOption,
    locate,
    other_directories,
    our_entry,
    refusal,
    scopes_of,
)
from emceepee_stdio.cli.doctor.report import with_command
from emceepee_stdio.cli.keyring_secrets import copies_of_moved, offer_to_move
from emceepee_stdio.cli.secret_values import (
    KeyringStorage,
    PlainSecret,
    ShowSecretsOption,
    plain_secrets,
    show_changes,
)
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS, Client, is_ours, leave_alone
from emceepee_stdio.config.edit import (
    Change,
    EditRefused,
    apply_all,
    backup_files,
    guard,
    read_file,
)
from emceepee_stdio.config.entries import RESERVED_NAME
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.own_file import Outcome, places, take_over
from emceepee_stdio.config.server import label
from emceepee_stdio.visible_text import on_one_line

_SHOWN_PLACES = 5  # a person has many projects
_STYLES = {"taken": "green", "there": "green", "skipped": "yellow", "itself": "dim"}
_COVERED = frozenset({"taken", "there"})
_DRY_RESULTS = {"taken": "would be taken"}


def import_servers(
    client: ClientArgument,
    *,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Then leave only emceepee in the client, with a backup."),
    ] = False,
    move_secrets: Annotated[
        bool,
        typer.Option("--move-secrets", help="Keep their secrets in the keyring, without asking."),
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the servers of an MCP client.

    With --replace the client keeps only emceepee, and those servers that could not be taken over.
    Secrets that came in plain text can be moved into the keyring: at a terminal you are asked.

    Of Claude Code it takes the servers of the user and of the directory that you are in (its local
    scope). Those of a project's .mcp.json are shown one by one, and you are asked for each.

    Example: emceepee config import claude-desktop --replace --dry-run
    """
    row, terminal = CLIENTS[client], Terminal()
    theirs = locate(row)
    text = read_file(theirs)
    scopes = scopes_of(row, theirs, text or "", Path.cwd(), terminal)
    if not as_json:
        _note_elsewhere(row, other_directories(row, text or "", Path.cwd()), terminal)
    if text is None and len(scopes) == 1:
        raise EditRefused(
            f"{row.title} has no configuration at {theirs}.",
            hint="There is nothing to take over; see `emceepee install` for the clients you have.",
        )
    ours = default_path(os.environ) if config is None else config.expanduser()
    before = read_file(ours)
    unasked = "without --json you are asked" if as_json else "you will be asked" if dry_run else ""
    after, found = _take_all(row, scopes, before, ours, terminal, unasked=unasked)
    changes = [Change(path=ours, before=before, after=after)]
    taken = [one.name for one in found if one.result == "taken"]
    if move_secrets and any(one.server in taken for one in plain_secrets(after)):
        KeyringStorage().require()
    if replace:
        changes.append(_replacing(row, theirs, text, found, config, terminal, dry_run=dry_run))
    if dry_run:
        entries = [entry for scope in scopes for entry in scope.servers.values()]
        entries += [place.entry for place in places(before)]
        show_changes(changes, entries, terminal, show_secrets=show_secrets)
        for one in found:
            result = _DRY_RESULTS.get(one.result, one.result)
            reason = f": {one.reason}" if one.reason else ""
            terminal.note(f"{_title(one)}: {result}{reason}")
        return
    backups = apply_all(changes)
    _report(row, theirs, changes, found, backups, as_json=as_json, terminal=terminal)
    offer_to_move(ours, taken, terminal, asks=not as_json, moves=move_secrets)
    if taken or any(change.kind == "changed" for change in changes[1:]):
        _note_copies(row, theirs, ours, found, terminal)


def _note_elsewhere(client: Client, places: Sequence[str], terminal: Terminal) -> None:
    """Servers that this run does not see: most are added for the directory of a project."""
    if not places:
        return
    more = len(places) - _SHOWN_PLACES
    shown = ", ".join(map(on_one_line, places[:_SHOWN_PLACES]))
    shown += f" and {more} more" if more > 0 else ""
    terminal.note(
        f"{client.title} has servers for other directories, too: {shown}. To take them over, run "
        "this command there."
    )


def _note_copies(
    client: Client, path: Path, ours: Path, found: Sequence["_Found"], terminal: Terminal
) -> None:
    """Secrets that are in the keyring now, and still stand in files of the client or a project."""
    covered = [one for one in found if one.result in _COVERED]
    imported = {one.name: client.our_entry(one.scope.servers[one.name]) for one in covered}
    backups = backup_files(path)
    files = dict.fromkeys([path, *(one.scope.path for one in covered), *backups])
    copies = copies_of_moved(ours, imported, files)
    old = [copy for copy in copies if copy in backups]
    if path in copies:
        terminal.note(
            with_command(
                f"{client.title} still has secrets in plain text in {path}: "
                f"{_places(copies[path])}. To leave only emceepee there",
                f"emceepee config import {client.key} --replace",
            )
        )
    for file, secrets in copies.items():
        if file != path and file not in old:
            terminal.note(_in_project_file(client, file, secrets))
    if old:
        terminal.note(
            with_command(
                f"The backup of {path} has secrets in plain text: "
                f"{_places(one for copy in old for one in copies[copy])}. You need it to undo the "
                "import. When all works, remove it",
                shlex.join(["rm", *map(str, old)]),
            )
        )


def _in_project_file(client: Client, file: Path, secrets: Sequence[PlainSecret]) -> str:
    first, variable = secrets[0], secrets[0].variable
    return (
        f"The project's {file} still has secrets in plain text: {_places(secrets)}. For "
        f"{first.place}, write {first.with_variable(variable)} there in place of the value, and "
        f"set {variable} where {client.title} is started."
    )


def _places(secrets: Iterable[PlainSecret]) -> str:
    return ", ".join(dict.fromkeys(one.place for one in secrets))


class _Found(NamedTuple):
    """One server of the client, and what became of it."""

    scope: ClientScope
    name: str
    result: str
    reason: str


def _take_all(
    client: Client,
    scopes: Sequence[ClientScope],
    text: str | None,
    ours: Path,
    terminal: Terminal,
    *,
    unasked: str,
) -> tuple[str | None, list[_Found]]:
    """Our text with the servers of all scopes; what became of each."""
    found: list[_Found] = []
    for scope, (name, entry) in ((one, item) for one in scopes for item in one.servers.items()):
        with guard(ours):
            changed, (outcome,) = take_over(
                client, {name: entry}, text, environ=os.environ, source=str(ours)
            )
        if outcome.result == "taken":
            if reason := refusal(scope, name, entry, terminal, unasked=unasked):
                outcome = Outcome(name, "skipped", reason)
            else:
                text = changed
        elif outcome.result == "skipped" and any(place.name == name for place in places(text)):
            outcome = outcome._replace(reason=_name_conflict(client, scope, name, found, ours))
        found.append(_Found(scope, *outcome))
    return text, found


def _name_conflict(
    client: Client, scope: ClientScope, name: str, found: Sequence[_Found], ours: Path
) -> str:
    """Where the other server of this name stands, and what to do about this one."""
    first = [one.scope.where for one in found if one.name == name and one.result in _COVERED]
    other = (
        f"another server of this name comes first: {first[0]}."
        if first
        else f"{ours} has another server of this name."
    )
    removal = ""
    if client.projects and scope.title != "project":  # a project's file is not the person's own
        words = [client.programs[0], "mcp", "remove", name, "-s", scope.title]
        removal = f", or remove it: `{shlex.join(words)}`"
    return f"{other} Rename this one in {scope.path}{removal}."


def _replacing(
    client: Client,
    path: Path,
    text: str | None,
    found: Sequence[_Found],
    config: Path | None,
    terminal: Terminal,
    *,
    dry_run: bool,
) -> Change:
    """The client's file with emceepee in the place of what is now behind it.

    A project's file is not the person's own, and stays.
    """
    servers = client.servers(text or "")
    name = next((name for name, entry in servers.items() if is_ours(entry)), RESERVED_NAME)
    own = [one for one in found if one.scope.path == path and one.result != "skipped"]
    covered = [(*one.scope.steps, one.name) for one in own]
    entry = our_entry(client, config, dry_run=dry_run, terminal=terminal)
    with guard(path):
        others = [steps for steps in covered if steps != (client.section, name)]
        after = leave_alone(client, text or "", name=name, entry=entry, others=others)
    return Change(path=path, before=text, after=after)


def _title(found: _Found) -> str:
    scope = "" if found.scope.title == "user" else f" ({found.scope.title})"
    return f"{label(found.name)}{scope}"


def _names(found: Iterable[_Found]) -> str:
    return ", ".join(label(one.name) for one in found)


def _report(
    client: Client,
    path: Path,
    changes: Sequence[Change],
    found: Sequence[_Found],
    backups: Sequence[Path],
    *,
    as_json: bool,
    terminal: Terminal,
) -> None:
    if as_json:
        terminal.document(
            {
                "client": client.key,
                "from": str(path),
                "to": str(changes[0].path),
                "servers": [_as_data(one) for one in found],
                "backups": [str(backup) for backup in backups],
            }
        )
        return
    if not found:
        terminal.line(f"{client.title} has no servers in {path}.")
    else:
        terminal.table(
            ("SERVER", "RESULT", "WHY"),
            [(_title(one), one.result, one.reason) for one in found],
            styles=_STYLES,
        )
    taken = [one for one in found if one.result == "taken"]
    terminal.line(
        f"{len(taken)} taken over into {changes[0].path}." if taken else "Nothing was taken over."
    )
    if taken and not changes[1:]:
        terminal.note(
            f"{client.title} has them as well; `emceepee config import {client.key} --replace` "
            "leaves only emceepee there."
        )
    for change in changes[1:]:
        own = [one for one in found if one.scope.path == path and one.result == "skipped"]
        more = f" and {_names(own)}" if own else ""
        terminal.line(f"{client.title} now has emceepee{more}: {change.path}")
    for backup in backups:
        terminal.line(f"The file as it was: {backup}")
    _tell_scopes(client, taken, terminal, replaced=bool(changes[1:]))


def _as_data(found: _Found) -> dict[str, str]:
    more = {"scope": found.scope.title, "file": str(found.scope.path)}
    return {"name": found.name, "result": found.result, "reason": found.reason, **more}


def _tell_scopes(
    client: Client, taken: Sequence[_Found], terminal: Terminal, *, replaced: bool
) -> None:
    """What changes for servers that were for one project only."""
    if near := _names(one for one in taken if one.scope.title != "user"):
        terminal.note(
            f"Behind emceepee, {near} can be used in every project, not in this one only."
        )
    files = {one.scope.path: None for one in taken if one.scope.title == "project"}
    for path in files if replaced else ():
        names = [one.name for one in taken if one.scope.path == path]
        terminal.note(
            f"{path} belongs to the project and stays as it is. So that its servers do not run "
            f"twice, refuse them in {client.title}: write this into "
            f"{path.parent / '.claude' / 'settings.local.json'}\n"
            f"  {json.dumps({'disabledMcpjsonServers': names})}"
        )
