from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio._core import _run as trio_run

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    AttemptFailed,
    BackendEvent,
    Era,
    Hello,
    Loss,
    PhaseChange,
)
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    CannotConnect,
    ProxyError,
    ServerDisconnected,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import PHASES, Phase, RestartPolicy, Restarts
from emceepee_stdio.wire.codec import RequestId, encode_notification, encode_result
from emceepee_stdio.wire.peer import OnProgress, OutgoingRequest

OK = "ok"
HANG = "hang"
Step = str | Exception


class FakeConnection(Connection):
    """A connection without a wire, whose end is in our hands.

    "echo" is answered at once, after a word of progress; anything else never is.
    """

    def __init__(self, number: int, clock: Clock) -> None:
        super().__init__(
            "b", emit=lambda _event: None, clock=clock, proxy_id=f"c{number}", max_line=1000
        )
        self.pid = 1000 + number
        self.hello = Hello(era=Era.LEGACY, protocol_version="2025-11-25")
        self.within: list[float] = []
        self.written: list[dict[str, Any]] = []
        self._error: Exception | None = None

    def end(self, loss: Loss | None = None) -> None:
        self.lose(loss or Loss(fact="b exited with code 1.", tail=["oops"], exit_code=1))

    def fail(self, error: Exception) -> None:
        """Serving it ends in an error, before anybody knows of a loss."""
        self._error = error
        self._ended.set()

    async def serve(self) -> None:
        await super().serve()
        if self._error is not None:
            raise self._error

    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        self._write(line)
        self.within.append(request.deadline - self._clock.now())
        if request.method == "echo":
            progress = b'{"progressToken":%d,"progress":1}' % int(request_id)
            self._peer.take(encode_notification("notifications/progress", progress))
            self._peer.take(encode_result(request_id, b"%d" % len(request.params or {})))

    def _write(self, data: bytes) -> None:
        self.written.append(msgspec.json.decode(data))


class FakeChannel:
    """Connects by a plan, and sees to it that no two connections are open at once."""

    transport = "fake"
    needs_tools = False
    target = "fake --server"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.plan: deque[Step] = deque()
        self.otherwise: Step = OK
        self.takes = 0.0
        self.leaving_takes = 0.0
        self.leaving_error: Exception | None = None
        self.release = anyio.Event()
        self.open = 0
        self.attempts: list[float] = []
        self.connections: list[FakeConnection] = []
        self.is_forbidden = False

    @property
    def current(self) -> FakeConnection:
        return self.connections[-1]

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Connection]:
        assert not self.open, "two connections at once"
        assert not self.is_forbidden, "a connection after the end"
        self.open += 1
        self.attempts.append(anyio.current_time())
        try:
            await self._open()
            connection = FakeConnection(len(self.connections), self._clock)
            self.connections.append(connection)
            try:
                yield connection
            finally:
                connection.close()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(self.leaving_takes)
            if self.leaving_error is not None:
                raise self.leaving_error
        except anyio.get_cancelled_exc_class():
            if self.leaving_error is not None:
                raise self.leaving_error from None
            raise
        finally:
            self.open -= 1

    async def _open(self) -> None:
        step = self.plan.popleft() if self.plan else self.otherwise
        if self.takes:
            await anyio.sleep(self.takes)
        if step == HANG:
            await self.release.wait()
        if isinstance(step, Exception):
            raise step


class Told:
    """Writes down what it is told, and checks that the table allows it."""

    def __init__(self) -> None:
        self.changes: list[PhaseChange] = []
        self.said: list[str] = []
        self.on_change: Callable[[PhaseChange], None] = lambda _change: None

    def __call__(self, event: BackendEvent) -> None:
        match event:
            case PhaseChange():
                last = self.changes[-1].phase if self.changes else None
                assert event.previous is last
                assert PHASES.allows(event.previous, event.phase)
                self.changes.append(event)
                self.said.append(event.phase.value)
                self.on_change(event)
            case AttemptFailed():
                self.said.append(f"attempt failed: {event.error.whole_fact}")
            case _:
                raise AssertionError(event)


def middle(low: float, high: float) -> float:
    return (low + high) / 2


class World:
    """One backend with everything around it."""

    def __init__(
        self, tasks: TaskGroup, *, lazy: bool = False, policy: RestartPolicy | None = None
    ) -> None:
        self.start = anyio.current_time()
        self.clock = Clock(monotonic=anyio.current_time, wall=anyio.current_time)
        self.channel = FakeChannel(self.clock)
        self.told = Told()
        self.backend = Supervisor(
            "b",
            self.channel,
            emit=self.told,
            clock=self.clock,
            restarts=Restarts(policy or RestartPolicy(), uniform=middle),
            tasks=tasks,
            lazy=lazy,
        )
        self.outcomes: list[Connection | Raw | ProxyError] = []

    @property
    def elapsed(self) -> float:
        return anyio.current_time() - self.start

    @property
    def attempts(self) -> list[float]:
        return [when - self.start for when in self.channel.attempts]

    @property
    def phase(self) -> Phase | None:
        return self.backend.phase

    async def until(self, phase: Phase) -> None:
        while self.phase is not phase:
            await anyio.sleep(0.01)

    async def call(self, within: float = 1000.0) -> None:
        await self._keep(self.backend.connection(within=within))

    async def renew(self, within: float = 1000.0) -> None:
        await self._keep(self.backend.reconnect(within=within))

    async def request(self, method: str, within: float = 1000.0) -> None:
        await self._keep(self.backend.request(self.outgoing(method, within=within)))

    def outgoing(
        self,
        method: str,
        params: dict[str, object] | None = None,
        *,
        within: float = 1000.0,
        on_progress: OnProgress | None = None,
    ) -> OutgoingRequest:
        return OutgoingRequest(
            method=method,
            params=params,
            within=within,
            deadline=self.clock.now() + within,
            on_progress=on_progress,
        )

    async def _keep(self, what: Awaitable[Connection | Raw]) -> None:
        try:
            self.outcomes.append(await what)
        except ProxyError as error:
            self.outcomes.append(error)

    async def stop(self) -> None:
        with anyio.fail_after(1000):
            await self.backend.stop()
        self.channel.is_forbidden = True
        assert self.channel.open == 0
        assert self.phase is Phase.DISCONNECTED
        assert not self.told.said or self.told.said[-1] == "disconnected"


