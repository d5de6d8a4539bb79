"""One side of a JSON-RPC conversation, synchronous: bytes in, bytes and callbacks out.

The peer knows which answer belongs to which request, which request was cancelled, and when each is
overdue. Every request that it accepts ends exactly once: with its answer, an error, its deadline,
its cancellation, or the end of the channel. It waits for nothing and reads no clock.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.deadlines import Deadlines
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Malformed,
    Message,
    Noise,
    Notification,
    Request,
    RequestId,
    Response,
    RpcError,
    decode,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    salvage_id,
    to_json,
)
from emceepee_stdio.wire.lines import Lines, Oversized

__all__ = [
    "Closed",
    "Handler",
    "OnDone",
    "Outcome",
    "Overdue",
    "Peer",
    "PeerStatistics",
    "TooLarge",
    "method_not_found",
]

_NOT_CANCELLABLE = frozenset({"initialize", "server/discover"})
_REMEMBERED_IDS = 1_000
# The only request of ours that the other side may end by name; elsewhere the id would be its own.
_STREAM = "subscriptions/listen"
_ID_DIGITS = 18
_SHOWN_CHARS = 200


@dataclass(frozen=True, slots=True)
class Overdue:
    """No answer came before the deadline."""


@dataclass(frozen=True, slots=True)
class Closed:
    """The channel ended first."""

    reason: str


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The answer was longer than a line may be."""

    size: int


Outcome = msgspec.Raw | RpcError | Overdue | Closed | TooLarge | ProxyError
OnDone = Callable[[Outcome], None]
OnProgress = Callable[[msgspec.Raw], None]


class Handler(Protocol):
    """Who listens to a peer. Called in wire order; must not block."""

    def on_request(self, request: Request) -> None: ...
    def on_notification(self, notification: Notification) -> None: ...
    def on_cancelled(self, request_id: RequestId) -> None: ...
    def on_malformed(self, message: Malformed) -> None: ...
    def on_noise(self, text: str) -> None: ...
    def on_stray(self, request_id: str) -> None: ...


@dataclass(slots=True)
class _Sent:
    method: str
    on_done: OnDone
    on_progress: OnProgress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    """What is under way."""

    sent: int
    received: int
    closed: bool


class _Cancelled(msgspec.Struct):
    requestId: int | str  # noqa: N815 - the name on the wire


class _Progress(msgspec.Struct):
    progressToken: int | str  # noqa: N815 - the name on the wire


_read_cancelled = msgspec.json.Decoder(_Cancelled).decode
_read_progress = msgspec.json.Decoder(_Progress).decode


