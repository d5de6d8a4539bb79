"""The wire against a bare pipe: what one call and one large result cost, with the same server.

The bare pipe is a blocking write and a readline. Ours is the whole way of a backend: supervisor,
connection, peer, codec and loop.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio

from emceepee_stdio.backends.channels.stdio_channel import ChildContext, Command, StdioChannel
from emceepee_stdio.backends.interface import BackendEvent
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.ids import Ids
from emceepee_stdio.state.phases import RestartPolicy, Restarts
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.process_guard import Watchdog

BACKEND = [sys.executable, str(Path(__file__).with_name("raw_backend.py"))]
CALLS = 3_000
LARGE = 10_000_000
WAIT_S = 60.0

Figures = dict[str, float]


def _nobody_listens(_event: BackendEvent) -> None:
    return None


def _median_ms(samples: list[float]) -> float:
    return statistics.median(samples) * 1000


def bare() -> Figures:
    """The floor: one process, two pipes, one call at a time."""
    with subprocess.Popen(BACKEND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        to_server, from_server = server.stdin, server.stdout
        if to_server is None or from_server is None:
            raise RuntimeError("the backend has no pipes")

        def call(size: int) -> float:
            params = {"name": "t", "arguments": {"bytes": size}}
            start = time.perf_counter()
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            to_server.write(json.dumps(message).encode() + b"\n")
            to_server.flush()
            from_server.readline()
            return time.perf_counter() - start

        small = [call(2) for _ in range(CALLS)]
        large = [call(LARGE) for _ in range(10)]
        to_server.close()
    return {"call_ms": _median_ms(small), "large_ms": _median_ms(large)}


async def ours() -> Figures:
    clock = Clock()
    ids = Ids(clock)
    owner = ids()
    watchdog = Watchdog(owner)
    around = ChildContext(
        clock=clock,
        ids=ids,
        environ=os.environ,
        cwd=Path.cwd(),
        home=Path.home(),
        owner=owner,
        watchdog=watchdog,
    )
    command = Command(command=BACKEND[0], args=BACKEND[1:], env={})
    channel = StdioChannel("raw", command, emit=_nobody_listens, surroundings=around)
    restarts = Restarts(RestartPolicy(), uniform=random.uniform)
    figures: Figures = {}

    async def call(size: int) -> float:
        params = {"name": "t", "arguments": {"bytes": size}}
        start = time.perf_counter()
        deadline = clock.now() + WAIT_S
        request = OutgoingRequest(method="tools/call", params=params, deadline=deadline)
        await supervisor.request(request)
        return time.perf_counter() - start

    async def many(count: int) -> None:
        for _ in range(count):
            await call(2)

    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        stack.callback(watchdog.close)
        supervisor = Supervisor(
            "raw", channel, emit=_nobody_listens, clock=clock, restarts=restarts, tasks=tasks
        )
        tasks.start_soon(supervisor.run)
        await call(2)
        small = [await call(2) for _ in range(CALLS)]
        large = [await call(LARGE) for _ in range(10)]
        start = time.perf_counter()
        async with anyio.create_task_group() as callers:
            for _ in range(16):
                callers.start_soon(many, CALLS // 4)
        figures = {
            "call_ms": _median_ms(small),
            "large_ms": _median_ms(large),
            "calls_per_s_at_16": 16 * (CALLS // 4) / (time.perf_counter() - start),
        }
        await supervisor.stop()
    return figures


def run() -> dict[str, Figures]:
    """Both, with the loops that are installed."""
    figures = {"bare pipe": bare(), "wire": anyio.run(ours)}
    try:
        figures["wire, uvloop"] = anyio.run(ours, backend_options={"use_uvloop": True})
    except ImportError:
        print("uvloop is not installed: measured without it", file=sys.stderr)
    return figures
