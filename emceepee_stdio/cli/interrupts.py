"""Ctrl-C: the first ends a command and lets it clear away, those right behind it change nothing.

People press it twice, or hold it down. A second one in the middle of clearing away would leave a
traceback, a hidden cursor or a process behind.
"""

import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

from emceepee_stdio.clock import Clock

__all__ = ["Interrupts", "interrupts"]

T = TypeVar("T")

_MAX_CLEANUP_S = 5.0  # longer than cleaning up should take; a later Ctrl-C ends the process at once


class Interrupts:
    """What Ctrl-C does while a command runs."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._first: float | None = None
        self._on_loop = False

    def __repr__(self) -> str:
        return f"<Interrupts first={self._first}>"

    def listen(self) -> None:
        """From now on; a process that was started to ignore Ctrl-C still does."""
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_signal)

    def run(self, main: Callable[[], Awaitable[T]]) -> T:
        """Run it on the event loop, where Ctrl-C cancels it instead of tearing it apart."""
        import anyio  # noqa: PLC0415 - only for commands that talk to servers or to the person

        self._on_loop = True
        try:
            return anyio.run(self._watched, main)
        finally:
            self._on_loop = False

    async def _watched(self, main: Callable[[], Awaitable[T]]) -> T:
        import anyio  # noqa: PLC0415 - see the caller

        failure: Exception | None = None
        results: list[T] = []
        async with anyio.create_task_group() as watching:
            watching.start_soon(self._watch, watching.cancel_scope.cancel)
            try:
                results.append(await main())
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            finally:
                watching.cancel_scope.cancel()
        if results:
            return results[0]
        if failure is None or self._first is not None:
            raise KeyboardInterrupt from failure
        raise failure

    async def _watch(self, cancel: Callable[[], None]) -> None:
        """Woken by a socket: a loop just falling asleep would not notice the handler alone."""
        import socket  # noqa: PLC0415 - see the caller

        import anyio  # noqa: PLC0415 - see the caller

        woken, waker = socket.socketpair()
        with woken, waker:
            waker.settimeout(0)
            before = signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            try:
                while self._first is None:
                    await anyio.wait_readable(woken)
                    woken.recv(64)  # other signals write to it as well
            finally:
                signal.set_wakeup_fd(before)
        cancel()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        now = self._clock.now()
        if self._first is None:
            self._first = now
            if not self._on_loop:
                raise KeyboardInterrupt
        elif now - self._first > _MAX_CLEANUP_S:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)


interrupts = Interrupts(Clock())
