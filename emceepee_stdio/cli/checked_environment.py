"""The environment in which `emceepee doctor` tries servers: that of the client which starts us.

A shell has variables and a PATH that a desktop does not give to its programs. What works in a shell
may fail in a client, so the client's environment is the one that counts.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from emceepee_stdio.cli.install import locate
from emceepee_stdio.cli.report import with_command
from emceepee_stdio.config.clients import CLIENTS, Client, is_ours
from emceepee_stdio.config.edit import EditRefused, guard, read_file
from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.load import PATH_VARIABLE

__all__ = ["CheckedEnvironment", "checked_environment"]

# What a program gets that a desktop starts: none of the shell's profile was read for it.
_DESKTOP_PATHS = {
    "darwin": "/usr/bin:/bin:/usr/sbin:/sbin",
    "linux": "/usr/local/bin:/usr/bin:/bin",
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
    variables: Mapping[str, str]
    unset_remedy: str = "Set {} where emceepee is started."
    config: Path | None = None

    def __repr__(self) -> str:
        return f"<CheckedEnvironment {self.key} {len(self.variables)} variables>"


def checked_environment(
    environ: Mapping[str, str], *, desktop: bool, of_shell: bool
) -> CheckedEnvironment:
    """As the person chose; else that of a client that starts us."""
    if of_shell and desktop:
        raise typer.BadParameter("give one of --desktop-env and --shell-env.")
    if of_shell:
        return _of_shell(environ, "Tried with the variables of your shell.")
    # What works with the fewest variables works with more of them.
    registered = sorted(_registrations(), key=lambda one: _POOREST.index(one[0].inherits))
    chosen = [one for one in registered if one[0].inherits == "desktop" or not desktop]
    if chosen:
        return _of_client(environ, *chosen[0])
    if desktop:
        summary = "Tried as a desktop starts them: without the variables of your shell."
        return CheckedEnvironment(
            key="desktop",
            summary=summary,
            variables=_desktop(environ),
            unset_remedy=with_command(
                "Give it to the client", "emceepee install CLIENT --env {}=VALUE"
            ),
        )
    nowhere = "Tried with the variables of your shell: no client starts emceepee yet."
    return _of_shell(environ, nowhere)


def _of_shell(environ: Mapping[str, str], summary: str) -> CheckedEnvironment:
    return CheckedEnvironment(key="shell", summary=summary, variables=dict(environ))


def _of_client(
    environ: Mapping[str, str], client: Client, entry: Mapping[str, object]
) -> CheckedEnvironment:
    given, named = entry.get("env"), entry.get("env_vars")
    more = {k: v for k, v in given.items() if isinstance(v, str)} if is_object(given) else {}
    names = frozenset(map(str, named)) if is_list(named) else frozenset[str]()
    few = {name: value for name, value in environ.items() if name in _FEW_NAMES | names}
    bases = {"desktop": _desktop(environ), "few": few, "shell": dict(environ)}
    return CheckedEnvironment(
        key=client.key,
        summary=f"Tried as {client.title} starts them: {_WORDS[client.inherits]}.",
        variables={**bases[client.inherits], **more},
        unset_remedy=_remedy(client),
        config=None if environ.get(PATH_VARIABLE) else _config_of(entry),
    )


def _remedy(client: Client) -> str:
    if client.inherits == "shell":
        return f"Set {{}} in your shell before you start {client.title}."
    return with_command(
        f"Give it to {client.title}, whose file then holds it in plain text",
        f"emceepee install {client.key} --env {{}}=VALUE",
    )


def _config_of(entry: Mapping[str, object]) -> Path | None:
    args = entry.get("args")
    words = [str(arg) for arg in args] if is_list(args) else []
    named = words[words.index("--config") + 1 :][:1] if "--config" in words else []
    return Path(named[0]) if named else None


def _registrations() -> Iterator[tuple[Client, Mapping[str, object]]]:
    """Each client that starts us, with its entry; those that reach us over HTTP start nothing."""
    for client in CLIENTS.values():
        path = locate(client)
        try:
            with guard(path):
                servers = client.servers(read_file(path) or "")
        except EditRefused:
            continue
        ours = (entry for entry in servers.values() if is_ours(entry))
        entry = next(ours, None)
        if is_object(entry) and "command" in entry:
            inner = entry["command"]
            yield client, inner if is_object(inner) else entry


def _desktop(environ: Mapping[str, str]) -> dict[str, str]:
    if sys.platform == "win32":  # there every program is given the same
        return dict(environ)
    bare = {name: value for name, value in environ.items() if name in _DESKTOP_NAMES}
    return {**bare, "PATH": _DESKTOP_PATHS.get(sys.platform, _DESKTOP_PATHS["linux"])}
