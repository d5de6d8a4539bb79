"""Shutdown signals: the first one ends in order, a second one at once."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

import anyio
from anyio.abc import TaskStatus

_SIGNAL_EXIT_BASE = 128  # how shells report an end by a signal


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


if sys.platform == "win32":
    # Ctrl-C, Ctrl-Break and a console that is closed; SIGTERM reaches nobody there.
    _SIGNALS = (signal.SIGINT, signal.SIGBREAK)
    _MAX_UNREAD = 16  # the second of a kind ends the process

    @contextmanager
    def _opened() -> Generator[AsyncIterator[int]]:
        """The event loop of Windows takes no signal handlers, so Python's own tells it."""
        loop = asyncio.get_running_loop()
        send, receive = anyio.create_memory_object_stream[int](_MAX_UNREAD)

        def tell(number: int, _frame: FrameType | None) -> None:
            loop.call_soon_threadsafe(send.send_nowait, number)

        before = {number: signal.signal(number, tell) for number in _SIGNALS}
        try:
            with send, receive:
                yield receive
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

else:

    def _opened() -> AbstractContextManager[AsyncIterator[int]]:
        return anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
