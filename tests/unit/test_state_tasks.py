from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from emceepee_stdio.errors import InvalidArguments, ResultExpired, TaskLimit, TaskNotFound
from emceepee_stdio.state.machine import IllegalMove
from emceepee_stdio.state.tasks import TASK_STATES, Slot, Task, Tasks, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable

WORKING, COMPLETED, FAILED, CANCELLED, EXPIRED = TaskStatus
ENDS = [COMPLETED, FAILED, CANCELLED, EXPIRED]


def make_tasks(**settings_: float) -> Tasks:
    numbers = count(1)
    return Tasks(new_id=lambda: f"t{next(numbers)}", **settings_)  # type: ignore[arg-type]


def start(tasks: Tasks, *, now: float = 0.0, server: str = "s", ttl: float | None = None) -> Task:
    return tasks.promote(tasks.admit(), server=server, tool="dig", now=now, ttl=ttl)


def end(tasks: Tasks, task: Task, status: TaskStatus, *, now: float = 1.0) -> Task | None:
    """Bring a working task to an end in the way that leads to this status."""
    ways: dict[TaskStatus, Callable[[], Task | None]] = {
        COMPLETED: lambda: tasks.complete(task.id, "r", now=now),
        FAILED: lambda: tasks.fail(task.id, "boom", now=now),
        CANCELLED: lambda: tasks.cancel(task.id, now=now),
        EXPIRED: lambda: next(iter(tasks.expire(now=task.expires_at).expired), None),
    }
    return ways[status]()


# The table


@pytest.mark.parametrize("source", TaskStatus)
@pytest.mark.parametrize("target", TaskStatus)
def test_a_task_moves_from_working_to_an_end_and_nowhere_else(
    source: TaskStatus, target: TaskStatus
):
    if source is WORKING and target is not WORKING:
        TASK_STATES.check(source, target)
    else:
        with pytest.raises(IllegalMove) as caught:
            TASK_STATES.check(source, target)
        assert (caught.value.source, caught.value.target) == (source, target)


@pytest.mark.parametrize("status", ENDS)
def test_a_working_task_reaches_every_end(status: TaskStatus):
    tasks = make_tasks()
    task = start(tasks)
    ended = end(tasks, task, status)
    assert ended is not None
    assert ended.status is status
    assert tasks.get(task.id, now=1.0) == ended
    assert tasks.working() == []


@pytest.mark.parametrize("first", ENDS)
def test_a_task_that_ended_cannot_be_cancelled_and_stays_as_it_was(first: TaskStatus):
    tasks = make_tasks()
    task = start(tasks)
    ended = end(tasks, task, first)
    with pytest.raises(IllegalMove):
        tasks.cancel(task.id, now=2.0)
    assert tasks.get(task.id, now=2.0) == ended


@pytest.mark.parametrize("first", ENDS)
def test_a_late_result_or_error_does_not_count(first: TaskStatus):
    tasks = make_tasks()
    task = start(tasks)
    ended = end(tasks, task, first)
    assert tasks.complete(task.id, "late", now=3.0, size=10) is None
    assert tasks.fail(task.id, "late", now=3.0) is None
    assert tasks.get(task.id, now=3.0) == ended


def test_a_result_for_a_task_that_never_was_does_not_count():
    tasks = make_tasks()
    assert tasks.complete("t9", "r", now=0.0) is None
    assert tasks.fail("t9", "e", now=0.0) is None


def test_a_finished_task_is_not_expired_when_its_old_time_comes():
    tasks = make_tasks()
    task = start(tasks)
    tasks.complete(task.id, "r", now=1.0)
    assert tasks.next_deadline() is None
    assert tasks.expire(now=1e9).expired == ()


# Promotion and time to live


def test_a_promoted_call_is_a_working_task_with_the_default_time_to_live():
    task = start(make_tasks(), now=5.0)
    assert (task.status, task.server, task.tool) == (WORKING, "s", "dig")
    assert (task.created_at, task.updated_at, task.expires_at) == (5.0, 5.0, 5.0 + 30 * 60)
    assert (task.result, task.error, task.fetched_at) == (None, None, None)


