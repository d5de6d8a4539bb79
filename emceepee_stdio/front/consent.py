"""Consent: asks the person through the client, in the way of the client's era.

A client of the handshake era is sent a request; it may be answered long after the call that raised
it. A modern client is answered with the question and makes its call again: what it then brings back
is signed, bound to what was asked, expires, and counts once.

The question is one choice, and No is its default: a host that shows a boolean as True and False
takes both for an accept. What a host does not show whole is not asked there, and what is answered
faster than anybody reads was answered by nobody.
"""

import base64
import hashlib
import hmac
import math
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import isawaitable
from unicodedata import east_asian_width

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.base import Cancel, OnResult, Sender
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.front.client_profile import ClientProfile
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import (
    ConsentQuestion,
    Decision,
    InputRequired,
    OnLate,
    Work,
)
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import AutomaticAnswers
from emceepee_stdio.versions import HTTP_REQUEST
from emceepee_stdio.wire.codec import RequestId, encode_request, to_json
from emceepee_stdio.wire.peer import Outcome, OutgoingRequest, Peer
from emceepee_stdio.wire.timing import Ticker

# Requests of ours to the client: asked on the same wire, answered whenever the client does.


class ClientRequests(Sender):
    """Sends to the client; over HTTP with the name of the request for which it asks, of `calls`."""

    def __init__(
        self, peer: Peer, clock: Clock, calls: Mapping[RequestId, object] | None = None
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._clock = clock
        self._ticker = Ticker(clock, [peer.next_deadline], peer.expire, on_bug=_ignored)
        self.keep_time = self._ticker.run
        self._keeps_time = False

    def keep_time_in(self, tasks: TaskGroup) -> None:
        """End what is not answered in time, from now on."""
        if not self._keeps_time:
            self._keeps_time = True
            tasks.start_soon(self.keep_time)

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        params = to_json(self._marked(request))
        line = encode_request(self._peer.next_id, request.method, params)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Raw):
                on_done(outcome)
            else:
                on_done(CallFailed(f"The client did not answer {request.method}."))

        request_id = self._peer.expect(request, done)
        if request_id is None:
            return lambda: None
        if request.deadline != math.inf:
            self._ticker.look(request.deadline)
        self._peer.write(line)
        return lambda: self._peer.cancel(request_id)

    def _marked(self, request: OutgoingRequest) -> Mapping[str, object]:
        params = request.params or {}
        for name, call in (self._calls or {}).items():
            if call is request.call:
                return {**params, "_meta": {**mapping(params.get("_meta")), HTTP_REQUEST: name}}
        return params

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        self._peer.notify(method, to_json(params))


def _ignored(_error: Exception) -> None:
    """Ending what is overdue calls nothing but the two lines above."""


_KEY = "approval"
_FIELD = "decision"
_NO = "No"
_YES = {
    "Yes, this time": Decision.AGREED_ONCE,
    "Yes, and do not ask again": Decision.AGREED,
}
_YES_ONCE = [answer for answer, decision in _YES.items() if decision is Decision.AGREED_ONCE]
_TITLED_SINCE = "2025-11-25"  # before that a choice has its names beside its values
_LINE_CHARS = 110  # a line stays under it, in hosts that show a little more as well
_SIGNING_KEY_BYTES = 32  # as long as the output of HMAC-SHA-256
_NONCE_BYTES = 8  # no two of one process are alike
_STATE_LIFETIME_S = 600.0  # a person may take some minutes to decide
_MAX_REMEMBERED = 10_000  # each is one answer of a person; bounds the memory
_AGREEMENTS = (Decision.AGREED, Decision.AGREED_ONCE)
_MAX_OPEN = 10  # more at a time would only be clicked away


