"""The OAuth redirect address on this machine, where the browser brings the one answer.

Only a request for our path with our state is the answer; whatever else comes, a favicon or a page
that guesses, is not found. The browser is answered last, when it is known what came of it, with a
page that loads nothing.
"""

import html
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, urlsplit

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream

CALLBACK_PATH = "/callback"
_LOOPBACK = "127.0.0.1"
_MAX_HEAD_BYTES = 1 << 16  # codes and states are long, but not so long
_HEAD_TIMEOUT_S = 10.0  # a browser sends all of it at once
_PAGE_TIMEOUT_S = 2.0  # for the last page, when all is done
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:1.1em/1.5 system-ui,sans-serif;max-width:34em;margin:18vh auto;padding:0 1em}}
@media(prefers-color-scheme:dark){{body{{background:#16181c;color:#e8e8e8}}}}</style></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""


class Callback:
    """The answer that is waited for, and the page that it is answered with."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.state: str | None = None  # nothing is the answer before there is one
        self._given: dict[str, str] | None = None
        self._came = anyio.Event()
        self._over = anyio.Event()
        self._answering = 0
        self._drained = anyio.Event()
        self._page = _page("Not signed in", "The sign-in was given up. You can close this tab.")

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.port}{CALLBACK_PATH}"

    async def wait(self) -> dict[str, str]:
        await self._came.wait()
        return self._given or {}

    def take(self, given: dict[str, str]) -> bool:
        """Whether these parameters are the answer; the first ones are."""
        ours = self.state is not None and given.get("state") == self.state
        if ours and not self._came.is_set():
            self._given = given
            self._came.set()
        return ours

    def finish(self, title: str, text: str) -> None:
        """What the person reads in the browser."""
        self._page = _page(title, text)
        self._over.set()

    async def close(self) -> None:
        """Answer the browser that waits for its page, and be done."""
        self._over.set()
        if self._answering:
            await self._drained.wait()

    async def serve(self, stream: SocketStream) -> None:
        self._answering += 1
        try:
            async with stream:
                await self._answer(stream)
        except (anyio.BrokenResourceError, anyio.EndOfStream, TimeoutError, ValueError):
            return
        finally:
            self._answering -= 1
            if not self._answering and self._over.is_set():
                self._drained.set()

    async def _answer(self, stream: SocketStream) -> None:
        head = b""
        with anyio.fail_after(_HEAD_TIMEOUT_S):
            while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES:
                head += await stream.receive()
        words = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        target = urlsplit(words[1] if len(words) > 1 and words[0] == "GET" else "")
        if target.path != CALLBACK_PATH or not self.take(dict(parse_qsl(target.query))):
            await stream.send(_response(404, _page("Not found", "There is nothing here.")))
            return
        await self._over.wait()
        await stream.send(_response(200, self._page))


def parameters(address: str) -> dict[str, str]:
    """What stands in an address that a person copied from the browser."""
    try:
        return dict(parse_qsl(urlsplit(address.strip()).query))
    except ValueError:
        return {}


async def bound_listener(port: int) -> Listener[SocketStream]:
    """On this machine only; OSError where the port is taken."""
    made = await anyio.create_tcp_listener(local_host=_LOOPBACK, local_port=port)
    return made.listeners[0]


@asynccontextmanager
async def callback_listener(listener: Listener[SocketStream]) -> AsyncGenerator[Callback]:
    """Listen while the person is away."""
    callback = Callback(listener.extra(SocketAttribute.local_port))  # noqa: S610 - not Django's
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, callback.serve)
        try:
            yield callback
        finally:
            with anyio.move_on_after(_PAGE_TIMEOUT_S, shield=True):
                await callback.close()
            tasks.cancel_scope.cancel()


def _page(title: str, text: str) -> bytes:
    return _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()


def _response(status: int, page: bytes) -> bytes:
    head = [
        f"HTTP/1.1 {status} {'OK' if status < 400 else 'Not Found'}",  # noqa: PLR2004
        "content-type: text/html; charset=utf-8",
        f"content-length: {len(page)}",
        "content-security-policy: default-src 'none'; style-src 'unsafe-inline'",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
        "connection: close",
    ]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + page
