"""`emceepee config import` and `emceepee uninstall`: servers of a client come and go back."""

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, NamedTuple

from emceepee_stdio.cli import secret_values
from emceepee_stdio.cli.clients import install
from emceepee_stdio.cli.command_line import flag
from emceepee_stdio.cli.config import some_of
from emceepee_stdio.cli.keyring_secrets import (
    move_into_keyring,
    note_plain_secrets,
    own_command,
    tell_moved,
)
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, config_file, tell_backups
from emceepee_stdio.cli.terminal import terminal, with_command
from emceepee_stdio.config import clients, edit, own_file
from emceepee_stdio.config.entries import RESERVED_NAME, is_off
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import CannotEdit, Steps, Unreadable
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.visible_text import on_one_line, shell_line, shell_word

_SHOWN_PLACES = 5  # a person has many projects
_STYLES = {"taken": "green", "there": "green", "skipped": "yellow", "itself": "dim"}
_COVERED = frozenset({"taken", "there"})


def import_servers(
    client: install.ClientArgument,
    *,
    replace: Annotated[bool, flag("--replace")] = False,
    move_secrets: Annotated[bool, flag("--move-secrets")] = False,
    dry_run: install.DryRunOption = False,
    show_secrets: secret_values.ShowSecretsOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Import the servers of an MCP client.

    With --replace the client keeps only emceepee, and those servers that could not be taken over.
    Secrets that came in plain text stay so without --move-secrets; `emceepee doctor` names them.

    Of Claude Code it takes the servers of the user and of the directory that you are in (its local
    scope). Those of a project's .mcp.json are shown one by one, and you are asked for each.

    Takes:
      replace: Then leave only emceepee in the client, with a backup.
      move_secrets: Keep their secrets in the keyring.

    Example: emceepee config import claude-desktop --replace --dry-run
    """
    file = install.ClientFile.of(client)
    row, theirs, text = file
    scopes = install.scopes_of(file, Path.cwd())
    # Servers that this run does not see: most are added for the directory of a project.
    elsewhere = install.other_directories(row, text or "", Path.cwd())
    if elsewhere and not as_json:
        shown = some_of([*map(on_one_line, elsewhere)], _SHOWN_PLACES)
        terminal.note(
            f"{row.title} has servers for other directories, too: {shown}. To take them over, run "
            "this command there."
        )
    if text is None and len(scopes) == 1:
        raise edit.EditRefused(
            f"{row.title} has no configuration at {theirs}.",
            hint="There is nothing to take over; see `emceepee install` for the clients you have.",
        )
    ours = config_file(config)
    before = edit.read_file(ours)
    unasked = "without --json you are asked" if as_json else "you will be asked" if dry_run else ""
    made = _Import(client=row, ours=ours, text=before, unasked=unasked)
    made.take_all(scopes)
    changes = [edit.Change(path=ours, before=before, after=made.text)]
    taken = [one.name for one in made.taken]
    if move_secrets and any(one.server in taken for one in secret_values.plain_secrets(made.text)):
        secret_values.KeyringStorage().require()
    behind = [one for one in made.found if one.scope.path == theirs and one.result != "skipped"]
    moved = [(*one.scope.steps, one.name) for one in behind]
    if replace:
        entry = install.our_entry(row, config, dry_run=dry_run)
        changes.append(_replacing(file, moved, entry))
    if dry_run:
        entries = [entry for scope in scopes for entry in scope.servers.values()]
        entries += [place.entry for place in own_file.places(before)]
        secret_values.show_changes(changes, entries, show_secrets=show_secrets)
        for one in made.found:
            result = "would be taken" if one.result == "taken" else one.result
            terminal.note(f"{one}: {result}{one.reason and f': {one.reason}'}")
        return
    backups = edit.apply_all([*changes, *([list_moved(file, moved)] if replace else ())])
    if as_json:
        terminal.document(
            {
                "client": client,
                "from": str(theirs),
                "to": str(ours),
                "servers": [one.facts() for one in made.found],
                "backups": [str(backup) for backup in backups],
            }
        )
    else:
        made.report(theirs, backups, replaced=replace)
    if move_secrets:
        text = edit.read_file(ours) or ""
        plain = [one for one in secret_values.plain_secrets(text) if one.server in taken]
        moved_secrets = move_into_keyring(ours, text, plain)
        if not as_json:
            tell_moved(ours, plain, moved_secrets)
    else:
        note_plain_secrets(ours, taken)


class _Found(NamedTuple):
    """One server of the client, and what became of it."""

    scope: install.ClientScope
    name: str
    result: str
    reason: str

    def __str__(self) -> str:
        scope = "" if self.scope.title == "user" else f" ({self.scope.title})"
        return f"{label(self.name)}{scope}"

    def facts(self) -> dict[str, str]:
        more = {"scope": self.scope.title, "file": str(self.scope.path)}
        return {"name": self.name, "result": self.result, "reason": self.reason, **more}


@dataclass(kw_only=True, repr=False)
class _Import:
    """Servers of a client on their way into our file; `text` is what that is to hold."""

    client: clients.Client
    ours: Path
    text: str | None
    unasked: str  # when a person is asked, if they are not asked now
    found: list[_Found] = field(default_factory=list[_Found])

    def take_all(self, scopes: Iterable[install.ClientScope]) -> None:
        for scope in scopes:
            for name, entry in scope.servers.items():
                self._take(scope, name, entry)

    def _take(self, scope: install.ClientScope, name: str, entry: object) -> None:
        with edit.guard(self.ours):
            changed, outcome = own_file.take_over(
                self.client, name, entry, self.text, environ=os.environ, source=str(self.ours)
            )
        if outcome.result == "taken":
            if reason := install.refusal(scope, name, entry, unasked=self.unasked):
                outcome = own_file.Outcome("skipped", reason)
            else:
                self.text = changed
        elif outcome.result == "skipped" and own_file.find(self.text, name):
            outcome = outcome._replace(reason=self._name_conflict(scope, name))
        self.found.append(_Found(scope, name, *outcome))

    def _name_conflict(self, scope: install.ClientScope, name: str) -> str:
        """Where the other server of this name stands, and what to do about this one."""
        covered = {one.name: one for one in reversed(self.found) if one.result in _COVERED}
        other = f"{self.ours} has another server of this name."
        if name in covered:
            other = f"another server of this name comes first: {covered[name].scope.where}."
        removal = ""
        if self.client.projects and scope.title != "project":  # whose file is not their own
            words = [self.client.programs[0], "mcp", "remove", name, "-s", scope.title]
            removal = f", or remove it: `{shell_line(words)}`"
        return f"{other} Rename this one in {scope.path}{removal}."

    @property
    def taken(self) -> list[_Found]:
        return [one for one in self.found if one.result == "taken"]

    def report(self, theirs: Path, backups: Sequence[Path], *, replaced: bool) -> None:
        client, taken = self.client, self.taken
        if not self.found:
            terminal.line(f"{client.title} has no servers in {theirs}.")
        else:
            rows = [(str(one), one.result, one.reason) for one in self.found]
            terminal.table(("SERVER", "RESULT", "WHY"), rows, styles=_STYLES)
        count = f"{len(taken)} taken over into {self.ours}."
        terminal.line(count if taken else "Nothing was taken over.")
        if replaced:
            own = [
                one for one in self.found if one.scope.path == theirs and one.result == "skipped"
            ]
            more = f" and {', '.join(label(one.name) for one in own)}" if own else ""
            terminal.line(f"{client.title} now has emceepee{more}: {theirs}")
        elif taken:
            terminal.note(
                f"{client.title} has them as well; `emceepee config import {client.key} --replace` "
                "leaves only emceepee there."
            )
        tell_backups(backups)
        if near := ", ".join(label(one.name) for one in taken if one.scope.title != "user"):
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


def _replacing(
    file: install.ClientFile, moved: Sequence[Steps], entry: Mapping[str, object]
) -> edit.Change:
    """The client's file with emceepee in the place of what is now behind it.

    A project's file is not the person's own, and stays.
    """
    client, path, text = file
    name = next(iter(file.ours), RESERVED_NAME)
    others = [steps for steps in moved if steps != (client.section, name)]
    with edit.guard(path):
        after = clients.leave_alone(client, text or "", name=name, entry=entry, others=others)
    return edit.Change(path=path, before=text, after=after)


# Where servers of a client stood before they were moved behind emceepee: a list beside its file.
#
# It has no entries: those are in the backups, which a person may remove for the secrets in them.


def moved_places(path: Path) -> list[Steps]:
    """Of this file of a client."""
    return [*(decoded(edit.read_file(_moved_file(path)) or "", list[tuple[str, ...]]) or ())]


def list_moved(file: install.ClientFile, moved: Iterable[Steps]) -> edit.Change:
    """The list with these as well, and without those that are in the client's file again."""
    present = clients.servers_by_place(file.client, file.text or "")
    before = [steps for steps in moved_places(file.path) if steps not in present]
    return change_moved(
        file.path, [*before, *(one for one in moved if not clients.is_ours(present[one]))]
    )


def change_moved(path: Path, moved: Sequence[Steps]) -> edit.Change:
    """The list as it is to be; an empty one is no file."""
    file = _moved_file(path)
    after = f"{json.dumps(moved, indent=2)}\n" if moved else None
    return edit.Change(path=file, before=edit.read_file(file), after=after, backs_up=False)


def _moved_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.moved.json")


# `emceepee uninstall`: removes our entry from a client, and puts moved servers back.
#
# `config import --replace` has listed which those are; the backups of the client's file have them.
# A restore takes them off the list: so a server that the person removes afterwards stays away.


def uninstall(
    client: install.ClientArgument,
    *,
    name: install.NameOption = RESERVED_NAME,
    restore: Annotated[bool, flag("--restore")] = False,
    dry_run: install.DryRunOption = False,
    show_secrets: secret_values.ShowSecretsOption = False,
) -> None:
    """Remove emceepee from an MCP client.

    Everything else in its file stays. With --restore the servers come back that `config import
    --replace` took out: each as the client's file had it then, if emceepee's configuration still
    has a server of its name. If nothing else in the file was changed since, the file is again what
    it was, to the byte. One that you have switched off in emceepee stays off. If the client's
    file cannot say so, it is not put back.

    Takes:
      restore: Put back the servers that were moved behind emceepee.

    Example: emceepee uninstall claude-desktop --restore
    """
    file = install.ClientFile.of(client)
    row, path, text = file
    with edit.guard(path):
        known = file.servers
        moved = _moved(file, known.get(name))
        back: Mapping[Steps, object] = moved.back if restore else {}
        if name not in known and not (restore and moved.servers):
            _tell_absent(file)
            if restore:
                _note_none_to_put_back(moved)
            return
        edited = clients.unregister(row, text or "", edit.read_backup(path), name=name)
        after = _as_before_import(file, name, moved) if restore else None
        if after is None:
            after = edited.text
            for steps, entry in back.items():
                after = row.language.put(after or "", steps, entry)
    backs_up = edited.backs_up or bool(back)
    change = edit.Change(path=path, before=text, after=after, backs_up=backs_up)
    if dry_run:
        entries = [*known.values(), *back.values()]
        secret_values.show_changes([change], entries, show_secrets=show_secrets)
    else:
        left = change_moved(path, [one for one in moved_places(path) if one not in back])
        kept = edit.apply_all([change, *([left] if back else ())])
        if name in known:
            gone = f", and {path}, which held nothing else." if after is None else f": {path}"
            terminal.line(f"Removed emceepee from {row.title}{gone}")
        if back:
            terminal.line(f"Put back into {row.title}: {_names(back)}.")
        tell_backups(kept)
    if restore:
        _note_restored(moved)
    elif moved.servers:
        behind = f"Moved behind emceepee: {_names(moved.servers)}. To put them back into "
        restores = f"emceepee uninstall {client} --restore"
        terminal.note(with_command(f"{behind}{row.title}", restores))


def _as_before_import(file: install.ClientFile, name: str, moved: "_MovedServers") -> str | None:
    """The very text from before the import, if the file has been changed by nothing else since."""
    client, path, text = file
    entry = file.servers.get(name)
    if moved.off or not moved.servers or not is_object(entry):
        return None
    texts = [edit.readable_text(backup) or "" for backup in edit.backup_files(path)]
    for before, older in zip_longest(texts, texts[1:]):
        with suppress(Unreadable, CannotEdit, clients.NameTaken):
            others = moved.servers.keys() & clients.servers_by_place(client, before).keys()
            after = clients.leave_alone(client, before, name=name, entry=entry, others=others)
            if after == text and len(others) == len(moved.servers):
                return clients.unregister(client, before, older, name=name).text
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedServers:
    """Servers of a client that are behind emceepee now, and what of them can go back.

    Those of `off` were switched off since; `config` is the configuration that has them. `only_ours`
    are the names there that the client lacks.
    """

    file: install.ClientFile
    config: Path
    servers: Mapping[Steps, object]
    off: Collection[Steps]
    back: Mapping[Steps, object]
    only_ours: Sequence[str]


def _moved(file: install.ClientFile, ours: object) -> _MovedServers:
    client, path, text = file
    config = install.named_config(ours) or default_path(os.environ)
    present = clients.servers_by_place(client, text or "")
    behind: dict[str | int, bool] = {}  # the servers of the configuration, and whether each is on
    with suppress(ProxyError), edit.guard(config):
        for place in own_file.places(edit.read_file(config)):
            behind[place.name] = not is_off(place.entry)
    copies: dict[Steps, object] = {}
    for backup in reversed(edit.backup_files(path)):  # the newest counts
        with suppress(Unreadable):
            copies |= clients.servers_by_place(client, edit.readable_text(backup) or "")
    servers = {
        steps: copies[steps]
        for steps in moved_places(path)
        if steps in copies and steps not in present and steps[-1] in behind
    }
    off = [
        steps
        for steps, entry in servers.items()
        if not behind[steps[-1]] and not is_off(client.our_entry(entry))
    ]
    # One that is off stays off, or out if the client's file has no switch.
    back = {
        steps: {**entry, **client.off} if steps in off and is_object(entry) else entry
        for steps, entry in servers.items()
        if steps not in off or client.off
    }
    names = {steps[-1] for steps in present}
    only_ours = [str(name) for name in behind if name not in names]
    return _MovedServers(
        file=file, config=config, servers=servers, off=off, back=back, only_ours=only_ours
    )


def _note_none_to_put_back(moved: _MovedServers) -> None:
    title = moved.file.client.title
    if not moved.only_ours:
        terminal.note(f"emceepee has no server that {title} lacks: none to put back.")
        return
    names = ", ".join(map(label, moved.only_ours))
    terminal.note(
        f"There is no backup of {moved.file.path} with a server to put back. emceepee's "
        f"configuration has, and {title} has not: {names}. To have one in {title} again, "
        f"add it there with the command or the URL that {moved.config} has for it; where that "
        f"refers to the keyring, {title} needs the secret itself."
    )


def _names(servers: Iterable[Steps]) -> str:
    """Their names; those of one directory with it."""
    places = {steps: install.local_place(steps[:-1]) for steps in servers}
    named = {steps: label(str(steps[-1])) for steps in places}
    return ", ".join(named[one] + (f" ({place})" if place else "") for one, place in places.items())


def _note_restored(moved: _MovedServers) -> None:
    """What a person may not expect: servers that are off, and secrets that can be read again."""
    client, path, _ = moved.file
    title = client.title
    if not moved.servers:
        _note_none_to_put_back(moved)
    if moved.back:
        kept = ", ".join(dict.fromkeys(label(str(steps[-1])) for steps in moved.back))
        terminal.note(
            f"emceepee keeps {kept}, for other clients; `emceepee config remove NAME` removes one."
        )
    if stays_off := [steps for steps in moved.off if steps in moved.back]:
        terminal.note(f"Off in {title}, as in emceepee: {_names(stays_off)}.")
    if stays_out := [steps for steps in moved.off if steps not in moved.back]:
        names = dict.fromkeys(str(steps[-1]) for steps in stays_out)
        lines = [own_command(moved.config, "config", "enable", name) for name in names]
        if moved.config != default_path(os.environ):  # only our entry tells which one it was
            lines.append(own_command(moved.config, "install", client.key))
        lines.append(f"emceepee uninstall {client.key} --restore")
        terminal.note(
            with_command(
                f"Not put back: {_names(stays_out)}, which you switched off in emceepee. The file "
                f"of {title} cannot say that a server is off, so it would run. To put it back, "
                "switch it on first",
                "\n".join(lines),
            )
        )
    secrets = [
        one
        for steps, entry in moved.back.items()
        for one in secret_values.secrets_of({str(steps[-1]): client.our_entry(entry)})
    ]
    secret_values.note_plain(path, secrets, f"emceepee config import {client.key} --replace")


def _tell_absent(file: install.ClientFile) -> None:
    client, path, _ = file
    if ours := list(file.ours):
        raise edit.EditRefused(
            f"{client.title} has emceepee under another name: {', '.join(map(label, ours))}.",
            hint=f"Run: emceepee uninstall {client.key} --name {shell_word(ours[0])}",
        )
    terminal.line(f"emceepee is not registered in {client.title}: {path}")
