"""Orphans of our servers: on Linux we are made their reaper, so that each becomes a child of ours.

A descendant that left its group and cleared its mark is known by nothing else. What comes to us has
to be buried, and must not be taken for a child that we started: whoever started that one waits for
its exit code. The kernel gives orphans to the main thread. There, a child of ours is on record
before anybody looks; a child that another thread is just starting is not in the list yet.

What buries or kills is for the main thread alone. Without `expect_orphans`, which is for a process
that is all ours, nothing here does anything.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

__all__ = [
    "adopt_orphans",
    "bury_orphans",
    "descendants",
    "end_orphans",
    "expect_orphans",
    "forget_child",
    "has_members",
    "note_child",
    "orphans",
]

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
