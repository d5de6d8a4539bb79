"""Framing: bytes in, whole lines out; linear and bounded.

A line over the bound is not kept: both ends of it come out as `Oversized` once it is over, so that
the call that it answers can be ended, and what follows is read as usual.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

# Messages that have begun and not ended, of all servers together.
#
# One message may be as long as a line may be; this bounds what is kept of all of them at a time.
# When it is too much, the longest gives way: it is read on to its end, and told as too large. So
# many servers that begin a line and never end it cost themselves, and a short message always has
# room.


class Partial(Protocol):
    """A message of which only a part has come."""

    def give_way(self) -> None:
        """Keep no more of it than its ends."""
        ...


class PartialMessages:
    """How many bytes are kept of each. Whatever is thrown away counts no more."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: WeakKeyDictionary[Partial, int] = WeakKeyDictionary()

    @property
    def _bytes(self) -> int:
        return sum(self._sizes.values())

    def hold(self, partial: Partial, size: int) -> None:
        """So much is kept of it now; nothing, when it has ended."""
        if not size:
            self._sizes.pop(partial, None)
            return
        self._sizes[partial] = size
        while self._bytes > self._max_bytes:
            longest = max(self._sizes, key=lambda one: self._sizes[one])
            del self._sizes[longest]
            longest.give_way()


HEAD_BYTES = 65_536  # the id of a message nearly always stands here; searching more costs too much
TAIL_BYTES = 512  # an id that comes last is well within this
_MANY_LINES = 100  # in one read: from here on handling lines costs more than reading them
TURN_BYTES = 2_048  # of the shortest messages there are, what is taken in within 20 ms
_LONG_TURN_BYTES = 16_384  # of others: a log line of that length takes up to 14 ms to mask


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line that was too long: its first bytes, how many there were in all, and the last."""

    head: bytes
    size: int
    tail: bytes = b""


def turns(data: bytes) -> Iterator[bytes]:
    """The same bytes, of which others get their turn in between where they hold many lines."""
    lines = data.count(b"\n") + data.count(b"\r")
    step = TURN_BYTES if lines > _MANY_LINES else _LONG_TURN_BYTES
    if lines <= 1 or len(data) <= step:
        return iter((data,))
    return (data[start : start + step] for start in range(0, len(data), step))


class Lines:
    """Splits a stream at newlines."""

    def __init__(
        self, max_bytes: int = 64 << 20, *, partial: PartialMessages | None = None
    ) -> None:
        self._max_bytes = max_bytes
        self._room = max_bytes  # for the line that has not ended yet
        self._partial = partial
        self._unfinished = bytearray()
        self._tail = b""
        self.unfinished = 0  # bytes of the line that has not ended yet, kept or not

    def __repr__(self) -> str:
        return f"<Lines waiting={self.unfinished}/{self._max_bytes}>"

    def feed(self, data: bytes) -> list[bytes | Oversized]:
        # Most reads bring one whole line.
        if not self.unfinished and 0 <= data.find(b"\n") == len(data) - 1 < self._max_bytes:
            return [data[:-1]]
        *ended, rest = data.split(b"\n")
        lines = [self._end(piece) for piece in ended]
        if rest:
            self._keep(rest)
        return lines

    def end(self) -> list[bytes | Oversized]:
        """The stream is over: what stands without a newline is a line, too."""
        return [self._end(b"")] if self.unfinished else []

    def drop(self) -> None:
        """Nobody wants the line that has not ended."""
        self._unfinished, self.unfinished, self._tail = bytearray(), 0, b""
        self._room = self._max_bytes
        self._hold()

    def give_way(self) -> None:
        self._tail = self._tail or bytes(self._unfinished[-TAIL_BYTES:])
        del self._unfinished[HEAD_BYTES:]
        self._room = 0

    def _end(self, piece: bytes) -> bytes | Oversized:
        if not self.unfinished and len(piece) <= self._max_bytes:
            return piece
        self._keep(piece)
        line, size, tail = bytes(self._unfinished), self.unfinished, self._tail
        is_whole = size <= self._room
        self.drop()
        return line if is_whole else Oversized(line, size, tail)

    def _keep(self, piece: bytes) -> None:
        self.unfinished += len(piece)
        if self.unfinished <= self._room:
            self._unfinished += piece
        else:
            before = self._tail or bytes(self._unfinished[-TAIL_BYTES:])
            self._tail = (before + piece[-TAIL_BYTES:])[-TAIL_BYTES:]
            if len(self._unfinished) != HEAD_BYTES:
                self._unfinished += piece
                del self._unfinished[HEAD_BYTES:]
        self._hold()

    def _hold(self) -> None:
        if self._partial is not None:
            self._partial.hold(self, len(self._unfinished) if self._room else 0)


def one_line(message: bytes) -> bytes:
    """A message without line ends: wherever they may stand in JSON, they are white space."""
    return message.replace(b"\n", b" ").replace(b"\r", b" ")


# How many bytes of answers wait for a side that does not read them.
#
# A server whose answers cannot be got rid of is not read from until they are: whoever asks and does
# not listen waits for itself. Only answers count. Requests of ours are written whether or not the
# server is writing to us just then; not to read from it because of them could block both for ever.


class Backlog:
    """Counts along with a writer: what was queued in all, and what of it has left."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queued = 0
        # Runs of answers with nothing between them: where each ends, and its bytes.
        self._runs: deque[tuple[int, int]] = deque()
        self.answers = 0

    def __repr__(self) -> str:
        return f"<Backlog {self.answers}/{self._limit}>"

    @property
    def is_over(self) -> bool:
        return self.answers > self._limit

    def request(self, size: int) -> None:
        self._queued += size

    def answer(self, size: int) -> None:
        run = 0
        if self._runs and self._runs[-1][0] == self._queued:
            run = self._runs.pop()[1]
        self._queued += size
        self._runs.append((self._queued, run + size))
        self.answers += size

    def written(self, total: int) -> None:
        """So many bytes have left since the beginning."""
        while self._runs and self._runs[0][0] <= total:
            self.answers -= self._runs.popleft()[1]
        if self._runs:
            end, size = self._runs[0]
            left = min(size, end - total)
            self._runs[0] = (end, left)
            self.answers -= size - left
