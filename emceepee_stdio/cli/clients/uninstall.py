"""`emceepee uninstall`: removes our entry from a client, and puts moved servers back.

`config.moved_servers` tells from the backups which those are. A restore keeps the file as it left
it as one more backup: so a server that the person removes afterwards is not put back again.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.clients.install import (
    ClientArgument,
    DryRunOption,
    NameOption,
    local_place,
    locate,
    named_config,
)
from emceepee_stdio.cli.doctor.report import with_command
from emceepee_stdio.cli.keyring_secrets import secrets_of
from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import (
    CLIENTS,
    Client,
    is_ours,
    kept_off,
    moved_servers,
    put_back,
    servers_by_place,
    unregister,
    with_servers,
)
from emceepee_stdio.config.edit import (
    Change,
    EditRefused,
    backup_files,
    backups,
    guard,
    keep_copy,
    read_backup,
    read_file,
)
from emceepee_stdio.config.entries import RESERVED_NAME, is_off
from emceepee_stdio.config.jsonc import Steps
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ProxyError


def uninstall(
    client: ClientArgument,
    *,
    name: NameOption = RESERVED_NAME,
    restore: Annotated[
        bool,
        typer.Option("--restore", help="Put back the servers that were moved behind emceepee."),
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
) -> None:
    """Remove emceepee from an MCP client.

    Everything else in its file stays. With --restore the servers come back that `config import
    --replace` took out: each as the client's file had it then, if emceepee's configuration still
    has a server of its name. One that you have switched off in emceepee stays off. If the client's
    file cannot say so, it is not put back.

    Example: emceepee uninstall claude-desktop --restore
    """
    row = CLIENTS[client]
    path = locate(row)
    terminal = Terminal()
    with guard(path):
        text = read_file(path)
        known = row.servers(text or "")
        moved = _moved(row, path, text or "", known.get(name))
        back: Mapping[Steps, object] = moved.back if restore else {}
        if name not in known and not (restore and moved.servers):
            _tell_absent(row, known, path, terminal)
            if restore and moved.only_ours:
                _tell_none_to_put_back(moved, terminal)
            return
        edited = unregister(row, text or "", read_backup(path), name=name)
        after = with_servers(row, edited.text or "", back) if back else edited.text
    change = Change(path=path, before=text, after=after, backs_up=edited.backs_up or bool(back))
    if dry_run:
        entries = [*known.values(), *back.values()]
        show_changes([change], entries, terminal, show_secrets=show_secrets)
        if restore and not moved.servers:
            _tell_none_to_put_back(moved, terminal)
    else:
        backup = _restore(change) if back else change.apply()
        if name in known:
            gone = f", and {path}, which held nothing else." if after is None else f": {path}"
            terminal.line(f"Removed emceepee from {row.title}{gone}")
        _tell_servers(moved, terminal, restore=restore)
        if backup is not None:
            terminal.line(f"The file as it was: {backup}")
    if restore:
        _note_restored(moved, terminal)


def _restore(change: Change) -> Path | None:
    """Write the file, and keep it as it is then; the backup of what it was, where one was made."""
    backup = change.apply()
    with suppress(OSError, EditRefused):  # the servers are back, also if this cannot be kept
        keep_copy(change.path, change.after or "")
        if backup is not None:
            _, backup, *_ = backup_files(change.path)
    return backup


@dataclass(frozen=True, slots=True, kw_only=True)
class _MovedServers:
    """Servers of a client that are behind emceepee now, and what of them can go back.

    Those of `off` were switched off since; `config` is the configuration that has them. Of
    `only_ours`, the names there that the client lacks, only backups tell which were the client's.
    """

    client: Client
    path: Path
    config: Path
    servers: Mapping[Steps, object]
    off: Mapping[Steps, object]
    back: Mapping[Steps, object]
    only_ours: Sequence[str]


def _moved(client: Client, path: Path, text: str, ours: object) -> _MovedServers:
    config = named_config(ours) or default_path(os.environ)
    behind = _behind(config)
    servers = moved_servers(client, text, backups(path), behind)
    off = kept_off(client, servers, {name for name, is_on in behind.items() if not is_on})
    back = put_back(client, servers, off)
    present = {steps[-1] for steps in servers_by_place(client, text)}
    return _MovedServers(
        client=client,
        path=path,
        config=config,
        servers=servers,
        off=off,
        back=back,
        only_ours=[str(name) for name in behind if name not in present],
    )


def _tell_servers(moved: _MovedServers, terminal: Terminal, *, restore: bool) -> None:
    title = moved.client.title
    if restore and moved.back:
        terminal.line(f"Put back into {title}: {_names(moved.back)}.")
        kept = ", ".join(dict.fromkeys(label(str(steps[-1])) for steps in moved.back))
        terminal.note(
            f"emceepee keeps {kept}, for other clients; `emceepee config remove NAME` removes one."
        )
    elif restore and not moved.servers:
        _tell_none_to_put_back(moved, terminal)
    elif moved.servers and not restore:
        behind = f"Moved behind emceepee: {_names(moved.servers)}. To put them back into {title}"
        again = shlex.join(["emceepee", "uninstall", moved.client.key, "--restore"])
        terminal.note(with_command(behind, again))


def _tell_none_to_put_back(moved: _MovedServers, terminal: Terminal) -> None:
    title = moved.client.title
    if not moved.only_ours:
        terminal.note(f"emceepee has no server that {title} lacks: none to put back.")
        return
    names = ", ".join(map(label, moved.only_ours))
    terminal.note(
        f"There is no backup of {moved.path} with a server to put back. emceepee's configuration "
        f"has, and {title} has not: {names}. To have one in {title} again, "
        f"add it there with the command or the URL that {moved.config} has for it; where that "
        f"refers to the keyring, {title} needs the secret itself."
    )


def _names(servers: Iterable[Steps]) -> str:
    """Their names; those of one directory with it."""
    return ", ".join(map(_title, servers))


def _title(steps: Steps) -> str:
    *section, name = steps
    place = local_place(tuple(section))
    return f"{label(str(name))} ({place})" if place else label(str(name))


def _note_restored(moved: _MovedServers, terminal: Terminal) -> None:
    """What a person may not expect: servers that are off, and secrets that can be read again."""
    title = moved.client.title
    if stays_off := [steps for steps in moved.off if steps in moved.back]:
        terminal.note(f"Off in {title}, as in emceepee: {_names(stays_off)}.")
    if stays_out := [steps for steps in moved.off if steps not in moved.back]:
        terminal.note(
            with_command(
                f"Not put back: {_names(stays_out)}, which you switched off in emceepee. The file "
                f"of {title} cannot say that a server is off, so it would run. To put it back, "
                "switch it on first",
                _commands_to_put_back(moved, stays_out),
            )
        )
    secrets = [
        one.place
        for steps, entry in moved.back.items()
        for one in secrets_of({str(steps[-1]): moved.client.our_entry(entry)})
    ]
    if secrets:
        terminal.note(
            with_command(
                f"With these servers, secrets stand in plain text in {moved.path}: "
                f"{', '.join(dict.fromkeys(secrets))}. To have only emceepee there again",
                shlex.join(["emceepee", "config", "import", moved.client.key, "--replace"]),
            )
        )


def _commands_to_put_back(moved: _MovedServers, servers: Iterable[Steps]) -> str:
    usual = moved.config == default_path(os.environ)
    own = () if usual else ("--config", str(moved.config))
    names = dict.fromkeys(str(steps[-1]) for steps in servers)
    lines = [["emceepee", "config", "enable", name, *own] for name in names]
    if own:  # only our entry tells which configuration it was
        lines.append(["emceepee", "install", moved.client.key, *own])
    lines.append(["emceepee", "uninstall", moved.client.key, "--restore"])
    return "\n".join(map(shlex.join, lines))


def _behind(file: Path) -> dict[str | int, bool]:
    """The servers of a configuration, and whether each is on."""
    try:
        with guard(file):
            return {place.name: not is_off(place.entry) for place in places(read_file(file))}
    except ProxyError:
        return {}


def _tell_absent(
    client: Client, known: Mapping[str, object], path: Path, terminal: Terminal
) -> None:
    ours = [name for name, entry in known.items() if is_ours(entry)]
    if ours:
        raise EditRefused(
            f"{client.title} has emceepee under another name: {', '.join(map(label, ours))}.",
            hint=f"Run: emceepee uninstall {client.key} --name {shlex.quote(ours[0])}",
        )
    terminal.line(f"emceepee is not registered in {client.title}: {path}")
