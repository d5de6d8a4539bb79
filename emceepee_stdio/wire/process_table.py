"""Processes as the system shows them: who their parent is, when they began, what memory they hold.

Linux tells all of it in /proc. Elsewhere only whether a process is there can be said, and a later
one with the same number is taken for it. Windows is untested: written from the documents.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessFacts", "is_running", "memory_of_trees", "namespace", "process_table", "started"]

_PROC = Path("/proc")
_STATE, _PARENT, _STARTED, _PAGES = 0, 1, 19, 21  # fields of stat, counted from behind the name
_DEAD = (b"Z", b"X")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """`started` is in ticks since the machine began; `memory` in bytes, with shared pages."""

    parent: int
    started: str
    memory: int


def process_table() -> Mapping[int, ProcessFacts]:
    """Every living process that can be seen; none where the system does not show them so."""
    if sys.platform != "linux":
        return {}
    try:
        pids = [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    except OSError:
        return {}
    return {pid: facts for pid in pids if (facts := _facts(pid)) is not None}


def started(pid: int) -> str:
    """What tells a process from a later one with its number; empty where that cannot be said."""
    facts = _facts(pid) if sys.platform == "linux" else None
    return "" if facts is None else facts.started


def is_running(pid: int, began: str) -> bool:
    """Whether the process is still there that had this number when it `began`."""
    if sys.platform == "linux":
        return bool(began) and started(pid) == began
    return _exists(pid)


def memory_of_trees(roots: Iterable[int], table: Mapping[int, ProcessFacts]) -> int:
    """Bytes that these processes and all below them hold; what they share is counted for each."""
    children: dict[int, list[int]] = {}
    for pid, facts in table.items():
        children.setdefault(facts.parent, []).append(pid)
    waiting, seen = [pid for pid in roots if pid in table], set[int]()
    while waiting:
        pid = waiting.pop()
        if pid not in seen:
            seen.add(pid)
            waiting += children.get(pid, ())
    return sum(table[pid].memory for pid in seen)


def namespace() -> str:
    """What tells our process numbers from those of a container with the same files."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def _facts(pid: int) -> ProcessFacts | None:
    if sys.platform != "linux":
        return None
    try:
        fields = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    if len(fields) <= _PAGES or fields[_STATE] in _DEAD:
        return None
    return ProcessFacts(
        parent=int(fields[_PARENT]),
        started=fields[_STARTED].decode(),
        memory=int(fields[_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
    )


if sys.platform == "win32":
    import ctypes

    _QUERY_LIMITED_INFORMATION = 0x1000
    _STILL_ACTIVE = 259

    def _exists(pid: int) -> bool:
        kernel = ctypes.WinDLL("kernel32", use_last_error=True)
        handle = kernel.OpenProcess(_QUERY_LIMITED_INFORMATION, 0, pid)
        if not handle:
            return False
        code = ctypes.c_ulong()
        kernel.GetExitCodeProcess(handle, ctypes.byref(code))
        kernel.CloseHandle(handle)
        return code.value == _STILL_ACTIVE

else:

    def _exists(pid: int) -> bool:
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        except (OSError, OverflowError):
            return False
        return True
