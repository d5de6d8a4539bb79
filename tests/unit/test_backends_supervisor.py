from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from trio._core import _run as trio_run

from emceepee_stdio.backends.base import (
    Connection,
    Era,
    Hello,
    LogLine,
    Loss,
    OnProgress,
    Params,
    PhaseChange,
    Question,
    SessionIds,
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
from emceepee_stdio.state.phases import PHASES, Phase
from emceepee_stdio.state.restarts import RestartPolicy, Restarts

OK = "ok"
HANG = "hang"
Step = str | Exception


class FakeConnection:
    """A connection whose end is in our hands."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.pid = 1000 + number
        self.hello = Hello(era=Era.LEGACY, protocol_version="2025-11-25")
        self.session = SessionIds(proxy_id=f"c{number}")
        self.loss: Loss | Exception | None = None
        self.over = anyio.Event()
        self.within: list[float] = []

    def end(self, loss: Loss | Exception | None = None) -> None:
        if not self.over.is_set():
            self.loss = loss or Loss(fact="b exited with code 1.", tail=["oops"], exit_code=1)
            self.over.set()

    async def lost(self) -> Loss:
        await self.over.wait()
        if isinstance(self.loss, Exception):
            raise self.loss
        assert self.loss is not None
        return self.loss

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw:
        """Answers "echo" at once; anything else waits for its time, or for the end."""
        self.within.append(within)
        if method == "echo":
            if on_progress is not None:
                on_progress(Raw(b"1"))
            return Raw(b"%d" % len(params or {}))
        with anyio.move_on_after(within):
            await self.over.wait()
            raise ServerDisconnected(str(self.loss))
        raise CallTimeout("too long")

    def notify(self, method: str, params: Params | None = None) -> None: ...


class FakeChannel:
    """Connects by a plan, and sees to it that no two connections are open at once."""

    transport = "fake"
    target = "fake --server"

    def __init__(self) -> None:
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
            connection = FakeConnection(len(self.connections))
            self.connections.append(connection)
            try:
                yield connection
            finally:
                connection.end(Loss(fact="The connection to b was closed."))
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
    """A sink that writes down what it is told, and checks that the table allows it."""

    def __init__(self) -> None:
        self.changes: list[PhaseChange] = []
        self.said: list[str] = []

    def phase_changed(self, server: str, change: PhaseChange) -> None:
        assert server == "b"
        last = self.changes[-1].phase if self.changes else None
        assert change.previous is last
        assert PHASES.allows(change.previous, change.phase)
        self.changes.append(change)
        self.said.append(change.phase.value)

    def attempt_failed(self, server: str, error: ProxyError) -> None:
        assert server == "b"
        self.said.append(f"attempt failed: {error.fact}")

    def process_started(self, server: str, pid: int) -> None: ...
    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None: ...
    def notification(self, server: str, method: str, params: Raw | None) -> None: ...
    def log(self, server: str, line: LogLine) -> None: ...
    def asked(self, server: str, question: Question) -> None: ...
    def withdrawn(self, server: str, question: Question) -> None: ...
    def lists_differ(self, server: str, kinds: Sequence[str]) -> None: ...
    def health_changed(self, server: str, *, degraded: bool, misses: int) -> None: ...


def middle(low: float, high: float) -> float:
    return (low + high) / 2


class World:
    """One backend with everything around it."""

    def __init__(self, *, lazy: bool = False, policy: RestartPolicy | None = None) -> None:
        self.start = anyio.current_time()
        self.channel = FakeChannel()
        self.sink = Told()
        self.backend = Supervisor(
            "b",
            self.channel,
            sink=self.sink,
            clock=Clock(monotonic=anyio.current_time, wall=anyio.current_time),
            restarts=Restarts(policy or RestartPolicy(), uniform=middle),
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
        await self._keep(self.backend.request(method, within=within))

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
        assert not self.sink.said or self.sink.said[-1] == "disconnected"


async def settle() -> None:
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


async def alive(main: Callable[[World], Awaitable[None]], options: dict[str, Any]) -> None:
    """Let a backend live while `main` runs; then stop it, and let nothing be left."""
    world = World(**options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(world.backend.run)
        await main(world)
        await world.stop()
        with anyio.fail_after(1):
            await settle()
    assert world.sink.said[-1] == "disconnected"


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
            "echo", {"a": 1, "b": 2}, within=5.0, on_progress=seen.append
        )
        assert (result, seen) == (Raw(b"2"), [Raw(b"1")])
        assert await world.backend.connection(within=1.0) is world.channel.current
        assert world.sink.said == ["connecting", "connected"]
        connected = world.sink.changes[1]
        assert connected.hello is world.channel.current.hello
        assert not connected.was_connected_before
        assert repr(world.backend) == "<Supervisor b connected starts=1 <Restarts 0/5>>"

    virtually(main)


def test_a_lazy_one_waits_for_its_first_use():
    async def main(world: World) -> None:
        await anyio.sleep(3600)
        assert (world.sink.said, world.attempts) == (["idle"], [])
        assert await world.backend.request("echo", within=5.0) == Raw(b"0")
        assert world.sink.said == ["idle", "connecting", "connected"]
        assert world.attempts == [3600]

    virtually(main, lazy=True)


def test_a_use_before_it_was_started_is_not_forgotten():
    async def main() -> None:
        world = World(lazy=True)
        async with anyio.create_task_group() as tasks:
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
        await world.backend.request("echo", within=10.0)
        await world.backend.request("echo", within=10.0)
        assert world.channel.current.within == [7.0, 10.0]

    virtually(main, lazy=True)


# Losing and trying again


def test_a_crash_is_told_and_recovered_from_in_this_order():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.end()
        await world.until(Phase.RECONNECTING)
        await world.until(Phase.CONNECTED)
        assert world.sink.said == ["connecting", "connected", "reconnecting", "connected"]
        _, first, lost, again = world.sink.changes
        assert lost.loss == Loss(fact="b exited with code 1.", tail=["oops"], exit_code=1)
        assert (lost.attempt, lost.attempts, lost.retry_in) == (1, 5, 1.0)
        assert lost.error is not None
        assert "oops" in lost.error.fact
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
        assert world.sink.said == ["connecting", *lives, "connected", "failed"]
        assert [change.attempt for change in world.sink.changes[2::2]] == [1, 2, 3, 4, 5, 5]
        assert len(world.attempts) == 6
        assert world.phase is Phase.FAILED

    virtually(main)


def test_a_server_that_never_starts_is_given_up_and_told_as_one_outage():
    async def main(world: World) -> None:
        world.channel.otherwise = ServerFailed("no luck")
        await world.until(Phase.FAILED)
        await anyio.sleep(10_000)
        assert world.sink.said == [
            "connecting",
            "reconnecting",
            *["attempt failed: no luck"] * 5,
            "failed",
        ]
        assert world.attempts == pytest.approx([0, 1, 3, 7, 15, 31])
        failed = world.sink.changes[-1]
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
        assert world.sink.said == ["connecting", "connected", *["reconnecting", "connected"] * 2]
        assert world.backend.snapshot().attempt == 2

    virtually(main)


@pytest.mark.parametrize("error", [ServerFailed("it broke"), OSError(5, "it broke")])
def test_a_connection_that_ends_in_an_error_is_lost_all_the_same(error: Exception):
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.current.end(error)  # type: ignore[arg-type]
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
        other = World()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other.backend.run)
            await other.until(Phase.CONNECTED)
            before = world.elapsed
            await world.call(within=5.0)
            assert world.elapsed == before + 5.0
            assert await other.backend.request("echo", within=1.0) == Raw(b"0")
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
        assert world.sink.said == ["connecting", "failed"]
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
        assert world.sink.said[2:] == [
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

    virtually(main, policy=RestartPolicy.for_http())


# Reconnecting on demand


def test_reconnecting_an_idle_one_connects_it():
    async def main(world: World) -> None:
        await settle()
        await world.renew()
        assert world.outcomes == [world.channel.current]
        assert world.sink.said == ["idle", "connecting", "connected"]

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
        assert world.sink.said == ["connecting", "connected", "connecting", "connected"]
        assert world.sink.changes[-1].was_connected_before
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
        assert world.sink.said == ["connecting", "connected"]

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
        assert world.sink.said[-2:] == ["connecting", "connected"]

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
        assert world.sink.said[2:] == ["reconnecting", "connecting", "connected"]

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
            assert not world.channel.current.over.is_set()
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
        assert world.sink.said == ["connecting", "connected"]

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
        assert world.sink.said == ["connecting", "connected", "connecting", "connected"]

    virtually(main)


# The end


@pytest.mark.parametrize("lazy", [False, True])
def test_stopping_before_it_was_started_leaves_nothing_to_start(lazy: bool):  # noqa: FBT001
    async def main() -> None:
        world = World(lazy=lazy)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.call)
            await settle()
            await world.stop()
            tasks.start_soon(world.backend.run)
        (error,) = world.outcomes
        assert isinstance(error, ServerUnavailable)
        assert error.fact == "b was removed."
        assert (world.sink.said, world.attempts) == ([], [])
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
            assert world.sink.said == ["connecting", "connected", "disconnected"]
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


def test_stopping_twice_and_by_many_is_harmless():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(world.backend.stop)
        await world.stop()
        assert world.sink.said == ["connecting", "connected", "disconnected"]

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
        assert world.sink.said == ["connecting", "disconnected"]

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
        world.backend._connection = None
        scope.cancel()
        await world.stop()
        assert world.sink.said == ["connecting", "connected", "disconnected"]

    on_both(main)


def test_an_error_while_leaving_for_good_is_nobodys():
    async def main(world: World) -> None:
        await world.until(Phase.CONNECTED)
        world.channel.leaving_error = ServerFailed("a last complaint")
        await world.stop()
        assert world.sink.said == ["connecting", "connected", "disconnected"]
        assert len(world.attempts) == 1

    on_both(main)


@pytest.mark.parametrize("step", [OK, HANG])
def test_the_end_of_the_surrounding_task_group_is_an_end_like_any_other(step: Step):
    async def main() -> None:
        world = World()
        world.channel.plan.append(step)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(world.backend.run)
            await settle()
            tasks.cancel_scope.cancel()
        assert world.sink.said[-1] == "disconnected"
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
        assert connected.session is world.channel.current.session
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
        tell = world.sink.phase_changed

        def look(server: str, change: PhaseChange) -> None:
            tell(server, change)
            snapshot = world.backend.snapshot()
            seen.append((snapshot.phase, snapshot.pid, snapshot.up_since))

        world.sink.phase_changed = look  # type: ignore[method-assign]
        world.channel.current.end()
        await settle()
        assert seen == [(Phase.RECONNECTING, None, None)]

    virtually(main)


# Any life whatever

steps = st.sampled_from(
    [OK, OK, HANG, ServerFailed("no luck"), CannotConnect("never"), OSError(24, "none left")]
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
        if connection is world.channel.current and not world.channel.current.over.is_set():
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
