"""The files of the journal: names, permissions, rotation, retention.

The records of requests are kept in files of the same making beside them: `kind` begins the name.
One process, one file, so nobody else appends to it or moves it. Everything here may raise OSError.

Rotation, the theory of operation. A line that would make the file too long is not written into it:
the files behind it each move one number on, the oldest goes, the file takes the number 1, and a
new one is begun. Moves are renames, from the oldest to the newest, so that a reader who holds a
file open goes on reading the same one (`journal_reader`), and a crash in between leaves at worst a
missing number. A file that somebody removed or replaced is noticed by its identity before each
append, and begun anew.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path

from emceepee_stdio.clock import DAY_S, Clock
from emceepee_stdio.storage.file_lock import is_locked, take_lock
from emceepee_stdio.storage.private_file import (
    OPEN_IN_PLACE,
    PRIVATE_FILE_MODE,
    make_private,
    others_may,
)

_OURS = re.compile(r"(?:emceepee|requests)-\d{8}T\d{6}Z-\d+-[\w-]*\.jsonl(?:\.\d+)?", re.ASCII)
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_MAX_SESSION_CHARS = 64  # part of a file name, and many file systems end those at 255 bytes

# Append only what is a plain file of ours: no link is followed, and no pipe is waited for.
# A journal may hold secrets that were not recognised: it is for its owner alone.
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | OPEN_IN_PLACE
_MAX_FILES = 1_000  # of all processes; short sessions leave small files, but one each
_RENAMES_OPEN_FILES = os.name == "posix"  # elsewhere a reader stands in the way of a rotation
_MAX_HELD_SHARES = 4  # of its size, for a file that is read and cannot be rotated
_MAX_SHARES = 4  # all files together hold what so many processes may write


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where the journals of all proxies are: EMCEEPEE_LOG_DIR, or the platform's own place."""
    chosen = environ.get("EMCEEPEE_LOG_DIR")
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_log_path  # noqa: PLC0415 - serving with a given directory needs none

    return user_log_path("emceepee", appauthor=False)


@dataclass(eq=False, repr=False)
class JournalFile:
    """The file that is being written, and the older ones behind it."""

    directory: Path
    _: KW_ONLY
    session: str
    clock: Clock
    max_bytes: int = 10_000_000
    files: int = 5
    max_age_days: float = 14
    kind: str = "emceepee"

    def __post_init__(self) -> None:
        self._fd: int | None = None
        self._identity = (0, 0)
        self._swept = False
        self.path = self.directory / _file_name(self.kind, self.clock, self.session)
        self.size = 0
        self.lines = 0
        self.renewals = 0

    def __repr__(self) -> str:
        state = "closed" if self._fd is None else "open"
        return f"<JournalFile {self.path.name} {state} {self.size} bytes>"

    def append(self, lines: bytes) -> None:
        """Write whole lines. After an error `self.lines` tells how far it came."""
        try:
            while lines:
                fd = self._ready()
                end = self._fitting(lines)
                if end:
                    self._write(fd, lines[:end])
                    lines = lines[end:]
                elif not self._rotate():
                    # Lines are worth more than the size of a file, within limits.
                    end = lines.index(b"\n") + 1
                    self._write(self._ready(), lines[:end])
                    lines = lines[end:]
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            with suppress(OSError):
                os.close(fd)

    def _fitting(self, lines: bytes) -> int:
        """How many bytes of them fit into this file; an empty one takes a line of any length."""
        room = max(self.max_bytes - self.size, 0)
        if len(lines) <= room:
            return len(lines)
        end = lines.rfind(b"\n", 0, room) + 1
        return lines.index(b"\n") + 1 if not (end or self.size) else end

    def _write(self, fd: int, chunk: bytes) -> None:
        done = 0
        try:
            while done < len(chunk):
                done += os.write(fd, memoryview(chunk)[done:])
        except OSError:
            done = chunk.rfind(b"\n", 0, done) + 1
            with suppress(OSError):
                os.ftruncate(fd, self.size + done)
            raise
        finally:
            self.size += done
            self.lines += chunk.count(b"\n", 0, done)

    def _ready(self) -> int:
        if self._fd is not None and not self._still_there():
            self.close()
            self.renewals += 1
        if self._fd is None:
            self._fd = self._open()
        return self._fd

    def _still_there(self) -> bool:
        try:
            found = self.path.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def _open(self) -> int:
        make_private(self.directory)
        if not self._swept:
            self._swept = True
            self._sweep()
        fd = os.open(self.path, _FLAGS, PRIVATE_FILE_MODE)
        try:
            found = _claim(fd)
        except OSError:
            os.close(fd)
            raise
        self._identity = (found.st_dev, found.st_ino)
        self.size = found.st_size
        return fd

    def _rotate(self) -> bool:
        """False where that is refused: Windows renames no file that somebody has open."""
        self.close()
        older = (f"{self.path.name}.{number}" for number in range(1, self.files))
        names = [self.path, *map(self.path.with_name, older)]
        try:
            names[-1].unlink(missing_ok=True)
            for older, newer in zip(reversed(names), reversed(names[:-1]), strict=False):
                with suppress(FileNotFoundError):
                    newer.replace(older)
        except PermissionError:
            if _RENAMES_OPEN_FILES or self.size > self.max_bytes * _MAX_HELD_SHARES:
                raise
            return False
        return True

    def _sweep(self) -> None:
        """Remove journals of any process: what is too old, and the oldest of too many.

        What a running process writes to stays: it would begin another, and the reader lose both.
        """
        oldest = self.clock.epoch(self.clock.now()) - self.max_age_days * DAY_S
        room = self.max_bytes * self.files * _MAX_SHARES
        found = sorted(_journals(self.directory), reverse=True)
        for number, (written_at, size, path) in enumerate(found, 1):
            room -= size
            is_spare = written_at < oldest or room < 0 or number > _MAX_FILES
            with suppress(OSError):
                if is_spare and not is_locked(Path(path)):
                    Path(path).unlink()


def _journals(directory: Path) -> Iterator[tuple[float, int, str]]:
    """When each was written to last, its size and its path."""
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if _OURS.fullmatch(entry.name):
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield found.st_mtime, found.st_size, entry.path


def _claim(fd: int) -> os.stat_result:
    """Make sure that this is a file, and that nobody else reads it."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "not a regular file")
    if others_may(found):
        os.chmod(fd, PRIVATE_FILE_MODE)
    with suppress(OSError):
        take_lock(fd)
    return found


def _file_name(kind: str, clock: Clock, session: str) -> str:
    started = datetime.fromtimestamp(clock.epoch(clock.now()), tz=UTC)
    name = _NOT_IN_A_NAME.sub("_", session)[:_MAX_SESSION_CHARS]
    return f"{kind}-{started:%Y%m%dT%H%M%SZ}-{os.getpid()}-{name}.jsonl"