@pytest.mark.parametrize("ttl", [0.001, 1.0, 86_400.0])
def test_a_task_may_be_given_its_own_time_to_live(ttl: float):
    assert start(make_tasks(), now=1.0, ttl=ttl).expires_at == 1.0 + ttl


@pytest.mark.parametrize("ttl", [0.0, -1.0, 86_400.001, float("inf"), float("nan")])
def test_a_time_to_live_out_of_bounds_is_refused_and_the_call_keeps_its_place(ttl: float):
    tasks = make_tasks()
    slot = tasks.admit()
    with pytest.raises(InvalidArguments, match=r"task_ttl_ms was .* must be 1 to 86400000"):
        tasks.promote(slot, server="s", tool="t", now=0.0, ttl=ttl)
    assert (slot.held, tasks.in_flight, tasks.working()) == (True, 1, [])


def test_a_task_expires_when_its_time_is_over_and_says_what_that_time_was():
    tasks = make_tasks()
    task = start(tasks, ttl=0.25, now=8.0)
    assert tasks.next_deadline() == 8.25
    assert tasks.expire(now=8.2499).expired == ()
    (expired,) = tasks.expire(now=8.25).expired
    assert (expired.id, expired.status, expired.updated_at) == (task.id, EXPIRED, 8.25)
    assert expired.error == "no result within its time to live of 0.25 s"
    assert tasks.expire(now=99.0).expired == ()


def test_tasks_expire_earliest_first():
    tasks = make_tasks()
    late, early = start(tasks, ttl=20.0), start(tasks, ttl=10.0)
    assert tasks.next_deadline() == 10.0
    assert [t.id for t in tasks.expire(now=30.0).expired] == [early.id, late.id]


# The limit


def test_the_limit_counts_calls_and_tasks_together():
    tasks = make_tasks(limit=3)
    tasks.admit()
    start(tasks)
    tasks.admit()
    with pytest.raises(TaskLimit, match="2 calls and 1 tasks are running; the limit is 3"):
        tasks.admit()


def test_an_admitted_call_is_never_refused_as_a_task():
    tasks = make_tasks(limit=5)
    slots = [tasks.admit() for _ in range(5)]
    for slot in slots:
        tasks.promote(slot, server="s", tool="t", now=0.0)
    assert len(tasks.working()) == 5
    assert tasks.in_flight == 0


@pytest.mark.parametrize("status", ENDS)
def test_an_ended_task_makes_room_for_a_call(status: TaskStatus):
    tasks = make_tasks(limit=1)
    task = start(tasks)
    with pytest.raises(TaskLimit):
        tasks.admit()
    end(tasks, task, status)
    assert tasks.admit().held


def test_leaving_twice_frees_one_place():
    tasks = make_tasks(limit=2)
    slot = tasks.admit()
    tasks.admit()
    tasks.leave(slot)
    tasks.leave(slot)
    assert tasks.in_flight == 1


def test_leaving_after_the_promotion_frees_nothing():
    tasks = make_tasks(limit=1)
    slot = tasks.admit()
    tasks.promote(slot, server="s", tool="t", now=0.0)
    tasks.leave(slot)
    assert tasks.in_flight == 0
    with pytest.raises(TaskLimit):
        tasks.admit()


def test_a_call_that_ended_cannot_become_a_task():
    tasks = make_tasks()
    slot = tasks.admit()
    tasks.leave(slot)
    with pytest.raises(ValueError, match="already ended"):
        tasks.promote(slot, server="s", tool="t", now=0.0)
    assert (tasks.in_flight, tasks.working()) == (0, [])


# A lost server


