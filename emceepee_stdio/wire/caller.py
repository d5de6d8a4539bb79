"""The one async layer on the peer: await an answer, and keep its deadlines.

A call costs one event and no timer of its own: a single loop, `keep_time`, ends what is overdue.
"""

import math
from collections.abc import Callable

import anyio
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.codec import RequestId
from emceepee_stdio.wire.peer import OnDone, OnProgress, Outcome, Peer

__all__ = ["Caller"]


class Caller:
    """Makes requests on a peer from any task."""

    def __init__(self, peer: Peer, clock: Clock) -> None:
        self.peer = peer
        self._clock = clock
        self._wake = anyio.Event()
        self._next = math.inf

    async def request(
        self,
        method: str,
        params: Callable[[RequestId], bytes | None],
        *,
        within: float,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        """Ask and wait. Cancelling the wait cancels the request at the other side."""
        done = anyio.Event()
        outcome: Outcome = Raw()

        def on_done(what: Outcome) -> None:
            nonlocal outcome
            outcome = what
            done.set()

        request_id = self.begin(
            method, params, within=within, on_done=on_done, on_progress=on_progress
        )
        try:
            await done.wait()
        except anyio.get_cancelled_exc_class():
            self.peer.cancel(request_id, "cancelled")
            raise
        return outcome

    def begin(
        self,
        method: str,
        params: Callable[[RequestId], bytes | None],
        *,
        within: float,
        on_done: OnDone,
        on_progress: OnProgress | None = None,
    ) -> RequestId:
        """Ask, and be told of the outcome, which may be at once."""
        deadline = self._clock.now() + within
        request_id = self.peer.request(
            method, params, deadline=deadline, on_done=on_done, on_progress=on_progress
        )
        if deadline < self._next:
            self._wake.set()
        return request_id

    async def keep_time(self) -> None:
        """End what is overdue, for as long as the connection lives."""
        while True:
            self._wake = anyio.Event()
            deadline = self.peer.next_deadline()
            self._next = math.inf if deadline is None else deadline
            with anyio.move_on_after(self._next - self._clock.now()):
                await self._wake.wait()
            self.peer.expire(now=self._clock.now())
