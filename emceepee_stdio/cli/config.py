"""`emceepee config path`, `show`, `add`, `remove`, `check` and `schema`."""

import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from emceepee_stdio.cli import secret_values, shared_options
from emceepee_stdio.cli.clients.install import DryRunOption
from emceepee_stdio.cli.command_line import CommandGroup, LazyCommand, argument, flag, option
from emceepee_stdio.cli.keyring_secrets import note_plain_secrets, note_removed, note_shared
from emceepee_stdio.cli.terminal import ExitCode, read_secrets, terminal, with_command
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import jsonc, own_file
from emceepee_stdio.config.edit import Change, EditRefused, alone, guard, read_file
from emceepee_stdio.config.entries import flat, how_treated
from emceepee_stdio.config.fields import keyring_reference
from emceepee_stdio.config.load import default_path, load_file, load_text
from emceepee_stdio.config.server import StartMode, label, name_problem
from emceepee_stdio.config.settings import Config, config_schema
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.journal import Journal
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.redaction.redact import MARKER, redact
from emceepee_stdio.session.catalogue_files import default_catalogue_directory
from emceepee_stdio.trust.store import TrustStore, default_trust_directory
from emceepee_stdio.visible_text import shell_line, shell_word
from emceepee_stdio.wire.environment import ARGS_APART, first_word

# A change of our own configuration file by a command: shown as a diff, or made and told.
#
# A command decides what becomes of the text; all else is done here, once for all of them.


