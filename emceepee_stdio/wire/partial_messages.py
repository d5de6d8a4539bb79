"""Messages that have begun and not ended, of all servers together.

One message may be as long as a line may be; this bounds what is kept of all of them at a time. When
it is too much, the longest gives way: it is read on to its end, and told as too large. So many
servers that begin a line and never end it cost themselves, and a short message always has room.
"""

from typing import Protocol
from weakref import WeakKeyDictionary

__all__ = ["Partial", "PartialMessages"]


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

    def __repr__(self) -> str:
        return f"<PartialMessages {len(self._sizes)}, {self._bytes}/{self._max_bytes} bytes>"

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
