"""A small MCP server over HTTP, of both eras and both transports, for tests to bend.

Usage: python -m tests.e2e.servers.http_mcp
    [--era legacy|modern|both] [--answers json|sse] [--port PORT]

It prints its port. Every stream is a log of events that is written out to whoever listens, so a
stream that was cut can be taken up again by the id of the last event.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.servers.http_wire import Exchange, HttpServer

MODERN = "2026-07-28"
P = "io.modelcontextprotocol/"
Message = dict[str, Any]
LOOK_AGAIN = 0.01


class Log:
    """The events of one stream, kept."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.events: list[Message] = []
        self.over = False
        self.news = asyncio.Event()

    def add(self, message: Message) -> None:
        self.events.append(message)
        self.news.set()

    def end(self) -> None:
        self.over = True
        self.news.set()


@dataclass
class Session:
    name: str
    log: Log
    asked: dict[Any, asyncio.Future[Message]] = field(default_factory=dict)


@dataclass
class Call:
    """A tool call under way."""

    server: "McpServer"
    exchange: Exchange
    message: Message
    session: Session | None
    log: Log
    stopped: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def arguments(self) -> Message:
        return self.message["params"].get("arguments", {})

    @property
    def modern(self) -> bool:
        return self.session is None

    def notify(self, method: str, params: Message) -> None:
        self.log.add({"method": method, "params": params})

    def progress(self, step: int, steps: int) -> None:
        token = self.message["params"]["_meta"]["progressToken"]
        params = {"progressToken": token, "progress": step, "total": steps}
        self.notify("notifications/progress", params)

    async def ask(self, log: Log) -> Message:
        assert self.session is not None
        asked = next(self.server.question_ids)
        future = self.session.asked[asked] = asyncio.get_running_loop().create_future()
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        params = {"message": "Who?", "requestedSchema": schema}
        log.add({"id": asked, "method": "elicitation/create", "params": params})
        return await future


Tool = Callable[[Call], Awaitable[str | None]]


