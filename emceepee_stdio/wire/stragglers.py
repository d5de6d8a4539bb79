"""Processes that a child left behind, wherever they went.

Every descendant inherits the owner's mark in its environment, also one that left the group or whose
parent is gone. Linux shows the environment of our own processes; elsewhere nothing is found here
and the process group is all there is.
"""

import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.environment import OWNER
from emceepee_stdio.wire.orphans import descendants, has_members, orphans

__all__ = [
    "Leftover",
    "kill_group",
    "kill_marked",
    "kill_same",
    "leftovers",
    "marked",
    "moments_of_birth",
    "owner_mark",
]

_PROC = Path("/proc")
_OWNER_MARK = re.compile(
    rb"\0" + OWNER.encode() + rb"=[0-9A-Z]+-(?P<pid>\d{1,10})-(?P<started>\d*)[.\0]"
)
_KILL_WAIT_MS = 500  # a killed process ends in milliseconds, unless the kernel holds it
_SCANNING_S = 0.5  # in all, for processes that are just starting, or that fork on
_MIN_SCANS = 3  # however slow the machine is
_SCAN_PAUSE_S = 0.01  # an exec takes about a millisecond
_STARTING_AGE_S = 2.0  # an exec is over long before; an older one really has no environment
_STARTED, _SIZE = 19, 20  # fields of /proc/PID/stat, counted from behind the name


class Leftover(NamedTuple):
    """A process whose owner is gone."""

    pid: int
    name: str


def owner_mark(unique: str) -> str:
    """The mark of this very process: tells later whether it is still there."""
    return f"{unique}-{os.getpid()}-{_started(os.getpid())}"


def leftovers(home: str | None) -> list[Leftover]:
    """Processes of this home that carry the mark of an owner that has gone without them."""
    found: list[Leftover] = []
    if sys.platform != "linux":
        return found
    for entry in _processes():
        if not entry.name.isdecimal():
            continue
        environment = b"\0" + (_read(entry / "environ") or b"")
        if home is not None and b"\0HOME=" + os.fsencode(home) + b"\0" not in environment:
            continue
        mark = _OWNER_MARK.search(environment)
        if mark and _started(int(mark["pid"])) != mark["started"].decode():
            name = (_read(entry / "comm") or b"").decode(errors="replace").strip()
            found.append(Leftover(int(entry.name), name))
    return found


def _started(pid: int) -> str:
    """When a process began, in ticks since the machine did; empty when there is none such."""
    fields = (_read(_PROC / str(pid) / "stat") or b"").rpartition(b")")[2].split()
    return fields[_STARTED].decode() if len(fields) > _STARTED else ""


def kill_group(pgid: int, *, force: bool) -> bool:
    """Signal a whole process group; False when nobody is left in it."""
    if sys.platform == "win32":
        return False
    try:
        os.killpg(pgid, signal.SIGKILL if force else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def marked(owner: str) -> list[int]:
    """The living processes whose mark starts with this owner."""
    return _look(_mark(owner))[0]


def kill_marked(owner: str, *, clock: Clock | None = None) -> list[int]:
    """Kill them and see them end; a process that takes a freed pid in between is not hit.

    One that is just being started shows no environment for a moment: it is looked at again. One
    that forks and exits faster than all processes can be looked at has come to us: its group is
    killed as a whole. Those of other servers, whatever they do, are looked at for so long at most.
    """
    killed: list[int] = []
    mark, others = _mark(owner), set[int]()
    now = (clock or Clock()).now
    until = now() + _SCANNING_S
    for scans in count(1):
        in_doubt = _kill_orphans(mark, others)
        found, somebody_starts = _look(mark)
        if found:
            killed += _kill(found, mark)
        elif in_doubt or somebody_starts:
            select.select([], [], [], _SCAN_PAUSE_S)
        else:
            break
        if scans >= _MIN_SCANS and now() > until:
            break
    return killed


def _kill_orphans(mark: bytes, others: set[int]) -> bool:
    """Kill groups that came to us and carry the mark; those of `others` are known not to.

    Whether there is a group left of which nobody could be looked at: its members were dead by then.
    """
    unseen: set[int] = set()
    if sys.platform == "win32":
        return False
    for pid in reversed(orphans()):  # the last to come is the one that lives
        with suppress(OSError):
            group = os.getpgid(pid)
            if group in others:
                continue
            environment = _read(_PROC / str(pid) / "environ")
            if not environment:
                unseen.add(group)
            elif _carries(environment, mark):
                kill_group(group, force=True)
            else:
                others.add(group)
    return any(has_members(group) for group in unseen - others)


def moments_of_birth(pids: Iterable[int]) -> dict[int, str]:
    """What tells a process from a later one with its number."""
    return {pid: _started(pid) for pid in pids}


def kill_same(born: Mapping[int, str]) -> None:
    """Kill those that are still the same, and all below them."""
    if sys.platform == "win32":
        return
    for pid, started in born.items():
        if started and _started(pid) == started:
            for one in (*descendants(pid), pid):
                with suppress(OSError):
                    os.kill(one, signal.SIGKILL)


def _mark(owner: str) -> bytes:
    return f"{OWNER}={owner}".encode()


def _look(mark: bytes) -> tuple[list[int], bool]:
    """Who carries the mark, and whether there is somebody of whom that cannot be said yet."""
    found: list[int] = []
    somebody_starts = False
    if sys.platform == "linux":
        for entry in _processes():
            if not entry.name.isdecimal():
                continue
            environment = _read(entry / "environ")
            if _carries(environment, mark):
                found.append(int(entry.name))
            elif environment == b"" and _is_starting(entry):
                somebody_starts = True
    return found, somebody_starts


def _kill(pids: Sequence[int], mark: bytes) -> list[int]:
    if sys.platform != "linux":
        return []
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
                if _carries(_read(_PROC / str(pid) / "environ"), mark):
                    signal.pidfd_send_signal(handles[pid], signal.SIGKILL)
                else:
                    os.close(handles.pop(pid))
        _await_end(handles.values())
    finally:
        for handle in handles.values():
            os.close(handle)
    return list(handles)


def _await_end(handles: Iterable[int]) -> None:
    if sys.platform == "win32":
        return
    poll = select.poll()
    waiting = set(handles)
    for handle in waiting:
        poll.register(handle, select.POLLIN)
    while waiting and (ended := poll.poll(_KILL_WAIT_MS)):
        for handle, _ in ended:
            poll.unregister(handle)
            waiting.discard(handle)


def _carries(environment: bytes | None, mark: bytes) -> bool:
    return environment is not None and b"\0" + mark in b"\0" + environment


def _is_starting(entry: Path) -> bool:
    """Whether a process without an environment has memory and is young: the middle of an exec."""
    if sys.platform == "win32":
        return False
    fields = (_read(entry / "stat") or b"").rpartition(b")")[2].split()
    uptime = (_read(_PROC / "uptime") or b"").split()
    if len(fields) <= _SIZE or not uptime or int(fields[_SIZE]) == 0:
        return False
    age = float(uptime[0]) - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return 0 <= age < _STARTING_AGE_S


def _processes() -> list[Path]:
    """One entry for each; none where not even /proc can be opened, for want of descriptors."""
    try:
        return list(_PROC.iterdir())
    except OSError:
        return []


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None
