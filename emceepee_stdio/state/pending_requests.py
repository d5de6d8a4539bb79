"""Open questions of servers (elicitations, sampling), and which answers a host gave by itself.

Each is answered once: by the client, by its timeout, or because nobody is left to hear the answer.
At every moment it is with one recipient: the person, whom the client asks by its own dialogue, or
the tools, through which the model answers. From the person it may move to the tools, never back.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from emceepee_stdio.errors import RequestNotFound
from emceepee_stdio.state.machine import Deadlines, IllegalMove, Machine, Move, Tombstones

# Whether an answer is the person's, or was given for them by a client that showed nothing.
#
# Headless hosts declare elicitation and refuse each one at once. Such a refusal is nobody's
# decision. One may have a reason of its own, in the form or in what it says; only several of them
# say something about the host, and then for as long as the session lasts.


_REFUSALS = frozenset({"decline", "cancel", None})
_ENOUGH = 2  # one refusal may be about that one question


class AutomaticAnswers:
    """What one client answered, and how fast. `within` is faster than a person answers."""

    def __init__(self, *, within: float) -> None:
        self._within = within
        self._refused: list[str | None] = []  # each server once; None for a question of ours

    def __repr__(self) -> str:
        return f"<AutomaticAnswers {len(self._refused)} refusals>"

    @property
    def expected(self) -> bool:
        """Whether this host refuses by itself, so that nobody needs to be asked any more."""
        return len(self._refused) >= _ENOUGH

    def is_fast(self, *, took: float) -> bool:
        return took < self._within

    def is_automatic(
        self, action: str | None, *, took: float, server: str | None, plain: bool
    ) -> bool:
        """Judge one answer, and remember what it says about the host.

        `action` is None for an error; `server` asked, or we did where it is None; `plain` if every
        host could have shown the form. Where a person has answered, earlier refusals count no more.
        """
        if not self.is_fast(took=took):
            if action is not None:
                self._refused.clear()
            return False
        if action not in _REFUSALS:
            return False
        if plain and not self.expected and (server is None or server not in self._refused):
            self._refused.append(server)
        return True


class RequestKind(StrEnum):
    """What is asked for."""

    ELICITATION = "elicitation"
    SAMPLING = "sampling"


class RequestStatus(StrEnum):
    """Where a question stands."""

    PENDING = "pending"
    ACCEPTED = "accepted"
    COMPLETED = "completed"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    REJECTED = "rejected"


class Recipient(StrEnum):
    """Who is to answer a question."""

    PERSON = "person"
    TOOLS = "tools"


class ClosedBy(StrEnum):
    """Why a question ended without an answer of the client's."""

    TIMEOUT = "timeout"
    DISCONNECTED = "disconnected"
    REMOVED = "removed"
    WITHDRAWN = "withdrawn"


_PENDING = RequestStatus.PENDING
_UNANSWERED = [
    Move(source=_PENDING, target=RequestStatus.EXPIRED, cause="no answer in time (default 10 min)"),
    Move(source=_PENDING, target=RequestStatus.REJECTED, cause="the server is lost or removed"),
    Move(source=_PENDING, target=RequestStatus.REJECTED, cause="the server withdraws it"),
]
_NO_ANSWERS = frozenset(move.target for move in _UNANSWERED)
_ANSWERED = "the answer goes to the server"
_BY_THE_USER = (RequestStatus.ACCEPTED, RequestStatus.DECLINED, RequestStatus.CANCELLED)
_UNANSWERED_ENDS = {
    RequestStatus.EXPIRED: "the server gets an error",
    RequestStatus.REJECTED: "the server is gone or gets an error",
}
_NOTES = {
    _PENDING: "The server waits for the answer. Every response shows the question, and so does"
    " await_activity."
}
_ELICITATION_NOTES = {
    _PENDING: "The server waits for the answer. The client asks the person itself where it can;"
    " else every response shows the question, and so does await_activity."
}

ELICITATION_STATES = Machine(
    "pending_elicitation_states",
    RequestStatus,
    [
        Move(source=None, target=_PENDING, cause="the server asks the user"),
        Move(source=_PENDING, target=RequestStatus.ACCEPTED, cause="the user accepts"),
        Move(source=_PENDING, target=RequestStatus.DECLINED, cause="the user declines"),
        Move(source=_PENDING, target=RequestStatus.CANCELLED, cause="the user decides nothing"),
        *_UNANSWERED,
    ],
    ends=dict.fromkeys(_BY_THE_USER, _ANSWERED) | _UNANSWERED_ENDS,
    notes=_ELICITATION_NOTES,
)

SAMPLING_STATES = Machine(
    "pending_sampling_states",
    RequestStatus,
    [
        Move(source=None, target=_PENDING, cause="the server asks the model"),
        Move(source=_PENDING, target=RequestStatus.COMPLETED, cause="respond_to_sampling accept"),
        Move(source=_PENDING, target=RequestStatus.DECLINED, cause="respond_to_sampling decline"),
        *_UNANSWERED,
    ],
    ends={
        RequestStatus.COMPLETED: _ANSWERED,
        RequestStatus.DECLINED: "the server gets an error",
        **_UNANSWERED_ENDS,
    },
    notes=_NOTES,
)

_STATES = {
    RequestKind.ELICITATION: ELICITATION_STATES,
    RequestKind.SAMPLING: SAMPLING_STATES,
}


