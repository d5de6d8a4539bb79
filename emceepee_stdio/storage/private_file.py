"""Private files and directories: written atomically for their owner, read without blocking.

A pipe in the place of a file would hold up whoever opens it, for ever: only regular files are read.
What is our own word may be read only from a file that nobody else could have written.
"""

from __future__ import annotations  # pathlib takes the greeting a tenth of its time

import errno
import os
import stat
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from pathlib import Path

# Where a program keeps what it remembers between its runs.


def state_directory(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place."""
    from pathlib import Path  # noqa: PLC0415 - see above

    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return Path(chosen).expanduser()
    from platformdirs import user_state_path  # noqa: PLC0415 - often not needed

    return user_state_path("emceepee", appauthor=False)


# Entries hold tokens, so what we make is for its owner alone.
PRIVATE_FILE_MODE = stat.S_IRUSR | stat.S_IWUSR
_RANDOM_BYTES = 6  # of a name: no two writers choose the same
# No pipe is waited for, and no child inherits it.
_PRUDENT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# And no link is followed: what is opened so stands at the very place that was named.
OPEN_IN_PLACE = _PRUDENT | getattr(os, "O_NOFOLLOW", 0)
_REPLACES_OPEN_FILES = os.name == "posix"
_REPLACE_ATTEMPTS, _REPLACE_PAUSE_S = 20, 0.05  # a second in all; readers take milliseconds
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_regular(path: Path | str) -> bytes:
    """All of a regular file, also where a link leads to it; OSError where it is none."""
    with _opened(path, _PRUDENT) as (file, found):
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def read_own(path: Path | str, *, most: int, private: bool = False) -> bytes:
    """All of a regular file of `most` bytes that only we can have written; OSError otherwise.

    `private`: that only we can have read, too.
    """
    with _opened(path, OPEN_IN_PLACE) as (file, found):
        refused = (stat.S_IRWXG | stat.S_IRWXO) if private else _WRITABLE_BY_OTHERS
        if not is_own(found, refused=refused) or found.st_size > most:
            raise OSError(errno.EPERM, "it is not a file of ours", str(path))
        return file.read(found.st_size)  # `most` would be allocated whole


def is_own(
    found: os.stat_result, *, or_of: int | None = None, refused: int = _WRITABLE_BY_OTHERS
) -> bool:
    """Whether it is a regular file that only we, or the user `or_of`, can have written."""
    ours = sys.platform == "win32" or found.st_uid in (os.geteuid(), or_of)
    return stat.S_ISREG(found.st_mode) and ours and not others_may(found, refused)


def others_may(found: os.stat_result, what: int = stat.S_IRWXG | stat.S_IRWXO) -> bool:
    """Whether others than the owner may do this; Windows says it in lists of access instead."""
    return os.name == "posix" and bool(found.st_mode & what)


@contextmanager
def _opened(path: Path | str, flags: int) -> Generator[tuple[BinaryIO, os.stat_result]]:
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        found = os.fstat(descriptor)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file, found
    finally:
        os.close(descriptor)


def write_whole(
    path: Path,
    data: bytes,
    *,
    like: os.stat_result | None = None,
    check: Callable[[], None] | None = None,
    lasting: bool = True,
) -> None:
    """Put a whole file in place of another, or none; for its owner alone, unless `like` it.

    What `check` raises in the last moment leaves the place as it is. What is not `lasting` means
    nothing after a power cut: it is not worth the wait for the disk.
    """
    new = path.with_name(f".{path.name}.{os.urandom(_RANDOM_BYTES).hex()}")
    try:
        write_new(new, data, lasting=lasting)
        if like is not None:
            new.chmod(stat.S_IMODE(like.st_mode))
            _give_back(new, like)
        if check is not None:
            check()
        _replace(path, new)
    except BaseException:
        with suppress(OSError):
            new.unlink()
        raise
    if lasting:
        _settle(path.parent)


def _replace(path: Path, new: Path) -> None:
    """Windows replaces no file that somebody has open: a reader has it for a moment."""
    for _ in range(_REPLACE_ATTEMPTS - 1):
        try:
            new.replace(path)
        except PermissionError:
            if _REPLACES_OPEN_FILES:
                raise
            import threading  # noqa: PLC0415 - the greeting loads this module, and no thread

            threading.Event().wait(_REPLACE_PAUSE_S)
        else:
            return
    new.replace(path)


def write_new(path: Path, data: bytes, *, lasting: bool = False) -> None:
    """A file for its owner alone, where there is none yet; FileExistsError otherwise."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PRUDENT, PRIVATE_FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        if lasting:
            file.flush()
            os.fsync(descriptor)


def _give_back(new: Path, like: os.stat_result) -> None:
    """With sudo the file stays its owner's."""
    if os.name == "posix" and os.geteuid() != like.st_uid:
        with suppress(OSError):
            os.chown(new, like.st_uid, like.st_gid)


def _settle(directory: Path) -> None:
    """Make the new name last; not every file system offers it."""
    if os.name != "posix":
        return
    with suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


Stamp = tuple[int, ...]
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def stamp_of(found: os.stat_result) -> Stamp:
    """Another after every change of a file: inode, size and time of the change in ns."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def file_stamp(path: Path | str, *, follow: bool = True) -> Stamp | None:
    """The same and the mode, which says who may read it; None where there is no file."""
    try:
        found = os.stat(path, follow_symlinks=follow)  # noqa: PTH116 - one call, every second
    except ValueError:  # no file has such a name
        return None
    except OSError as error:  # it may be there all the same
        return None if error.errno in _ABSENT else (-(error.errno or 1), 0, 0, 0)
    return *stamp_of(found), found.st_mode


def make_private(directory: Path) -> None:
    """Make a directory, and those above it that are missing; whatever the umask allows."""
    for missing in [d for d in reversed(directory.parents) if not d.exists()]:
        missing.mkdir(mode=stat.S_IRWXU, exist_ok=True)
    directory.mkdir(mode=stat.S_IRWXU, exist_ok=True)
