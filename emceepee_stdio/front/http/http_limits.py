"""Limits of the HTTP front: sessions, streams, connections, bytes, times."""

from collections import Counter
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Everything is per front unless it says otherwise."""

    sessions: int = 16  # each is a process of about 40 MB
    streams: int = 128  # and calls of one session; its process says itself that 100 are enough
    connections: int = 512  # sockets; one client of many calls at once has dozens
    handshakes: int = 256  # of TLS at a time; sockets beside those connections
    handshake_s: float = 10.0  # for one of them
    exchanges: int = 384  # of one token at a time, so that others find a place
    body_bytes: int = 4 << 20  # of one request, as the SDKs have it
    held_bytes: int = 64 << 20  # of one token: bodies that arrive, modern answers not yet written
    body_s: float = 30.0  # for a request to arrive whole
    quiet_s: float = 20.0  # for a connection on which nothing is asked
    stuck_s: float = 120.0  # for a connection that takes nothing of what is written to it
    idle_s: float = 1800.0  # without request, stream, task or timer: then a session ends
    unused_s: float = 60.0  # of a session whose client never comes back after the handshake
    sweep_s: float = 5.0  # between two looks at all of these
    finish_s: float = 5.0  # for calls under way when the front ends
    session_events: int = 1_000
    session_bytes: int = 64 << 20  # eight of the longest answers
    events: int = 10_000  # of all sessions together
    bytes: int = 256 << 20


# Memory that a token takes in the front: bodies that arrive, and answers that are not written yet.
#
# Each token has a budget, and each exchange an account in it, which is empty when the exchange
# ends.


class ByteBudget:
    """`most` is for each token."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ByteBudget {self.held.total()} bytes held>"


class HeldBytes:
    """What one exchange holds of the budget, until the end of its context."""

    __slots__ = ("_budget", "_owner", "_size")

    def __init__(self, budget: ByteBudget, owner: str) -> None:
        self._budget = budget
        self._owner = owner
        self._size = 0

    def __repr__(self) -> str:
        return f"<HeldBytes {self._size} of {self._owner}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def take(self, size: int) -> bool:
        """So much more, if its token may hold it."""
        held = self._budget.held[self._owner] + size
        if held > self._budget.most:
            return False
        self._budget.held[self._owner] = held
        self._size += size
        return True

    def release(self) -> None:
        """All of it."""
        if self._size:
            self._budget.held[self._owner] -= self._size
            self._size = 0
