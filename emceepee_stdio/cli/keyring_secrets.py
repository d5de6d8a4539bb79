"""`emceepee secrets`: stores, lists and removes the keyring secrets of the configuration.

A value comes from a hidden prompt or from stdin, never from the command line, and is never shown.
Secrets in plain text are moved from our configuration into the keyring: both, or neither. No backup
of the file is made, because it would hold the secrets; older ones that do are named. Where there is
no keyring, nothing proposes one: an environment variable takes its place.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.auth import keyring_access
from emceepee_stdio.auth.token_store import TokenStore, default_token_directory
from emceepee_stdio.cli import secret_values, shared_options
from emceepee_stdio.cli.clients.install import locate
from emceepee_stdio.cli.command_line import CommandGroup, LazyCommand, argument, flag
from emceepee_stdio.cli.terminal import read_secrets, terminal, with_command
from emceepee_stdio.config import edit
from emceepee_stdio.config.clients import CLIENTS, servers_by_place
from emceepee_stdio.config.fields import KEYRING_NAME, keyring_reference
from emceepee_stdio.config.load import default_path, load_text
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import SecretUnavailable
from emceepee_stdio.storage.private_file import others_may
from emceepee_stdio.visible_text import shell_line, shell_word
from emceepee_stdio.wire import system

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
NameArgument = Annotated[str, argument("NAME", about="What the secret is called.")]


def set_secret(name: NameArgument) -> None:
    """Store a secret.

    It is typed twice at a hidden prompt, or read from stdin. It is read back by another process: a
    keyring that forgets or cuts it is noticed.

    Example: emceepee secrets set github.TOKEN
    """
    _check_name(name)
    storage = secret_values.KeyringStorage()
    used = _references(shared_options.config_file(None))
    storage.require()  # before anybody types a secret
    former = storage.store({name: read_secrets([name])[0]})
    terminal.line(f"{'Replaced' if former else 'Stored'} {name}.")
    if name not in used:
        terminal.note(f"Refer to it in the configuration as {keyring_reference(name)}.")


def list_secrets(
    *, config: shared_options.ConfigOption = None, as_json: shared_options.JsonOption = False
) -> None:
    """List the names of secrets.

    Shows whether the keyring has them, and which servers use them. Those that are referred to, and
    those that were stored with `emceepee secrets set`.

    Example: emceepee secrets list
    """
    storage = secret_values.KeyringStorage()
    used = _references(shared_options.config_file(config))
    names = sorted({*used, *storage.names.all()})
    problem: SecretUnavailable | None = None
    states = dict.fromkeys(names, "unknown")
    try:
        held = storage.look_up(names)
        states = {name: "stored" if name in held else "missing" for name in names}
    except SecretUnavailable as error:
        problem = error
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


def remove(name: NameArgument, *, config: shared_options.ConfigOption = None) -> None:
    """Remove a secret from the keyring.

    Example: emceepee secrets remove github.TOKEN
    """
    _check_name(name)
    used = _references(shared_options.config_file(config)).get(name, [])
    storage = secret_values.KeyringStorage()
    if storage.is_absent():
        raise SecretUnavailable(
            f"{keyring_access.NO_KEYRING.problem}: nothing was removed.",
            hint="See which keyrings the Python package keyring finds: "
            f"`{keyring_access.LIST_BACKENDS}`.",
        )
    if not storage.remove(name):
        raise SecretUnavailable(
            f"The keyring has no secret {name}.", hint="See `emceepee secrets list`."
        )
    terminal.line(f"Removed {name}.")
    if used:
        terminal.note(f"Still referred to by {', '.join(used)}, which cannot be started without.")


def move(
    servers: Annotated[
        list[str] | None, argument("[SERVER]...", autocompletion=shared_options.complete_servers)
    ] = None,
    *,
    dry_run: Annotated[bool, flag("--dry-run")] = False,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """Move secrets from the file into the keyring.

    References take their place: both happens, or neither. No backup of the file is made, because it
    would hold the secrets; older ones that do are named.

    Takes:
      servers: Only of these servers.
      dry_run: Say what would be moved, and move nothing.

    Example: emceepee secrets move github
    """
    file = shared_options.config_file(config)
    text = edit.read_file(file) or ""
    with edit.guard(file):
        for server in servers or []:
            shared_options.place_of(text, server)
        found = [
            one for one in secret_values.plain_secrets(text) if not servers or one.server in servers
        ]
    _require_keyring(file, found, as_json=as_json)
    moved = planned_moves(found) if dry_run else move_into_keyring(file, text, found)
    if as_json:
        rows = [{"name": n, "server": one.server, "where": one.where} for n, one in moved.items()]
        stays = [one.place for one in found if one.steps is None]
        copies = [str(copy) for copy in copies_with_secrets(file)]
        terminal.document({"path": str(file), "moved": rows, "stays": stays, "copies": copies})
        return
    if not moved:
        terminal.line(f"Nothing to move in {file}.")
    tell_moved(file, found, moved, dry_run=dry_run)


def _references(file: Path) -> dict[str, list[str]]:
    with edit.guard(file):
        return secret_values.references(edit.read_file(file))


def _check_name(name: str) -> None:
    if not KEYRING_NAME.fullmatch(name):
        raise typer.BadParameter(
            "expected letters, digits, and _ . - behind the first of them.", param_hint="NAME"
        )


def _require_keyring(
    file: Path, found: Sequence[secret_values.PlainSecret], *, as_json: bool
) -> None:
    """Without one, say what is in plain text, why it stays, and what to do instead."""
    if all(one.steps is None for one in found) or not secret_values.KeyringStorage().is_absent():
        return
    fact = f"{keyring_access.NO_KEYRING.problem}: nothing can be moved out of {file}."
    stays = list(dict.fromkeys(one.place for one in found))
    if as_json:
        fact = f"{fact} In plain text: {', '.join(stays)}."
    else:
        terminal.line("\n".join(f"{place} stays in plain text." for place in stays))
    raise SecretUnavailable(fact, hint=instead_of_keyring(file, *found))


# Secrets in plain text in the backups that emceepee keeps: of its own file and of clients' files.
#
# A backup is the way back, so nothing here removes one: a person is told which hold secrets.


def copies_with_secrets(file: Path) -> list[Path]:
    """Backups of our own file in which secrets stand in plain text."""
    return [copy for copy in edit.backup_files(file) if _secrets_in(copy)]


def _secrets_in(copy: Path) -> list[secret_values.PlainSecret]:
    try:
        return secret_values.plain_secrets(edit.readable_text(copy))
    except ValueError:
        return []


def client_copies_with_secrets() -> dict[Path, list[str]]:
    """Backups that we made of clients' files, and the secrets that stand in plain text there."""
    found: dict[Path, list[str]] = {}
    for client in CLIENTS.values():
        for copy in edit.backup_files(locate(client)):
            # Every backup that we make is private; one that others can read is somebody else's.
            if others_may(copy.stat()):
                continue
            with suppress(ValueError):
                servers = servers_by_place(client, edit.readable_text(copy) or "")
                for steps, entry in servers.items():
                    for one in secret_values.secrets_of({str(steps[-1]): client.our_entry(entry)}):
                        found.setdefault(copy, []).append(one.place)
    return {copy: list(dict.fromkeys(places)) for copy, places in found.items()}


