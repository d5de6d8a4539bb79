"""An HTTP server on this machine for pages that a person's browser opens; bounded everywhere.

Each connection is one request. Before the handler sees it, the head, the body, the method, `Host`
and `Origin` were judged: a name that leads here, or a page of another site, reaches nothing.
Every reply tells the browser to keep it to itself: not stored, not framed, not referred to.
"""

import hmac
import html
import re
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from importlib.resources import files
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream

from emceepee_stdio.wire.timing import Wakeup

LOOPBACK = "127.0.0.1"
HTML, EVENT_STREAM = "text/html; charset=utf-8", "text/event-stream"
NO_SOURCES = "default-src 'none'; base-uri 'none'; form-action 'none'"
TEXT_ONLY = "require-trusted-types-for 'script'; trusted-types 'none'"
PLAIN_POLICY = f"{NO_SOURCES}; frame-ancestors 'none'"
SERVED_POLICY = (
    f"{PLAIN_POLICY}; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    f"{TEXT_ONLY}"
)

_MAX_CONNECTIONS = 40  # a few tabs, each with a stream and the six files that browsers load at once
_MAX_HEAD_BYTES = 32 << 10  # codes and states of a sign-in are long, but not so long
_MAX_BODY_BYTES = 64 << 10  # a form that a person filled in
_REQUEST_TIMEOUT_S = 10.0  # a browser sends all of it at once
_SEND_TIMEOUT_S = 30.0  # a tab in the background may read late, one that is gone never does
_REQUEST_WORDS = 3
_MAX_DIGITS = 9  # of a length; Python reads longer numbers slowly
_GONE = (
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    TimeoutError,
)
_REFUSAL = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>emceepee</title></head><body><p>{text}</p></body></html>
"""

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PageReply:
    """A whole body, or a stream of events until it ends or the browser has gone."""

    body: bytes | AsyncGenerator[bytes]
    content_type: str = HTML
    status: int = HTTPStatus.OK
    policy: str = PLAIN_POLICY
    more: Headers = ()

    @property
    def headers(self) -> Headers:
        return (
            ("content-type", self.content_type),
            ("content-security-policy", self.policy),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            *self.more,
        )


_CONTENT_TYPES = {
    "html": HTML,
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_FILE_NAME = re.compile(r"[a-z]+\.(html|css|js|svg)", re.ASCII)
_ICON = "icon.svg"  # of every page


class PageRefusal(Exception):
    """The request gets this status and this sentence, and nothing else."""

    def __init__(self, status: int, text: str, more: Headers = ()) -> None:
        super().__init__(text)
        page = _REFUSAL.format(text=html.escape(text)).encode()
        self.reply = PageReply(page, status=status, more=more)


def page_file(package: str, name: str) -> bytes | None:
    """A file of the page that belongs to a package of ours; None for any other name."""
    if not _FILE_NAME.fullmatch(name):
        return None
    owner = "wire" if name == _ICON else package
    try:
        return (files(f"emceepee_stdio.{owner}") / "page" / name).read_bytes()
    except FileNotFoundError:
        return None


def page_reply(package: str, name: str) -> PageReply:
    """The same as a reply. Nothing on a page runs but these files, and they show text alone."""
    body = page_file(package, name)
    if body is None:
        raise PageRefusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
    return PageReply(body, _CONTENT_TYPES[name.rpartition(".")[2]], policy=SERVED_POLICY)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request; a header that came twice has no value that can be trusted."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    def cookies(self) -> dict[str, str]:
        pairs = (part.strip().partition("=") for part in self.headers.get("cookie", "").split(";"))
        return {name: value for name, _, value in pairs}


def check_origin(
    method: str, headers: Mapping[str, str], *, own: Collection[str], methods: Collection[str]
) -> None:
    """Refuse what comes from a page of another site; `own` are the origins of this one.

    A link may lead here, from a terminal in a browser too; nothing else of a page may. A browser
    names the origin of every POST.
    """
    if method not in methods:
        allowed = ", ".join(methods)
        text = f"Only {allowed} is answered here."
        raise PageRefusal(HTTPStatus.METHOD_NOT_ALLOWED, text, (("allow", allowed),))
    origin = headers.get("origin")
    is_foreign = origin not in own and not (origin is None and method == "GET")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        is_link = headers.get("sec-fetch-mode") == "navigate" and method == "GET"
        is_foreign |= not is_link or headers.get("sec-fetch-dest") != "document"
    if is_foreign:
        raise PageRefusal(HTTPStatus.FORBIDDEN, "Another page asked for this.")


async def loopback_listener(port: int) -> tuple[Listener[SocketStream], int]:
    """On this machine only, and its port; OSError where the port is taken."""
    made = await anyio.create_tcp_listener(local_host=LOOPBACK, local_port=port)
    listener = made.listeners[0]
    return listener, listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's


@dataclass(eq=False)
class LoopbackServer:
    """Asks `handler` for the reply to each request that may come in.

    To the paths `led_here` another site sends the browser, so the handler judges what it brings.
    """

    port: int
    handler: Callable[[PageRequest], Awaitable[PageReply]]
    _: KW_ONLY
    methods: Collection[str] = ("GET",)
    led_here: Collection[str] = ()
    _connections: int = field(init=False, default=0)
    _left: Wakeup = field(init=False, default_factory=Wakeup)

    async def accept(self, listener: Listener[SocketStream]) -> None:
        """Until it is cancelled."""
        async with listener, anyio.create_task_group() as tasks:
            await listener.serve(self._serve, tasks)

    async def drained(self) -> None:
        """Returns when no connection is left."""
        await self._left.wait_for(lambda: not self._connections)

    async def _serve(self, stream: SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                await self._send(stream, await self._reply(stream))
        except _GONE:
            return
        finally:
            self._connections -= 1
            self._left.wake()

    async def _reply(self, stream: SocketStream) -> PageReply:
        if self._connections > _MAX_CONNECTIONS:
            text = "Too many connections. Close other tabs of this page."
            return PageRefusal(HTTPStatus.SERVICE_UNAVAILABLE, text).reply
        try:
            with anyio.fail_after(_REQUEST_TIMEOUT_S):
                request = await self._received(stream)
            return await self.handler(request)
        except PageRefusal as refused:
            return refused.reply

    async def _received(self, stream: SocketStream) -> PageRequest:
        data = b""
        while b"\r\n\r\n" not in data and len(data) <= _MAX_HEAD_BYTES:
            data += await stream.receive()
        head, _, body = data.partition(b"\r\n\r\n")  # a body may have come along
        if len(head) > _MAX_HEAD_BYTES:
            raise _no_browser(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        first, *lines = head.decode("latin-1").split("\r\n")
        words = first.split(" ")
        if len(words) != _REQUEST_WORDS or not words[1].startswith("/"):
            raise _no_browser(HTTPStatus.BAD_REQUEST)
        headers = _headers(lines)
        target = urlsplit(f"//host{words[1]}")
        self._check(words[0], target.path, headers)
        if words[0] == "POST":
            body = await _body(stream, body, headers)
        query = dict(parse_qsl(target.query))
        return PageRequest(
            method=words[0], path=target.path, query=query, headers=headers, body=body
        )

    def _check(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        authority = f"{LOOPBACK}:{self.port}"
        own = f"http://{authority}"
        judged = {"origin": own} if path in self.led_here else headers
        check_origin(method, judged, own=(own,), methods=self.methods)
        if headers.get("host") != authority:
            raise PageRefusal(HTTPStatus.FORBIDDEN, "This address does not belong to the page.")

    async def _send(self, stream: SocketStream, reply: PageReply) -> None:
        lines = [
            f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}",
            *(f"{name}: {value}" for name, value in reply.headers),
            "connection: close",
        ]
        if isinstance(reply.body, bytes):
            lines.append(f"content-length: {len(reply.body)}")
        head = "\r\n".join(lines).encode() + b"\r\n\r\n"
        if isinstance(reply.body, bytes):
            await _write(stream, head + reply.body)
            return
        async with aclosing(reply.body) as events, anyio.create_task_group() as tasks:
            tasks.start_soon(_until_closed, stream, tasks.cancel_scope)
            try:
                await _write(stream, head)
                async for event in events:
                    await _write(stream, event)
            except _GONE:
                pass
            tasks.cancel_scope.cancel()


# Who may see a page: the browser that brings a token, once, and from then on has a cookie.
#
# No script can read the cookie, no other site can make the browser send it, and it is bound to a
# path that nobody guesses: browsers send cookies to every port of a host, but not to another path.
# `Host` is compared, so that a name which somebody points to this machine leads nowhere.


OPEN_PATH = "/open"
_OPENED = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>emceepee</title><meta http-equiv="refresh" content="0;url={path}"></head></html>
"""


