"""`emceepee install`: our entry in the file of a client, and what else stands in that file."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import unquote, urlsplit

import typer

from emceepee_stdio import __version__
from emceepee_stdio.cli import secret_values
from emceepee_stdio.cli.command_line import argument, flag, option
from emceepee_stdio.cli.shared_options import JsonOption, tell_backups
from emceepee_stdio.cli.terminal import confirm, is_person_there, terminal
from emceepee_stdio.config.clients import (
    CLIENTS,
    HTTP_TOKEN,
    Client,
    ClientKey,
    is_ours,
    register,
    servers_by_place,
)
from emceepee_stdio.config.edit import Change, EditRefused, guard, read_backup, read_file
from emceepee_stdio.config.entries import flat
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import Steps, strict_problem
from emceepee_stdio.config.load import PATH_VARIABLE, default_path
from emceepee_stdio.config.server import name_problem
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import on_one_line, shell_line, shell_word
from emceepee_stdio.wire import system

# The scopes in which a client keeps its servers: for the user, for one project, in its file.
#
# What stands in a project's file somebody else may have written: none of it is taken over before
# the person has seen it and agreed.


_REJECTED = "disabledMcpjsonServers"  # what the person refused of a project's file, in the client


class ClientScope(NamedTuple):
    """Some servers of a client: where they stand, and what the person refused of them there."""

    title: Literal["user", "local", "project"]
    path: Path
    steps: Steps
    servers: Mapping[str, object]
    rejected: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """The scope and its directory or file, for a message."""
        return local_place(self.steps) or f"{self.title}, {self.path}"


def local_place(section: Steps) -> str:
    """The local scope and its directory, for a message; empty if the section is the user's."""
    _, *inside = section
    return f"local, {on_one_line(str(inside[0]))}" if inside else ""


class ClientFile(NamedTuple):
    """The file of a client, or where it would be, and its text."""

    client: Client
    path: Path
    text: str | None

    @classmethod
    def of(cls, key: ClientKey) -> Self:
        path = locate(CLIENTS[key])
        return cls(CLIENTS[key], path, read_file(path))

    @property
    def servers(self) -> Mapping[str, object]:
        """Raises where the file cannot be read."""
        with guard(self.path):
            return self.client.servers(self.text or "")

    @property
    def ours(self) -> dict[str, object]:
        """Those of them that are emceepee."""
        return {name: entry for name, entry in self.servers.items() if is_ours(entry)}


def scopes_of(file: ClientFile, directory: Path) -> list[ClientScope]:
    """The person's own first: the closest, then the user's; a project's file comes last."""
    client, path, text = file
    with guard(path):
        document = client.language.read(text or "")
        user = ClientScope("user", path, (client.section,), file.servers)
    projects = mapping(mapping(document).get(client.projects))
    places = [place for place in _project_names(directory) if is_object(projects.get(place))]
    local = [
        ClientScope(
            "local",
            path,
            (client.projects, place, client.section),
            mapping(mapping(projects[place]).get(client.section)),
        )
        for place in places
    ]
    rejected = {name for place in places for name in _words(projects[place], _REJECTED)}
    files = _project_files(client, directory, frozenset(rejected))
    return [scope for scope in (*local, user, *files) if scope.servers or scope is user]


def other_directories(client: Client, text: str, directory: Path) -> list[str]:
    """Those for which the client has servers of their own, without this one."""
    here = _project_names(directory)
    servers = servers_by_place(client, text)
    found = dict.fromkeys(str(steps[1]) for steps in servers if steps[0] == client.projects)
    return [place for place in found if place not in here]


def _words(value: object, key: str) -> list[str]:
    """The list of texts that stands under this key; empty if there is none."""
    return [str(word) for word in elements(mapping(value).get(key))]


def _project_names(directory: Path) -> list[str]:
    """What a client calls the project here: by the repository's directory, or by this one."""
    around = (directory, *directory.parents)
    repository = next((place for place in around if (place / ".git").exists()), directory)
    return list(dict.fromkeys(map(str, (directory, repository))))


