"""An HTTP session: its process, an `emceepee serve` of its own, and who waits for what it says.

In the handshake era one client has the session. What its process says goes to stored streams: an
answer and progress to that of their request, a question to that of the call for which it is asked,
all else to the stream that the client opens by GET. A call goes on while its client is away. A
question that no client reads moves to the stream that is read; where there is none, the process is
told so after a while, and leaves it to the tools.

In the modern era several clients may share it, so ids, progress tokens and the ids of subscriptions
are ours on its wire, and the client's own again in what is said to it. A call lives as long as its
connection.

The process ends by the end of its input, and so do its servers, however this process ends. One that
hangs or is stopped cannot, and is killed by the watchdog.
"""

import os
import secrets
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Generator, KeysView, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TextIO, cast

import anyio
import msgspec
from msgspec import Raw

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.front.http.http_exchange import HeldBytes
from emceepee_stdio.front.http.stored_streams import (
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    REQUEST_LOST,
    EventStore,
    StoredEvent,
    StoredStream,
    event_frame,
)
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.versions import (
    CLIENT_CAPABILITIES,
    HTTP_REQUEST,
    MODERN_VERSION,
    NO_READER,
    PROTOCOL_VERSION,
    SUBSCRIPTION_ID,
)
from emceepee_stdio.visible_text import on_one_line
from emceepee_stdio.wire.codec import (
    Message,
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
    to_json,
)
from emceepee_stdio.wire.framing import Lines, Oversized
from emceepee_stdio.wire.process import Listener, Process, Spawn, StopTimes
from emceepee_stdio.wire.timing import Wakeup

SHOWN_CHARS = 8  # of a session's id, which is half of what its client proves itself by
STOP_TIMES = StopTimes(term=10.0, kill=15.0)  # it ends its own servers first, each within its time
_MAX_INPUT_BYTES = 16 << 20  # that it has not read: it reads all the time, unless it hangs
_MAX_UNREAD_BYTES = 1 << 20  # of notifications for one request
_LISTEN = "subscriptions/listen"
_RETRY_MS = 500  # after which a client comes back whose stream was cut

_PREFIX_BYTES = 8  # of our own request ids: no client guesses them
_MAX_STATUS_BYTES = 1 << 20
_STATUS_WAIT_S = 5.0  # it is read from memory
_STATUS_PARAMS: Mapping[str, object] = {
    "uri": "emceepee://status",
    "_meta": {PROTOCOL_VERSION: MODERN_VERSION, CLIENT_CAPABILITIES: {}},
}

_CANCELLED = RpcError(-32800, "Request cancelled", None)
_SESSION_ENDED = RpcError(REQUEST_LOST, "The session has ended. Begin a new one.", None)
_PROCESS_ENDED = RpcError(
    REQUEST_LOST, "The process behind this address has ended. Try again.", None
)
ANSWER_DROPPED = RpcError(
    REQUEST_LOST,
    "The call was made, but its answer is lost: too many answers for this token are not read yet.",
    None,
)


@contextmanager
def lasting_stderr() -> Generator[None]:
    """Write to stderr in it; where that fails, all that is written later goes nowhere."""
    if sys.stderr is None:  # it was closed before we began
        sys.stderr = _nowhere()
    try:
        yield
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")


class _Meta(msgspec.Struct):
    token: int | str | None = msgspec.field(name="progressToken", default=None)


class _Params(msgspec.Struct):
    meta: _Meta = msgspec.field(name="_meta", default_factory=_Meta)


@dataclass(eq=False, slots=True, kw_only=True)
class StoredCall:
    """A request of the handshake era: what is said to it is stored in `stream`."""

    id: RequestId | None
    token: RequestId | None = None
    stream: StoredStream
    store: EventStore
    is_awaited = True

    def tell(self, note: Notification, _: Mapping[str, object]) -> None:
        self.store.add(self.stream, encode_notification(note.method, note.params).strip())

    def answer(self, outcome: Raw | RpcError) -> None:
        """The last word on it; its stream is over once all of its calls have theirs."""
        self.store.add(self.stream, _encoded(self.id, outcome), answers=self.id)
        self.stream.awaited -= 1
        if not self.stream.awaited:
            self.stream.finish()


