"""One HTTP request and its answer, over ASGI."""

from collections import Counter
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import anyio

from emceepee_stdio.front.http.http_replies import (
    RETRY,
    Headers,
    HttpLimits,
    HttpRefusal,
    HttpReply,
    refusal,
)
from emceepee_stdio.wire.loopback_http import PageReply
from emceepee_stdio.wire.timing import first_of

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

# As much more than its limit is read and dropped before a body is refused: a connection that is
# closed with bytes unread is reset, and a client that still sends may lose the answer.
_READ_ON = 4
_CLOSE = ("connection", "close")
_JSON = ("content-type", "application/json")
_PIECE_BYTES = 1 << 16  # of a body that is written at once: who does not read holds no more of it
EVENTS: Headers = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),  # nginx would keep events back
)


@dataclass(eq=False, slots=True)
class HeldBytes:
    """Memory that one exchange takes in the front: its body, and the answer until it is written."""

    held: Counter[str]  # the sum of each token
    owner: str
    most: int  # of that sum
    size: int = 0

    def take(self, size: int) -> bool:
        """So much more, if its token may hold it."""
        if self.held[self.owner] + size > self.most:
            return False
        self.held[self.owner] += size
        self.size += size
        return True

    def release(self) -> None:
        """All of it."""
        self.held[self.owner] -= self.size
        self.size = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request as it came; `owner` is the name of its token, once that was accepted."""

    method: str
    path: str
    query: str
    listed: Sequence[tuple[str, str]]  # the headers as they came
    headers: Mapping[str, str]  # each with all of its values
    owner: str = ""


class HttpExchange:
    """What is read from and written to one client, until its connection is `lost`."""

    def __init__(self, receive: Receive, send: Send, lost: anyio.Event) -> None:
        self._receive = receive
        self._send = send
        self._lost = lost
        self.extra: Headers = ()  # with every answer

    async def body(self, held: HeldBytes, limits: HttpLimits) -> bytes:
        """All of it, charged to `held`."""
        parts: list[bytes] = []
        size = 0
        with anyio.move_on_after(limits.body_s):
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise HttpRefusal(HttpReply(HTTPStatus.BAD_REQUEST))
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                is_whole = not message.get("more_body", False)
                if size > limits.body_bytes:
                    parts.clear()
                    if is_whole or size > _READ_ON * limits.body_bytes:
                        raise refusal(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                            f"The body is larger than {limits.body_bytes} bytes.",
                            (_CLOSE,),
                        )
                    continue
                if not held.take(len(parts[-1])):
                    raise refusal(
                        HTTPStatus.SERVICE_UNAVAILABLE,
                        "This token has as many bytes under way as it may have. Wait until "
                        "requests have arrived and answers are read.",
                        (*RETRY, _CLOSE),
                    )
                if is_whole:
                    return b"".join(parts)
        raise refusal(HTTPStatus.REQUEST_TIMEOUT, "The body did not come in time.", (_CLOSE,))

    async def reply(self, reply: HttpReply | PageReply) -> None:
        if not isinstance(reply.body, bytes):
            await self.stream(reply.body, reply.headers)
            return
        headers = [*reply.headers, *self.extra, ("content-length", str(len(reply.body)))]
        if reply.body and not any(name == "content-type" for name, _ in reply.headers):
            headers.append(_JSON)
        await self._begin(reply.status, headers)
        await self._write(reply.body, more=False)

    async def stream(self, events: AsyncGenerator[bytes], headers: Headers = EVENTS) -> None:
        """Write events until they are over, or the client has gone."""

        async def write() -> None:
            await self._begin(HTTPStatus.OK, [*headers, *self.extra])
            async for event in events:
                await self._write(event, more=True)
                if self.is_gone:  # then the server throws away what it is given, without a word
                    return
            await self._write(b"", more=False)

        async with aclosing(events):
            await first_of(self.gone, write)

    @property
    def is_gone(self) -> bool:
        return self._lost.is_set()

    async def gone(self) -> None:
        """Until the client has gone. The server says so only to the newest request of several."""
        await self._lost.wait()

    async def _write(self, data: bytes, *, more: bool) -> None:
        """The server waits before each piece until the client has taken those before it."""
        for start in range(0, max(len(data), 1), _PIECE_BYTES):
            end = start + _PIECE_BYTES
            piece = data[start:end] if len(data) > _PIECE_BYTES else data
            is_last = end >= len(data) and not more
            await self._send(
                {"type": "http.response.body", "body": piece, "more_body": not is_last}
            )

    async def _begin(self, status: int, headers: Headers) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})
