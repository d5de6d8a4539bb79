"""Serves the page on this machine: its files, and the stream of what happens.

Each connection is one request. Whoever asks is judged by `page_access` before anything is looked
up; what is not for them is a refusal of one line.
"""

from contextlib import aclosing, suppress

import anyio
from anyio.abc import Listener, SocketStream

from emceepee_stdio.trace.page_access import OPEN_PATH, PageAccess
from emceepee_stdio.trace.page_events import PageEvents
from emceepee_stdio.trace.page_feed import PageFeed
from emceepee_stdio.trace.page_files import CONTENT_TYPES, PAGE, SERVED_POLICY, page_file
from emceepee_stdio.trace.page_http import (
    PageRefusal,
    PageRequest,
    event_stream_head,
    refusal,
    response,
)

__all__ = ["PageServer"]

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
        self._streams = 0

    def __repr__(self) -> str:
        return f"<PageServer {self._connections} connections, {self._streams} streams>"

    async def run(self, listener: Listener[SocketStream]) -> None:
        """Until it is cancelled."""
        async with listener, anyio.create_task_group() as tasks:
            await listener.serve(self._serve, tasks)

    async def _serve(self, stream: SocketStream) -> None:
        self._connections += 1
        try:
            async with stream:
                await self._answer(stream)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream):
            return
        except TimeoutError:
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
        self._streams += 1
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_closed, stream, tasks.cancel_scope)
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, TimeoutError):
                    await self._tell_all(stream, after)
                tasks.cancel_scope.cancel()
        finally:
            self._streams -= 1

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
