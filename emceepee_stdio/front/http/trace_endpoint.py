"""The page of requests at `/trace/` in the HTTP front.

A browser sends no bearer token that a person has, so the token is taken as a password, too: here
and nowhere else, because a browser sends a password along whichever page made it ask. Whoever holds
a token sees the sessions that were begun with it, and nothing of others.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_replies import Headers, HttpExchange, HttpReply
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.trace.page_feed import (
    CONTENT_TYPES,
    PAGE,
    SERVED_POLICY,
    PageEvents,
    PageFeed,
    page_file,
)
from emceepee_stdio.trace.page_server import (
    EVENT_STREAM,
    HTML,
    PageRefusal,
    check_fetch_site,
    page_headers,
    refusal_page,
)

TRACE = "/trace"
_EVENTS = "events"
_MAX_STREAMS = 8  # of one token: a person has a few tabs
_ASK = ("www-authenticate", 'Basic realm="emceepee trace: the token is the password"')
_EXTRA: Mapping[int, Headers] = {
    HTTPStatus.UNAUTHORIZED: (_ASK,),
    HTTPStatus.METHOD_NOT_ALLOWED: (("allow", "GET"),),
}


@dataclass(eq=False, slots=True)
class _OpenFeed:
    """The feed of one token while somebody follows it."""

    feed: PageFeed
    events: PageEvents
    streams: int = 0


class TraceEndpoint:
    """Serves the records in `directory` of sessions that began after `since`."""

    def __init__(
        self, sessions: SessionTable, tokens: HttpTokens, directory: Path, *, since: float
    ) -> None:
        self._sessions = sessions
        self._tokens = tokens
        self._directory = directory
        self._since = since
        self._feeds: dict[tuple[str, int], _OpenFeed] = {}
        self._is_closing = False

    def __repr__(self) -> str:
        return f"<TraceEndpoint {len(self._feeds)} feeds>"

    def close(self) -> None:
        """Streams end as soon as they look."""
        self._is_closing = True

    async def serve(
        self,
        exchange: HttpExchange,
        method: str,
        headers: Mapping[str, str],
        path: str,
        query: bytes,
    ) -> None:
        try:
            _check_origin(method, headers)
            owner = self._owner(headers)
            name = path.removeprefix(f"{TRACE}/")
            if path == TRACE:
                way_on = (("location", f"{TRACE}/"), *page_headers(HTML))
                await exchange.reply(HttpReply(HTTPStatus.PERMANENT_REDIRECT, b"", way_on))
            elif name == _EVENTS:
                await self._follow(exchange, owner, query)
            else:
                await exchange.reply(_file(name or PAGE))
        except PageRefusal as refused:
            more = _EXTRA.get(refused.status, ())
            reply = HttpReply(refused.status, refusal_page(refused), (*page_headers(HTML), *more))
            await exchange.reply(reply)

    def _owner(self, headers: Mapping[str, str]) -> str:
        if self._tokens.is_open:
            text = "Without tokens nobody can tell whose requests are whose. On this machine, run"
            raise PageRefusal(HTTPStatus.FORBIDDEN, f"{text} emceepee trace --web.")
        owner = self._tokens.owner(headers.get("authorization"), as_password=True)
        if owner is None:
            text = "Give a token of this front as the password; the user name does not matter."
            raise PageRefusal(HTTPStatus.UNAUTHORIZED, text)
        return owner

    async def _follow(self, exchange: HttpExchange, owner: str, query: bytes) -> None:
        after = parse_qs(query.decode("latin-1")).get("after", [""])[0]
        gone: list[bool] = []
        before = self._tokens.revocations(owner)

        def is_over() -> bool:
            return self._is_closing or bool(gone) or self._tokens.revocations(owner) != before

        with self._feed(owner, before) as events:
            told = events.read(after, is_over=is_over)
            await exchange.stream(told, lambda: gone.append(True), page_headers(EVENT_STREAM))

    @contextmanager
    def _feed(self, owner: str, revoked: int) -> Generator[PageEvents]:
        """Of one holder of the name: the next one sees nothing of it."""
        found = self._feeds.get((owner, revoked)) or self._open(owner, revoked)
        if found.streams >= _MAX_STREAMS:
            raise PageRefusal(HTTPStatus.TOO_MANY_REQUESTS, "Close other tabs of this page first.")
        found.streams += 1
        try:
            yield found.events
        finally:
            found.streams -= 1
            if not found.streams:
                del self._feeds[owner, revoked]
                found.feed.close()

    def _open(self, owner: str, revoked: int) -> _OpenFeed:
        feed = PageFeed(
            self._directory,
            shows=lambda session: self._sessions.was_begun_by(owner, session),
            since=self._since,
        )
        opened = self._feeds[owner, revoked] = _OpenFeed(feed, PageEvents(feed))
        return opened


def _check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Only this front's own page may ask, also where others may use the front."""
    if method != "GET":
        raise PageRefusal(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here.")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise PageRefusal(HTTPStatus.FORBIDDEN, "Another page asked for this.")
    check_fetch_site(headers)


def _file(name: str) -> HttpReply:
    body = page_file(name)
    if body is None:
        raise PageRefusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
    kind = CONTENT_TYPES[name.rpartition(".")[2]]
    return HttpReply(HTTPStatus.OK, body, page_headers(kind, SERVED_POLICY))