async def settle() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def alive(main: Callable[[World], Awaitable[None]], options: dict[str, Any]) -> None:
    """Let a backend live while `main` runs; then stop it, and let nothing be left."""
    async with anyio.create_task_group() as tasks:
        world = World(tasks, **options)
        tasks.start_soon(world.backend.run)
        await main(world)
        await world.stop()
        with anyio.fail_after(1):
            await settle()
    assert world.told.said[-1] == "disconnected"


def virtually(main: Callable[[World], Awaitable[None]], **options: Any) -> None:
    anyio.run(
        alive,
        main,
        options,
        backend="trio",
        backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)},
    )


def on_both(main: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """For what happens within one turn of the loop: also on asyncio, and several times on trio."""
    anyio.run(alive, main, options, backend="asyncio")
    for _ in range(10):
        virtually(main, **options)


# A good life


def test_it_connects_by_itself_and_serves_requests():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        seen: list[Raw] = []
        result = await world.backend.request(
            world.outgoing("echo", {"a": 1, "b": 2}, within=5.0, on_progress=seen.append)
        )
        assert (result, seen) == (Raw(b"2"), [Raw(b'{"progressToken":1,"progress":1}')])
        assert await world.backend.connection(within=1.0) is world.channel.current
        assert world.told.said == ["connecting", "connected"]
        connected = world.told.changes[1]
        assert connected.hello is world.channel.current.hello
        assert not connected.was_connected_before
        assert repr(world.backend) == "<Supervisor b connected starts=1 <Restarts 0/5>>"

    virtually(main)


def test_a_lazy_one_waits_for_its_first_use():
    async def main(world: World) -> None:
        await anyio.sleep(3600)
        assert (world.told.said, world.attempts) == (["idle"], [])
        assert await world.backend.request(world.outgoing("echo", within=5.0)) == Raw(b"0")
        assert world.told.said == ["idle", "connecting", "connected"]
        assert world.attempts == [3600]

    virtually(main, lazy=True)


def test_one_that_is_deactivated_waits_for_its_next_use():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.backend.deactivate()
        world.backend.deactivate()
        await anyio.sleep(3600 - world.elapsed)
        assert world.told.said == ["connecting", "connected", "idle"]
        assert (world.channel.open, world.backend.snapshot().last_error) == (0, None)
        assert await world.backend.request(world.outgoing("echo", within=5.0)) == Raw(b"0")
        assert world.attempts == [0, 3600]
        assert repr(world.backend) == "<Supervisor b connected starts=2 <Restarts 0/5>>"

    virtually(main)


@pytest.mark.parametrize("how", ["call", "renew", "request"])
def test_whoever_comes_while_it_is_being_stopped_gets_the_next_one(how: str):
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        first = world.channel.current
        world.channel.leaving_takes = 4.0
        world.backend.deactivate()
        async with anyio.create_task_group() as tasks:
            if how == "request":
                tasks.start_soon(world.request, "echo")
            else:
                tasks.start_soon(world.call if how == "call" else world.renew)
        assert not isinstance(world.outcomes[0], ProxyError)
        assert world.channel.current is not first
        assert world.channel.open == 1
        assert world.told.said == ["connecting", "connected", "idle", "connecting", "connected"]

    virtually(main)


def test_removing_one_that_is_being_stopped_waits_for_its_end():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_takes = 4.0
        began = world.elapsed
        world.backend.deactivate()
        await world.backend.stop()
        assert (world.channel.open, round(world.elapsed - began, 3)) == (0, 4.0)
        assert world.told.said == ["connecting", "connected", "idle", "disconnected"]

    virtually(main)


def test_a_use_before_it_was_started_is_not_forgotten():
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            world = World(tasks, lazy=True)
            tasks.start_soon(world.call)
            await settle()
            tasks.start_soon(world.backend.run)
            await world.until(Phase.CONNECTED)
            await settle()
            assert world.outcomes == [world.channel.current]
            await world.stop()

    anyio.run(
        main,
        backend="trio",
        backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)},
    )


def test_connecting_counts_towards_the_time_of_a_request():
    async def main(world: World) -> None:
        world.channel.takes = 3.0
        await world.backend.request(world.outgoing("echo", within=10.0))
        await world.backend.request(world.outgoing("echo", within=10.0))
        assert world.channel.current.within == [7.0, 10.0]

    virtually(main, lazy=True)


def test_an_answer_that_is_late_says_how_long_the_connecting_took():
    async def main(world: World) -> None:
        world.channel.takes = 3.0
        for _ in range(2):
            await world.request("slow", within=10.0)
        assert [outcome.fact for outcome in world.outcomes if isinstance(outcome, CallTimeout)] == [
            "b did not answer slow within 10 s, 3.0 s of them to connect.",
            "b did not answer slow within 10 s.",
        ]
        assert world.elapsed == pytest.approx(20.0)

    virtually(main, lazy=True)


# Losing and trying again


def test_a_crash_is_told_and_recovered_from_in_this_order():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.end()
        await world.until(Phase.RECONNECTING)
        await world.until(Phase.CONNECTED)
        assert world.told.said == ["connecting", "connected", "reconnecting", "connected"]
        _, first, lost, again = world.told.changes
        assert lost.loss == Loss(fact="b exited with code 1.", tail=["oops"], exit_code=1)
        assert (lost.attempt, lost.attempts, lost.retry_in) == (1, 5, 1.0)
        assert lost.error is not None
        assert "oops" in lost.error.whole_fact
        assert lost.hello is None
        assert (first.was_connected_before, again.was_connected_before) == (False, True)
        assert again.hello is world.channel.current.hello

    virtually(main)


