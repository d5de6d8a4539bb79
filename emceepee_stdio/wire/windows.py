"""Windows: holds a child and its descendants in a Job Object; has the same names as `posix`.

`posix` has the same names. A job holds a server and all that it starts. Its handle belongs to our
process, so the system closes it however we end, and with the last handle ends all that is in it.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable

if sys.platform != "win32":
    raise ImportError("for Windows alone")

from ctypes import wintypes

from emceepee_stdio.errors import CannotConnect

NEW_SESSION = False
_SUSPENDED = 0x0004  # until it is in its job: what it starts before would be in none
# No window of a console appears beside a client that has none; a helper outlives our console.
CREATION_FLAGS = subprocess.CREATE_NO_WINDOW | _SUSPENDED
HELPER_FLAGS = subprocess.DETACHED_PROCESS
WATCHES_PIPES = False  # the event loop watches no pipes there
# Ctrl-C, Ctrl-Break and a console that is closed; SIGTERM reaches nobody there.
SHUTDOWN_SIGNALS = (signal.SIGINT, signal.SIGBREAK)
PROGRAM_SUFFIX = ".exe"
REMOVE = "del"  # for people
EDITORS = ("notepad",)
HAS_DESKTOP = True
OPENER = ()  # the system itself: `open_address`

_KILL_ON_JOB_CLOSE = 0x2000
_EXTENDED_LIMIT_INFORMATION = 9
_SYNCHRONIZE_AND_QUERY = 0x00101000
_TERMINATE = 0x0001
_WAIT_TIMEOUT = 0x102
_ACCESS_DENIED = 5

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)
_kernel.CreateJobObjectW.restype = wintypes.HANDLE
_kernel.CreateJobObjectW.argtypes = (ctypes.c_void_p, wintypes.LPCWSTR)
_kernel.SetInformationJobObject.argtypes = (
    *(wintypes.HANDLE, ctypes.c_int, ctypes.c_void_p, wintypes.DWORD),
)
_kernel.AssignProcessToJobObject.argtypes = (wintypes.HANDLE, wintypes.HANDLE)
_kernel.TerminateJobObject.argtypes = (wintypes.HANDLE, wintypes.UINT)
_kernel.TerminateProcess.argtypes = (wintypes.HANDLE, wintypes.UINT)
_kernel.CloseHandle.argtypes = (wintypes.HANDLE,)
_kernel.OpenProcess.restype = wintypes.HANDLE
_kernel.OpenProcess.argtypes = (wintypes.DWORD, wintypes.BOOL, wintypes.DWORD)
_kernel.WaitForSingleObject.argtypes = (wintypes.HANDLE, wintypes.DWORD)
_kernel.GetProcessTimes.argtypes = (wintypes.HANDLE, *[ctypes.c_void_p] * 4)
_native = ctypes.WinDLL("ntdll")
_native.NtResumeProcess.argtypes = (wintypes.HANDLE,)


# Jobs


class _BasicLimits(ctypes.Structure):
    _fields_ = [
        ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
        ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
        ("LimitFlags", wintypes.DWORD),
        ("MinimumWorkingSetSize", ctypes.c_size_t),
        ("MaximumWorkingSetSize", ctypes.c_size_t),
        ("ActiveProcessLimit", wintypes.DWORD),
        ("Affinity", ctypes.c_size_t),
        ("PriorityClass", wintypes.DWORD),
        ("SchedulingClass", wintypes.DWORD),
    ]


class _ExtendedLimits(ctypes.Structure):
    _fields_ = [
        ("BasicLimitInformation", _BasicLimits),
        ("IoInfo", ctypes.c_ulonglong * 6),
        ("ProcessMemoryLimit", ctypes.c_size_t),
        ("JobMemoryLimit", ctypes.c_size_t),
        ("PeakProcessMemoryUsed", ctypes.c_size_t),
        ("PeakJobMemoryUsed", ctypes.c_size_t),
    ]


class JobObject:
    """One job for one child and its descendants."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        """The child was started suspended: held now, it runs from now on."""
        self._process = process
        self._handle: int | None = _kernel.CreateJobObjectW(None, None)
        limits = _ExtendedLimits()
        limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
        held = ctypes.byref(limits), ctypes.sizeof(limits)
        _check(
            self._handle
            and _kernel.SetInformationJobObject(self._handle, _EXTENDED_LIMIT_INFORMATION, *held)
        )

        child = int(process._handle)  # type: ignore[attr-defined] # noqa: SLF001 - no other way to it
        _check(_kernel.AssignProcessToJobObject(self._handle, child))
        _native.NtResumeProcess(child)

    def ask(self) -> None:
        """There is no way to ask: the child alone is ended, and what it started may notice."""
        self._process.terminate()

    def kill(self) -> None:
        if self._handle is not None:
            _kernel.TerminateJobObject(self._handle, 1)

    def close(self) -> None:
        """End what is left in it."""
        handle, self._handle = self._handle, None
        if handle is not None:
            _kernel.CloseHandle(handle)


Job = JobObject  # as `posix` names what holds a child


def contain(process: "subprocess.Popen[bytes]") -> Job:
    """A job around this child, which runs from now on. A child that cannot be held is killed."""
    try:
        return Job(process)
    except OSError as error:
        process.kill()
        process.wait()
        raise CannotConnect(
            f"The server cannot be started: what it starts cannot be held together ({error})."
        ) from None


def kill_tree(process: "subprocess.Popen[bytes]") -> None:
    process.kill()


def _check(done: object) -> None:
    if not done:
        raise ctypes.WinError(ctypes.get_last_error())


# The processes of the system


def processes() -> list[int]:
    return []


def facts(pid: int) -> tuple[int, str, int] | None:
    """Of a running process only when it was created; its parent and memory are not looked up."""
    ctypes.set_last_error(0)
    handle = _kernel.OpenProcess(_SYNCHRONIZE_AND_QUERY, 0, pid)
    if not handle:
        return None
    try:
        # Not its exit code: that of a process that is still running can be that of a dead one.
        if _kernel.WaitForSingleObject(handle, 0) != _WAIT_TIMEOUT:
            return None
        times = (ctypes.c_ulonglong * 4)()
        places = [ctypes.byref(times, index * 8) for index in range(4)]
        return (0, str(times[0]), 0) if _kernel.GetProcessTimes(handle, *places) else None
    finally:
        _kernel.CloseHandle(handle)


def is_running(pid: int, began: str) -> bool:
    """Whether it is still there; one of another user, of which nothing can be seen, is."""
    found = facts(pid)
    if found is None:
        return pid > 0 and ctypes.get_last_error() == _ACCESS_DENIED
    return not began or found[1] == began


def namespace() -> str:
    return ""


def about(pid: int, what: str) -> bytes | None:
    del pid, what


def children(pid: int) -> list[int] | None:
    del pid


def all_children(pid: int) -> list[int]:
    del pid
    return []


def is_starting(pid: int) -> bool:
    del pid
    return False


# Signals: there are none, and no groups; a job is ended as a whole.


def signal_group(group: int, *, force: bool) -> bool:
    del group, force
    return False


def has_members(group: int) -> bool:
    del group
    return False


def group_of(pid: int) -> int | None:
    del pid


def kill(pid: int) -> None:
    if handle := _kernel.OpenProcess(_TERMINATE, 0, pid):
        _kernel.TerminateProcess(handle, 1)
        _kernel.CloseHandle(handle)


def reap(pid: int) -> bool:
    del pid
    return True


def pidfd(pid: int) -> int | None:
    del pid


def adopt_orphans() -> None:
    """An orphan is given to nobody."""


def await_children() -> None:
    """What was opened is no child."""


def kill_pinned(pids: Iterable[int], *, still: Callable[[int], bool]) -> list[int]:
    del pids, still
    return []


# Descriptors


def set_blocking(fd: int, *, blocking: bool) -> bool:
    del fd
    return blocking


def unread(fd: int) -> int:
    del fd
    return 0


def reader_leaves_within(seconds: float, fd: int) -> bool:
    del fd
    threading.Event().wait(seconds)
    return False


def prepare_listener(listener: socket.socket, *, stuck_ms: int) -> None:
    """No other program can listen on its port as well."""
    del stuck_ms
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)


def path_of_url(path: str) -> str:
    """The path of a file that a URL names: there is a slash before the letter of the drive."""
    return path.removeprefix("/") if path[2:3] == ":" else path


def open_address(address: str) -> None:
    os.startfile(address)  # noqa: S606 - an http(s) address, checked before, or a page of ours