class McpServer:
    """`tools` may be changed, and `before` may take any exchange for itself."""

    def __init__(
        self,
        *,
        era: str = "both",
        answers: str = "json",
        version: str = "2025-11-25",
        sessions: bool = True,
        event_ids: bool = True,
        retry_ms: int | None = 20,
        listening: bool = True,
    ) -> None:
        self.era, self.answers, self.version = era, answers, version
        self.with_sessions, self.event_ids = sessions, event_ids
        self.retry_ms, self.listening = retry_ms, listening
        self.http = HttpServer(self.handle)
        self.sessions: dict[str, Session] = {}
        self.logs: dict[str, Log] = {}
        self.calls: dict[Any, Call] = {}
        self.cancelled: list[Any] = []
        self.hung_up: list[Any] = []
        self.names = itertools.count(1)
        self.question_ids = itertools.count()
        self.before: Callable[[Exchange], Awaitable[bool]] | None = None
        self.schemas: dict[str, Message] = {}
        self.tools: dict[str, Tool] = {
            "echo": echo,
            "hang": hang,
            "progress": progress,
            "ask": ask,
            "ask_on_get": ask_on_get,
            "tell": tell,
            "cut": cut,
            "big": big,
        }

    # What tests look at

    @property
    def url(self) -> str:
        return self.http.url

    def messages(self, method: str | None = None) -> list[Message]:
        posted = [e.message for e in self.http.received if e.method == "POST"]
        return [m for m in posted if method is None or m.get("method") == method]

    def exchanges(self, http_method: str = "POST", method: str | None = None) -> list[Exchange]:
        found = [e for e in self.http.received if e.method == http_method]
        return [e for e in found if method is None or e.message.get("method") == method]

    def only_session(self) -> Session:
        (session,) = self.sessions.values()
        return session

    # Serving

    async def handle(self, exchange: Exchange) -> None:
        if self.before is not None and await self.before(exchange):
            return
        if exchange.path.startswith(("/sse", "/messages")):
            await self.handle_sse(exchange)
        elif exchange.method == "POST":
            await self.post(exchange)
        elif exchange.method == "GET":
            await self.get(exchange)
        else:
            self.sessions.pop(exchange.headers.get("mcp-session-id", ""), None)
            await exchange.reply(200)

    async def post(self, exchange: Exchange) -> None:
        message = exchange.message
        meta = (message.get("params") or {}).get("_meta", {})
        if f"{P}protocolVersion" in meta or message.get("method") == "server/discover":
            await self.post_modern(exchange, message)
        elif message.get("method") == "initialize":
            await self.initialize(exchange, message)
        elif self.with_sessions and self.session_of(exchange) is None:
            await exchange.reply(404, {"error": "no such session"})
        else:
            await self.take(exchange, message, self.session_of(exchange) or self.anybody())

    def session_of(self, exchange: Exchange) -> Session | None:
        return self.sessions.get(exchange.headers.get("mcp-session-id", ""))

    def anybody(self) -> Session:
        return next(iter(self.sessions.values()))

    async def post_modern(self, exchange: Exchange, message: Message) -> None:
        if self.era == "legacy":
            error = {"code": -32601, "message": "Method not found"}
            await exchange.reply(400, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif message["method"] == "server/discover":
            await self.answer(
                exchange,
                message,
                {
                    "supportedVersions": [MODERN],
                    "capabilities": {"tools": {}},
                    "ttlMs": 0,
                    "cacheScope": "private",
                    "_meta": {f"{P}serverInfo": {"name": "http", "version": "1"}},
                },
            )
        else:
            await self.take(exchange, message, None)

    async def initialize(self, exchange: Exchange, message: Message) -> None:
        if self.era == "modern":
            data = {"supported": [MODERN], "requested": "2025-11-25"}
            error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
            await exchange.reply(400, {"jsonrpc": "2.0", "id": message["id"], "error": error})
            return
        headers = {"mcp_session_id": self.new_session().name} if self.with_sessions else {}
        if not self.with_sessions:
            self.new_session()
        await self.answer(exchange, message, self.hello(), **headers)

    def hello(self) -> Message:
        return {
            "protocolVersion": self.version,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "http", "version": "1"},
        }

    def new_session(self) -> Session:
        name = f"session-{next(self.names)}"
        session = self.sessions[name] = Session(name, self.new_log())
        return session

    def new_log(self) -> Log:
        log = Log(f"log{next(self.names)}")
        self.logs[log.name] = log
        return log

    async def take(self, exchange: Exchange, message: Message, session: Session | None) -> None:
        """Any message within a session, or a modern one."""
        method = message.get("method")
        if method is None and session is not None:
            session.asked.pop(message["id"]).set_result(message)
        if "id" not in message or method is None:
            if method == "notifications/cancelled":
                self.cancel(message["params"]["requestId"])
            await exchange.reply(202, kind="")
        elif method == "tools/call":
            await self.call(exchange, message, session)
        else:
            await self.answer(exchange, message, self.plain(message, modern=session is None))

    def plain(self, message: Message, *, modern: bool) -> Message:
        if message["method"] == "ping":
            return {}
        tools = [
            {"name": name, "inputSchema": self.schemas.get(name, {"type": "object"})}
            for name in self.tools
        ]
        extra = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
        return {"tools": tools, **extra}

    def cancel(self, request_id: Any) -> None:
        self.cancelled.append(request_id)
        if call := self.calls.get(request_id):
            call.stopped.set()

    async def answer(
        self, exchange: Exchange, message: Message, result: Message, **headers: str
    ) -> None:
        if f"{P}protocolVersion" in (message.get("params") or {}).get("_meta", {}):
            result = {"resultType": "complete", **result}
        response = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        if self.answers == "json":
            await exchange.reply(200, response, **headers)
            return
        await exchange.stream(**headers)
        await exchange.event({"id": message["id"], "result": result})
        await exchange.finish()

    async def call(self, exchange: Exchange, message: Message, session: Session | None) -> None:
        call = Call(self, exchange, message, session, self.new_log())
        self.calls[message["id"]] = call
        work = asyncio.create_task(self.run(call))
        self.http.tasks.add(work)
        work.add_done_callback(self.http.tasks.discard)
        if self.answers == "json":
            await self.wait_json(call, work)
        else:
            await self.pump(exchange, call.log, 0)
            if exchange.gone and not call.log.over:
                self.hung_up.append(message["id"])
                if call.modern:
                    call.stopped.set()

    async def wait_json(self, call: Call, work: asyncio.Task[None]) -> None:
        while not work.done() and not call.exchange.gone:
            await asyncio.wait([work], timeout=LOOK_AGAIN)
        if call.exchange.gone:
            self.hung_up.append(call.message["id"])
            call.stopped.set()
        elif call.log.events:
            await call.exchange.reply(200, {"jsonrpc": "2.0", **call.log.events[-1]})

    async def run(self, call: Call) -> None:
        """One tool; a handler that returns None has seen to the answer itself."""
        text = await self.tools[call.message["params"]["name"]](call)
        if text is not None:
            result = {"content": [{"type": "text", "text": text}]}
            if call.modern:
                result["resultType"] = "complete"
            call.log.add({"id": call.message["id"], "result": result})
        call.log.end()

    async def get(self, exchange: Exchange) -> None:
        session = self.session_of(exchange)
        last = exchange.headers.get("last-event-id")
        if not self.listening:
            await exchange.reply(405)
        elif session is None:
            await exchange.reply(404)
        elif last is None:
            await self.pump(exchange, session.log, 0 if self.event_ids else len(session.log.events))
        else:
            name, _, position = last.partition("/")
            if name in self.logs:
                await self.pump(exchange, self.logs[name], int(position) + 1)
            else:
                await exchange.reply(400)

    async def pump(self, exchange: Exchange, log: Log, position: int) -> None:
        """Write a log out from a position on, until it is over or nobody listens."""
        if exchange.gone:
            return
        if exchange.streaming is False:
            await exchange.stream()
        if self.retry_ms is not None:
            await exchange.chunk(f"retry: {self.retry_ms}\n\n".encode())
        while not exchange.gone:
            for message in log.events[position:]:
                event_id = f"{log.name}/{position}" if self.event_ids else None
                await exchange.event(message, event_id)
                position += 1
            if log.over and position == len(log.events):
                await exchange.finish()
                return
            log.news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN):
                    await log.news.wait()

    # The older transport

    async def handle_sse(self, exchange: Exchange) -> None:
        if exchange.method == "GET" and exchange.path.startswith("/sse"):
            session = self.new_session()
            await exchange.stream()
            await exchange.chunk(f"event: endpoint\ndata: /messages?s={session.name}\n\n".encode())
            await self.pump(exchange, session.log, 0)
            self.sessions.pop(session.name, None)
        elif exchange.path.startswith("/messages"):
            await self.post_sse(exchange, self.sessions[exchange.path.partition("=")[2]])
        else:
            await exchange.reply(405)

    async def post_sse(self, exchange: Exchange, session: Session) -> None:
        message = exchange.message
        await exchange.reply(202, b"Accepted", kind="text/plain")
        method = message.get("method")
        if method is None:
            session.asked.pop(message["id"]).set_result(message)
        elif method == "notifications/cancelled":
            self.cancel(message["params"]["requestId"])
        elif method == "tools/call":
            call = Call(self, exchange, message, session, session.log)
            self.calls[message["id"]] = call
            task = asyncio.create_task(self.run_sse(call))
            self.http.tasks.add(task)
            task.add_done_callback(self.http.tasks.discard)
        elif "id" in message:
            hello = method == "initialize"
            result = self.hello() if hello else self.plain(message, modern=False)
            session.log.add({"id": message["id"], "result": result})

    async def run_sse(self, call: Call) -> None:
        text = await self.tools[call.message["params"]["name"]](call)
        if text is not None:
            result = {"content": [{"type": "text", "text": text}]}
            call.log.add({"id": call.message["id"], "result": result})