def test_a_crash_loop_is_given_up_even_though_every_start_succeeds():
    async def main(world: World) -> None:
        for _ in range(6):
            await world.until(Phase.CONNECTED)
            world.channel.current.end()
            await settle()
        await anyio.sleep(10_000)
        lives = ["connected", "reconnecting"] * 5
        assert world.told.said == ["connecting", *lives, "connected", "failed"]
        assert [change.attempt for change in world.told.changes[2::2]] == [1, 2, 3, 4, 5, 5]
        assert len(world.attempts) == 6
        assert world.phase is Phase.FAILED

    virtually(main)


def test_a_server_that_never_starts_is_given_up_and_told_as_one_outage():
    async def main(world: World) -> None:
        world.channel.otherwise = ServerFailed("no luck")
        await world.until(Phase.FAILED)
        await anyio.sleep(10_000)
        assert world.told.said == [
            "connecting",
            "reconnecting",
            *["attempt failed: no luck"] * 5,
            "failed",
        ]
        assert world.attempts == pytest.approx([0, 1, 3, 7, 15, 31])
        failed = world.told.changes[-1]
        assert failed.error is not None
        assert (failed.error.fact, failed.attempt, failed.attempts) == ("no luck", 5, 5)

    virtually(main)


def test_the_pause_grows_up_to_the_cap():
    async def main(world: World) -> None:
        world.channel.otherwise = ServerFailed("no luck")
        await anyio.sleep(100.0)
        pauses = [b - a for a, b in zip(world.attempts, world.attempts[1:], strict=False)]
        assert pauses[:6] == pytest.approx([1, 3, 9, 10, 10, 10])
        assert world.phase is Phase.RECONNECTING

    virtually(main, policy=RestartPolicy(factor=3.0, cap=10.0, limit=None))


@pytest.mark.parametrize(("life", "is_given_up"), [(59.9, True), (60.0, False)])
def test_only_staying_up_fills_the_budget_again(life: float, is_given_up: bool):  # noqa: FBT001
    async def main(world: World) -> None:
        for _ in range(8):
            if world.phase is Phase.FAILED:
                break
            await world.until(Phase.CONNECTED)
            await anyio.sleep(life)
            world.channel.current.end()
            await settle()
        assert (world.phase is Phase.FAILED) == is_given_up

    virtually(main)


def test_stopping_the_remains_of_a_lost_connection_comes_before_the_next():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_takes = 4.0
        lost_at = world.elapsed
        world.channel.current.end()
        await settle()
        assert world.phase is Phase.RECONNECTING
        await world.until(Phase.CONNECTED)
        assert world.attempts[1] == pytest.approx(lost_at + 4.0)

    virtually(main)


def test_what_goes_wrong_while_leaving_a_lost_connection_counts_once():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        for error in (ServerFailed("and that, too"), OSError("and that, too")):
            world.channel.leaving_error = error
            world.channel.current.end()
            await world.until(Phase.RECONNECTING)
            await world.until(Phase.CONNECTED)
        world.channel.leaving_error = None
        assert world.told.said == ["connecting", "connected", *["reconnecting", "connected"] * 2]
        assert world.backend.snapshot().attempt == 2

    virtually(main)


@pytest.mark.parametrize("error", [ServerFailed("it broke"), OSError(5, "it broke")])
def test_a_connection_that_ends_in_an_error_is_lost_all_the_same(error: Exception):
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.fail(error)
        await world.until(Phase.RECONNECTING)
        snapshot = world.backend.snapshot()
        assert (snapshot.pid, snapshot.up_since) == (None, None)
        assert "it broke" in (snapshot.last_error or "")
        await world.until(Phase.CONNECTED)

    virtually(main)


def test_an_error_of_the_system_is_a_failed_attempt_and_no_crash():
    async def main(world: World) -> None:
        world.channel.plan.append(OSError(24, "Too many open files"))
        await world.call()
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert "Too many open files" in error.fact
        assert world.phase is Phase.RECONNECTING
        await world.until(Phase.CONNECTED)

    virtually(main)


@pytest.mark.parametrize(
    ("error", "fact"),
    [
        (RuntimeError("the loop is closed."), "b could not be connected: the loop is closed."),
        (RuntimeError(), "b could not be connected: RuntimeError."),
        (ExceptionGroup("several", [OSError("no room")]), "b could not be connected: no room."),
        (
            ExceptionGroup("outer", [ExceptionGroup("inner", [ServerFailed("no luck.")])]),
            "no luck.",
        ),
    ],
)
def test_whatever_a_start_raises_is_a_failed_start_with_its_cause_and_is_tried_again(
    error: Exception, fact: str
):
    async def main(world: World) -> None:
        world.channel.plan.append(error)
        await world.call()
        (failure,) = world.outcomes
        assert isinstance(failure, ServerUnavailable)
        assert failure.fact == fact
        assert failure.next_step == "Restart 1 of 5 follows in 1.0 s; calling again tries at once."
        assert fact in (world.backend.snapshot().last_error or "")
        await world.until(Phase.CONNECTED)
        assert world.told.said == ["connecting", "reconnecting", "connected"]
        assert world.attempts == pytest.approx([0, 1])

    virtually(main)


def test_a_start_that_raises_whatever_for_ever_is_given_up_with_its_cause():
    async def main(world: World) -> None:
        world.channel.otherwise = RuntimeError("the loop is closed")
        await world.until(Phase.FAILED)
        assert world.attempts == pytest.approx([0, 1, 3, 7, 15, 31])
        failed = world.told.changes[-1]
        assert failed.error is not None
        assert failed.error.fact == "b could not be connected: the loop is closed."

    virtually(main)


def test_a_group_of_hopeless_errors_is_hopeless():
    async def main(world: World) -> None:
        world.channel.otherwise = ExceptionGroup("group", [CannotConnect("no such command")])
        await world.until(Phase.FAILED)
        assert world.told.said == ["connecting", "failed"]

    virtually(main)


