"""Files of all processes in one directory, read as one: the last lines, then what comes.

Each line comes once; those of one process in the order of writing, those of several by their time.
The past is read backwards from the end of the files, and no further than it is asked for.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge, nlargest
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from emceepee_stdio.journal.rotated_files import FilePosition, RotatedFiles

__all__ = ["DatedLine", "MergedReader"]

# The files that were written to last are kept open and read every time, the others at every tenth
# read: most of those belong to processes that have ended.
_MAX_OPEN_FILES = 64  # well below what systems let a process open
_READS_PER_FULL_READ = 10
_MAX_CLOCK_LEAD_S = 2.0  # a line's time may be this much after its file's: two clocks took them


class DatedLine(Protocol):
    """One line as it is in the file, and its time in seconds since 1970."""

    @property
    def raw(self) -> bytes: ...

    @property
    def at(self) -> float: ...


LineT = TypeVar("LineT", bound=DatedLine)


@dataclass(frozen=True, slots=True)
class _Step(Generic[LineT]):
    """One step back through a process's files. The first has no line: all lines are earlier."""

    at: float
    files: RotatedFiles
    place: FilePosition | None = None
    line: LineT | None = None


class MergedReader(Generic[LineT]):
    """Begins at the end of every file; `rewind` goes back, `read` goes on.

    `names` matches the names of the files, the one in use as its first group; `line_of` reads a
    line, which has the time of its neighbour where it has none of its own.
    """

    def __init__(
        self, directory: Path, names: re.Pattern[str], line_of: Callable[[bytes, float], LineT]
    ) -> None:
        self._directory = directory
        self._pattern = names
        self._line_of = line_of
        self._files: dict[str, RotatedFiles] = {}
        self._latest: dict[str, float] = {}
        self._held: list[RotatedFiles] = []
        self._reads = 0
        for name in self._names():
            files = self._files[name] = RotatedFiles(directory / name)
            files.start_at_end()
        self._hold_the_latest()

    def __repr__(self) -> str:
        files = f"{len(self._files)} files {len(self._held)} held"
        return f"<{type(self).__name__} {self._directory} {files}>"

    @property
    def has_files(self) -> bool:
        return bool(self._files)

    def rewind(
        self, count: int | None, wanted: Callable[[LineT], bool], *, since: float = -inf
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

    def backward(self) -> Iterator[LineT]:
        """Every line so far, the last first; where reading goes on stays as it is."""
        return (step.line for step in self._steps() if step.line is not None)

    def _steps(self) -> Iterator[_Step[LineT]]:
        steps = map(self._back, self._files.values())
        return merge(*steps, key=attrgetter("at"), reverse=True)

    def read(self) -> Iterator[LineT]:
        """The lines that have come since, to be read to the end."""
        names = self._names()
        for name in names.difference(self._files):
            files = self._files[name] = RotatedFiles(self._directory / name)
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

    def _on(self, files: RotatedFiles) -> Iterator[LineT]:
        name = files.path.name
        for raw in files.lines():
            line = self._line_of(raw, self._latest.get(name, -inf))
            self._latest[name] = line.at
            if raw:
                yield line

    def _names(self) -> set[str]:
        """The files there are; a rotated file stands for the one that it was."""
        try:
            with os.scandir(self._directory) as entries:
                found = [self._pattern.fullmatch(entry.name) for entry in entries]
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

    def _back(self, files: RotatedFiles) -> Iterator[_Step[LineT]]:
        """Steps that never go forward in time. The files are opened with the second one."""
        at = files.modified + _MAX_CLOCK_LEAD_S
        yield _Step(at, files)
        for place, raw in files.backward():
            line = self._line_of(raw, at)
            at = min(at, line.at)
            if raw:
                yield _Step(at, files, place, line)
