"""`emceepee config`: where the configuration is, what it says, and how to change it."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.config_expose import expose
from emceepee_stdio.cli.config_rules import rules
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.import_servers import import_servers
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import secret_name
from emceepee_stdio.cli.secret_input import read_secrets
from emceepee_stdio.cli.secret_values import ShowSecretsOption, show_changes, shown_entry
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config, config_schema, default_path, jsonc, load_file
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.expand import keyring_reference
from emceepee_stdio.config.fields import is_list, is_object, nearest
from emceepee_stdio.config.own_file import judge, places, put_server, remove_server
from emceepee_stdio.config.server import label, name_problem
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.journal.redact import MARKER, redact

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, help="Look at the configuration, and change it.")
app.command("import")(import_servers)
app.command()(rules)
app.command()(expose)

# What a command line that we print has in place of a value that we do not show.
_TO_FILL_IN = "…"
_STATE_STYLES = {"usable": "green", "broken": "red", "off": "dim"}

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Another file than the default one."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]


@app.command()
def path() -> None:
    """Show where the configuration file is looked for.

    Example: emceepee config path
    """
    Terminal().line(str(default_path(os.environ)))


@app.command()
def show(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show what the configuration says, as it is written there, with secrets hidden.

    Example: emceepee config show --json
    """
    file = _file(config)
    loaded = load_file(config, environ=os.environ)
    text = read_file(file)
    servers = _servers(text, loaded)
    terminal = Terminal()
    if as_json:
        document = jsonc.read(text or "")
        terminal.data(
            {
                "path": str(file),
                "exists": text is not None,
                "servers": servers,
                "settings": redact(document.get("emceepee", {})) if is_object(document) else {},
                "warnings": loaded.warnings,
            }
        )
        return
    terminal.line(f"{file}{'' if text is not None else ' (does not exist yet)'}")
    if servers:
        terminal.table(
            ("NAME", "STATE", "HOW"),
            [(str(row["name"]), str(row["state"]), _how(row["entry"])) for row in servers],
            styles=_STATE_STYLES,
        )
        for row in servers:
            if row["state"] == "broken":
                terminal.note(f"{row['name']}: {row['reason']}")
    else:
        terminal.line("No servers yet. Add one: emceepee config add NAME -- COMMAND ARGS")
    document = jsonc.read(text or "")
    settings = document.get("emceepee") if is_object(document) else None
    if settings:
        terminal.line("Settings:")
        terminal.data(redact(settings))


@app.command()
def add(  # noqa: PLR0913 - one for each option
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server is to be called.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND ARGS", help="Program to start, and its arguments."),
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Address to call instead.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", "-e", metavar="K=V", help="A variable for the command; K alone refers to ours."
        ),
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option(metavar="K", help="A variable from the keyring; its value is asked for."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'K: V'", help="An HTTP header for the URL.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory to start the command in.")
    ] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="Connect on first use.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of a server of this name.")
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Add a server: a command to start, after two dashes, or a URL to call.

    A secret does not belong on the command line, where others see it: --secret-env asks for it, or
    reads it from stdin, and keeps it in the keyring.

    Example: emceepee config add github --secret-env GITHUB_TOKEN -- npx -y some-github-server
    """
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="NAME")
    secrets = {key: secret_name(name, key) for key in secret_env or ()}
    variables = [*(env or ()), *(f"{k}={keyring_reference(n)}" for k, n in secrets.items())]
    entry = _entry(command or [], url, env=variables, headers=header or [], cwd=cwd)
    if lazy:
        entry["lazy"] = True
    try:
        word = judge(name, entry, environ=os.environ)
    except ConfigInvalid as error:
        raise typer.BadParameter(error.fact) from None
    file = _file(config)
    text = read_file(file)
    with guard(file):
        after = put_server(text, name, entry, source=str(file))
        known = any(place.name == name for place in places(text))
    if known and not replace and after != text:
        raise EditRefused(
            f"{file} has a server named {label(name)} already.",
            hint="Nothing was changed; choose another name, or add --replace.",
        )
    change = Change(path=file, before=text, after=after)
    if dry_run:
        _show_change(change, show_secrets=show_secrets)
    elif secrets:
        values = dict(zip(secrets.values(), read_secrets(list(secrets)), strict=True))
        with KeyringStorage().storing(values):
            _apply(change, f"Added {label(name)}")
    else:
        _apply(change, f"Added {label(name)}")
    if word:
        Terminal().note(word)


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which server.")],
    *,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Remove a server.

    Example: emceepee config remove github
    """
    file = _file(config)
    text = read_file(file)
    with guard(file):
        after = remove_server(text, name, source=str(file))
        names = [place.name for place in places(text)] if after is None else []
    if after is None:
        near = nearest(name, names)
        raise EditRefused(
            f"{file} has no server named {label(name)}.",
            hint=f"Did you mean {near}?" if near else "See `emceepee config show` for the names.",
        )
    change = Change(path=file, before=text, after=after)
    if dry_run:
        _show_change(change, show_secrets=show_secrets)
    else:
        _apply(change, f"Removed {label(name)}")


