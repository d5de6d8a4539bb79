"""A backend as a child process, spoken to on our own wire.

Each connection is one process: opened with the handshake, or the modern way when the server refuses
that, and gone with all that it started when the connection is left.
"""

import shlex
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
from msgspec import Raw

from emceepee_stdio.backends.base import (
    Era,
    LogLine,
    LogSource,
    Loss,
    OnProgress,
    Params,
    Sink,
    Underway,
)
from emceepee_stdio.backends.channels.conversation import Conversation
from emceepee_stdio.backends.eras import (
    initialize_params,
    read_discovery,
    read_handshake,
    refuses_handshake,
    stamp,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CannotConnect, ServerFailed, ServerUnavailable
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import redact_argv
from emceepee_stdio.wire.codec import RequestId, RpcError
from emceepee_stdio.wire.environment import child_directory, child_environment, resolve_command
from emceepee_stdio.wire.peer import Closed, OnDone, Outcome, Overdue, Peer
from emceepee_stdio.wire.process import Listener, Process, Spawn, StopTimes
from emceepee_stdio.wire.watchdog import Watchdog

__all__ = ["Command", "Haste", "StdioChannel", "StdioOptions", "Surroundings"]

_ENDLESS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, as the configuration or the model gave it."""

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str]
    pass_env: Sequence[str] = ()
    cwd: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StdioOptions:
    """How this server is to be treated. Times are seconds; without an era the server is asked."""

    era: Era | None = None
    connect: float = 120.0
    probe: float = 5.0
    drain: float = 0.1
    stop: StopTimes = field(default_factory=lambda: StopTimes(term=2.0, kill=4.0))
    tail_lines: int = 10
    max_line: int = 64 << 20
    max_unread: int = 64 << 20


@dataclass(slots=True)
class Haste:
    """How fast children are stopped when we ourselves are going; None while we stay."""

    times: StopTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What all children of this process share."""

    clock: Clock
    ids: Ids
    environ: Mapping[str, str]
    cwd: Path
    home: Path
    owner: str
    watchdog: Watchdog
    haste: Haste = field(default_factory=Haste)


class StdioChannel:
    """Starts the process and opens the conversation; remembers the era that worked."""

    transport = "stdio"

    def __init__(
        self,
        name: str,
        command: Command,
        *,
        sink: Sink,
        surroundings: Surroundings,
        options: StdioOptions | None = None,
    ) -> None:
        self._name = name
        self._command = command
        self._sink = sink
        self._around = surroundings
        self.options = options or StdioOptions()
        self._learned: Era | None = None

    def __repr__(self) -> str:
        return f"<StdioChannel {self._name} {self.target}>"

    @property
    def target(self) -> str:
        return shlex.join(redact_argv([self._command.command, *self._command.args]))

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator["StdioConnection"]:
        """Start, open, and at the end stop and clear away."""
        for era in self._openings():
            async with self._running() as connection:
                if not await self._open(connection, era):
                    continue
                self._learned = connection.hello.era
                yield connection
                return
        raise CannotConnect(
            f"{self._name} refused the handshake and then the modern opening as well.",
            hint="Set era to legacy or modern, whichever this server documents.",
        )

    def _openings(self) -> Iterator[Era]:
        """A server that refuses one era and leaves is started once more, for the other."""
        first = self.options.era or self._learned or Era.LEGACY
        yield first
        if self.options.era is None:
            yield Era.LEGACY if first is Era.MODERN else Era.MODERN

    async def _open(self, connection: "StdioConnection", era: Era) -> bool:
        """Say hello; False when this server wants the other era and another process."""
        if era is Era.MODERN:
            return await self._discover(connection)
        outcome = await connection.ask("initialize", initialize_params(), self.options.connect)
        if isinstance(outcome, RpcError) and refuses_handshake(outcome):
            if self.options.era is Era.LEGACY:
                raise CannotConnect(
                    f"{self._name} speaks only the modern era: {outcome.message}",
                    hint="Remove era: legacy from this server's settings.",
                )
            return await self._discover(connection)
        result = connection.opened(outcome, "initialize", self.options.connect)
        connection.hello = read_handshake(result, server=self._name)
        connection.notify("notifications/initialized")
        return True

    async def _discover(self, connection: "StdioConnection") -> bool:
        connection.era = Era.MODERN
        outcome = await connection.ask("server/discover", {}, self.options.probe)
        if isinstance(outcome, Closed | Overdue | RpcError) and self.options.era is None:
            return False
        if isinstance(outcome, RpcError):
            raise CannotConnect(
                f"{self._name} does not speak the modern era: {outcome.message}",
                hint="Remove era: modern from this server's settings.",
            )
        result = connection.opened(outcome, "server/discover", self.options.probe)
        connection.hello = read_discovery(result, server=self._name)
        return True

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator["StdioConnection"]:
        """One process, from its start to the end of everything that it started."""
        connection = StdioConnection(
            self._name, sink=self._sink, around=self._around, options=self.options
        )
        watchdog = self._around.watchdog
        watchdog.start()
        process = await Process.start(
            self._spawn(), connection.listener(), drain=self.options.drain
        )
        watchdog.add(process.pid)
        connection.process = process
        self._sink.process_started(self._name, process.pid)
        try:
            yield connection
        finally:
            connection.leave()
            with anyio.CancelScope(shield=True):
                await process.stop(self._around.haste.times or self.options.stop)
            watchdog.remove(process.pid)

    def _spawn(self) -> Spawn:
        owner = f"{self._around.owner}.{self._around.ids()}"
        env = child_environment(
            self._around.environ,
            env=self._command.env,
            pass_env=self._command.pass_env,
            owner=owner,
        )
        directory = child_directory(
            self._command.cwd, ours=self._around.cwd, home=self._around.home
        )
        if not directory.is_dir():
            raise CannotConnect(
                f"The directory {directory} for {self._name} does not exist.",
                hint="Make it, or correct cwd.",
            )
        program = resolve_command(
            self._command.command, path=env.get("PATH", ""), directory=directory
        )
        return Spawn(argv=[program, *self._command.args], env=env, cwd=directory, owner=owner)


class _Underway:
    """A request on a pipe, which nobody waits for in a task."""

    __slots__ = ("_calls", "_peer", "request_id")

    def __init__(self, peer: Peer, calls: dict[RequestId, object]) -> None:
        self._peer = peer
        self._calls = calls
        self.request_id: RequestId = 0

    def forget(self) -> None:
        self._calls.pop(self.request_id, None)

    def cancel(self) -> None:
        self.forget()
        self._peer.cancel(self.request_id, "cancelled")


class StdioConnection(Conversation):
    """The conversation with one process."""

    process: Process

    def __init__(
        self, name: str, *, sink: Sink, around: Surroundings, options: StdioOptions
    ) -> None:
        super().__init__(
            name,
            sink=sink,
            clock=around.clock,
            proxy_id=around.ids(),
            max_line=options.max_line,
        )
        self._tail_lines = options.tail_lines
        self._max_unread = options.max_unread
        self._max_line = options.max_line
        self._endless = False
        self.leaving = False

    def __repr__(self) -> str:
        return f"<StdioConnection {self._name} {self.era.value} {self.process!r}>"

    @property
    def pid(self) -> int:
        return self.process.pid

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw:
        """Ask, unless the server has stopped reading and would only fill our memory."""
        if self.process.pending > self._max_unread:
            raise ServerUnavailable(
                f"{self._name} does not read: {self.process.pending} bytes wait for it.",
                hint="Call reconnect_server to start it anew.",
            )
        return await super().request(
            method, params, within=within, call=call, on_progress=on_progress
        )

    def begin(
        self,
        method: str,
        params: Params,
        *,
        within: float,
        on_done: OnDone,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Underway | None:
        if self.process.pending > self._max_unread:
            return None
        underway = _Underway(self._peer, self._calls)

        def stamped(request_id: RequestId) -> bytes | None:
            underway.request_id = request_id
            if call is not None:
                self._calls[request_id] = call
            token = None if on_progress is None else request_id
            return stamp(self.era, params, progress_token=token)

        def done(outcome: Outcome) -> None:
            underway.forget()
            on_done(outcome)

        self._caller.begin(method, stamped, within=within, on_done=done, on_progress=on_progress)
        return underway

    async def lost(self) -> Loss:
        """Serve until the process ends; then say why it did."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._caller.keep_time)
            await self.process.ended.wait()
            tasks.cancel_scope.cancel()
        return self._loss()

    def leave(self) -> None:
        """We are going: what is in flight ends now, not when the process does."""
        self.leaving = True
        self._peer.close(f"The connection to {self._name} was closed.")

    def opened(self, outcome: Outcome, method: str, within: float) -> Raw:
        """The result of an opening request; a failure of it is a failure to connect."""
        if isinstance(outcome, Raw):
            return outcome
        if isinstance(outcome, Closed):
            loss = self._loss()
            early = replace(loss, fact=f"{loss.fact} It ended before it answered {method}.")
            raise ServerFailed(str(early))
        if isinstance(outcome, RpcError):
            raise ServerFailed(
                f"{self._name} refused {method} with error {outcome.code}: {outcome.message}"
            )
        if isinstance(outcome, Overdue):
            tail = self._tail()
            raise ServerFailed(
                f"{self._name} did not answer {method} within {within:g} s."
                + (" Its last words on stderr:\n" + "\n".join(tail) if tail else ""),
                hint="Run the command by hand: it must speak MCP on stdin and stdout.",
            )
        raise ServerFailed(self.failure(outcome, method, within).fact)

    def listener(self) -> Listener:
        return Listener(on_stdout=self._on_stdout, on_stderr=self._on_stderr, on_end=self._on_end)

    def _on_stdout(self, data: bytes) -> None:
        """A line many times as long as one may be will not end: stop who writes it."""
        self._peer.feed(data)
        if not self._endless and self._peer.unfinished > _ENDLESS * self._max_line:
            self._endless = True
            self.process.kill()

    def _on_stderr(self, line: str) -> None:
        self._sink.log(self._name, LogLine(source=LogSource.STDERR, text=line))

    def _on_end(self) -> None:
        self._peer.end()
        loss = self._loss()
        self._sink.process_ended(self._name, loss, expected=self.leaving)
        self._peer.close(loss.fact)

    def _write(self, data: bytes) -> None:
        self.process.write(data)

    def _tail(self) -> list[str]:
        return list(self.process.tail)[-self._tail_lines :]

    def _loss(self) -> Loss:
        status = self.process.exit
        if self.leaving and not self.process.ended.is_set():
            return Loss(fact=f"The connection to {self._name} was closed.")
        how = f"{status or 'closed its output'}"
        if self._endless:
            limit = _ENDLESS * self._max_line
            how = f"was stopped: it wrote a line of over {limit} bytes without an end"
        return Loss(
            fact=f"{self._name} {how}.",
            tail=self._tail(),
            exit_code=None if status is None else status.code,
        )
