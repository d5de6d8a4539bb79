"""Calls that wait for a place, in the order in which they came, each within its own time.

A call that finds no place waits here, in the task that prepares it. Whoever gives up a place calls
`let_in`, which begins the next call then and there: nobody else can take the place in between.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from emceepee_stdio.config import Limits
from emceepee_stdio.errors import TaskLimit
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.trace.open_request import Leg, on_leg

__all__ = ["CallQueue", "no_place"]


@dataclass(eq=False, slots=True, kw_only=True)
class _Waiting:
    call: Call
    begin: Callable[[], None]
    over: anyio.Event = field(default_factory=anyio.Event)


class CallQueue:
    """The calls of each server that wait for a place."""

    def __init__(self) -> None:
        self._by_server: dict[str, deque[_Waiting]] = {}

    def __repr__(self) -> str:
        return f"<CallQueue {sum(map(len, self._by_server.values()))} waiting>"

    def __bool__(self) -> bool:
        return bool(self._by_server)

    def __contains__(self, server: str) -> bool:
        return server in self._by_server

    async def wait(
        self, server: str, call: Call, begin: Callable[[], None], *, within: float
    ) -> None:
        """Until the call was begun or sent away, or its time is up."""
        waiting = _Waiting(call=call, begin=begin)
        self._by_server.setdefault(server, deque()).append(waiting)
        try:
            with on_leg(Leg.QUEUED), anyio.move_on_after(within):
                await waiting.over.wait()
        finally:
            self._remove(server, waiting)

    def let_in(self, has_room: Callable[[str], bool]) -> None:
        """Begin whatever there is room for now."""
        for server, queue in list(self._by_server.items()):
            while queue and has_room(server):
                waiting = queue.popleft()
                if not waiting.call.answered:  # else it was cancelled, and nobody wants it begun
                    waiting.begin()
                waiting.over.set()

    def send_away(self, server: str) -> None:
        """Nothing will be free before the client has been answered."""
        for waiting in self._by_server.pop(server, ()):
            waiting.over.set()

    def _remove(self, server: str, waiting: _Waiting) -> None:
        queue = self._by_server.get(server)
        if queue is not None:
            if waiting in queue:
                queue.remove(waiting)
            if not queue:
                del self._by_server[server]


def no_place(server: str, at_work: int, limits: Limits, *, asks: bool) -> TaskLimit:
    """What a call is told that waited for a place in vain."""
    full = (
        f"{server} has {at_work} calls and tasks at work, as many as one server may have"
        if at_work >= limits.server_calls
        else f"{limits.tasks} calls and tasks are at work, which is the limit"
    )
    return TaskLimit(
        f"{full}, and none of them ended in time.",
        hint="Answer its question first: its tasks may wait for that."
        if asks
        else "Wait for one with await_activity, or stop one with cancel_task.",
    )