class Peer:
    """Correlates, cancels, times; `write` takes whole lines and must not block."""

    def __init__(
        self,
        *,
        handler: Handler,
        write: Callable[[bytes], None],
        max_line: int = 64 << 20,
        max_received: int = 1_000,
        strict: bool = False,
    ) -> None:
        self._handler = handler
        self._write = write
        self._lines = Lines(max_line)
        self._max_received = max_received
        self._strict = strict
        self._sent: dict[RequestId, _Sent] = {}
        self._received: set[RequestId] = set()
        self._given_up: dict[RequestId, None] = {}
        self._deadlines: Deadlines[RequestId] = Deadlines()
        self._next_id = 1
        self._closed: Closed | None = None

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<Peer {state} sent={len(self._sent)} received={len(self._received)}>"

    def statistics(self) -> PeerStatistics:
        return PeerStatistics(
            sent=len(self._sent), received=len(self._received), closed=self._closed is not None
        )

    @property
    def unfinished(self) -> int:
        """Bytes of a line that has not ended yet."""
        return self._lines.unfinished

    # What we say

    def request(
        self,
        method: str,
        params: Callable[[RequestId], bytes | None],
        *,
        deadline: float,
        on_done: OnDone,
        on_progress: OnProgress | None = None,
    ) -> RequestId:
        """Ask; `params` is told the id, which serves as the progress token as well."""
        request_id = self._next_id
        self._next_id += 1
        if self._closed is not None:
            on_done(self._closed)
            return request_id
        line = encode_request(request_id, method, params(request_id))
        self._sent[request_id] = _Sent(method, on_done, on_progress)
        self._deadlines.set(request_id, deadline)
        self._write(line)
        return request_id

    def cancel(self, request_id: RequestId, reason: str) -> bool:
        """Give up on a request and tell the other side; False when it had ended already."""
        sent = self._settle(request_id)
        if sent is not None:
            self._give_up(request_id, sent, reason)
        return sent is not None

    def notify(self, method: str, params: bytes | None = None) -> None:
        if self._closed is None:
            self._write(encode_notification(method, params))

    def answer(self, request_id: RequestId, result: bytes | msgspec.Raw) -> bool:
        """Answer a request; False when it was cancelled, answered or the channel is gone."""
        return self._answer(request_id, lambda: encode_result(request_id, result))

    def refuse(self, request_id: RequestId, error: RpcError) -> bool:
        return self._answer(request_id, lambda: encode_error(request_id, error))

    def complain(self, message: Malformed) -> None:
        """Say what is wrong with a message that could not be taken as a request."""
        if self._closed is None:
            error = RpcError(message.code, f"Invalid message: {message.reason}")
            self._write(encode_error(message.id, error))

    def close(self, reason: str) -> None:
        """The channel ended: everything in flight ends with it, now."""
        if self._closed is not None:
            return
        self._closed = Closed(reason)
        sent, self._sent = self._sent, {}
        self._received.clear()
        self._deadlines = Deadlines()
        for waiting in sent.values():
            waiting.on_done(self._closed)

    def waits_for(self, request_id: RequestId) -> bool:
        return request_id in self._sent

    def give_up(self, request_id: RequestId, outcome: Outcome) -> None:
        """No answer can come any more, and the channel knows why: end the request with that."""
        if sent := self._settle(request_id):
            sent.on_done(outcome)

    # Deadlines

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, *, now: float) -> None:
        """End what is overdue, and tell the other side to stop."""
        for request_id in self._deadlines.pop_due(now=now):
            if sent := self._settle(request_id):
                self._give_up(request_id, sent, "timeout")
                sent.on_done(Overdue())

    # What we hear

    def feed(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            self._take(line)

    def take(self, message: bytes) -> None:
        """One message that the channel has framed already."""
        self._take(message)

    def end(self) -> None:
        """No more bytes will come: read the last line, even without its newline."""
        for line in self._lines.end():
            self._take(line)

    def _take(self, line: bytes | Oversized) -> None:
        if self._closed is not None:
            return
        if isinstance(line, Oversized):
            self._take_oversized(line)
            return
        for message in decode(line, strict=self._strict):
            if self._closed is None:
                self._dispatch_safely(message)

    def _dispatch_safely(self, message: Message) -> None:
        """Whatever is wrong with one message, the ones behind it are still read."""
        try:
            self._dispatch(message)
        except Exception as error:  # noqa: BLE001 - a message of somebody else ends nothing of ours
            if isinstance(message, Request):
                self.refuse(message.id, RpcError(INTERNAL_ERROR, "This could not be handled."))
            self._handler.on_noise(f"a message that cannot be handled: {type(error).__name__}")

    def _dispatch(self, message: Message) -> None:
        match message:
            case Response():
                self._take_response(message)
            case Notification():
                self._take_notification(message)
            case Request():
                self._take_request(message)
            case Malformed():
                self._handler.on_malformed(message)
            case Noise():
                self._handler.on_noise(message.text)

    def _take_response(self, response: Response) -> None:
        request_id = _ours(response.id)
        sent = self._settle(request_id)
        if sent is not None:
            sent.on_done(response.outcome)
        elif request_id not in self._given_up:
            self._handler.on_stray(repr(response.id)[:_SHOWN_CHARS])

    def _take_request(self, request: Request) -> None:
        if request.id in self._received:
            error = RpcError(INVALID_REQUEST, f"The id {request.id!r} is already in use.")
            self._write(encode_error(request.id, error))
        elif len(self._received) >= self._max_received:
            error = RpcError(INVALID_REQUEST, f"{self._max_received} requests are open already.")
            self._write(encode_error(request.id, error))
        else:
            self._received.add(request.id)
            self._handler.on_request(request)

    def _take_notification(self, notification: Notification) -> None:
        params = notification.params
        if params is not None and notification.method == "notifications/cancelled":
            self._take_cancelled(params)
        elif (
            params is None
            or notification.method != "notifications/progress"
            or not self._take_progress(params)
        ):
            self._handler.on_notification(notification)

    def _take_cancelled(self, params: msgspec.Raw) -> None:
        try:
            request_id = _read_cancelled(params).requestId
        except (msgspec.MsgspecError, RecursionError):
            return
        if request_id in self._received:
            self._received.discard(request_id)
            self._handler.on_cancelled(request_id)
        elif (sent := self._sent.get(request_id)) and sent.method == _STREAM:
            self.give_up(request_id, RpcError(INVALID_REQUEST, "The other side ended the stream."))

    def _take_progress(self, params: msgspec.Raw) -> bool:
        """True when the progress belongs to a request of ours, past or present."""
        try:
            token = _read_progress(params).progressToken
        except (msgspec.MsgspecError, RecursionError):
            return False
        sent = self._sent.get(token)
        if sent is not None and sent.on_progress is not None:
            sent.on_progress(params)
        return isinstance(token, int) and 0 < token < self._next_id

    def _take_oversized(self, line: Oversized) -> None:
        request_id, asks = salvage_id(line.head, line.tail)
        sent = None if asks or request_id is None else self._settle(_ours(request_id))
        if sent is not None:
            sent.on_done(TooLarge(line.size))
            return
        if asks and request_id is not None:
            error = RpcError(INVALID_REQUEST, f"A message of {line.size} bytes is too large.")
            self._write(encode_error(request_id, error))
        self._handler.on_noise(f"a line of {line.size} bytes was dropped")

    def _answer(self, request_id: RequestId, line: Callable[[], bytes]) -> bool:
        if request_id not in self._received:
            return False
        self._received.discard(request_id)
        self._write(line())
        return True

    def _settle(self, request_id: RequestId) -> _Sent | None:
        """Take a request out of flight."""
        self._deadlines.clear(request_id)
        return self._sent.pop(request_id, None)

    def _give_up(self, request_id: RequestId, sent: _Sent, reason: str) -> None:
        """Tell the other side to stop, and remember the id: an answer may be under way."""
        self._given_up[request_id] = None
        if len(self._given_up) > _REMEMBERED_IDS:
            del self._given_up[next(iter(self._given_up))]
        if sent.method not in _NOT_CANCELLABLE:
            params = to_json({"requestId": request_id, "reason": reason})
            self.notify("notifications/cancelled", params)


def _ours(request_id: RequestId) -> RequestId:
    """Our ids are numbers; some servers answer with the same digits as a string."""
    if isinstance(request_id, str) and request_id.isdecimal() and len(request_id) <= _ID_DIGITS:
        return int(request_id)
    return request_id


def method_not_found(method: str) -> RpcError:
    """The polite refusal of a request that nobody here knows."""
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
