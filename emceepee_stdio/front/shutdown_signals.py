"""Shutdown signals: the first one ends in order, a second one at once."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from types import FrameType

import anyio
from anyio.abc import TaskStatus

from emceepee_stdio.wire import system

_SIGNAL_EXIT_BASE = 128  # how shells report an end by a signal
_MAX_UNREAD = 16  # the second of a kind ends the process


async def heed_signals(
    on_signal: Callable[[int], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Some hosts send one kind after the other: only the same once more is impatience."""
    seen: set[int] = set()
    with _opened() as signals:
        task_status.started()
        async for number in signals:
            if number in seen:
                os._exit(_SIGNAL_EXIT_BASE + number)
            seen.add(number)
            on_signal(number)


@contextmanager
def _opened() -> Generator[AsyncIterator[int]]:
    """Python's own handlers tell the event loop: that of Windows takes none."""
    loop = asyncio.get_running_loop()
    send, receive = anyio.create_memory_object_stream[int](_MAX_UNREAD)

    def tell(number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(send.send_nowait, number)

    before = {number: signal.signal(number, tell) for number in system.SHUTDOWN_SIGNALS}
    try:
        with send, receive:
            yield receive
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
