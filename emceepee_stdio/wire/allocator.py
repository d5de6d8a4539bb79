"""The memory allocator of the C library, told to give large blocks back at once.

glibc raises by itself the size from which a block is mapped on its own: after one message of 2 MB,
later ones come from the heap, where a small block behind them keeps them from being given back.
"""

import sys
from contextlib import suppress

__all__ = ["give_back_large_blocks"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # as <malloc.h> of glibc has them
_LARGE_BYTES = 1 << 20  # mapping costs a fraction of reading so much
# Of the heap, for the next results of the usual sizes: else each of their copies is paged in anew,
# which is a third of what a result of 1 MB costs.
_KEPT_BYTES = 4 << 20


def give_back_large_blocks() -> None:
    """On Linux with glibc; elsewhere there is nothing to do."""
    if sys.platform != "linux":
        return
    import ctypes  # noqa: PLC0415 - not before the client has been greeted

    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
