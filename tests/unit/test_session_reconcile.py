from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from emceepee_stdio.backends.base import Era, Hello, Loss, PhaseChange
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ServerFailed
from emceepee_stdio.session.reconcile import Invalidated, Reconciler
from emceepee_stdio.state import (
    Asked,
    ClosedBy,
    EventLog,
    Phase,
    RequestKind,
    Requests,
    RequestStatus,
    Task,
    Tasks,
    TaskStatus,
)

NOTHING = Invalidated(tasks=(), requests=())
HELLO = Hello(
    era=Era.LEGACY, protocol_version="2025-11-25", server_info={"name": "s", "version": "1"}
)
INTRODUCTION = {
    "era": "legacy",
    "protocol_version": "2025-11-25",
    "server_info": {"name": "s", "version": "1"},
}
LOSS = Loss(fact="s exited with code 3.", tail=["oops"], exit_code=3)


def names(prefix: str) -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"


class Around:
    """A reconciler and the state that it keeps true."""

    def __init__(self) -> None:
        self.now = 100.0
        self.events = EventLog(new_id=names("e"))
        self.tasks = Tasks(new_id=names("t"))
        self.requests = Requests(new_id=names("q"))
        self.reconciler = Reconciler(
            events=self.events,
            tasks=self.tasks,
            requests=self.requests,
            clock=Clock(monotonic=lambda: self.now, wall=lambda: self.now),
        )

    def change(self, previous: Phase | None, phase: Phase, **more: Any) -> Invalidated:
        change = PhaseChange(previous=previous, phase=phase, **more)
        return self.reconciler.phase_changed("s", change)

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        lease = self.events.take()
        self.events.commit(lease)
        assert {event.server for event in lease.events} <= {"s", "other"}
        assert all(event.count == 1 for event in lease.events)
        return [(event.type.value, dict(event.data)) for event in lease.events]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told()]

    def task(self, server: str = "s", tool: str = "build") -> Task:
        return self.tasks.promote(self.tasks.admit(), server=server, tool=tool, now=self.now)

    def question(self, kind: RequestKind, server: str = "s") -> Asked:
        return self.requests.add(kind, server=server, params={}, now=self.now)


@pytest.fixture
def around() -> Around:
    return Around()


def test_the_beginning_is_not_told_but_the_connection_is(around: Around):
    assert around.change(None, Phase.CONNECTING) == NOTHING
    assert around.change(None, Phase.IDLE) == NOTHING
    assert around.change(Phase.IDLE, Phase.CONNECTING) == NOTHING
    assert around.told() == []
    assert around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO) == NOTHING
    assert around.told() == [("server_connected", INTRODUCTION)]


def test_an_outage_and_its_end_are_told_once_each(around: Around):
    around.change(
        Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS, attempt=1, attempts=5, retry_in=1.0
    )
    around.change(
        Phase.RECONNECTING, Phase.CONNECTED, hello=HELLO, was_connected_before=True, attempt=1
    )
    assert around.told() == [
        ("server_disconnected", {"reason": "s exited with code 3."}),
        ("server_reconnecting", {"attempt": 1, "attempts": 5, "retry_in_ms": 1000}),
        ("server_reconnected", INTRODUCTION),
    ]


def test_a_first_connection_after_failed_attempts_is_no_reconnection(around: Around):
    error = ServerFailed("no")
    around.change(
        Phase.CONNECTING, Phase.RECONNECTING, attempt=1, attempts=5, retry_in=0.25, error=error
    )
    around.change(Phase.RECONNECTING, Phase.CONNECTED, hello=HELLO)
    assert around.told() == [
        (
            "server_reconnecting",
            {"attempt": 1, "attempts": 5, "retry_in_ms": 250, "error": str(error)},
        ),
        ("server_connected", INTRODUCTION),
    ]


def test_a_server_that_is_given_up_is_told_with_its_error(around: Around):
    error = ServerFailed("never")
    around.change(Phase.RECONNECTING, Phase.FAILED, attempt=5, attempts=5, error=error)
    around.change(Phase.CONNECTING, Phase.FAILED, attempt=0, attempts=None, error=error)
    assert around.told() == [
        ("server_restart_failed", {"attempt": 5, "attempts": 5, "error": str(error)}),
        ("server_restart_failed", {"attempt": 0, "attempts": None, "error": str(error)}),
    ]


def test_a_loss_that_spends_the_budget_is_told_as_loss_and_as_the_end(around: Around):
    task = around.task()
    invalidated = around.change(
        Phase.CONNECTED, Phase.FAILED, loss=LOSS, attempt=5, attempts=5, error=ServerFailed("x")
    )
    assert invalidated == Invalidated(tasks=(task.id,), requests=())
    assert around.kinds() == ["server_disconnected", "task_failed", "server_restart_failed"]


def test_a_loss_invalidates_everything_in_flight_once_and_in_order(around: Around):
    first, second = around.task(tool="a"), around.task(tool="b")
    form = around.question(RequestKind.ELICITATION)
    sample = around.question(RequestKind.SAMPLING)
    around.now = 130.0
    invalidated = around.change(
        Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS, attempt=1, attempts=5, retry_in=1.0
    )
    assert invalidated == Invalidated(tasks=(first.id, second.id), requests=(form.id, sample.id))
    fact = "s exited with code 3."
    assert around.told() == [
        ("server_disconnected", {"reason": fact}),
        ("task_failed", {"task_id": first.id, "tool": "a", "error": fact}),
        ("task_failed", {"task_id": second.id, "tool": "b", "error": fact}),
        ("elicitation_expired", {"request_id": form.id, "reason": "disconnected"}),
        ("sampling_expired", {"request_id": sample.id, "reason": "disconnected"}),
        ("server_reconnecting", {"attempt": 1, "attempts": 5, "retry_in_ms": 1000}),
    ]
    failed = around.tasks.get(first.id, now=130.0)
    assert (failed.status, failed.updated_at) == (TaskStatus.FAILED, 130.0)
    assert failed.error == str(LOSS)
    assert around.requests.pending() == []


