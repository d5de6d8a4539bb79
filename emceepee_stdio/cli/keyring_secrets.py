"""`emceepee secrets`: stores, lists and removes the keyring secrets of the configuration.

A value comes from a hidden prompt or from stdin, never from the command line, and is never shown.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.auth.keyring_access import LIST_BACKENDS, NO_KEYRING
from emceepee_stdio.cli.command_line import CommandGroup, LazyCommand
from emceepee_stdio.cli.config import config_file, place_of
from emceepee_stdio.cli.prompt import read_secrets
from emceepee_stdio.cli.secret_moves import (
    copies_with_secrets,
    instead_of_keyring,
    move_secrets,
    planned_moves,
    tell_moved,
)
from emceepee_stdio.cli.secret_values import KeyringStorage, PlainSecret, plain_secrets, references
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, complete_servers
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import guard, read_file
from emceepee_stdio.config.fields import KEYRING_NAME, keyring_reference
from emceepee_stdio.errors import SecretUnavailable

app = CommandGroup(
    no_args_is_help=True,
    help="Keep secrets in the keyring.\n\nThe configuration refers to them as ${keyring:NAME}.",
    lazy={
        "set": LazyCommand("keyring_secrets:set_secret", "Store a secret."),
        "list": LazyCommand("keyring_secrets:list_secrets", "List the names of secrets."),
        "remove": LazyCommand("keyring_secrets:remove", "Remove a secret from the keyring."),
        "move": LazyCommand("keyring_secrets:move", "Move secrets from the file into the keyring."),
    },
)

_STYLES = {"stored": "green", "missing": "red", "unknown": "yellow"}
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What the secret is called.")]


def set_secret(name: NameArgument) -> None:
    """Store a secret.

    It is typed twice at a hidden prompt, or read from stdin. It is read back by another process: a
    keyring that forgets or cuts it is noticed.

    Example: emceepee secrets set github.TOKEN
    """
    _check_name(name)
    storage, terminal = KeyringStorage(), Terminal()
    used = _references(config_file(None))
    storage.require()  # before anybody types a secret
    former = storage.store({name: read_secrets([name])[0]})
    terminal.line(f"{'Replaced' if former else 'Stored'} {name}.")
    if name not in used:
        terminal.note(f"Refer to it in the configuration as {keyring_reference(name)}.")


def list_secrets(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the names of secrets.

    Shows whether the keyring has them, and which servers use them. Those that are referred to, and
    those that were stored with `emceepee secrets set`.

    Example: emceepee secrets list
    """
    storage, terminal = KeyringStorage(), Terminal()
    used = _references(config_file(config))
    names = sorted({*used, *storage.names.all()})
    problem: SecretUnavailable | None = None
    held: Mapping[str, str] = {}
    try:
        held = storage.look_up(names)
    except SecretUnavailable as error:
        problem = error
    states = {name: "unknown" if problem else _state(name, held) for name in names}
    if as_json:
        rows = [{"name": n, "state": states[n], "used_by": used.get(n, [])} for n in names]
        terminal.document({"secrets": rows, "problem": None if problem is None else problem.fact})
        return
    if names:
        table = [(name, states[name], ", ".join(used.get(name, []))) for name in names]
        terminal.table(("NAME", "STATE", "USED BY"), table, styles=_STYLES)
    else:
        terminal.line("No secrets yet. Store one: emceepee secrets set NAME")
    if problem is not None:
        terminal.note(str(problem))
    for name in [name for name in names if states[name] == "missing"]:
        terminal.note(f"{name} is missing: emceepee secrets set {name}")


def remove(name: NameArgument, *, config: ConfigOption = None) -> None:
    """Remove a secret from the keyring.

    Example: emceepee secrets remove github.TOKEN
    """
    _check_name(name)
    used = _references(config_file(config)).get(name, [])
    storage = KeyringStorage()
    if storage.is_absent():
        raise SecretUnavailable(
            f"{NO_KEYRING.problem}: nothing was removed.",
            hint=f"See which keyrings the Python package keyring finds: `{LIST_BACKENDS}`.",
        )
    if not storage.remove(name):
        raise SecretUnavailable(
            f"The keyring has no secret {name}.", hint="See `emceepee secrets list`."
        )
    terminal = Terminal()
    terminal.line(f"Removed {name}.")
    if used:
        terminal.note(f"Still referred to by {', '.join(used)}, which cannot be started without.")


def move(
    servers: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SERVER]...", help="Only of these servers.", autocompletion=complete_servers
        ),
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be moved, and move nothing.")
    ] = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move secrets from the file into the keyring.

    References take their place: both happens, or neither. No backup of the file is made, because it
    would hold the secrets; older ones that do are named.

    Example: emceepee secrets move github
    """
    file, terminal = config_file(config), Terminal()
    text = read_file(file) or ""
    with guard(file):
        for server in servers or []:
            place_of(text, server)
        found = [one for one in plain_secrets(text) if not servers or one.server in servers]
    _require_keyring(file, found, terminal, as_json=as_json)
    moved = planned_moves(found) if dry_run else move_secrets(file, text, found)
    if not moved and not as_json:
        terminal.line(f"Nothing to move in {file}.")
    if dry_run and not as_json:
        for name, one in moved.items():
            terminal.line(f"Would move {one.place} to {keyring_reference(name)}")
        for one in [one for one in found if one.steps is None]:
            terminal.note(f"{one.place} would stay: {one.obstacle}")
        return
    if as_json:
        rows = [{"name": n, "server": one.server, "where": one.where} for n, one in moved.items()]
        stays = [one.place for one in found if one.steps is None]
        copies = [str(copy) for copy in copies_with_secrets(file)]
        terminal.document({"path": str(file), "moved": rows, "stays": stays, "copies": copies})
        return
    tell_moved(file, found, moved, terminal)


def _state(name: str, held: Mapping[str, str]) -> str:
    return "stored" if name in held else "missing"


def _references(file: Path) -> dict[str, list[str]]:
    with guard(file):
        return references(read_file(file))


def _check_name(name: str) -> None:
    if not KEYRING_NAME.fullmatch(name):
        raise typer.BadParameter(
            "expected letters, digits, and _ . - behind the first of them.", param_hint="NAME"
        )


def _require_keyring(
    file: Path, found: Sequence[PlainSecret], terminal: Terminal, *, as_json: bool
) -> None:
    """Without one, say what is in plain text, why it stays, and what to do instead."""
    if all(one.steps is None for one in found) or not KeyringStorage().is_absent():
        return
    fact = f"{NO_KEYRING.problem}: nothing can be moved out of {file}."
    stays = list(dict.fromkeys(one.place for one in found))
    if as_json:
        fact = f"{fact} In plain text: {', '.join(stays)}."
    else:
        terminal.line("\n".join(f"{place} stays in plain text." for place in stays))
    raise SecretUnavailable(fact, hint=instead_of_keyring(file, *found))
