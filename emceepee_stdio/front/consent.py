"""The person behind the client, asked in the way of the client's era.

A client of the handshake era is sent a request; it may be answered long after the call that raised
it. A modern client is answered with the question and makes its call again: what it then brings back
is signed, bound to what was asked, expires, and counts once.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.session.client_calls import Decision, InputRequired, OnLate
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["ConsentRequests", "ElicitedConsent", "InputRequiredConsent", "StateSigner"]

_KEY = "approval"
_SIGNING_KEY_BYTES = 32  # as long as the output of HMAC-SHA-256
_NONCE_BYTES = 8  # no two of one process are alike
_STATE_LIFETIME_S = 600.0  # a person may take some minutes to decide
_TITLE = "emceepee: the model asks to add this server. May it?"
_MAX_REMEMBERED = 10_000  # each is one answer of a person; bounds the memory
_AGREEMENTS = (Decision.AGREED, Decision.AGREED_ONCE)
_MAX_OPEN = 10  # more at a time would only be clicked away


def _elicitation(text: str) -> dict[str, object]:
    return {
        "mode": "form",
        "message": f"{_TITLE}\n\n{text}",
        "requestedSchema": {
            "type": "object",
            "properties": {
                "remember": {
                    "type": "boolean",
                    "title": "Remember it",
                    "description": "Do not ask again for exactly this.",
                    "default": True,
                }
            },
        },
    }


def _decision(answer: object) -> Decision:
    fields = cast("dict[str, object]", answer) if isinstance(answer, dict) else {}
    if fields.get("action") != "accept":
        return Decision.REFUSED
    content = fields.get("content")
    if content is None:
        return Decision.AGREED
    given = cast("dict[str, object]", content) if isinstance(content, dict) else {"remember": None}
    return Decision.AGREED if given.get("remember", True) is True else Decision.AGREED_ONCE


class _Open:
    """One question that the client was sent, until it is answered."""

    def __init__(self) -> None:
        self.decision = Decision.OPEN
        self.answered = anyio.Event()
        self.waiting = 0


class ConsentRequests:
    """The questions that are open at a client of the handshake era, by what they are about."""

    def __init__(
        self, client: ClientRequests, clock: Clock, tasks: TaskGroup, *, within: float
    ) -> None:
        self._client = client
        self._clock = clock
        self._tasks = tasks
        self._within = within
        self._open: dict[str, _Open] = {}
        self._agreed: dict[str, Decision] = {}
        self._keeps_time = False

    def __repr__(self) -> str:
        return f"<ConsentRequests {len(self._open)} open>"

    async def ask(
        self,
        text: str,
        digest: str,
        *,
        within: float,
        on_ask: Callable[[], None],
        on_late: OnLate,
    ) -> Decision:
        """Ask, or wait for the answer to what was asked before."""
        if known := self._agreed.get(digest):  # answered in the very moment before
            return known
        found = self._open.get(digest)
        if found is None and len(self._open) >= _MAX_OPEN:
            return Decision.CANNOT_ASK
        if found is None:
            on_ask()
            found = self._open[digest] = _Open()
            self._tasks.start_soon(self._send, found, text, digest, on_late)
            if not self._keeps_time:
                self._keeps_time = True
                self._tasks.start_soon(self._client.keep_time)
        found.waiting += 1
        try:
            with anyio.move_on_after(within):
                await found.answered.wait()
        finally:
            found.waiting -= 1
            if not found.waiting:  # whoever asked keeps the answer from here on
                self._agreed.pop(digest, None)
        return found.decision

    async def _send(self, question: _Open, text: str, digest: str, on_late: OnLate) -> None:
        request = OutgoingRequest(
            method="elicitation/create",
            params=_elicitation(text),
            deadline=self._clock.now() + self._within,
            within=self._within,
        )
        try:
            question.decision = await self._decision(request)
            if question.decision in _AGREEMENTS and len(self._agreed) < _MAX_REMEMBERED:
                self._agreed[digest] = question.decision
        finally:
            del self._open[digest]
            question.answered.set()
        if not question.waiting and question.decision in _AGREEMENTS:
            await on_late(question.decision is Decision.AGREED)
            self._agreed.pop(digest, None)

    async def _decision(self, request: OutgoingRequest) -> Decision:
        try:
            return _read(await self._client.request(request))
        except ProxyError:
            return Decision.CANNOT_ASK


def _read(outcome: Raw) -> Decision:
    try:
        return _decision(msgspec.json.decode(outcome))
    except (msgspec.MsgspecError, RecursionError):
        return Decision.REFUSED


class ElicitedConsent:
    """The person behind a client of the handshake era."""

    def __init__(self, questions: ConsentRequests, *, within: float) -> None:
        self._questions = questions
        self._within = within

    async def confirm(
        self, text: str, digest: str, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        return await self._questions.ask(
            text, digest, within=self._within, on_ask=on_ask, on_late=on_late
        )


class StateSigner:
    """Signs what a modern client carries for us, and knows it again, once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(_SIGNING_KEY_BYTES)
        self._spent: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"<StateSigner {len(self._spent)} spent>"

    def seal(self, digest: str) -> str:
        expires = round(self._clock.now() + _STATE_LIFETIME_S, 3)
        nonce = secrets.token_hex(_NONCE_BYTES)
        return f"{expires}:{nonce}:{self._sign(f'{expires}:{nonce}:{digest}')}"

    def opens(self, state: str, digest: str) -> bool:
        """Whether we made it, for this, not too long ago, and never saw it before."""
        expires, _, rest = state.partition(":")
        nonce, _, signature = rest.partition(":")
        if not hmac.compare_digest(
            signature.encode(), self._sign(f"{expires}:{nonce}:{digest}").encode()
        ):
            return False
        if float(expires) < self._clock.now() or nonce in self._spent:
            return False
        self._spent[nonce] = None
        if len(self._spent) > _MAX_REMEMBERED:
            del self._spent[next(iter(self._spent))]
        return True

    def _sign(self, text: str) -> str:
        made = hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode()


class InputRequiredConsent:
    """The person behind a modern client: asked by our answer, heard in its next call."""

    def __init__(
        self, seals: StateSigner, *, state: str | None, responses: Mapping[str, Raw] | None
    ) -> None:
        self._seals = seals
        self._state = state
        self._responses = responses or {}

    async def confirm(
        self,
        text: str,
        digest: str,
        *,
        on_ask: Callable[[], None],
        on_late: OnLate,  # noqa: ARG002 - there is no late here
    ) -> Decision:
        # Bound to what the person reads as well: the name of a server is no part of the request.
        asked = f"{digest}:{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()}"
        answer = self._responses.get(_KEY)
        if answer is not None and self._state and self._seals.opens(self._state, asked):
            return _read(answer)
        on_ask()
        question = {"method": "elicitation/create", "params": _elicitation(text)}
        raise InputRequired({_KEY: question}, self._seals.seal(asked))
