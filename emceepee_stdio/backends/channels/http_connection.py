"""One connection over Streamable HTTP: a POST for each message, a GET to listen, streams resumed.

The connection is lost only when the server cannot be reached at all, or has forgotten the session.
"""

from functools import partial
from http import HTTPStatus

import anyio

from emceepee_stdio.backends.base import Era
from emceepee_stdio.backends.channels.event_stream import EventStream
from emceepee_stdio.backends.channels.http_carrier import (
    EVENTS,
    JSON,
    Answer,
    HttpTimes,
    TooMuch,
)
from emceepee_stdio.backends.channels.http_conversation import MAX_REFUSAL_BYTES, HttpConversation
from emceepee_stdio.backends.channels.http_errors import BrokenOff, NotMcp, Unreachable
from emceepee_stdio.backends.eras import stamp
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.wire.codec import RequestId, Response, decode, encode_request
from emceepee_stdio.wire.peer import OutgoingRequest, TooLarge

__all__ = ["HttpConnection", "pause_before_reopening"]

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
            body = await answer.body(self._max_message, self._carrier.partial)
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
        stream = EventStream(max_bytes=self._max_message, partial=self._carrier.partial)
        await self._read_events(answer, stream, request_id)
        failures = 0
        while self._peer.waits_for(request_id):
            if stream.last_id is None or failures >= _MAX_RESUMES or self.era is Era.MODERN:
                raise BrokenOff(f"{self._name} ended the stream before it had answered.")
            await anyio.sleep(pause_before_reopening(stream, times=self._carrier.times))
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
        stream = EventStream(max_bytes=self._max_message, partial=self._carrier.partial)
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
            pause = pause_before_reopening(stream, misses, times=self._carrier.times)
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
        within = self._carrier.times.probe
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


def pause_before_reopening(stream: EventStream, misses: int = 0, *, times: HttpTimes) -> float:
    """What the server said, or what is usual; longer and longer while no data comes."""
    pause = times.reopen if stream.retry is None else max(stream.retry, _MIN_PAUSE_S)
    return min(pause * 2 ** min(misses, _MAX_DOUBLINGS), times.reopen_cap)


def _is_final(answer: Answer) -> bool:
    """Whether asking for the stream again would bring the same refusal."""
    return answer.status < _FIRST_SERVER_ERROR and answer.status != HTTPStatus.TOO_MANY_REQUESTS


def _is_on_the_way(error: ProxyError) -> bool:
    return isinstance(error, Unreachable | BrokenOff)
