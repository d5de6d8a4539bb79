"""The modern era over HTTP: a request stands for itself, and lives as long as its connection."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from http import HTTPStatus
from typing import cast

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream
from mcp.shared.inbound import (
    ERROR_CODE_HTTP_STATUS,
    InboundLadderRejection,
    classify_inbound_request,
    find_duplicated_routing_header,
)
from msgspec import Raw

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.front.http.handshake_endpoint import full
from emceepee_stdio.front.http.held_bytes import HeldBytes
from emceepee_stdio.front.http.http_limits import HttpLimits
from emceepee_stdio.front.http.http_replies import (
    RETRY,
    HttpExchange,
    HttpReply,
    ReadBody,
    error_reply,
    refusal,
)
from emceepee_stdio.front.http.modern_session import ModernSession, Said
from emceepee_stdio.front.http.session_table import NoRoom, SessionTable
from emceepee_stdio.versions import HEADER_MISMATCH
from emceepee_stdio.wire.codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RequestId,
    RpcError,
    to_json,
)
from emceepee_stdio.wire.framing import one_line

__all__ = ["ModernEndpoint"]

_KEEP_ALIVE_S = 15.0  # proxies in between close what is silent for a minute
_COMMENT = b": still here\n\n"


class ModernEndpoint:
    """POST of one era."""

    def __init__(self, sessions: SessionTable, limits: HttpLimits) -> None:
        self._sessions = sessions
        self._limits = limits

    async def post(
        self,
        exchange: HttpExchange,
        headers: Sequence[tuple[str, str]],
        read: ReadBody,
        held: HeldBytes,
        *,
        owner: str,
        path: str,
    ) -> None:
        made = await self._made(headers, read, held, owner=owner, path=path)
        held.release()
        if isinstance(made, HttpReply):
            await exchange.reply(made)
        elif made is not None:
            session, name, said = made
            try:
                await _answer(exchange, session, name, said)
            finally:
                session.finish(name)

    async def _made(
        self,
        headers: Sequence[tuple[str, str]],
        read: ReadBody,
        held: HeldBytes,
        *,
        owner: str,
        path: str,
    ) -> tuple[ModernSession, RequestId, MemoryObjectReceiveStream[Said]] | HttpReply | None:
        """The call, made, or why not; None where all is said already.

        What was decoded takes many times its size, so it must not live as long as the call.
        """
        body = await read()
        if body is None:
            return None
        message = _read(body)
        if isinstance(message, HttpReply):
            return message
        if "id" not in message:
            return HttpReply(HTTPStatus.ACCEPTED)
        refused = _refusal(message, headers)
        return refused or await self._call(message, held, owner=owner, path=path)

    async def _call(
        self, message: Mapping[str, object], held: HeldBytes, *, owner: str, path: str
    ) -> tuple[ModernSession, RequestId, MemoryObjectReceiveStream[Said]] | HttpReply:
        try:
            session = await self._sessions.modern(owner=owner, path=path)
            if session.open >= self._limits.streams:
                reason = f"{session.open} requests are open here. Wait until one has ended."
                return refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)
            return session, *session.request(message, held)
        except NoRoom:
            return full()
        except CallFailed as error:
            return refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.fact)
        except RecursionError:
            return refusal(HTTPStatus.BAD_REQUEST, "The body is nested too deeply.")


async def _answer(
    exchange: HttpExchange,
    session: ModernSession,
    name: RequestId,
    said: MemoryObjectReceiveStream[Said],
) -> None:
    """With JSON where the answer is all there is to say, else with a stream of events."""

    async def leave() -> None:
        await exchange.watch(lambda: session.cancel(name))

    first: Said | None = None
    is_gone = False
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(leave)
        try:
            with anyio.move_on_after(_KEEP_ALIVE_S):
                first = await said.receive()
        except anyio.EndOfStream:
            is_gone = True
        tasks.cancel_scope.cancel()
    if is_gone:
        return
    if first is not None and first.last:
        await exchange.reply(_whole(first))
        return
    events = _events(session, name, first, said)
    await exchange.stream(events, lambda: session.cancel(name))


def _whole(answer: Said) -> HttpReply:
    if answer.is_dropped:
        return HttpReply(HTTPStatus.SERVICE_UNAVAILABLE, answer.data, RETRY)
    return HttpReply(ERROR_CODE_HTTP_STATUS.get(answer.code, HTTPStatus.OK), answer.data)


async def _events(
    session: ModernSession,
    name: RequestId,
    first: Said | None,
    said: MemoryObjectReceiveStream[Said],
) -> AsyncGenerator[bytes]:
    item = first
    while True:
        yield _COMMENT if item is None else b"event: message\ndata: %b\n\n" % one_line(item.data)
        if item is not None:
            session.was_read(name, len(item.data))
            if item.last:
                return
        item = None
        try:
            with anyio.move_on_after(_KEEP_ALIVE_S):
                item = await said.receive()
        except anyio.EndOfStream:
            return


def _read(body: bytes) -> Mapping[str, object] | HttpReply:
    try:
        message = decode_value(body)
    except (msgspec.DecodeError, RecursionError):
        error = RpcError(PARSE_ERROR, "Parse error: the body is no JSON", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error)
    if not isinstance(message, dict):
        error = RpcError(INVALID_REQUEST, "The body is no JSON object", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error)
    return cast("dict[str, object]", message)


def _refusal(message: Mapping[str, object], headers: Sequence[tuple[str, str]]) -> HttpReply | None:
    """What is wrong with a request, by the checks that the SDK has for its own servers."""
    request_id = message["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        error = RpcError(INVALID_REQUEST, "id must be a string or an integer", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error)
    if message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        error = RpcError(INVALID_REQUEST, "This is no JSON-RPC 2.0 request", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error, request_id)
    if message["method"] == "initialize":  # its process would take it for a handshake
        found = InboundLadderRejection(METHOD_NOT_FOUND, "Method not found: initialize")
    elif twice := find_duplicated_routing_header(headers):
        found = InboundLadderRejection(HEADER_MISMATCH, f"The header {twice} appears twice")
    else:
        found = classify_inbound_request(message, headers=dict(headers))
    if not isinstance(found, InboundLadderRejection):
        return None
    data = None if found.data is None else Raw(to_json(found.data))
    status = ERROR_CODE_HTTP_STATUS.get(found.code, HTTPStatus.OK)
    return error_reply(status, RpcError(found.code, found.message, data), request_id)
