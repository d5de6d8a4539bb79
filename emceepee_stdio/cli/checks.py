"""What `emceepee doctor` looks at beside the servers: this program, its files, the clients."""

import os
import platform
import shlex
import stat
import sys
from pathlib import Path

from emceepee_stdio import __version__
from emceepee_stdio.cli.backup_secrets import client_copies_with_secrets, copies_with_secrets
from emceepee_stdio.cli.client_here import client_here
from emceepee_stdio.cli.credential_notes import foreign_secrets
from emceepee_stdio.cli.install import locate
from emceepee_stdio.cli.keyring_storage import KeyringStorage
from emceepee_stdio.cli.plain_secrets import plain_secrets
from emceepee_stdio.cli.report import Check, Status, with_command
from emceepee_stdio.cli.secret_moves import how_to_move
from emceepee_stdio.config import Config, QuestionsMode, ServerConfig
from emceepee_stdio.config.clients import CLIENTS, Client, is_ours
from emceepee_stdio.config.edit import EditRefused, guard, read_file
from emceepee_stdio.config.fields import is_object
from emceepee_stdio.front.client_profile import PROFILES, UNKNOWN, questions_go_to
from emceepee_stdio.journal import default_directory
from emceepee_stdio.journal.redact import MARKER, redact_env
from emceepee_stdio.wire.stragglers import leftovers

__all__ = ["config_checks", "environment_checks", "registration_checks"]


def environment_checks(config: Config) -> list[Check]:
    running = Check(
        id="environment.emceepee",
        category="environment",
        status="ok",
        summary=f"emceepee {__version__}, Python {platform.python_version()}, {sys.platform}.",
        details={
            "version": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "interpreter": sys.executable,
        },
    )
    return [running, _journal_check(config), *_leftover_checks()]


def _leftover_checks() -> list[Check]:
    """Servers whose proxy was killed together with its watchdog; there hardly ever are any."""
    found = leftovers(os.environ.get("HOME"))
    if not found:
        return []
    names = ", ".join(f"{left.name} ({left.pid})" for left in found)
    pids = [str(left.pid) for left in found]
    return [
        Check(
            id="environment.leftovers",
            category="environment",
            status="warning",
            summary=f"Servers of a proxy that was killed still run: {names}.",
            details={"pids": [left.pid for left in found]},
            remediation=with_command("End them", shlex.join(["kill", *pids])),
        )
    ]


def _journal_check(config: Config) -> Check:
    chosen = config.settings.logging.directory
    directory = Path(chosen) if chosen else default_directory(os.environ)
    existing = next(place for place in (directory, *directory.parents) if place.exists())
    status: Status = "ok"
    summary, remedy = f"{directory} can be written.", None
    if not os.access(existing, os.W_OK | os.X_OK):
        status = "warning"
        summary = f"{directory} cannot be written: nothing will be there for tail-logs."
        remedy = f"Give yourself write access to {existing}, or set emceepee.logging.directory."
    return Check(
        id="environment.journal",
        category="environment",
        status=status,
        summary=summary,
        details={"directory": str(directory)},
        remediation=remedy,
    )


def config_checks(config: Config, file: Path) -> list[Check]:
    """The file itself; what its entries are like is the matter of the servers."""
    secrets = [*_secret_checks(file), *_shared_secret_checks(file), *_backup_checks()]
    return [_file_check(config, file), *secrets]


def _backup_checks() -> list[Check]:
    """Secrets in what we kept of the files of clients."""
    found = client_copies_with_secrets()
    if not found:
        return []
    held = "; ".join(f"{copy} ({', '.join(places)})" for copy, places in found.items())
    return [
        Check(
            id="config.backups",
            category="config",
            status="warning",
            summary=f"Backups of clients' files hold secrets in plain text: {held}.",
            details={str(copy): places for copy, places in found.items()},
            remediation=with_command(
                "`emceepee uninstall CLIENT --restore` needs them to put servers back. When all "
                "works, remove them",
                shlex.join(["rm", *map(str, found)]),
            ),
        )
    ]


def _shared_secret_checks(file: Path) -> list[Check]:
    """Secrets that are named after one server and given to others: perhaps not on purpose."""
    try:
        found = foreign_secrets(read_file(file))
    except (EditRefused, ValueError):
        return []
    if not found:
        return []
    given = ", ".join(f"{secret} ({', '.join(others)})" for secret, (_, others) in found.items())
    return [
        Check(
            id="config.shared_secrets",
            category="config",
            status="warning",
            summary=f"Servers are given secrets that are named after another one: {given}.",
            details={secret: {"of": of, "given_to": to} for secret, (of, to) in found.items()},
            remediation=with_command(
                "Remove the reference, or store the secret under a name of its own",
                "emceepee secrets set NAME",
            ),
        )
    ]


def _secret_checks(file: Path) -> list[Check]:
    """Secrets in plain text, in the file and in what was kept of it."""
    try:
        found = plain_secrets(read_file(file))
    except (EditRefused, ValueError):
        return []
    copies = [str(copy) for copy in copies_with_secrets(file)]
    where = list(dict.fromkeys(one.place for one in found))
    words = [f"Secrets stand in plain text in {file}: {', '.join(where)}."] if found else []
    words += [f"Backups hold secrets in plain text: {', '.join(copies)}."] if copies else []
    if not words:
        return []
    movable = [one for one in found if one.steps is not None]
    remedies: list[str] = []
    if movable:
        has_keyring = not KeyringStorage().is_absent()
        remedies.append(how_to_move(file, *movable, has_keyring=has_keyring))
    if copies:
        remedies.append(with_command("Remove the backups", shlex.join(["rm", *copies])))
    remedies += [f"{one.place}: {one.obstacle}" for one in found if one.steps is None]
    return [
        Check(
            id="config.secrets",
            category="config",
            status="warning",
            summary=" ".join(words),
            details={"plain_text": where, "backups": copies},
            remediation="\n".join(remedies),
        )
    ]


