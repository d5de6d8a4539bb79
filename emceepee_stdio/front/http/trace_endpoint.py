"""The page of requests at `/trace/` in the HTTP front.

A browser sends no bearer token that a person has, so the token is taken as a password, too: here
and nowhere else, because a browser sends a password along whichever page made it ask. Whoever holds
a token sees the sessions that were begun with it, and nothing of others.
"""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_exchange import HttpExchange, Incoming
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.trace.trace_page import PageFeed, trace_reply
from emceepee_stdio.wire.loopback_http import PageRefusal, PageReply, check_origin

TRACE = "/trace"
_MAX_STREAMS = 8  # of one token: a person has a few tabs
_ASK = ("www-authenticate", 'Basic realm="emceepee trace: the token is the password"')


@dataclass(eq=False, slots=True)
class _OpenFeed:
    """The feed of one token while somebody follows it."""

    feed: PageFeed
    streams: int = 0


@dataclass(eq=False)
class TraceEndpoint:
    """Serves the records in `directory` of sessions that began after `since`."""

    sessions: SessionTable
    tokens: HttpTokens
    directory: Path
    _: KW_ONLY
    since: float

    def __post_init__(self) -> None:
        self._feeds: dict[tuple[str, int], _OpenFeed] = {}
        self._is_closing = False

    def close(self) -> None:
        """Streams end as soon as they look."""
        self._is_closing = True

    async def serve(self, exchange: HttpExchange, incoming: Incoming) -> None:
        with ExitStack() as held:  # the feed, while it is read
            await exchange.reply(self._reply(incoming, held))

    def _reply(self, incoming: Incoming, held: ExitStack) -> PageReply:
        host = incoming.headers.get("host", "")
        own = (f"http://{host}", f"https://{host}")
        check_origin(incoming.method, incoming.headers, own=own, methods=("GET",))
        owner = self._owner(incoming.headers)
        if incoming.path == TRACE:
            way_on = (("location", f"{TRACE}/"),)
            return PageReply(b"", status=HTTPStatus.PERMANENT_REDIRECT, more=way_on)
        before = self.tokens.revocations[owner]

        def is_over() -> bool:
            return self._is_closing or self.tokens.revocations[owner] != before

        def read(after: str) -> AsyncGenerator[bytes]:
            return held.enter_context(self._feed(owner, before)).events(after, is_over=is_over)

        after = parse_qs(incoming.query).get("after", [""])[0]
        return trace_reply(incoming.path.removeprefix(f"{TRACE}/"), after, read)

    def _owner(self, headers: Mapping[str, str]) -> str:
        if self.tokens.is_open:
            text = "Without tokens nobody can tell whose requests are whose. On this machine, run"
            raise PageRefusal(HTTPStatus.FORBIDDEN, f"{text} emceepee trace --web.")
        owner = self.tokens.owner(headers.get("authorization"), as_password=True)
        if owner is None:
            text = "Give a token of this front as the password; the user name does not matter."
            raise PageRefusal(HTTPStatus.UNAUTHORIZED, text, (_ASK,))
        return owner

    @contextmanager
    def _feed(self, owner: str, revoked: int) -> Generator[PageFeed]:
        """Of one holder of the name: the next one sees nothing of it."""
        found = self._feeds.get((owner, revoked))
        if found is None:
            feed = PageFeed(
                self.directory,
                shows=lambda session: self.sessions.was_begun_by(owner, session),
                since=self.since,
            )
            found = self._feeds[owner, revoked] = _OpenFeed(feed)
        if found.streams >= _MAX_STREAMS:
            raise PageRefusal(HTTPStatus.TOO_MANY_REQUESTS, "Close other tabs of this page first.")
        found.streams += 1
        try:
            yield found.feed
        finally:
            found.streams -= 1
            if not found.streams:
                del self._feeds[owner, revoked]
                found.feed.close()
