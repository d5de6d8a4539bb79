"""A bell that wakes everybody who waits; each looks again in a loop, so that no ring is lost."""

from collections.abc import Callable

import anyio

__all__ = ["Bell"]


class Bell:
    """Rung whenever something may have changed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def ring(self) -> None:
        event, self._event = self._event, anyio.Event()
        event.set()

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._event.wait()