def test_a_task_of_the_channel_that_fails_while_connected_is_a_loss_like_any_other():
    async def main(world: World) -> None:
        fail = anyio.Event()
        connect = world.channel.connect

        async def work(is_first: bool) -> None:  # noqa: FBT001
            await fail.wait()
            if is_first:
                raise RuntimeError("the reader broke")

        @asynccontextmanager
        async def connect_with_a_task() -> AsyncGenerator[Connection]:
            if len(world.attempts) > 5:  # a loop without a pause would never let the clock move
                await anyio.sleep_forever()
            async with anyio.create_task_group() as tasks, connect() as connection:
                tasks.start_soon(work, len(world.attempts) == 1)
                yield connection
                tasks.cancel_scope.cancel()

        world.channel.connect = connect_with_a_task  # type: ignore[method-assign]
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "slow")
            await settle()
            fail.set()
        assert isinstance(world.outcomes[0], ServerDisconnected)
        await anyio.sleep(10)
        assert world.told.said == ["connecting", "connected", "reconnecting", "connected"]
        assert world.attempts == pytest.approx([0, 1], abs=0.1)

    virtually(main)


# A loss, step by step


@pytest.mark.parametrize(
    ("limit", "phase", "next_step"),
    [
        (5, Phase.RECONNECTING, "Restart 1 of 5 follows in 1.0 s; calling again tries at once."),
        (
            0,
            Phase.FAILED,
            "It was given up. Fix what the error names, then call reconnect_server.",
        ),
    ],
)
def test_a_loss_is_decided_before_whoever_lost_a_request_is_told(
    limit: int, phase: Phase, next_step: str
):
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        lost = world.channel.current
        seen: list[object] = []

        def on_done(outcome: Raw | ProxyError) -> None:
            assert isinstance(outcome, ServerDisconnected)
            assert outcome.whole_fact == str(lost.loss)
            assert outcome.next_step == next_step
            seen.append((world.phase, world.backend.current, world.told.said[-1]))

        for _ in range(2):
            world.backend.send(world.outgoing("slow"), on_done)
        lost.end()
        assert seen == [(phase, None, phase.value)] * 2
        assert str(lost.lost_error()) == str(ServerDisconnected(str(lost.loss), hint=next_step))

    on_both(main, policy=RestartPolicy(limit=limit))


def test_a_loss_is_decided_before_anybody_who_waits_on_the_connection_runs():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        lost = world.channel.current
        seen: dict[str, object] = {}

        async def wait_for_an_answer() -> None:
            await world.request("slow")
            seen["answer"] = (world.phase, world.backend.current)

        async def wait_for_the_loss() -> None:
            await lost.wakeup.wait_for(lambda: lost.loss)
            seen["wakeup"] = (world.phase, world.backend.current)

        async with anyio.create_task_group() as tasks:
            for waiter in (wait_for_an_answer, wait_for_the_loss):
                tasks.start_soon(waiter)
            await settle()
            lost.end()
            assert world.phase is Phase.RECONNECTING
        assert seen == dict.fromkeys(["answer", "wakeup"], (Phase.RECONNECTING, None))

    on_both(main)


def test_whoever_calls_again_in_the_moment_of_being_told_of_a_loss_gets_the_next_connection():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        before = world.elapsed
        outcomes: list[Raw | ProxyError] = []

        def call_again(outcome: Raw | ProxyError) -> None:
            assert isinstance(outcome, ServerDisconnected)
            world.backend.send(world.outgoing("echo"), outcomes.append)

        world.backend.send(world.outgoing("slow"), call_again)
        world.channel.current.end()
        assert outcomes == []
        await world.until(Phase.CONNECTED)
        await settle()
        assert outcomes == [Raw(b"0")]
        assert len(world.attempts) == 2
        assert world.elapsed < before + 0.1

    on_both(main)


def test_a_connection_that_was_lost_before_it_was_gained_is_a_loss_like_any_other():
    async def main(world: World) -> None:
        connect = world.channel.connect

        @asynccontextmanager
        async def connect_to_the_dead() -> AsyncGenerator[Connection]:
            world.channel.connect = connect  # type: ignore[method-assign]
            async with connect() as connection:
                world.channel.current.end()
                yield connection

        world.channel.connect = connect_to_the_dead  # type: ignore[method-assign]
        await world.call()
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.whole_fact == str(world.channel.current.loss)
        await world.until(Phase.CONNECTED)
        assert world.told.said == ["connecting", "connected", "reconnecting", "connected"]
        assert world.told.changes[2].loss is world.channel.connections[0].loss
        assert world.backend.snapshot().attempt == 1

    virtually(main)


# Calls that need a connection


def test_a_call_within_the_pause_tries_at_once():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        for _ in range(4):
            world.channel.current.end()
            await world.until(Phase.RECONNECTING)
            before = world.elapsed
            connection = await world.backend.connection(within=5.0)
            assert connection is world.channel.current
            assert world.elapsed == before

    virtually(main)


def test_a_call_that_tries_and_fails_says_why_and_what_follows():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.otherwise = ServerFailed("no luck")
        world.channel.current.end()
        await world.until(Phase.RECONNECTING)
        await world.call()
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.fact == "no luck"
        assert error.next_step == "Restart 2 of 5 follows in 2.0 s; calling again tries at once."

    virtually(main)


def test_fifty_callers_share_one_attempt_and_all_get_the_connection():
    async def main(world: World) -> None:
        world.channel.takes = 2.0
        async with anyio.create_task_group() as callers:
            for _ in range(50):
                callers.start_soon(world.call)
                await anyio.sleep(0.01)
        assert world.outcomes == [world.channel.current] * 50
        assert len(world.attempts) == 1

    virtually(main, lazy=True)


def test_fifty_callers_share_one_attempt_and_all_get_its_error():
    async def main(world: World) -> None:
        world.channel.takes = 2.0
        world.channel.plan.append(ServerFailed("no luck"))
        async with anyio.create_task_group() as callers:
            for _ in range(50):
                callers.start_soon(world.call)
                await anyio.sleep(0.01)
        assert [str(outcome) for outcome in world.outcomes] == [str(world.outcomes[0])] * 50
        assert isinstance(world.outcomes[0], ServerUnavailable)
        assert len(world.attempts) == 1

    virtually(main, lazy=True)


