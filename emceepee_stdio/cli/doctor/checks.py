"""Doctor's findings, and its checks beside the servers: this program, its files, the clients."""

import os
import platform
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import msgspec
import typer
from msgspec import Struct

from emceepee_stdio import __version__
from emceepee_stdio.cli import keyring_secrets
from emceepee_stdio.cli.clients import install
from emceepee_stdio.cli.secret_values import KeyringStorage, PlainSecret, plain_secrets
from emceepee_stdio.cli.status import shared_servers
from emceepee_stdio.cli.terminal import with_command
from emceepee_stdio.config.clients import CLIENTS, Client
from emceepee_stdio.config.edit import EditRefused, read_file
from emceepee_stdio.config.entries import flat
from emceepee_stdio.config.fields import schema_of
from emceepee_stdio.config.load import PATH_VARIABLE
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config, QuestionsMode
from emceepee_stdio.front.client_profile import PROFILES, UNKNOWN, questions_go_to
from emceepee_stdio.journal import default_directory
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.redaction.redact import MARKER, redact_env
from emceepee_stdio.session.proxy_status import read_running, status_directory
from emceepee_stdio.storage.private_file import others_may
from emceepee_stdio.trust.approval_request import shown
from emceepee_stdio.trust.store import TrustStore, default_trust_directory
from emceepee_stdio.visible_text import shell_line, shell_word
from emceepee_stdio.wire import system
from emceepee_stdio.wire.orphans import leftovers, process_table

Status = Literal["ok", "warning", "off", "auth", "failed"]
Category = Literal["environment", "config", "registration", "backend"]


