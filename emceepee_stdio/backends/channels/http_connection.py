"""One connection over Streamable HTTP: a POST for each message, a GET to listen, streams resumed.

The connection is lost only when the server cannot be reached at all, or has forgotten the session.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from urllib.parse import urljoin

import anyio
from anyio.abc import TaskGroup

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.backends.channels.event_stream import EventStream, OversizedEvent, ServerEvent
from emceepee_stdio.backends.channels.http_carrier import (
    EVENTS,
    JSON,
    Answer,
    Carrier,
    HeaderMaps,
    HttpOptions,
    TooMuch,
)
from emceepee_stdio.backends.channels.http_errors import (
    BrokenOff,
    HttpRefused,
    NotMcp,
    Unreachable,
    challenge,
    excerpt,
    is_same_origin,
    nameless_error,
    said,
)
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.eras import stamp
from emceepee_stdio.backends.interface import (
    Emit,
    Era,
    Loss,
    NotTaken,
    Params,
    SessionIds,
    SignInWanted,
)
from emceepee_stdio.errors import CallFailed, ProxyError, ServerFailed
from emceepee_stdio.journal import redact_url
from emceepee_stdio.versions import MODERN_VERSION
from emceepee_stdio.wire.codec import (
    RequestId,
    Response,
    RpcError,
    decode,
    encode_notification,
    encode_request,
    salvage_id,
)
from emceepee_stdio.wire.peer import OutgoingRequest, TooLarge

# A conversation over HTTP: each message that we send is a request of its own.
#
# What goes wrong with one message ends that one and nothing else. How answers come back, and what
# shows that the server is gone, is for the two transports to say.


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
        carrier: Carrier,
        tasks: TaskGroup,
        *,
        emit: Emit,
        proxy_id: str,
        header_maps: HeaderMaps,
    ) -> None:
        clock, self._options = carrier.clock, carrier.options
        most = self._options.max_message
        super().__init__(carrier.server, emit=emit, clock=clock, proxy_id=proxy_id, max_line=most)
        self._carrier = carrier
        self._tasks = tasks
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
        within = self._options.network
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
            await answer.drain(self._options.probe)
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
                    error = error.turned_into(NotTaken)
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
        asked, bearer = answer.header("www-authenticate"), self._options.bearer
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


_PROBE = "emceepee-probe"
_MAX_RESUMES = 5  # in a row without a stream: the server has lost the request
_MIN_PAUSE_S = 0.05  # `retry: 0` must not make us spin
_MAX_DOUBLINGS = 10  # the cap is reached long before; it keeps the power small
_NO_GET_STREAM = (
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_ACCEPTABLE,
    HTTPStatus.NOT_IMPLEMENTED,
)
_FIRST_SERVER_ERROR = HTTPStatus.INTERNAL_SERVER_ERROR
_NO_SESSION = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND)


class HttpConnection(HttpConversation):
    """A conversation by Streamable HTTP, in either era."""

    _probing: anyio.Event | None = None

    def opened(self) -> None:
        super().opened()
        if self.era is Era.LEGACY:
            self._start(self._listen, self._failed)

    async def leave(self) -> None:
        """End what is in flight, and tell the server that its session is over."""
        await super().leave()
        if self._session_id is not None and self.is_left:
            await self._failure_in(partial(self._carrier.delete, self._headers(None)))

    # Answers

    async def _post(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        async with self._carrier.post(line, self._headers(request)) as answer:
            self._has_status(request_id)
            if answer.status >= HTTPStatus.BAD_REQUEST:
                await self._refused(answer, request_id)
            elif answer.status in (HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT):
                raise CallFailed(
                    f"{self._name} took the request (HTTP status {answer.status}), "
                    "but does not answer it."
                )
            elif answer.kind == EVENTS:
                self._take_session(answer, request)
                await self._take_stream(answer, request_id)
            elif answer.kind == JSON:
                self._take_session(answer, request)
                await self._take_body(answer, request_id)
            else:
                shown = answer.kind or f"HTTP status {answer.status} and no content type"
                raise NotMcp(f"{self._name} answered with {shown}, which is not MCP.")

    def _take_session(self, answer: Answer, request: OutgoingRequest) -> None:
        if request.method == "initialize":
            self._session_id = answer.header("mcp-session-id") or None

    async def _take_body(self, answer: Answer, request_id: RequestId) -> None:
        try:
            body = await answer.body(self._options.max_message, self._options.partial)
        except TooMuch as much:
            self._peer.give_up(request_id, TooLarge(much.size))
            return
        self._peer.take(body, request_id)
        if self._peer.waits_for(request_id):
            raise CallFailed(f"{self._name} sent something else than an answer to this request.")

    async def _refused(self, answer: Answer, request_id: RequestId) -> None:
        if answer.status == HTTPStatus.BAD_REQUEST and self._session_id is not None:
            # It may mean that the session is over: only then is it everybody's affair.
            self._untaken.add(request_id)
            await self._probe_or_end()
            self._untaken.discard(request_id)
        if self.loss is None:
            await super()._refused(answer, request_id)

    # Streams

    async def _take_stream(self, answer: Answer, request_id: RequestId) -> None:
        """Events until the request is answered; a stream that breaks off is taken up again."""
        stream = EventStream(max_bytes=self._options.max_message, partial=self._options.partial)
        await self._read_events(answer, stream, request_id)
        failures = 0
        while self._peer.waits_for(request_id):
            if stream.last_id is None or failures >= _MAX_RESUMES or self.era is Era.MODERN:
                raise BrokenOff(f"{self._name} ended the stream before it had answered.")
            await anyio.sleep(pause_before_reopening(stream, options=self._options))
            failures += 1
            try:
                async with self._carrier.listen(self._stream_headers(stream)) as resumed:
                    if resumed.is_stream:
                        failures = 0
                        stream = stream.again()
                        await self._read_events(resumed, stream, request_id)
                    elif self._check_session(resumed) or _is_final(resumed):
                        failures = _MAX_RESUMES
            except (Unreachable, BrokenOff) as error:
                self._suspect(error)

    async def _read_events(
        self, answer: Answer, stream: EventStream, request_id: RequestId | None
    ) -> None:
        """Until the stream ends, by itself or by accident, or its request is answered."""

        def take(chunk: bytes) -> bool:
            for event in stream.feed(chunk):
                self._take_event(event, request_id)
            return request_id is None or self._peer.waits_for(request_id)

        try:
            await answer.read(take)
        except BrokenOff as error:
            self.note(f"a stream broke off: {error.fact}")
            self._suspect(error)

    async def _listen(self) -> None:
        """Hold the listening stream open for as long as the connection lives."""
        stream = EventStream(max_bytes=self._options.max_message, partial=self._options.partial)
        misses = 0
        while True:
            wait: float | None = None
            try:
                async with self._carrier.listen(self._stream_headers(stream)) as answer:
                    if not self._may_listen(answer):
                        return
                    wait = self._carrier.wait(answer)
                    stream = stream.again()
                    if answer.is_stream:
                        await self._read_events(answer, stream, None)
            except ProxyError as error:
                self._suspect(error)
            misses = 0 if stream.has_data else misses + 1
            stream.has_data = False
            pause = pause_before_reopening(stream, misses, options=self._options)
            await anyio.sleep(max(wait or 0.0, pause))

    def _may_listen(self, answer: Answer) -> bool:
        """Not every server speaks unasked; one that forgot the session shows it to the probe."""
        if answer.status == HTTPStatus.NOT_FOUND:
            self._suspect()
        if answer.status == HTTPStatus.OK:
            return answer.is_stream
        return answer.status not in _NO_GET_STREAM

    # Doubt

    async def _see_if_alive(self, error: ProxyError) -> None:
        if _is_on_the_way(error):
            await self._probe_or_end()

    def _suspect(self, error: ProxyError | None = None) -> None:
        """Something failed on the way: see whether the server is still there."""
        if error is None or _is_on_the_way(error):
            self._start(self._probe_or_end, self._failed)

    async def _probe_or_end(self) -> None:
        """One probe at a time; who comes later waits for its outcome."""
        if self._probing is not None:
            await self._probing.wait()
        elif self._is_open and self.loss is None:
            self._probing = anyio.Event()
            try:
                if error := await self._failure_in(self._probe):
                    fact = f"{self._name} cannot be reached any more. {error.fact}"
                    await self.end_when_statuses_are_known(fact)
            finally:
                self._probing.set()
                self._probing = None

    async def _probe(self) -> None:
        """Any answer at all will do; silence is not a loss, an unreachable server is."""
        method = "ping" if self.era is Era.LEGACY else "server/discover"
        data = encode_request(_PROBE, method, stamp(self.era, None, progress_token=None))
        within = self._options.probe
        forgotten = False
        with anyio.move_on_after(within):
            headers = self._headers(OutgoingRequest(method=method))
            async with self._carrier.post(data, headers, connect=within) as answer:
                forgotten = await self._shows_no_session(answer)
        if forgotten:
            await self._forget()

    async def _shows_no_session(self, answer: Answer) -> bool:
        """Many servers say 400 instead of 404 when they do not know a session."""
        if self._session_id is None or answer.status not in _NO_SESSION:
            return False
        try:
            messages = decode(await answer.body(MAX_REFUSAL_BYTES))
        except TooMuch:
            return False
        return not any(isinstance(m, Response) and m.id == _PROBE for m in messages)


def pause_before_reopening(stream: EventStream, misses: int = 0, *, options: HttpOptions) -> float:
    """What the server said, or what is usual; longer and longer while no data comes."""
    pause = options.reopen if stream.retry is None else max(stream.retry, _MIN_PAUSE_S)
    return min(pause * 2 ** min(misses, _MAX_DOUBLINGS), options.reopen_cap)


def _is_final(answer: Answer) -> bool:
    """Whether asking for the stream again would bring the same refusal."""
    return answer.status < _FIRST_SERVER_ERROR and answer.status != HTTPStatus.TOO_MANY_REQUESTS


def _is_on_the_way(error: ProxyError) -> bool:
    return isinstance(error, Unreachable | BrokenOff)


# The transport that Streamable HTTP replaced: one stream to listen, a second address to speak to.
#
# Everything that the server says comes on the stream, so its end is the end of the connection.


class SseConnection(HttpConversation):
    """A conversation by the older transport."""

    _told: anyio.Event
    _failure_to_open: ProxyError | None = None

    async def open(self, within: float) -> None:
        """Start listening, and wait until the server says where to speak to."""
        self._told = anyio.Event()
        self._start(self._hear, self._refuse)
        with anyio.move_on_after(within):
            await self._told.wait()
        if self._failure_to_open is not None:
            raise self._failure_to_open
        if not self._told.is_set():
            raise ServerFailed(
                f"{self._name} named no endpoint on its event stream within {within:g} s.",
                hint="Check the URL: it must be the address of the SSE stream, often /sse.",
            )

    def _refuse(self, error: ProxyError) -> None:
        """The stream could not be opened, or broke: either way the connection is over."""
        self._failure_to_open = error
        self._told.set()
        self.end(error.fact)

    async def _hear(self) -> None:
        """The stream, from its opening to its end, which is the connection's."""
        stream = EventStream(max_bytes=self._options.max_message, partial=self._options.partial)
        async with self._carrier.listen(self._stream_headers(stream)) as answer:
            if answer.status != HTTPStatus.OK:
                raise self._refusal(answer, await answer.body(MAX_REFUSAL_BYTES))
            if not answer.is_stream:
                shown = answer.kind or "no content type"
                raise NotMcp(f"{self._name} answered with {shown}, which is not MCP.")
            await self._hear_events(answer, stream)
        self._refuse(ServerFailed(f"{self._name} ended its event stream."))

    async def _hear_events(self, answer: Answer, stream: EventStream) -> None:
        def take(chunk: bytes) -> bool:
            for event in stream.feed(chunk):
                if isinstance(event, ServerEvent) and event.kind == "endpoint":
                    self._take_endpoint(event.data.decode(errors="replace"))
                else:
                    self._take_event(event, None)
            return True

        await answer.read(take)

    def _take_endpoint(self, path: str) -> None:
        if not is_same_origin(self._carrier.url, path):
            raise NotMcp(
                f"{self._name} wants its messages sent elsewhere: {redact_url(path)}.",
                hint="If that is where the server is, use its URL.",
            )
        self._carrier.url = urljoin(self._carrier.url, path)
        self._told.set()

    async def _post(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        """The answer comes on the stream; here only a refusal does."""
        async with self._carrier.post(line, self._headers(request)) as answer:
            if answer.status >= HTTPStatus.BAD_REQUEST:
                await self._refused(answer, request_id)
            else:
                await answer.drain(self._options.probe)

    def _suspect(self, error: ProxyError | None = None) -> None:
        """The stream shows whether the server lives, unless it cannot even be spoken to."""
        if self._is_open and isinstance(error, Unreachable):
            self.end(f"{self._name} cannot be reached any more. {error.fact}")
