"""Waking everybody who waits; each looks again in a loop, so that no wake-up is lost."""

from collections.abc import Awaitable, Callable

import anyio

__all__ = ["Wakeup", "first_of"]


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


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Until one of them is over."""
    async with anyio.create_task_group() as tasks:

        async def end_with(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(end_with, wait)