def test_a_lost_server_fails_each_of_its_working_tasks_once():
    tasks = make_tasks()
    mine = [start(tasks, server="lost") for _ in range(3)]
    other = start(tasks, server="other")
    tasks.complete(mine[0].id, "r", now=1.0)
    failed = tasks.fail_server("lost", "it went away", now=2.0)
    assert [t.id for t in failed] == [mine[1].id, mine[2].id]
    assert {(t.status, t.error, t.updated_at) for t in failed} == {(FAILED, "it went away", 2.0)}
    assert tasks.fail_server("lost", "again", now=3.0) == []
    assert tasks.working() == [other]
    assert tasks.get(mine[0].id, now=3.0).status is COMPLETED


# Keeping outcomes


def test_an_outcome_that_nobody_fetched_is_kept():
    tasks = make_tasks()
    task = start(tasks)
    tasks.complete(task.id, {"x": 1}, now=1.0, size=10)
    tasks.get(task.id, now=2.0)
    assert tasks.next_deadline() is None
    assert tasks.expire(now=1e9).forgotten == ()
    assert tasks.fetch(task.id, now=1e9).result == {"x": 1}


def test_a_fetched_outcome_stays_for_its_retention_and_then_says_when_it_went():
    tasks = make_tasks(retention=300.0)
    task = start(tasks)
    tasks.complete(task.id, "r", now=1.0)
    assert tasks.fetch(task.id, now=10.0).fetched_at == 10.0
    assert tasks.fetch(task.id, now=200.0).fetched_at == 10.0
    assert tasks.next_deadline() == 310.0
    assert tasks.expire(now=309.9).forgotten == ()
    assert tasks.expire(now=310.0).forgotten == (task.id,)
    with pytest.raises(ResultExpired, match=r"fetched, and its retention ended, 2\.5 s ago"):
        tasks.fetch(task.id, now=312.5)
    with pytest.raises(ResultExpired, match="no longer kept"):
        tasks.cancel(task.id, now=312.5)


def test_fetching_a_working_task_starts_nothing():
    tasks = make_tasks()
    task = start(tasks)
    assert tasks.fetch(task.id, now=1.0) == task
    assert tasks.next_deadline() == task.expires_at


def test_an_unknown_task_is_not_found():
    with pytest.raises(TaskNotFound, match="'t77'"):
        make_tasks().get("t77", now=0.0)


def test_the_oldest_outcomes_go_when_there_are_too_many():
    tasks = make_tasks(max_finished=2)
    started = [start(tasks) for _ in range(3)]
    for n, task in enumerate(reversed(started)):
        tasks.complete(task.id, n, now=float(n))
    with pytest.raises(ResultExpired, match=r"room was needed for newer results, 8\.0 s ago"):
        tasks.get(started[2].id, now=10.0)
    assert [t.id for t in tasks.all()] == [started[1].id, started[0].id]


def test_the_oldest_outcomes_go_when_they_take_too_much_memory():
    tasks = make_tasks(max_bytes=100)
    started = [start(tasks) for _ in range(4)]
    for task in started[:3]:
        tasks.complete(task.id, "r", now=1.0, size=40)
    assert [t.id for t in tasks.all()] == [started[3].id, started[1].id, started[2].id]
    tasks.fail(started[3].id, "e" * 30, now=2.0)
    assert [t.id for t in tasks.all()] == [started[2].id, started[3].id]


def test_the_newest_outcome_stays_however_large_it_is():
    tasks = make_tasks(max_bytes=100, max_finished=0)
    small, large = start(tasks), start(tasks)
    tasks.complete(small.id, "r", now=1.0, size=1)
    tasks.complete(large.id, "r", now=1.0, size=10_000)
    assert [t.id for t in tasks.all()] == [large.id]


def test_room_is_given_back_by_what_was_forgotten():
    tasks = make_tasks(max_bytes=100, retention=1.0)
    first, second, third = (start(tasks) for _ in range(3))
    tasks.complete(first.id, "r", now=0.0, size=90)
    tasks.fetch(first.id, now=0.0)
    tasks.expire(now=1.0)
    tasks.complete(second.id, "r", now=2.0, size=50)
    tasks.complete(third.id, "r", now=2.0, size=50)
    assert [t.id for t in tasks.all()] == [second.id, third.id]


