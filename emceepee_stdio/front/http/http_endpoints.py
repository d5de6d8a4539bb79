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
from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_limits import ByteBudget, HeldBytes, HttpLimits
from emceepee_stdio.front.http.http_replies import (
    EVENTS,
    RETRY,
    HttpExchange,
    HttpReply,
    Incoming,
    refusal,
    rpc_refusal,
)
from emceepee_stdio.front.http.http_sessions import HandshakeSession, ModernSession, Said
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.stored_streams import KEEP_ALIVE, KEEP_ALIVE_S, StoredStream
from emceepee_stdio.versions import HEADER_MISMATCH, LEGACY_VERSIONS
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

SESSION = "mcp-session-id"
_FIRST_PRIMED = "2025-11-25"  # older clients stumble over an event without data
_AT_ONCE_S = 0.02  # most calls are answered by then, and cost one write instead of five
_ACCEPTED = {"GET": ("text/event-stream",), "POST": ("application/json", "text/event-stream")}
_AT_ONCE_BYTES = 1 << 16  # more is written event by event, for as many as may read a session


class McpEndpoint:
    """POST, GET and DELETE of the handshake era, and POST of the modern one."""

    def __init__(self, sessions: SessionTable, tokens: HttpTokens, limits: HttpLimits) -> None:
        self._sessions = sessions
        self._tokens = tokens
        self._limits = limits
        self._budget = ByteBudget(limits.held_bytes)

    async def serve(self, exchange: HttpExchange, incoming: Incoming) -> None:
        version = incoming.headers.get("mcp-protocol-version")
        is_handshake = version is None or version in LEGACY_VERSIONS
        _check_form(incoming, ("GET", "POST", "DELETE") if is_handshake else ("POST",))
        try:
            if incoming.method == "GET":
                await self._get(exchange, incoming)
            elif incoming.method == "DELETE":
                self._sessions.end(self._session(incoming))
                await exchange.reply(HttpReply(HTTPStatus.OK))
            else:
                post = self._post_handshake if is_handshake else self._post_modern
                with HeldBytes(self._budget, incoming.owner) as held:
                    await post(exchange, incoming, held)
        except CallFailed as error:
            raise refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.fact) from None

    async def _body(self, exchange: HttpExchange, incoming: Incoming, held: HeldBytes) -> bytes:
        """As a process will read it. While an answer is awaited, nothing here holds it."""
        limits = self._limits
        body = await exchange.body(held, limit=limits.body_bytes, within=limits.body_s)
        # The token may have been revoked while the body arrived.
        if self._tokens.owner(incoming.headers.get("authorization")) != incoming.owner:
            raise refusal(HTTPStatus.UNAUTHORIZED, "This token was revoked.")
        return one_line(body)

    # The handshake era

    async def _post_handshake(
        self, exchange: HttpExchange, incoming: Incoming, held: HeldBytes
    ) -> None:
        taken = await self._take(exchange, incoming, held)
        held.release()
        if isinstance(taken, HttpReply):
            await exchange.reply(taken)
        else:
            await self._stream(exchange, *taken, 0)

    async def _take(
        self, exchange: HttpExchange, incoming: Incoming, held: HeldBytes
    ) -> tuple[HandshakeSession, StoredStream] | HttpReply:
        """A call that was made, and its stream; else the whole answer."""
        body = await self._body(exchange, incoming, held)
        messages = decode(body, strict=True)
        _check_messages(messages)
        first = messages[0]
        is_first = SESSION not in incoming.headers
        if is_first and isinstance(first, Request) and first.method == "initialize":
            return await self._begin(exchange, incoming, first, body)
        session = self._session(incoming)
        requests = [message for message in messages if isinstance(message, Request)]
        if not requests:
            session.tell(messages, body)
            return HttpReply(HTTPStatus.ACCEPTED)
        self._check_room(session.calls)  # before anything is done
        taken = [request.id for request in requests if session.is_in_use(request.id)]
        if taken or len({request.id for request in requests}) < len(requests):
            raise refusal(HTTPStatus.BAD_REQUEST, "A request with this id is under way.")
        stream = session.request(requests, body, primes=_is_primed(incoming))
        session.heed(messages)
        return session, stream

    async def _get(self, exchange: HttpExchange, incoming: Incoming) -> None:
        """The stream of what no request asked for; with the id of an event, what came after it."""
        session = self._session(incoming)
        last = incoming.headers.get("last-event-id")
        found = session.store.find(last) if last else (session.unasked, session.unasked.read_up_to)
        if found is None:  # not 404, by which the client would take its session for over
            raise refusal(
                HTTPStatus.BAD_REQUEST,
                "This Last-Event-ID is not known here, or no longer. Open the stream without it.",
            )
        if not last and session.unasked.is_read:
            reason = "This session has its stream already. Close it, or resume it by Last-Event-ID."
            raise refusal(HTTPStatus.CONFLICT, reason)
        self._check_room(session.readers)
        again = _primer(last) if last and _is_primed(incoming) else b""
        await self._stream(exchange, session, *found, begin=again)

    async def _begin(
        self, exchange: HttpExchange, incoming: Incoming, request: Request, body: bytes
    ) -> HttpReply:
        """A session of its own; without one where its process refuses the client."""
        session = await self._sessions.begin(incoming)
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
        return HttpReply(HTTPStatus.OK, answer, headers)

    def _session(self, incoming: Incoming) -> HandshakeSession:
        """The session that the request names."""
        name = incoming.headers.get(SESSION)
        if name is None:
            raise refusal(HTTPStatus.BAD_REQUEST, "The header Mcp-Session-Id is missing.")
        found = self._sessions.find(name, incoming)
        if found is None:
            raise refusal(HTTPStatus.NOT_FOUND, "There is no such session. Begin a new one.")
        return found

    def _check_room(self, there: int) -> None:
        if there >= self._limits.streams:
            reason = f"This session has {there} calls or streams open. Wait until one has ended."
            raise refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)

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

    # The modern era

    async def _post_modern(
        self, exchange: HttpExchange, incoming: Incoming, held: HeldBytes
    ) -> None:
        made = await self._make(exchange, incoming, held)
        held.release()
        if isinstance(made, HttpReply):
            await exchange.reply(made)
            return
        session, name, said = made
        try:
            await _answer(exchange, session, name, said)
        finally:
            session.finish(name)

    async def _make(
        self, exchange: HttpExchange, incoming: Incoming, held: HeldBytes
    ) -> tuple[ModernSession, RequestId, MemoryObjectReceiveStream[Said]] | HttpReply:
        """The call, made; else the whole answer.

        What was decoded takes many times its size, so it must not live as long as the call.
        """
        message = _read(await self._body(exchange, incoming, held))
        if "id" not in message:
            return HttpReply(HTTPStatus.ACCEPTED)
        _check_request(message, incoming.listed)
        session = await self._sessions.modern(incoming)
        if session.open >= self._limits.streams:
            reason = f"{session.open} requests are open here. Wait until one has ended."
            raise refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)
        try:
            return session, *session.request(message, held)
        except RecursionError:
            raise refusal(HTTPStatus.BAD_REQUEST, "The body is nested too deeply.") from None


