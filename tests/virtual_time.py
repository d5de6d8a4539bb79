"""A loop on which nobody waits: once nothing goes on, it is later.

For conversations in the process of the test. What goes on in threads is counted: threads of fixture
servers, which say what they wait for, and calls of the proxy that run in a thread. What goes on in
other processes is not: a test that has any keeps real time.
"""

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

_LOOK_S = 0.001  # again at threads that work


class _Selector(selectors.DefaultSelector):
    """Waits for descriptors as any; for time only as long as something goes on."""

    loop: "VirtualTimeLoop"

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        while True:
            is_quiet = self.loop.is_quiet()
            # What a thread did before it rested has arrived.
            if found := super().select(0 if is_quiet else min(timeout, _LOOK_S)):
                return found
            if is_quiet:
                self.loop.pass_time(timeout)
                return found


def refuse_virtual_time() -> None:
    """Where a real process begins: nobody knows what it waits for."""
    loop = asyncio.get_running_loop()
    assert not isinstance(loop, VirtualTimeLoop), "a real process: remove the mark virtual_time"


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Counts who works, and passes the time while nobody does."""

    # Whatever threads wait for changes under this.
    changed = threading.Condition()

    def __init__(self) -> None:
        self._now = time.monotonic()
        self._working: set[object] = set()
        self._resting: dict[object, Callable[[], bool]] = {}
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._now

    def pass_time(self, seconds: float) -> None:
        self._now += seconds

    def is_quiet(self) -> bool:
        """Whether every thread waits for something that is not so yet."""
        with self.changed:  # or one might be woken by another that is looked at after it
            return not any(self._resting.get(one, _always)() for one in self._working.copy())

    def counted(self, function: Callable[[], object]) -> Callable[[], None]:
        """The same, for a thread that is about to be started."""
        one = object()
        self._working.add(one)

        def run() -> None:
            _self.one = one
            try:
                function()
            finally:
                self._working.discard(one)

        return run

    def rest(self, is_so: Callable[[], bool], seconds: float | None) -> None:
        """Have a counted thread wait until it is so, or that much later."""
        over: list[None] = []

        def end() -> None:
            with self.changed:
                over.append(None)
                self.changed.notify_all()

        def is_over() -> bool:
            return bool(over) or is_so()

        with self.changed:
            if seconds is not None:
                self.call_soon_threadsafe(self.call_later, seconds, end)
            self._resting[_self.one] = is_over
            self.changed.wait_for(is_over)
            del self._resting[_self.one]


_self = threading.local()


def _always() -> bool:
    return True


def holding_up_time(run_sync: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """In place of `anyio.to_thread.run_sync`: what the proxy does in a thread is something."""

    async def counted(*args: Any, **kwargs: Any) -> Any:
        loop, one = asyncio.get_running_loop(), object()
        assert isinstance(loop, VirtualTimeLoop)
        loop._working.add(one)
        try:
            return await run_sync(*args, **kwargs)
        finally:
            loop._working.discard(one)

    return counted