@app.command()
def check(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Read the configuration and name every problem in it; exit 1 when there is one.

    Example: emceepee config check --config ./config.json
    """
    terminal = Terminal()
    loaded = load_file(config, environ=os.environ)
    broken = [server for server in loaded.disabled if not server.switched_off]
    healthy = not broken and not loaded.warnings
    if as_json:
        terminal.data(
            {
                "path": str(_file(config)),
                "ok": healthy,
                "usable": [server.name for server in loaded.servers],
                "broken": [{"name": one.name, "reason": one.reason} for one in broken],
                "off": [server.name for server in loaded.disabled if server.switched_off],
                "warnings": loaded.warnings,
            }
        )
    else:
        _say_problems(loaded, terminal)
    if not healthy:
        raise typer.Exit(FAILED)


@app.command()
def schema() -> None:
    """Print the JSON Schema of the configuration file.

    Example: emceepee config schema
    """
    Terminal().data(config_schema())


def _say_problems(loaded: Config, terminal: Terminal) -> None:
    for warning in loaded.warnings:
        terminal.line(f"warning: {warning}")
    for server in loaded.disabled:
        state = "off" if server.switched_off else "broken"
        terminal.line(f"{state}: {server.name}: {server.reason}")
    usable = len(loaded.servers)
    terminal.line(f"{usable} usable server{'' if usable == 1 else 's'}.")


def _file(config: Path | None) -> Path:
    return default_path(os.environ) if config is None else config.expanduser()


def _show_change(change: Change, *, show_secrets: bool) -> None:
    entries = [place.entry for text in (change.before, change.after) for place in places(text)]
    show_changes([change], entries, Terminal(), show_secrets=show_secrets)


def _apply(change: Change, what: str) -> None:
    terminal = Terminal()
    backup = change.apply()
    if change.kind == "unchanged":
        terminal.line(f"Nothing to do: {change.path} says so already.")
        return
    terminal.line(f"{what}: {change.path}")
    if backup is not None:
        terminal.line(f"The file as it was: {backup}")


def _entry(
    command: Sequence[str],
    url: str | None,
    *,
    env: Sequence[str],
    headers: Sequence[str],
    cwd: Path | None,
) -> dict[str, object]:
    """The entry that a command line asks for, without what it leaves out."""
    if len(command) == 1 and url is None and command[0].startswith(("http://", "https://")):
        command, url = [], command[0]
    if bool(command) == (url is not None):
        raise typer.BadParameter("give either a command, after two dashes, or --url.")
    _refuse_hidden([*command, url or ""])
    if url is not None:
        if env or cwd:
            raise typer.BadParameter("--env and --cwd are for a command, not for --url.")
        entry: dict[str, object] = {"url": url, "headers": dict(map(_header, headers))}
    else:
        if headers:
            raise typer.BadParameter("--header is for --url, not for a command.")
        entry = {
            "command": _program(command[0]),
            "args": list(command[1:]),
            "env": dict(map(_variable, env)),
            "cwd": None if cwd is None else str(cwd.expanduser().absolute()),
        }
    return {key: value for key, value in entry.items() if value}


def _program(command: str) -> str:
    """A path that is relative to this directory is of no use from another."""
    relative = command.startswith((f".{os.sep}", f"..{os.sep}"))
    return str(Path(os.path.normpath(Path.cwd() / command))) if relative else command


def _refuse_hidden(values: Iterable[str]) -> None:
    if any(MARKER in value for value in values):
        raise ConfigInvalid(
            f"This command line has {MARKER} where a secret was.",
            hint="Write the real value in its place, or a reference such as ${TOKEN}.",
        )


def _variable(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not name:
        raise typer.BadParameter("expected NAME=VALUE.", param_hint="--env")
    # A value that was left out is looked up when the server starts, under the same name.
    return name, value if given and value != _TO_FILL_IN else f"${{{name}}}"


def _header(text: str) -> tuple[str, str]:
    name, given, value = (part.strip() for part in text.partition(":"))
    if not given or not name:
        raise typer.BadParameter("expected 'NAME: VALUE'.", param_hint="--header")
    if value == _TO_FILL_IN:
        raise ConfigInvalid(
            f"The header {label(name)} has no value yet.",
            hint=f"Write it in the place of {_TO_FILL_IN}, or a reference such as ${{TOKEN}}.",
        )
    return name, value


def _servers(text: str | None, loaded: Config) -> list[dict[str, object]]:
    """Each entry of the file as it may be shown, and whether it is used."""
    usable = {server.name for server in loaded.servers}
    reasons = {server.name: server for server in loaded.disabled}
    shown: list[dict[str, object]] = []
    found = list(places(text))
    entries = [place.entry for place in found]
    for place in found:
        row: dict[str, object] = {"name": label(place.name), "state": "usable"}
        if place.name not in usable:
            server = reasons.get(label(place.name))
            row["state"] = "off" if server and server.switched_off else "broken"
            row["reason"] = server.reason if server else "it is skipped; see the warnings."
        shown.append({**row, "entry": shown_entry(place.entry, entries)})
    return shown


def _how(entry: object) -> str:
    """What an entry without secrets starts or calls, on one line."""
    if not is_object(entry):
        return ""
    inner = entry.get("command")
    line: Mapping[str, object] = inner if is_object(inner) else entry
    command = line.get("path") if is_object(inner) else inner
    if not isinstance(command, str):
        url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if entry.get(key)), "")
        return str(url)
    args = line.get("args")
    words = [command, *(map(str, args) if is_list(args) else ())]
    return shlex.join(words)
