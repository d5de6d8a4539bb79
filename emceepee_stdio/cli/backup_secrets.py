"""Secrets in plain text in the backups that emceepee keeps: of its own file and of clients' files.

A backup is the way back, so nothing here removes one: a person is told which hold secrets.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from emceepee_stdio.cli.install import locate
from emceepee_stdio.cli.plain_secrets import PlainSecret, plain_secrets, secrets_of
from emceepee_stdio.config.clients import CLIENTS, Client
from emceepee_stdio.config.edit import backup_files, read_file
from emceepee_stdio.config.moved_servers import servers_by_place
from emceepee_stdio.errors import ConfigInvalid

__all__ = [
    "client_copies_with_secrets",
    "copies_of_moved",
    "copies_with_secrets",
    "secrets_of",
]


def copies_with_secrets(file: Path, *, of: str | None = None) -> list[Path]:
    """Backups of our own file in which secrets stand in plain text: of any server, or of one."""
    return [copy for copy in backup_files(file) if _holds_secrets(copy, of)]


def _holds_secrets(copy: Path, server: str | None) -> bool:
    try:
        return any(server in (None, one.server) for one in plain_secrets(read_file(copy)))
    except (ConfigInvalid, ValueError):
        return False


def client_copies_with_secrets() -> dict[Path, list[str]]:
    """Backups that we made of clients' files, and the secrets that stand in plain text there."""
    copies = [
        (client, copy)
        for client in CLIENTS.values()
        for copy in backup_files(locate(client))
        if _is_private(copy)
    ]
    found = {copy: list(dict.fromkeys(_places(client, copy))) for client, copy in copies}
    return {copy: places for copy, places in found.items() if places}


def _is_private(copy: Path) -> bool:
    """As every backup that we make; one that others can read is somebody else's."""
    return os.name != "posix" or not copy.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _places(client: Client, copy: Path) -> Iterator[str]:
    try:
        servers = servers_by_place(client, read_file(copy) or "")
        for steps, entry in servers.items():
            for one in secrets_of({str(steps[-1]): client.our_entry(entry)}):
                yield one.place
    except (ConfigInvalid, ValueError):
        return


def copies_of_moved(
    ours: Path, entries: Mapping[str, object], files: Iterable[Path]
) -> dict[Path, list[PlainSecret]]:
    """Those of these files that hold secrets of these servers that ours refers to, and which."""
    open_here = {one.value for one in plain_secrets(read_file(ours))}
    movable = [one for one in secrets_of(entries) if one.steps is not None]
    moved = [one for one in movable if one.value not in open_here]
    held = {file: _held_in(file) for file in files}
    found = {file: [one for one in moved if _stands_in(one, text)] for file, text in held.items()}
    return {file: secrets for file, secrets in found.items() if secrets}


def _stands_in(secret: PlainSecret, text: str) -> bool:
    return secret.value in text or json.dumps(secret.value)[1:-1] in text


def _held_in(path: Path) -> str:
    try:
        return read_file(path) or ""
    except ConfigInvalid:
        return ""
