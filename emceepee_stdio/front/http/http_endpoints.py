"""The MCP endpoint over HTTP: sessions of the legacy era, self-contained requests of the modern."""

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
from emceepee_stdio.front.http.http_limits import HeldBytes, HttpLimits
from emceepee_stdio.front.http.http_replies import (
    EVENTS,
    RETRY,
    HttpExchange,
    HttpReply,
    ReadBody,
    error_reply,
    refusal,
)
from emceepee_stdio.front.http.http_sessions import HandshakeSession, ModernSession, Said
from emceepee_stdio.front.http.session_table import NoRoom, SessionTable
from emceepee_stdio.front.http.stored_streams import StoredStream
from emceepee_stdio.versions import HEADER_MISMATCH
from emceepee_stdio.wire.codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Malformed,
    Message,
    Noise,
    Request,
    RequestId,
    Response,
    RpcError,
    decode,
    to_json,
)
from emceepee_stdio.wire.framing import one_line

# The handshake era over HTTP: sessions that begin by `initialize` and are named in a header.


SESSION = "mcp-session-id"
_FIRST_PRIMED = "2025-11-25"  # older clients stumble over an event without data
_AT_ONCE_S = 0.02  # most calls are answered by then, and cost one write instead of five
_AT_ONCE_BYTES = 1 << 16  # more is written event by event, for as many as may read a session


def full() -> HttpReply:
    return refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "As many sessions as there may be are open. Each ends by DELETE, or after 30 minutes "
        "without use; `emceepee serve --http --max-sessions N` allows more.",
        RETRY,
    )


