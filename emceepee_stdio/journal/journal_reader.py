"""Reads the journals of all processes in one directory as one."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import datetime
from heapq import merge, nlargest
from io import FileIO
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from emceepee_stdio.journal.writer import Record
from emceepee_stdio.storage.private_file import OPEN_IN_PLACE, is_own, stamp_of

# The files of one process, read as one stream: the one in use, and the rotated ones behind it.
#
# A line is read once, in the order of writing, and only when its newline is there. The file in hand
# stays open, so that it can be read to its end after it was moved or removed, and so that no new
# file gets its identity. It is left only when a newer one exists: by then nobody writes to it any
# more.


_BLOCK_BYTES = 64 * 1024  # a line of the journal is shorter, so one block mostly holds several
# The journal's own lines are far shorter. Longer ones come in pieces, to bound the memory.
_MAX_PIECE_BYTES = 1024 * 1024
# Rotation leaves out one number for a moment, and a person may have removed others.
_MAX_MISSING_NUMBERS = 3
_OPEN_ATTEMPTS = 3  # a file may be renamed just as it is opened
# Elsewhere an open file cannot be renamed, and the writer must be able to.
_HOLDS_FILES = os.name == "posix"

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Where reading goes on: a file, whatever its name is by then, and the offset in it."""

    identity: Identity
    offset: int


