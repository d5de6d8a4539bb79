"""`emceepee config path`, `show`, `add`, `remove`, `check` and `schema`."""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from emceepee_stdio.cli.config_change import carry_out, config_file, place_of
from emceepee_stdio.cli.configured_servers import (
    configured_rows,
    note_reasons,
    note_warnings,
    show_rows,
)
from emceepee_stdio.cli.credential_notes import note_added, note_removed
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.exposed_view import KnownExposure, known_exposure, some_of
from emceepee_stdio.cli.install import DryRunOption
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import secret_name
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.cli.secret_input import read_secrets
from emceepee_stdio.cli.secret_values import ShowSecretsOption
from emceepee_stdio.cli.shared_options import ConfigOption, JsonOption, ServerArgument
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.config import Config, config_schema, default_path, jsonc, load_file
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_file
from emceepee_stdio.config.entries import how_treated
from emceepee_stdio.config.expand import keyring_reference
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.own_file import (
    judge,
    places,
    put_server,
    remove_server,
)
from emceepee_stdio.config.server import ServerConfig, label, name_problem
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.journal.redact import MARKER, redact
from emceepee_stdio.wire.environment import ARGS_APART, first_word

__all__ = ["add", "check", "path", "remove", "schema", "show"]

# What a command line that we print has in place of a value that we do not show.
_TO_FILL_IN = "…"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class StartChoice(StrEnum):
    """When a server is started."""

    EAGER = "eager"
    AUTO = "auto"
    LAZY = "lazy"


def path() -> None:
    """Show where the configuration file is looked for.

    Example: emceepee config path
    """
    Terminal().line(str(default_path(os.environ)))


def show(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Show the configuration: its servers, what they expose, and its settings; secrets hidden.

    Example: emceepee config show --json
    """
    file = config_file(config)
    loaded = load_file(config, environ=os.environ)
    text = read_file(file)
    servers = configured_rows(text, loaded)
    exposed = known_exposure(loaded, os.environ)
    for row in servers:
        if row["state"] == "usable" and (known := exposed.get(str(row["name"]))):
            row["exposed_as"] = known.names
    terminal = Terminal()
    if as_json:
        document = jsonc.read(text or "")
        terminal.document(
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
    note_warnings(loaded, terminal)
    show_rows(servers, terminal)
    for entry in loaded.servers:
        if entry.expose:
            terminal.line(f"{entry.name} exposes {_exposed(entry, exposed.get(entry.name))}")
    note_reasons(servers, terminal)
    document = jsonc.read(text or "")
    settings = document.get("emceepee") if is_object(document) else None
    if settings:
        terminal.line("Settings:")
        terminal.data(redact(settings))


def add(  # noqa: PLR0913 - one for each option
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the server is to be called.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND [ARG]...]", help="Program to start, and its arguments."
        ),
    ] = None,
    *,
    url: Annotated[str | None, typer.Option(metavar="URL", help="Address to call instead.")] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="K=V",
            help="A variable for the command; K alone: the value that K has when the server"
            " starts.",
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
    start: Annotated[
        StartChoice | None,
        typer.Option(
            metavar="WHEN",
            help="eager: with each session; lazy: on first use; auto: lazy once it is known.",
            show_default="the general setting",
        ),
    ] = None,
    lazy: Annotated[bool, typer.Option("--lazy", help="The same as --start lazy.")] = False,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Take the place of a server of this name; its rules stay."),
    ] = False,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Add a server: a command to start, after two dashes, or a URL to call.

    A secret does not belong on the command line, where others see it: --secret-env asks for it, or
    reads it from stdin, and keeps it in the keyring.

    Example: emceepee config add github --secret-env GITHUB_TOKEN -- ./github-server
    """
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="NAME")
    secrets = {key: secret_name(name, key) for key in secret_env or ()}
    variables = [*(env or ()), *(f"{k}={keyring_reference(n)}" for k, n in secrets.items())]
    entry = _entry(command or [], url, env=variables, headers=header or [], cwd=cwd)
    if lazy and start is not None:
        raise typer.BadParameter("--lazy is --start lazy: give one of them.", param_hint="--start")
    if lazy:
        entry["lazy"] = True
    elif start is not None:
        entry["start"] = start.value
    file = config_file(config)
    text = read_file(file)
    with guard(file):
        former = next((place.entry for place in places(text) if place.name == name), None)
        kept = _kept(former, entry) if replace else {}
        entry |= kept
        word = _judged(name, entry)
        after = put_server(text, name, entry, source=str(file))
    if former is not None and not replace and after != text:
        raise EditRefused(
            f"{file} has a server named {label(name)} already.",
            hint="Nothing was changed; choose another name, or add --replace.",
        )
    change = Change(path=file, before=text, after=after)
    what = f"Added {label(name)}"
    if secrets and not dry_run:
        storage = KeyringStorage()
        storage.require_for_server()  # before anybody types a secret
        values = dict(zip(secrets.values(), read_secrets(list(secrets)), strict=True))
        with storage.storing(values):
            carry_out(change, what, dry_run=False, show_secrets=False)
    else:
        carry_out(change, what, dry_run=dry_run, show_secrets=show_secrets)
    if kept:
        Terminal().note(f"Kept from the entry before: {', '.join(kept)}.")
    if word := word or _missing_command(name, entry):
        Terminal().note(word)
    if not dry_run:
        note_added(file, after, name, Terminal())


