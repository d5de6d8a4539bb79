"""What all state is built of: transition tables, deadlines by key, and what is gone.

A table is the single source of its state machine: the code asks it before every change, and the
diagrams are drawn from it. A move that is not in the table raises and changes nothing.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

from emceepee_stdio.clock import HOUR_S, MINUTE_S

S = TypeVar("S", bound=StrEnum)


class IllegalMove(Exception):
    """The table has no such move; nothing was changed."""

    def __init__(self, machine: str, source: StrEnum, target: StrEnum) -> None:
        super().__init__(f"{machine}: no move from {source.value} to {target.value}")
        self.machine = machine
        self.source = source
        self.target = target


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Generic[S]):
    """One arrow. A source of None is the start; `cause` is what makes it happen."""

    source: S | None
    target: S
    cause: str


@dataclass(eq=False, repr=False)
class Machine(Generic[S]):
    """A named table of moves over the states of one enum.

    `ends` says what follows a final state, `notes` what is worth knowing while in a state.
    """

    name: str
    states: type[S]
    moves: Sequence[Move[S]]
    ends: Mapping[S, str] = field(default_factory=dict[S, str])
    notes: Mapping[S, str] = field(default_factory=dict[S, str])

    def __post_init__(self) -> None:
        self._allowed = frozenset((move.source, move.target) for move in self.moves)
        self._left = frozenset(move.source for move in self.moves)

    def __repr__(self) -> str:
        return f"<Machine {self.name} {len(self.states)} states {len(self.moves)} moves>"

    def allows(self, source: S | None, target: S) -> bool:
        return (source, target) in self._allowed

    def check(self, source: S, target: S) -> None:
        """Raise IllegalMove unless the table has this move."""
        if (source, target) not in self._allowed:
            raise IllegalMove(self.name, source, target)

    def is_final(self, state: S) -> bool:
        return state not in self._left


# Deadlines by key: the one way in which state keeps them.
#
# Setting, clearing and asking are cheap whatever the number of keys: a heap, whose stale entries
# are dropped when they surface.


_SPARE_ENTRIES = 16  # stale ones that are not worth a rebuild of a small heap

K = TypeVar("K", bound=Hashable)


class Deadlines(Generic[K]):
    """At most one instant per key."""

    def __init__(self) -> None:
        self._due: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._due)

    def set(self, key: K, when: float) -> None:
        self._serial += 1
        self._due[key] = (when, self._serial)
        heappush(self._heap, (when, self._serial, key))
        if len(self._heap) > 2 * len(self._due) + _SPARE_ENTRIES:
            self._heap = [(when, serial, key) for key, (when, serial) in self._due.items()]
            heapify(self._heap)

    def clear(self, key: K) -> None:
        self._due.pop(key, None)

    def next(self) -> float | None:
        """The earliest instant, or None when nothing is due ever."""
        while self._heap and self._is_stale(self._heap[0]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_due(self, *, now: float) -> list[K]:
        """Remove and return the keys that are due, earliest first, ties in the order set."""
        due: list[K] = []
        while (when := self.next()) is not None and when <= now:
            _, _, key = heappop(self._heap)
            del self._due[key]
            due.append(key)
        return due

    def _is_stale(self, entry: tuple[float, int, K]) -> bool:
        when, serial, key = entry
        return self._due.get(key) != (when, serial)


# What is gone, and why: a name that was valid once deserves more than "unknown".


class Tombstones:
    """The last so many that went; older ones are unknown again."""

    def __init__(self, *, capacity: int = 1000) -> None:
        self._capacity = capacity
        self._reasons: dict[str, tuple[str, float]] = {}

    def __len__(self) -> int:
        return len(self._reasons)

    def add(self, name: str, reason: str, *, now: float) -> None:
        self._reasons.pop(name, None)
        self._reasons[name] = (reason, now)
        if len(self._reasons) > self._capacity:
            del self._reasons[next(iter(self._reasons))]

    def describe(self, name: str, *, now: float) -> str | None:
        """`reason, so long ago`, or None for a name that was never here or is long forgotten."""
        if name not in self._reasons:
            return None
        reason, gone_at = self._reasons[name]
        return f"{reason}, {_span(now - gone_at)} ago"


def _span(seconds: float) -> str:
    if seconds < MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"
