from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.caller import Caller
from emceepee_stdio.wire.codec import Malformed, Notification, Request, RequestId
from emceepee_stdio.wire.peer import Closed, Outcome, Overdue, Peer


class Deaf:
    def on_request(self, request: Request) -> None: ...
    def on_notification(self, notification: Notification) -> None: ...
    def on_cancelled(self, request_id: RequestId) -> None: ...
    def on_malformed(self, message: Malformed) -> None: ...
    def on_noise(self, text: str) -> None: ...
    def on_stray(self, request_id: str) -> None: ...


class Line:
    """A caller on a peer whose other side is this test."""

    def __init__(self, clock: Clock) -> None:
        self.lines: list[bytes] = []
        self.peer = Peer(handler=Deaf(), write=self.lines.append)
        self.caller = Caller(self.peer, clock)
        self.outcomes: dict[str, tuple[Outcome, float]] = {}
        self.clock = clock

    async def ask(self, name: str, within: float) -> None:
        outcome = await self.caller.request(name, lambda _: None, within=within)
        self.outcomes[name] = outcome, self.clock.now()

    def answer(self, request_id: int) -> None:
        self.peer.feed(b'{"id":%d,"result":{}}\n' % request_id)

    def cancellations(self) -> list[bytes]:
        return [line for line in self.lines if b"notifications/cancelled" in line]


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


def virtually(main: Callable[[Line], Awaitable[Any]]) -> None:
    """Run on trio's virtual time, with the deadlines of the line kept."""

    async def with_time() -> None:
        async with anyio.create_task_group() as tasks:
            line = Line(Clock(monotonic=trio.current_time, wall=lambda: 1e9 + trio.current_time()))
            tasks.start_soon(line.caller.keep_time)
            await main(line)
            tasks.cancel_scope.cancel()

    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(with_time, backend="trio", backend_options={"clock": clock})


both = pytest.mark.parametrize("backend", ["asyncio", "trio"])


@both
def test_an_answer_ends_the_wait(backend: str):
    async def main() -> None:
        line = Line(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.caller.keep_time)
            for name in ("a", "b", "c"):
                tasks.start_soon(line.ask, name, 60.0)
            await settle()
            for request_id in (3, 1, 2):
                line.answer(request_id)
            await settle()
            assert [outcome for outcome, _ in line.outcomes.values()] == [Raw(b"{}")] * 3
            assert set(line.outcomes) == {"a", "b", "c"}
            assert not line.cancellations()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@both
def test_cancelling_the_wait_cancels_at_the_other_side(backend: str):
    async def main() -> None:
        line = Line(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.caller.keep_time)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(line.ask, "a", 60.0)
                    await settle()
                    scope.cancel()
            assert len(line.cancellations()) == 1
            assert b'"requestId":1' in line.cancellations()[0]
            assert line.peer.statistics().sent == 0
            line.answer(1)
            assert line.outcomes == {}
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@both
def test_the_end_of_the_peer_ends_every_wait_also_of_who_comes_later(backend: str):
    async def main() -> None:
        line = Line(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", 60.0)
            tasks.start_soon(line.ask, "b", 60.0)
            await settle()
            line.peer.close("gone")
        await line.ask("c", 60.0)
        assert [outcome for outcome, _ in line.outcomes.values()] == [Closed("gone")] * 3

    anyio.run(main, backend=backend)


@both
def test_real_time_ends_what_is_overdue(backend: str):
    async def main() -> None:
        line = Line(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.caller.keep_time)
            await line.ask("a", 0.01)
            tasks.cancel_scope.cancel()
        outcome, _ = line.outcomes["a"]
        assert outcome == Overdue()

    anyio.run(main, backend=backend)


def test_an_overdue_request_ends_at_its_deadline():
    async def main(line: Line) -> None:
        start = trio.current_time()
        await line.ask("a", 30.0)
        assert line.outcomes == {"a": (Overdue(), start + 30.0)}
        assert len(line.cancellations()) == 1

    virtually(main)


def test_a_time_of_nothing_is_over_at_once():
    async def main(line: Line) -> None:
        start = trio.current_time()
        await line.ask("a", 0.0)
        await line.ask("b", -5.0)
        assert line.outcomes == {"a": (Overdue(), start), "b": (Overdue(), start)}

    virtually(main)


def test_an_earlier_deadline_that_is_set_later_is_kept():
    async def main(line: Line) -> None:
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "patient", 100.0)
            await trio.sleep(10.0)
            tasks.start_soon(line.ask, "hasty", 5.0)
            await settle()
            tasks.start_soon(line.ask, "hastier", 1.0)
        assert line.outcomes == {
            "hastier": (Overdue(), start + 11.0),
            "hasty": (Overdue(), start + 15.0),
            "patient": (Overdue(), start + 100.0),
        }
        assert list(line.outcomes) == ["hastier", "hasty", "patient"]

    virtually(main)


def test_many_deadlines_are_each_kept_to_the_instant():
    async def main(line: Line) -> None:
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(line.ask, str(number), float(number * 37 % 100) + 1)
        assert {name: when for name, (_, when) in line.outcomes.items()} == {
            str(number): start + number * 37 % 100 + 1 for number in range(100)
        }

    virtually(main)


def test_a_request_made_before_anybody_keeps_time_is_not_forgotten():
    async def main() -> None:
        line = Line(Clock(monotonic=trio.current_time, wall=trio.current_time))
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", 3.0)
            await settle()
            tasks.start_soon(line.caller.keep_time)
            while not line.outcomes:
                await trio.sleep(0.5)
            tasks.cancel_scope.cancel()
        assert line.outcomes == {"a": (Overdue(), start + 3.0)}

    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(main, backend="trio", backend_options={"clock": clock})


def test_no_timer_is_left_when_nothing_is_under_way():
    def to_next_timer() -> float:
        return trio.lowlevel.current_statistics().seconds_to_next_deadline

    async def main(line: Line) -> None:
        await settle()
        assert to_next_timer() == float("inf")
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(line.ask, str(number), 10.0 + number)
            await settle()
            assert to_next_timer() <= 10.0
            for request_id in range(1, 21):
                line.answer(request_id)
        assert line.peer.next_deadline() is None
        await trio.sleep(31.0)
        assert to_next_timer() == float("inf")
        assert not line.cancellations()

    virtually(main)


def test_an_endless_time_needs_no_timer():
    async def main(line: Line) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", float("inf"))
            await trio.sleep(80_000.0)
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
            line.answer(1)
        outcome, _ = line.outcomes["a"]
        assert outcome == Raw(b"{}")

    virtually(main)


def test_progress_reaches_who_asked_for_it():
    async def main(line: Line) -> None:
        seen: list[Raw] = []

        async def ask() -> None:
            await line.caller.request("m", lambda _: None, within=60.0, on_progress=seen.append)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await settle()
            line.peer.feed(
                b'{"method":"notifications/progress","params":{"progressToken":1,"progress":5}}\n'
            )
            line.answer(1)
        assert seen == [Raw(b'{"progressToken":1,"progress":5}')]

    virtually(main)
