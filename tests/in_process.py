"""A whole proxy inside the test: the real front, session and backends, over memory.

A fixture server that has a `main` for it runs in a thread, and its process is this module's
`MemoryProcess`; any other command is a real process, as ever. What a process, a socket, a signal,
the memory, the environment or the shutdown does cannot be seen here: such tests ask for a real one.
"""

import asyncio
import contextvars
import importlib
import itertools
import math
import os
import signal
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.abc
import msgspec

from emceepee_stdio.app import composed
from emceepee_stdio.cli.serve import OPTIONS, ServeParser
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import Source
from emceepee_stdio.config.settings import FixedValues
from emceepee_stdio.front.front import Front
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.greeting import read_greeting
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.process import Exit, Listener, Process, Spawn, StopTimes
from emceepee_stdio.wire.process_guard import ProcessGuard
from tests.peers import SERVERS
from tests.virtual_time import VirtualTimeLoop, refuse_virtual_time

if str(SERVERS) not in sys.path:
    sys.path.append(str(SERVERS))  # fixture servers import each other by their bare names

rpc: Any = importlib.import_module("rpc")
VirtualTimeLoop.changed = rpc.CHANGED

_PIDS = itertools.count(10_000_000)  # above what a kernel gives
_KILLED, _TERMINATED = -9, -15
_RUNNING = weakref.WeakValueDictionary[int, "MemoryProcess"]()


class _Left(BaseException):
    """Ends a thread of a server that has ended."""


