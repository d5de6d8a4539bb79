"""Ring buffers that count what they overwrote.

`Rings` are those of all servers: bounded in items by server, and in bytes by server and in sum.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

_SHARE_DIVISOR = 4  # of the bytes for one server: three that flood leave room for the others
_FORMER_SERVERS = 50  # beside those there are now: what a server that is gone has said still counts


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
        self._capacity = capacity
        self._kept: deque[tuple[T, int]] = deque()  # each with its size
        self._overwritten = 0
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Ring {len(self._kept)}/{self._capacity} overwritten={self._overwritten}>"

    def __len__(self) -> int:
        return len(self._kept)

    def append(self, item: T, size: int = 0) -> None:
        if len(self._kept) == self._capacity:
            self.overwrite_oldest()
        self._kept.append((item, size))
        self.bytes += size

    def overwrite_oldest(self) -> None:
        """Make room; whoever reads next is told."""
        self.bytes -= self._kept.popleft()[1]
        self._overwritten += 1

    def last(self, count: int, keep: Callable[[T], bool] = _anything) -> list[T]:
        """The newest items that match, oldest of them first; nothing is changed."""
        return list(self.read(limit=count, keep=keep, newest=True, peek=True).items)

    def read(
        self,
        *,
        limit: int | None = None,
        keep: Callable[[T], bool] = _anything,
        newest: bool = False,
        peek: bool = False,
    ) -> Reading[T]:
        """Take out what is returned, and start the count of overwritten items anew.

        To `peek` is to look without changing anything.
        """
        matching = [index for index, (item, _) in enumerate(self._kept) if keep(item)]
        count = len(matching) if limit is None else min(limit, len(matching))
        chosen = matching[len(matching) - count :] if newest else matching[:count]
        reading = Reading(
            items=tuple(self._kept[index][0] for index in chosen),
            remaining=len(matching) - count,
            overwritten=self._overwritten,
        )
        if not peek:
            taken = set(chosen)
            self._kept = deque(one for at, one in enumerate(self._kept) if at not in taken)
            self.bytes = sum(size for _, size in self._kept)
            self._overwritten = 0
        return reading


class Rings(Mapping[str, Ring[T]]):
    """The rings of all servers; who has most makes room for the others."""

    def __init__(self, *, capacity: int, servers: int, max_bytes: int) -> None:
        self._capacity = capacity
        self._most_servers = servers + _FORMER_SERVERS
        self._max_bytes = max_bytes
        self._share = max_bytes // _SHARE_DIVISOR
        self._rings: dict[str, Ring[T]] = {}
        self._bytes = 0  # at least what they hold: reading makes it less

    def __repr__(self) -> str:
        held = sum(ring.bytes for ring in self._rings.values())
        return f"<Rings of {len(self._rings)} servers, {held}/{self._max_bytes} bytes>"

    def __getitem__(self, server: str) -> Ring[T]:
        return self._rings[server]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rings)

    def __len__(self) -> int:
        return len(self._rings)

    def append(self, server: str, item: T, size: int) -> None:
        """Keep it; the oldest of that server make room, or of the server that has most."""
        ring = self._of(server)
        ring.append(item, size)
        while ring.bytes > self._share:
            ring.overwrite_oldest()
        self._bytes += size
        if self._bytes > self._max_bytes:
            self._shrink()

    def _of(self, server: str) -> Ring[T]:
        """Made if need be; those that nothing was added to for long make room."""
        ring = self._rings.pop(server, None)
        if ring is None:
            ring = Ring[T](self._capacity)
        self._rings[server] = ring
        if len(self._rings) > self._most_servers:
            del self._rings[next(iter(self._rings))]
        return ring

    def _shrink(self) -> None:
        self._bytes = sum(ring.bytes for ring in self._rings.values())
        while self._bytes > self._max_bytes:
            largest = max(self._rings.values(), key=lambda ring: ring.bytes)
            before = largest.bytes
            largest.overwrite_oldest()
            self._bytes -= before - largest.bytes
