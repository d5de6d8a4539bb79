"""Writes the journal of one process, in a thread and bounded; warnings and errors to stderr, too.

A call makes the line (redacted, bounded) and puts it into a queue; threads carry it to the file
and, from warning upwards, to stderr. Nothing here blocks the caller or raises into it: a line that
cannot be kept is dropped and counted, and the count is written as soon as that is possible.
"""

import math
import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import msgspec

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal.journal_events import JournalEvent, Level
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.redaction.redact import CUT, redact, redact_text
from emceepee_stdio.visible_text import cut, on_one_line

# One line of the journal: as JSON for the file, as a sentence for stderr.
#
# A record is made of redacted data only, so nothing that is written from one can hold a secret.


MAX_LINE_BYTES = 64 * 1024  # so that no single message fills a journal
MAX_STRING_CHARS = 16 * 1024  # so that a long text leaves room for the other fields
MAX_STDERR_CHARS = 500  # a few lines of a terminal; the file has the rest

_MAX_NAME_CHARS = 200  # of events, servers and ids; more than one of these is data
# As a JSON string inside JSON this can double; the rest of the line fits beside it.
_HEAD_BYTES = 28 * 1024

_PLAIN_WORD = re.compile(r"[^\s\"'=\\]+")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What happened, when, and to whom. The order of the fields is their order in the file."""

    timestamp: str
    level: str
    event: str
    session: str
    server: str | None = None
    request_id: str | int | None = None
    data: dict[str, object]

    def as_json(self) -> bytes:
        line = msgspec.json.encode(self)
        if len(line) >= MAX_LINE_BYTES:
            data = msgspec.json.encode(self.data)
            head = data[:_HEAD_BYTES].decode("utf-8", "ignore")
            line = msgspec.json.encode(
                msgspec.structs.replace(self, data={CUT: head, "bytes": len(data)})
            )
        return line + b"\n"

    def as_text(self) -> bytes:
        """One readable line, safe to show on a terminal."""
        fields = {"server": self.server, "request_id": self.request_id, **self.data}
        words = [f"emceepee: {self.level}: {self.event}"]
        words += [
            f"{name}={plain_word(value)}" for name, value in fields.items() if value is not None
        ]
        text = on_one_line(" ".join(words)[: MAX_STDERR_CHARS + 1])
        return cut(text, MAX_STDERR_CHARS).encode() + b"\n"


def _name(text: str) -> str:
    return str(redact(text, max_chars=_MAX_NAME_CHARS))


def plain_word(value: object) -> str:
    """A value in a line of `name=value`: itself where that is one word, else as JSON."""
    if isinstance(value, str) and _PLAIN_WORD.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()


# A bounded queue of lines, and the one thread that carries them away.
#
# Whoever offers a line never waits: past the bound the line is dropped and counted. The thread
# starts with the first line and hands over everything that is waiting at once. A line is whatever
# `carry` makes one of.


T = TypeVar("T")


@dataclass(eq=False, repr=False)
class BackgroundWriter(Generic[T]):
    """Takes lines from any thread; `carry` gets them in order, and how many were dropped since.

    With `gather_s` the thread lets more lines come for so long, and is woken once for all of them,
    or as soon as there are `gather_lines`.
    """

    name: str
    carry: Callable[[list[T], int], None]
    _: KW_ONLY
    max_lines: int
    max_bytes: int
    gather_s: float = 0.0
    gather_lines: float = math.inf
    finish: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._flushing = 0
        self._lock = threading.Lock()  # taken by itself where nobody is waited for: much faster
        self._changed = threading.Condition(self._lock)
        self._lines: list[T] = []
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._busy = False
        self._closing = False
        self._unreported = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<BackgroundWriter {self.name} {len(self._lines)} waiting {self.dropped} dropped>"

    @property
    def full(self) -> bool:
        return len(self._lines) >= self.max_lines or self._bytes >= self.max_bytes

    def offer(self, line: T, size: int) -> None:
        """`size` is what it takes of the bound on bytes."""
        with self._lock:
            if self._closing or self.full:
                self._count_drop()
                return
            self._lines.append(line)
            self._bytes += size
            # Else it is awake, or about to be.
            if len(self._lines) in (1, self.gather_lines) or self._thread is None:
                self._start()
                self._changed.notify_all()

    def refuse(self) -> None:
        """Count a line that was not worth making."""
        with self._changed:
            self._count_drop()

    def flush(self, timeout: float) -> bool:
        """Wait until everything offered so far was carried away; False when the time was up."""
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not (self._busy or self._has_work()), timeout)
            finally:
                self._flushing -= 1

    def close(self, timeout: float) -> bool:
        """Take no more lines, and wait for the rest; False when the time was up."""
        with self._changed:
            self._closing = True
            if self._lines:
                self._start()
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._thread is None, timeout)

    def _count_drop(self) -> None:
        self.dropped += 1
        if not self._closing:
            self._unreported += 1
            self._start()
            self._changed.notify_all()

    def _start(self) -> None:
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # No thread to be had now: the lines wait for one within the bound.
            return
        self._thread = thread

    def _has_work(self) -> bool:
        return bool(self._lines) or self._unreported > 0

    def _is_time(self) -> bool:
        return self._closing or self._flushing > 0 or len(self._lines) >= self.gather_lines

    def _run(self) -> None:
        try:
            while self._carry_once():
                pass
            self.finish()
        finally:
            with self._changed:
                self._thread = None
                self._changed.notify_all()

    def _carry_once(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._has_work() or self._closing)
            if self.gather_s:
                self._changed.wait_for(self._is_time, self.gather_s)
            if not self._has_work():
                return False
            lines, self._lines, self._bytes = self._lines, [], 0
            dropped, self._unreported = self._unreported, 0
            self._busy = True
        try:
            self.carry(lines, dropped)
        except Exception:  # noqa: BLE001 - the thread outlives whatever one batch runs into
            with self._changed:
                self.dropped += len(lines)
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
        return True


_RANKS = {level: rank for rank, level in enumerate(Level)}

# What may wait while the disk, or whoever reads stderr, is slow. More is dropped and counted.
_MAX_QUEUED_LINES = 10_000
_MAX_QUEUED_STDERR_LINES = 1_000  # stderr is for a person to read
_MAX_QUEUED_BYTES = 4 * 1024 * 1024  # of each of the two: lines may be long

# Together the two seconds that ending the process may cost at most. A reader of stderr that is
# stuck must not eat the time of the file.
_FILE_DRAIN_S = 1.5
_STDERR_DRAIN_S = 0.5

_STDERR_FD = 2  # written to directly, so that no buffer is left when the process ends


def write_to_stderr(line: bytes) -> None:
    while line:
        line = line[os.write(_STDERR_FD, line) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalStatistics:
    """How the journal is doing."""

    path: Path
    lines_written: int
    lines_dropped: int
    failing: bool


class Journal:
    """Takes lines from any thread, by level; see `Journal.open`."""

    def __init__(
        self,
        file: JournalFile,
        *,
        level: Level = Level.INFO,
        stderr: Callable[[bytes], object] | None = write_to_stderr,
        max_lines: int = _MAX_QUEUED_LINES,
    ) -> None:
        self._file = file
        self.session = redact_text(file.session)
        self._clock = file.clock
        self._threshold = _RANKS[level]
        self.debugs = level is Level.DEBUG  # so that nobody gathers what is not written
        self._stderr = stderr
        self._failing = False
        self._lost = 0
        self._lost_unreported = 0
        self._to_file = BackgroundWriter(
            "emceepee-journal",
            self._carry_to_file,
            max_lines=max_lines,
            max_bytes=_MAX_QUEUED_BYTES,
            finish=file.close,
        )
        self._to_stderr = BackgroundWriter(
            "emceepee-stderr",
            self._carry_to_stderr,
            max_lines=_MAX_QUEUED_STDERR_LINES,
            max_bytes=_MAX_QUEUED_BYTES,
        )

    @classmethod
    def open(
        cls,
        *,
        directory: Path,
        session: str,
        clock: Clock,
        level: str = Level.INFO,
        stderr: Callable[[bytes], object] | None = write_to_stderr,
        **bounds: int,
    ) -> "Journal":
        """A journal in this directory; nothing is touched before the first line.

        `stderr` gets each warning and error as one line; None keeps them to the file. `bounds` are
        those of `JournalFile`.
        """
        file = JournalFile(directory, session=session, clock=clock, kind="emceepee", **bounds)
        return cls(file, level=Level(level), stderr=stderr)

    @classmethod
    def silent(cls, clock: Clock) -> "Journal":
        """One that writes nothing, for a session that lasts as long as one command."""
        journal = cls.open(directory=Path(), session="", clock=clock, stderr=None)
        journal._threshold = len(_RANKS)  # noqa: SLF001 - its own
        return journal

    def __repr__(self) -> str:
        state = "failing" if self._failing else "well"
        return f"<Journal {self._file.path.name} {state} {self._file.lines} lines>"

    def record(self, event: JournalEvent, /, **fields: Any) -> None:
        """Write a known event at its usual level; `fields` as in `write`."""
        self.write(event.level, event, **fields)

    def write(
        self,
        level: str,
        event: str,
        /,
        *,
        server: str | None = None,
        request_id: str | int | None = None,
        **data: object,
    ) -> None:
        known = Level(level) if level in _RANKS else Level.ERROR
        rank = _RANKS[known]
        if rank < self._threshold:
            return
        shown = self._stderr is not None and rank >= _RANKS[Level.WARNING]
        if self._to_file.full and not shown:
            self._to_file.refuse()
            return
        try:
            record = self._record(known, event, data, server, request_id)
            line = record.as_json()
            text = record.as_text() if shown else b""
        except Exception:  # noqa: BLE001 - the caller never hears of a line that cannot be made
            self._to_file.refuse()
            return
        self._to_file.offer(line, len(line))
        if shown:
            self._to_stderr.offer(text, len(text))

    def flush(self, timeout: float = _FILE_DRAIN_S + _STDERR_DRAIN_S) -> bool:
        """Wait until the lines so far are out; False when the time was up."""
        return self._to_file.flush(timeout) and self._to_stderr.flush(timeout)

    def close(self) -> None:
        """Write what is waiting, within two seconds. Lines that come later are dropped."""
        self._to_file.close(_FILE_DRAIN_S)
        self._to_stderr.close(_STDERR_DRAIN_S)

    def statistics(self) -> JournalStatistics:
        return JournalStatistics(
            path=self._file.path,
            lines_written=self._file.lines,
            lines_dropped=self._to_file.dropped + self._lost,
            failing=self._failing,
        )

    def _record(
        self,
        level: Level,
        event: str,
        data: dict[str, object],
        server: str | None = None,
        request_id: str | int | None = None,
    ) -> Record:
        """A record without secrets, bounded, whatever the data is."""
        bounded = redact(data, max_chars=MAX_STRING_CHARS, max_total=MAX_LINE_BYTES)
        return Record(
            timestamp=self._clock.iso(self._clock.now()),
            level=level.value,
            event=_name(event),
            session=self.session,
            server=None if server is None else _name(server),
            request_id=request_id if isinstance(request_id, int | None) else _name(request_id),
            data=cast("dict[str, object]", bounded),
        )

    def _own(self, event: JournalEvent, **data: object) -> Record:
        return self._record(event.level, event, data)

    def _say(self, event: JournalEvent, **data: object) -> None:
        if self._stderr is not None:
            text = self._own(event, **data).as_text()
            self._to_stderr.offer(text, len(text))

    def _carry_to_file(self, lines: list[bytes], dropped: int) -> None:
        """Append the lines; the count of what was lost goes where the gap is."""
        earlier, later = (
            [self._own(JournalEvent.JOURNAL_DROPPED, count=count).as_json()] if count else []
            for count in (self._lost_unreported, dropped)
        )
        lines_before, renewals_before = self._file.lines, self._file.renewals
        failure: OSError | None = None
        try:
            self._file.append(b"".join([*earlier, *lines, *later]))
        except OSError as error:
            failure = error
        if self._file.renewals > renewals_before:
            self._say(JournalEvent.JOURNAL_RENEWED, path=self._file.path)
        self._report_health(failure)
        written = self._file.lines - lines_before
        if written >= len(earlier):
            self._lost_unreported = 0
        missed = len(lines) - min(max(written - len(earlier), 0), len(lines))
        self._lost += missed
        self._lost_unreported += missed
        if failure is None and dropped:
            self._say(JournalEvent.JOURNAL_DROPPED, count=dropped)
        elif dropped:
            self._lost_unreported += dropped

    def _report_health(self, failure: OSError | None) -> None:
        """Say it once when the file stops taking lines, and once when it takes them again."""
        path = self._file.path
        if failure is not None and not self._failing:
            why = failure.strerror or type(failure).__name__
            self._say(JournalEvent.JOURNAL_UNWRITABLE, path=path, error=why)
        elif failure is None and self._failing:
            self._say(JournalEvent.JOURNAL_RECOVERED, path=path, lines_lost=self._lost_unreported)
        self._failing = failure is not None

    def _carry_to_stderr(self, lines: list[bytes], dropped: int) -> None:
        if dropped:
            gap = self._own(JournalEvent.JOURNAL_DROPPED, of="stderr", count=dropped)
            lines = [*lines, gap.as_text()]
        for line in lines:
            with suppress(OSError, ValueError):
                if self._stderr is not None:
                    self._stderr(line)
