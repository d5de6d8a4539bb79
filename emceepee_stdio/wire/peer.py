"""One side of a JSON-RPC conversation, synchronous: bytes in, callbacks out.

The peer knows which answer belongs to which request of ours, and when each is overdue. Every
request that it expects an answer to ends exactly once: with its answer, an error, its deadline, its
cancellation, or the end of the channel. It waits for nothing and reads no clock.

How a request is put into bytes and sent is its owner's affair: `expect` only numbers it. Requests
of the other side are handed to the handler, which alone knows which of them are still open.
"""

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.machine import Deadlines
from emceepee_stdio.wire.codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Malformed,
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    RpcError,
    decode,
    encode_error,
    encode_notification,
    encode_result,
    salvage_id,
)
from emceepee_stdio.wire.framing import Lines, Oversized, PartialMessages

_REMEMBERED_IDS = 1_000  # answers to what was given up may come late; older ones are told as stray
# The only request of ours that the other side may end by name; elsewhere the id would be its own.
_STREAM = "subscriptions/listen"
_MAX_ID_DIGITS = 18  # an id of ours fits into 64 bits
_SHOWN_CHARS = 200  # enough to recognise an id that we never gave

OnProgress = Callable[[msgspec.Raw], None]


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request on its way to the other side: made once, and handed down whole.

    `deadline` is an instant, `within` the seconds that it was given; infinite where somebody else
    watches over the time. `call` is the client's call on whose behalf it is made, if any;
    `is_agreed` if a person agreed to exactly these params, because a rule asks them.
    """

    method: str
    params: Mapping[str, object] | None = None
    deadline: float = math.inf
    within: float = math.inf
    call: object = None
    on_progress: OnProgress | None = None
    is_agreed: bool = False

    def __repr__(self) -> str:
        return f"<OutgoingRequest {self.method} within={self.within:g}>"


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


class Handler(Protocol):
    """Who listens to a peer. Called in wire order; must not block.

    `origin` is the request of ours on whose stream a request came, where the channel can tell.
    """

    def on_request(self, request: Request, origin: RequestId | None) -> None: ...
    def on_failed(self, request: Request, error: Exception) -> None: ...
    def on_notification(self, notification: Notification) -> None: ...
    def on_cancelled(self, request_id: RequestId) -> None: ...
    def on_malformed(self, message: Malformed) -> None: ...
    def on_noise(self, text: str) -> None: ...
    def on_stray(self, request_id: str) -> None: ...
    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None: ...


class _Sent(msgspec.Struct):
    request: OutgoingRequest
    on_done: OnDone


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatistics:
    """What is under way."""

    sent: int
    closed: bool


class _Cancelled(msgspec.Struct):
    requestId: int | str  # noqa: N815 - the name on the wire


class _Progress(msgspec.Struct):
    progressToken: int | str  # noqa: N815 - the name on the wire


_read_cancelled = msgspec.json.Decoder(_Cancelled).decode
_read_progress = msgspec.json.Decoder(_Progress).decode


class Peer:
    """Correlates and times; `write` takes whole lines and must not block."""

    def __init__(
        self,
        *,
        handler: Handler,
        write: Callable[[bytes], None],
        max_line: int = 64 << 20,
        partial: PartialMessages | None = None,
        strict: bool = False,
    ) -> None:
        self._handler = handler
        self.write = write
        self._lines = Lines(max_line, partial=partial)
        self._strict = strict
        self._sent: dict[RequestId, _Sent] = {}
        self._given_up: dict[RequestId, None] = {}
        self._deadlines: Deadlines[RequestId] = Deadlines()
        self._closed: Closed | None = None
        self.next_id = 1

    def __repr__(self) -> str:
        return f"<Peer {'closed' if self._closed else 'open'} sent={len(self._sent)}>"

    def statistics(self) -> PeerStatistics:
        return PeerStatistics(sent=len(self._sent), closed=self._closed is not None)

    @property
    def unfinished(self) -> int:
        """Bytes of a line that has not ended yet."""
        return self._lines.unfinished

    # What we say

    def expect(self, request: OutgoingRequest, on_done: OnDone) -> RequestId | None:
        """The answer to the request that goes out as `next_id`; None when nothing can go out."""
        if self._closed is not None:
            on_done(self._closed)
            return None
        request_id = self.next_id
        self.next_id += 1
        self._sent[request_id] = _Sent(request, on_done)
        if request.deadline != math.inf:
            self._deadlines.set(request_id, request.deadline)
        return request_id

    def cancel(self, request_id: RequestId, reason: str = "cancelled") -> bool:
        """Give up on a request and tell the other side; False when it had ended already."""
        sent = self._settle(request_id)
        if sent is not None:
            self._give_up(request_id, sent, reason)
        return sent is not None

    def notify(self, method: str, params: bytes | None = None) -> None:
        if self._closed is None:
            self.write(encode_notification(method, params))

    def answer(self, request_id: RequestId, outcome: bytes | msgspec.Raw | RpcError) -> bool:
        """Answer a request of the other side, or refuse it; False when the channel is gone."""
        if self._closed is not None:
            return False
        if isinstance(outcome, RpcError):
            self.write(encode_error(request_id, outcome))
        else:
            self.write(encode_result(request_id, outcome))
        return True

    def complain(self, message: Malformed) -> None:
        """Say what is wrong with a message that could not be taken as a request."""
        if self._closed is None:
            error = RpcError(message.code, f"Invalid message: {message.reason}")
            self.write(encode_error(message.id, error))

    def close(self, reason: str) -> None:
        """The channel ended: everything in flight ends with it, now."""
        if self._closed is not None:
            return
        self._closed = Closed(reason)
        self._lines.drop()
        sent, self._sent = self._sent, {}
        self._deadlines = Deadlines()
        for waiting in sent.values():
            waiting.on_done(self._closed)

    def waits_for_more_than(self, methods: Container[str]) -> bool:
        """Whether anything is in flight but requests of these kinds."""
        return any(sent.request.method not in methods for sent in self._sent.values())

    def waits_for(self, request_id: RequestId) -> bool:
        return request_id in self._sent

    def call_of(self, request_id: RequestId | None) -> object:
        """The client's call behind a request of ours that is still open."""
        sent = None if request_id is None else self._sent.get(request_id)
        return None if sent is None else sent.request.call

    def give_up(self, request_id: RequestId, outcome: Outcome) -> None:
        """No answer can come any more, and the channel knows why: end the request with that."""
        if sent := self._settle(request_id):
            sent.on_done(outcome)

    # Deadlines

    def next_deadline(self) -> float | None:
        return self._deadlines.next()

    def expire(self, now: float) -> None:
        """End what is overdue, and tell the other side to stop."""
        for request_id in self._deadlines.pop_due(now=now):
            if sent := self._settle(request_id):
                self._give_up(request_id, sent, "timeout")
                sent.on_done(Overdue())

    # What we hear

    def feed(self, data: bytes) -> None:
        if self._closed is not None:
            return
        for line in self._lines.feed(data):
            self.take(line)

    def end(self) -> None:
        """No more bytes will come: read the last line, even without its newline."""
        for line in self._lines.end():
            self.take(line)

    def take(self, line: bytes | Oversized, origin: RequestId | None = None) -> None:
        """One line, or one message that the channel has framed already."""
        if self._closed is not None:
            return
        if isinstance(line, Oversized):
            self._take_oversized(line)
            return
        for message in decode(line, strict=self._strict):
            if self._closed is None:
                self.dispatch(message, origin)

    def dispatch(self, message: Message, origin: RequestId | None = None) -> None:
        """Whatever is wrong with one message, the ones behind it are still read."""
        try:
            match message:
                case Response():
                    self._take_response(message)
                case Request():
                    self._handler.on_request(message, origin)
                case Notification():
                    self._take_notification(message)
                case Malformed():
                    self._handler.on_malformed(message)
                case _:
                    self._handler.on_noise(message.text)
        except Exception as error:  # noqa: BLE001 - a message of somebody else ends nothing of ours
            if isinstance(message, Request):
                self._handler.on_failed(message, error)
            else:
                self._handler.on_noise(f"a message that cannot be handled: {type(error).__name__}")

    def _take_response(self, response: Response) -> None:
        request_id = response.id if isinstance(response.id, int) else _ours(response.id)
        sent = self._settle(request_id)
        if sent is not None:
            sent.on_done(response.outcome)
        elif request_id not in self._given_up:
            self._handler.on_stray(repr(response.id)[:_SHOWN_CHARS])

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
        sent = self._sent.get(request_id)
        if sent is not None and sent.request.method == _STREAM:
            self.give_up(request_id, RpcError(INVALID_REQUEST, "The other side ended the stream."))
        else:
            self._handler.on_cancelled(request_id)

    def _take_progress(self, params: msgspec.Raw) -> bool:
        """True when the progress belongs to a request of ours, past or present."""
        try:
            token = _read_progress(params).progressToken
        except (msgspec.MsgspecError, RecursionError):
            return False
        sent = self._sent.get(token)
        if sent is not None and sent.request.on_progress is not None:
            sent.request.on_progress(params)
        return isinstance(token, int) and 0 < token < self.next_id

    def _take_oversized(self, line: Oversized) -> None:
        request_id, asks = salvage_id(line.head, line.tail)
        sent = None if asks or request_id is None else self._settle(_ours(request_id))
        if sent is not None:
            sent.on_done(TooLarge(line.size))
            return
        if asks and request_id is not None:
            error = RpcError(INVALID_REQUEST, f"A message of {line.size} bytes is too large.")
            self.answer(request_id, error)
        self._handler.on_noise(f"a line of {line.size} bytes was dropped")

    def _settle(self, request_id: RequestId) -> _Sent | None:
        """Take a request out of flight."""
        sent = self._sent.pop(request_id, None)
        if sent is not None and sent.request.deadline != math.inf:
            self._deadlines.clear(request_id)
        return sent

    def _give_up(self, request_id: RequestId, sent: _Sent, reason: str) -> None:
        """Have the other side told to stop, and remember the id: an answer may be under way."""
        self._given_up[request_id] = None
        if len(self._given_up) > _REMEMBERED_IDS:
            del self._given_up[next(iter(self._given_up))]
        self._handler.on_given_up(request_id, sent.request.method, reason)


def _ours(request_id: RequestId) -> RequestId:
    """Our ids are numbers; some servers answer with the same digits as a string."""
    if isinstance(request_id, str) and request_id.isdecimal() and len(request_id) <= _MAX_ID_DIGITS:
        return int(request_id)
    return request_id


def method_not_found(method: str) -> RpcError:
    """The polite refusal of a request that nobody here knows."""
    return RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:_SHOWN_CHARS]}")
