"""A real backend for a test: its supervisor, what the sink received, what must be gone."""

import json
import os
import random
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from emceepee_stdio.backends.channels.stdio_channel import (
    ChildContext,
    Command,
    StdioChannel,
    StdioOptions,
)
from emceepee_stdio.backends.interface import (
    AttemptFailed,
    BackendEvent,
    HealthChange,
    ListsDiffer,
    LogLine,
    LogSource,
    PhaseChange,
    ProcessEnded,
    ProcessStarted,
    Question,
    Seen,
    ServerNotification,
    Withdrawn,
)
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.ids import Ids
from emceepee_stdio.state.phases import RestartPolicy, Restarts
from emceepee_stdio.wire.orphans import marked
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.process import StopTimes
from emceepee_stdio.wire.process_guard import ProcessGuard

if TYPE_CHECKING:
    from emceepee_stdio.backends.interface import Loss
    from emceepee_stdio.errors import ProxyError

WAIT_S = 60.0


class Recorder:
    """Takes what a backend tells, writes everything down and lets a test wait for it."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self.changes: list[PhaseChange] = []
        self.pids: list[int] = []
        self.losses: list[Loss] = []
        self.notifications: list[tuple[str, Any]] = []
        self.logs: list[tuple[LogSource, str]] = []
        self.lines: list[LogLine] = []
        self.differing: list[Sequence[str]] = []
        self.listed: list[Seen] = []
        self.questions: list[Question] = []
        self.withdrawn_questions: list[Question] = []
        self.failed_attempts: list[ProxyError] = []
        self._news = anyio.Event()

    def take(self, event: BackendEvent) -> None:
        match event:
            case ServerNotification():
                self.take_notification(event)
            case LogLine():
                self.logs.append((event.source, event.text))
                self.lines.append(event)
                self._wake()
            case Question():
                self.questions.append(event)
                self._hear(f"asked {event.method}")
            case Withdrawn():
                self._withdraw(event.key)
            case _:
                self._take_life(event)

    def _take_life(self, event: BackendEvent) -> None:
        match event:
            case PhaseChange():
                self.changes.append(event)
                self._hear(event.phase.value)
            case AttemptFailed():
                self.failed_attempts.append(event.error)
                self._hear("attempt failed")
            case ProcessStarted():
                self.pids.append(event.pid)
                self._hear("process started")
            case ProcessEnded():
                self.losses.append(event.loss)
                self._hear("process stopped" if event.expected else "process crashed")
            case ListsDiffer():
                self.differing.append(event.kinds)
                self._hear(f"lists differ {','.join(event.kinds)}")
            case Seen():
                self.listed.append(event)
                self._wake()
            case HealthChange():
                self._hear("health degraded" if event.degraded else "health restored")
            case _:
                raise AssertionError(event)

    def take_notification(self, event: ServerNotification) -> None:
        decoded = None if event.params is None else msgspec.json.decode(event.params)
        self.notifications.append((event.method, decoded))
        self._wake()

    def _withdraw(self, key: object) -> None:
        """As the session does: nobody answers it any more."""
        for question in self.questions:
            if question.key == key:
                question.is_open = False
                self.withdrawn_questions.append(question)
                self._hear(f"withdrawn {question.method}")

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until something that was received makes the condition true."""
        with anyio.fail_after(WAIT_S):
            while not condition():
                await self._news.wait()

    def _hear(self, what: str) -> None:
        self.received.append(what)
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, anyio.Event()
        news.set()


def outgoing(
    method: str,
    params: Mapping[str, object] | None = None,
    within: float = WAIT_S,
    **more: Any,
) -> OutgoingRequest:
    """A request that is answered within so many seconds from now."""
    deadline = Clock().now() + within
    return OutgoingRequest(method=method, params=params, within=within, deadline=deadline, **more)


@dataclass(frozen=True, kw_only=True)
class Rig:
    """One backend under test."""

    supervisor: Supervisor
    sink: Recorder
    owner: str
    log: Path
    notes: dict[str, Any] = field(default_factory=dict)

    async def call(self, tool: str, within: float = WAIT_S, **arguments: object) -> Any:
        result = await self.request("tools/call", {"name": tool, "arguments": arguments}, within)
        return msgspec.json.decode(result)

    async def request(
        self, method: str, params: Mapping[str, object] | None = None, within: float = WAIT_S
    ) -> msgspec.Raw:
        return await self.supervisor.request(outgoing(method, params, within))

    async def text(self, tool: str, within: float = WAIT_S, **arguments: object) -> str:
        return (await self.call(tool, within, **arguments))["content"][0]["text"]

    def received_by_server(self, event: str = "received") -> list[dict[str, Any]]:
        """What the fixture server wrote down, in the order in which it happened."""
        return [line for line in json_lines(self.log) if line["event"] == event]

    def messages(self, method: str | None = None) -> list[dict[str, Any]]:
        received = [line["message"] for line in self.received_by_server()]
        return [m for m in received if method is None or m.get("method") == method]

    def left_over(self) -> list[int]:
        """Processes that the backend started and that still live."""
        return marked(self.owner)


FAST = StdioOptions(connect=30.0, probe=5.0, stop=StopTimes(term=1.0, kill=2.0))
QUICK_RESTARTS = RestartPolicy(base=0.05, cap=0.2)


@asynccontextmanager
async def backend(
    argv: Sequence[str],
    tmp_path: Path,
    *,
    options: StdioOptions = FAST,
    restarts: RestartPolicy = QUICK_RESTARTS,
    env: Mapping[str, str] | None = None,
    lazy: bool = False,
) -> AsyncGenerator[Rig]:
    """Run the backend; at the end stop it and see that nothing of it is left."""
    clock = Clock()
    ids = Ids(clock)
    owner = ids()
    guard = ProcessGuard(owner, warn=lambda _: None)
    sink = Recorder()
    log = tmp_path / f"received-{owner}.jsonl"
    channel = StdioChannel(
        "server",
        Command(command=argv[0], args=argv[1:], env={"FIXTURE_LOG": str(log), **(env or {})}),
        emit=sink.take,
        surroundings=ChildContext(
            clock=clock,
            ids=ids,
            environ=os.environ,
            cwd=tmp_path,
            home=tmp_path,
            guard=guard,
        ),
        options=options,
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
        rig = Rig(supervisor=supervisor, sink=sink, owner=owner, log=log)
        tasks.start_soon(supervisor.run)
        try:
            yield rig
        finally:
            await supervisor.stop()
            await guard.close()
    assert rig.left_over() == []


def free_port() -> int:
    """One that nobody else is given by chance: it lies below those that the kernel hands out."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def json_lines(path: Path) -> list[Any]:
    """What is written there by now. Whoever looks meanwhile may find the half of a line."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.rpartition("\n")[0].splitlines()]


def alive(pid: int) -> bool:
    """Whether a process still runs; a zombie does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def argv_of(pid: int) -> bytes:
    """The words of its command line, each with a zero behind it; nothing once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def signs_in(pid: int) -> bool:
    """Whether it helps with a sign-in: such a one ends by itself, a moment after its proxy."""
    words = argv_of(pid).split(b"\0")
    return b"emceepee_stdio.helper_main" in words and bool({b"refresh", b"sign-in"} & {*words})
