"""What servers ask the client: let in within bounds, and answered once.

A pending question lives in `state/pending_requests`, and nowhere else; kept with it is the question
of the backend, through which the answer goes back.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.config import FixedValues
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.params import fields_of, is_too_deep
from emceepee_stdio.session.question_urls import url_problem
from emceepee_stdio.state import PendingRequest, RequestKind, Requests
from emceepee_stdio.state.pending_requests import TooManyRequests
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError

__all__ = ["Questions", "question_of"]

_SHOWN_NAME_CHARS = 100  # of a field that is named in a refusal
_SHARE_DIVISOR = 4  # of the bytes for one server: three that ask too much leave room for others

_KINDS = {
    "elicitation/create": RequestKind.ELICITATION,
    "sampling/createMessage": RequestKind.SAMPLING,
}


def _size(asked: PendingRequest) -> int:
    params = question_of(asked).params
    return 0 if params is None else len(memoryview(params))


def question_of(asked: PendingRequest) -> Question:
    return cast("Question", asked.source)


def _form_problem(params: Mapping[str, object]) -> str | None:
    """Fields of a form are flat: no host shows others."""
    schema = mapping(params.get("requestedSchema"))
    for name, about in mapping(schema.get("properties")).items():
        field = mapping(about)
        kinds = (field.get("type"), mapping(field.get("items")).get("type"))
        if "object" in kinds or kinds[1] == "array" or "properties" in field:
            return f"The field {name[:_SHOWN_NAME_CHARS]!r} is nested: a form has flat fields only."
    return None


def _problem(question: Question) -> str | None:
    """Why nobody is asked this, whoever could be."""
    params = fields_of(question.params)
    if params.get("mode") == "url" or "url" in params:
        why = url_problem(params.get("url"))
        return why and f"The url of a question {why}."
    return _form_problem(params)


class Questions:
    """Lets questions in and sees them out."""

    def __init__(self, requests: Requests, fixed: FixedValues, *, memory_bytes: int) -> None:
        self._requests = requests
        self._fixed = fixed
        self._memory_bytes = memory_bytes

    def __repr__(self) -> str:
        return f"<Questions of {self._requests!r}>"

    def admit(self, server: str, question: Question, *, now: float) -> PendingRequest | None:
        """The question as the client sees it; None when the server was told no."""
        kind = _KINDS[question.method]
        refusal = self._too_much(server, kind, question)
        if refusal is None:
            question.params = question.params and question.params.copy()
            params = fields_of(question.params)
            try:
                return self._requests.add(
                    kind, server=server, params=params, now=now, source=question
                )
            except TooManyRequests as full:
                refusal = str(full)
        question.respond(RpcError(INVALID_REQUEST, refusal))
        return None

    def answer(self, asked: PendingRequest, result: bytes) -> bool:
        """Hand the client's answer to the server; False when that no longer listens."""
        return question_of(asked).respond(result)

    def refuse(self, asked: PendingRequest, reason: str) -> bool:
        """There will be no answer; False when the server no longer listens."""
        return question_of(asked).respond(RpcError(INVALID_REQUEST, reason))

    def withdraw(self, key: object, *, now: float) -> PendingRequest | None:
        """The server takes it back; None when it was closed before."""
        for asked in self._requests.open.values():
            if question_of(asked).key == key:
                return self._requests.withdraw(asked.id, now=now)
        return None

    def end_call(self, call: object, *, now: float) -> list[PendingRequest]:
        """What a call has asked and nobody has answered is asked no more."""
        ended = [a for a in self._requests.open.values() if question_of(a).call is call]
        for asked in ended:
            self.refuse(asked, "The call that asked this has ended.")
        return [
            closed for a in ended if (closed := self._requests.withdraw(a.id, now=now)) is not None
        ]

    def _too_much(self, server: str, kind: RequestKind, question: Question) -> str | None:
        """Every answer shows every question: one server must not fill them all."""
        fixed = self._fixed
        pending = self._requests.pending(server=server)
        size = 0 if question.params is None else len(memoryview(question.params))
        if any(question_of(asked).key == question.key for asked in pending):
            return "The id of this question is already in use."
        if question.params is not None and is_too_deep(question.params):
            return "A question that is nested so deeply is not passed on."
        if kind is RequestKind.ELICITATION and size > fixed.question_bytes:
            return f"A question of {size} bytes is too large; {fixed.question_bytes} are allowed."
        if kind is RequestKind.ELICITATION and (problem := _problem(question)):
            return problem
        if len(pending) >= fixed.server_questions:
            return f"{fixed.server_questions} questions of this server wait already."
        return self._too_many_bytes(pending, size)

    def _too_many_bytes(self, pending: Sequence[PendingRequest], size: int) -> str | None:
        """`pending` are those of the same server; its first question needs only its share."""
        limit = self._memory_bytes
        share = limit // _SHARE_DIVISOR
        if size + sum(map(_size, pending)) > share:
            return (
                f"With {size} bytes more, questions of this server would take over {share} bytes."
            )
        if pending and size + sum(map(_size, self._requests.open.values())) > limit:
            return f"Questions of all servers take {limit} bytes already."
        return None
