"""Stored event streams, to resume from: what is kept, and what is dropped first.

A message is stored in its stream before anybody writes it. Every connection (the answer to a POST,
a GET, a resumed one) reads a stored stream from some place on: replay and live are one loop, so
nothing falls between them, and whoever reads slowly holds up nobody. What is stored is bounded for
each session and in sum; the session that stores most gives way.
"""

from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import KW_ONLY, dataclass, field

import anyio

from emceepee_stdio.wire.codec import RequestId, RpcError, encode_error
from emceepee_stdio.wire.framing import one_line
from emceepee_stdio.wire.timing import Wakeup

REQUEST_LOST = -32000  # of JSON-RPC, for what a server defines itself
KEEP_ALIVE_S = 15.0  # proxies in between close what is silent for a minute
KEEP_ALIVE = b": still here\n\n"
_MAX_FORMER = 4_096  # ids of events that are no longer stored: up to a kilobyte each


@dataclass(eq=False, slots=True)
class StoredEvent:
    """One message of a stream."""

    id: str
    stream: "StoredStream"
    frame: bytes
    answers: RequestId | None  # the request whose answer it is
    place: int = 0  # behind it, in its stream
    is_primer: bool = False  # by which the stream can be resumed from its beginning
    is_read: bool = False
    is_dropped: bool = False


class StoredStream:
    """What is said on one stream, for one reader at a time; `awaited` answers will come on it."""

    def __init__(self, *, awaited: int = 0) -> None:
        self._events: deque[StoredEvent] = deque()
        self._first = 0  # the place of the first event that is still stored
        self._lost: list[RequestId] = []  # whose answers nobody fetched in time
        self._reader: object | None = None
        self._news = Wakeup()
        self.read_up_to = 0
        self.awaited = awaited
        self.is_of_calls = awaited > 0
        self.is_over = False

    @property
    def is_read(self) -> bool:
        """Whether somebody reads it right now."""
        return self._reader is not None

    @property
    def is_done(self) -> bool:
        """Whether there is nothing to come back for."""
        return self.is_over and not self._lost and all(event.is_dropped for event in self._events)

    @property
    def end(self) -> int:
        return self._first + len(self._events)

    def finish(self) -> None:
        """Nothing more will be said on it."""
        self.is_over = True
        self._news.wake()

    async def rest(self, place: int, *, within: float, most: int) -> bytes | None:
        """All that is stored from that place on, to be taken at once.

        None if it is not over by then, has more than `most` bytes, or lost an answer.
        """
        with anyio.move_on_after(within):
            await self._news.wait_for(lambda: self.is_over)
        if not self.is_over or self._lost:
            return None
        events = [
            event
            for event in list(self._events)[max(place - self._first, 0) :]
            if not event.is_dropped
        ]
        if sum(len(event.frame) for event in events) > most:
            return None
        for event in events:
            event.is_read = True
        self.read_up_to = self.end
        return b"".join([event.frame for event in events])

    def take(self) -> object:
        """Become its reader, in place of the one before."""
        self._reader = object()
        self._news.wake()
        return self._reader

    def leave(self, reader: object) -> None:
        """That reader has gone, perhaps after another one had taken the stream over."""
        if self._reader is reader:
            self._reader = None
            self._news.wake()

    async def read(self, reader: object, place: int, begin: bytes = b"") -> AsyncGenerator[bytes]:
        """The events from that place on, as they come, for as long as it is the reader."""
        if begin:
            yield begin
        while self._reader is reader:
            place = max(place, self._first)
            if place < self.end:
                event = self._events[place - self._first]
                place += 1
                if event.is_dropped:
                    continue
                yield event.frame
                if self._reader is not reader:
                    return  # it may have been cut off in the middle
                event.is_read = True
                self.read_up_to = max(self.read_up_to, place)
            elif self._lost:
                yield event_frame(_lost(self._lost.pop()))
            elif self.is_over:
                self._reader = None
            else:
                with anyio.move_on_after(KEEP_ALIVE_S) as silence:
                    await self._news.wait()
                if silence.cancelled_caught:
                    yield KEEP_ALIVE

    def add(self, event: StoredEvent) -> None:
        self._events.append(event)
        event.place = self.end
        self._news.wake()

    def drop(self, event: StoredEvent) -> None:
        """Store it no longer; those before it may stay, so it keeps its place until they go."""
        event.is_dropped = True
        if event.answers is not None and not event.is_read:
            self._lost.append(event.answers)
        while self._events and self._events[0].is_dropped:
            self._events.popleft()
            self._first += 1


