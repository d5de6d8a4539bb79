"""Timing: one loop for deadlines, and wake-ups that are not lost."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

import anyio

from emceepee_stdio.clock import Clock

# One loop that keeps the deadlines of its sources.


_FAILURE_PAUSE_S = 1.0  # a source whose deadline stays due would make the loop spin


@dataclass(eq=False, repr=False)
class Ticker:
    """Wakes at the earliest deadline of its sources. `look` makes it look again when one is set."""

    clock: Clock
    sources: Sequence[Callable[[], float | None]]
    expire: Callable[[float], None]
    _: KW_ONLY
    on_bug: Callable[[Exception], None]
    next: float = field(init=False, default=math.inf)
    _wake: anyio.Event = field(init=False, default_factory=anyio.Event)

    def __repr__(self) -> str:
        return f"<Ticker next={self.next}>"

    def look(self, deadline: float) -> None:
        """A deadline was set: only an earlier one than the next changes anything."""
        if deadline < self.next:
            self.next = deadline
            self._wake.set()

    async def run(self) -> None:
        while True:
            self._wake = anyio.Event()
            due = [deadline for source in self.sources if (deadline := source()) is not None]
            self.next = min(due, default=math.inf)
            with anyio.move_on_after(self.next - self.clock.now()):
                await self._wake.wait()
            try:
                self.expire(self.clock.now())
            except Exception as error:  # noqa: BLE001 - time must go on for everybody else
                self.on_bug(error)
                await anyio.sleep(_FAILURE_PAUSE_S)


class Wakeup:
    """Woken whenever something may have changed."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def wake(self) -> None:
        event, self._event = self._event, anyio.Event()
        event.set()

    async def wait(self) -> None:
        """Until it is woken; the caller looks again for what it waits for."""
        await self._event.wait()

    async def wait_for(self, condition: Callable[[], object]) -> None:
        while not condition():
            await self.wait()


async def first_of(*waits: Callable[[], Awaitable[object]]) -> None:
    """Until one of them is over."""
    async with anyio.create_task_group() as tasks:

        async def end_with(wait: Callable[[], Awaitable[object]]) -> None:
            await wait()
            tasks.cancel_scope.cancel()

        for wait in waits:
            tasks.start_soon(end_with, wait)
