"""`emceepee secrets`: stores, lists and removes the keyring secrets of the configuration.

A value comes from a hidden prompt or from stdin, never from the command line, and is never shown.
Secrets in plain text are moved from our configuration into the keyring: both, or neither. No backup
of the file is made, because it would hold the secrets; older ones that do are named. Where there is
no keyring, nothing proposes one: an environment variable takes its place.
"""

import json
import os
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.auth.keyring_access import (
    KEYRINGS_PAGE,
    LIST_BACKENDS,
    NO_KEYRING,
    StoredNames,
)
from emceepee_stdio.auth.token_store import TokenStore, default_token_directory
from emceepee_stdio.cli.clients.install import locate
from emceepee_stdio.cli.command_line import CommandGroup, LazyCommand
from emceepee_stdio.cli.doctor.report import with_command
from emceepee_stdio.cli.secret_values import (
    KeyringStorage,
    PlainSecret,
    plain_secrets,
    references,
    secret_name,
    secrets_of,
    without,
)
from emceepee_stdio.cli.shared_options import (
    ConfigOption,
    JsonOption,
    complete_servers,
    config_file,
    place_of,
)
from emceepee_stdio.cli.terminal import Terminal, confirm, read_secrets
from emceepee_stdio.config.clients import CLIENTS, Client, servers_by_place
from emceepee_stdio.config.edit import Change, EditRefused, backup_files, guard, read_file
from emceepee_stdio.config.fields import KEYRING_NAME, is_object, keyring_reference
from emceepee_stdio.config.load import default_path, load_text
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ConfigInvalid, SecretUnavailable

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


# Secrets in plain text in the backups that emceepee keeps: of its own file and of clients' files.
#
# A backup is the way back, so nothing here removes one: a person is told which hold secrets.


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
        question = f"Secrets in plain text ({places}). Move them into the keyring?"
        if not confirm(question, terminal, usual=True):
            return []
        try:
            moved = move_secrets(file, text, found)
        except SecretUnavailable as error:
            terminal.note(f"They stay where they are. {error.fact} {error.next_step}")
            return []
    if asks:
        tell_moved(file, found, moved, terminal)
    return list(moved)


# What is said of secrets and tokens when a server comes or goes: who else has them, what stays.
#
# A secret in the keyring is for whoever refers to it: an entry that somebody else wrote may refer
# to the secret of another server, and would be given it. So that is said, with the next step.


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
