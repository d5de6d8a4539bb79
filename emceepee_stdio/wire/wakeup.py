"""Waking everybody who waits; each looks again in a loop, so that no wake-up is lost."""

from collections.abc import Callable

import anyio

__all__ = ["Wakeup"]


class Wakeup:
    """Woken whenever something may have changed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def wake(self) -> None:
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self._event.wait()
