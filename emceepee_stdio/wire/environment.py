"""What a child starts with: its directory, allow-listed variables, its program, the owner mark.

Nothing else of ours reaches a child: a token in our own environment is not a token for everybody.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from emceepee_stdio.errors import CannotConnect, CommandNotFound
from emceepee_stdio.visible_text import windows_word

# Advice on a command line that was written as one command.
ARGS_APART = "The words after {} belong in `args`, not in quotes together with it"
DEPTH = "EMCEEPEE_DEPTH"
OWNER = "EMCEEPEE_OWNER"
# The client is on the other side of an HTTP front of ours: the beginning of its session's id there,
# the name of its token, and under which id its requests are recorded.
BEHIND_HTTP = "EMCEEPEE_HTTP_SESSION"
HTTP_TOKEN = "EMCEEPEE_HTTP_TOKEN"  # noqa: S105 - a name
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
_IS_WINDOWS = os.name == "nt"  # tests try its rules elsewhere
# With it cmd.exe, which runs `npx.cmd`, does not look for `node` in the directory of a project.
_NOT_IN_CURRENT_DIRECTORY = "NODEFAULTCURRENTDIRECTORYINEXEPATH"
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


def http_token(environ: Mapping[str, str]) -> str:
    """The name of the token for which this process works; empty without an HTTP front of ours."""
    return environ.get(HTTP_TOKEN, "") if BEHIND_HTTP in environ else ""


def child_environment(
    environ: Mapping[str, str],
    *,
    env: Mapping[str, str],
    pass_env: Iterable[str] = (),
    owner: str,
) -> dict[str, str]:
    """The allow-list, what `pass_env` names, what `env` sets, and the marks that are ours."""
    wanted = set(map(_key, pass_env))
    child = {
        _key(name): value
        for name, value in environ.items()
        if _allowed(name) or _key(name) in wanted
    }
    if _IS_WINDOWS:
        child[_NOT_IN_CURRENT_DIRECTORY] = "1"
    child |= {_key(name): value for name, value in env.items()}
    depth = environ.get(DEPTH, "0")
    child[DEPTH] = str(
        int(depth) + 1 if depth.isdecimal() and len(depth) < _MAX_DEPTH_DIGITS else 1
    )
    child[OWNER] = owner
    return child


def _key(name: str) -> str:
    """Windows takes `Path` and `PATH` for the same variable."""
    return name.upper() if _IS_WINDOWS else name


def _allowed(name: str) -> bool:
    if _IS_WINDOWS and name.upper() in _WINDOWS_NAMES:
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
    if "/" in command or (_IS_WINDOWS and "\\" in command):
        candidates = [directory / _expanded(command)]
        candidate = candidates[0]
        searched, remedy = f"at {candidate}", "correct its path"
    else:
        entries = path.split(os.pathsep) if path else []
        if _IS_WINDOWS:  # an empty entry is no place there, and stands at the end of many a PATH
            entries = [entry for entry in entries if entry]
        candidates = [directory / entry / command for entry in entries]
        candidate = next((one for one in candidates if _is(one, Path.is_file)), None)
        searched, remedy = f"on the PATH {path}", "give the absolute path of the command"
    found = next(filter(None, map(_program_at, candidates)), None) if command else None
    if found is not None:
        return os.path.abspath(found)  # noqa: PTH100 - its links must stay
    if candidate is not None and _is(candidate, Path.is_dir):
        raise CannotConnect(f"{candidate} is a directory, not a command.")
    if candidate is not None and _is(candidate, Path.exists):
        raise CannotConnect(
            f"{candidate} is not executable.",
            hint="Name its interpreter as the command."
            if _IS_WINDOWS
            else f"Run `chmod +x {candidate}`, or name its interpreter as the command.",
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


def _program_at(candidate: Path) -> str | None:
    """The file that is run for this path; on Windows with one of the endings, if it has none.

    Only there is looked: `shutil.which` would first look into our current directory on Windows,
    where a project may have put an `npx.cmd`.
    """
    if not _IS_WINDOWS:
        return str(candidate) if _can_run(candidate) else None
    runnable = [
        ending
        for ending in os.environ.get("PATHEXT", ";".join(_RUNNABLE)).lower().split(";")
        if ending in _RUNNABLE
    ]
    named = candidate.suffix.lower() in runnable
    tried = [str(candidate)] if named else []
    tried += [f"{candidate}{ending}" for ending in runnable]
    return next((one for one in tried if _is(Path(one), Path.is_file)), None)


def _can_run(candidate: Path) -> bool:
    try:
        return os.access(candidate, os.X_OK) and not os.path.isdir(candidate)  # noqa: PTH112 - as text
    except ValueError:  # no file has such a name
        return False


# Windows: how arguments reach a program.
#
# There a program gets one line of text. What is in a .cmd or .bat file (npx, npm and the programs
# that npm installs) is run by cmd.exe, which reads that line by other rules than every other
# program, so that an argument can run commands of its own (CVE-2024-24576).

_RUNNABLE = (".com", ".exe", ".bat", ".cmd")  # what the system starts without a program for it
_BATCH = (".bat", ".cmd")
_READ_IN_QUOTES = {'"': "a quote", "%": "a percent sign", "!": "an exclamation mark"}
_LINE_ENDS = {"\n": "a line end", "\r": "a line end", "\0": "a null character"}


def command_line(argv: Sequence[str]) -> str | list[str]:
    """What a process is started with: a list, or on Windows one line."""
    return windows_line(argv) if _IS_WINDOWS else list(argv)


def windows_line(argv: Sequence[str]) -> str:
    """The command line for an argument list; CannotConnect where cmd.exe would change it.

    In quotes cmd.exe reads only a quote, `%VARIABLE%` and, if the file asks for it, `!VARIABLE!`.
    """
    if not argv[0].lower().rstrip(" .").endswith(_BATCH):
        return subprocess.list2cmdline(argv)
    for word in argv:
        for char, what in (_READ_IN_QUOTES | _LINE_ENDS).items():
            if char in word:
                raise CannotConnect(
                    f"{argv[0]} is run by cmd.exe, which would change an argument of it: {what} "
                    "has a meaning there.",
                    hint="Name the program that the file starts as the command (for npx: node, and "
                    "the script as its first argument), or pass the value in `env`.",
                )
    return " ".join(map(windows_word, argv))


def _is(path: Path, what: Callable[[Path], bool]) -> bool:
    """Where we may not even look (a directory of somebody else's on the PATH), nothing is."""
    try:
        return what(path)
    except (OSError, ValueError):  # no file has such a name
        return False


def _expanded(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise CannotConnect(f"There is no home directory for {path}.") from None
