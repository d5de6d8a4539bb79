"""HTTP sessions, one process each: by session header, or one per token and path.

Several clients may share it, so ids, progress tokens and the ids of subscriptions are ours on its
wire, and the client's own again in what is said to it. A request lives as long as its connection.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Raw

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import decoded, envelope_decoder
from emceepee_stdio.front.http.http_limits import HeldBytes
from emceepee_stdio.front.http.session_process import SessionProcess, SessionSpec
from emceepee_stdio.front.http.stored_streams import REQUEST_LOST, EventStore, StoredStream
from emceepee_stdio.json_values import mapping
from emceepee_stdio.versions import HTTP_REQUEST, SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import (
    Message,
    Notification,
    Request,
    RequestId,
    Response,
    RpcError,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    to_json,
)


class _Session(ABC):
    """One process, of one owner. `on_end` is called once when the process has ended."""

    def __init__(self, spec: SessionSpec, *, on_end: Callable[[Any], None]) -> None:
        self.name = spec.name
        self.owner = spec.owner
        self.used_at = 0.0
        self.is_over = False
        self._on_end = on_end
        self.process = SessionProcess(spec, on_message=self._take, on_end=self._ended)

    @abstractmethod
    def _take(self, message: Message, line: bytes) -> None:
        """What its process says."""

    @abstractmethod
    def end_streams(self) -> None:
        """Nothing more comes for those who wait."""

    async def stop(self) -> None:
        await self.process.stop()
        self._ended()

    def _ended(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.end_streams()
            self._on_end(self)


# A session of the handshake era: one client, one process, and the streams between them.
#
# Each message of the process goes to the stream that it belongs to: an answer and progress to that
# of their request, a question to that of the call for which it is asked, all else to the stream
# that the client opens by GET. A call goes on while its client is away.


_CANCELLED = RpcError(-32800, "Request cancelled", None)
_SESSION_ENDED = RpcError(REQUEST_LOST, "The session has ended. Begin a new one.", None)
_RETRY_MS = 500  # after which a client comes back whose stream was cut


class _Meta(msgspec.Struct):
    token: int | str | None = msgspec.field(name="progressToken", default=None)


class _Params(msgspec.Struct):
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


@dataclass(frozen=True, slots=True)
class _OpenCall:
    stream: StoredStream
    token: RequestId | None


_read_token = msgspec.json.Decoder(_Params).decode


class HandshakeSession(_Session):
    """Only its owner may use it, on `path`."""

    def __init__(
        self,
        spec: SessionSpec,
        *,
        path: str,
        store: EventStore,
        on_end: Callable[["HandshakeSession"], None],
    ) -> None:
        super().__init__(spec, on_end=on_end)
        self.path = path
        self.store = store
        self.unasked = StoredStream()
        self.readers = 0
        self.is_used = False  # its client has come back after the handshake
        self._calls: dict[RequestId, _OpenCall] = {}
        self._tokens: dict[RequestId, StoredStream] = {}
        self._questions: dict[RequestId, StoredStream] = {}

    def __repr__(self) -> str:
        return f"<HandshakeSession {self.name[:8]} {len(self._calls)} calls {self.store!r}>"

    @property
    def calls(self) -> int:
        return len(self._calls)

    # What the client says

    def is_in_use(self, request_id: RequestId) -> bool:
        return request_id in self._calls

    def request(
        self, requests: Sequence[Request], body: bytes, *, primes: bool = False
    ) -> StoredStream:
        """Send what may be several requests; the stream of their answers.

        `primes`: an event without a message comes first, by whose id the stream can be resumed.
        """
        self.process.write(body)
        stream = StoredStream(awaited=len(requests))
        if primes:
            self.store.add(stream, b"", retry_ms=_RETRY_MS)
        for request in requests:
            token = _token(request.params)
            self._calls[request.id] = _OpenCall(stream, token)
            if token is not None:
                self._tokens[token] = stream
        return stream

    def tell(self, messages: Sequence[Message], body: bytes) -> None:
        """Notifications and answers."""
        self.process.write(body)
        self.heed(messages)

    def heed(self, messages: Sequence[Message]) -> None:
        """What its process was told. A call that is taken back gets no answer there."""
        for message in messages:
            if isinstance(message, Notification) and message.method == "notifications/cancelled":
                taken_back = _params(message.params).get("requestId")
                if isinstance(taken_back, int | str) and not isinstance(taken_back, bool):
                    self._end_call(taken_back, encode_error(taken_back, _CANCELLED))
            elif isinstance(message, Response):
                self._questions.pop(message.id, None)

    # What its process says

    def _take(self, message: Message, line: bytes) -> None:
        if isinstance(message, Response):
            self._end_call(message.id, line)
        elif isinstance(message, Request):
            self._ask(message)
        elif isinstance(message, Notification):
            self.store.add(self._stream_of(message), line)

    def _ask(self, request: Request) -> None:
        """A question: on the stream of its call, without the mark that names it."""
        params = _params(request.params)
        meta = dict(mapping(params.get("_meta")))
        call = meta.pop(HTTP_REQUEST, None)
        params = {key: value for key, value in params.items() if key != "_meta"}
        if meta:
            params["_meta"] = meta
        found = self._calls.get(cast("RequestId", call))
        stream = self._questions[request.id] = self.unasked if found is None else found.stream
        line = encode_request(request.id, request.method, to_json(params) if params else None)
        self.store.add(stream, line.strip())

    def _stream_of(self, note: Notification) -> StoredStream:
        params = _params(note.params)
        if note.method == "notifications/progress":
            return self._tokens.get(cast("RequestId", params.get("progressToken")), self.unasked)
        if note.method == "notifications/cancelled":
            asked = cast("RequestId", params.get("requestId"))
            stream = self._questions.pop(asked, self.unasked)
            return self.unasked if stream.is_over else stream
        return self.unasked

    def _end_call(self, request_id: RequestId, line: bytes) -> None:
        """The last word on a request; its stream is over once all of them have theirs."""
        call = self._calls.pop(request_id, None)
        if call is None:
            return
        if call.token is not None:
            self._tokens.pop(call.token, None)
        self.store.add(call.stream, line.strip(), answers=request_id)
        call.stream.awaited -= 1
        if not call.stream.awaited:
            call.stream.finish()

    def end_streams(self) -> None:
        self.unasked.finish()
        for request_id in list(self._calls):
            self._end_call(request_id, encode_error(request_id, _SESSION_ENDED))


def _token(params: Raw | None) -> RequestId | None:
    """By which the client is told of the progress of its request."""
    try:
        meta = _read_token(params or b"{}").meta
    except (msgspec.MsgspecError, RecursionError):
        return None
    return None if meta is None else meta.token


def _params(params: Raw | None) -> dict[str, object]:
    return dict(mapping(decoded(params or b"{}", object)))


_PROCESS_ENDED = RpcError(
    REQUEST_LOST, "The process behind this address has ended. Try again.", None
)
_DROPPED = RpcError(
    REQUEST_LOST,
    "The call was made, but its answer is lost: too many answers for this token are not read yet.",
    None,
)
_UNREAD_BYTES = 1 << 20  # of notifications for one request
_LISTEN = "subscriptions/listen"
_decode = envelope_decoder(object)


@dataclass(frozen=True, slots=True)
class Said:
    """A message for the client; `code` is that of an error, `last` that nothing follows.

    `is_dropped`: an error instead of the answer, which its token may not hold.
    """

    data: bytes
    last: bool = False
    code: int = 0
    is_dropped: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class _Open:
    id: RequestId  # the client's own
    token: object
    listens: bool
    out: MemoryObjectSendStream[Said]
    held: HeldBytes
    unread: int = 0


class ModernSession(_Session):
    """Several clients may share it."""

    is_used = True

    def __init__(self, spec: SessionSpec, *, on_end: Callable[["ModernSession"], None]) -> None:
        super().__init__(spec, on_end=on_end)
        self._count = 0
        self.open = 0  # requests whose answers are not all written
        self._open: dict[RequestId, _Open] = {}

    def __repr__(self) -> str:
        return f"<ModernSession {self.name[:8]} {len(self._open)} open>"

    @property
    def calls(self) -> int:
        """Requests that will be answered."""
        return sum(not found.listens for found in self._open.values())

    @property
    def readers(self) -> int:
        """Streams that stay open."""
        return len(self._open) - self.calls

    def request(
        self, body: Mapping[str, object], held: HeldBytes
    ) -> tuple[RequestId, MemoryObjectReceiveStream[Said]]:
        """Send it under a name of ours; what is said to it comes on the stream, until `finish`."""
        self._count += 1
        name = self._count
        params = mapping(body.get("params"))
        meta = mapping(params.get("_meta"))
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": name}}
        self.process.write(to_json({**body, "id": name, "params": params}))
        out, said = anyio.create_memory_object_stream[Said](math.inf)
        self._open[name] = _Open(
            id=cast("RequestId", body.get("id")),
            token=token,
            listens=body.get("method") == _LISTEN,
            out=out,
            held=held,
        )
        self.open += 1
        return name, said

    def cancel(self, name: RequestId) -> None:
        """Its client has gone."""
        if found := self._open.pop(name, None):
            found.out.close()
            note = encode_notification("notifications/cancelled", to_json({"requestId": name}))
            with suppress(CallFailed):  # it hangs, and will not know
                self.process.write(note.strip())

    def finish(self, name: RequestId) -> None:
        """All is written, or its client has gone."""
        self.cancel(name)
        self.open -= 1

    def was_read(self, name: RequestId, size: int) -> None:
        if found := self._open.get(name):
            found.unread -= size

    def _take(self, message: Message, line: bytes) -> None:
        del line  # what is in it has other names for the client
        if isinstance(message, Response):
            self._answer(message)
        elif isinstance(message, Notification):
            self._tell(message)

    def _answer(self, response: Response) -> None:
        found = self._open.pop(response.id, None)
        if found is None:
            return
        outcome = response.outcome
        if isinstance(outcome, RpcError):
            data, code = encode_error(found.id, outcome), outcome.code
        else:
            result = _renamed(outcome, found.id) if found.listens else outcome
            data, code = encode_result(found.id, result), 0
        said = Said(data.strip(), last=True, code=code)
        if not found.held.take(len(said.data)):
            data = encode_error(found.id, _DROPPED)
            said = Said(data.strip(), last=True, code=_DROPPED.code, is_dropped=True)
        found.out.send_nowait(said)
        found.out.close()

    def _tell(self, note: Notification) -> None:
        """To the request that it names; a client that does not read is told no more."""
        params = mapping(_decode(note.params or b"{}"))
        meta = mapping(params.get("_meta"))
        if "progressToken" in params:
            found = self._open.get(cast("RequestId", params["progressToken"]))
            told: dict[str, object] = {**params, "progressToken": found.token if found else None}
        else:
            found = self._open.get(cast("RequestId", meta.get(SUBSCRIPTION_ID)))
            shown = {**meta, SUBSCRIPTION_ID: found.id if found else None}
            told = {**params, "_meta": shown}
        data = encode_notification(note.method, to_json(told)).strip()
        if found is not None and found.unread + len(data) <= _UNREAD_BYTES:
            found.unread += len(data)
            found.out.send_nowait(Said(data))

    def end_streams(self) -> None:
        for found in self._open.values():
            data = encode_error(found.id, _PROCESS_ENDED).strip()
            found.out.send_nowait(Said(data, last=True, code=_PROCESS_ENDED.code))
            found.out.close()
        self._open.clear()


def _renamed(result: Raw, request_id: RequestId) -> bytes:
    """The result of a subscription, with the client's own name for it."""
    fields = dict(mapping(_decode(result)))
    meta = mapping(fields.get("_meta"))
    if SUBSCRIPTION_ID in meta:
        fields["_meta"] = {**meta, SUBSCRIPTION_ID: request_id}
    return to_json(fields)