_NAMED_WAITING = 3  # requests for approval, the newest
_SUBJECTS = {"config.file": "configuration", "registration.none": "registration"}


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at.

    Fields:
      id: Stable: the category, a dot, and what was looked at.
      status: auth: the server wants other credentials; off: disabled by you.
      summary: One sentence for people.
      details: What was measured or seen, by name.
      remediation: What to do about it; null when there is nothing to do. A command stands on a line
          of its own, behind two spaces.
      duration_ms: How long the check took, where that says something.
    """

    id: str
    category: Category
    status: Status
    summary: str
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    remediation: str | None = None
    duration_ms: int | None = None

    @classmethod
    def of(
        cls,
        check_id: str,
        status: Status,
        summary: str,
        remedy: str | None = None,
        *,
        details: Mapping[str, object] | None = None,
        duration_ms: int | None = None,
    ) -> "Check":
        return cls(
            id=check_id,
            category=cast("Category", check_id.partition(".")[0]),
            status=status,
            summary=summary,
            details=dict(details or {}),
            remediation=remedy,
            duration_ms=duration_ms,
        )

    @property
    def state(self) -> str:
        """How a person reads the status: a server that was not tried is disabled or broken."""
        return str(self.details.get("state", self.status))

    @property
    def subject(self) -> str:
        """What a person calls it."""
        return _SUBJECTS.get(self.id) or self.id.partition(".")[2]

    @property
    def found(self) -> str:
        """The summary for a row that has begun with the subject: without its name once more."""
        rest = self.summary.removeprefix(f"{self.subject} ")
        return self.summary if rest == self.summary else f"{rest[:1].upper()}{rest[1:]}"


class Report(Struct, frozen=True, kw_only=True):
    """The report of `emceepee doctor --json`.

    Fields:
      schema_version: Changes when a reader has to.
      overall_status: The worst of the checks.
      environment: With whose variables servers were tried: a client's, desktop or shell.
      interrupted: Whether it was stopped; then checks of servers are missing.
    """

    schema_version: int = 1
    overall_status: Literal["ok", "warning", "failed"] = "ok"
    environment: str = "shell"
    interrupted: bool = False
    checks: tuple[Check, ...] = ()

    @classmethod
    def of(
        cls, checks: tuple[Check, ...], *, environment: str = "shell", interrupted: bool = False
    ) -> "Report":
        found = {check.status for check in checks}
        worst = (
            "failed" if found & {"failed", "auth"} else "warning" if "warning" in found else "ok"
        )
        return cls(
            overall_status=worst, environment=environment, interrupted=interrupted, checks=checks
        )


def report_schema() -> dict[str, object]:
    """JSON Schema of the report."""
    return schema_of(Report, title="emceepee doctor report")


# The environment in which `emceepee doctor` tries servers: that of the client which starts us.
#
# A shell has variables and a PATH that a desktop does not give to its programs. What works in a
# shell may fail in a client, so the client's environment is the one that counts.


# What a program gets that a desktop starts: none of the shell's profile was read for it.
_DESKTOP_PATHS = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/bin:/usr/bin:/bin",
    "win32": None,  # there every program is given the same
}
# The only variables of a shell that Codex hands on, beside those that its entry names.
_FEW_NAMES = frozenset(
    {"HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER"}
)
_KEYRING_NAMES = ("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR")  # where a keyring listens
_DESKTOP_NAMES = frozenset({"HOME", "LOGNAME", "SHELL", "TMPDIR", "USER", "LANG", *_KEYRING_NAMES})

_POOREST = ("desktop", "few", "shell")
_WORDS = {
    "desktop": "without the variables of your shell",
    "few": "with few variables of your shell",
    "shell": "with the variables of your shell",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedEnvironment:
    """The variables that servers are tried with, and whose they are.

    `config` is the file that the client's entry names, if it names one.
    """

    key: str
    summary: str
    variables: Mapping[str, str] = field(repr=False)  # may hold secrets
    unset_remedy: str = "Set {} where emceepee is started."
    config: Path | None = None


def checked_environment(
    environ: Mapping[str, str], *, desktop: bool, of_shell: bool
) -> CheckedEnvironment:
    """As the person chose; else that of a client that starts us."""
    if of_shell and desktop:
        raise typer.BadParameter("give one of --desktop-env and --shell-env.")
    shell = CheckedEnvironment(
        key="shell", summary="Tried with the variables of your shell.", variables=dict(environ)
    )
    if of_shell:
        return shell
    # What works with the fewest variables works with more of them.
    registered = sorted(_registrations(), key=lambda one: _POOREST.index(one[0].inherits))
    chosen = [one for one in registered if one[0].inherits == "desktop" or not desktop]
    if chosen:
        return _of_client(environ, *chosen[0])
    if desktop:
        return CheckedEnvironment(
            key="desktop",
            summary=f"Tried as a desktop starts them: {_WORDS['desktop']}.",
            variables=_desktop(environ),
            unset_remedy=with_command(
                "Give it to the client", "emceepee install CLIENT --env {}=VALUE"
            ),
        )
    nowhere = "Tried with the variables of your shell: no client starts emceepee yet."
    return replace(shell, summary=nowhere)


def _of_client(
    environ: Mapping[str, str], client: Client, entry: Mapping[str, object]
) -> CheckedEnvironment:
    more = {k: v for k, v in mapping(entry.get("env")).items() if isinstance(v, str)}
    names = frozenset(map(str, elements(entry.get("env_vars"))))
    few = {name: value for name, value in environ.items() if name in _FEW_NAMES | names}
    bases = {"desktop": _desktop(environ), "few": few, "shell": dict(environ)}
    return CheckedEnvironment(
        key=client.key,
        summary=f"Tried as {client.title} starts them: {_WORDS[client.inherits]}.",
        variables={**bases[client.inherits], **more},
        unset_remedy=_remedy(client),
        config=None if environ.get(PATH_VARIABLE) else install.named_config(entry),
    )


def _remedy(client: Client) -> str:
    if client.inherits == "shell":
        return f"Set {{}} in your shell before you start {client.title}."
    return with_command(
        f"Give it to {client.title}, whose file then holds it in plain text",
        f"emceepee install {client.key} --env {{}}=VALUE",
    )


def _registrations() -> Iterator[tuple[Client, Mapping[str, object]]]:
    """Each client that starts us, with its entry; those that reach us over HTTP start nothing."""
    for client in CLIENTS.values():
        with suppress(EditRefused):
            for entry in [*install.ClientFile.of(client.key).ours.values()][:1]:
                if "command" in (line := flat(mapping(entry))):
                    yield client, line


def _desktop(environ: Mapping[str, str]) -> dict[str, str]:
    path = _DESKTOP_PATHS.get(sys.platform, _DESKTOP_PATHS["linux"])
    bare = {name: value for name, value in environ.items() if name in _DESKTOP_NAMES}
    return dict(environ) if path is None else {**bare, "PATH": path}


def environment_checks(config: Config) -> Iterator[Check]:
    version = platform.python_version()
    yield Check.of(
        "environment.emceepee",
        "ok",
        f"emceepee {__version__}, Python {version}, {sys.platform}.",
        details={
            "version": __version__,
            "python": version,
            "platform": platform.platform(),
            "interpreter": sys.executable,
        },
    )
    chosen = config.settings.logging.directory
    directory = Path(chosen) if chosen else default_directory(os.environ)
    existing = next(place for place in (directory, *directory.parents) if place.exists())
    status, fact, remedy = "ok", f"{directory} can be written.", None
    if not os.access(existing, os.W_OK | os.X_OK):
        status, fact = "warning", f"{directory} cannot be written: tail-logs will show nothing."
        remedy = f"Give yourself write access to {existing}, or set emceepee.logging.directory."
    details = {"directory": str(directory)}
    yield Check.of("environment.journal", status, fact, remedy, details=details)
    # Servers whose proxy was killed together with its watchdog; there hardly ever are any.
    if found := leftovers(os.environ.get("HOME")):
        names = ", ".join(f"{left.name} ({left.pid})" for left in found)
        pids = [left.pid for left in found]
        yield Check.of(
            "environment.leftovers",
            "warning",
            f"Servers of a proxy that was killed still run: {names}.",
            with_command("End them", shell_line(["kill", *map(str, pids)])),
            details={"pids": pids},
        )
    # Nothing is wrong with these, but they can be had for less.
    if shared := shared_servers(read_running(status_directory(os.environ)), process_table()):
        facts = msgspec.to_builtins(shared)
        facts["memory_bytes"] = facts.pop("memory")
        yield Check.of("environment.shared_servers", "ok", shared.proposal(), details=facts)


def config_checks(config: Config, file: Path) -> Iterator[Check]:
    """The file itself; what its entries are like is the matter of the servers."""
    yield _file_check(config, file)
    try:
        text = read_file(file)
        plain, foreign = plain_secrets(text), keyring_secrets.foreign_secrets(text)
    except (EditRefused, ValueError):
        plain, foreign = None, {}
    if plain is not None:
        yield from _secret_checks(file, plain)
    if foreign:  # perhaps not on purpose
        given = ", ".join(f"{one} ({', '.join(others)})" for one, (_, others) in foreign.items())
        yield Check.of(
            "config.shared_secrets",
            "warning",
            f"Servers are given secrets that are named after another one: {given}.",
            with_command(
                "Remove the reference, or store the secret under a name of its own",
                "emceepee secrets set NAME",
            ),
            details={secret: {"of": of, "given_to": to} for secret, (of, to) in foreign.items()},
        )
    if found := keyring_secrets.client_copies_with_secrets():
        held = "; ".join(f"{copy} ({', '.join(places)})" for copy, places in found.items())
        yield Check.of(
            "config.backups",
            "warning",
            f"Backups of clients' files hold secrets in plain text: {held}.",
            with_command(
                "`emceepee uninstall CLIENT --restore` needs them to put servers back. When all "
                "works, remove them",
                shell_line([system.REMOVE, *map(str, found)]),
            ),
            details={str(copy): places for copy, places in found.items()},
        )


def _secret_checks(file: Path, found: Sequence[PlainSecret]) -> Iterator[Check]:
    """Secrets in plain text, in the file and in what was kept of it."""
    copies = [str(copy) for copy in keyring_secrets.copies_with_secrets(file)]
    where = list(dict.fromkeys(one.place for one in found))
    words = [f"Secrets stand in plain text in {file}: {', '.join(where)}."] if found else []
    words += [f"Backups hold secrets in plain text: {', '.join(copies)}."] if copies else []
    movable = [one for one in found if one.steps is not None]
    remedies: list[str] = []
    if movable:
        has_keyring = not KeyringStorage().is_absent()
        remedies.append(keyring_secrets.how_to_move(file, *movable, has_keyring=has_keyring))
    if copies:
        remedies.append(with_command("Remove the backups", shell_line([system.REMOVE, *copies])))
    remedies += [f"{one.place}: {one.obstacle}" for one in found if one.steps is None]
    if words:
        yield Check.of(
            "config.secrets",
            "warning",
            " ".join(words),
            "\n".join(remedies),
            details={"plain_text": where, "backups": copies},
        )


def _file_check(config: Config, file: Path) -> Check:
    count = len(config.servers) + len(config.disabled)
    details: dict[str, object] = {"path": str(file), "exists": file.exists()}
    remedy = None
    if not file.exists():
        fact = f"{file} does not exist yet: no servers."
        if count:
            fact = f"{count} servers, none of them from {file}."
    elif unsafe := _unsafe(file):
        fact, remedy = unsafe
    elif config.warnings:
        details["warnings"] = list(config.warnings)
        fact = f"{file}: {config.warnings[0]}"
        remedy = with_command("See all of it", "emceepee config check")
    elif _shows_secrets(config, file):
        fact = f"{file} holds secrets, and other users can read it."
        remedy = with_command("Close it to them", shell_line(["chmod", "600", str(file)]))
    else:
        fact = f"{file}: {count} server{'' if count == 1 else 's'}."
    return Check.of("config.file", "warning" if remedy else "ok", fact, remedy, details=details)


def _unsafe(file: Path) -> tuple[str, str] | None:
    """That others can change what is started here, and what to do."""
    if os.name != "posix":
        return None
    for path in (file, file.parent):
        found = path.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            fact = f"Every user of this machine can write {path}, and so run programs as you."
            return fact, with_command("Close it", shell_line(["chmod", "o-w", str(path)]))
        if found.st_uid not in (0, os.getuid()):
            fact = f"{path} belongs to another user, who can run programs as you by changing it."
            return fact, with_command("Make it yours", f"sudo chown $USER {shell_word(str(path))}")
    return None


def _shows_secrets(config: Config, file: Path) -> bool:
    return others_may(file.stat()) and any(map(_holds_secrets, config.servers))


def _holds_secrets(server: ServerConfig) -> bool:
    """Whether the file may; what is in the keyring is not in the file."""
    env = {key: text for key, text in server.env.items() if ("env", key) not in server.templates}
    headers = [key for key in server.headers if ("headers", key) not in server.templates]
    return bool(headers) or MARKER in redact_env(env).values()


def approval_checks() -> Iterator[Check]:
    """What waits for the person who runs this."""
    waiting = TrustStore(default_trust_directory(os.environ)).waiting()
    if waiting:
        found = [{"id": one.id, "server": one.name, "about": one.about} for one in waiting]
        named = "; ".join(f"{one.name}: {one.about}" for one in waiting[-_NAMED_WAITING:])
        yield Check.of(
            "config.approvals",
            "warning",
            f"{len(waiting)} waiting for your approval: {shown(named)}.",
            with_command("See what waits, and answer it", "emceepee approve"),
            details={"waiting": found},
        )


def registration_checks(config: Config) -> Iterator[Check]:
    """Where emceepee is registered; a word when that is nowhere."""
    mode = config.settings.questions
    found = [check for client in CLIENTS.values() if (check := _registration(client, mode))]
    yield from found
    if not any("names" in check.details for check in found):
        client = install.client_here()
        yield Check.of(
            "registration.none",
            "warning",
            "emceepee is registered in no client that is known here.",
            with_command(
                f"Register it, for example in {client.title}; `emceepee install` lists all clients",
                f"emceepee install {client.key}",
            ),
        )


def _registration(client: Client, mode: QuestionsMode) -> Check | None:
    check_id, again = f"registration.{client.key}", f"emceepee install {client.key}"
    try:
        file = install.ClientFile.of(client.key)
        ours, others = file.ours, len(file.servers) - len(file.ours)
    except EditRefused as error:
        return Check.of(check_id, "warning", error.fact, "Fix that file by hand.")
    if not ours:
        return None
    details: dict[str, object] = {"path": str(file.path), "names": list(ours)}
    details["other_servers"] = others
    for name, entry in ours.items():
        details["command"] = command = install.program_of(entry)
        if install.program_is_gone(entry):
            fact = f"Its entry {name} starts {command}, which is not there."
            remedy = with_command("Write it again", again)
            return Check.of(check_id, "failed", fact, remedy, details=details)
        members = mapping(entry)
        if former := client.former_settings(members):
            key = former[0]
            now = client.settings[key]
            fact = f"has the {key} of an earlier version, {members[key]}: {now.short}."
            remedy = with_command(f"Raise it to {now.value}", again)
            return Check.of(
                check_id, "warning", f"Its entry {name} {fact}", remedy, details=details
            )
    note = f", beside {others} other server{'' if others == 1 else 's'}" if others else ""
    profile = next((row for row in PROFILES if row.key == client.key), UNKNOWN)
    asked = details["questions_go_to"] = questions_go_to(profile, mode)
    summary = f"Registered in {client.title}{note}. Questions of servers go to {asked}."
    return Check.of(check_id, "ok", summary, details=details)
