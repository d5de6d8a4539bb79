"""`emceepee config import`: the servers of a client, taken over into our configuration."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.install import ClientArgument, DryRunOption, locate, our_entry
from emceepee_stdio.cli.secret_moves import offer_to_move
from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS, Client, is_ours
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.load import default_path
from emceepee_stdio.config.own_file import Outcome, places, take_over
from emceepee_stdio.config.recursion import RESERVED_NAME
from emceepee_stdio.config.registration import leave_alone

__all__ = ["import_servers"]

_STYLES = {"taken": "green", "there": "green", "skipped": "yellow", "itself": "dim"}


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
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Another file than the default one."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Take the servers of an MCP client over into the configuration, with their env and args.

    With --replace the client keeps only emceepee, and those servers that could not be taken over.
    Secrets that came in plain text can be moved into the keyring: at a terminal you are asked.

    Example: emceepee config import claude-desktop --replace --dry-run
    """
    row, terminal = CLIENTS[client], Terminal()
    theirs = locate(row)
    text = read_file(theirs)
    if text is None:
        raise EditRefused(
            f"{row.title} has no configuration at {theirs}.",
            hint="There is nothing to take over; see `emceepee install` for the clients you have.",
        )
    ours = default_path(os.environ) if config is None else config.expanduser()
    before = read_file(ours)
    with guard(theirs):
        servers = row.servers(text)
    with guard(ours):
        after, outcomes = take_over(row, servers, before, environ=os.environ, source=str(ours))
    changes = [Change(path=ours, before=before, after=after)]
    if replace:
        changes.append(_replacing(row, theirs, text, outcomes, config, terminal))
    if dry_run:
        entries = [*servers.values(), *(place.entry for place in places(before))]
        show_changes(changes, entries, terminal, show_secrets=show_secrets)
        _report(row, theirs, changes, outcomes, [], as_json=False, terminal=terminal, quiet=True)
        return
    backups = [backup for change in changes if (backup := change.apply())]
    _report(row, theirs, changes, outcomes, backups, as_json=as_json, terminal=terminal)
    taken = [one.name for one in outcomes if one.result == "taken"]
    offer_to_move(ours, taken, terminal, asks=not as_json, moves=move_secrets)


def _replacing(
    client: Client,
    path: Path,
    text: str,
    outcomes: Sequence[Outcome],
    config: Path | None,
    terminal: Terminal,
) -> Change:
    """The client's file with emceepee in the place of what is now behind it."""
    servers = client.servers(text)
    name = next((name for name, entry in servers.items() if is_ours(entry)), RESERVED_NAME)
    covered = [one.name for one in outcomes if one.result != "skipped" and one.name != name]
    entry = our_entry(client, config, terminal=terminal)
    with guard(path):
        after = leave_alone(client, text, name=name, entry=entry, others=covered)
    return Change(path=path, before=text, after=after)


def _report(
    client: Client,
    path: Path,
    changes: Sequence[Change],
    outcomes: Sequence[Outcome],
    backups: Sequence[Path],
    *,
    as_json: bool,
    terminal: Terminal,
    quiet: bool = False,
) -> None:
    if as_json:
        terminal.data(
            {
                "client": client.key,
                "from": str(path),
                "to": str(changes[0].path),
                "servers": [one._asdict() for one in outcomes],
                "backups": [str(backup) for backup in backups],
            }
        )
        return
    if quiet:
        for one in outcomes:
            terminal.note(f"{one.name}: {one.result}{': ' if one.reason else ''}{one.reason}")
        return
    if not outcomes:
        terminal.line(f"{client.title} has no servers in {path}.")
    else:
        terminal.table(
            ("SERVER", "RESULT", "WHY"),
            [(one.name, one.result, one.reason) for one in outcomes],
            styles=_STYLES,
        )
    taken = sum(one.result == "taken" for one in outcomes)
    terminal.line(
        f"{taken} taken over into {changes[0].path}." if taken else "Nothing was taken over."
    )
    if taken and not changes[1:]:
        terminal.note(
            f"{client.title} has them as well; `emceepee config import {client.key} --replace` "
            "leaves only emceepee there."
        )
    for change in changes[1:]:
        kept = [one.name for one in outcomes if one.result == "skipped"]
        more = f" and {', '.join(kept)}" if kept else ""
        terminal.line(f"{client.title} now has emceepee{more}: {change.path}")
    for backup in backups:
        terminal.line(f"The file as it was: {backup}")
