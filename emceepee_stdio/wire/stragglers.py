"""Processes that a child left behind, wherever they went.

Every descendant inherits the owner's mark in its environment, also one that left the group or whose
parent is gone. Linux shows the environment of our own processes; elsewhere nothing is found here
and the process group is all there is.
"""

import os
import select
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from emceepee_stdio.wire.environment import OWNER

__all__ = ["kill_group", "kill_marked", "marked"]

_PROC = Path("/proc")
# A killed process is gone in next to no time, unless the kernel holds it: nobody waits for that.
_NO_NEWS_MS = 500
# Half a second in all for those that are just being started, by ones that are being killed or not.
_ROUNDS = 50
_PAUSE = 0.01
_YOUNG = 2.0
_STARTED, _SIZE = 19, 20  # fields of /proc/PID/stat, counted from behind the name


def kill_group(pgid: int, *, force: bool) -> bool:
    """Signal a whole process group; False when nobody is left in it."""
    try:
        os.killpg(pgid, signal.SIGKILL if force else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def marked(owner: str) -> list[int]:
    """The living processes whose mark starts with this owner."""
    if sys.platform != "linux":
        return []
    mark = f"{OWNER}={owner}".encode()
    return [int(entry.name) for entry in _PROC.iterdir() if _carries(entry, mark)]


def kill_marked(owner: str) -> list[int]:
    """Kill them and see them end; a process that takes a freed pid in between is not hit.

    One that is just being started shows no environment for a moment: it is looked at again.
    """
    killed: list[int] = []
    mark = f"{OWNER}={owner}".encode()
    for _ in range(_ROUNDS):
        if found := marked(owner):
            killed += _kill(found, mark)
        elif _somebody_starts():
            select.select([], [], [], _PAUSE)
        else:
            break
    return killed


def _kill(pids: Sequence[int], mark: bytes) -> list[int]:
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
                if _carries(_PROC / str(pid), mark):
                    signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
                else:
                    os.close(handles.pop(pid))
        _await_end(handles.values())
    finally:
        for handle in handles.values():
            os.close(handle)
    return list(handles)


def _await_end(handles: Iterable[int]) -> None:
    poll = select.poll()
    waiting = set(handles)
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    while waiting and (ended := poll.poll(_NO_NEWS_MS)):
        for handle, _ in ended:
            poll.unregister(handle)
            waiting.discard(handle)


def _carries(entry: Path, mark: bytes) -> bool:
    if not entry.name.isdecimal():
        return False
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(mark) or b"\0" + mark in environment


def _somebody_starts() -> bool:
    if sys.platform != "linux":
        return False
    try:
        uptime = float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return False
    return any(_is_starting(entry, uptime) for entry in _PROC.iterdir())


def _is_starting(entry: Path, uptime: float) -> bool:
    """Whether a process is young, and has memory but no environment: the middle of an exec."""
    if not entry.name.isdecimal():
        return False
    try:
        if (entry / "environ").read_bytes():
            return False
        fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    age = uptime - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return int(fields[_SIZE]) > 0 and 0 <= age < _YOUNG