@dataclass(eq=False)
class EventStore:
    """The events of one session, found by id; an answer that nobody has read goes last.

    The ids of events that had to go stay for a while: a client that has seen one of them gets what
    is still stored behind it.
    """

    total: "StoreTotal"
    _: KW_ONLY
    max_events: int
    max_bytes: int
    owner: str = ""

    def __post_init__(self) -> None:
        self._count = 0
        self._stored: dict[str, StoredEvent] = {}
        self._former: dict[str, StoredEvent] = {}  # those that had to go
        self._notes: deque[StoredEvent] = deque()
        self._answers: deque[StoredEvent] = deque()
        self.size = 0
        self.lost_answers = 0
        self.total.stores.add(self)

    def __len__(self) -> int:
        return len(self._stored)

    def add(
        self,
        stream: StoredStream,
        data: bytes,
        *,
        answers: RequestId | None = None,
        retry_ms: int | None = None,
    ) -> StoredEvent:
        """Store a message, and make room for it at the cost of older ones."""
        self._count += 1
        name = str(self._count)
        frame = event_frame(data, name, retry_ms)
        event = StoredEvent(name, stream, frame, answers, is_primer=retry_ms is not None)
        stream.add(event)
        self._stored[name] = event
        (self._notes if answers is None else self._answers).append(event)
        self._weigh(1, len(event.frame))
        while len(self) > self.max_events or (self.size > self.max_bytes and len(self) > 1):
            self.drop_one()
        self.total.make_room()
        return event

    def find(self, event_id: str) -> tuple[StoredStream, int] | None:
        """The stream of an event, and the place behind it."""
        event = self._stored.get(event_id) or self._former.get(event_id)
        if event is None or (event.is_dropped and event.stream.is_done):
            return None
        return event.stream, event.place

    def drop_one(self) -> None:
        """The oldest that somebody has read or that answers nothing; else the oldest answer."""
        self._drop(self._next_to_go())

    def take_back(self, event: StoredEvent) -> None:
        """It is no answer, and is said elsewhere now."""
        if not event.is_dropped:
            self._notes.remove(event)
            self._drop(event)

    def _drop(self, event: StoredEvent) -> None:
        self.lost_answers += event.answers is not None and not event.is_read
        event.stream.drop(event)
        self._weigh(-1, -len(event.frame))
        event.frame = b""
        del self._stored[event.id]
        if event.stream.is_of_calls:  # to a client of another stream it is said that they are gone
            self._former[event.id] = event
        if len(self._former) > _MAX_FORMER:
            self._forget_former()

    def _forget_former(self) -> None:
        """Those that lead nowhere; if they are not enough, half of the others, primers last."""
        left = [event for event in self._former.values() if not event.stream.is_done]
        if len(left) > _MAX_FORMER // 2:
            left.sort(key=lambda event: (event.is_primer, int(event.id)))
            left = left[-_MAX_FORMER // 2 :]
        self._former = {event.id: event for event in left}

    def _next_to_go(self) -> StoredEvent:
        read = next((event for event in self._answers if event.is_read), None)
        if read is not None and (not self._notes or int(read.id) < int(self._notes[0].id)):
            self._answers.remove(read)
            return read
        return (self._notes or self._answers).popleft()

    def close(self) -> None:
        """The session is over; whoever still reads gets to the end."""
        self._weigh(-len(self), -self.size)
        self.total.stores.discard(self)

    def _weigh(self, events: int, size: int) -> None:
        self.size += size
        self.total.events += events
        self.total.size += size


@dataclass(eq=False, slots=True, kw_only=True)
class StoreTotal:
    """What all sessions store together."""

    max_events: int
    max_bytes: int
    stores: set[EventStore] = field(default_factory=set[EventStore])
    events: int = 0
    size: int = 0

    def make_room(self) -> None:
        """At the cost of the token that stores most, in however many sessions."""
        while self.events > self.max_events:
            self._heaviest(len).drop_one()
        while self.size > self.max_bytes and self.events > 1:
            self._heaviest(lambda store: store.size).drop_one()

    def _heaviest(self, weight: Callable[["EventStore"], int]) -> "EventStore":
        of_owner: Counter[str] = Counter()
        for store in self.stores:
            of_owner[store.owner] += weight(store)
        owner = of_owner.most_common(1)[0][0]
        return max((store for store in self.stores if store.owner == owner), key=weight)


def event_frame(data: bytes, name: str | None = None, retry_ms: int | None = None) -> bytes:
    """An event as it is written; without data it only tells its id, and when to come back."""
    data = one_line(data)  # a line end would end the event
    head = b"" if name is None else b"id: %b\n" % name.encode()
    if retry_ms is not None:
        head += b"retry: %d\n" % retry_ms
    return b"%bevent: message\ndata: %b\n\n" % (head, data) if data else b"%bdata: \n\n" % head


def _lost(request_id: RequestId) -> bytes:
    text = "The answer was not fetched in time, and is no longer stored. Make the call again."
    return encode_error(request_id, RpcError(REQUEST_LOST, text, None)).strip()