def _project_files(
    client: Client, directory: Path, rejected: frozenset[str]
) -> Iterator[ClientScope]:
    """The files of the projects around this directory, the nearest first."""
    if not client.project_file:
        return
    for place in (directory, *directory.parents):
        path = place / client.project_file
        try:
            with guard(path):
                servers = client.servers(read_file(path) or "")
        except EditRefused as error:
            terminal.note(f"{error.fact} Its servers are left out.")
            continue
        yield ClientScope("project", path, (client.section,), servers, rejected)


def refusal(scope: ClientScope, name: str, entry: object, *, unasked: str) -> str | None:
    """Why a server of a project's file is not taken over; None where the person agrees.

    With `unasked`, which says when a person is asked, nobody is.
    """
    if scope.title != "project":
        return None
    if name in scope.rejected:
        return "you refused it in the client."
    when = unasked if is_person_there() else "at a terminal you are asked"
    if when:
        return f"it stands in {scope.path}: {when} whether to take it."
    terminal.note(
        f"{scope.path}, a file of the project, which others may have written, has {name}:"
    )
    terminal.note(
        json.dumps(secret_values.shown_entry(entry, [entry]), indent=2, ensure_ascii=False)
    )
    return None if confirm(f"Take {name} over?", usual=False) else "you did not agree."


# Where a client finds emceepee later, also when it was run from a runner's cache just now.


_NAME = "emceepee"
_PACKAGE = "emceepee-stdio"
# Directories of runners that clear what they made.
_PASSING = ("archive-v0", "builds-v0", ".cache")
_INSTALL_TIMEOUT_S = 600.0  # a slow line, and some 50 packages
_QUERY_TIMEOUT_S = 30.0  # uv answers in milliseconds


def lasting_program(*, dry_run: bool) -> list[str]:
    """How to start this very emceepee from anywhere, at any time."""
    command = _this_program()
    if not is_passing(command[0]):
        return command
    if (uv := os.environ.get("UV") or shutil.which("uv")) is None:
        terminal.note(
            f"{command[0]} is in a cache that may be cleared. To stay, install the package first, "
            f"for example with: pipx install {shell_word(_source())}"
        )
        return command
    return [str(_install_with(uv, dry_run=dry_run))]


def is_passing(place: str) -> bool:
    """Whether a path lies in a cache that its runner may clear."""
    return any(part in _PASSING for part in Path(place).parts)


def _this_program() -> list[str]:
    script = Path(sys.argv[0]).absolute()
    program = script.with_name(f"{script.stem}{system.PROGRAM_SUFFIX}")
    if script.stem == _NAME and program.is_file():
        return [str(program)]
    return [str(Path(sys.executable).absolute()), "-m", "emceepee_stdio"]


def _install_with(uv: str, *, dry_run: bool) -> Path:
    """Have uv keep what `uvx` only holds in its cache; where it then is."""
    folder = Path(_run([uv, "tool", "dir", "--bin"], _QUERY_TIMEOUT_S).strip())
    program = folder / f"{_NAME}{system.PROGRAM_SUFFIX}"
    install = [uv, "tool", "install", "--quiet", _source()]
    if dry_run:
        terminal.note(f"Would run first, so that it stays: {shell_line(install)}")
        return program
    with terminal.waiting("Installing emceepee with uv"):
        _run(install, _INSTALL_TIMEOUT_S)
    terminal.note(
        f"Installed {program}, so that it stays when uv clears its cache; "
        f"`uv tool uninstall {_PACKAGE}` removes it."
    )
    if shutil.which(_NAME) is None:
        terminal.note(f"{folder} is not on your PATH; this puts it there: uv tool update-shell")
    return program


