"""`emceepee install`: our entry in a client's configuration."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.client_scopes import scopes_of
from emceepee_stdio.cli.lasting_program import is_passing, lasting_program
from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS, HTTP_TOKEN, Client, ClientKey, is_ours
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_backup, read_file
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc import strict_problem
from emceepee_stdio.config.load import PATH_VARIABLE, default_path
from emceepee_stdio.config.registration import register
from emceepee_stdio.config.server import name_problem
from emceepee_stdio.errors import ConfigInvalid

__all__ = [
    "ClientArgument",
    "DryRunOption",
    "NameOption",
    "install",
    "is_installed",
    "locate",
    "our_entry",
    "registered_in",
]

_NAME = "emceepee"

_STATE_STYLES = {
    "registered": "green",
    "broken": "red",
    "program gone": "red",
    "not installed": "dim",
}

ClientArgument = Annotated[
    ClientKey, typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}.")
]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="What the entry is called in the client.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the change as a diff, and make none.")
]


def install(  # noqa: PLR0913 - one for each option
    client: Annotated[
        ClientKey | None,
        typer.Argument(metavar="CLIENT", help=f"One of {', '.join(CLIENTS)}; none lists them."),
    ] = None,
    *,
    name: NameOption = _NAME,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also for a client that seems not to be installed.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="The configuration to serve from."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", "-e", metavar="K=V", help="A variable for emceepee in this client."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="URL", help="Reach a running `emceepee serve --http`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> None:
    """Register emceepee in an MCP client; without CLIENT, list the clients and their files.

    Keeps everything else in the client's file, and the file as it was in a .bak beside it.

    Example: emceepee install claude-desktop --dry-run
    """
    if client is None:
        _list(as_json=as_json)
        return
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="--name")
    variables = _variables(env or (), http)
    row = CLIENTS[client]
    path = locate(row)
    terminal = Terminal()
    _require(row, path, force=force or dry_run, terminal=terminal)
    entry = (
        our_entry(row, config, dry_run=dry_run, terminal=terminal)
        if http is None
        else _remote_entry(row, http, config)
    )
    _note_missing_file(entry, terminal)
    with guard(path):
        text = read_file(path)
        known = row.servers(text or "")
        entry = _with_kept_choices(row, entry, known.get(name), variables)
        edited = register(row, text, read_backup(path), name=name, entry=entry)
    change = Change(path=path, before=text, after=edited.text, backs_up=edited.backs_up)
    if dry_run:
        entries = [*known.values(), *row.servers(edited.text or "").values()]
        show_changes([change], entries, terminal, show_secrets=show_secrets)
        _explain_settings(row, entry, terminal)
        return
    backup = change.apply()
    if as_json:
        terminal.document({"client": client, **change.facts(backup)})
        _note_secrets(row, path, variables, name=name, terminal=terminal)
        return
    _tell(row, change, backup, entry, name=name, renewed=name in known, terminal=terminal)
    _tell_raised(row, known.get(name), terminal)
    if http is not None:
        terminal.note(
            f"{row.title} takes the token from the variable {HTTP_TOKEN}: set it where "
            f"{row.title} is started. Then try it: emceepee doctor --http {http}"
        )
    _note_secrets(row, path, variables, name=name, terminal=terminal)
    _note_others(row, path, text or "", terminal)


def _note_secrets(
    client: Client, path: Path, variables: dict[str, str], *, name: str, terminal: Terminal
) -> None:
    if variables:
        # The patterns cost start-up, and are only for those who give variables.
        from emceepee_stdio.cli.client_variables import note_given  # noqa: PLC0415 - see above

        undo = _undo(client, name)
        note_given(client.title, path, variables, undo=undo, terminal=terminal)


def _undo(client: Client, name: str) -> str:
    named = "" if name == _NAME else f" --name {shlex.quote(name)}"
    return f"emceepee uninstall {client.key}{named}"


def _note_others(client: Client, path: Path, text: str, terminal: Terminal) -> None:
    """How many servers an import would take from here."""
    names = {
        name
        for scope in scopes_of(client, path, text, Path.cwd(), terminal)
        for name, entry in scope.servers.items()
        if name not in scope.rejected and not is_ours(entry)
    }
    if names:
        others, them = ("server", "it") if len(names) == 1 else ("servers", "them")
        terminal.note(
            f"{client.title} has {len(names)} other {others}; to move {them} behind emceepee: "
            f"emceepee config import {client.key} --replace"
        )


def _remote_entry(client: Client, url: str, config: Path | None) -> dict[str, object]:
    """Our entry for a front that runs somewhere."""
    if config is not None:
        raise EditRefused(
            "--config is for the proxy that a client starts.",
            hint="Give it to `emceepee serve --http` instead.",
        )
    if not url.startswith(("http://", "https://")):
        raise EditRefused(
            f"{url!r} is no address of an HTTP front.",
            hint="`emceepee serve --http` shows its address when it starts.",
        )
    if (entry := client.remote_entry(url)) is None:
        raise EditRefused(
            f"The file of {client.title} {client.no_remote}.",
            hint=f"Nothing was changed; `emceepee install {client.key}` registers it on stdio.",
        )
    return entry


def _variables(given: Sequence[str], http: str | None) -> dict[str, str]:
    pairs = [word.partition("=") for word in given]
    if any(not name or not sign for name, sign, _ in pairs):
        raise typer.BadParameter("expected NAME=VALUE.", param_hint="--env")
    if given and http is not None:
        raise typer.BadParameter("is for a proxy that the client starts.", param_hint="--env")
    return {name: value for name, _, value in pairs}


def _with_kept_choices(
    client: Client, entry: dict[str, object], present: object, variables: dict[str, str]
) -> dict[str, object]:
    """What somebody gave our entry stays when it is written anew: variables, settings."""
    usual = entry.get("env")
    if is_object(usual):
        entry = {**entry, "env": {**usual, **variables}}
    if not is_object(present) or not is_ours(present):
        return entry
    former = client.former_settings(present)
    present = {key: value for key, value in present.items() if key not in former}
    chosen = {key: value for key, value in present.items() if key in client.settings}
    if ("command" in entry) != ("command" in present):  # of what is left, nothing fits
        return {**entry, **chosen}
    more = {key: value for key, value in present.items() if key not in entry}
    ours, theirs = entry.get("env"), present.get("env")
    env = {"env": {**theirs, **ours}} if is_object(ours) and is_object(theirs) else {}
    return {**entry, **chosen, **more, **env}


def _explain_settings(client: Client, entry: dict[str, object], terminal: Terminal) -> None:
    """A diff shows what is written; this says why, where it is of our choice."""
    for key, setting in client.settings.items():
        if entry.get(key) == setting.value:
            terminal.note(f"{key}: {client.title} {setting.why}.")


def _tell_raised(client: Client, before: object, terminal: Terminal) -> None:
    if is_object(before) and is_ours(before):
        for key in client.former_settings(before):
            terminal.note(f"{key}: {before[key]} became {client.settings[key].value}.")


def locate(client: Client) -> Path:
    """The client's file, or where it would be."""
    places = client.places(sys.platform, os.environ, _home())
    return next((place for place in places if place.parent.is_dir()), places[-1])


