"""Stopping a server that nobody has used for a while.

Polled: a use costs a call nothing but a count. Between the last look and the stop nothing can come
in between, because both happen in one step.
"""

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from emceepee_stdio.clock import Clock

__all__ = ["IdleStop"]

_LOOKS = 10  # in the time after which it is stopped: it may take a tenth longer
_MIN_PAUSE_S = 0.01  # between two looks, however short that time is


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleStop:
    """When to stop one server: `uses` counts, `is_held` says whether anything is open now."""

    after: float
    clock: Clock
    uses: Callable[[], int]
    is_held: Callable[[], bool]
    stop: Callable[[], None]

    async def watch(self) -> None:
        """Look for as long as the connection lives; the caller ends it with the connection."""
        uses, since = self.uses(), self.clock.now()
        while True:
            await anyio.sleep(max(self.after / _LOOKS, _MIN_PAUSE_S))
            now = self.clock.now()
            if self.is_held() or self.uses() != uses:
                uses, since = self.uses(), now
            elif now - since >= self.after:
                self.stop()
                return
