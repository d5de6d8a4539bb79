"""One fixture server behind a link, in every era and over every transport.

Every rig judges what we sent when it ends, and sees that no task and no process is left.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
from mcp_types import methods

from emceepee_stdio.backends.backend import Backend, BackendOptions, HealthPolicy
from emceepee_stdio.backends.channels.http_channel import HttpChannel, HttpOptions
from emceepee_stdio.backends.channels.stdio_channel import (
    ChildContext,
    Command,
    StdioChannel,
    StdioOptions,
)
from emceepee_stdio.backends.connection import Channel
from emceepee_stdio.backends.interface import Emit, Era, Question
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ProxyError, ServerUnavailable
from emceepee_stdio.ids import Ids
from emceepee_stdio.state.phases import RestartPolicy
from emceepee_stdio.wire.orphans import marked
from emceepee_stdio.wire.process import StopTimes
from emceepee_stdio.wire.process_guard import ProcessGuard
from tests import peers
from tests.e2e import client
from tests.e2e.harness import WAIT_S, Recorder, json_lines
from tests.e2e.judge import judge_client
from tests.in_process import MemoryGuard, kill

COMBINATIONS = ["stdio-legacy", "stdio-modern", "http-legacy", "http-modern"]
VERSIONS = {Era.LEGACY: "2025-11-25", Era.MODERN: "2026-07-28"}
ROOTS = [{"uri": "file:///home/ada", "name": "home"}]
NO_HEALTH = HealthPolicy(interval=3600.0)


class HttpServer:
    """The fixture server behind a URL, which can die and come back at the same place."""

    def __init__(self, options: Sequence[str], env: Mapping[str, str]) -> None:
        self._options = options
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def start(self) -> None:
        script = str(peers.SERVERS / "plain_http.py")
        self._process = process = subprocess.Popen(
            [sys.executable, script, "--port", str(self.port), *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **self._env},
        )
        assert process.stdout is not None
        self.port = int(await anyio.to_thread.run_sync(process.stdout.readline))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@dataclass(frozen=True, kw_only=True)
class BackendRig:
    """One link under test."""

    backend: Backend
    sink: Recorder
    combination: str
    era: Era
    log: Path
    owner: str
    server: HttpServer | None = None
    roots: list[Mapping[str, str]] = field(default_factory=lambda: list(ROOTS))

    @property
    def is_modern(self) -> bool:
        return self.era is Era.MODERN

    @property
    def is_http(self) -> bool:
        return self.server is not None

    async def call(self, tool: str, within: float = WAIT_S, **arguments: object) -> Any:
        result = await self.backend.call_tool(tool, arguments, within=within, call=tool)
        return msgspec.json.decode(result)

    async def text(self, tool: str, within: float = WAIT_S, **arguments: object) -> str:
        return (await self.call(tool, within, **arguments))["content"][0]["text"]

    async def names(self, kind: str) -> list[str]:
        items = await self.backend.list_all(kind, within=WAIT_S)
        return [str(item["name"]) for item in items]

    def received_by_server(self, event: str = "received") -> list[dict[str, Any]]:
        """What the fixture server wrote down, in the order in which it happened."""
        return [line for line in json_lines(self.log) if line["event"] == event]

    def messages(self, method: str | None = None) -> list[dict[str, Any]]:
        received = [line["message"] for line in self.received_by_server()]
        return [m for m in received if method is None or m.get("method") == method]

    def lines(self, method: str) -> list[str]:
        """Messages of that method as the bytes that came."""
        received = self.received_by_server()
        return [line["line"] for line in received if line["message"].get("method") == method]

    async def until_server(self, condition: Callable[[], object]) -> None:
        """Wait for what only the server's log can show."""
        with anyio.fail_after(WAIT_S):
            while not condition():
                await anyio.sleep(0.01)

    async def settle(self) -> None:
        """Until the connection has what it needs to be told of changes."""
        await self.backend.connect(within=WAIT_S)
        stream = self.backend.subscriptions._stream
        if stream is not None:
            await stream.wait_until_answered()

    async def lose(self) -> None:
        """The server dies; the link has noticed when this returns."""
        lost = len(self.sink.changes)
        if self.server is not None:
            self.server.kill()
        else:
            kill(self.sink.pids[-1])
        await self.sink.until(
            lambda: any(
                c.previous and c.previous.value == "connected" for c in self.sink.changes[lost:]
            )
        )

    async def come_back(self) -> None:
        """The server is there again, and the link is connected to it."""
        if self.server is not None:
            await self.server.start()
        with suppress(ServerUnavailable):  # an attempt that began before it was there
            await self.backend.connect(within=WAIT_S)
        await self.settle()

    def judge(self) -> list[str]:
        """Everything that we sent, and everything that we answered."""
        version = VERSIONS[self.era]
        questions = {line["id"]: line["method"] for line in self.received_by_server("asked")}
        for message in self.messages():
            if "result" in message and message["id"] in questions:
                methods.validate_client_result(questions[message["id"]], version, message["result"])
        return judge_client(self.messages(), version)


