"""The ASGI application of the HTTP front: checks access, and routes by path."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

from emceepee_stdio import __version__
from emceepee_stdio.front.http.access import Access, Denied
from emceepee_stdio.front.http.http_endpoints import HandshakeEndpoint, ModernEndpoint
from emceepee_stdio.front.http.http_limits import ByteBudget, HeldBytes, HttpLimits
from emceepee_stdio.front.http.http_replies import HttpExchange, HttpReply, refusal
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.trace_endpoint import TRACE, TraceEndpoint
from emceepee_stdio.versions import LEGACY_VERSIONS
from emceepee_stdio.wire.framing import one_line

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MCP = re.compile(r"/mcp(?:/[A-Za-z0-9_.~-]{1,64})?/?")
_MAX_HEADERS = 128  # a browser behind two proxies sends thirty
_TEXT = (("content-type", "text/plain; version=0.0.4"),)


class HttpApp:
    """Serves `/mcp`, `/mcp/NAME`, `/health`, `/metrics` and `/trace`."""

    def __init__(
        self, sessions: SessionTable, access: Access, limits: HttpLimits, trace: TraceEndpoint
    ) -> None:
        self._trace = trace
        self._sessions = sessions
        self._access = access
        self._limits = limits
        self._handshake = HandshakeEndpoint(sessions, limits)
        self._modern = ModernEndpoint(sessions, limits)
        self._open: Counter[str] = Counter()  # exchanges, by whose token
        self._budget = ByteBudget(limits.held_bytes)
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self._requests += 1
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        # One of the parsers leaves white space at the end of values.
        listed = [
            (name.decode("latin-1"), value.decode("latin-1").strip())
            for name, value in scope["headers"]
        ]
        headers = _combined(listed)
        preflight = scope["method"] == "OPTIONS"
        exchange = HttpExchange(
            receive, send, extra=self._access.cors(headers, preflight=preflight)
        )
        if len(listed) > _MAX_HEADERS:
            reason = f"A request has at most {_MAX_HEADERS} headers here."
            await exchange.reply(refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason))
        elif scope["path"] == "/health":  # under any name: a probe knows only an address
            await exchange.reply(HttpReply(HTTPStatus.OK, b'{"status":"ok"}'))
        elif denied := self._access.check(headers):
            await exchange.reply(refusal(denied.status, denied.reason, denied.headers))
        elif scope["path"] == TRACE or scope["path"].startswith(f"{TRACE}/"):
            plain = HttpExchange(receive, send)  # no other page may read it
            path, query = scope["path"], scope["query_string"]
            await self._trace.serve(plain, scope["method"], headers, path, query)
        elif preflight:
            await exchange.reply(HttpReply(HTTPStatus.NO_CONTENT))
        elif isinstance(owner := self._access.owner(headers), Denied):
            await exchange.reply(refusal(owner.status, owner.reason, owner.headers))
        elif scope["path"] == "/metrics":
            await exchange.reply(HttpReply(HTTPStatus.OK, self._metrics(), _TEXT))
        elif _MCP.fullmatch(scope["path"]) and b"%" not in scope["raw_path"]:
            path = scope["path"].rstrip("/")
            with self._counted(owner) as refused:
                if refused is not None:
                    await exchange.reply(refused)
                else:
                    await self._serve(exchange, scope["method"], listed, owner=owner, path=path)
        else:
            reason = "There is nothing here; MCP is spoken at /mcp."
            await exchange.reply(refusal(HTTPStatus.NOT_FOUND, reason))

    @contextmanager
    def _counted(self, owner: str) -> Generator[HttpReply | None]:
        """One more exchange of this token; a refusal where it has as many as one may have."""
        there = self._open[owner]
        reason = f"This token has {there} requests open. Wait until one has ended."
        self._open[owner] += 1
        try:
            is_full = there >= self._limits.exchanges
            yield refusal(HTTPStatus.TOO_MANY_REQUESTS, reason) if is_full else None
        finally:
            self._open[owner] -= 1

    async def _serve(
        self,
        exchange: HttpExchange,
        method: str,
        listed: list[tuple[str, str]],
        *,
        owner: str,
        path: str,
    ) -> None:
        headers = _combined(listed)
        version = headers.get("mcp-protocol-version")
        is_handshake = version is None or version in LEGACY_VERSIONS
        allowed = ("GET", "POST", "DELETE") if is_handshake else ("POST",)
        if method not in allowed:
            allow = (("allow", ", ".join(allowed)),)
            reason = f"{method} is not for this address."
            await exchange.reply(refusal(HTTPStatus.METHOD_NOT_ALLOWED, reason, allow))
        elif problem := _unfit(method, headers):
            await exchange.reply(problem)
        elif method == "GET":
            await self._handshake.get(exchange, headers, owner=owner, path=path)
        elif method == "DELETE":
            await self._handshake.delete(exchange, headers, owner=owner, path=path)
        else:
            with HeldBytes(self._budget, owner) as held:
                # Read where it is used: while an answer is awaited, nobody here holds the body.
                read = partial(self._body, exchange, headers, held, owner)
                if is_handshake:
                    post = self._handshake.post(
                        exchange, headers, read, held, owner=owner, path=path
                    )
                else:
                    post = self._modern.post(exchange, listed, read, held, owner=owner, path=path)
                await post

    async def _body(
        self, exchange: HttpExchange, headers: dict[str, str], held: HeldBytes, owner: str
    ) -> bytes | None:
        """As a process will read it; None when the client has been told why it is not taken."""
        limits = self._limits
        body = await exchange.body(held, limit=limits.body_bytes, within=limits.body_s)
        if isinstance(body, HttpReply):
            await exchange.reply(body)
            return None
        # It may have taken its time, and its token may be worth nothing by now.
        if isinstance(now := self._access.owner(headers), Denied) or now != owner:
            reason = "This token was revoked."
            await exchange.reply(refusal(HTTPStatus.UNAUTHORIZED, reason))
            return None
        return one_line(body)

    def _metrics(self) -> bytes:
        """Counts for Prometheus; nothing that a client or a server said."""
        sessions = self._sessions
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


def _unfit(method: str, headers: dict[str, str]) -> HttpReply | None:
    """A client that could not read the answer, or that sends something else than JSON."""
    accept = headers.get("accept", "")
    kinds = {"GET": ("text/event-stream",), "POST": ("application/json", "text/event-stream")}
    wanted = kinds.get(method, ())
    if "*/*" not in accept and not all(kind in accept for kind in wanted):
        return refusal(HTTPStatus.NOT_ACCEPTABLE, f"Accept must name {' and '.join(wanted)}.")
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if method == "POST" and kind != "application/json":
        reason = "The body must be application/json."
        return refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, reason)
    return None
