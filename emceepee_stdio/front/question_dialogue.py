"""Questions of servers, put to the person through the client's own elicitation.

A client of the handshake era is sent a request for each; calls of a modern one carry them
(`carried_questions`). The question waits in the session all the
while, with the person as its recipient, and ends by the first of: the answer, which goes to the
server; an automatic refusal, after which the tools have it; its time, its server's end or word, or
the end of its call, upon which the client is told to take its dialogue away. Whatever the client
says later is nobody's answer. A question is sent once, and no part of an answer is kept here.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.errors import ProxyError
from emceepee_stdio.foreign_json import decoder
from emceepee_stdio.front.carried_questions import CallLine, CarriedQuestions
from emceepee_stdio.front.client_profile import is_plain_form, profile_of
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.front.question_text import mode_of, native_params
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import PendingRequest, Recipient
from emceepee_stdio.tools.forms import form_problems, with_defaults
from emceepee_stdio.wire.peer import OutgoingRequest

if TYPE_CHECKING:
    from emceepee_stdio.backends.base import Cancel

__all__ = ["QuestionDialogue"]

_VISITED = "notifications/elicitation/complete"
_REMEMBERED_PAGES = 100  # whose end the client may still be told; a person visits few at a time


class _Answer(msgspec.Struct):
    action: Literal["accept", "decline", "cancel"]
    content: dict[str, object] | None = None


_read_answer = decoder(_Answer)


class QuestionDialogue:
    """The questions that are with the person; `carried` has those that calls bring there."""

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        client: ClientRequests,
        line: CallLine,
        *,
        tasks: TaskGroup,
    ) -> None:
        self.carried = CarriedQuestions(
            runtime.session, line, tasks=tasks, params=self.params, settle=self.settle
        )
        self._runtime = runtime
        self._session = runtime.session
        self._protocol = protocol
        self._client = client
        self._sent: dict[str, Cancel] = {}
        self._pages: dict[tuple[str, object], str] = {}  # that the person was sent to

    def __repr__(self) -> str:
        return f"<QuestionDialogue {len(self._sent)} open, {self.carried!r}>"

    def ask(self, asked: PendingRequest) -> bool:
        wanted = self._runtime.configured.config.settings.questions
        if wanted == "tools" or (wanted == "auto" and not self._is_worth_asking(asked)):
            return False
        by_request = mode_of(asked) in self._protocol.modes
        call = question_of(asked).call
        if by_request and not (isinstance(call, Call) and call.request):
            self._send(asked)
            return True
        if self.carried.carry(asked):
            return True
        if wanted == "client":
            self._session.routing.refuse(asked, "The client has no way to ask a person this.")
        return wanted == "client"

    def withdraw(self, asked: PendingRequest) -> None:
        self.carried.withdraw(asked)
        if cancel := self._sent.pop(asked.id, None):
            cancel()

    def visited(self, server: str, elicitation_id: str) -> None:
        if shown := self._pages.pop((server, elicitation_id), None):
            self._client.notify(_VISITED, {"elicitationId": shown})

    def _is_worth_asking(self, asked: PendingRequest) -> bool:
        """Whether a person would see it, as far as is known of this host."""
        if self._runtime.automatic_answers.expected:
            return False
        profile = profile_of(self._protocol.client_name, self._protocol.client_version)
        schema = mapping(asked.params.get("requestedSchema"))
        return mode_of(asked) == "url" or profile.shows_form(schema)

    def _send(self, asked: PendingRequest) -> None:
        session = self._session
        session.requests.hand_to(asked.id, Recipient.PERSON)
        params = self.params(asked, self._protocol.version)
        if "url" in params:
            self._pages[asked.server, asked.params.get("elicitationId")] = asked.id
            if len(self._pages) > _REMEMBERED_PAGES:
                del self._pages[next(iter(self._pages))]
        # Most servers do not say for which call they ask: then it is for the latest.
        waiting = session.waiting_on(asked.server)
        call = question_of(asked).call or next(reversed(waiting), None)
        request = OutgoingRequest(method="elicitation/create", params=params, call=call)
        self._sent[asked.id] = lambda: None
        cancel = self._client.send(request, partial(self._answered, asked, session.clock.now()))
        if asked.id in self._sent:
            self._sent[asked.id] = cancel

    def params(self, asked: PendingRequest, version: str | None = None) -> dict[str, object]:
        session = self._session
        chars = session.settings.fixed.question_chars
        return native_params(asked, mask=session.secrets.mask, chars=chars, version=version)

    def _answered(self, asked: PendingRequest, sent_at: float, outcome: Raw | ProxyError) -> None:
        del self._sent[asked.id]
        answer = outcome if isinstance(outcome, Raw) else None
        self.settle(asked, answer, took=self._session.clock.now() - sent_at)

    def settle(self, asked: PendingRequest, said: Raw | None, *, took: float) -> None:
        """End the question with what the client said; None for an error."""
        answer = self._read(asked, said)
        action = None if answer is None else answer.action
        is_automatic = self._runtime.automatic_answers.is_automatic(
            action, took=took, server=asked.server, plain=is_plain_form(asked.params)
        )
        routing = self._session.routing
        if is_automatic and self._runtime.configured.config.settings.questions != "client":
            routing.put_to_tools(asked)
        elif answer is None:  # nobody has decided anything
            routing.answer(asked, "cancel")
        else:
            routing.answer(asked, answer.action, answer.content)

    def _read(self, asked: PendingRequest, said: Raw | None) -> _Answer | None:
        """The answer with the defaults of the form; None where it is none that fits."""
        if said is None:
            return None
        try:
            answer = _read_answer(said)
        except (msgspec.MsgspecError, RecursionError):
            return self._unfit(asked)
        if answer.action != "accept" or mode_of(asked) == "url":
            return _Answer(answer.action)
        schema = mapping(asked.params.get("requestedSchema"))
        content = with_defaults(answer.content or {}, schema)
        return self._unfit(asked) if form_problems(content, schema) else _with(content)

    def _unfit(self, asked: PendingRequest) -> None:
        """Noted without a word of the answer."""
        text = f"an answer that does not fit the question {asked.id} of {asked.server}"
        self._runtime.journal.record(JournalEvent.CLIENT_NOISE, text=text)


def _with(content: Mapping[str, object]) -> _Answer:
    return _Answer("accept", dict(content))