def test_the_same_outage_invalidates_nothing_twice(around: Around):
    around.task()
    around.question(RequestKind.ELICITATION)
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS)
    around.told()
    assert around.change(Phase.RECONNECTING, Phase.FAILED) == NOTHING
    assert around.change(Phase.FAILED, Phase.CONNECTING) == NOTHING
    assert around.change(Phase.CONNECTING, Phase.DISCONNECTED) == NOTHING
    assert around.kinds() == ["server_restart_failed"]


def test_a_second_outage_takes_only_what_came_since(around: Around):
    around.task()
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS)
    late = around.task()
    around.told()
    assert around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS).tasks == (late.id,)
    assert around.kinds() == ["server_disconnected", "task_failed", "server_reconnecting"]


def test_finished_results_stay(around: Around):
    done, failed, stopped = around.task(), around.task(), around.task()
    around.tasks.complete(done.id, "the result", now=100.0)
    around.tasks.fail(failed.id, "its own error", now=100.0)
    around.tasks.cancel(stopped.id, now=100.0)
    assert around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS) == NOTHING
    assert around.tasks.fetch(done.id, now=101.0).result == "the result"
    assert around.tasks.fetch(failed.id, now=101.0).error == "its own error"
    assert around.tasks.get(stopped.id, now=101.0).status is TaskStatus.CANCELLED
    assert around.kinds() == ["server_disconnected", "server_reconnecting"]


def test_other_servers_are_not_touched(around: Around):
    task = around.task(server="other")
    question = around.question(RequestKind.SAMPLING, server="other")
    assert around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS) == NOTHING
    assert around.tasks.get(task.id, now=100.0).status is TaskStatus.WORKING
    assert around.requests.pending() == [question]


def test_a_removal_rejects_with_its_own_reason(around: Around):
    task = around.task()
    form = around.question(RequestKind.ELICITATION)
    invalidated = around.change(Phase.CONNECTED, Phase.DISCONNECTED)
    assert invalidated == Invalidated(tasks=(task.id,), requests=(form.id,))
    fact = "The connection to s was closed."
    assert around.told() == [
        ("server_disconnected", {"reason": fact}),
        ("task_failed", {"task_id": task.id, "tool": "build", "error": fact}),
        ("elicitation_expired", {"request_id": form.id, "reason": "removed"}),
    ]


@pytest.mark.parametrize(
    "previous", [Phase.IDLE, Phase.CONNECTING, Phase.RECONNECTING, Phase.FAILED, None]
)
def test_removing_what_is_not_connected_is_told_by_nobody_here(
    around: Around, previous: Phase | None
):
    assert around.change(previous, Phase.DISCONNECTED) == NOTHING
    assert around.told() == []


def test_a_wanted_reconnect_ends_what_was_in_flight_and_connects_anew(around: Around):
    task = around.task()
    form = around.question(RequestKind.ELICITATION)
    around.change(Phase.CONNECTED, Phase.CONNECTING)
    around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO, was_connected_before=True)
    assert around.told() == [
        ("server_disconnected", {"reason": "The connection to s was closed."}),
        (
            "task_failed",
            {"task_id": task.id, "tool": "build", "error": "The connection to s was closed."},
        ),
        ("elicitation_expired", {"request_id": form.id, "reason": "disconnected"}),
        ("server_connected", INTRODUCTION),
    ]


def test_the_process_is_told_with_its_last_words_only_when_it_crashed(around: Around):
    around.reconciler.process_started("s", 4711)
    around.reconciler.process_ended("s", LOSS, expected=False)
    around.reconciler.process_ended("s", LOSS, expected=True)
    data = {"reason": "s exited with code 3.", "exit_code": 3}
    assert around.told() == [
        ("process_started", {"pid": 4711}),
        ("process_crashed", {**data, "stderr": ["oops"]}),
        ("process_stopped", data),
    ]


@pytest.mark.parametrize(
    ("kind", "event"),
    [
        (RequestKind.ELICITATION, "elicitation_expired"),
        (RequestKind.SAMPLING, "sampling_expired"),
    ],
)
@pytest.mark.parametrize("by", list(ClosedBy))
def test_an_unanswered_question_is_told_with_its_reason(
    around: Around, kind: RequestKind, event: str, by: ClosedBy
):
    asked = Asked(
        id="q9",
        kind=kind,
        server="s",
        params={},
        status=RequestStatus.REJECTED,
        created_at=0.0,
        expires_at=1.0,
        closed_by=by,
    )
    around.reconciler.asked_expired(asked)
    assert around.told() == [(event, {"request_id": "q9", "reason": by.value})]


def test_events_carry_the_time_at_which_they_happened(around: Around):
    around.now = 777.0
    around.reconciler.process_started("s", 1)
    assert [event.created_at for event in around.events.take().events] == [777.0]