def _kept(former: object, entry: Mapping[str, object]) -> dict[str, object]:
    """Rules and the like, which the command line does not say: they hold for the new target."""
    kept = how_treated(former) if is_object(former) else {}
    if {"start", "lazy"} & entry.keys():
        kept = {key: kept[key] for key in kept if key not in ("start", "lazy")}
    return {key: kept[key] for key in kept if key not in entry}


def _judged(name: str, entry: object) -> str | None:
    try:
        return judge(name, entry, environ=os.environ)
    except ConfigInvalid as error:
        raise typer.BadParameter(error.fact) from None


def _missing_command(name: str, entry: Mapping[str, object]) -> str | None:
    """That a command is not there, as far as this shell can tell."""
    command = str(entry.get("command", ""))
    if not command or shutil.which(command):
        return None
    path = os.environ.get("PATH", os.defpath)
    if first := first_word(command, path=path, directory=Path.cwd()):
        return f"{ARGS_APART.format(label(first))}. Add it again with --replace, without quotes."
    if {"/", "\\", "$"} & set(command):
        return None
    return with_command(
        f"There is no command {label(command)} on the PATH. When it is installed, try the server",
        shlex.join(["emceepee", "doctor", name]),
    )


def remove(
    name: ServerArgument,
    *,
    dry_run: DryRunOption = False,
    show_secrets: ShowSecretsOption = False,
    config: ConfigOption = None,
) -> None:
    """Remove a server.

    Example: emceepee config remove github
    """
    file = config_file(config)
    text = read_file(file)
    with guard(file):
        after = remove_server(text, name, source=str(file))
        place_of(text, name)
    change = Change(path=file, before=text, after=after)
    carry_out(change, f"Removed {label(name)}", dry_run=dry_run, show_secrets=show_secrets)
    if not dry_run:
        note_removed(text, after, name, Terminal())


def check(*, config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Read the configuration and name every problem in it; exit 1 when there is one.

    Example: emceepee config check --config ./config.json
    """
    terminal = Terminal()
    loaded = load_file(config, environ=os.environ)
    broken = [server for server in loaded.disabled if not server.switched_off]
    healthy = not broken and not loaded.warnings
    if as_json:
        terminal.document(
            {
                "path": str(config_file(config)),
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


def schema() -> None:
    """Print the JSON Schema of the configuration file.

    Example: emceepee config schema
    """
    Terminal().data(config_schema())


def _say_problems(loaded: Config, terminal: Terminal) -> None:
    for warning in loaded.warnings:
        terminal.line(f"warning: {warning}")
    for server in loaded.disabled:
        terminal.line(f"{server.state}: {server.name}: {server.reason}")
    usable = len(loaded.servers)
    terminal.line(f"{usable} usable server{'' if usable == 1 else 's'}.")


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
    if not name or not (given or _VARIABLE_NAME.fullmatch(name)):
        raise typer.BadParameter("it needs NAME or NAME=VALUE.", param_hint="-e")
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


def _exposed(entry: ServerConfig, known: KnownExposure | None) -> str:
    """The names that a client is listed, where they are known; else what the entry says."""
    if known is not None:
        return some_of(known.names) or "nothing that it lists"
    return "everything" if isinstance(entry.expose, bool) else some_of(entry.expose)