class Reply:
    """Answers the questions that reach the sink, one after the other."""

    def __init__(self, rig: BackendRig, *answers: object) -> None:
        self._rig = rig
        self._answers = answers

    async def __call__(self) -> None:
        for n, answer in enumerate(self._answers):
            await self._rig.sink.until(lambda n=n: len(self._rig.sink.questions) > n)
            question = self._rig.sink.questions[n]
            assert question.respond(msgspec.json.encode(answer))
            assert not question.respond(b'{"action":"cancel"}')


@dataclass(kw_only=True)
class Outcome:
    """How a call ended that was made beside other things."""

    result: Any = None
    error: ProxyError | None = None
    cancelled: bool = False

    @property
    def text(self) -> str:
        return self.result["content"][0]["text"]


async def beside(
    rig: BackendRig,
    tool: str,
    *others: Callable[[], Any],
    within: float = WAIT_S,
    **arguments: object,
) -> Outcome:
    """Make a call while other things are done; when it fails, so are they."""
    outcome = Outcome()

    async def call() -> None:
        try:
            outcome.result = await rig.call(tool, within, **arguments)
        except ProxyError as error:
            outcome.error = error
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        for other in others:
            tasks.start_soon(other)
    return outcome


def fields(question: Question) -> Any:
    assert question.params is not None
    return msgspec.json.decode(question.params)


@asynccontextmanager
async def running(
    combination: str,
    tmp_path: Path,
    *options: str,
    argv: Sequence[str] | None = None,
    health: HealthPolicy = NO_HEALTH,
    rounds: int = 3,
    request: float = 30.0,
    judged: bool = True,
) -> AsyncGenerator[BackendRig]:
    """Run a link to the fixture server; at the end see what was said and what is left."""
    before = asyncio.all_tasks()
    transport, _, era = combination.partition("-")
    clock = Clock()
    ids = Ids(clock)
    owner = ids()
    guard = (ProcessGuard if client.is_real else MemoryGuard)(owner, warn=lambda _: None)
    sink = Recorder()
    log = tmp_path / f"received-{owner}.jsonl"
    env = {"FIXTURE_LOG": str(log)}
    server = HttpServer(options, env) if transport == "http" else None
    roots: list[Mapping[str, str]] = list(ROOTS)
    around = ChildContext(
        clock=clock,
        ids=ids,
        environ=os.environ,
        cwd=tmp_path,
        home=tmp_path,
        guard=guard,
    )

    def make_channel(emit: Emit) -> Channel:
        if server is not None:
            times = {"connect": 30.0, "probe": 10.0, "reopen": 0.05, "reopen_cap": 0.2}
            return HttpChannel(
                "server",
                server.url,
                emit=emit,
                clock=clock,
                ids=ids,
                options=HttpOptions(era=Era(era), sse=False, **times),
            )
        command = list(argv or peers.plain(*options))
        return StdioChannel(
            "server",
            Command(command=command[0], args=command[1:], env=env),
            emit=emit,
            surroundings=around,
            options=StdioOptions(
                era=Era(era), connect=30.0, probe=30.0, stop=StopTimes(term=1.0, kill=2.0)
            ),
        )

    if server is not None:
        await server.start()
    try:
        async with anyio.create_task_group() as tasks:
            made = Backend(
                "server",
                make_channel,
                emit=sink.take,
                clock=clock,
                uniform=random.uniform,
                tasks=tasks,
                roots=lambda tell: tell(roots),
                options=BackendOptions(
                    request=request,
                    rounds=rounds,
                    restarts=RestartPolicy(base=0.05, cap=0.2, limit=None),
                    health=health,
                ),
            )
            rig = BackendRig(
                backend=made,
                sink=sink,
                combination=combination,
                era=Era(era),
                log=log,
                owner=owner,
                server=server,
                roots=roots,
            )
            tasks.start_soon(made.run)
            try:
                yield rig
            finally:
                await made.stop()
        assert asyncio.all_tasks() <= before
    finally:
        await guard.close()
        if server is not None:
            server.kill()
    assert marked(owner) == []
    if judged:
        rig.judge()