class Entrance:
    """The entrance to one page. `again` is what a person does where they do not get in."""

    def __init__(self, name: str, *, path: str, cookie: str, again: str) -> None:
        self._name = name
        self.path = f"/{path}/"
        self.cookie = cookie
        self._again = again
        self._tokens: dict[str, bool] = {}  # and whether it has been used

    def new_token(self) -> str:
        token = secrets.token_urlsafe(24)
        self._tokens[token] = False
        return token

    def within(self, request: PageRequest) -> str:
        """What is asked for of the page; refused without the cookie."""
        given = request.cookies().get(self._name, "")
        if not hmac.compare_digest(given.encode(), self.cookie.encode()):
            raise PageRefusal(HTTPStatus.FORBIDDEN, self._again)
        if not request.path.startswith(self.path):
            raise PageRefusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
        return request.path.removeprefix(self.path)

    def opened(self, given: str, request: PageRequest) -> PageReply:
        """Use up the token: the cookie for it, and the way on.

        Not by a redirect: after one that another site began, a browser would not send the cookie.
        """
        if "prefetch" in request.headers.get("sec-purpose", ""):
            text = "The address is opened by a person, not in advance."
            raise PageRefusal(HTTPStatus.FORBIDDEN, text)
        known = [one for one in self._tokens if hmac.compare_digest(given.encode(), one.encode())]
        if not known:
            raise PageRefusal(HTTPStatus.FORBIDDEN, f"This address is not known. {self._again}")
        if self._tokens[known[0]]:
            raise UsedAgain(HTTPStatus.FORBIDDEN, f"This address has been used. {self._again}")
        self._tokens[known[0]] = True
        page = _OPENED.format(path=self.path).encode()
        cookie = f"{self._name}={self.cookie}; Path={self.path}; HttpOnly; SameSite=Strict"
        return PageReply(page, more=(("set-cookie", cookie),))


class UsedAgain(PageRefusal):
    """A token was brought a second time."""


def _no_browser(status: int) -> PageRefusal:
    return PageRefusal(status, "This is no request of a browser.")


def _headers(lines: Collection[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = "" if name.lower() in headers else value.strip()
    return headers


async def _body(stream: SocketStream, body: bytes, headers: Mapping[str, str]) -> bytes:
    """A browser says how long a form is."""
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or "transfer-encoding" in headers:
        raise _no_browser(HTTPStatus.LENGTH_REQUIRED)
    if len(length) > _MAX_DIGITS or int(length) > _MAX_BODY_BYTES:
        raise PageRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "This is too much for a form.")
    while len(body) < int(length):
        body += await stream.receive()
    return body[: int(length)]


async def _write(stream: SocketStream, data: bytes) -> None:
    with anyio.fail_after(_SEND_TIMEOUT_S):
        await stream.send(data)


async def _until_closed(stream: SocketStream, scope: anyio.CancelScope) -> None:
    """A browser sends nothing on a stream; what comes is its end."""
    try:
        while True:
            await stream.receive()
    except _GONE:
        scope.cancel()
