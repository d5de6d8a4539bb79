"""Signals that tell us to end: the first one ends in order, the same once more ends at once."""

import os
import signal
import sys
from collections.abc import Callable

import anyio
from anyio.abc import TaskStatus

__all__ = ["heed_signals"]

_SIGNAL_EXIT_BASE = 128  # how shells report an end by a signal


async def heed_signals(
    on_signal: Callable[[int], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Some hosts send one kind after the other: only the same once more is impatience."""
    seen: set[int] = set()
    with anyio.open_signal_receiver(*_signals()) as signals:
        task_status.started()
        async for number in signals:
            if number in seen:
                os._exit(_SIGNAL_EXIT_BASE + number)
            seen.add(number)
            on_signal(number)


def _signals() -> list[signal.Signals]:
    known = [signal.SIGTERM, signal.SIGINT]
    return known if sys.platform == "win32" else [*known, signal.SIGHUP]
