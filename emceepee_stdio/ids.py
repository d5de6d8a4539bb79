"""ULIDs: sortable names for events, tasks, requests, timers, results and connections.

Strictly increasing within one source, even when many fall into one millisecond or the wall clock
is set back.
"""

import secrets
from collections.abc import Callable
from functools import lru_cache

from ulid import ULID

from emceepee_stdio.clock import Clock

_RANDOM_BITS = 80  # the random part of a ULID
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]


def ulid_of(milliseconds: int, rest: int) -> str:
    """The ULID of that time, as text. Fast where many are of one time and their rests are close."""
    return f"{_head(milliseconds, rest >> 20)}{_PAIRS[rest >> 10 & 1023]}{_PAIRS[rest & 1023]}"


@lru_cache(maxsize=8)
def _head(milliseconds: int, rest: int) -> str:
    """The first 22 of the 26 characters."""
    time = f"{_text(milliseconds >> 20, 3)}{_text(milliseconds & 0xFFFFF, 2)}"
    return time + _text(rest, 6)


@lru_cache(maxsize=8)
def _text(value: int, pairs: int) -> str:
    """So many pairs of characters, of 5 bits each."""
    return "".join([_PAIRS[value >> 10 * pair & 1023] for pair in reversed(range(pairs))])


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
