"""Stored large results: read by pages, searched in place.

Positions count characters, so a page never splits one. The oldest results go when the store is
full, and a result that went is remembered as gone.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from emceepee_stdio.errors import InvalidArguments, ResourceNotFound, ResultExpired, ResultTooLarge
from emceepee_stdio.state.machine import Tombstones
from emceepee_stdio.state.patterns import Pattern

_CONTEXT_CHARS = 120  # a line or two on either side of a hit
_WINDOW_CHARS = 1 << 18  # bounds how long one search holds the loop
_LOOK_AHEAD_CHARS = 8_192  # a match that starts in the window may end this far behind it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One stored result. `size` is the memory it takes."""

    id: str
    created_at: float
    text: str
    size: int

    def __repr__(self) -> str:
        return f"<Stored {self.id} {self.chars} chars>"

    @property
    def chars(self) -> int:
        return len(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A piece of a result; `next_offset` is None at the end."""

    text: str
    offset: int
    next_offset: int | None
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One place where a pattern was found, with what stands around it."""

    offset: int
    length: int
    excerpt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What one look found; `next_offset` is where to look on, None at the end."""

    hits: tuple[Hit, ...]
    next_offset: int | None


class Results:
    """The store of the session."""

    def __init__(self, *, new_id: Callable[[], str], max_bytes: int = 64 << 20) -> None:
        self._new_id = new_id
        self._max_bytes = max_bytes
        self._stored: dict[str, Stored] = {}
        self.size = 0
        self._tombstones = Tombstones()

    def __repr__(self) -> str:
        return f"<Results {len(self._stored)} stored {self.size}/{self._max_bytes} bytes>"

    def put(self, text: str, *, now: float, under: str | None = None) -> Stored:
        """Keep a text; under an id that it has already, it is kept once."""
        if under is not None and under in self._stored:
            return self._stored[under]
        size = sys.getsizeof(text)
        if size > self._max_bytes:
            raise ResultTooLarge(
                f"The result takes {size} bytes; the store holds {self._max_bytes} in all."
            )
        while self.size + size > self._max_bytes:
            self._drop_oldest(now=now)
        stored = Stored(id=under or self._new_id(), created_at=now, text=text, size=size)
        self._stored[stored.id] = stored
        self.size += size
        return stored

    def all(self) -> list[Stored]:
        return list(self._stored.values())

    def page(self, result_id: str, *, offset: int, limit: int, now: float) -> Page:
        text = self._text(result_id, now=now)
        _check_range(offset, limit)
        end = offset + limit
        return Page(
            text=text[offset:end],
            offset=offset,
            next_offset=end if end < len(text) else None,
            total=len(text),
        )

    def search(
        self,
        result_id: str,
        pattern: Pattern,
        *,
        now: float,
        offset: int = 0,
        limit: int = 20,
        window: int = _WINDOW_CHARS,
    ) -> Hits:
        """Look through one window of the text: bounded work, to be continued at `next_offset`.

        A match counts where it starts, and may reach a little beyond the window.
        """
        text = self._text(result_id, now=now)
        _check_range(offset, limit)
        end = min(offset + window, len(text))
        reach = min(end + _LOOK_AHEAD_CHARS, len(text))
        spans = (
            span for span in pattern.spans(text, offset, reach) if span[0] < end or end == len(text)
        )
        found = list(islice(spans, limit))
        hits = tuple(_hit(text, start, stop) for start, stop in found)
        if found:
            start, stop = found[-1]
            beyond = max(stop, start + 1)
            end = beyond if len(found) == limit else max(end, beyond)
        return Hits(hits=hits, next_offset=end if end < len(text) else None)

    def _text(self, result_id: str, *, now: float) -> str:
        if result_id in self._stored:
            return self._stored[result_id].text
        if gone := self._tombstones.describe(result_id, now=now):
            raise ResultExpired(f"Result {result_id} is no longer kept: {gone}.")
        raise ResourceNotFound(f"There is no stored result {result_id!r}.")

    def _drop_oldest(self, *, now: float) -> None:
        result_id = next(iter(self._stored))
        self.size -= self._stored.pop(result_id).size
        self._tombstones.add(result_id, "room was needed for newer results", now=now)


def _check_range(offset: int, limit: int) -> None:
    if offset < 0 or limit < 1:
        raise InvalidArguments(
            f"offset was {offset} and limit {limit}; they must be at least 0 and 1."
        )


def _hit(text: str, start: int, stop: int) -> Hit:
    excerpt = text[
        max(0, start - _CONTEXT_CHARS) : min(stop, start + _CONTEXT_CHARS) + _CONTEXT_CHARS
    ]
    return Hit(offset=start, length=stop - start, excerpt=excerpt)
