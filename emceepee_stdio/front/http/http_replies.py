"""HTTP bodies in and replies out for ASGI: whole ones, and event streams."""

from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import anyio

from emceepee_stdio.front.http.http_limits import HeldBytes
from emceepee_stdio.wire.codec import INVALID_REQUEST, RequestId, RpcError, encode_error

Headers = Sequence[tuple[str, str]]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

RETRY: Headers = (("retry-after", "10"),)  # by then a session has ended, or a body has arrived
_CLOSE = ("connection", "close")
_JSON = ("content-type", "application/json")
_PIECE_BYTES = 1 << 16  # of a body that is written at once: who does not read holds no more of it
EVENTS: Headers = (
    ("content-type", "text/event-stream"),
    ("cache-control", "no-cache, no-transform"),
    ("x-accel-buffering", "no"),  # nginx would keep events back
)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole answer; JSON unless its headers say otherwise."""

    status: int
    body: bytes = b""
    headers: Headers = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A request whose token was accepted. `owner` is the name of the token."""

    owner: str
    method: str
    path: str
    listed: Sequence[tuple[str, str]]  # the headers as they came
    headers: Mapping[str, str]  # each with all of its values


class HttpRefusal(Exception):
    """A request that is not served; the application answers with `reply`."""

    def __init__(self, reply: HttpReply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def rpc_refusal(
    status: int, error: RpcError, request_id: RequestId | None = None, headers: Headers = ()
) -> HttpRefusal:
    return HttpRefusal(HttpReply(status, encode_error(request_id, error).strip(), headers))


def refusal(status: int, reason: str, headers: Headers = ()) -> HttpRefusal:
    return rpc_refusal(status, RpcError(INVALID_REQUEST, reason, None), headers=headers)


class HttpExchange:
    """One HTTP request and its answer. `extra` headers go with whatever it is."""

    def __init__(self, receive: _Receive, send: _Send, *, extra: Headers = ()) -> None:
        self._receive = receive
        self._send = send
        self._extra = extra

    async def body(self, held: HeldBytes, *, limit: int, within: float) -> bytes:
        """All of it, charged to `held`."""
        parts: list[bytes] = []
        size = 0
        with anyio.move_on_after(within):
            while True:
                message = await self._receive()
                if message["type"] == "http.disconnect":
                    raise HttpRefusal(HttpReply(HTTPStatus.BAD_REQUEST))
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise refusal(
                        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                        f"The body is larger than {limit} bytes.",
                        (_CLOSE,),
                    )
                if not held.take(len(parts[-1])):
                    raise refusal(
                        HTTPStatus.SERVICE_UNAVAILABLE,
                        "This token has as many bytes under way as it may have. Wait until "
                        "requests have arrived and answers are read.",
                        (*RETRY, _CLOSE),
                    )
                if not message.get("more_body", False):
                    return b"".join(parts)
        raise refusal(HTTPStatus.REQUEST_TIMEOUT, "The body did not come in time.", (_CLOSE,))

    async def reply(self, reply: HttpReply) -> None:
        headers = [*reply.headers, *self._extra, ("content-length", str(len(reply.body)))]
        if reply.body and not any(name == "content-type" for name, _ in reply.headers):
            headers.append(_JSON)
        await self._begin(reply.status, headers)
        await self._write(reply.body, more=False)

    async def stream(
        self, events: AsyncGenerator[bytes], on_gone: Callable[[], None], headers: Headers = EVENTS
    ) -> None:
        """Write events until they are over, or the client has gone.

        The server takes what is written to a client that has left, so that is watched for.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.watch, on_gone)
            await self._begin(HTTPStatus.OK, [*headers, *self._extra])
            async for event in events:
                await self._write(event, more=True)
            await self._write(b"", more=False)
            tasks.cancel_scope.cancel()

    async def watch(self, on_gone: Callable[[], None]) -> None:
        """Until the client has gone."""
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_gone()

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