@dataclass(frozen=True, kw_only=True)
class EditedFile:
    """The file that a command changes, and the options that all such commands have."""

    path: Path
    dry_run: bool = False
    show_secrets: bool = False
    as_json: bool = False

    @cached_property
    def text(self) -> str | None:
        """Read when it is first needed: a person may be typing for a while before that."""
        return read_file(self.path)

    def read_again(self) -> str | None:
        """The text of now; the change will be one of that."""
        vars(self).pop("text", None)
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What a command makes of the file: the deed in a few words, and the new text.

    It is written inside of `writing`. `then` says what else there is to say, also after a dry run.
    """

    what: str
    after: str | None
    writing: Callable[[], AbstractContextManager[object]] = nullcontext
    then: Callable[[], None] = lambda: None

    def carry_out(self, file: EditedFile) -> None:
        """Make the change and say so, or show it as a diff."""
        change = Change(path=file.path, before=file.text, after=self.after)
        if file.dry_run:
            entries = [
                place.entry for text in (file.text, self.after) for place in own_file.places(text)
            ]
            secret_values.show_changes([change], entries, show_secrets=file.show_secrets)
        else:
            with self.writing():
                backup = change.apply()
            if file.as_json:
                terminal.document(change.facts(backup))
            else:
                same = f"Nothing to do: {file.path} is like this already."
                terminal.line(same if change.kind == "unchanged" else f"{self.what}: {file.path}")
                shared_options.tell_backups([backup])
        self.then()


_COMMON_OPTIONS = {
    "dry_run": (DryRunOption, False),
    "show_secrets": (secret_values.ShowSecretsOption, False),
    "config": (shared_options.ConfigOption, None),
    "as_json": (shared_options.JsonOption, False),
}
PREVIEWED = ("dry_run", "show_secrets", "config")


def changes_config(
    *options: str, waits: bool = False
) -> Callable[[Callable[..., Edit | None]], Callable[..., None]]:
    """Make a command of a function that says what becomes of the file; None if it only showed it.

    The command has these common options behind those of the function. Other commands wait
    meanwhile, so that each changes what the one before it wrote; but not for one that `waits` for a
    person.
    """

    def decorate(decide: Callable[..., Edit | None]) -> Callable[..., None]:
        @wraps(decide)
        def command(**given: Any) -> None:
            common = {name: given.pop(name) for name in options}
            file = EditedFile(path=shared_options.config_file(common.pop("config")), **common)
            with nullcontext() if waits or file.dry_run else alone():
                with guard(file.path):
                    edit = decide(file, **given)
                if edit is not None:
                    edit.carry_out(file)

        # Typer reads the parameters of a command from its signature.
        parameters = list(signature(decide).parameters.values())[1:]
        for name in options:
            annotation, default = _COMMON_OPTIONS[name]
            kind = Parameter.KEYWORD_ONLY
            parameters.append(Parameter(name, kind, default=default, annotation=annotation))
        command.__signature__ = Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
        return command

    return decorate


# The servers of the configuration, a row for each: name, state, and what it starts or calls.
#
# Programs read `off` where people read "disabled".


Row = dict[str, object]

_STYLES = {"usable": "green", "broken": "red", "disabled": "dim", "ignored": "yellow"}
_SKIPPED = "it is skipped; `emceepee config check` says why."


def configured_rows(text: str | None, loaded: Config) -> list[Row]:
    """Each entry of the file as it may be shown, and whether it is used."""
    first: dict[str, own_file.ConfigLocation] = {}
    found: list[tuple[own_file.ConfigLocation, str, str | None]] = []
    for place in own_file.places(text):
        state, reason = state_of(place.name, loaded)
        if first.setdefault(place.name, place) is not place:
            state, reason = "ignored", "the first server of this name is used."
        found.append((place, state, reason))
    again = "the same key stands again further down, and the last one is used."
    found += [(place, "ignored", again) for place in own_file.ignored(text)]
    entries = [place.entry for place, _, _ in found]
    return [
        {
            "name": label(place.name),
            "state": state,
            **({} if reason is None else {"reason": reason}),
            "entry": secret_values.shown_entry(place.entry, entries),
        }
        for place, state, reason in found
    ]


def state_of(name: str, loaded: Config) -> tuple[str, str | None]:
    """Whether an entry of this name is used, for programs, and why not."""
    if any(server.name == name for server in loaded.servers):
        return "usable", None
    unused = next((one for one in loaded.disabled if one.name == label(name)), None)
    if unused is None:
        return "broken", _SKIPPED
    return "off" if unused.switched_off else "broken", unused.reason


def state_word(state: object) -> str:
    """What people read for it."""
    return "disabled" if state == "off" else str(state)


def show_rows(rows: Sequence[Row], *, one_line: bool = False) -> None:
    """A table; with `one_line`, what is too wide for the terminal is cut."""
    if not rows:
        terminal.line("No servers yet. Add one: emceepee config add NAME -- COMMAND ARGS")
        return
    terminal.table(
        ("NAME", "STATE", "COMMAND OR URL"),
        [(str(row["name"]), state_word(row["state"]), target_of(row["entry"])) for row in rows],
        styles=_STYLES,
        one_line=one_line,
    )


def note_warnings(config: Config) -> None:
    """What is odd about the file; a typo may be why it has no servers."""
    for warning in config.warnings:
        terminal.note(f"warning: {warning}")


def target_of(entry: object) -> str:
    """What an entry without secrets starts or calls, on one line."""
    line = flat(mapping(entry))
    if not isinstance(command := line.get("command"), str):
        url = next((line[key] for key in ("url", "serverUrl", "httpUrl") if line.get(key)), "")
        return str(url)
    return shell_line([command, *map(str, elements(line.get("args")))])


# What a client is listed of exposed servers, as far as that is known without starting them.


_SHOWN_NAMES = 20  # a few lines of a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownExposure:
    """By what a server listed at some time: its exposed tools, and patterns that match none."""

    at: str
    names: Sequence[str]
    idle: Sequence[str]


def known_exposure(config: Config, environ: Mapping[str, str]) -> dict[str, KnownExposure]:
    """Of each exposed server of which it is known what it lists."""
    exposing = [entry for entry in config.servers if entry.expose]
    if not exposing:
        return {}
    # These load anyio.
    from emceepee_stdio.session.catalogue import Catalogue, CatalogueStore  # noqa: PLC0415
    from emceepee_stdio.session.exposed_lists import exposed_as, idle_patterns  # noqa: PLC0415

    store = CatalogueStore(default_catalogue_directory(environ))
    if not store.directory.is_dir():
        return {}
    catalogue = Catalogue(
        store,
        TrustStore(default_trust_directory(environ)),
        pin_mode=lambda: config.settings.policy.pin,
        journal=Journal.silent(Clock()),
    )
    found: dict[str, KnownExposure] = {}
    for entry in exposing:
        if (known := catalogue.look_up(entry)) is not None:
            found[entry.name] = KnownExposure(
                at=known.at,
                names=list(exposed_as(entry, known.tools, config.names).values()),
                idle=idle_patterns(entry, known.tools),
            )
    return found


def some_of(names: Sequence[str], count: int = _SHOWN_NAMES) -> str:
    """The first of them in a line."""
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return f"{', '.join(names[:count])}{more}"


def say_listed(name: str, known: KnownExposure | None) -> None:
    """What it comes to for a client."""
    if known is None:
        look = f"emceepee doctor {shell_word(name)}"
        terminal.note(f"What {label(name)} lists is not known yet. To see it: {look}")
        return
    terminal.line(f"Listed as: {some_of(known.names) or 'nothing'}")
    for pattern in known.idle:
        terminal.note(f"No tool of {label(name)} matches {pattern!r}.")


def _checked_name(name: str) -> str:
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.")
    return name


_NEW_NAME = "What the server is to be called."
NewNameArgument = Annotated[str, argument("NAME", about=_NEW_NAME, callback=_checked_name)]
# What a command line that we print has in place of a value that we do not show.
_TO_FILL_IN = "…"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def path() -> None:
    """Show where the configuration file is.

    Example: emceepee config path
    """
    terminal.line(str(default_path(os.environ)))


def show(
    *, config: shared_options.ConfigOption = None, as_json: shared_options.JsonOption = False
) -> None:
    """Show the configuration, with secrets hidden.

    Example: emceepee config show --json
    """
    file = shared_options.config_file(config)
    loaded = load_file(config, environ=os.environ)
    text = read_file(file)
    servers = configured_rows(text, loaded)
    exposed = known_exposure(loaded, os.environ)
    for row in servers:
        if row["state"] == "usable" and (known := exposed.get(str(row["name"]))):
            row["exposed_as"] = known.names
    settings = redact(mapping(jsonc.read(text or "")).get("emceepee", {}))
    if as_json:
        facts = {"path": str(file), "exists": text is not None, "servers": servers}
        terminal.document({**facts, "settings": settings, "warnings": loaded.warnings})
        return
    terminal.line(f"{file}{'' if text is not None else ' (does not exist yet)'}")
    note_warnings(loaded)
    show_rows(servers)
    for entry in loaded.servers:
        if not entry.expose:
            continue
        if (known := exposed.get(entry.name)) is not None:  # else what the entry says
            what = some_of(known.names) or "nothing that it lists"
        else:
            what = "everything" if isinstance(entry.expose, bool) else some_of(entry.expose)
        terminal.line(f"{entry.name} exposes {what}")
    for row in servers:
        if row["state"] in {"broken", "ignored"}:
            terminal.note(f"{row['name']}: {row['reason']}")
    if settings:
        terminal.line("Settings:")
        terminal.data(settings)


@changes_config(*PREVIEWED)
def add(  # noqa: PLR0913 - one for each option
    file: EditedFile,
    name: NewNameArgument,
    command: Annotated[list[str] | None, argument("[-- COMMAND [ARG]...]")] = None,
    *,
    url: Annotated[str | None, option("URL")] = None,
    env: Annotated[list[str] | None, option("K=V", "--env", "-e")] = None,
    secret_env: Annotated[list[str] | None, option("K")] = None,
    header: Annotated[list[str] | None, option("'K: V'")] = None,
    cwd: Annotated[Path | None, option("DIR")] = None,
    start: Annotated[StartMode | None, option("WHEN", show_default="the general setting")] = None,
    lazy: Annotated[bool, flag("--lazy")] = False,
    replace: Annotated[bool, flag("--replace")] = False,
) -> Edit:
    """Add a server.

    Give a command to start, after two dashes, or a URL to call. A secret does not belong on the
    command line, where others see it: --secret-env asks for it, or reads it from stdin, and keeps
    it in the keyring.

    Takes:
      command: Program to start, and its arguments.
      url: Address to call instead.
      env: A variable for the command; K alone: the value that K has when the server starts.
      secret_env: A variable from the keyring; its value is asked for.
      header: An HTTP header for the URL.
      cwd: Directory to start the command in.
      start: eager: with each session; lazy: on first use; auto: lazy once it is known.
      lazy: The same as --start lazy.
      replace: Take the place of a server of this name; its rules stay.

    Example: emceepee config add github --secret-env GITHUB_TOKEN -- ./github-server
    """
    secrets = {key: secret_values.secret_name(name, key) for key in secret_env or ()}
    variables = [*(env or ()), *(f"{k}={keyring_reference(n)}" for k, n in secrets.items())]
    entry = _entry(command or [], url, env=variables, headers=header or [], cwd=cwd)
    if lazy and start is not None:
        raise typer.BadParameter("--lazy is --start lazy: give one of them.", param_hint="--start")
    entry |= {"lazy": True} if lazy else {} if start is None else {"start": start}
    former = own_file.find(file.text, name)
    kept = _kept(former.fields, entry) if replace and former else {}
    entry |= kept
    try:
        word = own_file.judge(name, entry, environ=os.environ)
    except ConfigInvalid as error:
        raise typer.BadParameter(error.fact) from None
    after = own_file.put_server(file.text, name, entry, source=str(file.path))
    if former is not None and not replace and after != file.text:
        raise EditRefused(
            f"{file.path} has a server named {label(name)} already.",
            hint="Nothing was changed; choose another name, or add --replace.",
        )

    def tell() -> None:
        if kept:
            terminal.note(f"Kept from the entry before: {', '.join(kept)}.")
        if said := word or _missing_command(name, entry):
            terminal.note(said)
        if not file.dry_run:
            note_shared(after, name)
            note_plain_secrets(file.path, [name])

    writing = partial(_storing, secrets) if secrets else nullcontext
    return Edit(what=f"Added {label(name)}", after=after, writing=writing, then=tell)


@contextmanager
def _storing(secrets: Mapping[str, str]) -> Generator[None]:
    """With what the person types for these variables in the keyring, under these names."""
    storage = secret_values.KeyringStorage()
    storage.require(hint=secret_values.VARIABLE_INSTEAD)  # before anybody types a secret
    values = dict(zip(secrets.values(), read_secrets(list(secrets)), strict=True))
    with storage.storing(values):
        yield


def _kept(former: Mapping[str, object], entry: Mapping[str, object]) -> dict[str, object]:
    """Rules and the like, which the command line does not say: they hold for the new target."""
    kept = how_treated(former)
    starts = {"start", "lazy"}
    said = entry.keys() | starts if starts & entry.keys() else entry.keys()
    return {key: kept[key] for key in kept if key not in said}


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
        shell_line(["emceepee", "doctor", name]),
    )


@changes_config(*PREVIEWED)
def remove(file: EditedFile, name: shared_options.ServerArgument) -> Edit:
    """Remove a server.

    Example: emceepee config remove github
    """
    after = own_file.remove_server(file.text, name, source=str(file.path))
    shared_options.place_of(file.text, name)

    def tell() -> None:
        if not file.dry_run:
            note_removed(file.text, after, name)

    return Edit(what=f"Removed {label(name)}", after=after, then=tell)


def check(
    *, config: shared_options.ConfigOption = None, as_json: shared_options.JsonOption = False
) -> None:
    """Name every problem of the configuration.

    The exit code is 1 if there is one.

    Example: emceepee config check --config ./config.json
    """
    loaded = load_file(config, environ=os.environ)
    broken = [server for server in loaded.disabled if not server.switched_off]
    healthy = not broken and not loaded.warnings
    if as_json:
        terminal.document(
            {
                "path": str(shared_options.config_file(config)),
                "ok": healthy,
                "usable": [server.name for server in loaded.servers],
                "broken": [{"name": one.name, "reason": one.reason} for one in broken],
                "off": [server.name for server in loaded.disabled if server.switched_off],
                "warnings": loaded.warnings,
            }
        )
    else:
        for warning in loaded.warnings:
            terminal.line(f"warning: {warning}")
        for server in loaded.disabled:
            terminal.line(f"{server.state}: {server.name}: {server.reason}")
        usable = len(loaded.servers)
        terminal.line(f"{usable} usable server{'' if usable == 1 else 's'}.")
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def schema() -> None:
    """Print the JSON Schema of the configuration.

    Example: emceepee config schema
    """
    terminal.data(config_schema())


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
    if any(MARKER in value for value in (*command, url or "")):
        raise ConfigInvalid(
            f"This command line has {MARKER} where a secret was.",
            hint="Write the real value in its place, or a reference such as ${TOKEN}.",
        )
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


# `emceepee config list`: the servers of the configuration, each on a line.


def list_configured(
    *, config: shared_options.ConfigOption = None, as_json: shared_options.JsonOption = False
) -> None:
    """List the servers of the configuration.

    Shows name, state, and command or URL without secrets. The state is what the file says.
    `emceepee doctor` tries the servers.

    Example: emceepee config list
    """
    file = shared_options.config_file(config)
    loaded = load_file(config, environ=os.environ)
    rows = configured_rows(read_file(file), loaded)
    if as_json:
        servers = [
            {key: value for key, value in row.items() if key != "entry"}
            | {"target": target_of(row["entry"])}
            for row in rows
        ]
        terminal.document({"path": str(file), "servers": servers})
        return
    if not rows:
        note_warnings(loaded)
    show_rows(rows, one_line=True)
    if any(row["state"] in {"broken", "ignored"} for row in rows):
        terminal.note("See why: emceepee config check")


# `emceepee config get`: one server of the configuration, with its secrets hidden.


def get(
    name: shared_options.ServerArgument,
    *,
    config: shared_options.ConfigOption = None,
    as_json: shared_options.JsonOption = False,
) -> None:
    """Show one server, with secrets hidden.

    Example: emceepee config get github
    """
    file = shared_options.config_file(config)
    text = read_file(file) or ""
    with guard(file):
        place = shared_options.place_of(text, name)
        entries = [one.entry for one in own_file.places(text)]
    state, reason = state_of(name, load_text(text, environ=os.environ, source=str(file)))
    entry = secret_values.shown_entry(place.entry, entries)
    if as_json:
        facts = {"name": name, "path": str(file), "state": state, "reason": reason}
        terminal.document({**facts, "entry": entry})
        return
    terminal.line(f"{label(name)} is {state_word(state)}, in {file}:")
    terminal.data(entry)
    if reason and state != "off":
        terminal.note(reason)


# `emceepee config`: where the configuration is, what it says, and how to change it.


app = CommandGroup(
    no_args_is_help=True,
    help="Look at the configuration, and change it.",
    lazy={
        "list": LazyCommand("config:list_configured", "List the servers of the configuration."),
        "show": LazyCommand("config:show", "Show the configuration, with secrets hidden."),
        "get": LazyCommand("config:get", "Show one server, with secrets hidden."),
        "add": LazyCommand("config:add", "Add a server.", cls="shared_options:DashedCommand"),
        "add-json": LazyCommand("config_write:add_json", "Add a server from JSON."),
        "remove": LazyCommand("config:remove", "Remove a server."),
        "enable": LazyCommand("config_write:enable", "Enable a server."),
        "disable": LazyCommand("config_write:disable", "Disable a server, and keep its entry."),
        "edit": LazyCommand("config_write:edit", "Edit the configuration in your editor."),
        "import": LazyCommand(
            "clients.import_servers:import_servers", "Import the servers of an MCP client."
        ),
        "expose": LazyCommand("config_write:expose", "Choose tools that the client sees natively."),
        "rules": LazyCommand("config_write:rules", "Show or change the rules for tools."),
        "check": LazyCommand("config:check", "Name every problem of the configuration."),
        "path": LazyCommand("config:path", "Show where the configuration file is."),
        "schema": LazyCommand("config:schema", "Print the JSON Schema of the configuration."),
    },
)
