"""The stdio channel: a server as a child process, and how its exit becomes a loss.

Each connection is one process: opened with the handshake, or the modern way when the server refuses
that, and gone with all that it started when the connection is left.
"""

from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

import anyio
from msgspec import Raw

from emceepee_stdio.backends import eras
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    Emit,
    Era,
    LogLine,
    LogSource,
    Loss,
    Params,
    ProcessEnded,
    ProcessStarted,
    RemoteError,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    CannotConnect,
    OpeningTimeout,
    ProxyError,
    ServerDisconnected,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import PrivateKeyLines, redact_argv, redact_text
from emceepee_stdio.visible_text import harmless, shell_line
from emceepee_stdio.wire.codec import RequestId
from emceepee_stdio.wire.environment import child_directory, child_environment, resolve_command
from emceepee_stdio.wire.framing import Backlog, PartialMessages
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.process import Listener, Process, ProgramFile, Spawn, StopTimes
from emceepee_stdio.wire.process_guard import ProcessGuard

_ENDLESS_LINE_FACTOR = 4  # times the bound: a server that writes on after that will not stop
_UNREAD_ANSWER_BYTES = 1 << 20  # thousands of pings: a server that reads leaves far less
_LOOK_EVERY_S = 0.1  # whether a server has read what was sent: a look costs microseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run, as the configuration or the model gave it.

    `agreed` is the program that a person was shown: it is started, and no other of the name.
    """

    command: str
    args: Sequence[str] = ()
    env: Mapping[str, str]
    pass_env: Sequence[str] = ()
    cwd: str | None = None
    agreed: ProgramFile | None = None


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
    partial: PartialMessages | None = None


@dataclass(slots=True)
class Haste:
    """How fast children are stopped when we ourselves are going; None while we stay."""

    times: StopTimes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildContext:
    """What all children of this process share."""

    clock: Clock
    ids: Ids
    environ: Mapping[str, str]
    cwd: Path
    home: Path
    guard: ProcessGuard
    haste: Haste = field(default_factory=Haste)


@dataclass(eq=False, repr=False)
class StdioChannel:
    """Starts the process and opens the conversation; remembers the era that worked."""

    transport = "stdio"
    needs_tools = False

    name: str
    command: Command
    _: KW_ONLY
    emit: Emit
    surroundings: ChildContext
    options: StdioOptions = field(default_factory=StdioOptions)
    _learned: Era | None = field(init=False, default=None)

    @property
    def target(self) -> str:
        return shell_line(redact_argv([self.command.command, *self.command.args]))

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
            f"{self.name} refused the handshake and then the modern opening as well.",
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
        outcome = await self._shake_hands(connection)
        if connection.era is Era.MODERN and isinstance(outcome, Raw):
            connection.hello = eras.read_discovery(outcome, server=self.name)
            return True
        if isinstance(outcome, RemoteError):
            modern = eras.refuses_handshake(outcome.error)
            if modern and self.options.era is Era.LEGACY:
                raise eras.wrong_era(self.name, Era.LEGACY, outcome.error.message)
            if self.options.era is None:
                if await self._discover(connection):
                    return True
                if modern:
                    return False
        result = connection.opened(outcome, "initialize")
        connection.hello = eras.read_handshake(result, server=self.name)
        connection.notify("notifications/initialized")
        return True

    async def _shake_hands(self, connection: "StdioConnection") -> Raw | ProxyError:
        """The answer to the handshake, or to the modern question where that comes first.

        A server that has read the handshake and says nothing is asked in the modern way, too. One
        that has not read it is still starting, and may not bear a second question.
        """
        outcomes: list[Raw | ProxyError] = []
        async with anyio.create_task_group() as tasks:

            async def ask(era: Era, method: str, params: Params) -> None:
                connection.era = era
                outcome = await connection.greet(method, params, self.options.connect)
                if era is Era.LEGACY or isinstance(outcome, Raw):
                    connection.era = era
                    outcomes.append(outcome)
                    tasks.cancel_scope.cancel()

            tasks.start_soon(ask, Era.LEGACY, "initialize", eras.initialize_params())
            if self.options.era is None and self._learned is None:
                await connection.silence(self.options.probe)
                tasks.start_soon(ask, Era.MODERN, "server/discover", dict[str, object]())
        return outcomes[0]

    async def _discover(self, connection: "StdioConnection") -> bool:
        connection.era = Era.MODERN
        outcome = await connection.greet("server/discover", {}, self.options.probe)
        if self.options.era is None and isinstance(
            outcome, ServerDisconnected | CallTimeout | RemoteError
        ):
            return False
        if isinstance(outcome, RemoteError):
            raise eras.wrong_era(self.name, Era.MODERN, outcome.error.message)
        result = connection.opened(outcome, "server/discover")
        connection.hello = eras.read_discovery(result, server=self.name)
        return True

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator["StdioConnection"]:
        """One process, from its start to the end of everything that it started."""
        connection = StdioConnection(
            self.name, emit=self.emit, around=self.surroundings, options=self.options
        )
        guard = self.surroundings.guard
        process = await guard.start(self._spawn(), connection.listener(), drain=self.options.drain)
        connection.process, connection.pid = process, process.pid
        self.emit(ProcessStarted(process.pid))
        try:
            yield connection
        finally:
            connection.close()
            with anyio.CancelScope(shield=True):
                await process.stop(self.surroundings.haste.times or self.options.stop)
            guard.release(process)

    def _spawn(self) -> Spawn:
        owner = f"{self.surroundings.guard.owner}.{self.surroundings.ids()}"
        env = child_environment(
            self.surroundings.environ,
            env=self.command.env,
            pass_env=self.command.pass_env,
            owner=owner,
        )
        directory = child_directory(
            self.command.cwd, ours=self.surroundings.cwd, home=self.surroundings.home
        )
        if not directory.is_dir():
            raise CannotConnect(
                f"The directory {directory} for {self.name} does not exist.",
                hint="Make it, or correct cwd.",
            )
        agreed = self.command.agreed
        program = (
            resolve_command(self.command.command, path=env.get("PATH", ""), directory=directory)
            if agreed is None
            else agreed.path
        )
        argv = [program, *self.command.args]
        return Spawn(argv=argv, env=env, cwd=directory, owner=owner, agreed=agreed)


class StdioConnection(Connection):
    """The conversation with one process."""

    process: Process

    def __init__(
        self, name: str, *, emit: Emit, around: ChildContext, options: StdioOptions
    ) -> None:
        super().__init__(
            name,
            emit=emit,
            clock=around.clock,
            proxy_id=around.ids(),
            max_line=options.max_line,
            partial=options.partial,
        )
        self._options = options
        self._longest_line = _ENDLESS_LINE_FACTOR * options.max_line
        self._is_endless = False
        self._backlog = Backlog(_UNREAD_ANSWER_BYTES)
        self._is_paused = False
        self._stderr_keys = PrivateKeyLines()
        self._tail: deque[str] = deque(maxlen=options.tail_lines)

    def __repr__(self) -> str:
        return f"<StdioConnection {self._name} {self.era.value} {self.process!r}>"

    def opened(self, outcome: Raw | ProxyError, method: str) -> Raw:
        """The result of an opening request; a failure of it is a failure to connect."""
        if isinstance(outcome, Raw):
            return outcome
        if isinstance(outcome, ServerDisconnected) and self.loss is not None:
            early = f"{self.loss.fact} It ended before it answered {method}."
            raise ServerFailed(early, stderr=self.loss.tail)
        if isinstance(outcome, RemoteError):
            error = outcome.error
            raise ServerFailed(
                f"{self._name} refused {method} with error {error.code}: {error.message}"
            )
        if isinstance(outcome, CallTimeout):
            raise OpeningTimeout(
                outcome.fact,
                stderr=self._last_lines(),
                hint="Run the command by hand: it must speak MCP on stdin and stdout.",
            )
        raise ServerFailed(outcome.fact, stderr=outcome.stderr)

    async def silence(self, seconds: float) -> None:
        """Until the server has read what was sent, and has had so long to answer it."""
        await anyio.sleep(_LOOK_EVERY_S)  # by then it has been sent
        while self.process.unread:  # noqa: ASYNC110 - nobody tells when it is read
            await anyio.sleep(_LOOK_EVERY_S)
        await anyio.sleep(seconds)

    def listener(self) -> Listener:
        return Listener(
            on_stdout=self._on_stdout,
            on_stderr=self._on_stderr,
            on_end=self._on_end,
            on_written=self._on_written,
        )

    def _transmit(self, line: bytes, request_id: RequestId, _request: OutgoingRequest) -> None:
        """Write, unless the server has stopped reading and would only fill our memory."""
        stdin = self.process.stdin
        if stdin.pending > self._options.max_unread:
            unread = ServerUnavailable(
                f"{self._name} does not read: {stdin.pending} bytes wait for it.",
                hint="Call reconnect_server to start it again.",
                for_person="",
            )
            self._peer.give_up(request_id, unread)
        else:
            self._backlog.request(len(line))
            stdin.write(line)

    def _write(self, data: bytes) -> None:
        """Write, and read no more from a server that does not read its answers."""
        if self.process.stdin.broken:
            return
        self._backlog.answer(len(data))
        self.process.stdin.write(data)
        if self._backlog.is_over and not self._is_paused:
            self._is_paused = True
            self.process.pause()

    def _on_written(self, total: int) -> None:
        self._backlog.written(total)
        if self._is_paused and not self._backlog.is_over:
            self._is_paused = False
            self.process.resume()

    def _on_stdout(self, data: bytes) -> None:
        """A line many times as long as one may be will not end: stop who writes it."""
        self._peer.feed(data)
        is_over = self._is_endless or data.endswith(b"\n")
        if not is_over and self._peer.unfinished > self._longest_line:
            self._is_endless = True
            self.process.kill()

    def _on_stderr(self, line: str) -> None:
        line = self._stderr_keys.hide(line)
        self._tail.append(line)
        self._emit(LogLine(source=LogSource.STDERR, text=line))

    def _last_lines(self) -> list[str]:
        """As the log shows them: without what looks like a secret or steers a terminal."""
        return [harmless(redact_text(line)) for line in self._tail]

    def _on_end(self) -> None:
        self._peer.end()
        loss = self._process_loss()
        self._emit(ProcessEnded(loss=loss, expected=self.is_left))
        self.lose(loss)

    def _process_loss(self) -> Loss:
        status = self.process.exit
        how = f"{status or 'closed its output'}"
        if self._is_endless:
            how = f"was stopped: it wrote a line of over {self._longest_line} bytes without an end"
        return Loss(
            fact=f"{self._name} {how}.",
            tail=self._last_lines(),
            exit_code=None if status is None else status.code,
            restarted=True,
        )
