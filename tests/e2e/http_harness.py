"""A real backend behind a URL for a test: its supervisor, its sink, and what must be gone after."""

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import msgspec

from emceepee_stdio.backends.channels.http_channel import HttpChannel, HttpOptions
from emceepee_stdio.backends.channels.http_connection import HttpConversation
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.ids import Ids
from emceepee_stdio.state.phases import RestartPolicy, Restarts
from tests.e2e.harness import WAIT_S, Recorder, outgoing
from tests.e2e.servers.http_mcp import McpServer

ROOT = Path(__file__).resolve().parent.parent.parent
QUICK = HttpOptions(connect=30.0, network=30.0, probe=20.0, reopen=0.02, reopen_cap=0.2)
FOR_EVER = RestartPolicy(base=0.02, cap=0.1, limit=None)
ONCE = RestartPolicy(limit=0)


@dataclass(frozen=True, kw_only=True)
class HttpRig:
    """One backend under test."""

    supervisor: Supervisor
    channel: HttpChannel
    sink: Recorder

    async def call(
        self, tool: str, within: float = WAIT_S, *, call: object = None, **arguments: object
    ) -> Any:
        params = {"name": tool, "arguments": arguments}
        result = await self.supervisor.request(outgoing("tools/call", params, within, call=call))
        return msgspec.json.decode(result)

    async def text(self, tool: str, within: float = WAIT_S, **arguments: object) -> str:
        return (await self.call(tool, within, **arguments))["content"][0]["text"]

    async def progress(self, tool: str, **arguments: object) -> tuple[str, list[Any]]:
        """The text of a call, and the steps that it reported."""
        received: list[Any] = []
        request = outgoing(
            "tools/call",
            {"name": tool, "arguments": arguments},
            on_progress=lambda raw: received.append(msgspec.json.decode(raw)["progress"]),
        )
        result = await self.supervisor.request(request)
        return msgspec.json.decode(result)["content"][0]["text"], received

    async def tools(self) -> list[dict[str, Any]]:
        """What the server lists, which its connection learns from as behind a link."""
        connection = await self.connection()
        result = await connection.request(outgoing("tools/list"))
        tools = msgspec.json.decode(result)["tools"]
        return list(connection.take_tools(tuple(tools)))

    def hello(self) -> tuple[str, str]:
        hello = self.supervisor.snapshot().hello
        assert hello is not None
        return hello.era.value, hello.protocol_version

    async def connection(self) -> HttpConversation:
        connection = await self.supervisor.connection(within=WAIT_S)
        assert isinstance(connection, HttpConversation)
        return connection


@asynccontextmanager
async def http_backend(
    url: str,
    *,
    options: HttpOptions = QUICK,
    restarts: RestartPolicy = FOR_EVER,
    headers: Mapping[str, str] | None = None,
    lazy: bool = False,
) -> AsyncIterator[HttpRig]:
    """Run the backend, and stop it at the end."""
    clock = Clock()
    sink = Recorder()
    channel = HttpChannel(
        "server", url, emit=sink.take, clock=clock, ids=Ids(clock), headers=headers, options=options
    )
    async with anyio.create_task_group() as tasks:
        supervisor = Supervisor(
            "server",
            channel,
            emit=sink.take,
            clock=clock,
            restarts=Restarts(restarts, uniform=random.uniform),
            tasks=tasks,
            lazy=lazy,
        )
        tasks.start_soon(supervisor.run)
        try:
            yield HttpRig(supervisor=supervisor, channel=channel, sink=sink)
        finally:
            with anyio.fail_after(WAIT_S):
                await supervisor.stop()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """In the end there are no more tasks than before, and no more sockets."""
    tasks, sockets = our_tasks(), open_sockets()
    yield
    assert our_tasks() <= tasks
    await until(lambda: open_sockets() <= sockets)


@asynccontextmanager
async def mcp_server(**options: Any) -> AsyncIterator[McpServer]:
    """The fixture server in this process; in the end nothing of ours may be left to it."""
    async with nothing_left():
        server = McpServer(**options)
        await server.http.start()
        try:
            yield server
            await until(lambda: not server.http.connections)
        finally:
            await server.http.stop()


def our_tasks() -> set[asyncio.Task[Any]]:
    """The tasks of this loop that do not belong to a fixture server."""
    return {
        task
        for task in asyncio.all_tasks()
        if "/servers/" not in getattr(task.get_coro(), "cr_code", _NO_CODE).co_filename
    }


class _NO_CODE:  # noqa: N801 - stands for a code object
    co_filename = ""


def open_sockets() -> set[str]:
    found: set[str] = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = str(fd.readlink())
        except OSError:
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


async def until(condition: Any) -> None:
    with anyio.fail_after(WAIT_S):
        while not condition():
            await anyio.sleep(0.005)


@asynccontextmanager
async def process(
    argv: Sequence[str], env: Mapping[str, str] | None = None
) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A server as a process of its own, gone at the end."""
    child = subprocess.Popen(
        argv, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        yield child
    finally:
        child.kill()
        await anyio.to_thread.run_sync(child.wait)
        assert child.stdout is not None
        child.stdout.close()


async def port_of(child: subprocess.Popen[bytes]) -> int:
    """The port that a server prints first."""
    assert child.stdout is not None
    with anyio.fail_after(WAIT_S):
        line = await anyio.to_thread.run_sync(child.stdout.readline)
    return int(line)


def fixture(*options: str) -> list[str]:
    return [sys.executable, "-m", "tests.e2e.servers.http_mcp", *options]