def program_is_gone(entry: object) -> bool:
    """Whether an entry of ours names a program that is not there any more."""
    command = entry.get("command") if is_object(entry) else None
    path = command.get("path") if is_object(command) else command
    is_path = isinstance(path, str) and Path(path).is_absolute()
    return is_path and not os.access(str(path), os.X_OK)


def registered_in() -> list[str]:
    """The clients that start emceepee, by their titles."""
    return [client.title for client in CLIENTS.values() if _state(client)["state"] == "registered"]


def our_entry(
    client: Client, config: Path | None, *, dry_run: bool, terminal: Terminal
) -> dict[str, object]:
    """Our entry, with nothing in it that only this shell would understand."""
    command, *args = lasting_program(dry_run=dry_run, terminal=terminal)
    args.append("serve")
    if config is None and os.environ.get(PATH_VARIABLE):
        config = default_path(os.environ)
    if config is not None:
        args += ["--config", str(config.expanduser().absolute())]
    return client.entry(command, args, {"PATH": _search_path()})


def _note_missing_file(entry: dict[str, object], terminal: Terminal) -> None:
    """Of a configuration that our entry names; an import makes it in the same moment."""
    args = entry.get("args")
    words = [str(arg) for arg in args] if is_list(args) else []
    if "--config" in words and not Path(words[-1]).exists():
        add = f"emceepee config add --config {shlex.quote(words[-1])} NAME -- COMMAND"
        terminal.note(f"{words[-1]} does not exist yet; `{add}` makes it.")


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigInvalid(
            "The home directory is unknown.", hint="Set HOME, and run the command again."
        ) from None