async def echo(call: Call) -> str:
    return str(call.arguments.get("message", ""))


async def hang(call: Call) -> str | None:
    """Until it is taken back."""
    await call.stopped.wait()
    return None


async def progress(call: Call) -> str:
    steps = call.arguments["steps"]
    for step in range(1, steps + 1):
        call.progress(step, steps)
    return f"{steps} steps"


async def ask(call: Call) -> str:
    return json.dumps((await call.ask(call.log))["result"])


async def ask_on_get(call: Call) -> str:
    assert call.session is not None
    return json.dumps((await call.ask(call.session.log))["result"])


async def tell(call: Call) -> str:
    """Notifications on the listening stream."""
    assert call.session is not None
    for n in range(call.arguments["n"]):
        call.session.log.add({"method": "notifications/fixture", "params": {"n": n}})
    return "told"


async def cut(call: Call) -> str:
    """Say something, lose the stream, and go on."""
    call.progress(1, 2)
    await asyncio.sleep(5 * LOOK_AGAIN)
    call.exchange.drop()
    await asyncio.sleep(5 * LOOK_AGAIN)
    call.progress(2, 2)
    return "after the cut"


async def big(call: Call) -> str:
    return "x" * call.arguments["bytes"]


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    parser.add_argument("--answers", choices=("json", "sse"), default="json")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    server = McpServer(era=options.era, answers=options.answers)
    server.http.port = options.port
    await server.http.start()
    print(server.http.port, flush=True)  # noqa: T201 - how the test learns it
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
