"""What the page is told: the last records and marks, and those that come.

Everything is encoded once, numbered, and kept up to a bound, so that each page that is opened or
comes back is told all of it, or goes on where it was. The oldest goes first.
"""

import secrets
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from math import inf
from pathlib import Path

import msgspec

from emceepee_stdio.journal.reader import JournalReader, Line
from emceepee_stdio.trace.request_reader import RequestLine, RequestReader
from emceepee_stdio.trace.request_records import DroppedRecords, RequestRecord
from emceepee_stdio.trace.server_marks import MARKS_BEFORE_S, MAX_MARKS, Mark, mark_of

__all__ = ["MAX_RECORDS", "FeedEntry", "PageFeed"]

MAX_RECORDS = 20_000  # half of what a page keeps, so that a day of following does not thin it out
_MAX_ENTRIES = 100_000
_MAX_BYTES = 64 << 20  # of what is kept; payloads make records long
_BATCH = 500  # entries in one message: a page draws between two of them
_MAX_DIGITS = 16  # of a place; Python reads longer numbers slowly

FeedEntry = tuple[str, bytes]  # the list of the message that it belongs to, and its JSON

_encode = msgspec.json.Encoder().encode


class PageFeed:
    """Reads one directory; `wanted` says which requests a person asked for.

    Of a session that `shows` says no to, nothing is told at all.
    """

    def __init__(
        self,
        directory: Path,
        *,
        wanted: Callable[[RequestRecord], bool] = lambda _: True,
        shows: Callable[[str], bool] = lambda _: True,
        since: float = -inf,
    ) -> None:
        self.id = secrets.token_hex(8)
        self._wanted = wanted
        self._shows = shows
        self._since = since
        self._records = RequestReader(directory)
        self._journal = JournalReader(directory)
        self._entries: deque[FeedEntry] = deque()
        self._bytes = 0
        self._first = 0  # number of the oldest entry that is kept
        self._began = False
        self._oldest_s = inf  # when the first request that is known began

    def __repr__(self) -> str:
        return f"<PageFeed {self._first} to {self.end}, {self._bytes} bytes>"

    @property
    def end(self) -> int:
        return self._first + len(self._entries)

    def read(self) -> list[FeedEntry]:
        """What has come since, to be kept.

        It reads files, so it is called in a thread, once at a time; nothing else here waits.
        """
        if self._began:
            return [*self._new_records(), *self._new_marks()]
        self._began = True
        self._records.rewind(MAX_RECORDS, self._is_wanted, since=self._since)
        records = list(self._new_records())
        since = max(self._since, self._oldest_s - MARKS_BEFORE_S)
        self._journal.rewind(MAX_MARKS, lambda line: self._mark(line) is not None, since=since)
        return [*records, *self._new_marks()]

    def keep(self, entries: list[FeedEntry]) -> None:
        self._entries.extend(entries)
        self._bytes += sum(len(entry) for _, entry in entries)
        while len(self._entries) > _MAX_ENTRIES or self._bytes > _MAX_BYTES:
            self._bytes -= len(self._entries.popleft()[1])
            self._first += 1

    def close(self) -> None:
        self._records.close()
        self._journal.close()

    def place(self, given: str) -> int:
        """Where a page goes on that was told so much; another feed's place is none of ours."""
        feed, _, number = given.partition(":")
        known = (
            feed == self.id and number.isascii() and number.isdigit() and len(number) < _MAX_DIGITS
        )
        return int(number) if known else 0

    def batch(self, place: int) -> tuple[bytes, int]:
        """The entries from there on, as one JSON object, and the place behind them."""
        start = min(max(place - self._first, 0), len(self._entries))
        chosen = list(islice(self._entries, start, start + _BATCH))
        parts = {
            name: b",".join(entry for kind, entry in chosen if kind == name)
            for name in ("records", "marks")
        }
        lists = b",".join(b'"%s":[%s]' % (name.encode(), part) for name, part in parts.items())
        return (b"{%s}" % lists if chosen else b""), self._first + start + len(chosen)

    def _is_wanted(self, line: RequestLine) -> bool:
        record = line.record
        return (
            isinstance(record, RequestRecord)
            and self._shows(record.session)
            and self._wanted(record)
        )

    def _new_records(self) -> Iterator[FeedEntry]:
        for line in self._records.read():
            if line.record is not None and (self._is_wanted(line) or self._is_loss(line)):
                self._oldest_s = min(self._oldest_s, line.record.start_ms / 1000)
                yield "records", _encode(line.record)

    def _new_marks(self) -> Iterator[FeedEntry]:
        for line in self._journal.read():
            if (mark := self._mark(line)) is not None:
                yield "marks", _encode(mark)

    def _is_loss(self, line: RequestLine) -> bool:
        return isinstance(line.record, DroppedRecords) and self._shows(line.record.session)

    def _mark(self, line: Line) -> Mark | None:
        mark = mark_of(line)
        return mark if mark is not None and self._shows(mark.session) else None
