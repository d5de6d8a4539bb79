"""The event log: every event, delivered exactly once, in order, within bounds.

Delivery has two phases. A response *takes* events under a lease; the lease is *committed* once the
response has been written, or *released* when it never was, and then its events wait again. What
had to be dropped to stay within bounds is told too, as one `events_dropped` event.

Theory of operation. Every event has a sequence number, which is its place in the order; ids are
only names. `_kept` holds all events by number, `undelivered` those that wait, `_leases` those that
a response holds. An event moves by the table `DELIVERY`: waiting, leased, delivered, or back to
waiting. Several responses may hold leases at the same time, and none of them sees an event of
another, so an event is told once whatever the order in which they are written or cancelled.

Two events that say the same are folded: the later one takes the place of the one that waits under
the same key, and counts it. A leased event is out of reach of folding, since it may be on its way;
when its lease is released and a later twin waits, the later one stays and counts both.

The log is bounded in events and in bytes, and one server has a share of the bytes. When it is full,
room is made for a tenth at once. Delivered events go first, since they are kept only for
`take_after`; then notifications that wait, of the server that has most of them, oldest first. All
other events last: they go only for one of their own kind, never for a notification, which is
dropped itself where nothing else is left to give way. A leased event never goes. In the place of
the first that was lost stands the notice, and notices that wait together become one.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeVar, cast

from emceepee_stdio.state.event_types import Event, EventData, EventType
from emceepee_stdio.state.machine import Machine, Move

# Whose turn it is to give way: always the oldest of whoever has most.
#
# So what one owner adds in a flood is taken from that owner, and who has little keeps it.


T = TypeVar("T")


def oldest_of_the_largest(
    items: Iterable[T], *, owner: Callable[[T], Hashable], weight: Callable[[T], int]
) -> Iterator[T]:
    """All of them, given oldest first, in the order in which they should go."""
    groups: dict[Hashable, deque[tuple[int, T]]] = {}
    for place, item in enumerate(items):
        groups.setdefault(owner(item), deque()).append((place, item))
    # Between equals the older goes.
    heap = [
        (-sum(weight(item) for _, item in queue), queue[0][0], key) for key, queue in groups.items()
    ]
    heapify(heap)
    while heap:
        load, _, key = heappop(heap)
        _, item = groups[key].popleft()
        yield item
        if groups[key]:
            heappush(heap, (load + weight(item), groups[key][0][0], key))


# An event in the log: how it is delivered, what it costs, and the notice of what was lost.


ENTRY_BYTES = 512  # what an event costs beside its data: itself, its id and its fold key


class Delivery(StrEnum):
    """Where an event stands on its way to the client."""

    WAITING = "waiting"
    LEASED = "leased"
    DELIVERED = "delivered"


DELIVERY = Machine(
    "event_delivery",
    Delivery,
    [
        Move(source=None, target=Delivery.WAITING, cause="something happened"),
        Move(source=Delivery.WAITING, target=Delivery.LEASED, cause="a response takes it"),
        Move(source=Delivery.LEASED, target=Delivery.DELIVERED, cause="the response was written"),
        Move(source=Delivery.LEASED, target=Delivery.WAITING, cause="the response never went out"),
    ],
)


@dataclass(slots=True)
class Entry:
    """One event, where it stands, and its bytes. `last_lost` is for a notice alone."""

    event: Event
    delivery: Delivery
    fold: Hashable = None
    size: int = ENTRY_BYTES
    last_lost: int = 0


def is_notice(entry: Entry) -> bool:
    return entry.event.type is EventType.EVENTS_DROPPED


def is_notification(entry: Entry) -> bool:
    return entry.event.type is EventType.NOTIFICATION


def in_order(entry: Entry) -> int:
    return entry.event.seq


def notice_of(lost: Sequence[Entry], *, id: str, now: float) -> Entry:  # noqa: A002 - what it is
    """That these were dropped, in the place of the first of them; they are given in order."""
    first, last = lost[0].event, lost[-1].event
    count = sum(entry.event.count for entry in lost)
    event = Event(
        seq=first.seq,
        id=id,
        type=EventType.EVENTS_DROPPED,
        server=None,
        created_at=now,
        data={"count": count, "first_id": first.id, "last_id": last.id},
        count=count,
    )
    return Entry(event, Delivery.WAITING, last_lost=last.seq)


def merged(notices: Sequence[Entry]) -> Entry:
    """One notice for several, standing where the first of them stood."""
    first, last = notices[0].event, max(notices, key=lambda notice: notice.last_lost)
    count = sum(entry.event.count for entry in notices)
    event = replace(
        first,
        created_at=max(entry.event.created_at for entry in notices),
        data={**_span(first), "count": count, "last_id": _span(last.event)["last_id"]},
        count=count,
    )
    return Entry(event, Delivery.WAITING, last_lost=last.last_lost)


def _span(notice: Event) -> dict[str, object]:
    return cast("dict[str, object]", notice.data)


_EVICTION_DIVISOR = 10  # a tenth at a time, so that a full log does not evict on every event
_SHARE_DIVISOR = 4  # of the bytes for one server: three that flood leave room for the others
_NEARLY_FULL_RATIO = 0.8  # warns while there is still room for the reader to catch up


@dataclass(frozen=True, slots=True, kw_only=True)
class Added:
    """What adding an event did. `nearly_full` is true once per approach to the bound."""

    event: Event
    evicted: int = 0
    dropped: int = 0
    nearly_full: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Events promised to one response. `remaining` is how many more were waiting."""

    number: int
    events: tuple[Event, ...]
    remaining: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatistics:
    """How full the log is."""

    kept: int
    waiting: int
    leased: int
    capacity: int
    bytes: int