def _check_form(incoming: Incoming, allowed: Sequence[str]) -> None:
    """Refuse a client that could not read the answer, or that sends something else than JSON."""
    method, headers = incoming.method, incoming.headers
    if method not in allowed:
        reason = f"{method} is not for this address."
        allow = (("allow", ", ".join(allowed)),)
        raise refusal(HTTPStatus.METHOD_NOT_ALLOWED, reason, allow)
    accept = headers.get("accept", "")
    wanted = _ACCEPTED.get(method, ())
    if "*/*" not in accept and not all(kind in accept for kind in wanted):
        raise refusal(HTTPStatus.NOT_ACCEPTABLE, f"Accept must name {' and '.join(wanted)}.")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and kind != "application/json":
        raise refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "The body must be application/json.")


def _is_primed(incoming: Incoming) -> bool:
    return incoming.headers.get("mcp-protocol-version", "") >= _FIRST_PRIMED


def _primer(event_id: str) -> bytes:
    """The id once more: a client that is cut off before the next event would have lost it."""
    return b"id: %b\ndata: \n\n" % event_id.encode()


def _check_messages(messages: Sequence[Message]) -> None:
    """Refuse a body of which not all can be taken."""
    for message in messages:
        if isinstance(message, Malformed):
            error = RpcError(message.code, message.reason, None)
            raise rpc_refusal(HTTPStatus.BAD_REQUEST, error, message.id)
        if isinstance(message, Noise):
            error = RpcError(PARSE_ERROR, "Parse error: no JSON that can be taken", None)
            raise rpc_refusal(HTTPStatus.BAD_REQUEST, error)
    if not messages:
        raise refusal(HTTPStatus.BAD_REQUEST, "The body is empty.")
    if messages[1:] and any(isinstance(m, Request) and m.method == "initialize" for m in messages):
        raise refusal(HTTPStatus.BAD_REQUEST, "initialize must be alone in its body.")


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
            with anyio.move_on_after(KEEP_ALIVE_S):
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
        yield KEEP_ALIVE if item is None else b"event: message\ndata: %b\n\n" % one_line(item.data)
        if item is not None:
            session.was_read(name, len(item.data))
            if item.last:
                return
        item = None
        try:
            with anyio.move_on_after(KEEP_ALIVE_S):
                item = await said.receive()
        except anyio.EndOfStream:
            return


def _read(body: bytes) -> Mapping[str, object]:
    try:
        message = decode_value(body)
    except (msgspec.DecodeError, RecursionError):
        error = RpcError(PARSE_ERROR, "Parse error: the body is no JSON", None)
        raise rpc_refusal(HTTPStatus.BAD_REQUEST, error) from None
    if not isinstance(message, dict):
        raise refusal(HTTPStatus.BAD_REQUEST, "The body is no JSON object")
    return cast("dict[str, object]", message)


def _check_request(message: Mapping[str, object], headers: Sequence[tuple[str, str]]) -> None:
    """Refuse what the SDK refuses for its own servers."""
    request_id = message["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        raise refusal(HTTPStatus.BAD_REQUEST, "id must be a string or an integer")
    if message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        error = RpcError(INVALID_REQUEST, "This is no JSON-RPC 2.0 request", None)
        raise rpc_refusal(HTTPStatus.BAD_REQUEST, error, request_id)
    if message["method"] == "initialize":  # its process would take it for a handshake
        found = InboundLadderRejection(METHOD_NOT_FOUND, "Method not found: initialize")
    elif twice := find_duplicated_routing_header(headers):
        found = InboundLadderRejection(HEADER_MISMATCH, f"The header {twice} appears twice")
    else:
        found = classify_inbound_request(message, headers=dict(headers))
    if isinstance(found, InboundLadderRejection):
        data = None if found.data is None else Raw(to_json(found.data))
        status = ERROR_CODE_HTTP_STATUS.get(found.code, HTTPStatus.OK)
        raise rpc_refusal(status, RpcError(found.code, found.message, data), request_id)