_MAX_ADVICE = 5  # lines; a person begins with these, and asks again


def move_into_keyring(
    file: Path, text: str, found: Sequence[secret_values.PlainSecret]
) -> dict[str, secret_values.PlainSecret]:
    """Into the keyring, and references into the file; by the names that they have there."""
    storage = secret_values.KeyringStorage()
    moved = planned_moves(found)
    if moved:
        with edit.guard(file):
            after = secret_values.without(text, moved)
            load_text(after, environ={}, source=str(file))
        with storage.storing({name: one.value for name, one in moved.items()}):
            edit.Change(path=file, before=text, after=after, backs_up=False).apply()
    return moved


def planned_moves(
    found: Sequence[secret_values.PlainSecret],
) -> dict[str, secret_values.PlainSecret]:
    """Those that can be moved, by the names that they will have in the keyring."""
    movable = [one for one in found if one.steps is not None]
    held = secret_values.KeyringStorage().look_up(
        [name for one in movable for name in _candidates(one)]
    )
    return _secret_names(movable, held)


def how_to_move(file: Path, *found: secret_values.PlainSecret, has_keyring: bool) -> str:
    """What a person can do about these secrets in plain text."""
    if not has_keyring:
        return f"{keyring_access.NO_KEYRING.problem}. {instead_of_keyring(file, *found)}"
    return with_command("Move them into the keyring", own_command(file, "secrets", "move"))


def instead_of_keyring(file: Path, *found: secret_values.PlainSecret) -> str:
    """The same where there is none."""
    advice = _advice(found)
    move = own_command(file, "secrets", "move")
    lines = [
        "Keep secrets in environment variables, set where the client is started. In the file:",
        *advice[:_MAX_ADVICE],
        *([f"And {len(advice) - _MAX_ADVICE} more."] if len(advice) > _MAX_ADVICE else ()),
        with_command("To edit the file", own_command(file, "config", "edit")),
        with_command(
            f"Or install a keyring, see {keyring_access.KEYRINGS_PAGE}, and move them there", move
        ),
    ]
    return "\n".join(lines)