class ConsentForm:
    """How this client is asked, and how its answers are read.

    `version` is None for modern ones; without `keeps` a yes is for one call, whatever is answered.
    """

    def __init__(
        self,
        profile: ClientProfile,
        answers: AutomaticAnswers,
        *,
        version: str | None,
        keeps: bool = True,
    ) -> None:
        self._profile = profile
        self._answers = answers
        self._titled = version is None or version >= _TITLED_SINCE
        self._keeps = keeps

    def obstacle(self, question: ConsentQuestion) -> Decision | None:
        """Why nobody can be asked this."""
        if self._answers.expected:
            return Decision.AUTOMATIC
        limit = min(_LINE_CHARS, self._profile.message_chars)
        fits = len(question.lines) <= self._profile.message_lines and all(
            _width(line) < limit for line in question.lines
        )
        return None if fits else Decision.TOO_LONG

    def elicitation(self, question: ConsentQuestion) -> dict[str, object]:
        values = [_NO, *(_YES if self._keeps else _YES_ONCE)]
        choices: dict[str, object] = {"enum": values, "enumNames": values}
        if self._titled:
            choices = {"oneOf": [{"const": value, "title": value} for value in values]}
        field = {"type": "string", "title": question.title, **choices, "default": _NO}
        return {
            "mode": "form",
            "message": "\n".join(question.lines),
            "requestedSchema": {
                "type": "object",
                "properties": {_FIELD: field},
                "required": [_FIELD],
            },
        }

    def decision(self, answer: Raw | None, *, took: float) -> Decision:
        """What an answer says that took so long; None for an error."""
        fields = mapping(None if answer is None else decoded(answer, object))
        action = fields.get("action")
        told = None if answer is None else action if isinstance(action, str) else ""
        if self._answers.is_automatic(told, took=took, server=None, plain=True):
            return Decision.AUTOMATIC
        if answer is None:
            return Decision.CANNOT_ASK
        if self._answers.is_fast(took=took):
            return Decision.AUTOMATIC
        chosen = mapping(fields.get("content")).get(_FIELD)
        if action != "accept" or not isinstance(chosen, str):
            return Decision.REFUSED
        decision = _YES.get(chosen, Decision.REFUSED)
        is_standing = decision is Decision.AGREED
        return Decision.AGREED_ONCE if is_standing and not self._keeps else decision


def _width(line: str) -> int:
    """In columns: some letters take two."""
    return sum(2 if east_asian_width(char) in "WF" else 1 for char in line)


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

    def __repr__(self) -> str:
        return f"<ConsentRequests {len(self._open)} open>"

    async def ask(
        self,
        question: ConsentQuestion,
        form: ConsentForm,
        *,
        within: float,
        on_ask: Callable[[], None],
        on_late: OnLate,
    ) -> Decision:
        """Ask, or wait for the answer to what was asked before."""
        digest = question.digest
        if known := self._agreed.get(digest):  # answered in the very moment before
            return known
        found = self._open.get(digest)
        if found is None and (obstacle := form.obstacle(question)):
            return obstacle
        if found is None and len(self._open) >= _MAX_OPEN:
            return Decision.CANNOT_ASK
        if found is None:
            on_ask()
            found = self._open[digest] = _Open()
            self._tasks.start_soon(self._send, found, question, form, on_late)
            self._client.keep_time_in(self._tasks)
        found.waiting += 1
        try:
            with anyio.move_on_after(within):
                await found.answered.wait()
        finally:
            found.waiting -= 1
            if not found.waiting:  # whoever asked keeps the answer from here on
                self._agreed.pop(digest, None)
        return found.decision

    async def _send(
        self, asked: _Open, question: ConsentQuestion, form: ConsentForm, on_late: OnLate
    ) -> None:
        digest = question.digest
        try:
            asked.decision = await self._decision(question, form)
            if asked.decision in _AGREEMENTS and len(self._agreed) < _MAX_REMEMBERED:
                self._agreed[digest] = asked.decision
        finally:
            del self._open[digest]
            asked.answered.set()
        if not asked.waiting and asked.decision in _AGREEMENTS:
            await on_late(asked.decision is Decision.AGREED)
            self._agreed.pop(digest, None)

    async def _decision(self, question: ConsentQuestion, form: ConsentForm) -> Decision:
        asked_at = self._clock.now()
        request = OutgoingRequest(
            method="elicitation/create",
            params=form.elicitation(question),
            deadline=asked_at + self._within,
            within=self._within,
            call=question.call,
        )
        try:
            answer = await self._client.request(request)
        except ProxyError:
            answer = None
        return form.decision(answer, took=self._clock.now() - asked_at)


