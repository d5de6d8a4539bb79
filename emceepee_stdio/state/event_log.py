"""The event log: everything that happened, told exactly once, in order, within bounds.

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

When the log is full, room is made for a tenth at once: delivered events go first, since they are
kept only for `take_after`, then the oldest that wait, never a leased one. In the place of the
first that was lost stands the notice, and notices that wait together become one.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

from emceepee_stdio.state.event_types import Event, EventType
from emceepee_stdio.state.machine import Machine, Move

__all__ = ["DELIVERY", "Added", "Delivery", "EventLog", "Lease", "LogStatistics"]

_EVICTION_DIVISOR = 10  # a tenth at a time, so that a full log does not evict on every event
_NEARLY_FULL_RATIO = 0.8  # warns while there is still room for the reader to catch up


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


@dataclass(slots=True)
class _Entry:
    event: Event
    delivery: Delivery
    fold: Hashable = None
    last_lost: int = 0


class EventLog:
    """Bounded and ordered by sequence; each event is in exactly one delivery state."""

    def __init__(self, *, new_id: Callable[[], str], capacity: int = 1000) -> None:
        self._new_id = new_id
        self._capacity = capacity
        self._kept: dict[int, _Entry] = {}
        self.undelivered: dict[int, _Entry] = {}  # what waits, by its place in the order
        self._folds: dict[Hashable, int] = {}
        self._leases: dict[int, tuple[_Entry, ...]] = {}
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

    def add(
        self,
        kind: EventType,
        *,
        now: float,
        server: str | None = None,
        data: Mapping[str, object] | None = None,
        fold: Hashable = None,
    ) -> Added:
        """Append an event; one that waits under the same `fold` gives way and is counted in it."""
        count = 1 + self._supersede(fold)
        evicted, dropped = self._make_room(now=now)
        event = Event(
            seq=self._take_seq(),
            id=self._new_id(),
            type=kind,
            server=server,
            created_at=now,
            data=data or {},
            count=count,
        )
        self._keep(_Entry(event, Delivery.WAITING, fold))
        return Added(
            event=event,
            evicted=evicted,
            dropped=dropped,
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
        entries.sort(key=_seq)
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

    def _keep(self, entry: _Entry) -> None:
        self._kept[entry.event.seq] = entry
        self.undelivered[entry.event.seq] = entry
        if entry.fold is not None:
            self._folds[entry.fold] = entry.event.seq

    def _supersede(self, fold: Hashable) -> int:
        """Remove the waiting event that says the same; how many it stood for."""
        seq = self._folds.get(fold) if fold is not None else None
        if seq is None:
            return 0
        entry = self._forget(seq)
        return entry.event.count

    def _forget(self, seq: int) -> _Entry:
        entry = self._kept.pop(seq)
        self.undelivered.pop(seq, None)
        self._unfold(entry)
        return entry

    def _unfold(self, entry: _Entry) -> None:
        if self._folds.get(entry.fold) == entry.event.seq:
            del self._folds[entry.fold]

    def _lease(self, entries: list[_Entry], *, remaining: int) -> Lease:
        number = self._next_lease
        self._next_lease += 1
        for entry in entries:
            if entry.delivery is Delivery.WAITING:
                self._move(entry, Delivery.LEASED)
                self._leased += 1
                del self.undelivered[entry.event.seq]
                self._unfold(entry)
        self._leases[number] = tuple(entries)
        return Lease(
            number=number,
            events=tuple(entry.event for entry in entries),
            remaining=remaining,
        )

    def _open(self, lease: Lease) -> tuple[_Entry, ...]:
        if lease.number not in self._leases:
            raise ValueError(f"lease {lease.number} was already committed or released")
        return self._leases[lease.number]

    def _close(self, lease: Lease) -> tuple[_Entry, ...]:
        entries = self._open(lease)
        del self._leases[lease.number]
        return entries

    def _put_back(self, entries: Iterable[_Entry]) -> None:
        returned = [entry for entry in entries if entry.delivery is Delivery.LEASED]
        for entry in returned:
            self._move(entry, Delivery.WAITING)
            self._leased -= 1
            self.undelivered[entry.event.seq] = entry
            if entry.fold is not None:
                self._fold_again(entry)
        if returned:
            self._arrange_waiting()

    def _fold_again(self, entry: _Entry) -> None:
        """While it was leased another may have come that says the same: the later stays."""
        twin = self._folds.setdefault(entry.fold, entry.event.seq)
        if twin == entry.event.seq:
            return
        older, newer = sorted((twin, entry.event.seq))
        gone, kept = self._forget(older), self._kept[newer]
        kept.event = replace(kept.event, count=kept.event.count + gone.event.count)
        self._folds[entry.fold] = newer

    def _move(self, entry: _Entry, target: Delivery) -> None:
        DELIVERY.check(entry.delivery, target)
        entry.delivery = target

    def _just_became_nearly_full(self) -> bool:
        nearly_full = len(self.undelivered) + self._leased >= self._capacity * _NEARLY_FULL_RATIO
        just_now = nearly_full and not self._warned
        self._warned = nearly_full
        return just_now

    def _make_room(self, *, now: float) -> tuple[int, int]:
        """When full, evict a tenth: delivered events first, then the oldest that wait."""
        if len(self._kept) < self._capacity:
            return 0, 0
        beyond = len(self._kept) - self._capacity
        quota = beyond + max(1, self._capacity // _EVICTION_DIVISOR)
        delivered = [e for e in self._kept.values() if e.delivery is Delivery.DELIVERED][:quota]
        waiting = [e for e in self.undelivered.values() if not _is_notice(e)]
        lost = waiting[: quota - len(delivered)]
        for entry in (*delivered, *lost):
            self._forget(entry.event.seq)
        dropped = sum(entry.event.count for entry in lost)
        if lost:
            self._tell_dropped(lost, dropped, now=now)
        return len(delivered) + len(lost), dropped

    def _tell_dropped(self, lost: list[_Entry], dropped: int, *, now: float) -> None:
        """Put a notice where the first lost event was."""
        first, last = lost[0].event, lost[-1].event
        event = Event(
            seq=first.seq,
            id=self._new_id(),
            type=EventType.EVENTS_DROPPED,
            server=None,
            created_at=now,
            data={"count": dropped, "first_id": first.id, "last_id": last.id},
            count=dropped,
        )
        self._keep(_Entry(event, Delivery.WAITING, last_lost=last.seq))
        self._arrange_waiting()

    def _arrange_waiting(self) -> None:
        """Put what waits back in order; notices that wait together become one."""
        self.undelivered = dict(sorted(self.undelivered.items()))
        notices = [entry for entry in self.undelivered.values() if _is_notice(entry)]
        if len(notices) > 1:
            for entry in notices:
                self._forget(entry.event.seq)
            self._keep(_merged(notices))
            self.undelivered = dict(sorted(self.undelivered.items()))


def _is_notice(entry: _Entry) -> bool:
    return entry.event.type is EventType.EVENTS_DROPPED


def _seq(entry: _Entry) -> int:
    return entry.event.seq


def _merged(notices: list[_Entry]) -> _Entry:
    """One notice for several, standing where the first of them stood."""
    first, last = notices[0].event, max(notices, key=_last_lost)
    count = sum(entry.event.count for entry in notices)
    event = replace(
        first,
        created_at=max(entry.event.created_at for entry in notices),
        data={
            "count": count,
            "first_id": first.data["first_id"],
            "last_id": last.event.data["last_id"],
        },
        count=count,
    )
    return _Entry(event, Delivery.WAITING, last_lost=last.last_lost)


def _last_lost(entry: _Entry) -> int:
    return entry.last_lost