def test_a_connect_that_hangs_says_so_and_delays_nobody_else():
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)
        async with anyio.create_task_group() as tasks:
            other = World(tasks)
            tasks.start_soon(other.backend.run)
            await other.until(Phase.CONNECTED)
            before = world.elapsed
            await world.call(within=5.0)
            assert world.elapsed == before + 5.0
            assert await other.backend.request(other.outgoing("echo", within=1.0)) == Raw(b"0")
            await other.stop()
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.fact == "b is still connecting after 5 s."
        assert len(world.attempts) == 1
        world.channel.release.set()
        await world.until(Phase.CONNECTED)

    virtually(main)


def test_a_caller_that_gives_up_leaves_the_attempt_to_the_others():
    async def main(world: World) -> None:
        world.channel.takes = 10.0
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.call)
            with anyio.move_on_after(1.0):
                await world.backend.connection(within=100.0)
        assert world.outcomes == [world.channel.current]
        assert len(world.attempts) == 1

    virtually(main, lazy=True)


def test_a_call_after_giving_up_tries_once_more():
    async def main(world: World) -> None:
        world.channel.otherwise = ServerFailed("no luck")
        await world.until(Phase.FAILED)
        tried = len(world.attempts)
        await world.call()
        assert len(world.attempts) == tried + 1
        assert world.phase is Phase.FAILED
        (error,) = world.outcomes
        assert isinstance(error, ServerFailed)
        assert "reconnect_server" in error.next_step
        world.channel.otherwise = OK
        assert await world.backend.connection(within=1.0) is world.channel.current
        world.channel.current.end()
        await settle()
        assert world.phase is Phase.FAILED

    virtually(main)


def test_what_cannot_succeed_is_given_up_at_once():
    async def main(world: World) -> None:
        world.channel.otherwise = CannotConnect("no such command", hint="Install it.")
        await world.until(Phase.FAILED)
        await anyio.sleep(1000)
        assert world.told.said == ["connecting", "failed"]
        assert len(world.attempts) == 1
        await world.call()
        (error,) = world.outcomes
        assert isinstance(error, ServerFailed)
        assert error.fact == "no such command"
        assert error.next_step == "Install it. Then call reconnect_server."
        assert len(world.attempts) == 2
        assert world.phase is Phase.FAILED

    virtually(main)


def test_what_once_succeeded_is_tried_again_whatever_the_error():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.plan.append(CannotConnect("gone for a moment"))
        world.channel.current.end()
        await world.until(Phase.RECONNECTING)
        await world.until(Phase.CONNECTED)
        assert world.told.said[2:] == [
            "reconnecting",
            "attempt failed: gone for a moment",
            "connected",
        ]

    virtually(main)


def test_a_request_in_flight_when_the_server_is_lost_hears_what_follows():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "slow")
            callers.start_soon(world.request, "slow")
            await settle()
            world.channel.current.end()
        for error in world.outcomes:
            assert isinstance(error, ServerDisconnected)
            assert "b exited with code 1." in error.fact
            assert error.next_step == (
                "Restart 1 of 5 follows in 1.0 s; calling again tries at once."
            )
        assert len(world.outcomes) == 2

    virtually(main)


def test_a_request_in_flight_at_the_last_loss_hears_that_it_was_given_up():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "slow")
            await settle()
            world.channel.current.end()
        (error,) = world.outcomes
        assert isinstance(error, ServerDisconnected)
        assert "given up" in error.next_step

    virtually(main, policy=RestartPolicy(limit=0))


def test_a_request_that_is_given_up_is_told_to_nobody_and_taken_back_at_the_server():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        outcomes: list[Raw | ProxyError] = []
        cancel = world.backend.send(world.outgoing("slow"), outcomes.append)
        cancel()
        cancel()
        world.channel.current.end()
        await settle()
        assert outcomes == []
        methods = [message["method"] for message in world.channel.connections[0].written]
        assert methods == ["slow", "notifications/cancelled"]

    on_both(main)


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_request_that_is_given_up_while_it_waits_leaves_the_attempt_to_the_others(
    is_seen: bool,  # noqa: FBT001
):
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)
        outcomes: list[Raw | ProxyError] = []
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.call)
            cancel = world.backend.send(world.outgoing("slow"), outcomes.append)
            if is_seen:
                await settle()
            cancel()
            await settle()
            world.channel.release.set()
        await settle()
        assert world.outcomes == [world.channel.current]
        assert len(world.attempts) == 1
        assert (outcomes, world.channel.current.written) == ([], [])

    on_both(main, lazy=True)


def test_a_request_that_waited_and_was_sent_is_taken_back_at_the_server():
    async def main(world: World) -> None:
        outcomes: list[Raw | ProxyError] = []
        cancel = world.backend.send(world.outgoing("slow"), outcomes.append)
        await world.until(Phase.CONNECTED)
        await settle()
        cancel()
        await settle()
        methods = [message["method"] for message in world.channel.current.written]
        assert methods == ["slow", "notifications/cancelled"]
        assert outcomes == []

    on_both(main, lazy=True)


def test_nobody_is_told_after_a_request_was_given_up_even_in_the_very_moment_of_its_answer():
    async def main(world: World) -> None:
        outcomes: list[Raw | ProxyError] = []
        cancel = world.backend.send(world.outgoing("slow"), outcomes.append)
        await world.until(Phase.CONNECTED)
        await settle()
        world.channel.current._peer.take(encode_result(1, b"{}"))
        told = list(outcomes)
        cancel()
        await settle()
        assert outcomes == told

    on_both(main, lazy=True)


@pytest.mark.parametrize("error", [None, ServerFailed("no luck"), RuntimeError("a bug")])
def test_work_that_is_given_up_in_the_very_moment_of_its_end_is_told_to_nobody(
    error: Exception | None,
):
    async def main(world: World) -> None:
        is_done = anyio.Event()

        async def work() -> Raw:
            await is_done.wait()
            if error is not None:
                raise error
            return Raw(b"{}")

        outcomes: list[Raw | ProxyError] = []
        cancel = world.backend.in_task(work, outcomes.append)
        await settle()
        is_done.set()
        cancel()
        await settle()
        assert outcomes == []

    on_both(main)