class ElicitedConsent:
    """The person behind a client of the handshake era."""

    def __init__(self, questions: ConsentRequests, form: ConsentForm, *, within: float) -> None:
        self._questions = questions
        self._form = form
        self._within = within

    async def confirm(
        self, question: ConsentQuestion, *, on_ask: Callable[[], None], on_late: OnLate
    ) -> Decision:
        return await self._questions.ask(
            question, self._form, within=self._within, on_ask=on_ask, on_late=on_late
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

    def spend(self, state: str, digest: str) -> float | None:
        """How long ago we made it for this; None where we did not, or it is spent or too old."""
        expires, _, rest = state.partition(":")
        nonce, _, signature = rest.partition(":")
        if not hmac.compare_digest(
            signature.encode(), self._sign(f"{expires}:{nonce}:{digest}").encode()
        ):
            return None
        left = float(expires) - self._clock.now()
        if left < 0 or nonce in self._spent:
            return None
        self._spent[nonce] = None
        if len(self._spent) > _MAX_REMEMBERED:
            del self._spent[next(iter(self._spent))]
        return _STATE_LIFETIME_S - left

    def _sign(self, text: str) -> str:
        made = hmac.new(self._key, text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode()


class InputRequiredConsent:
    """The person behind a modern client: asked by our answer, heard in its next call."""

    def __init__(
        self,
        seals: StateSigner,
        form: ConsentForm,
        *,
        state: str | None,
        responses: Mapping[str, Raw] | None,
    ) -> None:
        self._seals = seals
        self._form = form
        self._state = state
        self._responses = responses or {}

    async def confirm(
        self,
        question: ConsentQuestion,
        *,
        on_ask: Callable[[], None],
        on_late: OnLate,  # noqa: ARG002 - there is no late here
    ) -> Decision:
        # Bound to what the person reads as well: the name of a server is no part of the request.
        text = "\n".join(question.lines).encode("utf-8", "replace")
        asked = f"{question.digest}:{hashlib.sha256(text).hexdigest()}"
        answer = self._responses.get(_KEY)
        if answer is not None and self._state:
            took = self._seals.spend(self._state, asked)
            if took is not None:
                return self._form.decision(answer, took=took)
        if obstacle := self._form.obstacle(question):
            return obstacle
        on_ask()
        request = {"method": "elicitation/create", "params": self._form.elicitation(question)}
        raise InputRequired({_KEY: request}, self._seals.seal(asked))


# The roots of the client: asked for when a server wants them, in the way of the client's era.
#
# A client of the handshake era is sent `roots/list`, and again when it says that they changed. A
# modern one can be asked only by the answer to a call: that is done once, with the first call after
# a server wanted to know, and until then the server is kept waiting only for a moment. One that
# says that they changed, as some do in that era as well, is asked once more.


_ROOTS_KEY = "roots"
_METHOD = "roots/list"
_MAX_ROOTS = 100  # a workspace has a handful of directories


class _Listed(msgspec.Struct):
    uri: str
    name: str | None = None


class _Roots(msgspec.Struct):
    roots: list[_Listed]


class RootsRequests:
    """Asks one client."""

    def __init__(
        self, runtime: Runtime, protocol: Protocol, client: ClientRequests, tasks: TaskGroup
    ) -> None:
        self._roots = runtime.environment.roots
        self._fixed = runtime.settings.fixed
        self._clock = runtime.clock
        self._protocol = protocol
        self._client = client
        self._tasks = tasks
        self._seals = StateSigner(runtime.clock)
        self._is_stale = False
        self._is_asking = False
        self._was_asked = False
        self._roots.ask = self._ask

    def changed(self) -> None:
        """The client says so; nobody is asked before somebody wants to know."""
        self._was_asked = False
        if self._roots.wanted and self._protocol.offers_roots:
            self._ask()

    def begin(
        self, work: Work, state: str | None, responses: Mapping[str, Raw] | None
    ) -> Reply | Coroutine[object, object, Reply | None] | None:
        """The work of a modern call, with the roots that it brings, or after it was asked for them.

        One that brings another answer is not asked: that would be lost, and asked for again.
        """
        answer = (responses or {}).get(_ROOTS_KEY)
        if answer is not None and state and self._seals.spend(state, _ROOTS_KEY) is not None:
            self._roots.learn(_read(answer))
            return self._after_a_moment(work)
        if state is None and self._roots.wanted and not self._was_asked:
            self._was_asked = True
            raise InputRequired({_ROOTS_KEY: {"method": _METHOD}}, self._seals.seal(_ROOTS_KEY))
        return work()

    async def _after_a_moment(self, work: Work) -> Reply | None:
        """The server that the call is for may have to take them in first."""
        await anyio.sleep(self._fixed.roots_settle_s)
        result = work()
        return await result if isawaitable(result) else result

    def _ask(self) -> None:
        if self._protocol.offers_roots:
            self._is_stale = True
            if not self._is_asking:
                self._is_asking = True
                self._tasks.start_soon(self._request)
        elif self._protocol.modern_roots:
            self._tasks.start_soon(self._wait_for_call)
        else:
            self._roots.learn(None)

    async def _request(self) -> None:
        """As often as they changed meanwhile."""
        self._client.keep_time_in(self._tasks)
        while self._is_stale:
            self._is_stale = False
            within = self._fixed.roots_s
            deadline = self._clock.now() + within
            request = OutgoingRequest(method=_METHOD, deadline=deadline, within=within)
            try:
                answer = await self._client.request(request)
            except ProxyError:
                self._roots.learn(None)
            else:
                self._roots.learn(_read(answer))
        self._is_asking = False

    async def _wait_for_call(self) -> None:
        await anyio.sleep(self._fixed.roots_hold_s)
        self._roots.learn(None)


def _read(answer: Raw) -> Sequence[Mapping[str, str]] | None:
    """What can be used of an answer: directories, which are all that roots can be."""
    listed = decoded(answer, _Roots)
    if listed is None:
        return None
    return [
        {"uri": root.uri} | ({} if root.name is None else {"name": root.name})
        for root in listed.roots[:_MAX_ROOTS]
        if root.uri.startswith("file://")
    ]
