"""The transport that Streamable HTTP replaced: one stream to listen, a second address to speak to.

Everything that the server says comes on the stream, so its end is the end of the connection.
"""

from http import HTTPStatus
from urllib.parse import urljoin

import anyio

from emceepee_stdio.backends.channels.event_stream import EventStream, ServerEvent
from emceepee_stdio.backends.channels.http_carrier import Answer
from emceepee_stdio.backends.channels.http_conversation import MAX_REFUSAL_BYTES, HttpConversation
from emceepee_stdio.backends.channels.http_errors import (
    NotMcp,
    Unreachable,
    is_same_origin,
)
from emceepee_stdio.errors import ProxyError, ServerFailed
from emceepee_stdio.journal import redact_url
from emceepee_stdio.wire.codec import RequestId
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["SseConnection"]


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
        stream = EventStream(max_bytes=self._max_message, partial=self._carrier.partial)
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
                await answer.drain(self._carrier.times.probe)

    def _suspect(self, error: ProxyError | None = None) -> None:
        """The stream shows whether the server lives, unless it cannot even be spoken to."""
        if self._is_open and isinstance(error, Unreachable):
            self.end(f"{self._name} cannot be reached any more. {error.fact}")
