"""The ASGI application of the HTTP front: access, routes, MCP, and resuming by Last-Event-ID.

In the handshake era a client has a session; a request of the modern era is complete in itself.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import msgspec
from mcp.shared import inbound
from msgspec import Raw

from emceepee_stdio import __version__
from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import decode_value, envelope_decoder
from emceepee_stdio.front.http.access import Access, HttpTokens
from emceepee_stdio.front.http.http_exchange import (
    EVENTS,
    HeldBytes,
    HttpExchange,
    Incoming,
    Receive,
    Send,
)
from emceepee_stdio.front.http.http_replies import (
    RETRY,
    HttpLimits,
    HttpRefusal,
    HttpReply,
    refusal,
    rpc_refusal,
)
from emceepee_stdio.front.http.http_session import ANSWER_DROPPED, HttpSession, LiveCall
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.stored_streams import StoredStream, event_frame
from emceepee_stdio.front.http.trace_endpoint import TRACE, TraceEndpoint
from emceepee_stdio.versions import HEADER_MISMATCH, LEGACY_VERSIONS
from emceepee_stdio.wire.codec import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Malformed,
    Message,
    Noise,
    Request,
    RpcError,
    decode,
    to_json,
)
from emceepee_stdio.wire.framing import one_line
from emceepee_stdio.wire.loopback_http import PageRefusal
from emceepee_stdio.wire.timing import first_of

SESSION = "mcp-session-id"
CONNECTION = "connection"  # of the request, in the state of its scope
_MCP = re.compile(r"/mcp(?:/[A-Za-z0-9_.~-]{1,64})?")
_MAX_HEADERS = 128  # a browser behind two proxies sends thirty
_TEXT = (("content-type", "text/plain; version=0.0.4"),)
_FIRST_PRIMED = "2025-11-25"  # older clients stumble over an event without data
_AT_ONCE_S = 0.02  # most calls are answered by then, and cost one write instead of five
_AT_ONCE_BYTES = 1 << 16  # more is written event by event, for as many as may read a session
_ACCEPTED = {"GET": ("text/event-stream",), "POST": ("application/json", "text/event-stream")}


_Taken = tuple[HttpSession, StoredStream | LiveCall] | HttpReply


@dataclass(eq=False)
class HttpApp:
    """Serves `/mcp`, `/mcp/NAME`, `/health`, `/metrics` and `/trace`."""

    sessions: SessionTable
    access: Access
    limits: HttpLimits
    trace: TraceEndpoint

    def __post_init__(self) -> None:
        self._open: Counter[str] = Counter()  # exchanges, by whose token
        self._held: Counter[str] = Counter()  # bytes, by whose token
        self._requests = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        connection = scope["state"][CONNECTION]
        try:
            await self._answer(scope, HttpExchange(receive, send, connection.lost))
        finally:
            connection.end_request()

    async def _answer(self, scope: MutableMapping[str, Any], exchange: HttpExchange) -> None:
        self._requests += 1
        # One of the parsers leaves white space at the end of values.
        listed = [
            (name.decode("latin-1"), value.decode("latin-1").strip())
            for name, value in scope["headers"]
        ]
        headers = _combined(listed)
        exchange.extra = self.access.cors(headers, preflight=scope["method"] == "OPTIONS")
        incoming = Incoming(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            listed=listed,
            headers=headers,
        )
        try:
            if len(listed) > _MAX_HEADERS:
                reason = f"A request has at most {_MAX_HEADERS} headers here."
                raise refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
            if incoming.path == "/health":  # under any name: a probe knows only an address
                await exchange.reply(HttpReply(HTTPStatus.OK, b'{"status":"ok"}'))
                return
            self.access.check(headers)
            if incoming.path == TRACE or incoming.path.startswith(f"{TRACE}/"):
                exchange.extra = ()  # for no other page
                await self.trace.serve(exchange, incoming)
            elif incoming.method == "OPTIONS":
                await exchange.reply(HttpReply(HTTPStatus.NO_CONTENT))
            else:
                owner = self.access.owner(headers)
                path = "" if b"%" in scope["raw_path"] else incoming.path.removesuffix("/")
                await self._serve(exchange, replace(incoming, owner=owner, path=path))
        except (HttpRefusal, PageRefusal) as refused:
            reply = refused.reply
        else:
            return
        await exchange.reply(reply)  # here, so that no traceback holds the body meanwhile

    async def _serve(self, exchange: HttpExchange, incoming: Incoming) -> None:
        owner = incoming.owner
        if incoming.path == "/metrics":
            await exchange.reply(HttpReply(HTTPStatus.OK, self._metrics(), _TEXT))
            return
        if not _MCP.fullmatch(incoming.path):
            raise refusal(HTTPStatus.NOT_FOUND, "There is nothing here; MCP is spoken at /mcp.")
        there = self._open[owner]
        if there >= self.limits.exchanges:
            reason = f"This token has {there} requests open. Wait until one has ended."
            raise refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)
        held = HeldBytes(self._held, owner, self.limits.held_bytes)
        tokens, limits = self.access.tokens, self.limits
        self._open[owner] += 1
        try:
            await McpRequest(self.sessions, tokens, limits, exchange, incoming, held).serve()
        finally:
            self._open[owner] -= 1

    def _metrics(self) -> bytes:
        """Counts for Prometheus; nothing that a client or a server said."""
        sessions = self.sessions
        lines = [
            ("emceepee_info", "gauge", f'{{version="{__version__}"}} 1'),
            ("emceepee_http_requests_total", "counter", f" {self._requests}"),
            ("emceepee_sessions", "gauge", f" {len(sessions)}"),
            ("emceepee_sessions_begun_total", "counter", f" {sessions.begun}"),
            ("emceepee_sessions_refused_total", "counter", f" {sessions.refused}"),
            ("emceepee_calls_in_flight", "gauge", f" {sessions.calls}"),
            ("emceepee_stored_events", "gauge", f" {sessions.total.events}"),
            ("emceepee_stored_bytes", "gauge", f" {sessions.total.size}"),
            ("emceepee_lost_answers_total", "counter", f" {sessions.lost_answers}"),
        ]
        text = "".join(f"# TYPE {name} {kind}\n{name}{value}\n" for name, kind, value in lines)
        return text.encode()


def _combined(listed: list[tuple[str, str]]) -> dict[str, str]:
    """Each header with all of its values: one that must not come twice then matches nothing."""
    headers: dict[str, str] = {}
    for name, value in listed[:_MAX_HEADERS]:
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


@dataclass(frozen=True, slots=True)
class McpRequest:
    """A POST, GET or DELETE of the handshake era, or a POST of the modern one."""

    sessions: SessionTable
    tokens: HttpTokens
    limits: HttpLimits
    exchange: HttpExchange
    incoming: Incoming
    held: HeldBytes

    async def serve(self) -> None:
        version = self.incoming.headers.get("mcp-protocol-version")
        is_handshake = version is None or version in LEGACY_VERSIONS
        _check_form(self.incoming, ("GET", "POST", "DELETE") if is_handshake else ("POST",))
        try:
            if self.incoming.method == "GET":
                await self._get()
            elif self.incoming.method == "DELETE":
                self._session().end()
                await self.exchange.reply(HttpReply(HTTPStatus.OK))
            else:
                await self._post(self._take_handshake if is_handshake else self._take_modern)
        except CallFailed as error:
            raise refusal(HTTPStatus.SERVICE_UNAVAILABLE, error.fact) from None
        finally:
            self.held.release()

    async def _body(self) -> bytes:
        """As a process will read it. While an answer is awaited, nothing here holds it."""
        body = await self.exchange.body(self.held, self.limits)
        # The token may have been revoked while the body arrived.
        if self.tokens.owner(self.incoming.headers.get("authorization")) != self.incoming.owner:
            raise refusal(HTTPStatus.UNAUTHORIZED, "This token was revoked.")
        return one_line(body)

    async def _post(self, take: Callable[[], Awaitable[_Taken]]) -> None:
        taken = await take()
        self.held.release()
        if isinstance(taken, HttpReply):
            await self.exchange.reply(taken)
            return
        session, call = taken
        if isinstance(call, StoredStream):
            await self._stream(session, call, 0)
            return
        try:
            await self._answer(call)
        finally:
            session.finish(call)

    # The handshake era

    async def _take_handshake(self) -> _Taken:
        """A call that was made, and its stream; else the whole answer."""
        body = await self._body()
        messages = decode(body, strict=True)
        _check_messages(messages)
        first = messages[0]
        is_first = SESSION not in self.incoming.headers
        if is_first and isinstance(first, Request) and first.method == "initialize":
            session = await self.sessions.begin(self.incoming)
            return await self._begun(session, session.initialize(first, body, self.held))
        session = self._session()
        ids = [message.id for message in messages if isinstance(message, Request)]
        if ids:
            self._check_room(session.calls)  # before anything is done
        if len({*ids} - session.ids) < len(ids):
            raise refusal(HTTPStatus.BAD_REQUEST, "A request with this id is under way.")
        stream = session.send(messages, body, primes=self._is_primed)
        if isinstance(first, Request) and first.method == "initialize":
            session.ask_again(everything=True)
        return (session, stream) if ids else HttpReply(HTTPStatus.ACCEPTED)

    async def _get(self) -> None:
        """The stream of what no request asked for; with the id of an event, what came after it."""
        session = self._session()
        last = self.incoming.headers.get("last-event-id")
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
        # The id once more: a client that is cut off before the next event would have lost it.
        again = event_frame(b"", last) if last and self._is_primed else b""
        await self._stream(session, *found, begin=again)

    async def _begun(self, session: HttpSession, call: LiveCall) -> HttpReply:
        """The answer to `initialize`; the session ends if its process refuses the client."""

        async def answered() -> None:
            while not call.is_over:
                await call.wait()

        await first_of(self.exchange.gone, answered)  # its process may never answer
        if self.exchange.is_gone or call.error is not None:
            session.end()
            return HttpReply(HTTPStatus.OK, call.whole_answer)
        return HttpReply(HTTPStatus.OK, call.whole_answer, ((SESSION, session.name),))

    def _session(self) -> HttpSession:
        """The session that the request names."""
        name = self.incoming.headers.get(SESSION)
        if name is None:
            raise refusal(HTTPStatus.BAD_REQUEST, "The header Mcp-Session-Id is missing.")
        found = self.sessions.find(name, self.incoming)
        if found is None:
            raise refusal(HTTPStatus.NOT_FOUND, "There is no such session. Begin a new one.")
        return found

    def _check_room(self, there: int) -> None:
        if there >= self.limits.streams:
            reason = f"This session has {there} calls or streams open. Wait until one has ended."
            raise refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)

    @property
    def _is_primed(self) -> bool:
        return self.incoming.headers.get("mcp-protocol-version", "") >= _FIRST_PRIMED

    async def _stream(
        self, session: HttpSession, stream: StoredStream, place: int, *, begin: bytes = b""
    ) -> None:
        headers = (*EVENTS, (SESSION, session.name))
        session.readers += 1
        reader = stream.take()
        session.ask_again()
        try:
            rest = await stream.rest(place, within=_AT_ONCE_S, most=_AT_ONCE_BYTES)
            if rest is None:
                await self.exchange.stream(stream.read(reader, place, begin), headers)
            else:
                await self.exchange.reply(HttpReply(HTTPStatus.OK, begin + rest, headers))
        finally:
            session.readers -= 1
            stream.leave(reader)
            session.ask_again()

    # The modern era

    async def _take_modern(self) -> _Taken:
        """The call, made; else the whole answer.

        What was decoded takes many times its size, so it must not live as long as the call.
        """
        message = _read(await self._body())
        if "id" not in message:
            return HttpReply(HTTPStatus.ACCEPTED)
        _check_request(message, self.incoming.listed)
        session = await self.sessions.modern(self.incoming)
        self._check_room(session.readers)
        try:
            return session, session.request(message, self.held)
        except RecursionError:
            raise refusal(HTTPStatus.BAD_REQUEST, "The body is nested too deeply.") from None

    async def _answer(self, call: LiveCall) -> None:
        """With JSON where the answer is all there is to say, else with a stream of events."""
        exchange = self.exchange
        await first_of(exchange.gone, call.wait)
        if exchange.is_gone:
            return
        if call.notes or not call.is_over:
            await exchange.stream(call.events())
        elif call.error is ANSWER_DROPPED:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            await exchange.reply(HttpReply(status, call.whole_answer, RETRY))
        else:
            code = call.error.code if call.error else 0
            status = inbound.ERROR_CODE_HTTP_STATUS.get(code, HTTPStatus.OK)
            await exchange.reply(HttpReply(status, call.whole_answer))


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


# Of a body only what says whose it is and where it goes is read here: a call of a few megabytes of
# tiny values would take seconds, and hold up every other client. The rest is passed on unread.
_MAX_READ_BYTES = 1 << 12  # of one value that is read: an id, a name, an address
_MAX_META_BYTES = 1 << 16  # capabilities, names of the client, and tracing


class _Body(msgspec.Struct, gc=False):
    jsonrpc: Raw = Raw()
    id: Raw = Raw()
    method: Raw = Raw()
    params: Raw = Raw()


_read_body = envelope_decoder(_Body)
_read_fields = envelope_decoder(dict[str, Raw])


def _read(body: bytes) -> Mapping[str, object]:
    try:
        found = _read_body(body)
        read = {name: _value(getattr(found, name)) for name in ("jsonrpc", "id", "method")}
        params = _params(found.params)
    except msgspec.ValidationError:
        raise refusal(HTTPStatus.BAD_REQUEST, "The body is no JSON object") from None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        error = RpcError(PARSE_ERROR, "Parse error: the body is no JSON", None)
        raise rpc_refusal(HTTPStatus.BAD_REQUEST, error) from None
    read["params"] = params
    return {name: value for name, value in read.items() if value != Raw()}


def _value(raw: Raw) -> object:
    return raw if not 0 < len(bytes(raw)) <= _MAX_READ_BYTES else decode_value(raw)


def _params(raw: Raw) -> object:
    """With what the protocol says in them read; `raw` where they are no object."""
    if not bytes(raw).startswith(b"{"):
        return raw
    params: dict[str, object] = {**_read_fields(raw)}
    for name in ("name", "uri", "_meta"):
        value = params.get(name)
        if not isinstance(value, Raw):
            continue
        if name != "_meta":
            params[name] = _value(value)
        elif len(bytes(value)) > _MAX_META_BYTES:
            reason = f"_meta has more than {_MAX_META_BYTES} bytes."
            raise refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        else:
            params[name] = decode_value(value)
    return params


def _check_request(message: Mapping[str, object], headers: Sequence[tuple[str, str]]) -> None:
    """Refuse what the SDK refuses for its own servers."""
    request_id = message["id"]
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        raise refusal(HTTPStatus.BAD_REQUEST, "id must be a string or an integer")
    if message.get("jsonrpc") != "2.0" or not isinstance(message.get("method"), str):
        error = RpcError(INVALID_REQUEST, "This is no JSON-RPC 2.0 request", None)
        raise rpc_refusal(HTTPStatus.BAD_REQUEST, error, request_id)
    if message["method"] == "initialize":  # its process would take it for a handshake
        found = inbound.InboundLadderRejection(METHOD_NOT_FOUND, "Method not found: initialize")
    elif twice := inbound.find_duplicated_routing_header(headers):
        found = inbound.InboundLadderRejection(HEADER_MISMATCH, f"The header {twice} appears twice")
    else:
        found = inbound.classify_inbound_request(message, headers=dict(headers))
    if isinstance(found, inbound.InboundLadderRejection):
        data = None if found.data is None else Raw(to_json(found.data))
        status = inbound.ERROR_CODE_HTTP_STATUS.get(found.code, HTTPStatus.OK)
        raise rpc_refusal(status, RpcError(found.code, found.message, data), request_id)
