"""Serves the page of requests on this machine: files, event stream, access checks.

Each connection is one request. Whoever asks is judged by `PageAccess` before anything is looked
up; what is not for them is a refusal of one line.
"""

import hmac
import html
import secrets
from collections.abc import Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import anyio
import msgspec
from anyio.abc import Listener, SocketStream

from emceepee_stdio.clock import HOUR_S
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.storage.private_file import make_private, read_regular, state_directory
from emceepee_stdio.trace.page_feed import (
    CONTENT_TYPES,
    PAGE,
    SERVED_POLICY,
    PageEvents,
    PageFeed,
    page_file,
)

# As much of HTTP as the page needs: the head of a request, and responses.
#
# Every response tells the browser to keep it to itself: not stored, not framed, not referred to.


_REQUEST_WORDS = 3
HTML, EVENT_STREAM = "text/html; charset=utf-8", "text/event-stream"
PLAIN_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_REFUSAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>emceepee trace</title></head><body><p>{text}</p></body></html>
"""


class PageRefusal(Exception):
    """The request gets this status and these words, and nothing else."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """The head of a request; a header that came twice has no value that anybody could trust."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]

    @classmethod
    def of(cls, head: bytes) -> "PageRequest":
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != _REQUEST_WORDS or not words[1].startswith("/"):
            raise PageRefusal(400, "This is no request of a browser.")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            known = name.lower() in headers
            headers[name.lower()] = "" if known else value.strip()
        target = urlsplit(f"//host{words[1]}")
        query = dict(parse_qsl(target.query))
        return cls(method=words[0], path=target.path, query=query, headers=headers)

    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in pairs}


def response(
    status: int,
    body: bytes,
    content_type: str,
    *,
    policy: str = PLAIN_POLICY,
    more: tuple[str, ...] = (),
) -> bytes:
    head = _head(status, content_type, policy, f"content-length: {len(body)}", *more)
    return head + body


def refusal(refused: PageRefusal) -> bytes:
    more = ("allow: GET",) if refused.status == HTTPStatus.METHOD_NOT_ALLOWED else ()
    return response(refused.status, refusal_page(refused), HTML, more=more)


def event_stream_head() -> bytes:
    return _head(200, EVENT_STREAM, PLAIN_POLICY)