def _file_check(config: Config, file: Path) -> Check:
    count = len(config.servers) + len(config.disabled)
    details: dict[str, object] = {"path": str(file), "exists": file.exists()}
    if not file.exists():
        fact = f"{count} servers, none of them from {file}."
        return _config("ok", fact if count else f"{file} does not exist yet: no servers.", details)
    if unsafe := _unsafe(file):
        return _config("warning", unsafe[0], details, unsafe[1])
    if config.warnings:
        details["warnings"] = list(config.warnings)
        return _config(
            "warning",
            f"{file}: {config.warnings[0]}",
            details,
            with_command("See all of it", "emceepee config check"),
        )
    if _shows_secrets(config, file):
        return _config(
            "warning",
            f"{file} holds secrets, and other users can read it.",
            details,
            with_command("Close it to them", shlex.join(["chmod", "600", str(file)])),
        )
    return _config("ok", f"{file}: {count} server{'' if count == 1 else 's'}.", details)


def _config(
    status: Status, summary: str, details: dict[str, object], remedy: str | None = None
) -> Check:
    return Check(
        id="config.file",
        category="config",
        status=status,
        summary=summary,
        details=details,
        remediation=remedy,
    )


def _unsafe(file: Path) -> tuple[str, str] | None:
    """That others can change what is started here, and what to do."""
    if os.name != "posix":
        return None
    for path in (file, file.parent):
        found = path.stat()
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            fact = f"Every user of this machine can write {path}, and so run programs as you."
            return fact, with_command("Close it", shlex.join(["chmod", "o-w", str(path)]))
        if found.st_uid not in (0, os.getuid()):
            fact = f"{path} belongs to another user, who can run programs as you by changing it."
            return fact, with_command("Make it yours", f"sudo chown $USER {shlex.quote(str(path))}")
    return None


def _shows_secrets(config: Config, file: Path) -> bool:
    if os.name != "posix" or not file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return False
    return any(map(_holds_secrets, config.servers))


def _holds_secrets(server: ServerConfig) -> bool:
    """Whether the file may; what is in the keyring is not in the file."""
    env = {key: text for key, text in server.env.items() if ("env", key) not in server.templates}
    headers = [key for key in server.headers if ("headers", key) not in server.templates]
    return bool(headers) or MARKER in redact_env(env).values()


def registration_checks(config: Config) -> list[Check]:
    """Where emceepee is registered; a word when that is nowhere."""
    mode = config.settings.questions
    found = [check for client in CLIENTS.values() if (check := _registration(client, mode))]
    if any("names" in check.details for check in found):
        return found
    client = client_here()
    return [
        *found,
        Check(
            id="registration.none",
            category="registration",
            status="warning",
            summary="emceepee is registered in no client that is known here.",
            remediation=with_command(
                f"Register it, for example in {client.title}; `emceepee install` lists all clients",
                f"emceepee install {client.key}",
            ),
        ),
    ]


def _registration(client: Client, mode: QuestionsMode) -> Check | None:
    path = locate(client)
    try:
        with guard(path):
            servers = client.servers(read_file(path) or "")
    except EditRefused as error:
        return _registered(client, "warning", error.fact, {}, "Fix that file by hand.")
    ours = {name: entry for name, entry in servers.items() if is_ours(entry)}
    if not ours:
        return None
    others = len(servers) - len(ours)
    details: dict[str, object] = {"path": str(path), "names": list(ours), "other_servers": others}
    for name, entry in ours.items():
        command = _command(entry)
        details["command"] = command
        if Path(command).is_absolute() and not os.access(command, os.X_OK):
            return _registered(
                client,
                "failed",
                f"Its entry {name} starts {command}, which is not there.",
                details,
                with_command("Write it again", f"emceepee install {client.key}"),
            )
        if is_object(entry) and (former := client.former_settings(entry)):
            key = former[0]
            now = client.settings[key]
            return _registered(
                client,
                "warning",
                f"Its entry {name} has the {key} of an earlier version, {entry[key]}: {now.short}.",
                details,
                with_command(f"Raise it to {now.value}", f"emceepee install {client.key}"),
            )
    note = f", beside {others} other server{'' if others == 1 else 's'}" if others else ""
    profile = next((row for row in PROFILES if row.key == client.key), UNKNOWN)
    asked = details["questions_go_to"] = questions_go_to(profile, mode)
    summary = f"Registered in {client.title}{note}. Questions of servers go to {asked}."
    return _registered(client, "ok", summary, details)


def _registered(
    client: Client,
    status: Status,
    summary: str,
    details: dict[str, object],
    remedy: str | None = None,
) -> Check:
    return Check(
        id=f"registration.{client.key}",
        category="registration",
        status=status,
        summary=summary,
        details=details,
        remediation=remedy,
    )


def _command(entry: object) -> str:
    line = entry.get("command") if is_object(entry) else None
    command = line.get("path") if is_object(line) else line
    return str(command)
