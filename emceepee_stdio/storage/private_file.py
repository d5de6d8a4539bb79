"""Private files and directories: written atomically for their owner, read without blocking.

A pipe in the place of a file would hold up whoever opens it, for ever: only regular files are read.
What is our own word may be read only from a file that nobody else could have written.
"""

import errno
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

# Where a program keeps what it remembers between its runs.


def state_directory(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place."""
    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return Path(chosen).expanduser()
    from platformdirs import user_state_path  # noqa: PLC0415 - often not needed

    return user_state_path("emceepee", appauthor=False)


# Entries hold tokens, so what we make is for its owner alone.
PRIVATE_FILE_MODE = stat.S_IRUSR | stat.S_IWUSR
# No pipe is waited for, and no child inherits it.
_PRUDENT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# And no link is followed: what is opened so stands at the very place that was named.
OPEN_IN_PLACE = _PRUDENT | getattr(os, "O_NOFOLLOW", 0)
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_regular(path: Path) -> bytes:
    """All of a regular file; OSError where it is none."""
    descriptor = os.open(path, os.O_RDONLY | _PRUDENT)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read()
    finally:
        os.close(descriptor)


def read_own(path: Path, *, most: int) -> bytes:
    """All of a regular file of `most` bytes that only we can have written; OSError otherwise."""
    descriptor = os.open(path, os.O_RDONLY | OPEN_IN_PLACE)
    try:
        found = os.fstat(descriptor)
        ours = sys.platform == "win32" or found.st_uid == os.geteuid()
        private = os.name != "posix" or not found.st_mode & _WRITABLE_BY_OTHERS
        if not (stat.S_ISREG(found.st_mode) and ours and private and found.st_size <= most):
            raise OSError(errno.EPERM, "it is not a file of ours", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(most)
    finally:
        os.close(descriptor)


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing; whatever the umask allows."""
    for missing in [d for d in reversed(directory.parents) if not d.exists()]:
        missing.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    directory.mkdir(mode=stat.S_IRWXU, exist_ok=True)