def test_a_bug_while_a_request_waits_is_the_error_of_that_request_and_ends_nothing():
    async def main(world: World) -> None:
        async def work() -> Raw:
            raise RuntimeError("a bug")

        outcomes: list[Raw | ProxyError] = []
        world.backend.in_task(work, outcomes.append)
        await settle()
        (error,) = outcomes
        assert isinstance(error, ProxyError)
        assert "a bug" in error.fact
        assert world.phase is Phase.CONNECTED

    on_both(main)


def test_without_a_limit_the_prospects_name_none():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.otherwise = ServerFailed("no luck")
        world.channel.current.end()
        await world.until(Phase.RECONNECTING)
        await world.call()
        (error,) = world.outcomes
        assert isinstance(error, ProxyError)
        assert error.next_step.startswith("Restart 2 of any number follows")

    virtually(main, policy=RestartPolicy(limit=None))


# Reconnecting on demand


def test_reconnecting_an_idle_one_connects_it():
    async def main(world: World) -> None:
        await settle()
        await world.renew()
        assert world.outcomes == [world.channel.current]
        assert world.told.said == ["idle", "connecting", "connected"]

    virtually(main, lazy=True)


def test_reconnecting_a_connected_one_leaves_the_old_connection_first():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_takes = 3.0
        old = world.channel.current
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "slow")
            await settle()
            callers.start_soon(world.renew)
            await settle()
            assert world.phase is Phase.CONNECTING
            assert world.backend.snapshot().pid is None
        error, new = world.outcomes
        assert isinstance(error, ServerDisconnected)
        assert new is world.channel.current is not old
        assert world.told.said == ["connecting", "connected", "connecting", "connected"]
        assert world.told.changes[-1].was_connected_before
        assert world.backend.snapshot().attempt == 0

    virtually(main)


def test_reconnecting_one_that_connects_starts_anew():
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)
        await settle()
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.call)
            await settle()
            await world.renew()
        assert world.outcomes == [world.channel.current] * 2
        assert len(world.attempts) == 2
        assert world.told.said == ["connecting", "connected"]

    virtually(main)


def test_reconnecting_within_the_pause_connects_at_once_with_a_full_budget():
    async def main(world: World) -> None:
        world.channel.plan.extend([ServerFailed("no")] * 3)
        await anyio.sleep(3.5)
        assert world.phase is Phase.RECONNECTING
        assert world.backend.snapshot().attempt == 3
        await world.renew()
        assert world.elapsed == 3.5
        assert world.backend.snapshot().attempt == 0
        assert world.told.said[-2:] == ["connecting", "connected"]

    virtually(main)


def test_reconnecting_in_the_middle_of_a_retry_starts_anew():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.plan.append(HANG)
        world.channel.current.end()
        await anyio.sleep(5.0)
        assert (world.phase, len(world.attempts)) == (Phase.RECONNECTING, 2)
        await world.renew()
        assert world.outcomes == [world.channel.current]
        assert world.told.said[2:] == ["reconnecting", "connecting", "connected"]

    virtually(main)


def test_reconnecting_a_failed_one_gives_it_a_full_budget():
    async def main(world: World) -> None:
        world.channel.otherwise = ServerFailed("no luck")
        await world.until(Phase.FAILED)
        await world.renew()
        assert isinstance(world.outcomes[0], ServerUnavailable)
        assert world.phase is Phase.RECONNECTING
        await world.until(Phase.FAILED)
        assert len(world.attempts) == 12

    virtually(main)


def test_reconnecting_twice_at_once_gives_both_the_newest():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as callers:
            for _ in range(3):
                callers.start_soon(world.renew)
        assert world.outcomes == [world.channel.current] * 3

    on_both(main)


def test_reconnecting_in_the_very_moment_of_opening_does_not_give_the_old_connection():
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)
        await settle()
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.call)
            await settle()
            world.channel.release.set()
            await world.renew()
            await settle()
            assert world.outcomes[-1] is world.channel.current
            assert world.channel.current.loss is None
            assert world.phase is Phase.CONNECTED

    on_both(main)


def test_reconnecting_in_the_very_moment_of_a_loss_is_not_told_of_the_old_loss():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.end()
        await world.renew()
        assert world.outcomes == [world.channel.current]
        assert len(world.channel.connections) == 2

    on_both(main)


def test_reconnecting_in_the_very_moment_of_a_failure_is_not_told_of_it():
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)

        async def fail() -> None:
            await world.channel.release.wait()
            raise CannotConnect("never")

        world.channel._open, opened = fail, world.channel._open  # type: ignore[method-assign]
        await settle()
        world.channel.plan.clear()
        world.channel.release.set()
        world.channel._open = opened  # type: ignore[method-assign]
        await world.renew()
        assert world.outcomes == [world.channel.current]
        assert world.told.said == ["connecting", "connected"]

    on_both(main)


def test_an_error_while_leaving_for_a_new_connection_is_nobodys():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_error = ServerFailed("a last complaint")
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.renew)
            await settle()
            world.channel.leaving_error = None
        assert world.outcomes == [world.channel.current]
        assert world.told.said == ["connecting", "connected", "connecting", "connected"]

    virtually(main)


# The end


@pytest.mark.parametrize("lazy", [False, True])
def test_stopping_before_it_was_started_leaves_nothing_to_start(lazy: bool):  # noqa: FBT001
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            world = World(tasks, lazy=lazy)
            tasks.start_soon(world.call)
            await settle()
            await world.stop()
            tasks.start_soon(world.backend.run)
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.fact == "b was removed."
        assert (world.told.said, world.attempts) == ([], [])
        assert world.backend.snapshot().phase is Phase.DISCONNECTED
        await world.renew()
        assert str(world.outcomes[1]) == str(error)

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


def test_stopping_a_connected_one_is_told_before_its_remains_are_gone():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_takes = 4.0
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "slow")
            await settle()
            callers.start_soon(world.backend.stop)
            await settle()
            assert world.told.said == ["connecting", "connected", "disconnected"]
            assert world.channel.open == 1
            await world.renew()
        assert world.elapsed >= 4.0
        assert world.channel.open == 0
        assert {type(error) for error in world.outcomes} == {ServerDisconnected, ServerUnavailable}

    virtually(main)


