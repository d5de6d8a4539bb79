"""Whose turn it is to give way: always the oldest of whoever has most.

So what one owner adds in a flood is taken from that owner, and who has little keeps it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeVar

__all__ = ["oldest_of_the_largest"]

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
