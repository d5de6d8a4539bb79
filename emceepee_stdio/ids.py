"""ULIDs: sortable names for events, tasks, requests, timers, results and connections.

Strictly increasing within one source, even when many fall into one millisecond or the wall clock
is set back.
"""

import secrets
from collections.abc import Callable

from emceepee_stdio.clock import Clock

__all__ = ["Ids"]

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# Two letters at a time.
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_SHIFTS = range(120, -1, -10)
_RANDOM_BITS = 80


class Ids:
    """A source of ULIDs: call it for the next one."""

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
        return _encode(self._last)


def _encode(value: int) -> str:
    return "".join([_PAIRS[value >> shift & 1023] for shift in _SHIFTS])