@dataclass(eq=False, slots=True, kw_only=True)
class LiveCall:
    """A request that lives as long as its connection: first notifications, then the answer."""

    id: RequestId  # at the process
    clients_id: RequestId
    clients_token: object = None
    held: HeldBytes
    is_awaited: bool = True  # the answer; a request that listens has none for long
    notes: deque[bytes] = field(default_factory=deque[bytes])
    unread: int = 0  # bytes of notifications that are not written yet
    is_over: bool = False
    whole_answer: bytes = b""
    error: RpcError | None = None  # if that is the answer
    _news: Wakeup = field(default_factory=Wakeup)

    @property
    def token(self) -> RequestId | None:
        """The progress token that the process has."""
        return None if self.clients_token is None else self.id

    def tell(self, note: Notification, params: Mapping[str, object]) -> None:
        """Under the client's own names; a client that does not read gets no more."""
        if "progressToken" in params:
            params = {**params, "progressToken": self.clients_token}
        data = encode_notification(note.method, to_json(self._renamed(params))).strip()
        if self.unread + len(data) <= _MAX_UNREAD_BYTES:
            self.unread += len(data)
            self.notes.append(data)
            self._news.wake()

    def answer(self, outcome: Raw | RpcError) -> None:
        if not self.is_awaited and not isinstance(outcome, RpcError):
            outcome = Raw(to_json(self._renamed(mapping(decoded(outcome, object)))))
        answer = _encoded(self.clients_id, outcome)
        if not self.held.take(len(answer)):
            outcome = ANSWER_DROPPED
            answer = _encoded(self.clients_id, outcome)
        self.whole_answer = answer
        self.error = outcome if isinstance(outcome, RpcError) else None
        self.is_over = True
        self._news.wake()

    def _renamed(self, fields: Mapping[str, object]) -> Mapping[str, object]:
        """The same, with the client's own name for its subscription."""
        meta = mapping(fields.get("_meta"))
        if SUBSCRIPTION_ID not in meta:
            return fields
        return {**fields, "_meta": {**meta, SUBSCRIPTION_ID: self.clients_id}}

    async def wait(self) -> None:
        """Until there is something to write, or there was nothing for a while."""
        with anyio.move_on_after(KEEP_ALIVE_S):
            await self._news.wait_for(lambda: self.notes or self.is_over)

    async def events(self) -> AsyncGenerator[bytes]:
        while self.notes or not self.is_over:
            if self.notes:
                note = self.notes.popleft()
                yield event_frame(note)
                self.unread -= len(note)
            else:
                yield KEEP_ALIVE
            await self.wait()
        yield event_frame(self.whole_answer)


def _encoded(request_id: RequestId | None, outcome: Raw | RpcError) -> bytes:
    if isinstance(outcome, RpcError):
        return encode_error(request_id, outcome).strip()
    return encode_result(cast("RequestId", request_id), outcome).strip()


@dataclass(eq=False, slots=True)
class _Question:
    """What the process asks its client, and where that stands."""

    line: bytes
    stream: StoredStream
    event: StoredEvent
    was_unread: bool = False  # at the last look

    @property
    def is_unread(self) -> bool:
        return not (self.event.is_read or self.stream.is_read)


_UNREAD = RpcError(NO_READER, "The client reads no stream.", None)
_Calls = dict[RequestId | None, StoredCall | LiveCall]  # None finds nothing


