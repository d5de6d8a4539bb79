"""Processes seen from outside: what they hold, who is left, and a signal that hits no other."""

import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

HIDDEN = "hidden-"  # begins the name of the file that a descendant writes, whatever else it clears

_PROC = Path("/proc")
_KIND = re.compile(r"^anon_inode:\[?|:\[\d+\]$|\]$")


def at_home(home: Path) -> list[int]:
    """The processes that inherited this home: the proxy, and all that it started."""
    mark = f"HOME={home}".encode()
    return [pid for pid in _pids() if mark in _environment(pid)]


def hidden(home: Path) -> list[int]:
    """The descendants that may have cleared their environment: a fork keeps the command line."""
    mark = f"{home}/{HIDDEN}".encode()
    return [pid for pid in _pids() if mark in _read(pid, "cmdline")]


def children(parent: int) -> dict[int, str]:
    """The state of every child by its pid; `Z` is one that nobody has buried."""
    found: dict[int, str] = {}
    for pid in _pids():
        with suppress(OSError, ValueError, IndexError):
            stat = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            if int(stat[1]) == parent:
                found[pid] = stat[0]
    return found


def group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:
        return None


def descriptors(pid: int) -> Counter[str]:
    """The open file descriptors by what they are: `pipe`, `socket`, `pidfd`, `file` and others."""
    kinds: Counter[str] = Counter()
    for entry in (_PROC / str(pid) / "fd").iterdir():
        with suppress(OSError):
            target = str(entry.readlink())
            kind = "file" if target.startswith("/") else _KIND.sub("", target)
            kinds[kind] += 1
    return kinds


def resident_kb(pid: int) -> int:
    status = (_PROC / str(pid) / "status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def send_signal(pid: int, number: signal.Signals, home: Path) -> bool:
    """Only to a process of that home: a pid may have been given to somebody else."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if f"HOME={home}".encode() not in _environment(pid):
            return False
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal())


def _environment(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""