def _run(command: list[str], timeout: float) -> str:
    shown = shell_line(command)
    try:
        ran = subprocess.run(  # noqa: S603 - uv, which started us
            command,
            timeout=timeout,
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EditRefused(f"{shown} failed: {error}", hint="Nothing was changed.") from None
    except subprocess.CalledProcessError as error:
        lines = str(error.stderr).strip().splitlines() or ["it said nothing"]
        raise EditRefused(
            f"{shown} failed: {lines[-1]}",
            hint="Nothing was changed; run that command yourself to see all it says.",
        ) from None
    return ran.stdout


def _source() -> str:
    """What this emceepee was installed from: a file, a repository, or a version on an index."""
    text = importlib.metadata.distribution(_PACKAGE).read_text("direct_url.json")
    origin = mapping(json.loads(text) if text else None)
    url = origin.get("url")
    if not isinstance(url, str):
        return f"{_PACKAGE}=={__version__}"
    if version := mapping(origin.get("vcs_info")):
        return f"{version.get('vcs')}+{url}@{version.get('commit_id')}"
    if not url.startswith("file:"):
        return url
    path = unquote(urlsplit(url).path)
    bare = path.removeprefix("/")
    return bare if Path(bare).drive else path


# `emceepee install`: our entry in a client's configuration.


_STATE_STYLES = {
    "registered": "green",
    "broken": "red",
    "program gone": "red",
    "not installed": "dim",
}

ClientArgument = Annotated[ClientKey, argument("CLIENT", about=f"One of {', '.join(CLIENTS)}.")]
NameOption = Annotated[
    str, option("NAME", "--name", about="What the entry is called in the client.")
]
DryRunOption = Annotated[bool, flag("--dry-run", about="Show the change as a diff, and make none.")]


def install(  # noqa: PLR0913 - one for each option
    client: Annotated[
        ClientKey | None, argument("CLIENT", about=f"One of {', '.join(CLIENTS)}; none lists them.")
    ] = None,
    *,
    name: NameOption = _NAME,
    dry_run: DryRunOption = False,
    show_secrets: secret_values.ShowSecretsOption = False,
    force: Annotated[bool, flag("--force")] = False,
    config: Annotated[Path | None, option("FILE", "--config")] = None,
    env: Annotated[list[str] | None, option("K=V", "--env", "-e")] = None,
    http: Annotated[str | None, option("URL", "--http")] = None,
    as_json: JsonOption = False,
) -> None:
    """Register emceepee in an MCP client.

    Without CLIENT, lists the clients and their files. Keeps everything else in the client's file,
    and the file as it was in a .bak beside it.

    Takes:
      force: Also for a client that seems not to be installed.
      config: The configuration to serve from.
      env: A variable for emceepee in this client.
      http: Reach a running `emceepee serve --http`.

    Example: emceepee install claude-desktop --dry-run
    """
    if client is None:
        _list(as_json=as_json)
        return
    if problem := name_problem(name):
        raise typer.BadParameter(f"{problem}.", param_hint="--name")
    variables = _variables(env or (), http)
    file = ClientFile.of(client)
    row, path, text = file
    _require(row, path, force=force or dry_run)
    entry = (
        our_entry(row, config, dry_run=dry_run)
        if http is None
        else _remote_entry(row, http, config)
    )
    _note_missing_file(entry)
    with guard(path):
        known = file.servers
        entry = _with_kept_choices(row, entry, known.get(name), variables)
        edited = register(row, text, read_backup(path), name=name, entry=entry)
    change = Change(path=path, before=text, after=edited.text, backs_up=edited.backs_up)
    if dry_run:
        entries = [*known.values(), *row.servers(edited.text or "").values()]
        secret_values.show_changes([change], entries, show_secrets=show_secrets)
        _explain_settings(row, entry)
        return
    backup = change.apply()
    secrets = secret_values.secrets_of({name: {"env": variables}})
    secret_values.note_plain(path, secrets, _undo(row, name))
    if as_json:
        terminal.document({"client": client, **change.facts(backup)})
        return
    if change.kind == "unchanged":
        terminal.line(f"emceepee is registered in {row.title} already: {path}")
    else:
        _tell(row, change, backup, verb="Renewed" if name in known else "Registered")
        terminal.line(f"Restart {row.title} to see it; `{_undo(row, name)}` undoes it.")
        if name not in known:
            _explain_settings(row, entry)
    _tell_raised(row, known.get(name))
    if http is not None:
        terminal.note(
            f"{row.title} takes the token from the variable {HTTP_TOKEN}: set it where "
            f"{row.title} is started. Then try it: emceepee doctor --http {http}"
        )
    _note_others(file)


def _undo(client: Client, name: str) -> str:
    named = "" if name == _NAME else f" --name {shell_word(name)}"
    return f"emceepee uninstall {client.key}{named}"


def _note_others(file: ClientFile) -> None:
    """How many servers an import would take from here."""
    client = file.client
    names = {
        name
        for scope in scopes_of(file, Path.cwd())
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


def _explain_settings(client: Client, entry: dict[str, object]) -> None:
    """A diff shows what is written; this says why, where it is of our choice."""
    for key, setting in client.settings.items():
        if entry.get(key) == setting.value:
            terminal.note(f"{key}: {client.title} {setting.why}.")


def _tell_raised(client: Client, before: object) -> None:
    if is_object(before) and is_ours(before):
        for key in client.former_settings(before):
            terminal.note(f"{key}: {before[key]} became {client.settings[key].value}.")


def locate(client: Client) -> Path:
    """The client's file, or where it would be."""
    places = client.places(sys.platform, os.environ, _home())
    return next((place for place in places if place.parent.is_dir()), places[-1])


def program_of(entry: object) -> str:
    """What a client starts by this entry."""
    return str(flat(mapping(entry)).get("command"))


def program_is_gone(entry: object) -> bool:
    """Whether an entry of ours names a program that is not there any more."""
    program = program_of(entry)
    return Path(program).is_absolute() and not os.access(program, os.X_OK)


def named_config(entry: object) -> Path | None:
    """The configuration that an entry of ours names; None if it serves from the usual one."""
    words = _words(entry, "args")
    named = words[words.index("--config") + 1 :][:1] if "--config" in words else []
    return Path(named[0]) if named else None


def registered_in() -> list[str]:
    """The clients that start emceepee, by their titles."""
    return [client.title for client in CLIENTS.values() if _state(client)["state"] == "registered"]


def our_entry(client: Client, config: Path | None, *, dry_run: bool) -> dict[str, object]:
    """Our entry, with nothing in it that only this shell would understand."""
    command, *args = lasting_program(dry_run=dry_run)
    args.append("serve")
    if config is None and os.environ.get(PATH_VARIABLE):
        config = default_path(os.environ)
    if config is not None:
        args += ["--config", str(config.expanduser().absolute())]
    return client.entry(command, args, {"PATH": _search_path()})


def _note_missing_file(entry: dict[str, object]) -> None:
    """Of a configuration that our entry names; an import makes it in the same moment."""
    named = named_config(entry)
    if named is not None and not named.exists():
        add = f"emceepee config add --config {shell_word(str(named))} NAME -- COMMAND"
        terminal.note(f"{named} does not exist yet; `{add}` makes it.")


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


def _require(client: Client, path: Path, *, force: bool) -> None:
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


def _tell(client: Client, change: Change, backup: Path | None, *, verb: str) -> None:
    terminal.line(f"{verb} emceepee in {client.title}: {change.path}")
    tell_backups([backup])
    if client.strict and (problem := strict_problem(change.after or "")):
        terminal.note(f"{client.title} may refuse this file: it has {problem}.")


def _list(*, as_json: bool) -> None:
    rows = [_state(client) for client in CLIENTS.values()]
    if as_json:
        terminal.document({"clients": rows})
        return
    cells = [(str(row["client"]), str(row["state"]), str(row["path"])) for row in rows]
    terminal.table(("CLIENT", "STATE", "FILE"), cells, styles=_STATE_STYLES)


def _state(client: Client) -> dict[str, object]:
    names: list[str] = []
    try:
        ours = ClientFile.of(client.key).ours
        names = list(ours)
        there = is_installed(client, locate(client))
        state = "registered" if names else "not registered" if there else "not installed"
        if any(map(program_is_gone, ours.values())):
            state = "program gone"
    except EditRefused:
        state = "broken"
    return {
        "client": client.key,
        "title": client.title,
        "state": state,
        "path": str(locate(client)),
        "names": names,
    }


def client_here() -> Client:
    """The first client that is installed; Claude Desktop where none is found."""
    found = (client for client in CLIENTS.values() if is_installed(client, locate(client)))
    usual = CLIENTS["claude-desktop"]
    try:
        return next(found, usual)
    except ConfigInvalid:  # without a home directory nobody can tell
        return usual
