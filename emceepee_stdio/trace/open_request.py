"""A request under way, and the legs on which its time was spent.

A request is on one leg at any time, so the legs add up to its wall time whatever happens. Several
things may be waited for at once (four servers list their tools) and one inside another (a request
to a server makes the connection first): each wait is counted on its leg, and the request is on the
highest leg that has one. With nothing to wait for, emceepee itself is at work: `RENDERING`.

Whoever waits on behalf of a request need not be given it: it stands in `current_request`, which
async tasks inherit from the one that starts them. What is marked on a request that has ended
changes nothing.
"""

from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from enum import IntEnum

__all__ = ["Leg", "OpenRequest", "current_request", "on_leg"]

MAX_LEGS = 32  # enough to tell a story; a server that asks a thousand times needs no more lines


class Leg(IntEnum):
    """What a request waits for. Where it waits for several, the highest counts."""

    RENDERING = 0
    WAITING = 1
    QUEUED = 2
    SERVER = 3
    CONNECTING = 4
    PERSON = 5


_FREE_LEGS = MAX_LEGS - len(Leg)  # what comes after these is added up, one entry for each leg


class OpenRequest:
    """One request of the client, or what goes on of it after it became a task."""

    __slots__ = (
        "_leg",
        "_now",
        "_open",
        "_several",
        "_since",
        "arguments",
        "bytes_in",
        "bytes_out",
        "ended_at",
        "error_code",
        "id",
        "is_task",
        "legs",
        "method",
        "number",
        "outcome",
        "parent",
        "progress",
        "questions",
        "request_id",
        "result",
        "server",
        "server_tool",
        "started_at",
        "task_id",
        "tool",
        "traceparent",
    )

    def __init__(
        self,
        now: Callable[[], float],
        *,
        number: int = 0,
        method: str = "",
        request_id: str | int = "",
        tool: str | None = None,
        bytes_in: int = 0,
    ) -> None:
        self._now = now
        self._open = [1, 0, 0, 0, 0, 0]
        self._leg = Leg.RENDERING
        self._several = False
        self.number = number
        self.id: str | None = None  # made with the first record that names it
        self.is_task = False
        self.method = method
        self.request_id = request_id
        self.tool = tool
        self.bytes_in = bytes_in
        self.bytes_out = 0
        self.server: str | None = None
        self.server_tool: str | None = None
        self.parent: OpenRequest | str | None = None
        self.task_id: str | None = None
        self.progress = 0
        self.questions = 0
        self.traceparent: str | None = None
        self.arguments: bytes | None = None
        self.result: bytes | None = None
        self.outcome: str | None = None
        self.error_code: str | None = None
        self.legs: list[tuple[Leg, float]] = []
        self.ended_at = 0.0
        self.started_at = self._since = now()

    def __repr__(self) -> str:
        state = self.outcome or self._leg.name.lower()
        return f"<OpenRequest {self.method} {self.tool or '-'} {state}>"

    def enter(self, leg: Leg) -> None:
        """One more wait on this leg."""
        self._open[leg] += 1
        if leg > self._leg:
            self._move_to(leg)

    def leave(self, leg: Leg) -> None:
        """One wait less."""
        waits = self._open
        waits[leg] -= 1
        if leg is self._leg and not waits[leg]:
            self._move_to(next(other for other in _FROM_HIGHEST if waits[other]))

    def at(self, server: str) -> None:
        """It waits on this server; one that waits on several names none."""
        if self.server is None and not self._several:
            self.server = server
        elif self.server != server and self.server_tool is None:
            self.server, self._several = None, True

    def ask(self) -> None:
        """Something is asked of a person, on behalf of this request."""
        self.questions += 1
        self.enter(Leg.PERSON)

    def answered(self) -> None:
        self.leave(Leg.PERSON)

    def end(self, outcome: str) -> None:
        self._move_to(self._leg)
        self.ended_at = self._since
        self.outcome = outcome

    def end_but_go_on(self, outcome: str) -> "OpenRequest":
        """Its end, at this moment, as another value; this one goes on, and is of another then."""
        self._move_to(self._leg)
        ended = copy(self)
        ended.ended_at, ended.outcome = self._since, outcome
        self.parent, self.id = ended, None
        self.outcome = self.error_code = self.result = None
        self.legs = []
        self.progress = self.questions = self.bytes_in = self.bytes_out = 0
        return ended

    def become_task(self, number: int) -> None:
        """What follows is the task's own: it begins now, and waits where the call waits now."""
        self.number, self.is_task = number, True
        self.started_at = self._since

    def become(self, request: "OpenRequest") -> None:
        """The client has made the request again: from its arrival on, this is that one."""
        self.number, self.request_id, self.bytes_in = (
            request.number,
            request.request_id,
            request.bytes_in,
        )
        self.traceparent, self.arguments = request.traceparent, request.arguments
        self.legs = []
        self.started_at = self._since = request.started_at

    def _move_to(self, leg: Leg) -> None:
        now = self._now()
        if self.outcome is None:
            self._add(self._leg, now - self._since)
        self._leg, self._since = leg, now

    def _add(self, leg: Leg, seconds: float) -> None:
        legs = self.legs
        if len(legs) >= _FREE_LEGS:
            for index in range(_FREE_LEGS, len(legs)):
                if legs[index][0] is leg:
                    legs[index] = leg, legs[index][1] + seconds
                    return
        legs.append((leg, seconds))


_FROM_HIGHEST = tuple(reversed(Leg))

current_request: ContextVar[OpenRequest | None] = ContextVar("current_request", default=None)


class on_leg:  # noqa: N801 - used as a statement: with on_leg(Leg.SERVER)
    """What the block waits for, on behalf of the request whose work this is, if any."""

    __slots__ = ("_leg", "_request")

    def __init__(self, leg: Leg, server: str | None = None) -> None:
        self._leg = leg
        self._request = current_request.get()
        if server is not None and self._request is not None:
            self._request.at(server)

    def __enter__(self) -> None:
        if self._request is not None:
            self._request.enter(self._leg)

    def __exit__(self, *_: object) -> None:
        if self._request is not None:
            self._request.leave(self._leg)
