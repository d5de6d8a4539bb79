"""A conversation over HTTP: each message that we send is a request of its own.

What goes wrong with one message ends that one and nothing else. How answers come back, and what
shows that the server is gone, is for the two transports to say.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.base import (
    Era,
    LogLine,
    LogSource,
    Loss,
    OnProgress,
    Params,
    SessionIds,
    Sink,
)
from emceepee_stdio.backends.channels.conversation import Conversation
from emceepee_stdio.backends.channels.event_stream import EventStream, OversizedEvent, ServerEvent
from emceepee_stdio.backends.channels.http_carrier import EVENTS, JSON, Answer, Carrier, TooMuch
from emceepee_stdio.backends.channels.http_errors import (
    HttpRefused,
    excerpt,
    nameless_error,
    said,
)
from emceepee_stdio.backends.channels.http_headers import HeaderMaps
from emceepee_stdio.backends.eras import MODERN_VERSION
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.wire.codec import (
    Notification,
    Request,
    RequestId,
    Response,
    RpcError,
    decode,
    encode_notification,
    salvage_id,
)
from emceepee_stdio.wire.peer import Outcome, Overdue, TooLarge

__all__ = ["REFUSAL_BYTES", "HttpConversation"]

REFUSAL_BYTES = 1 << 20

_OWN_WORD = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)


class _Cancelled(msgspec.Struct, rename="camel"):
    request_id: int | str = ""


class HttpConversation(Conversation):
    """A conversation whose messages travel by POST. Its tasks live in the channel's group."""

    pid = None

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        tasks: TaskGroup,
        *,
        sink: Sink,
        clock: Clock,
        proxy_id: str,
        max_message: int,
        header_maps: HeaderMaps,
    ) -> None:
        super().__init__(name, sink=sink, clock=clock, proxy_id=proxy_id, max_line=max_message)
        self._carrier = carrier
        self._tasks = tasks
        self._max_message = max_message
        self._header_maps = header_maps
        self._session_id: str | None = None
        self._posts: dict[RequestId, anyio.CancelScope] = {}
        self._speaking: RequestId | None = None
        self._is_open = False
        self._why: Loss | None = None
        self._ended = anyio.Event()

    def __repr__(self) -> str:
        state = "lost" if self._ended.is_set() else "open"
        return f"<{type(self).__name__} {self._name} {self.era.value} {state} {self.statistics()}>"

    @property
    def session(self) -> SessionIds:
        return SessionIds(proxy_id=self._proxy_id, upstream_id=self._session_id)

    def statistics(self) -> dict[str, int]:
        """What is under way, for looking in."""
        return {"posts": len(self._posts), "waiting": self._peer.statistics().sent}

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw:
        result = await super().request(
            method, params, within=within, call=call, on_progress=on_progress
        )
        if method == "tools/list" and self.era is Era.MODERN:
            self._header_maps.learn(result)
        return result

    async def ask(self, method: str, params: Params, within: float) -> Outcome:
        """A request of the opening. It cannot be taken back, so when overdue its POST is ended."""
        outcome = await super().ask(method, params, within)
        if isinstance(outcome, Overdue):
            for scope in self._posts.values():
                scope.cancel()
        return outcome

    async def lost(self) -> Loss:
        """Serve until the server cannot be reached or forgets us; then say why."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._caller.keep_time)
            await self._ended.wait()
            tasks.cancel_scope.cancel()
        return self._loss()

    async def initialized(self) -> None:
        """The last word of the handshake, delivered before anything else is asked."""
        await self._send(encode_notification("notifications/initialized", None))

    def opened(self) -> None:
        """The opening is done: from now on the connection may get lost."""
        self._is_open = True

    async def leave(self) -> None:
        """End what is in flight."""
        self._is_open = False
        self._peer.close(f"The connection to {self._name} was closed.")

    def end(self, fact: str) -> None:
        """The connection is lost: everything in flight ends with it."""
        if not self._ended.is_set():
            self._why = Loss(fact=fact)
            self._ended.set()
            self._peer.close(fact)

    def _loss(self) -> Loss:
        return self._why or Loss(fact=f"The connection to {self._name} was closed.")

    def _asking_call(self) -> object:
        return None if self._speaking is None else self._calls.get(self._speaking)

    # Tasks

    def _start(
        self, work: Callable[[], Awaitable[object]], failed: Callable[[ProxyError], None]
    ) -> None:
        self._tasks.start_soon(self._safely, work, failed)

    async def _safely(
        self, work: Callable[[], Awaitable[object]], failed: Callable[[ProxyError], None]
    ) -> None:
        """Nothing that goes wrong with one message may reach the others."""
        try:
            await work()
        except ProxyError as error:
            failed(error)
        except Exception as error:  # noqa: BLE001 - it would end every call of this server
            failed(CallFailed(f"{self._name} could not be talked to: {said(error)}."))

    # Sending

    def _write(self, data: bytes) -> None:
        for message in decode(data):
            if isinstance(message, Request):
                # The scope exists before the task runs: it may be taken back before that.
                scope = self._posts[message.id] = anyio.CancelScope()
                self._tasks.start_soon(self._exchange, data, message, scope)
            elif not self._ends_post(message):
                self._start(partial(self._send, data), self._note_failure)

    def _ends_post(self, message: object) -> bool:
        """Taking back a request ends its POST; in the modern era that is all there is to it."""
        if not isinstance(message, Notification) or message.method != "notifications/cancelled":
            return False
        cancelled = msgspec.json.decode(message.params or b"{}", type=_Cancelled)
        scope = self._posts.get(cancelled.request_id)
        if scope is not None:
            scope.cancel()
        return self.era is Era.MODERN

    def _headers(self, message: Request | None) -> dict[str, str]:
        headers = {"accept": f"{JSON}, {EVENTS}", "content-type": JSON}
        if message is not None and message.method == "initialize":
            return headers
        if self._session_id is not None:
            headers["mcp-session-id"] = self._session_id
        if self.era is Era.MODERN:
            headers["mcp-protocol-version"] = MODERN_VERSION
            headers |= self._header_maps.headers(message) if message else {}
        elif hasattr(self, "hello"):
            headers["mcp-protocol-version"] = self.hello.protocol_version
        return headers

    def _stream_headers(self, stream: EventStream) -> dict[str, str]:
        headers = {**self._headers(None), "accept": EVENTS}
        del headers["content-type"]
        if stream.last_id is not None:
            headers["last-event-id"] = stream.last_id
        return headers

    async def _send(self, data: bytes) -> None:
        """A notification or an answer: nothing comes back but a status."""
        async with self._carrier.post(data, self._headers(None)) as answer:
            await answer.drain(self._carrier.times.probe)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                self._note(f"a message was refused with HTTP status {answer.status}")
                self._check_session(answer)

    def _note_failure(self, error: ProxyError) -> None:
        self._note(f"a message could not be delivered: {error.fact}")
        self._suspect(error)

    async def _exchange(self, data: bytes, request: Request, scope: anyio.CancelScope) -> None:
        """Post a request and hear it out; whatever goes wrong is this request's own affair."""

        def failed(error: ProxyError) -> None:
            self._peer.give_up(request.id, error)
            self._suspect(error)

        with scope:
            await self._safely(partial(self._post, data, request), failed)
        if self._posts.get(request.id) is scope:
            del self._posts[request.id]

    @abstractmethod
    async def _post(self, data: bytes, request: Request) -> None:
        """Deliver a request, and take its answer where it comes on the same way."""

    @abstractmethod
    def _suspect(self, error: ProxyError | None = None) -> None:
        """Something went wrong: it may be that the server is gone."""

    # Receiving

    async def _refused(self, answer: Answer, request: Request) -> None:
        """A status that is no success: the error in its body, if it is one, else the status."""
        if self._check_session(answer):
            return
        try:
            body = await answer.body(REFUSAL_BYTES)
        except TooMuch:
            body = b""
        error = None if answer.status in _OWN_WORD else _error_in(body)
        if error is None:
            raise HttpRefused(
                self._name,
                answer.status,
                detail=excerpt(body, answer.kind),
                wait=self._carrier.wait(answer),
            )
        self._peer.give_up(request.id, error)

    def _check_session(self, answer: Answer) -> bool:
        """A handshake session that the server no longer knows is over for everybody."""
        forgotten = answer.status == HTTPStatus.NOT_FOUND and self._session_id is not None
        if forgotten:
            self.end(f"{self._name} has forgotten the session.")
        return forgotten

    def _take_message(self, data: bytes, request_id: RequestId | None) -> None:
        """One message, and on whose POST it came."""
        self._speaking = request_id
        try:
            self._peer.take(data)
        finally:
            self._speaking = None

    def _take_event(
        self, event: ServerEvent | OversizedEvent, request_id: RequestId | None
    ) -> None:
        if isinstance(event, ServerEvent):
            if event.kind == "message":
                self._take_message(event.data, request_id)
            return
        self._note(f"an event of {event.size} bytes was dropped")
        answered, asks = salvage_id(event.head, event.tail)
        if not asks:
            ended = answered if request_id is None else request_id
            self._peer.give_up("" if ended is None else ended, TooLarge(event.size))

    def _note(self, text: str) -> None:
        self._sink.log(self._name, LogLine(source=LogSource.PROTOCOL, text=text, level="warning"))


def _error_in(body: bytes) -> RpcError | None:
    """The JSON-RPC error in the body of a refusal."""
    for message in decode(body):
        if isinstance(message, Response) and isinstance(message.outcome, RpcError):
            return message.outcome
    return nameless_error(body)