class HandshakeEndpoint:
    """POST, GET and DELETE of one era; `owner` and `path` are those of the request."""

    def __init__(self, sessions: SessionTable, limits: HttpLimits) -> None:
        self._sessions = sessions
        self._limits = limits

    async def post(
        self,
        exchange: HttpExchange,
        headers: Mapping[str, str],
        read: ReadBody,
        held: HeldBytes,
        *,
        owner: str,
        path: str,
    ) -> None:
        call = await self._taken(exchange, headers, read, owner=owner, path=path)
        held.release()
        if call is not None:
            await self._stream(exchange, *call, 0)

    async def _taken(
        self,
        exchange: HttpExchange,
        headers: Mapping[str, str],
        read: ReadBody,
        *,
        owner: str,
        path: str,
    ) -> tuple[HandshakeSession, StoredStream] | None:
        """A call that was made, and its stream; None where all is said already."""
        body = await read()
        messages = [] if body is None else decode(body, strict=True)
        if body is None:
            return None
        if problem := _problem(messages):
            await exchange.reply(problem)
            return None
        first = messages[0]
        if isinstance(first, Request) and first.method == "initialize" and SESSION not in headers:
            await self._begin(exchange, first, body, owner=owner, path=path)
            return None
        session = await self._session(exchange, headers, owner=owner, path=path)
        if session is None:
            return None
        try:
            if any(isinstance(message, Request) for message in messages):
                return await self._call(exchange, session, messages, headers, body)
            session.tell(messages, body)
            await exchange.reply(HttpReply(HTTPStatus.ACCEPTED))
        except CallFailed as error:
            await exchange.reply(refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.fact))
        return None

    async def get(
        self, exchange: HttpExchange, headers: Mapping[str, str], *, owner: str, path: str
    ) -> None:
        """The stream of what nobody asked for; with the id of an event, what came after it."""
        session = await self._session(exchange, headers, owner=owner, path=path)
        if session is None:
            return
        last = headers.get("last-event-id")
        found = session.store.find(last) if last else (session.unasked, session.unasked.read_up_to)
        if found is None:  # not 404, by which the client would take its session for over
            reply = refusal(
                HTTPStatus.BAD_REQUEST,
                "This Last-Event-ID is not known here, or no longer. Open the stream without it.",
            )
            await exchange.reply(reply)
        elif not last and session.unasked.is_read:
            reason = "This session has its stream already. Close it, or resume it by Last-Event-ID."
            await exchange.reply(refusal(HTTPStatus.CONFLICT, reason))
        else:
            again = _primer(last) if last and _is_primed(headers) else b""
            if refused := self._too_many(session.readers):
                await exchange.reply(refused)
            else:
                await self._stream(exchange, session, *found, begin=again)

    async def delete(
        self, exchange: HttpExchange, headers: Mapping[str, str], *, owner: str, path: str
    ) -> None:
        session = await self._session(exchange, headers, owner=owner, path=path)
        if session is not None:
            self._sessions.end(session)
            await exchange.reply(HttpReply(HTTPStatus.OK))

    async def _begin(
        self, exchange: HttpExchange, request: Request, body: bytes, *, owner: str, path: str
    ) -> None:
        """A session of its own; without one where its process refuses the client."""
        try:
            session = await self._sessions.begin(owner=owner, path=path)
        except NoRoom:
            await exchange.reply(full())
            return
        stream = session.request([request], body)
        answer = b""
        gone: list[bool] = []
        reader = stream.take()

        def leave() -> None:
            gone.append(True)
            stream.leave(reader)  # its process may never answer

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(exchange.watch, leave)
            async for frame in stream.read(reader, 0):
                answer = frame.partition(b"data: ")[2].strip() or answer
            tasks.cancel_scope.cancel()
        is_begun = not gone and any(
            isinstance(message, Response) and not isinstance(message.outcome, RpcError)
            for message in decode(answer)
        )
        if not is_begun:
            self._sessions.end(session)
        headers = ((SESSION, session.name),) if is_begun else ()
        await exchange.reply(HttpReply(HTTPStatus.OK, answer, headers))

    async def _session(
        self, exchange: HttpExchange, headers: Mapping[str, str], *, owner: str, path: str
    ) -> HandshakeSession | None:
        """The session that is named; None when the client has been told that there is none."""
        name = headers.get(SESSION)
        if name is None:
            reply = refusal(HTTPStatus.BAD_REQUEST, "The header Mcp-Session-Id is missing.")
        elif found := self._sessions.find(name, owner=owner, path=path):
            return found
        else:
            reply = refusal(HTTPStatus.NOT_FOUND, "There is no such session. Begin a new one.")
        await exchange.reply(reply)
        return None

    async def _call(
        self,
        exchange: HttpExchange,
        session: HandshakeSession,
        messages: list[Message],
        headers: Mapping[str, str],
        body: bytes,
    ) -> tuple[HandshakeSession, StoredStream] | None:
        if refused := self._too_many(session.calls):  # before anything is done
            await exchange.reply(refused)
            return None
        requests = [message for message in messages if isinstance(message, Request)]
        taken = [request.id for request in requests if session.is_in_use(request.id)]
        if taken or len({request.id for request in requests}) < len(requests):
            reply = refusal(HTTPStatus.BAD_REQUEST, "A request with this id is under way.")
            await exchange.reply(reply)
            return None
        stream = session.request(requests, body, primes=_is_primed(headers))
        session.heed(messages)
        return session, stream

    def _too_many(self, there: int) -> HttpReply | None:
        if there < self._limits.streams:
            return None
        reason = f"This session has {there} calls or streams open. Wait until one has ended."
        return refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)

    async def _stream(
        self,
        exchange: HttpExchange,
        session: HandshakeSession,
        stream: StoredStream,
        place: int,
        *,
        begin: bytes = b"",
    ) -> None:
        header = ((SESSION, session.name),)
        is_over = await stream.is_over_within(_AT_ONCE_S) and not stream.has_losses
        rest = stream.rest(place, most=_AT_ONCE_BYTES) if is_over else None
        if rest is not None:
            await exchange.reply(HttpReply(HTTPStatus.OK, begin + rest, (*EVENTS, *header)))
            return
        session.readers += 1
        reader = stream.take()
        events = stream.read(reader, place, begin)
        try:
            await exchange.stream(events, lambda: stream.leave(reader), (*EVENTS, *header))
        finally:
            session.readers -= 1
            stream.leave(reader)


def _is_primed(headers: Mapping[str, str]) -> bool:
    return headers.get("mcp-protocol-version", "") >= _FIRST_PRIMED


def _primer(event_id: str) -> bytes:
    """The id once more: a client that is cut off before the next event would have lost it."""
    return b"id: %b\ndata: \n\n" % event_id.encode()


def _problem(messages: list[Message]) -> HttpReply | None:
    """Why a body cannot be taken."""
    for message in messages:
        if isinstance(message, Malformed):
            error = RpcError(message.code, message.reason, None)
            return error_reply(HTTPStatus.BAD_REQUEST, error, message.id)
        if isinstance(message, Noise):
            error = RpcError(PARSE_ERROR, "Parse error: no JSON that can be taken", None)
            return error_reply(HTTPStatus.BAD_REQUEST, error)
    if not messages:
        error = RpcError(INVALID_REQUEST, "The body is empty.", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error)
    if messages[1:] and any(isinstance(m, Request) and m.method == "initialize" for m in messages):
        error = RpcError(INVALID_REQUEST, "initialize must be alone in its body.", None)
        return error_reply(HTTPStatus.BAD_REQUEST, error)
    return None


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
