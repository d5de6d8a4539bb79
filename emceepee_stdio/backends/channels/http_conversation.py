"""A conversation over HTTP: each message that we send is a request of its own.

What goes wrong with one message ends that one and nothing else. How answers come back, and what
shows that the server is gone, is for the two transports to say.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus

import anyio
from anyio.abc import TaskGroup

from emceepee_stdio.auth.orders import SignInNeeded
from emceepee_stdio.backends.backend_events import Emit, SignInWanted
from emceepee_stdio.backends.base import Era, Loss, NotTaken, Params, SessionIds
from emceepee_stdio.backends.channels.event_stream import EventStream, OversizedEvent, ServerEvent
from emceepee_stdio.backends.channels.http_carrier import EVENTS, JSON, Answer, Carrier, TooMuch
from emceepee_stdio.backends.channels.http_errors import (
    HttpRefused,
    Unreachable,
    challenge,
    excerpt,
    nameless_error,
    said,
)
from emceepee_stdio.backends.channels.http_headers import HeaderMaps
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.versions import MODERN_VERSION
from emceepee_stdio.wire.codec import (
    RequestId,
    Response,
    RpcError,
    decode,
    encode_notification,
    salvage_id,
)
from emceepee_stdio.wire.peer import OutgoingRequest, TooLarge

__all__ = ["MAX_REFUSAL_BYTES", "HttpConversation"]

MAX_REFUSAL_BYTES = 1 << 20  # an error object fits many times; a page of HTML is cut off

_DESCRIBED_BY_US = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.TOO_MANY_REQUESTS)
_LAST_STATUS_S = 2.0  # for requests that were sent together: each is told by its own status
_MAX_SENDERS = 8  # sockets for notifications and answers of ours, beside those of the calls
_MAX_UNSENT = 1_000  # messages that wait for one of them; nobody honest asks so much at once
_UNSENT_BYTES = 1 << 20  # of them and of those on their way, as on a pipe


class HttpConversation(Connection):
    """A conversation whose messages travel by POST. Its tasks live in the channel's group."""

    def __init__(
        self,
        name: str,
        carrier: Carrier,
        tasks: TaskGroup,
        *,
        emit: Emit,
        clock: Clock,
        proxy_id: str,
        max_message: int,
        header_maps: HeaderMaps,
    ) -> None:
        super().__init__(name, emit=emit, clock=clock, proxy_id=proxy_id, max_line=max_message)
        self._carrier = carrier
        self._tasks = tasks
        self._max_message = max_message
        self._header_maps = header_maps
        self._session_id: str | None = None
        self._posts: dict[RequestId, anyio.CancelScope] = {}
        self._without_status: set[RequestId] = set()  # posted, and no status so far
        self._is_ending = False
        self._unsent: deque[bytes] = deque()
        self._unsent_bytes = 0  # of those on their way, too
        self._senders = 0
        self._is_open = False

    def __repr__(self) -> str:
        state = "open" if self.loss is None else "lost"
        return f"<{type(self).__name__} {self._name} {self.era.value} {state} {self.statistics()}>"

    @property
    def session(self) -> SessionIds:
        return SessionIds(proxy_id=self._proxy_id, upstream_id=self._session_id)

    def statistics(self) -> dict[str, int]:
        """What is under way, for looking in."""
        return {"posts": len(self._posts), "waiting": self._peer.statistics().sent}

    def take_tools(self, tools: tuple[Params, ...]) -> tuple[Params, ...]:
        if self.era is Era.LEGACY:
            return tools
        wrong = self._header_maps.learn(tools)
        if wrong:
            self.note(f"not listed, because of an x-mcp-header out of place: {', '.join(wrong)}")
        return tuple(tool for tool in tools if tool.get("name") not in wrong)

    async def initialized(self) -> None:
        """The last word of the handshake, delivered before anything else is asked."""
        await self._send(encode_notification("notifications/initialized", None))

    def opened(self) -> None:
        """The opening is done: from now on the connection may get lost."""
        self._is_open = True

    async def leave(self) -> None:
        """End what is in flight, and deliver what was answered at the last moment."""
        self._is_open = False
        self.close()
        async with anyio.create_task_group() as tasks:
            for _ in range(min(_MAX_SENDERS, len(self._unsent))):
                self._senders += 1
                tasks.start_soon(self._send_all)

    def end(self, fact: str, *, restarted: bool = False) -> None:
        """The connection is lost: everything in flight ends with it."""
        self.lose(Loss(fact=fact, restarted=restarted))

    async def end_when_statuses_are_known(self, fact: str, *, restarted: bool = False) -> None:
        """The connection is lost, as soon as it is known which requests were not taken."""
        self._is_ending = True
        with anyio.move_on_after(_LAST_STATUS_S):
            await self.wakeup.wait_for(lambda: not self._without_status or self.loss is not None)
        self.end(fact, restarted=restarted)

    # Tasks

    def _start(
        self, work: Callable[[], Awaitable[object]], failed: Callable[[ProxyError], None]
    ) -> None:
        async def run() -> None:
            if error := await self._failure_in(work):
                failed(error)

        self._tasks.start_soon(run)

    async def _failure_in(self, work: Callable[[], Awaitable[object]]) -> ProxyError | None:
        """Nothing that goes wrong with one message may reach the others."""
        try:
            await work()
        except ProxyError as error:
            return error
        except Exception as error:  # noqa: BLE001 - it would end every call of this server
            return CallFailed(f"{self._name} could not be talked to: {said(error)}.")
        return None

    # Sending

    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        # The scope exists before the task runs: it may be taken back before that.
        scope = self._posts[request_id] = anyio.CancelScope()
        self._without_status.add(request_id)
        self._tasks.start_soon(self._exchange, line, request_id, request, scope)

    def _write(self, data: bytes) -> None:
        """Each message takes a socket until the server has taken it: only so many at a time."""
        size = self._unsent_bytes + len(data)
        if len(self._unsent) >= _MAX_UNSENT or size > max(_UNSENT_BYTES, len(data)):
            self.note("an answer was dropped: the server does not take those before it")
            return
        self._unsent.append(data)
        self._unsent_bytes = size
        # Once we have left, the tasks of the connection end: `leave` sends what is answered now.
        if self._senders < _MAX_SENDERS and not self.is_left:
            self._senders += 1
            self._tasks.start_soon(self._send_all)

    async def _send_all(self) -> None:
        try:
            while self._unsent:
                await self._send_next(self._unsent.popleft())
        finally:
            self._senders -= 1

    async def _send_next(self, data: bytes) -> None:
        try:
            if error := await self._failure_in(partial(self._send_in_time, data)):
                self._note_failure(error)
        finally:
            self._unsent_bytes -= len(data)

    async def _send_in_time(self, data: bytes) -> None:
        within = self._carrier.times.network
        with anyio.move_on_after(within) as time:
            await self._send(data)
        if time.cancelled_caught:
            self.note(f"a message was not taken within {within:g} s")

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        """Ending its POST takes a request back; in the modern era that is all there is to it."""
        if scope := self._posts.get(request_id):
            scope.cancel()
        if self.era is Era.LEGACY:
            super().on_given_up(request_id, method, reason)

    def _headers(self, request: OutgoingRequest | None) -> dict[str, str]:
        headers = {"accept": f"{JSON}, {EVENTS}", "content-type": JSON}
        if request is not None and request.method == "initialize":
            return headers
        if self._session_id is not None:
            headers["mcp-session-id"] = self._session_id
        if self.era is Era.MODERN:
            headers["mcp-protocol-version"] = MODERN_VERSION
            headers |= self._header_maps.headers(request) if request else {}
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
                self.note(f"a message was refused with HTTP status {answer.status}")
                self._check_session(answer)

    def _note_failure(self, error: ProxyError) -> None:
        self.note(f"a message could not be delivered: {error.fact}")
        self._suspect(error)

    async def _exchange(
        self,
        line: bytes,
        request_id: RequestId,
        request: OutgoingRequest,
        scope: anyio.CancelScope,
    ) -> None:
        """Post a request and hear it out; whatever goes wrong is this request's own affair."""
        with scope:
            error = await self._failure_in(partial(self._post, line, request_id, request))
            if error is not None:
                if isinstance(error, Unreachable):
                    self._untaken.add(request_id)
                self._has_status(request_id)
                self._end_for_sign_in(error, request_id)
                await self._see_if_alive(error)
                if request_id in self._untaken:
                    error = NotTaken(error.fact, hint=error.next_step)
                self._peer.give_up(request_id, error)
                self._untaken.discard(request_id)
        self._has_status(request_id)
        if self._posts.get(request_id) is scope:
            del self._posts[request_id]

    def _has_status(self, request_id: RequestId) -> None:
        """There is a status, or there will be none."""
        self._without_status.discard(request_id)
        if self._is_ending:
            self.wakeup.wake()

    def _end_for_sign_in(self, error: ProxyError, request_id: RequestId) -> None:
        """Without a valid token nothing works any more; the refused request was not taken."""
        if not isinstance(error, SignInNeeded) or not self._is_open:
            return
        if error.is_step_up:  # only this request wants more
            self._emit(SignInWanted(error))
        else:
            self._untaken.add(request_id)
            self.lose(Loss(fact=error.fact, sign_in=error))

    @abstractmethod
    async def _post(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        """Deliver a request, and take its answer where it comes on the same way."""

    async def _see_if_alive(self, error: ProxyError) -> None:
        """A server that is gone is told as that, before any of its requests is told to fail."""
        self._suspect(error)

    @abstractmethod
    def _suspect(self, error: ProxyError | None = None) -> None:
        """Something went wrong: it may be that the server is gone."""

    # Receiving

    async def _refused(self, answer: Answer, request_id: RequestId) -> None:
        """A status that is no success: the error in its body, if it is one, else the status."""
        if self._check_session(answer, request_id):
            return
        try:
            body = await answer.body(MAX_REFUSAL_BYTES)
        except TooMuch:
            body = b""
        error = None if answer.status in _DESCRIBED_BY_US else _error_in(body)
        if error is None:
            raise self._refusal(answer, body)
        self._peer.give_up(request_id, error)

    def _refusal(self, answer: Answer, body: bytes) -> ProxyError:
        """A status that is no success: a person has to sign in, or what the server says of it."""
        asked, bearer = answer.header("www-authenticate"), self._carrier.bearer
        if bearer is not None and (needed := bearer.needed(answer.status, asked)):
            return needed
        told = (excerpt(body, answer.kind), challenge(asked))
        return HttpRefused(
            self._name,
            answer.status,
            detail="; ".join(filter(None, told)),
            wait=self._carrier.wait(answer),
        )

    def _check_session(self, answer: Answer, request_id: RequestId | None = None) -> bool:
        """A handshake session that the server no longer knows is over for everybody."""
        forgotten = answer.status == HTTPStatus.NOT_FOUND and self._session_id is not None
        if forgotten:
            if request_id is not None:
                self._untaken.add(request_id)
            self._start(self._forget, self._failed)
        return forgotten

    async def _forget(self) -> None:
        await self.end_when_statuses_are_known(
            f"{self._name} has forgotten the session.", restarted=True
        )

    def _failed(self, error: ProxyError) -> None:
        self.end(f"{self._name} was lost: {error.fact}")

    def _take_event(
        self, event: ServerEvent | OversizedEvent, request_id: RequestId | None
    ) -> None:
        if isinstance(event, ServerEvent):
            if event.kind == "message":
                self._peer.take(event.data, request_id)
            return
        self.note(f"an event of {event.size} bytes was dropped")
        answered, asks = salvage_id(event.head, event.tail)
        if not asks:
            ended = answered if request_id is None else request_id
            self._peer.give_up("" if ended is None else ended, TooLarge(event.size))


def _error_in(body: bytes) -> RpcError | None:
    """The JSON-RPC error in the body of a refusal."""
    for message in decode(body):
        if isinstance(message, Response) and isinstance(message.outcome, RpcError):
            return message.outcome
    return nameless_error(body)
