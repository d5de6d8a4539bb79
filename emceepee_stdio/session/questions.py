"""What servers ask the client: let in within bounds, and kept until somebody answers."""

from collections.abc import Iterable

from emceepee_stdio.backends.base import Question
from emceepee_stdio.config import Limits
from emceepee_stdio.session.heard import fields_of, is_too_deep
from emceepee_stdio.state import Asked, RequestKind, Requests
from emceepee_stdio.state.requests import TooManyRequests
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError

__all__ = ["Questions"]

_KINDS = {
    "elicitation/create": RequestKind.ELICITATION,
    "sampling/createMessage": RequestKind.SAMPLING,
}


class Questions:
    """Joins each question that the client is shown with the server that waits for its answer."""

    def __init__(self, requests: Requests, limits: Limits) -> None:
        self._requests = requests
        self._limits = limits
        self._open: dict[str, Question] = {}

    def __repr__(self) -> str:
        return f"<Questions open={len(self._open)}>"

    def admit(self, server: str, question: Question, *, now: float) -> Asked | None:
        """The question as the client sees it; None when the server was told no."""
        kind = _KINDS[question.method]
        refusal = self._too_much(server, kind, question)
        if refusal is None:
            try:
                asked = self._requests.add(
                    kind, server=server, params=fields_of(question.params), now=now
                )
            except TooManyRequests as full:
                refusal = str(full)
            else:
                self._open[asked.id] = question
                return asked
        question.refuse(RpcError(INVALID_REQUEST, refusal))
        return None

    def answer(self, asked: Asked, result: bytes) -> bool:
        """Hand the client's answer to the server; False when that no longer listens."""
        question = self._open.pop(asked.id, None)
        return question is not None and question.answer(result)

    def refuse(self, asked: Asked, reason: str) -> bool:
        """There will be no answer; False when the server no longer listens."""
        question = self._open.pop(asked.id, None)
        return question is not None and question.refuse(RpcError(INVALID_REQUEST, reason))

    def withdraw(self, question: Question, *, now: float) -> Asked | None:
        """The server takes it back; None when it was closed before."""
        for request_id, kept in self._open.items():
            if kept is question:
                del self._open[request_id]
                return self._requests.withdraw(request_id, now=now)
        return None

    def forget(self, request_ids: Iterable[str]) -> None:
        """Nobody is left to hear their answers."""
        for request_id in request_ids:
            self._open.pop(request_id, None)

    def _too_much(self, server: str, kind: RequestKind, question: Question) -> str | None:
        """Every answer shows every question: one server must not fill them all."""
        limits = self._limits
        size = 0 if question.params is None else len(bytes(question.params))
        if question.params is not None and is_too_deep(question.params):
            return "A question that is nested so deeply is not passed on."
        if kind is RequestKind.ELICITATION and size > limits.question_bytes:
            return f"A question of {size} bytes is too large; {limits.question_bytes} are allowed."
        if len(self._requests.pending(server=server)) >= limits.server_questions:
            return f"{limits.server_questions} questions of this server wait already."
        return None