@pytest.mark.parametrize("phase", ["idle", "connecting", "pause", "retry", "failed"])
def test_stopping_in_any_other_phase_is_immediate(phase: str):
    async def main(world: World) -> None:
        if phase == "connecting":
            world.channel.plan.append(HANG)
        elif phase in ("pause", "retry"):
            world.channel.plan.extend([ServerFailed("no"), HANG])
        elif phase == "failed":
            world.channel.plan.append(CannotConnect("no"))
        await anyio.sleep(0.5 if phase != "retry" else 1.5)
        async with anyio.create_task_group() as callers:
            if phase in ("connecting", "retry"):
                callers.start_soon(world.call)
                await settle()
            before, tried = world.elapsed, len(world.attempts)
            await world.stop()
        assert (world.elapsed, len(world.attempts)) == (before, tried)
        for error in world.outcomes:
            assert isinstance(error, ServerUnavailable)
            assert error.fact == "b was removed."
        await world.call()
        await world.renew()
        assert all("was removed" in str(error) for error in world.outcomes)

    virtually(main, lazy=phase == "idle")


@pytest.mark.parametrize("phase", ["idle", "connecting", "retry", "failed"])
def test_a_request_that_waits_for_a_connection_when_it_is_stopped_hears_that_it_was_removed(
    phase: str,
):
    async def main(world: World) -> None:
        if phase == "retry":
            world.channel.plan.append(ServerFailed("no"))
        elif phase == "failed":
            world.channel.plan.append(CannotConnect("no"))
        world.channel.otherwise = HANG
        await anyio.sleep(1.5)
        outcomes: list[Raw | ProxyError] = []
        for _ in range(2):
            world.backend.send(world.outgoing("echo"), outcomes.append)
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.request, "echo")
            if phase != "idle":
                await settle()
            before = world.elapsed
            await world.stop()
        await settle()
        assert world.elapsed == before
        assert len(outcomes) == 2
        for error in (*outcomes, *world.outcomes):
            assert isinstance(error, ServerUnavailable)
            assert (error.code, error.fact) == ("server_unavailable", "b was removed.")
            assert "add_server" in error.next_step

    virtually(main, lazy=phase == "idle")


def test_a_request_after_the_stop_hears_that_it_was_removed():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        await world.stop()
        await world.request("echo")
        assert "b was removed." in str(world.outcomes[0])

    on_both(main)


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_request_that_waits_when_everything_ends_is_told_all_the_same(
    is_seen: bool,  # noqa: FBT001
):
    async def main() -> None:
        outcomes: list[Raw | ProxyError] = []
        async with anyio.create_task_group() as tasks:
            world = World(tasks)
            world.channel.plan.append(HANG)
            tasks.start_soon(world.backend.run)
            await settle()
            world.backend.send(world.outgoing("echo"), outcomes.append)
            if is_seen:
                await settle()
            tasks.cancel_scope.cancel()
        (error,) = outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.fact == "b was removed."

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


def test_stopping_twice_and_by_many_is_harmless():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(world.backend.stop)
        await world.stop()
        assert world.told.said == ["connecting", "connected", "disconnected"]

    on_both(main)


def test_stopping_in_the_very_moment_of_first_use_connects_nothing():
    async def main(world: World) -> None:
        await settle()
        world.backend._wanted.set()
        world.channel.is_forbidden = True
        await world.stop()
        assert world.attempts == []

    on_both(main, lazy=True)


def test_stopping_in_the_very_moment_of_opening_is_never_told_as_connected():
    async def main(world: World) -> None:
        world.channel.plan.append(HANG)
        await settle()
        world.channel.release.set()
        await world.stop()
        assert world.told.said == ["connecting", "disconnected"]

    on_both(main)


def test_stopping_in_the_very_moment_of_a_loss_ends_it():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.end()
        await world.stop()
        assert len(world.attempts) == 1

    on_both(main)


def test_stopping_right_after_a_reconnect_is_a_removal():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        # As reconnect does, before anything else gets its turn.
        scope = world.backend._attempt_scope
        assert scope is not None
        world.backend._renew = True
        world.backend._leave(world.channel.current)
        scope.cancel()
        await world.stop()
        assert world.told.said == ["connecting", "connected", "connecting", "disconnected"]

    on_both(main)


def test_an_error_while_leaving_for_good_is_nobodys():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_error = ServerFailed("a last complaint")
        await world.stop()
        assert world.told.said == ["connecting", "connected", "disconnected"]
        assert len(world.attempts) == 1

    on_both(main)


@pytest.mark.parametrize("step", [OK, HANG])
def test_the_end_of_the_surrounding_task_group_is_an_end_like_any_other(step: Step):
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            world = World(tasks)
            world.channel.plan.append(step)
            tasks.start_soon(world.backend.run)
            await settle()
            tasks.cancel_scope.cancel()
        assert world.told.said[-1] == "disconnected"
        assert world.channel.open == 0
        await world.stop()
        await world.call()
        assert "was removed" in str(world.outcomes[0])

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)


# Looking in


def test_the_snapshot_tells_each_phase():
    async def main(world: World) -> None:
        idle = world.backend.snapshot()
        assert (idle.name, idle.transport, idle.target) == ("b", "fake", "fake --server")
        assert (idle.phase, idle.starts, idle.pid, idle.hello) == (Phase.IDLE, 0, None, None)
        world.channel.takes = 2.0
        async with anyio.create_task_group() as callers:
            callers.start_soon(world.call)
            await anyio.sleep(1.0)
            connecting = world.backend.snapshot()
            assert (connecting.phase, connecting.starts) == (Phase.CONNECTING, 1)
            assert (connecting.pid, connecting.up_since) == (None, None)
        connected = world.backend.snapshot()
        assert (connected.phase, connected.pid) == (Phase.CONNECTED, 1000)
        assert connected.up_since == world.start + 2.0
        assert connected.hello is world.channel.current.hello
        assert connected.session == world.channel.current.session
        assert (connected.last_error, connected.next_retry_at) == (None, None)
        world.channel.current.end()
        await settle()
        lost = world.backend.snapshot()
        assert (lost.phase, lost.pid, lost.up_since) == (Phase.RECONNECTING, None, None)
        assert (lost.attempt, lost.attempts) == (1, 5)
        assert lost.next_retry_at == world.start + 3.0
        assert "b exited with code 1." in (lost.last_error or "")
        await anyio.sleep(2.0)
        retry = world.backend.snapshot()
        assert (retry.phase, retry.starts) == (Phase.RECONNECTING, 2)
        assert retry.next_retry_at is None
        await world.until(Phase.CONNECTED)
        assert world.backend.snapshot().last_error is None
        await world.stop()
        gone = world.backend.snapshot()
        assert (gone.phase, gone.pid, gone.up_since) == (Phase.DISCONNECTED, None, None)

    virtually(main, lazy=True)


