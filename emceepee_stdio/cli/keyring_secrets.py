"""`emceepee secrets`: what the configuration refers to in the keyring, stored and taken away.

A value comes from a hidden prompt or from stdin, never from the command line, and is never shown.
"""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from getpass import getpass
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import PlainSecret, plain_secrets, references, without
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.edit import Change, EditRefused, backup_path, guard, read_file
from emceepee_stdio.config.expand import KEYRING_NAME, keyring_reference
from emceepee_stdio.config.load import default_path, load_text
from emceepee_stdio.config.own_file import places
from emceepee_stdio.errors import ConfigInvalid, SecretUnavailable

__all__ = ["app", "move_secrets", "read_secret"]

app = typer.Typer(
    no_args_is_help=True, help="Keep secrets in the keyring, and refer to them as ${keyring:NAME}."
)

_STYLES = {"stored": "green", "missing": "red", "unknown": "yellow"}
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What the secret is called.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than the default one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


@app.command("set")
def set_secret(name: NameArgument) -> None:
    """Store a secret: typed twice at a hidden prompt, or read from stdin.

    It is read back by another process: a keyring that forgets or cuts it is noticed.

    Example: emceepee secrets set github.TOKEN
    """
    _check_name(name)
    storage, terminal = KeyringStorage(), Terminal()
    former = storage.store({name: read_secret(name)})
    terminal.line(f"{'Replaced' if former else 'Stored'} {name}.")
    if name not in references(read_file(_file(None))):
        terminal.note(f"Refer to it in the configuration as {keyring_reference(name)}.")


@app.command("list")
def list_secrets(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """List the names of secrets, whether the keyring has them, and which servers use them.

    Those that are referred to, and those that were stored with `emceepee secrets set`.

    Example: emceepee secrets list
    """
    storage, terminal = KeyringStorage(), Terminal()
    used = _references(_file(config))
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
        terminal.data({"secrets": rows, "problem": None if problem is None else problem.fact})
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


@app.command()
def remove(name: NameArgument, *, config: ConfigOption = None) -> None:
    """Remove a secret from the keyring.

    Example: emceepee secrets remove github.TOKEN
    """
    _check_name(name)
    used = _references(_file(config)).get(name, [])
    if not KeyringStorage().remove(name):
        raise SecretUnavailable(
            f"The keyring has no secret {name}.", hint="See `emceepee secrets list`."
        )
    terminal = Terminal()
    terminal.line(f"Removed {name}.")
    if used:
        terminal.note(f"Still referred to by {', '.join(used)}, which cannot be started without.")


@app.command()
def move(
    servers: Annotated[
        list[str] | None, typer.Argument(metavar="[SERVER]...", help="Only of these servers.")
    ] = None,
    *,
    dry_run: DryRunOption = False,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move secrets from plain text in the configuration into the keyring.

    References take their place: both happens, or neither. No backup of the file is made, because it
    would hold the secrets; older ones that do are named.

    Example: emceepee secrets move github
    """
    file = _file(config)
    text = read_file(file) or ""
    with guard(file):
        _check_servers(servers or [], text, file)
        found = [one for one in plain_secrets(text) if not servers or one.server in servers]
    if dry_run:
        movable = [one for one in found if one.steps is not None]
        for name, one in _named(movable, {}).items():
            Terminal().line(f"Would move {one.place} to {keyring_reference(name)}")
        return
    moved = move_secrets(file, text, found)
    _report(file, found, moved, as_json=as_json)


def move_secrets(file: Path, text: str, found: Sequence[PlainSecret]) -> dict[str, PlainSecret]:
    """Into the keyring, and references into the file; either both or neither. By name."""
    storage = KeyringStorage()
    movable = [one for one in found if one.steps is not None]
    held = storage.look_up([name for one in movable for name in _candidates(one)])
    moved = _named(movable, held)
    if not moved:
        return {}
    with guard(file):
        after = without(text, moved)
        load_text(after, environ={}, source=str(file))
    secrets = {name: one.value for name, one in moved.items()}
    former = storage.store(secrets)
    try:
        Change(path=file, before=text, after=after, backs_up=False).apply()
    except BaseException:
        storage.restore(secrets, former)
        raise
    return moved


def _named(found: Sequence[PlainSecret], held: Mapping[str, str]) -> dict[str, PlainSecret]:
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


def read_secret(name: str) -> str:
    """From a hidden prompt, typed twice, or all of stdin but the end of its line."""
    if sys.stdin.isatty():
        value = _typed(name)
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value or "\0" in value:
        raise SecretUnavailable(
            f"There is no value for {name}.", hint="Type it at the prompt, or send it on stdin."
        )
    return value


def _typed(name: str) -> str:
    while True:
        value = getpass(f"{name}: ")
        if not value or value == getpass("The same again: "):
            return value
        Terminal().note("These are not the same; once more.")


def _report(
    file: Path, found: Sequence[PlainSecret], moved: Mapping[str, PlainSecret], *, as_json: bool
) -> None:
    terminal = Terminal()
    stays = [one.place for one in found if one not in moved.values()]
    copies = copies_with(file, [one.value for one in found])
    if as_json:
        rows = [{"name": n, "server": one.server, "where": one.where} for n, one in moved.items()]
        shown = [str(copy) for copy in copies]
        terminal.data({"path": str(file), "moved": rows, "stays": stays, "copies": shown})
        return
    for name, one in moved.items():
        terminal.line(f"Moved {one.place} to {keyring_reference(name)}")
    if not moved:
        terminal.line(f"Nothing to move in {file}.")
    for place in stays:
        terminal.note(f"{place} stays: other users see arguments. Give it in `env`, if you can.")
    if copies:
        words = shlex.join(["rm", *map(str, copies)])
        terminal.note(f"Backups still hold what was moved; remove them: {words}")


def copies_with(file: Path, values: Sequence[str]) -> list[Path]:
    """Backups of the file that hold one of these values."""
    backup = backup_path(file)
    found: list[Path] = []
    for copy in sorted(backup.parent.glob(f"{backup.name}*")):
        try:
            held = {one.value for one in plain_secrets(read_file(copy))}
        except (ConfigInvalid, ValueError):
            continue
        if held.intersection(values):
            found.append(copy)
    return found


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


def _check_servers(names: Sequence[str], text: str, file: Path) -> None:
    known = [place.name for place in places(text)]
    for name in names:
        if name not in known:
            raise EditRefused(
                f"{file} has no server named {name}.",
                hint="Nothing was changed; see `emceepee config show` for the names.",
            )


def _file(config: Path | None) -> Path:
    return default_path(os.environ) if config is None else config.expanduser()
