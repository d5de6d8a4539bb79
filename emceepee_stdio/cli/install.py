"""`emceepee install` and `emceepee uninstall`: the entry in a client's configuration."""

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config.clients import CLIENTS, HTTP_TOKEN, Client, ClientKey, is_ours
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_backup, read_file
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import strict_problem
from emceepee_stdio.config.load import PATH_VARIABLE, default_path
from emceepee_stdio.config.own_file import places
from emceepee_stdio.config.registration import register, unregister
from emceepee_stdio.config.server import name_problem
from emceepee_stdio.errors import ConfigInvalid, ProxyError

__all__ = [
    "ClientArgument",
    "DryRunOption",
    "install",
    "locate",
    "our_entry",
    "registered_environments",
    "registered_in",
    "uninstall",
]

_NAME = "emceepee"
# Directories of runners that clear what they made.
_PASSING = ("archive-v0", "builds-v0", ".cache")

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


def install(
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
    http: Annotated[
        str | None,
        typer.Option("--http", metavar="URL", help="Reach a running `emceepee serve --http`."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With no CLIENT: the list as JSON.")
    ] = False,
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
    row = CLIENTS[client]
    path = locate(row)
    terminal = Terminal()
    _require(row, path, force=force or dry_run, terminal=terminal)
    entry = (
        our_entry(row, config, terminal=terminal)
        if http is None
        else _remote_entry(row, http, config)
    )
    with guard(path):
        text = read_file(path)
        known = row.servers(text or "")
        if http is None:
            entry = _with_kept_choices(row, entry, known.get(name))
        edited = register(row, text, read_backup(path), name=name, entry=entry)
    change = Change(path=path, before=text, after=edited.text, backs_up=edited.backs_up)
    if dry_run:
        entries = [*known.values(), *row.servers(edited.text or "").values()]
        show_changes([change], entries, terminal, show_secrets=show_secrets)
        _explain_settings(row, entry, terminal)
        return
    backup = change.apply()
    _tell(row, change, backup, name=name, renewed=name in known, terminal=terminal)
    if http is not None:
        terminal.note(
            f"{row.title} takes the token from the variable {HTTP_TOKEN}: set it where "
            f"{row.title} is started. Then try it: emceepee doctor --http {http}"
        )
    others = sum(not is_ours(other) for other in known.values())
    if others:
        terminal.note(
            f"{row.title} has {others} other server{'' if others == 1 else 's'}; to move them "
            f"behind emceepee: emceepee config import {client} --replace"
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
            f"The file of {client.title} cannot name a server behind a URL.",
            hint=f"Nothing was changed; `emceepee install {client.key}` registers it on stdio.",
        )
    return entry


def _with_kept_choices(
    client: Client, entry: dict[str, object], present: object
) -> dict[str, object]:
    """What somebody gave our entry stays when it is written anew: variables, settings."""
    if not is_object(present) or not is_ours(present):
        return entry
    chosen = {key: value for key, value in present.items() if key in client.settings}
    more = {key: value for key, value in present.items() if key not in entry}
    ours, theirs = entry.get("env"), present.get("env")
    env = {**theirs, **ours} if is_object(ours) and is_object(theirs) else ours
    return {**entry, **chosen, **more, "env": env}


def _explain_settings(client: Client, entry: dict[str, object], terminal: Terminal) -> None:
    """A diff shows what is written; this says why, where it is of our choice."""
    for key, setting in client.settings.items():
        if entry.get(key) == setting.value:
            terminal.note(f"{key}: {client.title} {setting.why}.")


def registered_environments() -> Iterator[dict[str, str]]:
    """The variables with which each client starts us."""
    for client in CLIENTS.values():
        path = locate(client)
        try:
            with guard(path):
                servers = client.servers(read_file(path) or "")
        except EditRefused:
            continue
        for entry in servers.values():
            env = entry.get("env") if is_object(entry) and is_ours(entry) else None
            if is_object(env):
                yield {name: value for name, value in env.items() if isinstance(value, str)}


def uninstall(
    client: ClientArgument,
    *,
    name: NameOption = _NAME,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
) -> None:
    """Take emceepee out of an MCP client again; everything else in its file stays.

    Example: emceepee uninstall claude-desktop
    """
    row = CLIENTS[client]
    path = locate(row)
    terminal = Terminal()
    with guard(path):
        text = read_file(path)
        known = row.servers(text or "")
        if text is None or name not in known:
            _tell_absent(row, known, path, terminal)
            return
        edited = unregister(row, text, read_backup(path), name=name)
    change = Change(path=path, before=text, after=edited.text, backs_up=edited.backs_up)
    if dry_run:
        show_changes([change], known.values(), terminal, show_secrets=show_secrets)
        return
    backup = change.apply()
    if edited.text is None:
        terminal.line(f"Removed emceepee from {row.title}, and {path}, which held nothing else.")
    else:
        terminal.line(f"Removed emceepee from {row.title}: {path}")
    if backup is not None:
        terminal.line(f"The file as it was: {backup}")
    if not row.servers(edited.text or ""):
        _tell_moved(row, path, terminal)


def _tell_moved(client: Client, path: Path, terminal: Terminal) -> None:
    """Servers that were moved behind emceepee do not come back by themselves."""
    ours = default_path(os.environ)
    try:
        behind = [one.name for one in places(read_file(ours))]
    except ProxyError:
        return
    if behind:
        terminal.note(
            f"{client.title} has no servers now. Behind emceepee there are {', '.join(behind)}, in "
            f"{ours}; what {client.title} had before is in the .bak files beside {path}."
        )


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


def our_entry(client: Client, config: Path | None, *, terminal: Terminal) -> dict[str, object]:
    """Our entry, with nothing in it that only this shell would understand."""
    command, *args = _launcher()
    if any(part in _PASSING for part in Path(command).parts):
        terminal.note(
            f"{command} is in a cache that may be cleared; to stay, install emceepee first, "
            "for example with: uv tool install emceepee-stdio"
        )
    args.append("serve")
    if config is None and os.environ.get(PATH_VARIABLE):
        config = default_path(os.environ)
    if config is not None:
        config = config.expanduser().absolute()
        if not config.exists():
            add = f"emceepee config add --config {shlex.quote(str(config))} NAME -- COMMAND"
            terminal.note(f"{config} does not exist yet; `{add}` makes it.")
        args += ["--config", str(config)]
    return client.entry(command, args, {"PATH": _search_path()})


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise ConfigInvalid(
            "The home directory is unknown.", hint="Set HOME, and run the command again."
        ) from None


def _launcher() -> list[str]:
    """How to start this very emceepee from anywhere."""
    script = Path(sys.argv[0]).absolute()
    for path in (script, script.with_suffix(".exe")):
        if path.stem == _NAME and path.is_file() and (path.suffix == ".exe" or os.name == "posix"):
            return [str(path)]
    return [str(Path(sys.executable).absolute()), "-m", "emceepee_stdio"]


def _search_path() -> str:
    """The shell's PATH, because that of a graphical client is bare; each directory once."""
    given = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(place for place in given if Path(place).is_absolute()))


def _require(client: Client, path: Path, *, force: bool, terminal: Terminal) -> None:
    sign = client.home(path, os.environ, _home())
    if sign.is_dir() or path.exists():
        return
    fact = f"{client.title} does not seem to be installed: {sign} does not exist."
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
    named = "" if name == _NAME else f" --name {shlex.quote(name)}"
    undo = f"emceepee uninstall {client.key}{named}"
    terminal.line(f"Restart {client.title} to see it; `{undo}` undoes it.")
    if not renewed:
        _explain_settings(client, client.entry("", [], {}), terminal)
    if client.strict and (problem := strict_problem(change.after or "")):
        terminal.note(f"{client.title} may refuse this file: it has {problem}.")


def _tell_absent(client: Client, known: dict[str, object], path: Path, terminal: Terminal) -> None:
    ours = [name for name, entry in known.items() if is_ours(entry)]
    if ours:
        raise EditRefused(
            f"{client.title} has emceepee under another name: {', '.join(ours)}.",
            hint=f"Run: emceepee uninstall {client.key} --name {shlex.quote(ours[0])}",
        )
    terminal.line(f"emceepee is not registered in {client.title}: {path}")


def _list(*, as_json: bool) -> None:
    rows = [_state(client) for client in CLIENTS.values()]
    terminal = Terminal()
    if as_json:
        terminal.data(rows)
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
        there = text is not None or client.home(path, os.environ, _home()).is_dir()
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
