"""Whom a question of a server goes to, and how it ends: each is with one recipient, and ends once.

An elicitation goes to the person where the client has a dialogue of its own for that. While it is
there, nobody else is told of it: no event, no call that becomes a task because of it, and no answer
by a tool. What the person cannot be asked, or was refused on their behalf by a client that showed
nothing, goes to the tools. What the person did not answer in time goes to nobody.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.questions import Questions, question_of
from emceepee_stdio.state import (
    EventType,
    PendingRequest,
    Recipient,
    RequestKind,
    Requests,
    RequestStatus,
)
from emceepee_stdio.wire.codec import to_json

__all__ = ["Dialogue", "QuestionRouting"]

_ASKED = {
    RequestKind.ELICITATION: EventType.ELICITATION_REQUEST,
    RequestKind.SAMPLING: EventType.SAMPLING_REQUEST,
}
_CLOSED = {
    RequestKind.ELICITATION: EventType.ELICITATION_EXPIRED,
    RequestKind.SAMPLING: EventType.SAMPLING_EXPIRED,
}
_ANSWERS = {
    "accept": RequestStatus.ACCEPTED,
    "decline": RequestStatus.DECLINED,
    "cancel": RequestStatus.CANCELLED,
}


class Dialogue(Protocol):
    """How the client itself asks its person."""

    def ask(self, asked: PendingRequest) -> bool:
        """Put it to the person, who is its recipient from now on; False where nobody is asked."""
        ...

    def withdraw(self, asked: PendingRequest) -> None:
        """It has ended without an answer of the person."""
        ...

    def visited(self, server: str, elicitation_id: str) -> None:
        """The person is done at a page that they were sent to."""
        ...


class Tell(Protocol):
    """An event for the client."""

    def __call__(
        self, kind: EventType, /, *, server: str | None, data: Mapping[str, object]
    ) -> str: ...


class QuestionRouting:
    """`dialogue` is the client's, once there is a client; `make_way` lets its calls go."""

    def __init__(
        self,
        requests: Requests,
        questions: Questions,
        *,
        clock: Clock,
        journal: Journal,
        tell: Tell,
        make_way: Callable[[PendingRequest, object], None],
    ) -> None:
        self._requests = requests
        self._questions = questions
        self._clock = clock
        self._journal = journal
        self._tell = tell
        self._make_way = make_way
        self.dialogue: Dialogue | None = None

    def __repr__(self) -> str:
        return f"<QuestionRouting {self.dialogue!r}>"

    def put(self, asked: PendingRequest) -> None:
        """A new question, to whoever is to answer it."""
        is_form = asked.kind is RequestKind.ELICITATION
        if not is_form or self.dialogue is None or not self.dialogue.ask(asked):
            self.put_to_tools(asked)

    def put_to_tools(self, asked: PendingRequest) -> None:
        if question_of(asked).is_ours:
            self.refuse(asked, "Nobody but the person may answer this.")
        elif self._requests.hand_to(asked.id, Recipient.TOOLS):
            self._tell(_ASKED[asked.kind], server=asked.server, data={"request_id": asked.id})
            self._make_way(asked, question_of(asked).call)

    def answer(
        self, asked: PendingRequest, action: str, content: Mapping[str, object] | None = None
    ) -> bool:
        """What the user decided, for the server; False when that no longer listens."""
        self.close(asked, _ANSWERS[action])
        answer = {"action": action} | ({} if content is None else {"content": content})
        return self._questions.answer(asked, to_json(answer))

    def refuse(self, asked: PendingRequest, reason: str) -> None:
        """Nobody can be asked: the server is told so."""
        self._requests.withdraw(asked.id, now=self._clock.now())
        self._questions.refuse(asked, reason)

    def close(self, asked: PendingRequest, status: RequestStatus) -> None:
        """It has an answer: this is noted, but not what it says."""
        now = self._clock.now()
        closed = self._requests.respond(asked.id, status, kind=asked.kind, now=now)
        self._journal.record(
            JournalEvent.ELICITATION_RESPONDED,
            server=asked.server,
            request_id=asked.id,
            status=status.value,
            duration_ms=round((now - closed.created_at) * 1000),
        )

    def visited(self, server: str, elicitation_id: object) -> None:
        """The server says that the person is done at its page: a question of it is answered."""
        if not isinstance(elicitation_id, str):
            return
        for asked in self._requests.pending(kind=RequestKind.ELICITATION, server=server):
            if asked.params.get("elicitationId") == elicitation_id:
                if asked.recipient is Recipient.PERSON and self.dialogue is not None:
                    self.dialogue.withdraw(asked)
                self.answer(asked, "accept")
        if self.dialogue is not None:
            self.dialogue.visited(server, elicitation_id)

    def end_call(self, call: object) -> None:
        """What a call has asked and nobody has answered is asked no more."""
        for asked in self._questions.end_call(call, now=self._clock.now()):
            self.closed(asked)

    def expire(self, now: float) -> None:
        """What nobody answered in time goes to nobody else."""
        for asked in self._requests.expire(now=now):
            self.closed(asked)  # this may stop its call, of which the server hears first then
            self._questions.refuse(asked, "The client did not answer in time.")
            self._journal.record(
                JournalEvent.ELICITATION_TIMEOUT, server=asked.server, request_id=asked.id
            )

    def closed(self, asked: PendingRequest) -> None:
        """It has ended without an answer: tell whoever it was with, and why."""
        if asked.recipient is Recipient.PERSON and self.dialogue is not None:
            self.dialogue.withdraw(asked)
            return
        reason = asked.closed_by.value if asked.closed_by else asked.status.value
        data = {"request_id": asked.id, "reason": reason}
        self._tell(_CLOSED[asked.kind], server=asked.server, data=data)
