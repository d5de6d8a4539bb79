"""Windows: a Job Object that takes a child and its descendants along when its handle closes.

The counterpart of process groups and the watchdog. The handle belongs to our process, so the system
closes it however we end. Untested: written from the documented interface.
"""

import sys
from typing import Protocol

__all__ = ["Job", "contain"]


class Job(Protocol):
    """What holds a child and its descendants together."""

    def kill(self) -> None: ...
    def close(self) -> None: ...


def contain(pid: int) -> Job | None:
    """A job around this child; None where process groups do that work."""
    return _JobObject(pid) if sys.platform == "win32" else None


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMIT_INFORMATION = 9
    _TERMINATE_AND_SET_QUOTA = 0x0101  # what AssignProcessToJobObject needs

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

    class _JobObject:
        """One job for one child."""

        def __init__(self, pid: int) -> None:
            self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            self._kernel.CreateJobObjectW.restype = wintypes.HANDLE
            self._kernel.OpenProcess.restype = wintypes.HANDLE
            self._job = wintypes.HANDLE(self._kernel.CreateJobObjectW(None, None))
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            self._kernel.SetInformationJobObject(
                self._job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            process = wintypes.HANDLE(self._kernel.OpenProcess(_TERMINATE_AND_SET_QUOTA, 0, pid))
            self._kernel.AssignProcessToJobObject(self._job, process)
            self._kernel.CloseHandle(process)

        def kill(self) -> None:
            self._kernel.TerminateJobObject(self._job, 1)

        def close(self) -> None:
            self._kernel.CloseHandle(self._job)
