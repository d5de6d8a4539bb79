"""What a person is asked before they are led to a sign-in: in our own words, and of them alone.

A client that can send its person to a page is asked to do so. One that has forms shows a choice,
and only a yes that a person had the time to give is one. Line 1 names the server and the host of
the sign-in, line 2 the host of the server; both are shorter than what every host shows of a line.
"""

from collections.abc import Mapping
from enum import Enum, auto

import anyio
from msgspec import Raw

from emceepee_stdio.auth.orders import SignInOrder
from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.question_urls import host_of, url_problem, url_warning
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import AutomaticAnswers, PendingRequest
from emceepee_stdio.visible_text import readable
from emceepee_stdio.wire.codec import RpcError, to_json

__all__ = ["SignInAnswer", "SignInQuestions"]

_NAME_CHARS = 25  # of a server: with the host line 1 stays under 110 characters
_FIELD = "decision"
_NO, _YES = "No", "Yes, open the browser"
_FORM: dict[str, object] = {
    "type": "object",
    "properties": {
        _FIELD: {
            "type": "string",
            "title": "Sign in there?",
            "enum": [_NO, _YES],
            "default": _NO,
        }
    },
    "required": [_FIELD],
}


class SignInAnswer(Enum):
    """What came of a question; a no may also be nobody's."""

    YES = auto()
    NO = auto()
    NOT_ASKED = auto()


class SignInQuestions:
    """The questions of one session, at most one for each server."""

    def __init__(self, session: Session, answers: AutomaticAnswers) -> None:
        self._session = session
        self._answers = answers
        self._pages: dict[str, str] = {}  # that the client sent its person to, by server

    def __repr__(self) -> str:
        return f"<SignInQuestions {len(self._pages)} pages>"

    async def show_page(self, order: SignInOrder, url: str, call: Call | None) -> SignInAnswer:
        """Have the client send the person there."""
        if url_problem(order.server):
            return SignInAnswer.NOT_ASKED
        name = self._pages[order.name] = self._session.ids()
        params: dict[str, object] = {
            "mode": "url",
            "message": "\n".join(_lines(order, url)),
            "url": url,
            "elicitationId": name,
        }
        given = await self._ask(order.name, params, call)
        if isinstance(given, SignInAnswer):
            return given
        accepts = given.get("action") == "accept"
        return SignInAnswer.YES if accepts else SignInAnswer.NO

    async def ask_to_open(self, order: SignInOrder, url: str, call: Call | None) -> SignInAnswer:
        """Ask the person whether to open a browser there; `url` has at least the host."""
        if url_problem(url) or url_problem(order.server):
            return SignInAnswer.NOT_ASKED
        warning = url_warning(url)
        lines = [*_lines(order, url), *([warning] if warning else [])]
        message = "\n".join(lines)
        params = {"mode": "form", "message": message, "requestedSchema": _FORM}
        asked_at = self._session.clock.now()
        given = await self._ask(order.name, params, call)
        if isinstance(given, SignInAnswer):
            return given
        is_fast = self._answers.is_fast(took=self._session.clock.now() - asked_at)
        is_yes = mapping(given.get("content")).get(_FIELD) == _YES
        return SignInAnswer.YES if is_yes and not is_fast else SignInAnswer.NO

    def end(self, server: str) -> None:
        """The visit is over: the client may take its dialogue away."""
        if name := self._pages.pop(server, None):
            self._session.routing.visited(server, name)

    async def _ask(
        self, server: str, params: Mapping[str, object], call: Call | None
    ) -> dict[str, object] | SignInAnswer:
        """The answer of the client, or that there is none."""
        session, answered = self._session, anyio.Event()
        outcome: bytes | RpcError = b"{}"

        def deliver(given: bytes | RpcError) -> bool:
            nonlocal outcome
            outcome = given
            answered.set()
            return True

        asked = self._put(
            server,
            Question(
                method="elicitation/create",
                params=Raw(to_json(params)),
                key=(__name__, session.ids()),
                deliver=deliver,
                call=call,
                is_ours=True,
            ),
        )
        if asked is None or answered.is_set():
            return SignInAnswer.NOT_ASKED
        try:
            await answered.wait()
        finally:
            if not answered.is_set() and params["mode"] == "form":
                self._withdraw(asked)
        if isinstance(outcome, RpcError):
            return SignInAnswer.NO
        return dict(mapping(decode_value(outcome)))

    def _put(self, server: str, question: Question) -> PendingRequest | None:
        """The question that is with the person now."""
        session, now = self._session, self._session.clock.now()
        dialogue = session.routing.dialogue
        asked = None if dialogue is None else session.questions.admit(server, question, now=now)
        if dialogue is None or asked is None:
            return None
        session.ticker.look(asked.expires_at)
        if dialogue.ask(asked):
            return asked
        session.requests.withdraw(asked.id, now=now)
        return None

    def _withdraw(self, asked: PendingRequest) -> None:
        closed = self._session.requests.withdraw(asked.id, now=self._session.clock.now())
        if closed is not None:
            self._session.routing.closed(closed)


def _lines(order: SignInOrder, url: str) -> list[str]:
    name = readable(order.name).replace('"', "'")
    name = name if len(name) <= _NAME_CHARS else f"{name[:_NAME_CHARS]}…"
    there, here = host_of(url), host_of(order.server)
    source = "" if order.trusted else "You did not configure it. "
    other = "" if there == here else "another host, "
    return [
        f'emceepee: "{name}" wants you to sign in at {there}.',
        f"{source}It is at {other}{here}.",
    ]
