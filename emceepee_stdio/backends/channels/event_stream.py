"""Server-sent events: bytes in, events out. Pure, linear, bounded."""

from dataclasses import dataclass, field, replace

from emceepee_stdio.wire.framing import HEAD_BYTES, Lines, Oversized, PartialMessages

_BOM = b"\xef\xbb\xbf"
_DATA = b"data:"
_MAX_EVENT_ID_BYTES = 4_096  # it goes back in a header, and servers limit those to 8 KiB or so
_MAX_RETRY_DIGITS = 9  # eleven days in milliseconds; more is nonsense


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event that carries data."""

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class OversizedEvent:
    """An event over the bound: what it began and ended with, and how long it was at least."""

    head: bytes
    size: int
    tail: bytes = b""


@dataclass(eq=False, kw_only=True)
class EventStream:
    """One stream. `last_id` and `retry` (seconds) are what the server said last."""

    max_bytes: int
    last_id: str | None = None
    retry: float | None = None
    partial: PartialMessages | None = None
    has_data: bool = field(init=False, default=False)
    # The event that has not ended yet, and the room for it.
    _kind: str = field(init=False, default="")
    _data: list[bytes] = field(init=False, default_factory=list[bytes])
    _size: int = field(init=False, default=0)
    _tail: bytes = field(init=False, default=b"")
    _room: int = field(init=False)
    _next_id: str | None = field(init=False)
    _lines: Lines = field(init=False)
    _at_start: bool = field(init=False, default=True)
    _after_cr: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._lines = Lines(self.max_bytes + len(_DATA) + 1, partial=self.partial)
        self._room, self._next_id = self.max_bytes, self.last_id

    def again(self) -> "EventStream":
        """The same stream, opened anew: its position and its pause go on."""
        return replace(self)

    def give_way(self) -> None:
        self._data = [b"\n".join(self._data)[:HEAD_BYTES]]
        self._room = 0

    def feed(self, data: bytes) -> list[ServerEvent | OversizedEvent]:
        events: list[ServerEvent | OversizedEvent] = []
        self.has_data = self.has_data or bool(data)
        for line in self._lines.feed(self._with_newlines(data)):
            if isinstance(line, Oversized):
                self._take_oversized(line)
            elif line:
                self._take(line.removeprefix(_BOM) if self._at_start else line)
            elif event := self._dispatch():
                events.append(event)
            self._at_start = False
        return events

    def _with_newlines(self, data: bytes) -> bytes:
        """The three line ends of the format become one; an LF after a CR may come later."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")
        if b"\r" not in data:
            return data
        self._after_cr = data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take_oversized(self, line: Oversized) -> None:
        """Only data counts: a comment, however long, says nothing."""
        if line.head.startswith(_DATA):
            self._add(line.head.removeprefix(_DATA), line.size)
            self._tail = line.tail

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":
                self._add(value, len(value))
            case b"event":
                self._kind = value.decode(errors="replace")
            case b"id" if b"\0" not in value and len(value) <= _MAX_EVENT_ID_BYTES:
                self._next_id = value.decode(errors="replace") or None
            case b"retry" if value.isdigit() and len(value) <= _MAX_RETRY_DIGITS:
                self.retry = int(value) / 1000
            case _:
                pass

    def _add(self, value: bytes, size: int) -> None:
        """One more line of data; over the bound only the beginning is kept."""
        was_within = self._size <= self._room
        self._size += size + bool(self._data)
        if self._size <= self._room:
            self._data.append(value)
            if self.partial is not None:
                self.partial.hold(self, self._size)
        elif was_within:
            self._data = [b"\n".join([*self._data, value])[:HEAD_BYTES]]

    def _dispatch(self) -> ServerEvent | OversizedEvent | None:
        """An empty line ends an event; one without data only moves the position."""
        if not self._size:  # first: a stream may hold millions of empty lines
            self._kind, self._data, self.last_id = "", [], self._next_id
            return None
        kind, data, size, tail = self._kind, b"\n".join(self._data), self._size, self._tail
        self._kind, self._data, self._size, self._tail = "", [], 0, b""
        self.last_id = self._next_id
        is_whole = size <= self._room
        self._room = self.max_bytes
        if self.partial is not None:
            self.partial.hold(self, 0)
        if not is_whole:
            return OversizedEvent(data, size, tail)
        return ServerEvent(kind or "message", data) if data else None