class MemoryHost(rpc.Host):
    """Where a fixture server runs that has no process."""

    def __init__(self, process: "MemoryProcess", environ: Mapping[str, str]) -> None:
        self._process = process
        self._environ = dict(environ)
        self._input = rpc.Mailbox()
        self._ended = threading.Event()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def environ(self) -> Mapping[str, str]:
        return {} if self._ended.is_set() else self._environ

    def feed(self, data: bytes | None) -> None:
        self._input.put(data)

    def lines(self) -> Iterator[bytes]:
        rest = b""
        while (data := self._input.get()) is not None:
            *whole, rest = (rest + data).split(b"\n")
            for line in whole:
                yield line + b"\n"
        if rest:
            yield rest

    def write(self, data: bytes) -> None:
        if self._ended.is_set():
            raise _Left
        self._process.from_thread(self._process.on_stdout, data)

    def complain(self, data: bytes) -> None:
        self._process.from_thread(self._process.on_stderr, data)

    def wait_until(self, is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        def is_over() -> bool:
            return is_so() or self._ended.is_set()

        if isinstance(self._process.loop, VirtualTimeLoop):
            self._process.loop.rest(is_over, seconds)
        else:
            with rpc.CHANGED:
                rpc.CHANGED.wait_for(is_over, seconds)
        if self._ended.is_set():
            raise _Left
        return is_so()

    def start(self, function: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(_Left):
                function()

        if isinstance(self._process.loop, VirtualTimeLoop):
            run = self._process.loop.counted(run)
        super().start(run)

    def leave(self, code: int) -> NoReturn:
        self.end(code)
        raise _Left

    def die(self, number: int) -> NoReturn:
        self.leave(-number)

    def end(self, code: int) -> None:
        with rpc.CHANGED:
            if self._ended.is_set():
                return
            self._ended.set()
            rpc.CHANGED.notify_all()
        self._process.from_thread(self._process.on_exit, code)

    def run(self, main: Callable[[list[str]], None], argv: list[str]) -> None:
        rpc.HOST.set(self)
        try:
            main(argv)
        except _Left:
            pass
        except SystemExit as error:
            self.end(error.code if isinstance(error.code, int) else 1)
        except BaseException as error:  # as an interpreter that ends with a traceback
            self.complain(f"{type(error).__name__}: {error}\n".encode())
            self.end(1)
            raise
        else:
            self.end(0)


class _Input:
    """The stdin of a `MemoryProcess`."""

    pending = 0

    def __init__(self, host: MemoryHost, on_written: Callable[[int], None] | None) -> None:
        self._host = host
        self._on_written = on_written
        self._total = 0
        self.broken = False

    def write(self, data: bytes) -> None:
        if self.broken:
            return
        self._total += len(data)
        self._host.feed(data)
        if self._on_written is not None:
            asyncio.get_running_loop().call_soon(self._on_written, self._total)

    async def drained(self) -> None: ...

    def close(self) -> None:
        if not self.broken:
            self.broken = True
            self._host.feed(None)


class MemoryProcess:
    """What a channel knows of a process, for a server that runs in a thread of this one."""

    unread = 0

    def __init__(
        self, spawn: Spawn, listener: Listener, main: Callable[[list[str]], None], argv: list[str]
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._listener = listener
        self._paused: list[bytes] | None = None
        self.pid = next(_PIDS)
        _RUNNING[self.pid] = self
        self.exit: Exit | None = None
        self.exited = anyio.Event()
        self.ended = anyio.Event()
        self._host = MemoryHost(self, spawn.env)
        self.stdin = _Input(self._host, listener.on_written)
        self._host.start(partial(contextvars.Context().run, self._host.run, main, argv))

    def __repr__(self) -> str:
        return f"<MemoryProcess {self.pid} {self.exit or 'running'}>"

    def from_thread(self, function: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the test is over
            self.loop.call_soon_threadsafe(function, *args, context=self._context)

    def on_stdout(self, data: bytes) -> None:
        if self._paused is not None:
            self._paused.append(data)
        elif self.exit is None:
            self._listener.on_stdout(data)

    def on_stderr(self, data: bytes) -> None:
        for line in data.decode(errors="replace").splitlines():
            self._listener.on_stderr(line)

    def on_exit(self, code: int) -> None:
        self.resume()
        self.exit = Exit(code=code)
        self.stdin.broken = True
        self.exited.set()
        self.ended.set()
        self._listener.on_end()

    def pause(self) -> None:
        self._paused = []

    def resume(self) -> None:
        held, self._paused = self._paused, None
        for data in held or ():
            self.on_stdout(data)

    def kill(self) -> None:
        self._host.end(_KILLED)

    async def stop(self, times: StopTimes) -> None:
        with anyio.CancelScope(shield=True):
            self.stdin.close()
            for seconds, code in ((times.term, _TERMINATED), (times.kill - times.term, _KILLED)):
                with anyio.move_on_after(seconds):
                    await self.ended.wait()
                    return
                self._host.end(code)
            await self.ended.wait()


def kill(pid: int) -> None:
    """A server, wherever it runs."""
    process = _RUNNING.get(pid)
    if process is None:
        os.kill(pid, signal.SIGKILL)
    else:
        process.kill()


def _main_of(argv: Sequence[str]) -> Callable[[list[str]], None] | None:
    """The `main` of a fixture server that can run here."""
    if len(argv) < 2 or Path(argv[1]).parent != SERVERS:
        return None
    name = Path(argv[1]).stem
    if name not in _HERE or (name == "rude" and argv[2] in _RUDE_PROCESSES):
        return None
    return importlib.import_module(name).main


_HERE = {"large", "library", "many", "plain", "rude"}
_RUDE_PROCESSES = {"stubborn", "grandchild-holds-stdout", "never-reads", "endless", "slow-start"}


class MemoryGuard(ProcessGuard):
    """Starts fixture servers in this process, and everything else as a process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._started: list[MemoryProcess] = []

    async def start(self, spawn: Spawn, listener: Listener, *, drain: float) -> Process:
        main = _main_of(spawn.argv)
        if main is None:
            refuse_virtual_time()
            return await super().start(spawn, listener, drain=drain)
        made: Any = MemoryProcess(spawn, listener, main, list(spawn.argv[2:]))
        self._started.append(made)
        return made

    async def close(self) -> None:
        """What a real one would kill has to be over already."""
        await super().close()
        left = [one for one in self._started if one.exit is None]
        for one in left:
            one.kill()
        assert not left, f"the proxy left these running: {left}"

    def release(self, process: Process) -> None:
        if isinstance(process, Process):
            super().release(process)


class _ClientInput:
    def __init__(self, proxy: "MemoryProxy") -> None:
        self._proxy = proxy

    async def send(self, data: bytes) -> None:
        self._proxy.front.peer.feed(data)
        await anyio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self._proxy.hang_up("the client closed its end")


class MemoryProxy:
    """The proxy as its client sees it: what a process would be, as far as tests use it."""

    returncode: int | None = None

    def __init__(self, runtime: Runtime, protocol: Protocol, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.pid = os.getpid()
        self._queued = 0
        self._out, self.stdout = anyio.create_memory_object_stream[bytes](math.inf)
        self.stdin = _ClientInput(self)
        self._over = anyio.Event()
        self._reason = ""
        self._ended = anyio.Event()
        self.front = Front(
            runtime, protocol, tasks=tasks, write=self._write, queued=lambda: self._queued
        )

    def _write(self, data: bytes) -> None:
        self._queued += len(data)
        self._out.send_nowait(data)
        asyncio.get_running_loop().call_soon(self.front.calls.written, self._queued)

    def hang_up(self, reason: str) -> None:
        self.front.peer.end()
        self._reason = self._reason or reason
        self._over.set()

    def kill(self) -> None:
        self._over.set()

    async def run(self) -> None:
        """As `front.stdio_front.serve` does it, without descriptors and signals."""
        fixed = self.runtime.settings.fixed
        await self._over.wait()
        with anyio.move_on_after(fixed.eof_term_s):
            await self.front.calls.idle()
        times = StopTimes(term=fixed.eof_term_s, kill=fixed.eof_kill_s)
        await self.runtime.stop(times, reason=self._reason)
        await anyio.lowlevel.checkpoint()
        self._out.close()
        self.returncode = 0
        self._ended.set()

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    async def aclose(self) -> None:
        self.hang_up("the test is over")


@asynccontextmanager
async def memory_proxy(
    config: Path,
    environ: Mapping[str, str],
    *,
    fixed: Mapping[str, float],
    arguments: Sequence[str],
    stderr: Callable[[bytes], object],
) -> AsyncIterator[MemoryProxy]:
    """Serve in this process until the client hangs up; nothing of it is left afterwards."""
    options = ServeParser(OPTIONS).parse_args(list(arguments))
    assert not options.config, "the configuration of a conversation is its Setting's"
    assert not options.server, "servers of the command line: mark it as real"
    source = Source(
        config,
        environ=environ,
        policy=options.policy,
        fixed=msgspec.convert(fixed, FixedValues),
    )
    greeting = read_greeting(["--config", str(config), *arguments], environ)
    home = config.parent
    with composed(
        source,
        environ,
        stderr=stderr,
        cwd=home,
        home=home,
        guard=MemoryGuard,
        clock=Clock(monotonic=asyncio.get_running_loop().time),
    ) as runtime:
        runtime.surface.recall(greeting.records)
        async with anyio.create_task_group() as tasks:
            await tasks.start(runtime.run)
            proxy = MemoryProxy(runtime, Protocol(greeting), tasks)
            tasks.start_soon(proxy.run)
            try:
                yield proxy
            finally:
                with anyio.CancelScope(shield=True):
                    proxy.hang_up("the test is over")
                    await proxy.wait()
                proxy.stdout.close()
                tasks.cancel_scope.cancel()