def _search_path() -> str:
    """The shell's PATH, because that of a graphical client is bare; each directory once."""
    given = os.environ.get("PATH", os.defpath).split(os.pathsep)
    kept = (place for place in given if Path(place).is_absolute() and not is_passing(place))
    return os.pathsep.join(dict.fromkeys(kept))


def is_installed(client: Client, path: Path) -> bool:
    """Whether it has left a file or a directory, or has a command on the PATH."""
    left = path.exists() or client.home(path, os.environ, _home()).is_dir()
    return left or any(map(shutil.which, client.programs))


def _require(client: Client, path: Path, *, force: bool, terminal: Terminal) -> None:
    if is_installed(client, path):
        return
    sign = client.home(path, os.environ, _home())
    commands = "".join(f", and there is no command {name}" for name in client.programs[:1])
    fact = f"{client.title} does not seem to be installed: {sign} does not exist{commands}."
    if not force:
        raise EditRefused(
            fact,
            hint="Nothing was changed; start the client once, or add --force to make the file.",
        )
    terminal.note(fact)


def _tell(
    client: Client,
    change: Change,
    backup: Path | None,
    entry: dict[str, object],
    *,
    name: str,
    renewed: bool,
    terminal: Terminal,
) -> None:
    if change.kind == "unchanged":
        terminal.line(f"emceepee is registered in {client.title} already: {change.path}")
        return
    verb = "Renewed" if renewed else "Registered"
    terminal.line(f"{verb} emceepee in {client.title}: {change.path}")
    if backup is not None:
        terminal.line(f"The file as it was: {backup}")
    terminal.line(f"Restart {client.title} to see it; `{_undo(client, name)}` undoes it.")
    if not renewed:
        _explain_settings(client, entry, terminal)
    if client.strict and (problem := strict_problem(change.after or "")):
        terminal.note(f"{client.title} may refuse this file: it has {problem}.")


def _list(*, as_json: bool) -> None:
    rows = [_state(client) for client in CLIENTS.values()]
    terminal = Terminal()
    if as_json:
        terminal.document({"clients": rows})
        return
    terminal.table(
        ("CLIENT", "STATE", "FILE"),
        [(str(row["client"]), str(row["state"]), str(row["path"])) for row in rows],
        styles=_STATE_STYLES,
    )


def _state(client: Client) -> dict[str, object]:
    path = locate(client)
    names: list[str] = []
    try:
        with guard(path):
            text = read_file(path)
            ours = {n: e for n, e in client.servers(text or "").items() if is_ours(e)}
            names = list(ours)
        there = is_installed(client, path)
        state = "registered" if names else "not registered" if there else "not installed"
        if any(program_is_gone(entry) for entry in ours.values()):
            state = "program gone"
    except EditRefused:
        state = "broken"
    return {
        "client": client.key,
        "title": client.title,
        "state": state,
        "path": str(path),
        "names": names,
    }
