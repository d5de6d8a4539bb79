"""The well-behaved server behind a URL: Streamable HTTP, in both eras.

Usage: plain_http.py [--port PORT], and what plain.py takes

It says its port in one line on stdout and ends when stdin does. A handshake gets a session, and may
listen on a GET stream; a modern request stands for itself, and its end is the end of its POST. Most
tool calls and the streams of changes are answered with events, everything else with JSON.
"""

import asyncio
import gzip
import itertools
import json
import os
import sys
import threading
import uuid
from functools import cache
from typing import Any

import dual
import plain
import rpc
from rpc import Message

JSON_TOOLS = {"echo", "structured", "image", "fail"}
BLANK = "fixture/blank"  # stands for empty lines on their way to a stream
STATUS = {200: "OK", 202: "Accepted", 400: "Bad Request", 404: "Not Found", 405: "Not Allowed"}


@cache
def packed_lines() -> bytes:
    return gzip.compress(gzip.compress(b"\n" * (64 << 20)))


class Client:
    """One socket: requests in, answers out, and whether the other end is still there."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._watch: asyncio.Future[bytes] | None = None

    def gone(self) -> asyncio.Future[bytes]:
        """Done when the client hangs up, or begins its next request."""
        if self._watch is None:
            self._watch = asyncio.ensure_future(self.reader.read(1))
        return self._watch

    @property
    def is_gone(self) -> bool:
        """Hung up in order, or with bytes of ours unread, which resets the connection."""
        watch = self._watch
        if watch is None or not watch.done():
            return False
        return bool(watch.exception()) or not watch.result()

    async def request(self) -> tuple[str, dict[str, str], bytes] | None:
        """The next request: its verb, headers and body."""
        begun = await self.gone()
        self._watch = None
        if not begun:
            return None
        first = begun + await self.reader.readline()
        headers: dict[str, str] = {}
        while (line := await self.reader.readline()).strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = await self.reader.readexactly(int(headers.get("content-length", 0)))
        return first.decode().split()[0], headers, body

    def begin_events(self) -> None:
        self.writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )

    async def event(self, message: Message, *, last: bool = False) -> None:
        data = b"event: message\ndata: %b\n\n" % json.dumps(message, separators=(",", ":")).encode()
        if message.get("method") == BLANK:
            data = b"\n" * message["lines"]
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        if last:
            self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    async def reply(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        fields = {"content-length": str(len(body)), **(headers or {})}
        if body:
            fields["content-type"] = "application/json"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.writer.write(f"HTTP/1.1 {status} {STATUS[status]}\r\n{lines}\r\n".encode() + body)
        await self.writer.drain()

    async def bomb(self) -> None:
        """A few hundred bytes that would become 64 MB of empty lines."""
        body = packed_lines()
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"content-encoding: gzip, gzip\r\ncontent-length: %d\r\n\r\n"
        )
        self.writer.write(head % len(body) + body)
        await self.writer.drain()

    async def next(self, queue: "asyncio.Queue[Message]") -> Message | None:
        """What is to be said next; None once the client is gone."""
        if not queue.empty():
            return queue.get_nowait()
        if self.is_gone:
            return None
        received = asyncio.ensure_future(queue.get())
        await asyncio.wait([received, self.gone()], return_when=asyncio.FIRST_COMPLETED)
        if not received.done() and not self.is_gone:
            await received
        if received.done():
            return received.result()
        received.cancel()
        return None


class Session:
    """One handshake: its server, and what is to be told on its GET stream."""

    def __init__(self, server: dual.Server) -> None:
        self.id = uuid.uuid4().hex
        self.server = server
        self.unasked: asyncio.Queue[Message] = asyncio.Queue()


class Post:
    """One request under way. Inside it has an id of its own: two connections may use the same."""

    def __init__(self, number: int, message: Message, session: Session | None) -> None:
        self.number, self.message, self.session = number, message, session
        self.said: asyncio.Queue[Message] = asyncio.Queue()
        self.is_left = False

    @property
    def streams(self) -> bool:
        method, params = self.message["method"], self.message.get("params") or {}
        if method == "tools/call":
            return params.get("name") not in JSON_TOOLS
        return method == "subscriptions/listen"


class Front:
    """HTTP on one side, the fixture server on the other."""

    def __init__(self, options: Any) -> None:
        self.options = options
        self.modern = plain.server(options)
        self.sessions: dict[str, Session] = {}
        self.posts: dict[int, Post] = {}
        self.numbers = itertools.count(1_000)
        self.loop = asyncio.get_running_loop()
        rpc.outlet = self.take_frame

    # What the server says

    def take_frame(self, data: bytes, number: int | None) -> None:
        message = json.loads(data) if data.strip() else {"method": BLANK, "lines": len(data)}
        self.loop.call_soon_threadsafe(self.route, message, number)

    def route(self, message: Message, number: int | None) -> None:
        """To the POST that it belongs to; what belongs to none, to the GET stream."""
        meta = (message.get("params") or {}).get("_meta") or {}
        stream = self.posts.get(meta.get(dual.SUBSCRIPTION))
        if "method" not in message:
            post = self.posts.get(message["id"])
            if post is not None:
                self.unmark(message, post)
                if post.is_left:
                    del self.posts[post.number]
                post.said.put_nowait({**message, "id": post.message["id"]})
            return
        if stream is not None:
            meta[dual.SUBSCRIPTION] = stream.message["id"]
            stream.said.put_nowait(message)
            return
        post = self.posts.get(number)
        unasked = message["method"] in dual.LISTENED
        if post is None or (post.session and (post.is_left or unasked)):
            for session in [post.session] if post else self.sessions.values():
                session.unasked.put_nowait(message)
        else:
            post.said.put_nowait(message)

    def unmark(self, message: Message, post: Post) -> None:
        result = message.get("result")
        meta = result.get("_meta") if isinstance(result, dict) else None
        if meta and dual.SUBSCRIPTION in meta:
            meta[dual.SUBSCRIPTION] = post.message["id"]

    # What the client says

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = Client(reader, writer)
        try:
            while request := await client.request():
                await self.answer(client, *request)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, client: Client, verb: str, headers: dict[str, str], body: bytes) -> None:
        session = self.sessions.get(headers.get("mcp-session-id", ""))
        if "mcp-session-id" in headers and session is None:
            await client.reply(404)
        elif verb == "POST":
            message = json.loads(body)
            rpc.record("received", message=message, line=body.decode(errors="replace"))
            await self.post(client, message, session)
        elif session is None:
            await client.reply(405)
        elif verb == "DELETE":
            del self.sessions[session.id]
            await client.reply(200)
        else:
            client.begin_events()
            while (said := await client.next(session.unasked)) is not None:
                await client.event(said)

    async def post(self, client: Client, message: Message, session: Session | None) -> None:
        server = session.server if session else self.modern
        if "method" not in message and server.holds_answers:
            await client.gone()
            return
        if "id" not in message or "method" not in message:
            server.take(self.renumbered(message, session))
            await client.reply(202)
            return
        if ((message.get("params") or {}).get("arguments") or {}).get("packed"):
            await client.bomb()
            return
        fresh: dict[str, str] = {}
        if message["method"] == "initialize" and self.options.era != "modern":
            session = Session(plain.server(self.options))
            self.sessions[session.id] = session
            server, fresh = session.server, {"mcp-session-id": session.id}
        elif session is None and not server.is_modern(message) and self.options.era != "modern":
            await client.reply(400)
            return
        post = Post(next(self.numbers), message, session)
        self.posts[post.number] = post
        server.take({**message, "id": post.number})
        try:
            await self.hear_out(client, post, fresh)
        finally:
            post.is_left = client.is_gone
            if session is None or not post.is_left:
                self.posts.pop(post.number, None)
            if post.is_left and session is None:
                cancelled = {"requestId": post.number}
                server.take({"method": "notifications/cancelled", "params": cancelled})

    def renumbered(self, message: Message, session: Session | None) -> Message:
        """A cancellation names the client's id; the server knows the post's number."""
        if message.get("method") != "notifications/cancelled":
            return message
        for post in self.posts.values():
            if post.session is session and post.message["id"] == message["params"]["requestId"]:
                return {**message, "params": {"requestId": post.number}}
        return message

    async def hear_out(self, client: Client, post: Post, fresh: dict[str, str]) -> None:
        """Send what belongs to a request, up to its answer, while the client is there."""
        if post.streams:
            client.begin_events()
        over = False
        while not over and (said := await client.next(post.said)) is not None:
            over = "method" not in said
            if post.streams:
                await client.event(said, last=over)
            elif over:
                await client.reply(200, json.dumps(said).encode(), fresh)


def leave_with_stdin() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def main() -> None:
    parser = plain.arguments()
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    rpc.record("start")
    front = Front(options)
    server = await asyncio.start_server(
        front.serve, "127.0.0.1", options.port, limit=1 << 24, reuse_address=True
    )
    os.write(1, b"%d\n" % server.sockets[0].getsockname()[1])
    threading.Thread(target=leave_with_stdin, daemon=True).start()
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
