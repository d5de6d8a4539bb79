"""ULIDs: sortable names for events, tasks, requests, timers, results and connections.

Strictly increasing within one source, even when many fall into one millisecond or the wall clock
is set back.
"""

import secrets
from collections.abc import Callable

from ulid import ULID

from emceepee_stdio.clock import Clock

__all__ = ["Ids"]

_RANDOM_BITS = 80  # the random part of a ULID


class Ids:
    """A source of ULIDs: call it for the next one.

    The generator of the package increases only within one millisecond, and fails when the random
    part of one is used up; hence the counting here.
    """

    def __init__(
        self, clock: Clock, *, random_bits: Callable[[int], int] = secrets.randbits
    ) -> None:
        self._clock = clock
        self._random_bits = random_bits
        self._last = 0

    def __call__(self) -> str:
        milliseconds = int(self._clock.epoch(self._clock.now()) * 1000)
        if milliseconds > self._last >> _RANDOM_BITS:
            self._last = milliseconds << _RANDOM_BITS | self._random_bits(_RANDOM_BITS)
        else:
            self._last += 1
        return str(ULID.from_int(self._last))
