"""The environment and directory of a child: allow-listed variables, program lookup, owner mark.

Nothing else of ours reaches a child: a token in our own environment is not a token for everybody.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from emceepee_stdio.errors import CannotConnect, CommandNotFound

# Advice on a command line that was written as one command.
ARGS_APART = "The words after {} belong in `args`, not in quotes together with it"
DEPTH = "EMCEEPEE_DEPTH"
OWNER = "EMCEEPEE_OWNER"
# The client is on the other side of an HTTP front of ours: the beginning of its session's id there,
# and under which id its requests are recorded.
BEHIND_HTTP = "EMCEEPEE_HTTP_SESSION"
JOURNAL_SESSION = "EMCEEPEE_JOURNAL_SESSION"

_ULID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}", re.ASCII)
_MAX_DEPTH_DIGITS = 10  # no real depth is longer; converting endless digits is slow
_NAMES = frozenset(
    {"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER", "LANG", "TMPDIR"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
    | {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}
    | {"NODE_EXTRA_CA_CERTS"}
)
_PREFIXES = ("LC_", "XDG_", "SSL_CERT_")
_WINDOWS_NAMES = frozenset(
    {"APPDATA", "COMSPEC", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATHEXT", "PROGRAMDATA"}
    | {"PROGRAMFILES", "PROGRAMFILES(X86)", "SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "TMP", "WINDIR"}
    | {"NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "USERDOMAIN", "USERNAME", "USERPROFILE"}
)
_SYSTEM_DIRECTORIES = tuple(
    Path(name)
    for name in (
        *("/bin", "/sbin", "/usr", "/lib", "/lib64", "/etc", "/boot", "/dev", "/proc", "/sys"),
        *("/System", "/Library", "/Applications"),
        *("C:/Windows", "C:/Program Files", "C:/Program Files (x86)"),
    )
)


def journal_session(environ: Mapping[str, str]) -> str | None:
    """The id that our HTTP front gave this process; None for any other process."""
    given = environ.get(JOURNAL_SESSION, "") if BEHIND_HTTP in environ else ""
    return given if _ULID.fullmatch(given) else None


def child_environment(
    environ: Mapping[str, str],
    *,
    env: Mapping[str, str],
    pass_env: Iterable[str] = (),
    owner: str,
) -> dict[str, str]:
    """The allow-list, what `pass_env` names, what `env` sets, and the marks that are ours."""
    wanted = set(pass_env)
    child = {name: value for name, value in environ.items() if _allowed(name) or name in wanted}
    child |= env
    depth = environ.get(DEPTH, "0")
    child[DEPTH] = str(
        int(depth) + 1 if depth.isdecimal() and len(depth) < _MAX_DEPTH_DIGITS else 1
    )
    child[OWNER] = owner
    return child


def _allowed(name: str) -> bool:
    if sys.platform == "win32" and name.upper() in _WINDOWS_NAMES:
        return True
    return name in _NAMES or name.startswith(_PREFIXES)


def child_directory(cwd: str | None, *, ours: Path, home: Path) -> Path:
    """As given, else ours; a GUI starts us in `/`, where no server wants to work: then home."""
    if cwd is not None:
        return _expanded(cwd)
    return home if is_system_directory(ours) else ours


def is_system_directory(place: Path) -> bool:
    """Whether nobody works there: the root, and what belongs to the system."""
    return place == Path(place.anchor) or any(
        place.is_relative_to(directory) for directory in _SYSTEM_DIRECTORIES
    )


def resolve_command(command: str, *, path: str, directory: Path) -> str:
    """The program to run, as an absolute path; the error names what was searched.

    Looked up as a shell in the child's directory would: an empty or relative entry of the PATH
    starts there.
    """
    if _has_separator(command):
        candidate = directory / _expanded(command)
        found = shutil.which(str(candidate))
        searched, remedy = f"at {candidate}", "correct its path"
    else:
        places = [str(directory / entry) for entry in path.split(_SEPARATOR)] if path else []
        candidates = (Path(place) / command for place in places)
        candidate = next((one for one in candidates if _is(one, Path.is_file)), None)
        found = next(filter(None, (shutil.which(command, path=place) for place in places)), None)
        searched, remedy = f"on the PATH {path}", "give the absolute path of the command"
    if found is not None:
        return os.path.abspath(found)  # noqa: PTH100 - its links must stay
    if candidate is not None and _is(candidate, Path.is_dir):
        raise CannotConnect(f"{candidate} is a directory, not a command.")
    if candidate is not None and _is(candidate, Path.exists):
        raise CannotConnect(
            f"{candidate} is not executable.",
            hint=f"Run `chmod +x {candidate}`, or name its interpreter as the command.",
        )
    hint = f"Install it, or {remedy}."
    if first := first_word(command, path=path, directory=directory):
        hint = f"{ARGS_APART.format(first)}."
    raise CommandNotFound(f"The command {command!r} was not found {searched}.", hint=hint)


def first_word(command: str, *, path: str, directory: Path) -> str | None:
    """The command, where it was written together with its arguments; None where it was not."""
    first, *rest = command.split() or [""]
    if not rest:
        return None
    try:
        resolve_command(first, path=path, directory=directory)
    except CannotConnect:
        return None
    return first


_SEPARATOR = ";" if sys.platform == "win32" else ":"


def _has_separator(command: str) -> bool:
    return "/" in command or (sys.platform == "win32" and "\\" in command)


def _is(path: Path, what: Callable[[Path], bool]) -> bool:
    """Where we may not even look (a directory of somebody else's on the PATH), nothing is."""
    try:
        return what(path)
    except OSError:
        return False


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise CannotConnect(f"There is no home directory for {path}.") from None
