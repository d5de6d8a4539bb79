"""When something is due, by key: the one way in which state keeps deadlines.

Setting, clearing and asking are cheap whatever the number of keys: a heap, whose stale entries are
dropped when they surface.
"""

from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

__all__ = ["Deadlines"]

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
