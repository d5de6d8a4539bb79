"""Questions inside an answer: the modern era's rounds, and the URLs that 2025-11-25 may require.

A server that needs something answers the call with its questions; the call is made again with the
answers. Here those questions become the same as the ones that a handshake server pushes, tied to
the call that raised them, until the call has its real result.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeGuard, cast

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.backends.base import Params, Question, RemoteError
from emceepee_stdio.backends.notices import decoded, mapping
from emceepee_stdio.backends.term import Term
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout
from emceepee_stdio.wire.codec import RpcError

__all__ = ["Asker", "RoundQuestion", "Rounds", "required_urls"]

_URL_REQUIRED = -32042
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_NULL = Raw(b"null")
_KNOWN = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class _InputRequest(msgspec.Struct):
    method: str
    params: Raw | UnsetType = UNSET


class _ResultType(msgspec.Struct, rename="camel"):
    result_type: object = None


class _InputRequired(msgspec.Struct, rename="camel"):
    input_requests: dict[str, _InputRequest] | None = None
    request_state: Raw | UnsetType = UNSET


class _Urls(msgspec.Struct):
    elicitations: list[Raw]


_read_type = msgspec.json.Decoder(_ResultType).decode
_read_input_required = msgspec.json.Decoder(_InputRequired).decode

Send = Callable[[Params], Awaitable[Raw]]
Asker = Callable[[Question], None]


class RoundQuestion:
    """One question of a round; answered once, or closed by whoever asked."""

    def __init__(
        self, method: str, params: Raw | None, *, call: object, on_answer: Callable[[], None]
    ) -> None:
        self.method = method
        self.params = params
        self.call = call
        self.outcome: bytes | RpcError | None = None
        self._closed = False
        self._on_answer = on_answer

    def __repr__(self) -> str:
        state = "open" if self.is_open else "closed" if self.outcome is None else "answered"
        return f"<RoundQuestion {self.method} {state}>"

    @property
    def is_open(self) -> bool:
        return self.outcome is None and not self._closed

    def answer(self, result: bytes) -> bool:
        return self._settle(result)

    def refuse(self, error: RpcError) -> bool:
        return self._settle(error)

    def close(self) -> bool:
        """Nobody waits for the answer any more; False when there is one already."""
        was_open, self._closed = self.is_open, True
        return was_open

    def _settle(self, outcome: bytes | RpcError) -> bool:
        if not self.is_open:
            return False
        self.outcome = outcome
        self._on_answer()
        return True


class Rounds:
    """Makes a call until its result is complete. `ask` shows a question, `take_back` unshows it."""

    def __init__(
        self,
        server: str,
        term: Term,
        *,
        ask: Asker,
        take_back: Asker,
        call: object,
        limit: int,
        clock: Clock,
        deadline: float,
    ) -> None:
        self._server = server
        self._term = term
        self._clock = clock
        self._ask = ask
        self._take_back = take_back
        self._call = call
        self._limit = limit
        self._deadline = deadline

    async def run(self, send: Send, params: Params) -> Raw:
        """The modern way: each answer that asks is followed by the call with our answers."""
        asked = 0
        pause = _FIRST_PAUSE
        current = params
        while True:
            result = await send(current)
            interim = self._interim(result)
            if interim is None:
                return result
            if interim.input_requests:
                asked += 1
                self._check_limit(asked)
            else:
                await self._pause(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
            current = {**params, **await self._answers(interim)}

    async def consent(self, send: Send, params: Params, refusal: RemoteError) -> Raw:
        """The way of 2025-11-25: the call is made again once the person agreed to its URLs."""
        asked = 0
        while urls := required_urls(refusal):
            asked += 1
            self._check_limit(asked)
            requests = {
                str(n): _InputRequest("elicitation/create", url) for n, url in enumerate(urls)
            }
            outcomes = await self._put(requests)
            if any(_action(outcome) != "accept" for outcome in outcomes.values()):
                break
            try:
                return await send(params)
            except RemoteError as error:
                refusal = error
        raise refusal

    async def _pause(self, pause: float) -> None:
        """A server that only wants to be called again is given a moment, if there is one left."""
        left = self._deadline - self._clock.now()
        await anyio.sleep(max(min(pause, left), 0.0))
        if left <= pause:
            raise CallTimeout(f"{self._server} came to no result until the call's time was up.")

    def _check_limit(self, asked: int) -> None:
        if asked > self._limit:
            raise CallFailed(
                f"{self._server} asked {asked} times in a row without coming to a result."
            )

    def _interim(self, result: Raw) -> _InputRequired | None:
        """The questions in a result, or None when it is a result."""
        if not _asks(result):
            return None
        try:
            interim = _read_input_required(result)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CallFailed(
                f"{self._server} asks for input in a way that cannot be read: {error}"
            ) from None
        if interim.input_requests is None and not _is_there(interim.request_state):
            raise CallFailed(f"{self._server} asks for input, but not for what.")
        for request in (interim.input_requests or {}).values():
            if request.method not in _KNOWN:
                raise CallFailed(f"{self._server} asks the unknown question {request.method}.")
        return interim

    async def _answers(self, interim: _InputRequired) -> dict[str, object]:
        """What the repeated call carries: this round's answers, and the newest state."""
        extra: dict[str, object] = {}
        if interim.input_requests:
            outcomes = await self._put(interim.input_requests)
            extra["inputResponses"] = {key: Raw(value) for key, value in outcomes.items()}
        if _is_there(interim.request_state):
            extra["requestState"] = interim.request_state
        return extra

    async def _put(self, requests: Mapping[str, _InputRequest]) -> dict[str, bytes]:
        """Show all questions, wait for all answers; a refusal ends the call."""
        questions = {
            key: RoundQuestion(
                r.method,
                r.params if _is_there(r.params) else None,
                call=self._call,
                on_answer=self._term.bell.ring,
            )
            for key, r in requests.items()
        }
        asked = list(questions.values())
        try:
            for question in asked:
                self._ask(question)
            with anyio.move_on_after(self._deadline - self._clock.now()):
                await self._term.bell.until(lambda: self._term.over or _is_decided(asked))
        finally:
            self._close(asked)
        self._term.check()
        self._check_refusals(asked)
        if any(question.outcome is None for question in asked):
            raise CallTimeout(f"{self._server} waited for an answer until the call's time was up.")
        return {key: cast("bytes", question.outcome) for key, question in questions.items()}

    def _close(self, asked: Sequence[RoundQuestion]) -> None:
        """What is still open is taken back; a lost connection has taken it along already."""
        for question in asked:
            if question.close() and not self._term.over:
                self._take_back(question)

    def _check_refusals(self, asked: Sequence[RoundQuestion]) -> None:
        for question in asked:
            if isinstance(question.outcome, RpcError):
                raise CallFailed(
                    f"{self._server} asked {question.method}, and got no answer: "
                    f"{question.outcome.message}",
                    hint="Call again and answer its question in time.",
                )


def required_urls(error: RemoteError) -> list[Raw] | None:
    """The elicitations that a call needs first, in the way of 2025-11-25."""
    if error.error.code != _URL_REQUIRED or error.error.data is None:
        return None
    try:
        return msgspec.json.decode(error.error.data, type=_Urls).elicitations
    except (msgspec.MsgspecError, RecursionError):
        return None


def _is_there(raw: Raw | UnsetType) -> TypeGuard[Raw]:
    """Some servers say null where they mean nothing."""
    return raw is not UNSET and raw != _NULL


def _asks(result: Raw) -> bool:
    try:
        return _read_type(result).result_type == "input_required"
    except (msgspec.MsgspecError, RecursionError):
        return False


def _is_decided(asked: Sequence[RoundQuestion]) -> bool:
    outcomes = [question.outcome for question in asked]
    return None not in outcomes or any(isinstance(outcome, RpcError) for outcome in outcomes)


def _action(outcome: bytes) -> object:
    return mapping(decoded(Raw(outcome))).get("action")