class HttpSession:
    """One process, for the token `owner` at `path`; `is_shared` in the modern era."""

    def __init__(
        self, *, name: str, owner: str, path: str, store: EventStore, is_shared: bool
    ) -> None:
        self.name = name
        self.owner = owner
        self.path = path
        self.store = store
        self.is_shared = is_shared
        self.key = (owner, path) if is_shared else name  # by which it is found
        self.used_at = 0.0
        self.is_used = is_shared  # its client has come back after the handshake
        self.readers = 0
        self.over = anyio.Event()
        self._unasked = StoredCall(id=None, stream=StoredStream(), store=store)
        self._calls: _Calls = {}  # by their ids at the process
        self._tokens: _Calls = {}  # by their progress tokens there
        self._questions: dict[RequestId | None, _Question] = {}
        self._numbers = count(1)
        self._prefix = secrets.token_hex(_PREFIX_BYTES)
        self._lines = Lines()
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<HttpSession {self.name[:SHOWN_CHARS]} {len(self._calls)} calls {self._process!r}>"

    @property
    def unasked(self) -> StoredStream:
        """What no request asked for."""
        return self._unasked.stream

    @property
    def calls(self) -> int:
        return sum(call.is_awaited for call in self._calls.values())

    @property
    def ids(self) -> KeysView[RequestId | None]:
        """Of requests that are under way."""
        return self._calls.keys()

    # Its process

    async def start(self, spawn: Spawn) -> int:
        """The process's id."""
        listener = Listener(on_stdout=self._read, on_stderr=self._note, on_end=self.end)
        self._process = await Process.start(spawn, listener)
        return self._process.pid

    def end(self) -> None:
        """The process has ended, or is to end: nothing more comes for a client."""
        if self.over.is_set():
            return
        self.over.set()
        self.unasked.finish()
        for name in list(self._calls):
            self._answer(name, _PROCESS_ENDED if self.is_shared else _SESSION_ENDED)

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(STOP_TIMES)

    async def is_busy(self) -> bool:
        """Whether something goes on inside for which no request waits."""
        name = f"{self._prefix}:{next(self._numbers)}"
        held = HeldBytes(Counter(), self.owner, _MAX_STATUS_BYTES)
        call = LiveCall(id=name, clients_id=name, held=held, is_awaited=False)
        with suppress(CallFailed), anyio.move_on_after(_STATUS_WAIT_S):  # if it hangs, it is not
            self._begin(call, encode_request(name, "resources/read", _STATUS_PARAMS).strip())
            await call.wait()
        self._forget(name)
        result = mapping(mapping(decoded(call.whole_answer, object)).get("result"))
        for content in elements(result.get("contents")):
            status = mapping(decoded(str(mapping(content).get("text")), object))
            if status.get("working_tasks") or status.get("active_timers"):
                return True
        return False

    def _write(self, line: bytes) -> None:
        """A message, which has no line ends."""
        if self._process is None:
            return
        if self.over.is_set():
            raise CallFailed("The session has ended.")
        if self._process.stdin.pending > _MAX_INPUT_BYTES:
            raise CallFailed("The session's process does not read what it is sent.")
        self._process.stdin.write(line + b"\n")

    def _read(self, data: bytes) -> None:
        for line in self._lines.feed(data):
            for message in () if isinstance(line, Oversized) else decode(line):
                self._take(message)

    def _note(self, text: str) -> None:
        with lasting_stderr():
            line = on_one_line(text.removeprefix("emceepee: "))
            sys.stderr.write(f"emceepee [{self.name[:SHOWN_CHARS]}]: {line}\n")

    # What clients say

    def send(
        self, messages: Sequence[Message], body: bytes, *, primes: bool = False
    ) -> StoredStream:
        """Pass on a body of the handshake era; the stream of the answers, if it asks for any.

        `primes`: an event without a message comes first, by whose id the stream can be resumed.
        """
        self._write(body)
        stream = StoredStream(awaited=sum(isinstance(message, Request) for message in messages))
        if primes and stream.awaited:
            self.store.add(stream, b"", retry_ms=_RETRY_MS)
        for message in messages:
            if isinstance(message, Request):
                params = decoded(message.params or b"{}", _Params)
                token = params.meta.token if params else None
                call = StoredCall(id=message.id, token=token, stream=stream, store=self.store)
                self._remember(call)
            elif isinstance(message, Response):
                self._questions.pop(message.id, None)
            elif isinstance(message, Notification) and message.method == "notifications/cancelled":
                # A call that is taken back gets no answer from the process.
                self._answer(_id(_params(message).get("requestId")), _CANCELLED)
        return stream

    def initialize(self, request: Request, body: bytes, held: HeldBytes) -> LiveCall:
        """Begin the handshake era."""
        return self._begin(LiveCall(id=request.id, clients_id=request.id, held=held), body)

    def request(self, body: Mapping[str, object], held: HeldBytes) -> LiveCall:
        """Pass on a request of the modern era, under an id of ours, until `finish`."""
        number = next(self._numbers)
        params = mapping(body.get("params"))
        meta = mapping(params.get("_meta"))
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": number}}
        call = LiveCall(
            id=number,
            clients_id=cast("RequestId", body["id"]),
            clients_token=token,
            held=held,
            is_awaited=body.get("method") != _LISTEN,
        )
        self._begin(call, to_json({**body, "id": number, "params": params}))
        self.readers += 1
        return call

    def finish(self, call: LiveCall) -> None:
        """All is written, or its client has gone: then the call is taken back."""
        self.readers -= 1
        if self._forget(call.id) is not None:
            note = encode_notification("notifications/cancelled", to_json({"requestId": call.id}))
            with suppress(CallFailed):  # it hangs, and will not know
                self._write(note.strip())

    def _begin(self, call: LiveCall, line: bytes) -> LiveCall:
        self._write(line)
        self._remember(call)
        return call

    def _remember(self, call: StoredCall | LiveCall) -> None:
        self._calls[call.id] = call
        if call.token is not None:
            self._tokens[call.token] = call

    def _forget(self, request_id: RequestId | None) -> StoredCall | LiveCall | None:
        call = self._calls.pop(request_id, None)
        if call is not None:
            self._tokens.pop(call.token, None)
        return call

    # What its process says

    def _take(self, message: Message) -> None:
        if isinstance(message, Response):
            self._answer(message.id, message.outcome)
        elif isinstance(message, Notification):
            self._tell(message)
        elif isinstance(message, Request) and not self.is_shared:
            self._ask(message)

    def _answer(self, request_id: RequestId | None, outcome: Raw | RpcError) -> None:
        if call := self._forget(request_id):
            call.answer(outcome)

    def _tell(self, note: Notification) -> None:
        params = _params(note)
        if "progressToken" in params:
            call = self._tokens.get(_id(params["progressToken"]))
        elif note.method == "notifications/cancelled":
            asked = self._questions.pop(_id(params.get("requestId")), None)
            if asked is not None and not asked.stream.is_over:
                self.store.add(asked.stream, encode_notification(note.method, note.params).strip())
                return
            call = None
        else:
            call = self._calls.get(_id(mapping(params.get("_meta")).get(SUBSCRIPTION_ID)))
        if call is not None or not self.is_shared:
            (call or self._unasked).tell(note, params)

    def _ask(self, request: Request) -> None:
        """A question: on the stream of its call, without the mark that names it."""
        params = _params(request)
        meta = dict(mapping(params.pop("_meta", None)))
        found = self._calls.get(_id(meta.pop(HTTP_REQUEST, None)))
        call = found if isinstance(found, StoredCall) else self._unasked
        if meta:
            params["_meta"] = meta
        line = encode_request(request.id, request.method, params or None)
        self._put(request.id, line.strip(), call.stream)
        self.ask_again()

    def _put(self, request_id: RequestId | None, line: bytes, stream: StoredStream) -> None:
        self._questions[request_id] = _Question(line, stream, self.store.add(stream, line))

    def ask_again(self, *, everything: bool = False) -> None:
        """Move to the stream that no request asked for what it alone can bring to the client.

        `everything`: the client began again, and knows of nothing that it was asked.
        """
        for request_id, asked in list(self._questions.items()):
            moves = asked.is_unread and self.unasked.is_read
            if everything or (moves and asked.stream is not self.unasked):
                self.store.take_back(asked.event)
                self._put(request_id, asked.line, self.unasked)

    def give_up_unread(self) -> None:
        """Refuse what no client read between two looks: the process leaves it to the tools."""
        for request_id, asked in list(self._questions.items()):
            if request_id is not None and asked.is_unread and asked.was_unread:
                del self._questions[request_id]
                self.store.take_back(asked.event)
                with suppress(CallFailed):  # it hangs
                    self._write(encode_error(request_id, _UNREAD).strip())
            asked.was_unread = asked.is_unread


def _params(message: Request | Notification) -> dict[str, object]:
    return dict(mapping(decoded(message.params or b"{}", object)))


def _id(value: object) -> RequestId | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
