"""A small HTTP/1.1 server on bare sockets, so that a test can misbehave in exactly one way.

A handler gets an `Exchange`: what was asked, and the means to answer well, badly or not at all.
The server can be stopped, with all its connections, and started again on the same port.
"""

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

LOOPBACK = "127.0.0.1"
REASONS = {200: "OK", 202: "Accepted", 307: "Temporary Redirect", 404: "Not Found"}


@dataclass
class Exchange:
    """One request, and its answer to be."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    streaming: bool = False
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> dict[str, Any]:
        return json.loads(self.body) if self.body else {}

    @property
    def gone(self) -> bool:
        """Whether the client has hung up."""
        return self.reader.at_eof() or self.writer.is_closing()

    async def raw(self, data: bytes) -> None:
        with contextlib.suppress(ConnectionError):
            self.writer.write(data)
            await self.writer.drain()

    async def reply(
        self,
        status: int = 200,
        body: bytes | Mapping[str, Any] = b"",
        kind: str = "application/json",
        **headers: str,
    ) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        await self.raw(head(status, {"content-length": str(len(data)), **named(kind, headers)}))
        await self.raw(data)

    async def stream(self, **headers: str) -> None:
        """Begin a stream of events."""
        self.streaming = True
        fields = named("text/event-stream", headers)
        await self.raw(head(200, {"transfer-encoding": "chunked", **fields}))

    async def chunk(self, data: bytes) -> None:
        await self.raw(b"%x\r\n%b\r\n" % (len(data), data))

    async def event(self, message: Mapping[str, Any], event_id: str | None = None) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        prefix = f"id: {event_id}\n".encode() if event_id is not None else b""
        await self.chunk(b"event: message\n%bdata: %b\n\n" % (prefix, data))

    async def finish(self) -> None:
        await self.raw(b"0\r\n\r\n")

    def drop(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()


Handler = Callable[[Exchange], Awaitable[None]]


def head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def named(kind: str, headers: Mapping[str, str]) -> dict[str, str]:
    """Header names from keyword arguments."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"content-type": kind, **given} if kind else given


class HttpServer:
    """Serves a handler on loopback."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self.handler = handler
        self.tls = tls
        self.port = 0
        self.received: list[Exchange] = []
        self.connections: set[asyncio.StreamWriter] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{LOOPBACK}:{self.port}/mcp"

    async def start(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, LOOPBACK, self.port, ssl=self.tls, limit=1 << 24
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Hang up on everybody and listen no more; calls under way are forgotten."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self.connections):
            writer.transport.abort()
        tasks, self.tasks = self.tasks, set()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def refuse(self, *, keep: Exchange) -> None:
        """Take no more connections, and keep one of those there are."""
        assert self._server is not None
        self._server.close()
        for writer in self.connections - {keep.writer}:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections.add(writer)
        try:
            while exchange := await read_request(reader, writer):
                self.received.append(exchange)
                await self.handler(exchange)
        except (ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError):
            pass
        finally:
            self.tasks.discard(task)
            self.connections.discard(writer)
            writer.close()


async def read_request(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Exchange | None:
    try:
        block = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *lines = block.decode("latin-1").rstrip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Exchange(method, path, headers, body, reader, writer)


@contextlib.asynccontextmanager
async def serving(
    handler: Handler, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[HttpServer]:
    server = HttpServer(handler, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