def test_an_evicted_outcome_leaves_no_deadline_behind():
    tasks = make_tasks(max_finished=1)
    first, second = start(tasks), start(tasks)
    tasks.complete(first.id, "r", now=0.0)
    tasks.fetch(first.id, now=0.0)
    tasks.complete(second.id, "r", now=1.0)
    assert tasks.next_deadline() is None
    assert tasks.expire(now=1e6).forgotten == ()


def test_a_task_that_expires_in_a_full_store_leaves_what_is_forgotten_in_the_same_tick_alone():
    tasks = make_tasks(max_finished=2, retention=10.0)
    fetched, kept = start(tasks), start(tasks)
    tasks.cancel(fetched.id, now=0.0)
    tasks.cancel(kept.id, now=0.0)
    tasks.fetch(fetched.id, now=0.0)
    late = start(tasks, ttl=5.0)
    expiry = tasks.expire(now=20.0)
    assert [t.id for t in expiry.expired] == [late.id]
    assert expiry.forgotten == (fetched.id,)
    assert [t.id for t in tasks.all()] == [kept.id, late.id]
    with pytest.raises(ResultExpired, match="its retention ended"):
        tasks.get(fetched.id, now=20.0)


def test_all_shows_the_working_tasks_first():
    tasks = make_tasks()
    done, working, other = start(tasks), start(tasks), start(tasks, server="o")
    tasks.complete(done.id, "r", now=1.0)
    assert [t.id for t in tasks.all()] == [working.id, other.id, done.id]
    assert [t.id for t in tasks.working(server="o")] == [other.id]


def test_the_reprs_show_state_and_age():
    tasks = make_tasks(limit=7)
    task = start(tasks, now=1.0)
    assert repr(task) == "<Task t1 working s/dig age=0.0s>"
    tasks.admit()
    assert repr(tasks) == "<Tasks in_flight=1 working=1 finished=0 limit=7>"
    assert repr(tasks.cancel(task.id, now=3.5)) == "<Task t1 cancelled s/dig age=2.5s>"


# Any interleaving, against plain dictionaries

LIMIT, MAX_FINISHED, MAX_BYTES, RETENTION = 4, 5, 100, 7.0


@dataclass
class Known:
    server: str
    expires_at: float
    status: TaskStatus = WORKING
    size: int = 0
    fetched_at: float | None = None
    gone: bool = False


