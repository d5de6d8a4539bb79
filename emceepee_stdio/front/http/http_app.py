"""The ASGI application of the HTTP front: checks access, and routes by path."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from http import HTTPStatus
from typing import Any

from emceepee_stdio import __version__
from emceepee_stdio.front.http.access import Access, Denied
from emceepee_stdio.front.http.http_endpoints import McpEndpoint
from emceepee_stdio.front.http.http_limits import HttpLimits
from emceepee_stdio.front.http.http_replies import (
    HttpExchange,
    HttpRefusal,
    HttpReply,
    Incoming,
    refusal,
)
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.trace_endpoint import TRACE, TraceEndpoint

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
        self._mcp = McpEndpoint(sessions, access.tokens, limits)
        self._open: Counter[str] = Counter()  # exchanges, by whose token
        self._requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self._requests += 1
        # One of the parsers leaves white space at the end of values.
        listed = [
            (name.decode("latin-1"), value.decode("latin-1").strip())
            for name, value in scope["headers"]
        ]
        headers = _combined(listed)
        extra = self._access.cors(headers, preflight=scope["method"] == "OPTIONS")
        exchange = HttpExchange(receive, send, extra=extra)
        try:
            if len(listed) > _MAX_HEADERS:
                reason = f"A request has at most {_MAX_HEADERS} headers here."
                raise refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason)
            if scope["path"] == "/health":  # under any name: a probe knows only an address
                await exchange.reply(HttpReply(HTTPStatus.OK, b'{"status":"ok"}'))
                return
            self._access.check(headers)
            if scope["path"] == TRACE or scope["path"].startswith(f"{TRACE}/"):
                plain = HttpExchange(receive, send)  # no other page may read it
                path, query = scope["path"], scope["query_string"]
                await self._trace.serve(plain, scope["method"], headers, path, query)
            elif scope["method"] == "OPTIONS":
                await exchange.reply(HttpReply(HTTPStatus.NO_CONTENT))
            else:
                await self._serve(exchange, scope, listed, headers)
        except Denied as denied:
            reply = refusal(denied.status, denied.reason, denied.headers).reply
        except HttpRefusal as refused:
            reply = refused.reply
        else:
            return
        await exchange.reply(reply)  # here, so that no traceback holds the body meanwhile

    async def _serve(
        self,
        exchange: HttpExchange,
        scope: Scope,
        listed: list[tuple[str, str]],
        headers: dict[str, str],
    ) -> None:
        owner = self._access.owner(headers)
        if scope["path"] == "/metrics":
            await exchange.reply(HttpReply(HTTPStatus.OK, self._metrics(), _TEXT))
            return
        if not _MCP.fullmatch(scope["path"]) or b"%" in scope["raw_path"]:
            raise refusal(HTTPStatus.NOT_FOUND, "There is nothing here; MCP is spoken at /mcp.")
        there = self._open[owner]
        if there >= self._limits.exchanges:
            reason = f"This token has {there} requests open. Wait until one has ended."
            raise refusal(HTTPStatus.TOO_MANY_REQUESTS, reason)
        incoming = Incoming(
            owner=owner,
            method=scope["method"],
            path=scope["path"].rstrip("/"),
            listed=listed,
            headers=headers,
        )
        self._open[owner] += 1
        try:
            await self._mcp.serve(exchange, incoming)
        finally:
            self._open[owner] -= 1

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