class EventLog:
    """Bounded and ordered by sequence; each event is in exactly one delivery state."""

    def __init__(
        self, *, new_id: Callable[[], str], capacity: int = 1000, max_bytes: int = 8 << 20
    ) -> None:
        self._new_id = new_id
        self._capacity = capacity
        self._max_bytes = max_bytes
        self._share = max_bytes // _SHARE_DIVISOR
        self._bytes = 0  # of what is kept, in all and by server
        self._bytes_of: Counter[str | None] = Counter()
        self._notices: set[int] = set()  # those that wait
        self._kept: dict[int, Entry] = {}
        self.undelivered: dict[int, Entry] = {}  # what waits, by its place in the order
        self._folds: dict[Hashable, int] = {}
        self._leases: dict[int, tuple[Entry, ...]] = {}
        self._leased = 0
        self._next_seq = 1
        self._next_lease = 1
        self._warned = False

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<EventLog {s.kept}/{s.capacity} waiting={s.waiting} leased={s.leased}>"

    def statistics(self) -> LogStatistics:
        return LogStatistics(
            kept=len(self._kept),
            waiting=len(self.undelivered),
            leased=self._leased,
            capacity=self._capacity,
            bytes=self._bytes,
        )

    @property
    def waiting(self) -> int:
        return len(self.undelivered)

    @property
    def latest(self) -> int:
        """The sequence number of the newest event; 0 before the first."""
        return self._next_seq - 1

    def since(self, seq: int) -> list[Event]:
        """What happened after that number and is kept, without taking it."""
        newer = [entry.event for entry in self._kept.values() if entry.event.seq > seq]
        return sorted(newer, key=lambda event: event.seq)

    def keeps(self, event_id: str) -> bool:
        return any(entry.event.id == event_id for entry in self._kept.values())

    def add(
        self,
        kind: EventType,
        *,
        now: float,
        server: str | None = None,
        data: EventData | None = None,
        size: int = 0,
        fold: Hashable = None,
    ) -> Added:
        """Append an event; one that waits under the same `fold` gives way and is counted in it.

        `size` is how many bytes its data takes.
        """
        event = Event(
            seq=self._take_seq(),
            id=self._new_id(),
            type=kind,
            server=server,
            created_at=now,
            data=data or {},
            count=1 + self._supersede(fold),
        )
        entry = Entry(event, Delivery.WAITING, fold, ENTRY_BYTES + size)
        evicted, lost = self._make_room(entry)
        if not self._is_beyond(entry):
            self._keep(entry)
        else:
            lost.append(entry)
        if lost:
            self._tell_dropped(lost, now=now)
        return Added(
            event=event,
            evicted=evicted,
            dropped=sum(entry.event.count for entry in lost),
            nearly_full=self._just_became_nearly_full(),
        )

    def take(self, *, limit: int | None = None) -> Lease:
        """Lease the oldest waiting events."""
        entries = list(islice(self.undelivered.values(), limit))
        return self._lease(entries, remaining=len(self.undelivered) - len(entries))

    def take_after(self, event_id: str, *, limit: int | None = None) -> Lease:
        """Lease what came after this event, told before or not; all that is kept if it is gone.

        Events that another response holds are left to it.
        """
        seq = next((e.event.seq for e in self._kept.values() if e.event.id == event_id), 0)
        entries = [
            entry
            for entry in self._kept.values()
            if entry.event.seq > seq and entry.delivery is not Delivery.LEASED
        ]
        entries.sort(key=in_order)
        taken = entries[:limit]
        return self._lease(taken, remaining=len(entries) - len(taken))

    def take_these(self, event_ids: Collection[str]) -> Lease:
        """Lease exactly these, where they wait: an answer tells what its own tool caused."""
        entries = [entry for entry in self.undelivered.values() if entry.event.id in event_ids]
        return self._lease(entries, remaining=len(self.undelivered) - len(entries))

    def keep_first(self, lease: Lease, count: int) -> Lease:
        """Shrink a lease to its first events; the others wait again."""
        entries = self._open(lease)
        kept, returned = entries[:count], entries[count:]
        self._put_back(returned)
        self._leases[lease.number] = kept
        return replace(
            lease,
            events=tuple(entry.event for entry in kept),
            remaining=lease.remaining + len(lease.events) - len(kept),
        )

    def commit(self, lease: Lease) -> None:
        """The response was written: its events are delivered."""
        for entry in self._close(lease):
            if entry.delivery is Delivery.LEASED:
                self._move(entry, Delivery.DELIVERED)
                self._leased -= 1

    def release(self, lease: Lease) -> None:
        """The response never went out: its events wait again, in their old order."""
        self._put_back(self._close(lease))

    def _take_seq(self) -> int:
        seq = self._next_seq
        self._next_seq += 1
        return seq

    def _keep(self, entry: Entry) -> None:
        self._kept[entry.event.seq] = entry
        self._count_bytes(entry, entry.size)
        self._wait(entry)
        if entry.fold is not None:
            self._folds[entry.fold] = entry.event.seq

    def _count_bytes(self, entry: Entry, change: int) -> None:
        server = entry.event.server
        self._bytes += change
        self._bytes_of[server] += change
        if not self._bytes_of[server]:
            del self._bytes_of[server]

    def _wait(self, entry: Entry) -> None:
        self.undelivered[entry.event.seq] = entry
        if is_notice(entry):
            self._notices.add(entry.event.seq)

    def _supersede(self, fold: Hashable) -> int:
        """Remove the waiting event that says the same; how many it stood for."""
        seq = self._folds.get(fold) if fold is not None else None
        if seq is None:
            return 0
        entry = self._forget(seq)
        return entry.event.count

    def _forget(self, seq: int) -> Entry:
        entry = self._kept.pop(seq)
        self.undelivered.pop(seq, None)
        self._notices.discard(seq)
        self._count_bytes(entry, -entry.size)
        self._unfold(entry)
        return entry

    def _unfold(self, entry: Entry) -> None:
        if self._folds.get(entry.fold) == entry.event.seq:
            del self._folds[entry.fold]

    def _lease(self, entries: list[Entry], *, remaining: int) -> Lease:
        number = self._next_lease
        self._next_lease += 1
        for entry in entries:
            if entry.delivery is Delivery.WAITING:
                self._move(entry, Delivery.LEASED)
                self._leased += 1
                del self.undelivered[entry.event.seq]
                self._notices.discard(entry.event.seq)
                self._unfold(entry)
        self._leases[number] = tuple(entries)
        return Lease(
            number=number,
            events=tuple(entry.event for entry in entries),
            remaining=remaining,
        )

    def _open(self, lease: Lease) -> tuple[Entry, ...]:
        if lease.number not in self._leases:
            raise ValueError(f"lease {lease.number} was already committed or released")
        return self._leases[lease.number]

    def _close(self, lease: Lease) -> tuple[Entry, ...]:
        entries = self._open(lease)
        del self._leases[lease.number]
        return entries

    def _put_back(self, entries: Iterable[Entry]) -> None:
        returned = [entry for entry in entries if entry.delivery is Delivery.LEASED]
        for entry in returned:
            self._move(entry, Delivery.WAITING)
            self._leased -= 1
            self._wait(entry)
            if entry.fold is not None:
                self._fold_again(entry)
        if returned:
            self._arrange_waiting()

    def _fold_again(self, entry: Entry) -> None:
        """While it was leased another may have come that says the same: the later stays."""
        twin = self._folds.setdefault(entry.fold, entry.event.seq)
        if twin == entry.event.seq:
            return
        older, newer = sorted((twin, entry.event.seq))
        gone, kept = self._forget(older), self._kept[newer]
        kept.event = replace(kept.event, count=kept.event.count + gone.event.count)
        self._folds[entry.fold] = newer

    def _move(self, entry: Entry, target: Delivery) -> None:
        DELIVERY.check(entry.delivery, target)
        entry.delivery = target

    def _just_became_nearly_full(self) -> bool:
        nearly_full = len(self.undelivered) + self._leased >= self._capacity * _NEARLY_FULL_RATIO
        just_now = nearly_full and not self._warned
        self._warned = nearly_full
        return just_now

    def _make_room(self, newcomer: Entry) -> tuple[int, list[Entry]]:
        """How many gave way, and which of them had not been told."""
        lost: list[Entry] = []
        evicted = 0
        for only_own in (True, False):
            events, size = self._surplus(newcomer, only_own=only_own)
            if events <= 0 and size <= 0:
                continue
            for entry in self._who_gives_way(newcomer, only_own=only_own, by_bytes=size > 0):
                if events <= 0 and size <= 0:
                    break
                events, size, evicted = events - 1, size - entry.size, evicted + 1
                self._forget(entry.event.seq)
                if entry.delivery is Delivery.WAITING:
                    lost.append(entry)
        return evicted, lost

    def _surplus(self, newcomer: Entry, *, only_own: bool) -> tuple[int, int]:
        """How many events and bytes have to go: none, or a tenth more than is needed."""
        limit = self._share if only_own else self._max_bytes
        held = self._bytes_of[newcomer.event.server] if only_own else self._bytes
        over = held + newcomer.size - limit
        size = over + limit // _EVICTION_DIVISOR if over > 0 else 0
        if only_own or len(self._kept) < self._capacity:
            return 0, size
        beyond = len(self._kept) - self._capacity
        return beyond + max(1, self._capacity // _EVICTION_DIVISOR), size

    def _is_beyond(self, newcomer: Entry) -> bool:
        """Whether it finds no room: a notification is dropped then, anything else is kept."""
        return is_notification(newcomer) and (
            len(self._kept) >= self._capacity
            or self._bytes + newcomer.size > self._max_bytes
            or self._bytes_of[newcomer.event.server] + newcomer.size > self._share
        )

    def _who_gives_way(self, newcomer: Entry, *, only_own: bool, by_bytes: bool) -> Iterator[Entry]:
        """Delivered events, then notifications, then what only its own kind may push out."""

        def concerned(entries: Iterable[Entry]) -> list[Entry]:
            server = newcomer.event.server
            return [e for e in entries if not only_own or e.event.server == server]

        if len(self._kept) > len(self.undelivered) + self._leased:
            delivered = [e for e in self._kept.values() if e.delivery is Delivery.DELIVERED]
            yield from sorted(concerned(delivered), key=in_order)
        waiting = [e for e in concerned(self.undelivered.values()) if not is_notice(e)]
        for kind in (True, False) if not is_notification(newcomer) else (True,):
            yield from oldest_of_the_largest(
                [e for e in waiting if is_notification(e) is kind],
                owner=lambda e: e.event.server,
                weight=(lambda e: e.size) if by_bytes else (lambda _: 1),
            )

    def _tell_dropped(self, lost: list[Entry], *, now: float) -> None:
        """Put a notice where the first lost event was, or into the one that waits before it."""
        lost.sort(key=in_order)
        notice = notice_of(lost, id=self._new_id(), now=now)
        if len(self._notices) == 1 and (waiting := next(iter(self._notices))) < notice.event.seq:
            both = merged([self.undelivered[waiting], notice])
            self._kept[waiting] = self.undelivered[waiting] = both
        else:
            self._keep(notice)
            self._arrange_waiting()

    def _arrange_waiting(self) -> None:
        """Put what waits back in order; notices that wait together become one."""
        self.undelivered = dict(sorted(self.undelivered.items()))
        if len(self._notices) > 1:
            notices = [self.undelivered[seq] for seq in sorted(self._notices)]
            for entry in notices:
                self._forget(entry.event.seq)
            self._keep(merged(notices))
            self.undelivered = dict(sorted(self.undelivered.items()))
