"""Our own process: its allocator, protection of its memory, and proxies above it.

Our children are told how deep they are in a variable. A program in between may have cleared it.
"""

import os
import re
from contextlib import suppress
from pathlib import Path

from emceepee_stdio.wire import system

# The memory allocator of the C library, told to give large blocks back at once.
#
# glibc raises by itself the size from which a block is mapped on its own: after one message of 2
# MB, later ones come from the heap, where a small block behind them keeps them from being given
# back.


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as <malloc.h> of glibc has them
_LARGE_BYTES = 1 << 20  # mapping costs a fraction of reading so much
# Of the heap, for the next results of the usual sizes: else each of their copies is paged in anew,
# which is a third of what a result of 1 MB costs.
_KEPT_BYTES = 4 << 20


def give_back_large_blocks() -> None:
    """On Linux with glibc; elsewhere there is nothing to do."""
    import ctypes  # noqa: PLC0415 - not before the client has been greeted

    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


# Keeps our memory and environment from the servers that we start, which run as the same user.
#
# On Linux a process of the same user may read another's environment and memory in `/proc`, and with
# them every secret of the session. A process that is not dumpable is spared; it also writes no core
# files, and only root can attach a debugger to it. A child is dumpable again as soon as it runs its
# own program, so nothing changes for servers.


_PR_SET_DUMPABLE = 4


def protect_memory() -> bool:
    """Before the first child is started. False where the system has no such thing."""
    try:
        import ctypes  # noqa: PLC0415 - only needed here, and not before the greeting

        return ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    # Another system, a Python without ctypes, a strange libc.
    except (ImportError, OSError, AttributeError, TypeError):
        return False


_MAX_ANCESTORS = 100  # the tree may change while it is read; no real one is this deep
_INTERPRETER = re.compile(r"(?:python|pypy)[\d.]*")
_SCRIPTS = frozenset({"emceepee", "emceepee-stdio"})


def proxies_above() -> int:
    """How many of our own kind are among our ancestors; an HTTP front only starts them."""
    count, pid = 0, os.getpid()
    for _ in range(_MAX_ANCESTORS):
        facts = system.facts(pid)
        if facts is None or (pid := facts[0]) <= 1:
            break
        argv = (system.about(pid, "cmdline") or b"").decode(errors="replace").split("\0")
        count += is_ours(argv) and not any(word.startswith("--http") for word in argv)
    return count


def is_ours(argv: list[str]) -> bool:
    """Whether a command line is that of emceepee itself, not of something that starts it."""
    name, rest = Path(argv[0]).name, argv[1:]
    if _INTERPRETER.fullmatch(name):
        if rest[:2] == ["-m", "emceepee_stdio"]:
            return True
        name = Path(rest[0]).name if rest else ""
    return name in _SCRIPTS
