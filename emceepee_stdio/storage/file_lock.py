"""Locks between processes, on a file that is never removed.

The file stays: whoever unlinks a locked file lets two in. A holder that was stopped is waited for,
never robbed. The lock is polled, because only so a wait can end, and the same way everywhere.
"""

import errno
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from emceepee_stdio.storage.private_file import PRIVATE_FILE_MODE

_POLL_S = 0.05  # whoever waits for it does so for milliseconds or for a person
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)


@contextmanager
def file_lock(path: Path, *, within: float) -> Generator[None]:
    """Hold the lock. OSError (ETIMEDOUT) when somebody else holds it for so many seconds."""
    descriptor = os.open(path, _FLAGS, PRIVATE_FILE_MODE)
    try:
        for _ in range(max(round(within / _POLL_S), 1)):
            if take_lock(descriptor):
                break
            threading.Event().wait(_POLL_S)
        else:
            raise OSError(errno.ETIMEDOUT, "another process holds its lock")
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody holds it now."""
    try:
        descriptor = os.open(path, _FLAGS, PRIVATE_FILE_MODE)
    except OSError:
        return False
    try:
        return not take_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import ctypes
    import msvcrt
    from ctypes import wintypes

    _AT_ONCE, _EXCLUSIVE = 1, 2
    _OUT_OF_REACH = 0x40000000  # what is locked there can be read and written by nobody else
    _kernel = ctypes.WinDLL("kernel32", use_last_error=True)

    class _Overlapped(ctypes.Structure):
        """Where the lock is."""

        _fields_ = [
            ("Internal", ctypes.c_size_t),
            ("InternalHigh", ctypes.c_size_t),
            ("Offset", wintypes.DWORD),
            ("OffsetHigh", wintypes.DWORD),
            ("hEvent", wintypes.HANDLE),
        ]

    def take_lock(descriptor: int, *, shared: bool = False) -> bool:
        """`shared`: two who only look do not see each other; msvcrt has no such lock."""
        flags = _AT_ONCE if shared else _AT_ONCE | _EXCLUSIVE
        handle = wintypes.HANDLE(msvcrt.get_osfhandle(descriptor))
        where = _Overlapped(OffsetHigh=_OUT_OF_REACH)
        return bool(_kernel.LockFileEx(handle, flags, 0, 1, 0, ctypes.byref(where)))

else:
    import fcntl

    def take_lock(descriptor: int, *, shared: bool = False) -> bool:
        """`shared`: two who only look do not see each other."""
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            # Not lockf: that lock is freed by any close of the file in this process.
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