def page_headers(content_type: str, policy: str = PLAIN_POLICY) -> tuple[tuple[str, str], ...]:
    """What every response says, whoever serves it."""
    return (
        ("content-type", content_type),
        ("content-security-policy", policy),
        ("referrer-policy", "no-referrer"),
        ("cache-control", "no-store"),
        ("x-content-type-options", "nosniff"),
        ("x-frame-options", "DENY"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cross-origin-resource-policy", "same-origin"),
    )


def refusal_page(refused: PageRefusal) -> bytes:
    return _REFUSAL.format(text=html.escape(refused.text)).encode()


def _head(status: int, content_type: str, policy: str, *more: str) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        *(f"{name}: {value}" for name, value in page_headers(content_type, policy)),
        "connection: close",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


# Who may see the page: whoever has the address that was printed, once, and then that browser.
#
# The token in the address is good for one use. It is exchanged for a cookie which no script can
# read, which no other site can make the browser send, and which is bound to a path that nobody
# guesses: browsers send cookies to every port of a host, but not to another path. `Host` is
# compared, so that a name which somebody points to this machine leads nowhere.
#
# The cookie outlives the page's server, so that an open page comes back by itself when the server
# is started again; it does so for half a day.


LOOPBACK = "127.0.0.1"
OPEN_PATH = "/open"
_COOKIE = "emceepee_trace"
_MAX_AGE_S = 12 * HOUR_S  # a working day; a page that is older is opened anew
_FILE_NAME = "trace-page.json"


class PageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page is, and the cookie that opens it."""

    port: int
    path: str
    cookie: str
    made_at: float

    @classmethod
    def new(cls, port: int, *, now: float) -> "PageIdentity":
        path, cookie = secrets.token_urlsafe(9), secrets.token_urlsafe(32)
        return cls(port=port, path=path, cookie=cookie, made_at=now)

    @classmethod
    def saved(cls, file: Path, *, now: float) -> "PageIdentity | None":
        """That of the last page; None where it is too old or cannot be read."""
        try:
            found = decoded(read_regular(file), cls)
        except OSError:
            return None
        return found if found is not None and 0 <= now - found.made_at < _MAX_AGE_S else None

    def save(self, file: Path) -> None:
        """For its owner alone; a page that cannot be remembered is opened anew."""
        with suppress(OSError):
            make_private(file.parent)
            write_whole(file, msgspec.json.encode(self).decode())


def identity_file(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place for what a program remembers."""
    return state_directory(environ) / _FILE_NAME


class PageAccess:
    """Judges each request; `address` is what a person is given."""

    def __init__(self, identity: PageIdentity) -> None:
        self.identity = identity
        self._authority = f"{LOOPBACK}:{identity.port}"
        self._token: str | None = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        return f"http://{self._authority}{OPEN_PATH}?token={self._token or ''}"

    @property
    def page_path(self) -> str:
        return f"/{self.identity.path}/"

    @property
    def set_cookie(self) -> str:
        given = f"{_COOKIE}={self.identity.cookie}"
        return f"{given}; Path={self.page_path}; HttpOnly; SameSite=Strict"

    def check_origin(self, request: PageRequest) -> None:
        """Refuse what did not come to this address, or comes from a page of somebody else."""
        if request.method != "GET":
            raise PageRefusal(405, "Only GET is answered here.")
        if request.headers.get("host") != self._authority:
            raise PageRefusal(403, "This address does not belong to the page.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{self._authority}":
            raise PageRefusal(403, "Another page asked for this.")
        check_fetch_site(request.headers)

    def redeem(self, request: PageRequest) -> None:
        """Use up the token."""
        if "prefetch" in request.headers.get("sec-purpose", ""):
            raise PageRefusal(403, "The address is opened by a person, not in advance.")
        given, expected = request.query.get("token", ""), self._token
        if expected is None or not hmac.compare_digest(given.encode(), expected.encode()):
            used = "This address has been used" if expected is None else "This address is not known"
            raise PageRefusal(403, f"{used}. Run emceepee trace --web again for a new one.")
        self._token = None

    def check_cookie(self, request: PageRequest) -> None:
        given = request.cookies().get(_COOKIE, "")
        if not hmac.compare_digest(given.encode(), self.identity.cookie.encode()):
            raise PageRefusal(403, "Run emceepee trace --web, and open the address that it prints.")

    def name_in_page(self, request: PageRequest) -> str:
        """What is asked for, below the path of the page."""
        if not request.path.startswith(self.page_path):
            raise PageRefusal(404, "There is nothing here.")
        return request.path.removeprefix(self.page_path)


def check_fetch_site(headers: Mapping[str, str]) -> None:
    """A link may lead here, from a terminal in a browser too; nothing else of a page may."""
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return
    navigates = headers.get("sec-fetch-mode") == "navigate"
    if not navigates or headers.get("sec-fetch-dest") != "document":
        raise PageRefusal(403, "Another page asked for this.")


_MAX_CONNECTIONS = 40  # a few tabs, each with a stream and the six files that browsers load at once
_MAX_HEAD_BYTES = 16 << 10
_HEAD_TIMEOUT_S = 10.0  # a browser sends all of it at once
_SEND_TIMEOUT_S = 30.0  # a tab in the background may read late, one that is gone never does
_EVENTS = "events"
_OPENED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>emceepee trace</title><meta http-equiv="refresh" content="0;url={path}"></head></html>
"""


class PageServer:
    """One page, for whoever `access` lets in."""

    def __init__(self, access: PageAccess, feed: PageFeed) -> None:
        self._access = access
        self._events = PageEvents(feed)
        self._connections = 0

    async def run(self, listener: Listener[SocketStream]) -> None:
        """Until it is cancelled."""
        async with listener, anyio.create_task_group() as tasks:
            await listener.serve(self._serve, tasks)

    async def _serve(self, stream: SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                await self._answer(stream)
        except (
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            anyio.EndOfStream,
            TimeoutError,
        ):
            return
        finally:
            self._connections -= 1

    async def _answer(self, stream: SocketStream) -> None:
        try:
            request = PageRequest.of(await self._head(stream))
            self._access.check_origin(request)
            if request.path == OPEN_PATH:
                await _send(stream, self._opened(request))
                return
            self._access.check_cookie(request)
            name = self._access.name_in_page(request)
            if name == _EVENTS:
                await self._stream(stream, request.query.get("after", ""))
            else:
                await _send(stream, _file(name or PAGE))
        except PageRefusal as refused:
            await _send(stream, refusal(refused))

    async def _head(self, stream: SocketStream) -> bytes:
        if self._connections > _MAX_CONNECTIONS:
            raise PageRefusal(503, "Too many connections. Close other tabs of this page.")
        head = b""
        with anyio.fail_after(_HEAD_TIMEOUT_S):
            while b"\r\n\r\n" not in head:
                head += await stream.receive()
                if len(head) > _MAX_HEAD_BYTES:
                    raise PageRefusal(431, "This is no request of a browser.")
        return head.split(b"\r\n\r\n", 1)[0]

    def _opened(self, request: PageRequest) -> bytes:
        """The cookie, and the way on.

        Not by a redirect: after one that another site began, a browser would not send the cookie.
        """
        self._access.redeem(request)
        page = _OPENED.format(path=self._access.page_path).encode()
        cookie = f"set-cookie: {self._access.set_cookie}"
        return response(200, page, CONTENT_TYPES["html"], more=(cookie,))

    async def _stream(self, stream: SocketStream, after: str) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_closed, stream, tasks.cancel_scope)
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
                await self._tell_all(stream, after)
            tasks.cancel_scope.cancel()

    async def _tell_all(self, stream: SocketStream, after: str) -> None:
        await _send(stream, event_stream_head())
        async with aclosing(self._events.read(after)) as events:
            async for event in events:
                await _send(stream, event)


async def _send(stream: SocketStream, data: bytes) -> None:
    with anyio.fail_after(_SEND_TIMEOUT_S):
        await stream.send(data)


async def _until_closed(stream: SocketStream, scope: anyio.CancelScope) -> None:
    """A browser says nothing on a stream; what comes is its end."""
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
        scope.cancel()


def _file(name: str) -> bytes:
    body = page_file(name)
    if body is None:
        raise PageRefusal(404, "There is nothing here.")
    kind = CONTENT_TYPES[name.rpartition(".")[2]]
    return response(200, body, kind, policy=SERVED_POLICY)