class Part:
    """One open file of a process."""

    def __init__(self, path: Path) -> None:
        self._file = FileIO(os.open(path, os.O_RDONLY | OPEN_IN_PLACE), closefd=True)
        self.identity = _identity(self._stat())

    def __repr__(self) -> str:
        return f"<Part {self.identity} {self.size} bytes>"

    @property
    def size(self) -> int:
        return self._stat().st_size

    def is_believed(self, directory: Path) -> bool:
        """Whether what was opened is a journal: the name may lead to another file by now."""
        return _is_believed(self._stat(), directory)

    def close(self) -> None:
        self._file.close()

    def forward(self, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """The whole lines from `start` on, each with the offset behind it."""
        rest = b""
        at = start
        while at < end and (block := self._read(at, min(_BLOCK_BYTES, end - at))):
            at += len(block)
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                start += len(line) + 1
                yield start, line
            if len(rest) >= _MAX_PIECE_BYTES:
                start += len(rest)
                yield start, rest
                rest = b""

    def backward(self, end: int) -> Iterator[tuple[int, bytes]]:
        """The whole lines before `end`, the last first, each with the offset where it begins."""
        rest = b""
        at = end
        unfinished = True
        while at > 0:
            size = min(_BLOCK_BYTES, at)
            at -= size
            text = self._read(at, size) + rest
            rest, *lines = text.split(b"\n")
            begin = at + len(text)
            for line in reversed(lines):
                begin -= len(line)
                if not unfinished:
                    yield begin, line
                unfinished = False
                begin -= 1
            if len(rest) >= _MAX_PIECE_BYTES:
                if not unfinished:
                    yield at, rest
                rest = b""
        if not unfinished:
            yield 0, rest

    def line_start(self, offset: int) -> int:
        """Where the line begins that `offset` is in."""
        begin, line = next(self.backward(offset), (-1, b""))
        return begin + len(line) + 1

    def _read(self, at: int, size: int) -> bytes:
        self._file.seek(at)
        return self._file.read(size) or b""

    def _stat(self) -> os.stat_result:
        return os.fstat(self._file.fileno())


class RotatedFiles:
    """Reads one process's files from a place on; without a place, everything there is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.modified = 0.0
        self._place: FilePosition | None = None
        self._within_a_line = False
        self._part: Part | None = None
        self._older: set[tuple[int, ...]] = set()

    def __repr__(self) -> str:
        state = "quiet" if self._part is None else "held"
        return f"<RotatedFiles {self.path.name} {state} {self._place}>"

    # Where to begin

    def backward(self) -> Iterator[tuple[FilePosition, bytes]]:
        """Every line so far, the last first, each with the place where it begins."""
        seen: set[Identity] = set()
        for path, _ in self._parts():
            part = _open(path)
            if part is None:
                continue
            with closing(part):
                if part.identity in seen:
                    continue
                seen.add(part.identity)
                for offset, line in part.backward(part.size):
                    yield FilePosition(part.identity, offset), line

    def start(self, place: FilePosition) -> None:
        """Read on from there."""
        self.release()
        self._place, self._within_a_line = place, False
        parts = [stats for _, stats in self._parts()]
        self._older = {_mark(stats) for stats in parts[self._count_later(parts) + 1 :]}

    def start_at_end(self) -> None:
        """Read only what comes from now on."""
        for _, stats in self._parts():
            self.modified = stats.st_mtime
            self.start(FilePosition(_identity(stats), stats.st_size))
            # Found out when there is something to read: most files are those of dead processes.
            self._within_a_line = True
            return

    # Reading on

    def lines(self) -> Iterator[bytes]:
        """The lines that have come since; to be read to the end."""
        if self._is_quiet():
            return
        while True:
            # First whether there is a newer one, then the rest: so the rest is complete.
            newer = self._newer()
            part = self._part = self._part or self._find()
            if part is not None:
                yield from self._rest(part)
            if newer is None:
                break
            self.release()
            self._part = newer
            self._place, self._within_a_line = FilePosition(newer.identity, 0), False
        if not _HOLDS_FILES:
            self.release()

    def hold(self) -> None:
        """Keep the file in hand open."""
        if _HOLDS_FILES and self._part is None:
            self._part = self._find()

    def release(self) -> None:
        """Keep nothing open."""
        if self._part is not None:
            self._part.close()
            self._part = None

    def is_gone(self) -> bool:
        """Whether none of its files exists."""
        return next(self._parts(), None) is None

    def _rest(self, part: Part) -> Iterator[bytes]:
        size = part.size
        offset = 0 if self._place is None else self._place.offset
        if size < offset:
            offset = 0
        elif self._within_a_line:
            offset = part.line_start(offset)
        self._place, self._within_a_line = FilePosition(part.identity, offset), False
        for behind, line in part.forward(offset, size):
            self._place = FilePosition(part.identity, behind)
            yield line

    def _is_quiet(self) -> bool:
        """Whether the file in use is the one that was read, and no longer than it was."""
        stats = _stat(self.path)
        if stats is None:
            return False
        self.modified = stats.st_mtime
        return self._place == FilePosition(_identity(stats), stats.st_size)

    def _find(self) -> Part | None:
        """The file that was read last; None when it is gone."""
        for path, stats in self._parts():
            if self._is_in_hand(stats) and (part := _open(path, _identity(stats))) is not None:
                return part
        return None

    def _newer(self) -> Part | None:
        """The file that was begun after the one in hand; None when that is the newest."""
        for _ in range(_OPEN_ATTEMPTS):
            if self._is_in_hand(_stat(self.path)):
                return None
            parts = list(self._parts())
            later = self._count_later([stats for _, stats in parts])
            if later == 0:
                return None
            path, stats = parts[later - 1]
            if (part := _open(path, _identity(stats))) is not None:
                self._older = {_mark(stats) for _, stats in parts[later:]}
                return part
        return None

    def _count_later(self, parts: list[os.stat_result]) -> int:
        """How many come before the one in hand or, if it is gone, before those it came after."""
        for index, stats in enumerate(parts):
            if self._is_in_hand(stats):
                return index
        for index, stats in enumerate(parts):
            if _mark(stats) in self._older:
                return index
        return len(parts)

    def _is_in_hand(self, stats: os.stat_result | None) -> bool:
        return (
            stats is not None
            and self._place is not None
            and _identity(stats) == self._place.identity
        )

    def _parts(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The files there are, the newest first. One that is moved meanwhile may come twice."""
        missing = 0
        number = 0
        while missing < _MAX_MISSING_NUMBERS:
            path = self.path.with_name(f"{self.path.name}.{number}") if number else self.path
            stats = _stat(path)
            if stats is None:
                missing += 1
            else:
                missing = 0
                yield path, stats
            number += 1


def _stat(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        stats = path.lstat()
        return stats if _is_believed(stats, path.parent) else None
    return None


def _is_believed(stats: os.stat_result, directory: Path) -> bool:
    """Of the user who reads it, or who owns the directory: no one else writes a journal."""
    return is_own(stats, or_of=directory.stat().st_uid)


def _open(path: Path, identity: Identity | None = None) -> Part | None:
    """The file, if it can be read, is a journal, and is the one that is meant."""
    with suppress(OSError):
        part = Part(path)
        if part.is_believed(path.parent) and identity in (None, part.identity):
            return part
        part.close()
    return None


def _identity(stats: os.stat_result) -> Identity:
    return stats.st_dev, stats.st_ino


def _mark(stats: os.stat_result) -> tuple[int, ...]:
    """Tells a file that nobody writes to any more from a later one with its identity."""
    return stats.st_dev, *stamp_of(stats)


# Files of all processes in one directory, read as one: the last lines, then what comes.
#
# Each line comes once; those of one process in the order of writing, those of several by their
# time. The past is read backwards from the end of the files, and no further than it is asked for.


# The files that were written to last are kept open and read every time, the others at every tenth
# read: most of those belong to processes that have ended.
_MAX_OPEN_FILES = 64  # well below what systems let a process open
_READS_PER_FULL_READ = 10
_MAX_CLOCK_LEAD_S = 2.0  # a line's time may be this much after its file's: two clocks took them


RecordT = TypeVar("RecordT")


@dataclass(frozen=True, slots=True)
class DatedLine(Generic[RecordT]):
    """One line as it is in the file, its time in seconds since 1970, and what it says.

    `record` is None for what is not ours.
    """

    raw: bytes
    at: float
    record: RecordT | None


@dataclass(frozen=True, slots=True)
class _Step(Generic[RecordT]):
    """One step back through a process's files. The first has no line: all lines are earlier."""

    at: float
    files: RotatedFiles
    place: FilePosition | None = None
    line: DatedLine[RecordT] | None = None


@dataclass(eq=False, repr=False)
class MergedReader(Generic[RecordT]):
    """Begins at the end of every file; `rewind` goes back, `read` goes on.

    `names` matches the names of the files, the one in use as its first group; `line_of` reads a
    line, which has the time of its neighbour where it has none of its own.
    """

    directory: Path
    names: re.Pattern[str]
    line_of: Callable[[bytes, float], DatedLine[RecordT]]

    def __post_init__(self) -> None:
        self._files: dict[str, RotatedFiles] = {}
        self._latest: dict[str, float] = {}
        self._held: list[RotatedFiles] = []
        self._reads = 0
        for name in self._names():
            files = self._files[name] = RotatedFiles(self.directory / name)
            files.start_at_end()
        self._hold_the_latest()

    def __repr__(self) -> str:
        files = f"{len(self._files)} files {len(self._held)} held"
        return f"<{type(self).__name__} {self.directory} {files}>"

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    def rewind(
        self,
        count: int | None,
        wanted: Callable[[DatedLine[RecordT]], bool],
        *,
        since: float = -inf,
    ) -> None:
        """Go back until `count` wanted lines are ahead, or all there are since then."""
        starts: dict[RotatedFiles, FilePosition] = {}
        left = inf if count is None else count
        steps = self._steps()
        while left > 0 and (step := next(steps, None)) is not None and step.at >= since:
            if step.place is not None and step.line is not None and wanted(step.line):
                starts[step.files] = step.place
                left -= 1
        for files, place in starts.items():
            files.start(place)

    def backward(self) -> Iterator[DatedLine[RecordT]]:
        """Every line so far, the last first; where reading goes on stays as it is."""
        return (step.line for step in self._steps() if step.line is not None)

    def _steps(self) -> Iterator[_Step[RecordT]]:
        steps = map(self._back, self._files.values())
        return merge(*steps, key=attrgetter("at"), reverse=True)

    def read(self) -> Iterator[DatedLine[RecordT]]:
        """The lines that have come since, to be read to the end."""
        names = self._names()
        for name in names.difference(self._files):
            files = self._files[name] = RotatedFiles(self.directory / name)
            self._held.append(files)
        everything = self._reads % _READS_PER_FULL_READ == 0
        self._reads += 1
        due = self._files.values() if everything else self._held
        yield from merge(*map(self._on, due), key=attrgetter("at"))
        for name in self._files.keys() - names:
            self._forget_if_gone(name)
        if everything:
            self._hold_the_latest()

    def close(self) -> None:
        for files in self._files.values():
            files.release()

    def _on(self, files: RotatedFiles) -> Iterator[DatedLine[RecordT]]:
        name = files.path.name
        for raw in files.lines():
            line = self.line_of(raw, self._latest.get(name, -inf))
            self._latest[name] = line.at
            if raw:
                yield line

    def _names(self) -> set[str]:
        """The files there are; a rotated file stands for the one that it was."""
        try:
            with os.scandir(self.directory) as entries:
                found = [self.names.fullmatch(entry.name) for entry in entries]
        except FileNotFoundError:
            return set()
        return {match[1] for match in found if match is not None}

    def _forget_if_gone(self, name: str) -> None:
        files = self._files[name]
        if files.is_gone():
            files.release()
            del self._files[name]
            self._latest.pop(name, None)
            self._held = [held for held in self._held if held is not files]

    def _hold_the_latest(self) -> None:
        self._held = nlargest(_MAX_OPEN_FILES, self._files.values(), key=attrgetter("modified"))
        for files in set(self._files.values()).difference(self._held):
            files.release()
        for files in self._held:
            files.hold()

    def _back(self, files: RotatedFiles) -> Iterator[_Step[RecordT]]:
        """Steps that never go forward in time. The files are opened with the second one."""
        at = files.modified + _MAX_CLOCK_LEAD_S
        yield _Step(at, files)
        for place, raw in files.backward():
            line = self.line_of(raw, at)
            at = min(at, line.at)
            if raw:
                yield _Step(at, files, place, line)


_NAME = re.compile(r"(emceepee-.+\.jsonl)(?:\.\d+)?", re.ASCII)

_decode = msgspec.json.Decoder(Record).decode


Line = DatedLine[Record]


def journal_line(raw: bytes, otherwise: float) -> Line:
    """A line without a time of its own has that of its neighbour."""
    try:
        record = _decode(raw)
        at = datetime.fromisoformat(record.timestamp).timestamp()
    except (ValueError, OverflowError, OSError, RecursionError):  # OSError: on Windows, before 1970
        return DatedLine(raw, otherwise, None)
    return DatedLine(raw, at, record)


class JournalReader(MergedReader[Record]):
    """Begins at the end of every journal; `rewind` goes back, `read` goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _NAME, journal_line)
