"""A bounded buffer that counts what it overwrote, and says so when it is read."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Reading", "Ring"]

T = TypeVar("T")


def _anything(_item: object) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Generic[T]):
    """Items, oldest first; `remaining` matched too but were left; `overwritten` are lost."""

    items: tuple[T, ...]
    remaining: int
    overwritten: int


class Ring(Generic[T]):
    """The last `capacity` items."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a ring holds at least one item")
        self._items: deque[T] = deque(maxlen=capacity)
        self._overwritten = 0

    def __repr__(self) -> str:
        return f"<Ring {len(self._items)}/{self._items.maxlen} overwritten={self._overwritten}>"

    def __len__(self) -> int:
        return len(self._items)

    def append(self, item: T) -> None:
        if len(self._items) == self._items.maxlen:
            self._overwritten += 1
        self._items.append(item)

    def last(self, count: int, keep: Callable[[T], bool] = _anything) -> list[T]:
        """The newest items that match, oldest of them first; nothing is changed."""
        found: list[T] = []
        for item in reversed(self._items):
            if len(found) == count:
                break
            if keep(item):
                found.append(item)
        found.reverse()
        return found

    def peek(
        self,
        *,
        limit: int | None = None,
        keep: Callable[[T], bool] = _anything,
        newest: bool = False,
    ) -> Reading[T]:
        """Look without changing anything."""
        chosen, matching = self._choose(limit=limit, keep=keep, newest=newest)
        return self._reading(chosen, matching)

    def read(
        self,
        *,
        limit: int | None = None,
        keep: Callable[[T], bool] = _anything,
        newest: bool = False,
    ) -> Reading[T]:
        """Take out what is returned, and start the count of overwritten items anew."""
        chosen, matching = self._choose(limit=limit, keep=keep, newest=newest)
        reading = self._reading(chosen, matching)
        taken = set(chosen)
        rest = [item for index, item in enumerate(self._items) if index not in taken]
        self._items.clear()
        self._items.extend(rest)
        self._overwritten = 0
        return reading

    def _choose(
        self, *, limit: int | None, keep: Callable[[T], bool], newest: bool
    ) -> tuple[list[int], int]:
        matching = [index for index, item in enumerate(self._items) if keep(item)]
        if limit is None or limit >= len(matching):
            return matching, len(matching)
        return matching[len(matching) - limit :] if newest else matching[:limit], len(matching)

    def _reading(self, chosen: list[int], matching: int) -> Reading[T]:
        return Reading(
            items=tuple(self._items[index] for index in chosen),
            remaining=matching - len(chosen),
            overwritten=self._overwritten,
        )
