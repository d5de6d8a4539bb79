"""POSIX: holds a child and its descendants by its process group; on Linux also finds them in /proc.

`windows` has the same names. What Linux alone tells is empty elsewhere: there, the process group of
a server is all that is known of what it started.
"""

import os
import select
import signal
import stat
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    import subprocess

if sys.platform == "win32":
    raise ImportError("for POSIX alone")

NEW_SESSION = True  # a child leads its own session and group
CREATION_FLAGS = 0
HELPER_FLAGS = 0
WATCHES_PIPES = True
SHUTDOWN_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PROGRAM_SUFFIX = ""
REMOVE = "rm"  # for people
EDITORS = ("sensible-editor", "nano", "vi")
HAS_DESKTOP = sys.platform == "darwin"  # elsewhere the environment names its display
OPENER = ("open",) if HAS_DESKTOP else ("xdg-open",)

_PROC = Path("/proc")
# Fields of /proc/PID/stat, counted from behind the name.
_STATE, _PARENT, _STARTED, _SIZE, _PAGES = 0, 1, 19, 20, 21
_DEAD = (b"Z", b"X")
_STARTING_AGE_S = 2.0  # an exec is over long before; an older one really has no environment
_PR_SET_CHILD_SUBREAPER = 36  # from linux/prctl.h
_KILL_WAIT_MS = 500  # a killed process ends in milliseconds, unless the kernel holds it


# Jobs


class Job:
    """One child and its descendants: here the process group that it leads."""

    def __init__(self, group: int) -> None:
        self._group = group

    def ask(self) -> None:
        """Ask them to end."""
        signal_group(self._group, force=False)

    def kill(self) -> None:
        signal_group(self._group, force=True)

    def close(self) -> None:
        """A group needs no end of its own."""


def contain(process: "subprocess.Popen[bytes]") -> Job:
    return Job(process.pid)


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    """A child that leads its own group, and all in it."""
    os.killpg(process.pid, signal.SIGKILL)


# The processes of the system


def processes() -> list[int]:
    """Empty where /proc cannot be opened: for want of descriptors, or of /proc."""
    try:
        return [int(entry.name) for entry in _PROC.iterdir() if entry.name.isdecimal()]
    except OSError:
        return []


def facts(pid: int) -> tuple[int, str, int] | None:
    """The parent, the start in ticks since the machine began, the memory in bytes."""
    fields = _stat(pid)
    if len(fields) <= _PAGES or fields[_STATE] in _DEAD:
        return None
    memory = int(fields[_PAGES]) * os.sysconf("SC_PAGE_SIZE")
    return int(fields[_PARENT]), fields[_STARTED].decode(), memory


def is_running(pid: int, began: str) -> bool:
    """Whether it is still there. Without /proc a later one with its number is taken for it."""
    if began or sys.platform == "linux":
        found = facts(pid)
        return bool(began) and found is not None and found[1] == began
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


def namespace() -> str:
    """What tells our process numbers from those of a container with the same files."""
    try:
        return str((_PROC / "self/ns/pid").stat().st_ino)
    except OSError:
        return ""


def about(pid: int, what: str) -> bytes | None:
    """A file of /proc about it: `environ`, `comm`, `cmdline`."""
    try:
        return (_PROC / str(pid) / what).read_bytes()
    except OSError:
        return None


def children(pid: int) -> list[int] | None:
    """The children of its main thread; None where that cannot be read."""
    return _children(pid, str(pid))


def all_children(pid: int) -> list[int]:
    """The children of all its threads."""
    try:
        threads = [entry.name for entry in (_PROC / str(pid) / "task").iterdir()]
    except OSError:
        return []
    return [child for thread in threads for child in _children(pid, thread) or ()]


def is_starting(pid: int) -> bool:
    """Whether a process without an environment has memory and is young: the middle of an exec."""
    fields = _stat(pid)
    if len(fields) <= _SIZE or int(fields[_SIZE]) == 0:
        return False
    try:
        uptime = float((_PROC / "uptime").read_bytes().split()[0])
    except OSError:
        return False
    age = uptime - int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return 0 <= age < _STARTING_AGE_S


def _stat(pid: int) -> list[bytes]:
    return (about(pid, "stat") or b"").rpartition(b")")[2].split()


def _children(pid: int, thread: str) -> list[int] | None:
    data = about(pid, f"task/{thread}/children")
    return None if data is None else [int(child) for child in data.split()]


# Signals


def signal_group(group: int, *, force: bool) -> bool:
    """Signal a whole process group; False when nobody is left in it."""
    try:
        os.killpg(group, signal.SIGKILL if force else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def has_members(group: int) -> bool:
    """Whether somebody is in that process group; the kernel answers in one go."""
    try:
        os.killpg(group, 0)
    except OSError:
        return False
    return True


def group_of(pid: int) -> int | None:
    """Its process group, if that is not ours."""
    try:
        group = os.getpgid(pid)
    except OSError:
        return None
    return None if group == os.getpgrp() else group


def kill(pid: int) -> None:
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def reap(pid: int) -> bool:
    """Take the exit code of a dead child, if it is one."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except OSError:
        return True


def pidfd(pid: int) -> int | None:
    """A descriptor that is readable once it has ended; Linux alone has one."""
    if sys.platform == "linux" and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            return os.pidfd_open(pid)
    return None


def adopt_orphans() -> None:
    """Become the parent of what our children leave behind, on Linux."""
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - seldom needed

        with suppress(OSError, AttributeError):  # a C library without it
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def await_children() -> None:
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def kill_pinned(pids: Iterable[int], *, still: Callable[[int], bool]) -> list[int]:
    """Kill those that are `still` meant once their number cannot be another's, and see them end."""
    if sys.platform != "linux":
        return []
    handles: dict[int, int] = {}
    try:
        for pid in pids:
            with suppress(OSError):
                handles[pid] = os.pidfd_open(pid)
                if still(pid):
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
    while waiting and (ended := poll.poll(_KILL_WAIT_MS)):
        for handle, _ in ended:
            poll.unregister(handle)
            waiting.discard(handle)


# Descriptors


def set_blocking(fd: int, *, blocking: bool) -> bool:
    """Whether reads and writes wait; what it was before."""
    before = os.get_blocking(fd)
    os.set_blocking(fd, blocking)
    return before


def unread(fd: int) -> int:
    """Bytes in a pipe that the other end has not read, where the system can tell; else none."""
    if sys.platform != "linux":
        return 0
    import fcntl  # noqa: PLC0415 - seldom needed
    import termios  # noqa: PLC0415

    try:
        size = fcntl.ioctl(fd, termios.FIONREAD, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(size, sys.byteorder)


def reader_leaves_within(seconds: float, fd: int) -> bool:
    """Wait so long; sooner and True when nobody reads the pipe behind `fd` any more."""
    mode = os.fstat(fd).st_mode
    poller = select.poll()
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        poller.register(fd, 0)
    return bool(poller.poll(seconds * 1000))


def prepare_listener(listener: "socket.socket", *, stuck_ms: int) -> None:
    """Its port can be taken again at once; who takes nothing that is sent is let go."""
    import socket  # noqa: PLC0415 - for the HTTP front alone

    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if sys.platform == "linux":
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, stuck_ms)


def path_of_url(path: str) -> str:
    """The path of a file that a URL names."""
    return path


def open_address(address: str) -> None:
    """Here a program opens it: `OPENER`."""
    raise FileNotFoundError(address)