class TaskMachine(RuleBasedStateMachine):
    """No task ends twice, no place is lost or given twice, every deadline is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.tasks = make_tasks(
            limit=LIMIT, max_finished=MAX_FINISHED, max_bytes=MAX_BYTES, retention=RETENTION
        )
        self.slots: list[Slot] = []
        self.left: list[Slot] = []
        self.known: dict[str, Known] = {}
        self.finished: list[str] = []

    def working(self) -> dict[str, Known]:
        return {i: k for i, k in self.known.items() if k.status is WORKING}

    def pick(self, number: int) -> str:
        return list(self.known)[-1 - number % len(self.known)]

    def expect_end(self, task_id: str, status: TaskStatus, size: int = 0) -> None:
        known = self.known[task_id]
        assert known.status is WORKING
        known.status, known.size = status, size
        self.finished.append(task_id)
        while len(self.finished) > 1 and (
            len(self.finished) > MAX_FINISHED
            or sum(self.known[i].size for i in self.finished) > MAX_BYTES
        ):
            self.known[self.finished.pop(0)].gone = True

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 5.0, 20.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def admit(self) -> None:
        if len(self.slots) + len(self.working()) < LIMIT:
            self.slots.append(self.tasks.admit())
        else:
            with pytest.raises(TaskLimit):
                self.tasks.admit()

    @precondition(lambda self: self.slots)
    @rule()
    def leave(self) -> None:
        slot = self.slots.pop()
        self.tasks.leave(slot)
        self.left.append(slot)

    @precondition(lambda self: self.left)
    @rule(number=st.integers(0, 50))
    def leave_again_or_promote_too_late(self, number: int) -> None:
        slot = self.left[number % len(self.left)]
        self.tasks.leave(slot)
        with pytest.raises(ValueError, match="already ended"):
            self.tasks.promote(slot, server="a", tool="t", now=self.now)

    @precondition(lambda self: self.slots)
    @rule(server=st.sampled_from("ab"), ttl=st.sampled_from([None, 0.5, 1.0, 6.0]))
    def promote(self, server: str, ttl: float | None) -> None:
        slot = self.slots.pop()
        task = self.tasks.promote(slot, server=server, tool="t", now=self.now, ttl=ttl)
        self.left.append(slot)
        self.known[task.id] = Known(server, self.now + (1800.0 if ttl is None else ttl))

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 50), size=st.integers(0, 120), well=st.booleans())
    def an_outcome_arrives(self, number: int, size: int, *, well: bool) -> None:
        task_id = self.pick(number)
        was_working = self.known[task_id].status is WORKING
        if well:
            task = self.tasks.complete(task_id, "r", now=self.now, size=size)
        else:
            task = self.tasks.fail(task_id, "x" * size, now=self.now)
        assert (task is not None) == was_working
        if was_working:
            self.expect_end(task_id, COMPLETED if well else FAILED, size)

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 50))
    def cancel(self, number: int) -> None:
        task_id = self.pick(number)
        known = self.known[task_id]
        if known.status is WORKING:
            self.tasks.cancel(task_id, now=self.now)
            self.expect_end(task_id, CANCELLED)
        else:
            with pytest.raises(ResultExpired if known.gone else IllegalMove):
                self.tasks.cancel(task_id, now=self.now)

    @precondition(lambda self: self.known)
    @rule(number=st.integers(0, 50))
    def fetch(self, number: int) -> None:
        task_id = self.pick(number)
        known = self.known[task_id]
        if known.gone:
            with pytest.raises(ResultExpired):
                self.tasks.fetch(task_id, now=self.now)
            return
        task = self.tasks.fetch(task_id, now=self.now)
        if known.status is not WORKING and known.fetched_at is None:
            known.fetched_at = self.now
        assert (task.status, task.fetched_at) == (known.status, known.fetched_at)

    @rule(server=st.sampled_from("ab"))
    def lose_server(self, server: str) -> None:
        expected = [i for i, k in self.working().items() if k.server == server]
        failed = self.tasks.fail_server(server, "gone", now=self.now)
        assert [t.id for t in failed] == expected
        for task_id in expected:
            self.expect_end(task_id, FAILED, len("gone"))

    def deadlines(self) -> dict[str, float]:
        due = {i: k.expires_at for i, k in self.working().items()}
        for i, k in self.known.items():
            if k.fetched_at is not None and not k.gone:
                due[i] = k.fetched_at + RETENTION
        return due

    @rule()
    def tick(self) -> None:
        due = {i for i, when in self.deadlines().items() if when <= self.now}
        outcome = self.tasks.expire(now=self.now)
        expired = [t.id for t in outcome.expired]
        assert set(expired) == {i for i in due if self.known[i].status is WORKING}
        assert set(outcome.forgotten) == due - set(expired)
        for task_id in outcome.forgotten:
            self.known[task_id].gone = True
            self.finished.remove(task_id)
        for task_id in expired:
            self.expect_end(task_id, EXPIRED)

    @invariant()
    def everything_agrees(self) -> None:
        assert self.tasks.in_flight == len(self.slots)
        assert self.tasks.in_flight + len(self.tasks.working()) <= LIMIT
        seen = {t.id: t.status for t in self.tasks.all()}
        assert seen == {i: k.status for i, k in self.known.items() if not k.gone}
        assert self.tasks.next_deadline() == min(self.deadlines().values(), default=None)


TestTaskMachine = TaskMachine.TestCase
TestTaskMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
