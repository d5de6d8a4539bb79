"""Secrets in plain text, moved from our configuration into the keyring: both, or neither.

No backup of the file is made, because it would hold the secrets; older ones that do are named.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import PlainSecret, plain_secrets, without
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, backup_path, guard, read_file
from emceepee_stdio.config.expand import keyring_reference
from emceepee_stdio.config.load import load_text
from emceepee_stdio.errors import ConfigInvalid, SecretUnavailable

__all__ = ["copies_with_secrets", "move_secrets", "offer_to_move", "secret_names", "tell_moved"]

_STREAMS = (0, 2)


def move_secrets(file: Path, text: str, found: Sequence[PlainSecret]) -> dict[str, PlainSecret]:
    """Into the keyring, and references into the file; by the names that they have there."""
    storage = KeyringStorage()
    movable = [one for one in found if one.steps is not None]
    held = storage.look_up([name for one in movable for name in _candidates(one)])
    moved = secret_names(movable, held)
    if moved:
        with guard(file):
            after = without(text, moved)
            load_text(after, environ={}, source=str(file))
        with storage.storing({name: one.value for name, one in moved.items()}):
            Change(path=file, before=text, after=after, backs_up=False).apply()
    return moved


def secret_names(found: Iterable[PlainSecret], held: Mapping[str, str]) -> dict[str, PlainSecret]:
    """Each under a name of its own, which the keyring does not have for something else."""
    names: dict[str, PlainSecret] = {}
    for one in found:
        free = (
            name
            for name in _candidates(one)
            if name not in names and held.get(name, one.value) == one.value
        )
        name = next(free, None)
        if name is None:
            raise EditRefused(
                f"The keyring has other secrets under {one.name} and the names after it.",
                hint="Nothing was changed; see `emceepee secrets list`, and remove one.",
            )
        names[name] = one
    return names


def _candidates(secret: PlainSecret) -> list[str]:
    return [secret.name, *(f"{secret.name[:97]}-{n}" for n in range(2, 6))]


def tell_moved(
    file: Path, found: Sequence[PlainSecret], moved: Mapping[str, PlainSecret], terminal: Terminal
) -> None:
    for name, one in moved.items():
        terminal.line(f"Moved {one.place} to {keyring_reference(name)}")
    for one in found:
        if one.steps is None:
            terminal.note(
                f"{one.place} stays: other users see arguments. Give it in `env`, if you can."
            )
    if moved and (copies := copies_with_secrets(file)):
        words = shlex.join(["rm", *map(str, copies)])
        terminal.note(f"Backups still hold secrets; remove them: {words}")


def copies_with_secrets(file: Path) -> list[Path]:
    """Backups of the file in which secrets stand in plain text."""
    backup = backup_path(file)
    found: list[Path] = []
    for copy in sorted(backup.parent.glob(f"{backup.name}*")):
        try:
            if any(one.steps is not None for one in plain_secrets(read_file(copy))):
                found.append(copy)
        except (ConfigInvalid, ValueError):
            continue
    return found


def offer_to_move(
    file: Path, servers: Iterable[str], terminal: Terminal, *, asks: bool, moves: bool
) -> list[str]:
    """Secrets of these servers: moved where that is wanted or agreed to; the names of those."""
    chosen, text = set(servers), read_file(file) or ""
    found = [one for one in plain_secrets(text) if one.server in chosen and one.steps is not None]
    if not found:
        return []
    places = ", ".join(one.place for one in found)
    if not moves and asks and all(map(os.isatty, _STREAMS)):
        from emceepee_stdio.cli.prompt import ask_whether  # noqa: PLC0415 - needs an event loop

        question = f"Secrets in plain text ({places}). Move them into the keyring?"
        if not interrupts.run(partial(ask_whether, question, terminal, usual=True)):
            return []
        try:
            moved = move_secrets(file, text, found)
        except SecretUnavailable as error:
            terminal.note(f"They stay where they are. {error}")
            return []
    elif moves:
        moved = move_secrets(file, text, found)
    else:
        words = shlex.join(["emceepee", "secrets", "move", *dict.fromkeys(o.server for o in found)])
        terminal.note(f"Secrets in plain text: {places}. To move them into the keyring: {words}")
        return []
    if asks:
        tell_moved(file, found, moved, terminal)
    return list(moved)