class TooManyRequests(Exception):
    """More questions are pending than anybody could answer; the server is told no."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRequest:
    """A view of one question. `source` is where its answer goes, in the words of who asked."""

    id: str
    kind: RequestKind
    server: str
    params: Mapping[str, object]
    status: RequestStatus
    created_at: float
    expires_at: float
    source: object = None
    recipient: Recipient = Recipient.TOOLS
    closed_by: ClosedBy | None = None

    def __repr__(self) -> str:
        return f"<PendingRequest {self.id} {self.kind.value} {self.status.value} {self.server}>"


@dataclass(eq=False, repr=False, kw_only=True)
class Requests:
    """Everything that waits on the client."""

    new_id: Callable[[], str]
    timeout: float = 600.0
    limit: int = 100
    on_closed: Callable[[str], object] = lambda _request_id: None
    # The one home of what is pending, by id, and those that the client has seen in an answer.
    open: dict[str, PendingRequest] = field(init=False, default_factory=dict[str, PendingRequest])
    shown: set[str] = field(init=False, default_factory=set[str])
    _tombstones: Tombstones = field(init=False, default_factory=Tombstones)
    _deadlines: Deadlines[str] = field(init=False, default_factory=Deadlines[str])

    def __repr__(self) -> str:
        return f"<Requests pending={len(self.open)} limit={self.limit}>"

    def __len__(self) -> int:
        return len(self.open)

    def add(
        self,
        kind: RequestKind,
        *,
        server: str,
        params: Mapping[str, object],
        now: float,
        source: object = None,
    ) -> PendingRequest:
        # One question is every server's own, however many others wait.
        if len(self.open) >= self.limit and self.pending(server=server):
            raise TooManyRequests(f"{self.limit} questions are already waiting for the client")
        asked = PendingRequest(
            id=self.new_id(),
            kind=kind,
            server=server,
            params=params,
            status=RequestStatus.PENDING,
            created_at=now,
            expires_at=now + self.timeout,
            source=source,
        )
        self.open[asked.id] = asked
        self._deadlines.set(asked.id, asked.expires_at)
        return asked

    def get(self, request_id: str, *, kind: RequestKind, now: float) -> PendingRequest:
        """The pending question of that kind; otherwise the error says what became of it."""
        asked = self.open.get(request_id)
        if asked is not None and asked.kind is kind:
            return asked
        if asked is not None:
            raise RequestNotFound(
                f"{request_id} is a question of another kind: {asked.kind.value}."
            )
        if gone := self._tombstones.describe(request_id, now=now):
            raise RequestNotFound(f"Nothing waits under {request_id} any more: {gone}.")
        raise RequestNotFound(f"There is no pending {kind.value} request {request_id!r}.")

    def pending(
        self,
        *,
        kind: RequestKind | None = None,
        server: str | None = None,
        recipient: Recipient | None = None,
    ) -> list[PendingRequest]:
        return [
            asked
            for asked in self.open.values()
            if kind in (None, asked.kind)
            and server in (None, asked.server)
            and recipient in (None, asked.recipient)
        ]

    def at_tools(self, *, server: str | None) -> list[PendingRequest]:
        """What this server asks that a tool has to answer."""
        return self.pending(server=server, recipient=Recipient.TOOLS)

    def has_news(self, *, server: str) -> bool:
        """Whether a tool has to answer something of this server that was not shown yet."""
        return any(asked.id not in self.shown for asked in self.at_tools(server=server))

    def hand_to(self, request_id: str, recipient: Recipient) -> PendingRequest | None:
        """Who answers it from now on; None when it was closed before."""
        asked = self.open.get(request_id)
        if asked is not None:
            asked = self.open[request_id] = replace(asked, recipient=recipient)
        return asked

    def respond(
        self, request_id: str, status: RequestStatus, *, kind: RequestKind, now: float
    ) -> PendingRequest:
        """The client's answer: IllegalMove when this kind knows no such answer."""
        asked = self.get(request_id, kind=kind, now=now)
        if status in _NO_ANSWERS:
            raise IllegalMove(_STATES[kind].name, asked.status, status)
        return self._close(asked, status, now=now)

    def withdraw(self, request_id: str, *, now: float) -> PendingRequest | None:
        """The server takes its question back; None when it was closed before."""
        asked = self.open.get(request_id)
        return asked and self._reject(asked, ClosedBy.WITHDRAWN, now=now)

    def reject_server(self, server: str, reason: ClosedBy, *, now: float) -> list[PendingRequest]:
        """Nobody is left to hear the answers: close every question of that server, once."""
        return [self._reject(asked, reason, now=now) for asked in self.pending(server=server)]

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, *, now: float) -> list[PendingRequest]:
        """Close what nobody answered in time."""
        return [
            self._close(self.open[request_id], RequestStatus.EXPIRED, now=now, by=ClosedBy.TIMEOUT)
            for request_id in self._deadlines.pop_due(now=now)
        ]

    def _reject(self, asked: PendingRequest, reason: ClosedBy, *, now: float) -> PendingRequest:
        return self._close(asked, RequestStatus.REJECTED, now=now, by=reason)

    def _close(
        self,
        asked: PendingRequest,
        status: RequestStatus,
        *,
        now: float,
        by: ClosedBy | None = None,
    ) -> PendingRequest:
        _STATES[asked.kind].check(asked.status, status)
        del self.open[asked.id]
        self.shown.discard(asked.id)
        self._deadlines.clear(asked.id)
        why = f"{status.value} ({by.value})" if by else status.value
        self._tombstones.add(asked.id, why, now=now)
        self.on_closed(asked.id)
        return replace(asked, status=status, closed_by=by)
