"""What a connection says and hears, whatever carries its bytes.

A peer, the questions that the server has open, and the words in which failures are told. The
channels add how bytes travel and why a connection ends.
"""

from abc import ABC, abstractmethod

import anyio
from msgspec import Raw

from emceepee_stdio.backends.base import (
    Era,
    Hello,
    LogLine,
    LogSource,
    Loss,
    OnProgress,
    Params,
    RemoteError,
    SessionIds,
    Sink,
    Underway,
)
from emceepee_stdio.backends.eras import stamp
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallTimeout, ProxyError, ResultTooLarge, ServerDisconnected
from emceepee_stdio.wire.caller import Caller
from emceepee_stdio.wire.codec import (
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    to_json,
)
from emceepee_stdio.wire.peer import OnDone, Outcome, Overdue, Peer, TooLarge, method_not_found

__all__ = ["Conversation", "PushedQuestion"]

_QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class PushedQuestion:
    """A request of the server, waiting for its answer."""

    def __init__(
        self,
        peer: Peer,
        request: Request,
        *,
        call: object,
        open_questions: "dict[RequestId, PushedQuestion]",
    ) -> None:
        self._peer = peer
        self._id = request.id
        self._open = open_questions
        self.call = call
        self.method = request.method
        self.params = request.params

    def __repr__(self) -> str:
        return f"<PushedQuestion {self._id!r} {self.method}>"

    def answer(self, result: bytes) -> bool:
        self._open.pop(self._id, None)
        return self._peer.answer(self._id, result)

    def refuse(self, error: RpcError) -> bool:
        self._open.pop(self._id, None)
        return self._peer.refuse(self._id, error)


class Conversation(ABC):
    """One connection of one server; the base of what each channel yields."""

    hello: Hello

    def __init__(
        self, name: str, *, sink: Sink, clock: Clock, proxy_id: str, max_line: int
    ) -> None:
        self._name = name
        self._sink = sink
        self._peer = Peer(handler=self, write=self._write, max_line=max_line)
        self._caller = Caller(self._peer, clock)
        self._questions: dict[RequestId, PushedQuestion] = {}
        self._calls: dict[RequestId, object] = {}
        self._proxy_id = proxy_id
        self.era = Era.LEGACY

    @property
    def session(self) -> SessionIds:
        return SessionIds(proxy_id=self._proxy_id)

    @abstractmethod
    def _write(self, data: bytes) -> None: ...

    @abstractmethod
    def _loss(self) -> Loss: ...

    def _asking_call(self) -> object:
        """The call on whose behalf the server is asking, where the channel can tell."""
        return None

    # What we say

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw:
        """Ask, and get the raw result; everything else is an error that says what happened."""
        outcome = await self._ask(method, params, within=within, call=call, on_progress=on_progress)
        if isinstance(outcome, Raw):
            return outcome
        raise self.failure(outcome, method, within)

    def begin(
        self,
        method: str,
        params: Params,
        *,
        within: float,
        on_done: OnDone,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Underway | None:
        """Where bytes do not just go out, a request needs a task to wait in."""
        del method, params, within, on_done, call, on_progress
        return None

    def notify(self, method: str, params: Params | None = None) -> None:
        self._peer.notify(method, to_json(params) if params else None)

    async def ask(self, method: str, params: Params, within: float) -> Outcome:
        """A request of the opening, with a time limit of its own."""
        with anyio.move_on_after(within):
            return await self._ask(method, params, within=within)
        return Overdue()

    async def _ask(
        self,
        method: str,
        params: Params | None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Outcome:
        asked: list[RequestId] = []

        def stamped(request_id: RequestId) -> bytes | None:
            if call is not None:
                self._calls[request_id] = call
                asked.append(request_id)
            token = None if on_progress is None else request_id
            return stamp(self.era, params, progress_token=token)

        try:
            return await self._caller.request(
                method, stamped, within=within, on_progress=on_progress
            )
        finally:
            for request_id in asked:
                del self._calls[request_id]

    def failure(self, outcome: Outcome, method: str, within: float) -> ProxyError:
        """What an outcome that is no result means."""
        if isinstance(outcome, ProxyError):
            return outcome
        if isinstance(outcome, RpcError):
            return RemoteError(self._name, outcome)
        if isinstance(outcome, Overdue):
            return CallTimeout(f"{self._name} did not answer {method} within {within:g} s.")
        if isinstance(outcome, TooLarge):
            return ResultTooLarge(
                f"{self._name} answered {method} with {outcome.size} bytes in one message.",
                hint="Ask the tool for less, or raise limits.line_bytes in the configuration.",
            )
        return ServerDisconnected(str(self._loss()))

    # What we hear

    def on_request(self, request: Request) -> None:
        if request.method == "ping":
            self._peer.answer(request.id, b"{}")
        elif request.method in _QUESTIONS and self.era is Era.LEGACY:
            question = PushedQuestion(
                self._peer, request, call=self._asking_call(), open_questions=self._questions
            )
            self._questions[request.id] = question
            self._sink.asked(self._name, question)
        else:
            self._peer.refuse(request.id, method_not_found(request.method))

    def on_notification(self, notification: Notification) -> None:
        self._sink.notification(self._name, notification.method, notification.params)

    def on_cancelled(self, request_id: RequestId) -> None:
        if question := self._questions.pop(request_id, None):
            self._sink.withdrawn(self._name, question)

    def on_malformed(self, message: Malformed) -> None:
        if message.id is not None:
            self._peer.complain(message)
        self.on_noise(f"not a valid message: {message.reason}")

    def on_stray(self, request_id: str) -> None:
        self.on_noise(f"an answer that nobody waits for: id {request_id}")

    def on_noise(self, text: str) -> None:
        self._sink.log(self._name, LogLine(source=LogSource.STDOUT, text=text))
