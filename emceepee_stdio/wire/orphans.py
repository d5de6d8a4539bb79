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
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire import system
from emceepee_stdio.wire.environment import OWNER

# Processes as the system shows them: who their parent is, when they began, what memory they hold.
#
# Linux tells all of it in /proc, Windows when a process was created. Elsewhere only whether it is
# there can be said, and a later one with the same number is taken for it.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """`started` is in ticks since the machine began; `memory` in bytes, with shared pages."""

    parent: int
    started: str
    memory: int


def process_table() -> Mapping[int, ProcessFacts]:
    """Every living process that can be seen; none where the system does not show them so."""
    seen = ((pid, system.facts(pid)) for pid in system.processes())
    return {
        pid: ProcessFacts(parent=facts[0], started=facts[1], memory=facts[2])
        for pid, facts in seen
        if facts is not None
    }


def started(pid: int) -> str:
    """What tells a process from a later one with its number; empty where that cannot be said."""
    facts = system.facts(pid)
    return "" if facts is None else facts[1]


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


_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_PASS_PAUSE_S = 0.002  # a killed process ends, and its children come to us, in about a millisecond
_MAX_PASSES = 500  # with the pause at least a second: each pass ends one more generation
_MAX_DESCENDANTS = 10_000  # more than a machine has processes in practice

_known: set[int] | None = None  # children that we started or had before; None: we adopt nobody


def expect_orphans() -> None:
    """From the first child on we adopt, where the kernel also tells whom."""
    global _known  # noqa: PLW0603 - the kernel keeps it per process, and so do we
    before = system.children(os.getpid())
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
    return [pid for pid in system.children(os.getpid()) or () if pid not in _known]


def bury_orphans() -> set[int]:
    """Bury the dead; the process groups of all, in which somebody lives.

    One that forks and exits is dead by the time it is looked at, and known by its group alone.
    """
    groups: set[int | None] = set()
    for pid in orphans():
        groups.add(system.group_of(pid))
        system.reap(pid)
    return {group for group in groups if group is not None and system.has_members(group)}


async def end_orphans() -> None:
    """Kill whoever came to us, and then their children, who come to us next, until none is left."""
    import anyio  # noqa: PLC0415 - commands that look for leftovers need no event loop

    for _ in range(_MAX_PASSES):
        found = orphans()
        for pid in found:
            _kill(pid)
            system.reap(pid)
        if not found:
            return
        await anyio.sleep(_PASS_PAUSE_S)


def descendants(pid: int) -> list[int]:
    """Everybody below that process now."""
    found = [pid]
    for one in found:
        if len(found) < _MAX_DESCENDANTS:
            found += system.all_children(one)
    return found[1:]


def _kill(pid: int) -> None:
    """With its group, which takes nobody else's: it descends from the same server.

    The kernel kills a group as one, also while its members fork.
    """
    if group := system.group_of(pid):
        system.signal_group(group, force=True)
    system.kill(pid)


# Processes that a child left behind, wherever they went.
#
# Every descendant inherits the owner's mark in its environment, also one that left the group or
# whose parent is gone. Linux shows the environment of our own processes; elsewhere nothing is found
# here and the process group is all there is.


_OWNER_MARK = re.compile(
    rb"\0" + OWNER.encode() + rb"=[0-9A-Z]+-(?P<pid>\d{1,10})-(?P<started>\d*)[.\0]"
)
_SCANNING_S = 0.5  # in all, for processes that are just starting, or that fork on
_MIN_SCANS = 3  # however slow the machine is
_SCAN_PAUSE_S = 0.01  # an exec takes about a millisecond


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
    for pid in system.processes():
        environment = b"\0" + (system.about(pid, "environ") or b"")
        if home is not None and b"\0HOME=" + os.fsencode(home) + b"\0" not in environment:
            continue
        mark = _OWNER_MARK.search(environment)
        if mark and started(int(mark["pid"])) != mark["started"].decode():
            name = (system.about(pid, "comm") or b"").decode(errors="replace").strip()
            found.append(Leftover(pid, name))
    return found


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

    def carries(pid: int) -> bool:
        return _carries(system.about(pid, "environ"), mark)

    now = (clock or Clock()).now
    until = now() + _SCANNING_S
    for scans in count(1):
        in_doubt = _kill_orphans(mark, others)
        found, somebody_starts = _look(mark)
        if found:
            killed += system.kill_pinned(found, still=carries)
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
    for pid in reversed(orphans()):  # the last to come is the one that lives
        group = system.group_of(pid)
        if group is None or group in others:
            continue
        environment = system.about(pid, "environ")
        if not environment:
            unseen.add(group)
        elif _carries(environment, mark):
            system.signal_group(group, force=True)
        else:
            others.add(group)
    return any(system.has_members(group) for group in unseen - others)


def moments_of_birth(pids: Iterable[int]) -> dict[int, str]:
    """What tells a process from a later one with its number."""
    return {pid: started(pid) for pid in pids}


def kill_same(born: Mapping[int, str]) -> None:
    """Kill those that are still the same, and all below them."""
    for pid, began in born.items():
        if began and started(pid) == began:
            for one in (*descendants(pid), pid):
                system.kill(one)


def _mark(owner: str) -> bytes:
    return f"{OWNER}={owner}".encode()


def _look(mark: bytes) -> tuple[list[int], bool]:
    """Who carries the mark, and whether there is somebody of whom that cannot be said yet."""
    found: list[int] = []
    somebody_starts = False
    for pid in system.processes():
        environment = system.about(pid, "environ")
        if _carries(environment, mark):
            found.append(pid)
        elif environment == b"" and system.is_starting(pid):
            somebody_starts = True
    return found, somebody_starts


def _carries(environment: bytes | None, mark: bytes) -> bool:
    return environment is not None and b"\0" + mark in b"\0" + environment
