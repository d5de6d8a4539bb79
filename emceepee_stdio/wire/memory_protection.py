"""Keeps our memory and environment from the servers that we start, which run as the same user.

On Linux a process of the same user may read another's environment and memory in `/proc`, and with
them every secret of the session. A process that is not dumpable is spared; it also writes no core
files, and only root can attach a debugger to it. A child is dumpable again as soon as it runs its
own program, so nothing changes for servers.
"""

import sys

__all__ = ["protect_memory"]

_PR_SET_DUMPABLE = 4


def protect_memory() -> bool:
    """Before the first child is started. False where the system has no such thing."""
    if sys.platform != "linux":
        return False
    try:
        import ctypes  # noqa: PLC0415 - only needed here, and not before the greeting

        return ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a strange libc
        return False
