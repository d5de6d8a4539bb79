"""The body of an HTTP answer, as far as it has come. Bounded."""

from emceepee_stdio.wire.partial_messages import PartialMessages

__all__ = ["Body", "TooMuch"]


class TooMuch(Exception):
    """A body over the bound."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


class Body:
    """Takes chunks while there is room; `whole` is all of them."""

    def __init__(self, limit: int, partial: PartialMessages | None) -> None:
        self._limit = limit
        self._partial = partial
        self._data = bytearray()
        self._size = 0

    def take(self, chunk: bytes) -> bool:
        """Whether there is room for more."""
        self._size += len(chunk)
        self._data += chunk
        if self._partial is not None:
            self._partial.hold(self, self._size)
        return self._size <= self._limit

    def give_way(self) -> None:
        self._data.clear()
        self._limit = -1

    def whole(self) -> bytes:
        if self._size > self._limit:
            raise TooMuch(self._size)
        return bytes(self._data)