def test_the_snapshot_of_a_failed_one_names_the_error():
    async def main(world: World) -> None:
        assert world.backend.snapshot().phase is Phase.IDLE
        world.channel.otherwise = CannotConnect("no such command")
        await world.until(Phase.FAILED)
        failed = world.backend.snapshot()
        assert failed.next_retry_at is None
        assert (failed.last_error or "").startswith("no such command [server_failed]")
        assert repr(world.backend) == "<Supervisor b failed starts=1 <Restarts 0/5>>"

    virtually(main)


def test_within_the_telling_of_a_loss_the_snapshot_is_already_true():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        seen: list[tuple[Any, Any, Any]] = []

        def look(_change: PhaseChange) -> None:
            snapshot = world.backend.snapshot()
            seen.append((snapshot.phase, snapshot.pid, snapshot.up_since))

        world.told.on_change = look
        world.channel.current.end()
        await settle()
        assert seen == [(Phase.RECONNECTING, None, None)]

    virtually(main)


# Any life whatever

steps = st.sampled_from(
    [
        *(OK, OK, HANG),
        *(ServerFailed("no luck"), CannotConnect("never")),
        *(OSError(24, "none left"), RuntimeError("a bug"), ExceptionGroup("g", [OSError("no")])),
    ]
)
actions = st.one_of(
    st.tuples(st.just("crash"), st.none()),
    st.tuples(st.just("plan"), steps),
    st.tuples(st.just("call"), st.sampled_from([0.0, 0.5, 30.0])),
    st.tuples(st.just("request"), st.sampled_from([0.5, 30.0])),
    st.tuples(st.just("reconnect"), st.sampled_from([0.0, 30.0])),
    st.tuples(st.just("sleep"), st.sampled_from([0.0, 0.1, 1.0, 2.0, 10.0, 70.0])),
    st.tuples(st.just("settle"), st.none()),
    st.tuples(st.just("turn"), st.none()),
    st.tuples(st.just("release"), st.none()),
    st.tuples(st.just("leaving"), st.sampled_from([0.0, 0.0, 3.0])),
    st.tuples(st.just("opening"), st.sampled_from([0.0, 0.0, 3.0])),
)


class Life:
    """What may happen to a backend, by name."""

    def __init__(self, world: World, callers: TaskGroup) -> None:
        self.world = world
        self.channel = world.channel
        self.callers = callers
        self.calls = 0

    async def do(self, action: str, value: Any) -> None:
        await getattr(self, action)(value)

    async def crash(self, _: None) -> None:
        if self.channel.connections:
            self.channel.current.end()

    async def plan(self, step: Step) -> None:
        self.channel.plan.append(step)

    async def call(self, within: float) -> None:
        self.calls += 1
        self.callers.start_soon(self.world.call, within)

    async def request(self, within: float) -> None:
        self.calls += 1
        self.callers.start_soon(self.world.request, "slow", within)

    async def reconnect(self, within: float) -> None:
        self.calls += 1
        self.callers.start_soon(self.world.renew, within)

    async def sleep(self, seconds: float) -> None:
        await anyio.sleep(seconds)

    async def settle(self, _: None) -> None:
        await settle()

    async def turn(self, _: None) -> None:
        await anyio.lowlevel.checkpoint()

    async def release(self, _: None) -> None:
        self.channel.release.set()
        self.channel.release = anyio.Event()

    async def leaving(self, seconds: float) -> None:
        self.channel.leaving_takes = seconds

    async def opening(self, seconds: float) -> None:
        self.channel.takes = seconds


async def live(world: World, actions: list[tuple[str, Any]]) -> None:
    async with anyio.create_task_group() as callers:
        life = Life(world, callers)
        for action, value in actions:
            await life.do(action, value)
    assert len(world.outcomes) == life.calls
    codes = {outcome.code for outcome in world.outcomes if isinstance(outcome, ProxyError)}
    assert codes <= {
        *("server_unavailable", "server_failed", "server_disconnected", "call_timeout"),
    }


async def prove_alive(world: World) -> None:
    """Whatever happened, a call on a server that is well again succeeds in the end."""
    world.channel.plan.clear()
    world.channel.release.set()
    for _ in range(3):
        try:
            connection = await world.backend.connection(within=100.0)
        except ProxyError:
            continue
        await settle()
        if connection is world.channel.current and world.channel.current.loss is None:
            break
    assert world.phase is Phase.CONNECTED
    assert world.backend.snapshot().pid == world.channel.current.pid


@settings(max_examples=500, deadline=None)
@given(
    life=st.lists(actions, max_size=25),
    lazy=st.booleans(),
    limit=st.sampled_from([0, 1, 5, None]),
    order=st.integers(0, 2**32),
    early=st.booleans(),
)
def test_whatever_happens_the_rules_hold(
    life: list[tuple[str, Any]],
    lazy: bool,  # noqa: FBT001
    limit: int | None,
    order: int,
    early: bool,  # noqa: FBT001
):
    async def main(world: World) -> None:
        if early:
            # The end comes while calls are still waiting.
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live, world, life)
                await anyio.sleep(5.0)
                await world.stop()
            return
        await live(world, life)
        await prove_alive(world)

    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
    trio_run._r.seed(order)
    try:
        virtually(main, lazy=lazy, policy=RestartPolicy(limit=limit))
    finally:
        trio_run._ALLOW_DETERMINISTIC_SCHEDULING = False  # type: ignore[attr-defined]
