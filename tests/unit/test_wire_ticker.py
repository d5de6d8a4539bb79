"""The one loop that keeps deadlines, and the one way to wake those who wait, on virtual time."""

from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.timing import Ticker, Wakeup


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": MockClock(autojump_threshold=0)}


class Due:
    """Instants at which something is due; notes when it was told that time is up."""

    def __init__(self, *instants: float) -> None:
        self.instants = list(instants)
        self.expired: list[float] = []
        self.bugs: list[Exception] = []
        self.fails = False
        clock = Clock(monotonic=trio.current_time, wall=trio.current_time)
        self.ticker = Ticker(
            clock, [self._first, lambda: None], self._expire, on_bug=self.bugs.append
        )

    def _first(self) -> float | None:
        return min(self.instants, default=None)

    def _expire(self, now: float) -> None:
        if self.fails:
            raise ZeroDivisionError
        self.expired += [now for instant in self.instants if instant <= now]
        self.instants = [instant for instant in self.instants if instant > now]

    def add(self, instant: float) -> None:
        self.instants.append(instant)
        self.ticker.look(instant)


async def test_every_deadline_is_kept_at_its_instant() -> None:
    due = Due(30.0, 10.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(due.ticker.run)
        await trio.sleep(5.0)
        due.add(20.0)
        due.add(6.0)
        await trio.sleep(95.0)
        tasks.cancel_scope.cancel()
    assert due.expired == [6.0, 10.0, 20.0, 30.0]


async def test_only_an_earlier_deadline_makes_it_look_again() -> None:
    due = Due(10.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(due.ticker.run)
        await anyio.wait_all_tasks_blocked()
        assert due.ticker.next == 10.0
        due.ticker.look(11.0)
        assert due.ticker.next == 10.0
        due.ticker.look(9.0)
        assert due.ticker.next == 9.0
        await anyio.wait_all_tasks_blocked()
        assert due.ticker.next == 10.0, "nothing was due at 9 after all"
        assert repr(due.ticker) == "<Ticker next=10.0>"
        tasks.cancel_scope.cancel()


async def test_without_a_deadline_there_is_no_timer() -> None:
    due = Due()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(due.ticker.run)
        await anyio.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
        due.add(7.0)
        await trio.sleep(7.0)
        await anyio.wait_all_tasks_blocked()
        assert due.expired == [7.0]
        tasks.cancel_scope.cancel()


async def test_a_bug_is_told_and_time_goes_on_without_spinning() -> None:
    due = Due(10.0)
    due.fails = True
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(due.ticker.run)
        await trio.sleep(14.5)
        assert 1 <= len(due.bugs) <= 5
        due.fails = False
        await trio.sleep(2.0)
        tasks.cancel_scope.cancel()
    assert len(due.expired) == 1


async def test_everybody_who_waits_is_woken_and_looks_again() -> None:
    wakeup, value, woken = Wakeup(), 0, list[int]()

    async def wait(least: int) -> None:
        await wakeup.wait_for(lambda: value >= least)
        woken.append(least)

    async with anyio.create_task_group() as tasks:
        for least in (1, 1, 2):
            tasks.start_soon(wait, least)
        await anyio.wait_all_tasks_blocked()
        wakeup.wake()
        await anyio.wait_all_tasks_blocked()
        assert woken == []
        value = 1
        wakeup.wake()
        await anyio.wait_all_tasks_blocked()
        assert woken == [1, 1]
        value = 2
        wakeup.wake()
    assert woken == [1, 1, 2]


async def test_what_is_true_already_is_not_waited_for() -> None:
    with anyio.fail_after(1):
        await Wakeup().wait_for(lambda: True)
