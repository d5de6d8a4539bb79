"""The processes that we run inside of, as far as the system shows them: Linux does.

Our children are told how deep they are in a variable. A program in between may have cleared it.
"""

import os
import re
import sys
from pathlib import Path

__all__ = ["proxies_above"]

_PROC = Path("/proc")
_PARENT_FIELD = 1  # field of /proc/PID/stat, counted from behind the name
_MAX_ANCESTORS = 100  # the tree may change while it is read; no real one is this deep
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*")
_SCRIPTS = frozenset({"emceepee", "emceepee-stdio"})


def proxies_above() -> int:
    """How many of our own kind are among our ancestors; an HTTP front only starts them."""
    if sys.platform != "linux":
        return 0
    count, pid = 0, os.getppid()
    for _ in range(_MAX_ANCESTORS):
        if pid <= 1:
            break
        argv = _read(pid, "cmdline").decode(errors="replace").split("\0")
        count += is_ours(argv) and not any(word.startswith("--http") for word in argv)
        pid = _parent(pid)
    return count


def is_ours(argv: list[str]) -> bool:
    """Whether a command line is that of emceepee itself, not of something that starts it."""
    name, rest = Path(argv[0]).name, argv[1:]
    if _INTERPRETER.fullmatch(name):
        if rest[:2] == ["-m", "emceepee_stdio"]:
            return True
        name = Path(rest[0]).name if rest else ""
    return name in _SCRIPTS


def _parent(pid: int) -> int:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[_PARENT_FIELD]) if len(fields) > _PARENT_FIELD else 0


def _read(pid: int, what: str) -> bytes:
    try:
        return (_PROC / str(pid) / what).read_bytes()
    except OSError:
        return b""
