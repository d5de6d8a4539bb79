"""What is said of secrets and tokens when a server comes or goes: who else has them, what stays.

A secret in the keyring is for whoever refers to it: an entry that somebody else wrote may refer to
the secret of another server, and would be given it. So that is said, with the next step.
"""

import os
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

from emceepee_stdio.auth.stored_names import StoredNames
from emceepee_stdio.auth.token_store import TokenStore, default_token_directory
from emceepee_stdio.cli.backup_secrets import copies_with_secrets
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import plain_secrets, references, secret_name
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.cli.secret_moves import how_to_move
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label

__all__ = ["foreign_secrets", "note_added", "note_copies", "note_removed"]


def foreign_secrets(text: str | None) -> dict[str, tuple[str, list[str]]]:
    """Secrets that are named after one server and given to others, too: its name, and theirs."""
    names = [label(place.name) for place in places(text)]
    found: dict[str, tuple[str, list[str]]] = {}
    for secret, users in references(text).items():
        owner = _owner(secret, names)
        others = [user for user in users if user != owner]
        if owner is not None and others:
            found[secret] = (owner, others)
    return found


def note_added(file: Path, text: str | None, name: str, terminal: Terminal) -> None:
    """Of a server that is in the file now; `text` is what the file holds."""
    _note_shared(text, name, terminal)
    _note_plain(file, text, name, terminal)
    note_copies(file, text, name, terminal)


def _note_shared(text: str | None, name: str, terminal: Terminal) -> None:
    used, mine = references(text), label(name)
    stored = set(StoredNames(os.environ).all())
    for secret in [secret for secret, users in used.items() if mine in users]:
        others = [user for user in used[secret] if user != mine]
        owner = _owner(secret, [label(place.name) for place in places(text)])
        if owner not in (None, mine):
            others = list(dict.fromkeys([str(owner), *others]))
        if others:
            whose = f"which is also the secret of {', '.join(others)}"
        elif owner is None and secret in stored:
            whose = "which was stored before, and not under the name of this server"
        else:
            continue
        terminal.note(
            f"{mine} is given the secret {secret}, {whose}. Unless you mean that: emceepee config "
            f"remove {shlex.quote(name)}"
        )


def _note_plain(file: Path, text: str | None, name: str, terminal: Terminal) -> None:
    plain = [one for one in plain_secrets(text) if one.server == name]
    if not plain:
        return
    movable = [one for one in plain if one.steps is not None]
    asks, ways = "", [f"{one.where}: {one.obstacle}" for one in plain if one.steps is None]
    if movable:
        has_keyring = not KeyringStorage().is_absent()
        if has_keyring and any(one.where.startswith("env.") for one in movable):
            asks = " With --secret-env you are asked for a value instead."
        ways.insert(0, how_to_move(file, *movable, servers=[name], has_keyring=has_keyring))
    where = ", ".join(dict.fromkeys(one.where for one in plain))
    terminal.note("\n".join([f"In plain text in the file: {where}.{asks}", *ways]))


def note_copies(file: Path, text: str | None, name: str, terminal: Terminal) -> None:
    """Backups with secrets of a server that has none in plain text now."""
    if any(one.server == name for one in plain_secrets(text)):
        return
    if copies := copies_with_secrets(file, of=name):
        fact = f"Backups still hold secrets of {label(name)} in plain text; remove them"
        terminal.note(with_command(fact, shlex.join(["rm", *map(str, copies)])))


def note_removed(before: str | None, after: str | None, name: str, terminal: Terminal) -> None:
    """What the server leaves behind."""
    left = references(after)
    kept = [s for s, users in references(before).items() if label(name) in users and s not in left]
    stored = set(StoredNames(os.environ).all())
    for secret in [secret for secret in kept if secret in stored]:
        terminal.note(f"The keyring keeps its secret: emceepee secrets remove {secret}")
    for url in _addresses(place.entry for place in places(before) if place.name == name):
        if TokenStore(default_token_directory(os.environ), url).of_all_clients():
            terminal.note(f"Its sign-in is kept: {shlex.join(['emceepee', 'logout', url])}")


def _addresses(entries: Iterable[object]) -> Iterator[str]:
    for entry in entries:
        url = entry.get("url") if is_object(entry) else None
        if isinstance(url, str) and "${" not in url:
            yield url


def _owner(secret: str, names: Iterable[str]) -> str | None:
    """The server that it is named after, as `secrets move` and `--secret-env` do."""
    fitting = [name for name in names if secret.startswith(f"{secret_name(name, '')}")]
    return max(fitting, key=len, default=None)
