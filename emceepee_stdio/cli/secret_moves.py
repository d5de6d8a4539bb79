"""Secrets in plain text, moved from our configuration into the keyring: both, or neither.

No backup of the file is made, because it would hold the secrets; older ones that do are named.
Where there is no keyring, nothing proposes one: an environment variable takes its place.
"""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from emceepee_stdio.auth.keyring_orders import KEYRINGS_PAGE, NO_KEYRING
from emceepee_stdio.cli.backup_secrets import copies_with_secrets
from emceepee_stdio.cli.interrupts import interrupts
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import PlainSecret, plain_secrets, without
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.expand import keyring_reference
from emceepee_stdio.config.load import default_path, load_text
from emceepee_stdio.errors import SecretUnavailable

__all__ = [
    "how_to_move",
    "instead_of_keyring",
    "move_secrets",
    "offer_to_move",
    "planned_moves",
    "tell_moved",
]

_STREAMS = (0, 2)
_MAX_ADVICE = 5  # lines; a person begins with these, and asks again


def move_secrets(file: Path, text: str, found: Sequence[PlainSecret]) -> dict[str, PlainSecret]:
    """Into the keyring, and references into the file; by the names that they have there."""
    storage = KeyringStorage()
    moved = planned_moves(found)
    if moved:
        with guard(file):
            after = without(text, moved)
            load_text(after, environ={}, source=str(file))
        with storage.storing({name: one.value for name, one in moved.items()}):
            Change(path=file, before=text, after=after, backs_up=False).apply()
    return moved


def planned_moves(found: Sequence[PlainSecret]) -> dict[str, PlainSecret]:
    """Those that can be moved, by the names that they will have in the keyring."""
    movable = [one for one in found if one.steps is not None]
    held = KeyringStorage().look_up([name for one in movable for name in _candidates(one)])
    return _secret_names(movable, held)


def how_to_move(
    file: Path, *found: PlainSecret, servers: Iterable[str] = (), has_keyring: bool
) -> str:
    """What a person can do about these secrets in plain text."""
    if not has_keyring:
        return f"{NO_KEYRING.problem}. {instead_of_keyring(file, *found, servers=servers)}"
    move = _own_command(file, "secrets", "move", *servers)
    return with_command("Move them into the keyring", move)


def instead_of_keyring(file: Path, *found: PlainSecret, servers: Iterable[str] = ()) -> str:
    """The same where there is none."""
    advice = _advice(found)
    move = _own_command(file, "secrets", "move", *servers)
    lines = [
        "Keep secrets in environment variables, set where the client is started. In the file:",
        *advice[:_MAX_ADVICE],
        *([f"And {len(advice) - _MAX_ADVICE} more."] if len(advice) > _MAX_ADVICE else ()),
        with_command("To edit the file", _own_command(file, "config", "edit")),
        with_command(f"Or install a keyring, see {KEYRINGS_PAGE}, and move them there", move),
    ]
    return "\n".join(lines)


def _advice(found: Iterable[PlainSecret]) -> list[str]:
    """What to write in each place, with a variable of its own for each value."""
    values: dict[str, str] = {}
    lines: list[str] = []
    for one in {one.place: one for one in found}.values():
        is_free = values.setdefault(one.variable, one.value) == one.value
        lines.append(f"{one.place}: {_instead(one, one.variable if is_free else one.own_variable)}")
    return lines


def _instead(one: PlainSecret, variable: str) -> str:
    if one.is_argument:
        return one.obstacle
    part = "its secret part" if one.steps is None else "the value"
    return f"write {one.with_variable(variable)} in place of {part}, and set {variable}."


def _own_command(file: Path, *words: str) -> str:
    """A command of ours for this file."""
    usual = file == default_path(os.environ)
    return shlex.join(["emceepee", *words, *(() if usual else ("--config", str(file)))])


def _secret_names(found: Iterable[PlainSecret], held: Mapping[str, str]) -> dict[str, PlainSecret]:
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
            terminal.note(f"{one.place} stays: {one.obstacle}")
    if moved and (copies := copies_with_secrets(file)):
        words = shlex.join(["rm", *map(str, copies)])
        terminal.note(with_command("Backups still hold secrets; remove them", words))


def offer_to_move(
    file: Path, servers: Iterable[str], terminal: Terminal, *, asks: bool, moves: bool
) -> list[str]:
    """Secrets of these servers: moved where that is wanted or agreed to; the names of those."""
    chosen, text = set(servers), read_file(file) or ""
    plain = [one for one in plain_secrets(text) if one.server in chosen]
    for one in [one for one in plain if one.steps is None]:
        terminal.note(f"{one.place} is in plain text: {one.obstacle}")
    found = [one for one in plain if one.steps is not None]
    if not found:
        return []
    places = ", ".join(dict.fromkeys(one.place for one in found))
    at_terminal = asks and all(map(os.isatty, _STREAMS))
    has_keyring = moves or not KeyringStorage().is_absent()
    if moves:
        moved = move_secrets(file, text, found)
    elif not at_terminal or not has_keyring:
        owners = dict.fromkeys(one.server for one in found)
        how = how_to_move(file, *found, servers=owners, has_keyring=has_keyring)
        terminal.note(f"Secrets in plain text: {places}.\n{how}")
        return []
    else:
        from emceepee_stdio.cli.prompt import ask_whether  # noqa: PLC0415 - needs an event loop

        question = f"Secrets in plain text ({places}). Move them into the keyring?"
        if not interrupts.run(partial(ask_whether, question, terminal, usual=True)):
            return []
        try:
            moved = move_secrets(file, text, found)
        except SecretUnavailable as error:
            terminal.note(f"They stay where they are. {error.fact} {error.next_step}")
            return []
    if asks:
        tell_moved(file, found, moved, terminal)
    return list(moved)