def _advice(found: Iterable[secret_values.PlainSecret]) -> list[str]:
    """What to write in each place, with a variable of its own for each value."""
    values: dict[str, str] = {}
    lines: list[str] = []
    for one in {one.place: one for one in found}.values():
        is_free = values.setdefault(one.variable, one.value) == one.value
        variable = one.variable if is_free else one.own_variable
        part = "its secret part" if one.steps is None else "the value"
        step = f"write {one.with_variable(variable)} in place of {part}, and set {variable}."
        lines.append(f"{one.place}: {one.obstacle if one.is_argument else step}")
    return lines


def own_command(file: Path, *words: str) -> str:
    """A command of ours for this file."""
    usual = file == default_path(os.environ)
    return shell_line(["emceepee", *words, *(() if usual else ("--config", str(file)))])


def _secret_names(
    found: Iterable[secret_values.PlainSecret], held: Mapping[str, str]
) -> dict[str, secret_values.PlainSecret]:
    """Each under a name of its own, which the keyring does not have for something else."""
    names: dict[str, secret_values.PlainSecret] = {}
    for one in found:
        free = (
            name
            for name in _candidates(one)
            if name not in names and held.get(name, one.value) == one.value
        )
        name = next(free, None)
        if name is None:
            raise edit.EditRefused(
                f"The keyring has other secrets under {one.name} and the names after it.",
                hint="Nothing was changed; see `emceepee secrets list`, and remove one.",
            )
        names[name] = one
    return names


def _candidates(secret: secret_values.PlainSecret) -> list[str]:
    return [secret.name, *(f"{secret.name[:97]}-{n}" for n in range(2, 6))]


def tell_moved(
    file: Path,
    found: Sequence[secret_values.PlainSecret],
    moved: Mapping[str, secret_values.PlainSecret],
    *,
    dry_run: bool = False,
) -> None:
    moves, stays = ("Would move", "would stay") if dry_run else ("Moved", "stays")
    for name, one in moved.items():
        terminal.line(f"{moves} {one.place} to {keyring_reference(name)}")
    for one in [one for one in found if one.steps is None]:
        terminal.note(f"{one.place} {stays}: {one.obstacle}")
    if moved and not dry_run and (copies := copies_with_secrets(file)):
        words = shell_line([system.REMOVE, *map(str, copies)])
        terminal.note(with_command("Backups still hold secrets; remove them", words))


def note_plain_secrets(file: Path, servers: Collection[str]) -> None:
    """One line on those of these servers; the rest is for `emceepee doctor` to say."""
    plain = [
        one for one in secret_values.plain_secrets(edit.read_file(file)) if one.server in servers
    ]
    owners = dict.fromkeys(one.server for one in plain)
    secret_values.note_plain(file, plain, own_command(file, "secrets", "move", *owners))


# What is said of secrets and tokens when a server comes or goes: who else has them, what stays.
#
# A secret in the keyring is for whoever refers to it: an entry that somebody else wrote may refer
# to the secret of another server, and would be given it. So that is said, with the next step.


def foreign_secrets(text: str | None) -> dict[str, tuple[str, list[str]]]:
    """Secrets that are named after one server and given to others, too: its name, and theirs."""
    names = [label(place.name) for place in places(text)]
    found: dict[str, tuple[str, list[str]]] = {}
    for secret, users in secret_values.references(text).items():
        owner = _owner(secret, names)
        others = [user for user in users if user != owner]
        if owner is not None and others:
            found[secret] = (owner, others)
    return found


def note_shared(text: str | None, name: str) -> None:
    """Of a server that is in the file now: the secrets of others that it is given."""
    mine = label(name)
    for secret, (owner, others) in foreign_secrets(text).items():
        if mine in others:
            terminal.note(
                f"{mine} is given the secret {secret}, which is also the secret of {owner}. Unless "
                f"you mean that: emceepee config remove {shell_word(name)}"
            )


def note_removed(before: str | None, after: str | None, name: str) -> None:
    """What the server leaves behind."""
    left = secret_values.references(after)
    kept = [
        s
        for s, users in secret_values.references(before).items()
        if label(name) in users and s not in left
    ]
    stored = set(keyring_access.StoredNames(os.environ).all())
    for secret in [secret for secret in kept if secret in stored]:
        terminal.note(f"The keyring keeps its secret: emceepee secrets remove {secret}")
    for url in [place.fields.get("url") for place in places(before) if place.name == name]:
        if not isinstance(url, str) or "${" in url:
            continue
        if TokenStore(default_token_directory(os.environ), url).of_all_clients():
            terminal.note(f"Its sign-in is kept: {shell_line(['emceepee', 'logout', url])}")


def _owner(secret: str, names: Iterable[str]) -> str | None:
    """The server that it is named after, as `secrets move` and `--secret-env` do."""
    fitting = [
        name for name in names if secret.startswith(f"{secret_values.secret_name(name, '')}")
    ]
    return max(fitting, key=len, default=None)
