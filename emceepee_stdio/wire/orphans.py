"""Orphans: descendants of servers that lost their parent; found by mark or as our children.

A descendant that left its group and cleared its mark is known by nothing else. What comes to us has
to be buried, and must not be taken for a child that we started: whoever started that one waits for
its exit code. The kernel gives orphans to the main thread. There, a child of ours is on record
before anybody looks; a child that another thread is just starting is not in the list yet.

What buries or kills is for the main thread alone. Without `expect_orphans`, which is for a process
that is all ours, nothing here does anything.
"""

import os
import re
import select
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.environment import OWNER

# Processes as the system shows them: who their parent is, when they began, what memory they hold.
#
# Linux tells all of it in /proc. Elsewhere only whether a process is there can be said, and a later
# one with the same number is taken for it. Windows is untested: written from the documents.


_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted from behind the name.
_STATE, _PARENT, _STARTED, _SIZE, _PAGES = 0, 1, 19, 20, 21
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
    return {pid: facts for pid in _processes() if (facts := _facts(pid)) is not None}


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
    fields = _stat(pid)
    if len(fields) <= _PAGES or fields[_STATE] in _DEAD:
        return None
    return ProcessFacts(
        parent=int(fields[_PARENT]),
        started=fields[_STARTED].decode(),
        memory=int(fields[_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
    )


def _stat(pid: int) -> list[bytes]:
    return (_read(pid, "stat") or b"").rpartition(b")")[2].split()


def _read(pid: int, what: str) -> bytes | None:
    try:
        return (_PROC / str(pid) / what).read_bytes()
    except OSError:
        return None


def _processes() -> list[int]:
    """None where not even /proc can be opened, for want of descriptors."""
    try:
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


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


_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_PASS_PAUSE_S = 0.002  # a killed process ends, and its children come to us, in about a millisecond
_MAX_PASSES = 500  # with the pause at least a second: each pass ends one more generation
_MAX_DESCENDANTS = 10_000  # more than a machine has processes in practice

_known: set[int] | None = None  # children that we started or had before; None: we adopt nobody


def expect_orphans() -> None:
    """From the first child on we adopt, where the kernel also tells whom."""
    global _known  # noqa: PLW0603 - the kernel keeps it per process, and so do we
    before = _children(os.getpid()) if sys.platform == "linux" else None
    _known = None if before is None else set(before)


def adopt_orphans() -> None:
    """Before a child is started, in whichever thread: ask the kernel for the orphans."""
    if _known is None:
        return
    import ctypes  # noqa: PLC0415 - takes milliseconds, so not before it is needed

    with suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def note_child(pid: int) -> None:
    """We started it, so somebody waits for it."""
    if _known is not None:
        _known.add(pid)


def forget_child(pid: int) -> None:
    """It was waited for: its number may come again, for somebody else."""
    if _known is not None:
        _known.discard(pid)


def orphans() -> list[int]:
    """Who came to us, alive or waiting to be buried."""
    if _known is None:
        return []
    return [pid for pid in _children(os.getpid()) or () if pid not in _known]


def bury_orphans() -> set[int]:
    """Bury the dead; the process groups of all, in which somebody lives.

    One that forks and exits is dead by the time it is looked at, and known by its group alone.
    """
    groups: set[int | None] = set()
    for pid in orphans():
        groups.add(_group(pid))
        _bury(pid)
    return {group for group in groups if group is not None and has_members(group)}


async def end_orphans() -> None:
    """Kill whoever came to us, and then their children, who come to us next, until none is left."""
    import anyio  # noqa: PLC0415 - commands that look for leftovers need no event loop

    for _ in range(_MAX_PASSES):
        found = orphans()
        for pid in found:
            _kill(pid)
            _bury(pid)
        if not found:
            return
        await anyio.sleep(_PASS_PAUSE_S)


def descendants(pid: int) -> list[int]:
    """Everybody below that process now."""
    found = [pid]
    for one in found:
        if len(found) < _MAX_DESCENDANTS:
            found += _all_children(one)
    return found[1:]


def has_members(group: int) -> bool:
    """Whether somebody is in that process group; the kernel answers in one go."""
    if sys.platform == "win32":
        return False
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def _kill(pid: int) -> None:
    """With its group, which takes nobody else's: it descends from the same server.

    The kernel kills a group as one, also while its members fork.
    """
    if sys.platform == "win32":
        return
    if group := _group(pid):
        with suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _group(pid: int) -> int | None:
    if sys.platform == "win32":
        return None
    try:
        group = os.getpgid(pid)
    except OSError:
        return None
    return None if group == os.getpgrp() else group


def _bury(pid: int) -> bool:
    if sys.platform == "win32":
        return True
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:
        return True


def _all_children(pid: int) -> list[int]:
    try:
        threads = [int(entry.name) for entry in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [child for thread in threads for child in _children(pid, thread) or ()]


def _children(pid: int, thread: int | None = None) -> list[int] | None:
    """The children of one thread, without more the main one; None where that cannot be read."""
    try:
        data = Path(f"/proc/{pid}/task/{thread or pid}/children").read_bytes()
    except OSError:
        return None
    return [int(child) for child in data.split()]


# Processes that a child left behind, wherever they went.
#
# Every descendant inherits the owner's mark in its environment, also one that left the group or
# whose parent is gone. Linux shows the environment of our own processes; elsewhere nothing is found
# here and the process group is all there is.


_OWNER_MARK = re.compile(
    rb"\0" + OWNER.encode() + rb"=[0-9A-Z]+-(?P<pid>\d{1,10})-(?P<started>\d*)[.\0]"
)
_KILL_WAIT_MS = 500  # a killed process ends in milliseconds, unless the kernel holds it
_SCANNING_S = 0.5  # in all, for processes that are just starting, or that fork on
_MIN_SCANS = 3  # however slow the machine is
_SCAN_PAUSE_S = 0.01  # an exec takes about a millisecond
_STARTING_AGE_S = 2.0  # an exec is over long before; an older one really has no environment


class Leftover(NamedTuple):
    """A process whose owner is gone."""

    pid: int
    name: str


def owner_mark(unique: str) -> str:
    """The mark of this very process: tells later whether it is still there."""
    return f"{unique}-{os.getpid()}-{started(os.getpid())}"


def leftovers(home: str | None) -> list[Leftover]:
    """Processes of this home that carry the mark of an owner that has gone without them."""
    found: list[Leftover] = []
    if sys.platform != "linux":
        return found
    for pid in _processes():
        environment = b"\0" + (_read(pid, "environ") or b"")
        if home is not None and b"\0HOME=" + os.fsencode(home) + b"\0" not in environment:
            continue
        mark = _OWNER_MARK.search(environment)
        if mark and started(int(mark["pid"])) != mark["started"].decode():
            name = (_read(pid, "comm") or b"").decode(errors="replace").strip()
            found.append(Leftover(pid, name))
    return found


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
            killed += _kill_straggler(found, mark)
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
            environment = _read(pid, "environ")
            if not environment:
                unseen.add(group)
            elif _carries(environment, mark):
                kill_group(group, force=True)
            else:
                others.add(group)
    return any(has_members(group) for group in unseen - others)


def moments_of_birth(pids: Iterable[int]) -> dict[int, str]:
    """What tells a process from a later one with its number."""
    return {pid: started(pid) for pid in pids}


def kill_same(born: Mapping[int, str]) -> None:
    """Kill those that are still the same, and all below them."""
    if sys.platform == "win32":
        return
    for pid, began in born.items():
        if began and started(pid) == began:
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
        for pid in _processes():
            environment = _read(pid, "environ")
            if _carries(environment, mark):
                found.append(pid)
            elif environment == b"" and _is_starting(pid):
                somebody_starts = True
    return found, somebody_starts


def _kill_straggler(pids: Sequence[int], mark: bytes) -> list[int]:
    if sys.platform != "linux":
        return []
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
                if _carries(_read(pid, "environ"), mark):
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


def _is_starting(pid: int) -> bool:
    """Whether a process without an environment has memory and is young: the middle of an exec."""
    if sys.platform == "win32":
        return False
    fields = _stat(pid)
    if len(fields) <= _SIZE or int(fields[_SIZE]) == 0:
        return False
    try:
        uptime = float((_PROC / "uptime").read_bytes().split()[0])
    except OSError:
        return False
    age = uptime - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return 0 <= age < _STARTING_AGE_S
