"""What backends tell, as state and events of a session whose clock is ours."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.backends.interface import (
    AttemptFailed,
    BackendEvent,
    Era,
    HealthChange,
    Hello,
    ListsDiffer,
    LogLine,
    LogSource,
    Loss,
    PhaseChange,
    ProcessEnded,
    ProcessStarted,
    Question,
    ServerNotification,
    Withdrawn,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import RequestNotFound, ServerFailed
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.backend_handler import BackendHandler
from emceepee_stdio.session.client_calls import Call, CallingClient, ServerRun
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.pending_requests import (
    ClosedBy,
    PendingRequest,
    RequestKind,
    RequestStatus,
)
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.state.tasks import Task, TaskStatus
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError

HELLO = Hello(
    era=Era.LEGACY, protocol_version="2025-11-25", server_info={"name": "s", "version": "1"}
)
INTRODUCTION = {
    "era": "legacy",
    "protocol_version": "2025-11-25",
    "server_info": {"name": "s", "version": "1"},
}
LOSS = Loss(fact="s exited with code 3.", tail=["oops"], exit_code=3)


class Invalidated(NamedTuple):
    """The ids of what a loss took with it."""

    tasks: tuple[str, ...]
    requests: tuple[str, ...]


NOTHING = Invalidated(tasks=(), requests=())


class Server:
    """The other end of questions: what it was told."""

    def __init__(self) -> None:
        self.received: list[tuple[object, bytes | RpcError]] = []

    def question(self, key: object, *, method: str = "elicitation/create") -> Question:
        def deliver(outcome: bytes | RpcError) -> bool:
            self.received.append((key, outcome))
            return True

        params = Raw(b'{"message":"who?"}')
        return Question(method=method, params=params, key=key, deliver=deliver)


class Around:
    """A handler and the state that it keeps true."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.now = 100.0
        clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)
        self._directory = directory
        self.session = Session(
            msgspec.convert(settings, Settings),
            clock=clock,
            ids=Ids(clock),
            journal=Journal.open(directory=directory, session="s", clock=clock, stderr=None),
        )
        self.events = self.session.state.events
        self.tasks = self.session.state.tasks
        self.requests = self.session.state.requests
        self.handler = BackendHandler(self.session, target_of=lambda server: f"run {server}")
        self.server = Server()

    def take(self, event: BackendEvent, *, server: str = "s") -> None:
        self.handler.take(server, event)

    def change(self, previous: Phase | None, phase: Phase, **more: Any) -> Invalidated:
        """What is no longer in flight after it."""
        tasks, requests = self.tasks.working(), list(self.requests.open)
        self.take(PhaseChange(previous=previous, phase=phase, **more))
        left = {task.id for task in self.tasks.working()}
        return Invalidated(
            tasks=tuple(task.id for task in tasks if task.id not in left),
            requests=tuple(asked for asked in requests if asked not in self.requests.open),
        )

    def told(self) -> list[tuple[str, dict[str, Any]]]:
        lease = self.events.take()
        self.events.commit(lease)
        assert {event.server for event in lease.events} <= {"s", "other"}
        assert all(event.count == 1 for event in lease.events)
        for event in lease.events:
            assert event.data.keys() <= event.type.fields.keys(), event.data
        return [(event.type.value, dict(event.data)) for event in lease.events]

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.told()]

    def journal(self) -> list[tuple[str, dict[str, Any]]]:
        return [(line["event"], line["data"]) for line in self.lines()]

    def lines(self) -> list[dict[str, Any]]:
        self.session.journal.close()
        (path,) = self._directory.glob("*.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()]

    def task(self, server: str = "s", tool: str = "build") -> Task:
        return self.tasks.promote(self.tasks.admit(), server=server, tool=tool, now=self.now)

    def question(self, kind: RequestKind, server: str = "s") -> PendingRequest:
        method = {"elicitation": "elicitation/create", "sampling": "sampling/createMessage"}
        question = self.server.question(object(), method=method[kind.value])
        before = set(self.requests.open)
        self.take(question, server=server)
        self.told()
        (new,) = self.requests.open.keys() - before
        return self.requests.open[new]


@pytest.fixture
def around(tmp_path: Path) -> Around:
    return Around(tmp_path)


def test_the_beginning_is_not_told_but_the_connection_is(around: Around):
    assert around.change(None, Phase.CONNECTING) == NOTHING
    assert around.told() == []
    assert around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO) == NOTHING
    assert around.told() == [("server_connected", INTRODUCTION)]


def test_a_server_that_is_started_by_its_use_and_stopped_without_one_is_no_news(around: Around):
    around.change(None, Phase.IDLE)
    for pid in (1, 2):
        around.change(Phase.IDLE, Phase.CONNECTING)
        around.take(ProcessStarted(pid=pid))
        around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO)
        around.change(Phase.CONNECTED, Phase.IDLE)
        around.take(ProcessEnded(loss=LOSS, expected=True))
    assert around.told() == []
    around.change(Phase.IDLE, Phase.CONNECTING)
    around.change(Phase.CONNECTING, Phase.FAILED, error=ServerFailed("It broke."))
    assert [kind for kind, _ in around.told()] == ["server_restart_failed"]


def test_a_server_that_comes_up_by_itself_at_the_start_is_no_news(around: Around):
    around.session.state.starting.add("s")
    around.change(None, Phase.CONNECTING)
    around.take(ProcessStarted(pid=4711))
    around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO)
    assert around.told() == []
    around.change(Phase.CONNECTED, Phase.CONNECTING, loss=LOSS)
    around.take(ProcessStarted(pid=4712))
    around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO)
    kinds = [kind for kind, _ in around.told()]
    assert kinds == ["server_disconnected", "process_started", "server_connected"]


def test_a_start_that_fails_is_always_news_and_so_is_what_follows(around: Around):
    around.session.state.starting.add("s")
    around.change(None, Phase.CONNECTING)
    around.take(ProcessStarted(pid=4711))
    around.change(Phase.CONNECTING, Phase.RECONNECTING, attempt=1, attempts=5, retry_in=0.25)
    around.take(ProcessStarted(pid=4712))
    around.change(Phase.RECONNECTING, Phase.CONNECTED, hello=HELLO)
    kinds = [kind for kind, _ in around.told()]
    assert kinds == ["server_reconnecting", "process_started", "server_connected"]


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
        (
            "server_reconnected",
            {
                **INTRODUCTION,
                "type": "network_blip",
                "invalidated_tasks": 0,
                "invalidated_elicitations": 0,
                "invalidated_sampling_requests": 0,
            },
        ),
    ]


async def test_the_call_of_a_task_that_failed_with_its_server_is_not_made_anew(around: Around):
    call, given_up = Call(client=CallingClient(ceiling=9.0)), list[bool]()
    around.session.begin(call, ServerRun(server="s", tool="build"), within=0.0)
    call.cancel_request = partial(given_up.append, True)  # noqa: FBT003 - that it was called
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS)
    assert around.tasks.get(call.task or "", now=around.now).status is TaskStatus.FAILED
    assert given_up == [True]
    assert call.cancel_request is None


@pytest.mark.parametrize(
    ("loss", "hello", "kind"),
    [
        (LOSS, HELLO, "network_blip"),
        (replace(LOSS, restarted=True), HELLO, "restart"),
        (LOSS, replace(HELLO, server_info={"name": "s", "version": "2"}), "restart"),
    ],
    ids=["as before", "a new process or session", "another version"],
)
def test_a_return_says_whether_the_server_began_anew_and_what_the_outage_cost(
    around: Around, loss: Loss, hello: Hello, kind: str
):
    around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO)
    around.task()
    around.task()
    around.question(RequestKind.ELICITATION)
    around.question(RequestKind.SAMPLING)
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=loss)
    around.told()
    around.change(Phase.RECONNECTING, Phase.CONNECTED, hello=hello, was_connected_before=True)
    [(event, data)] = around.told()
    assert event == "server_reconnected"
    assert (data["type"], data["invalidated_tasks"]) == (kind, 2)
    assert (data["invalidated_elicitations"], data["invalidated_sampling_requests"]) == (1, 1)


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


@pytest.mark.parametrize("phase", [Phase.DISCONNECTED, Phase.CONNECTING])
def test_who_leaves_a_server_refuses_its_questions_first(around: Around, phase: Phase):
    around.question(RequestKind.ELICITATION)
    around.question(RequestKind.SAMPLING)
    around.change(Phase.CONNECTED, phase)
    refusals = [outcome for _, outcome in around.server.received]
    assert [isinstance(refusal, RpcError) for refusal in refusals] == [True, True]


def test_a_server_that_is_gone_is_answered_nothing(around: Around):
    around.question(RequestKind.ELICITATION)
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS)
    assert around.server.received == []


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
    around.take(ProcessStarted(4711))
    around.take(ProcessEnded(loss=LOSS, expected=False))
    around.take(ProcessEnded(loss=LOSS, expected=True))
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
    asked = PendingRequest(
        id="q9",
        kind=kind,
        server="s",
        params={},
        status=RequestStatus.REJECTED,
        created_at=0.0,
        expires_at=1.0,
        closed_by=by,
    )
    around.session.questions.closed(asked)
    assert around.told() == [(event, {"request_id": "q9", "reason": by.value})]


def test_events_carry_the_time_at_which_they_happened(around: Around):
    around.now = 777.0
    around.take(ProcessStarted(1))
    assert [event.created_at for event in around.events.take().events] == [777.0]


def test_a_look_into_the_journal_finds_what_happened_to_a_server(around: Around):
    around.take(ProcessStarted(4711))
    around.change(Phase.CONNECTING, Phase.CONNECTED, hello=HELLO, url="https://a.example/mcp")
    task = around.task()
    error = ServerFailed("gone")
    around.change(
        Phase.CONNECTED, Phase.RECONNECTING, attempt=1, retry_in=0.5, loss=LOSS, error=error
    )
    around.take(AttemptFailed(ServerFailed("again"), attempt=1, retry_in=2.0))
    around.take(AttemptFailed(ServerFailed("last"), attempt=2))
    around.change(Phase.RECONNECTING, Phase.FAILED, error=ServerFailed("never"))
    around.change(Phase.CONNECTED, Phase.DISCONNECTED)
    journal = around.journal()
    assert [event for event, _ in journal] == [
        "server_spawned",
        "server_connected",
        "server_disconnected",
        "task_failed",
        "session_server_reconciliation_complete",
        "server_reconnecting",
        "server_reconnect_failed",
        "server_reconnecting",
        "server_reconnect_failed",
        "server_failed",
        "server_disconnected",
        "session_server_reconciliation_complete",
    ]
    data = [data for _, data in journal]
    assert (data[0]["pid"], data[0]["command"]) == (4711, "run s")
    assert data[1] == {"url": "https://a.example/mcp"}
    assert data[2] == {"reason": LOSS.fact, "exit_code": 3, "stderr": ["oops"]}
    assert data[3] == {"task_id": task.id, "tool": "build", "error": LOSS.fact}
    assert data[4] == {
        "invalidated_tasks": 1,
        "invalidated_elicitations": 0,
        "invalidated_sampling_requests": 0,
    }
    assert (data[5]["attempt"], data[5]["delay_ms"]) == (1, 500)
    assert "gone" in data[5]["error"]
    assert (data[6]["attempt"], "again" in data[6]["error"]) == (1, True)
    assert (data[7]["attempt"], data[7]["delay_ms"]) == (2, 2000)
    assert data[8]["attempt"] == 2
    assert "never" in data[9]["error"]
    assert data[10] == {"reason": "The connection to s was closed."}


@pytest.mark.parametrize("phase", [Phase.RECONNECTING, Phase.FAILED])
def test_a_loss_is_a_warning_in_the_journal_with_its_cause(around: Around, phase: Phase):
    around.change(Phase.CONNECTED, phase, loss=LOSS, error=ServerFailed("gone"))
    [lost] = [line for line in around.lines() if line["event"] == "server_disconnected"]
    assert lost["level"] == "warning"
    assert lost["data"] == {"reason": LOSS.fact, "exit_code": 3, "stderr": ["oops"]}


@pytest.mark.parametrize("phase", [Phase.CONNECTING, Phase.DISCONNECTED])
def test_a_server_that_we_leave_is_no_warning_in_the_journal(around: Around, phase: Phase):
    around.change(Phase.CONNECTED, phase, loss=Loss(fact="s was removed."))
    assert {line["level"] for line in around.lines()} == {"info"}


def test_a_start_that_failed_is_a_warning_in_the_journal(around: Around):
    around.change(Phase.CONNECTING, Phase.RECONNECTING, attempt=1, error=ServerFailed("gone"))
    around.change(Phase.RECONNECTING, Phase.CONNECTED, hello=HELLO)
    around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS, error=ServerFailed("gone"))
    told = [line["level"] for line in around.lines() if line["event"] == "server_reconnecting"]
    assert told == ["warning", "info"]


def test_what_is_secret_is_masked_in_every_event_of_a_loss(around: Around):
    around.session.secrets.add(["open-sesame-123"])
    task = around.task()
    loss = Loss(fact="open-sesame-123 failed.", tail=["with open-sesame-123"])
    error = ServerFailed("open-sesame-123 is wrong")
    around.take(ProcessEnded(loss=loss, expected=False))
    around.change(Phase.CONNECTED, Phase.FAILED, loss=loss, error=error)
    around.take(AttemptFailed(error, attempt=1))
    told, kept = around.told(), around.tasks.get(task.id, now=around.now).error
    shown = json.dumps([told, kept, around.journal()])
    assert [kind for kind, _ in told] == [
        "process_crashed",
        "server_disconnected",
        "task_failed",
        "server_restart_failed",
    ]
    assert "failed." in shown
    assert "sesame" not in shown


def test_health_and_lists_are_told_as_they_change(around: Around):
    around.take(HealthChange(degraded=True, misses=3))
    around.take(HealthChange(degraded=False, misses=3))
    around.take(ListsDiffer(["tools", "prompts"]))
    assert around.told() == [
        ("server_health_degraded", {"missed": 3}),
        ("server_health_restored", {"missed": 3}),
        ("notification", {"method": "notifications/tools/list_changed", "since_reconnect": True}),
        ("notification", {"method": "notifications/prompts/list_changed", "since_reconnect": True}),
    ]


def test_a_notification_is_kept_whole_and_the_same_again_is_folded(around: Around):
    for params in (b'{"a":1}', b'{"a":1}', b'{"a":2}'):
        around.take(ServerNotification("n", Raw(params)))
    around.take(ServerNotification("n", None))
    events = around.events.take().events
    assert [(event.count, dict(event.data)) for event in events] == [
        (2, {"method": "n", "params": {"a": 1}}),
        (1, {"method": "n", "params": {"a": 2}}),
        (1, {"method": "n"}),
    ]
    kept = around.session.state.notifications["s"].last(10)
    assert [notified.params for notified in kept] == [
        Raw(b'{"a":1}'),
        Raw(b'{"a":1}'),
        Raw(b'{"a":2}'),
        None,
    ]


# Questions


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("elicitation/create", RequestKind.ELICITATION),
        ("sampling/createMessage", RequestKind.SAMPLING),
    ],
)
def test_a_question_waits_for_the_client_and_its_answer_goes_back_once(
    around: Around, method: str, kind: RequestKind
):
    around.take(around.server.question("k", method=method))
    (asked,) = around.requests.pending()
    assert (asked.kind, asked.server, asked.params) == (kind, "s", {"message": "who?"})
    assert around.told() == [(f"{kind.value}_request", {"request_id": asked.id})]
    assert around.session.ticker.next <= asked.expires_at
    status = RequestStatus.DECLINED
    assert around.session.questions.respond(asked, status, b'{"a":1}')
    with pytest.raises(RequestNotFound):
        around.session.questions.respond(asked, status, b"{}")
    assert not around.session.questions.refuse(asked, "late")
    assert around.server.received == [("k", b'{"a":1}')]


def test_a_question_whose_key_is_in_use_is_refused_and_a_closed_one_may_return(around: Around):
    around.take(around.server.question(("p", 1)))
    (first,) = around.requests.pending()
    around.told()
    around.take(around.server.question(("p", 1), method="sampling/createMessage"))
    ((_, refusal),) = around.server.received
    assert isinstance(refusal, RpcError)
    assert refusal.code == INVALID_REQUEST
    assert "already in use" in refusal.message
    assert around.requests.pending() == [first]
    assert around.told() == [], "the client is not troubled with it"
    around.take(around.server.question(("p", "1")))
    around.take(around.server.question(("q", 1)))
    assert len(around.requests) == 3
    assert len(around.server.received) == 1

    closed = around.requests.respond(
        first.id, RequestStatus.DECLINED, kind=first.kind, now=around.now
    )
    assert around.session.questions.refuse(closed, "no")
    around.take(around.server.question(("p", 1)))
    around.take(Withdrawn(("p", 1)))
    around.take(around.server.question(("p", 1)))
    assert len(around.requests) == 3
    assert len(around.server.received) == 2


def test_a_question_that_is_taken_back_is_told_once_and_never_answered(around: Around):
    around.take(around.server.question(("p", 1)))
    around.take(around.server.question(("p", "x")))
    gone, left = around.requests.pending()
    around.told()
    for key in (("p", 1), ("p", 1), ("p", "nobody"), ("q", "x"), "x"):
        around.take(Withdrawn(key))
    assert around.told() == [
        ("elicitation_expired", {"request_id": gone.id, "reason": "withdrawn"})
    ]
    assert around.requests.pending() == [left]
    assert around.server.received == []


def test_taking_back_what_was_answered_is_nothing(around: Around):
    around.take(around.server.question(("p", 1)))
    (asked,) = around.requests.pending()
    assert around.session.questions.answer(asked, "accept")
    around.told()
    around.take(Withdrawn(("p", 1)))
    assert around.told() == []
    assert len(around.server.received) == 1


def test_more_questions_than_anybody_could_answer_are_refused(tmp_path: Path):
    around = Around(tmp_path, fixed={"pending_requests": 2})
    for number, server in enumerate(["s", "other", "other"]):
        around.take(around.server.question(number), server=server)
    ((key, refusal),) = around.server.received
    assert (key, len(around.requests)) == (2, 2)
    assert isinstance(refusal, RpcError)
    assert refusal.code == INVALID_REQUEST


# Who waits


class Waiter:
    """Somebody who waits for news, and what the state was each time that they looked."""

    def __init__(self, around: Around, task: Task) -> None:
        self._around = around
        self._task = task
        self.looks: list[tuple[TaskStatus, int, list[str]]] = []

    def look(self) -> bool:
        around = self._around
        status = around.tasks.get(self._task.id, now=around.now).status
        kinds = [event.type.value for event in around.events.since(0)]
        self.looks.append((status, len(around.requests), kinds))
        return status is not TaskStatus.WORKING

    async def wait(self) -> None:
        assert await self._around.session.until(self.look, within=60.0)


async def test_at_a_loss_everything_has_changed_before_anybody_who_waits_looks(
    around: Around,
) -> None:
    task = around.task()
    around.question(RequestKind.ELICITATION)
    around.question(RequestKind.SAMPLING)
    waiters = [Waiter(around, task) for _ in range(3)]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for waiter in waiters:
                tasks.start_soon(waiter.wait)
            await anyio.wait_all_tasks_blocked()
            assert [len(waiter.looks) for waiter in waiters] == [1, 1, 1]
            around.change(Phase.CONNECTED, Phase.RECONNECTING, loss=LOSS, attempt=1, attempts=5)
            assert [len(waiter.looks) for waiter in waiters] == [1, 1, 1]
    for waiter in waiters:
        before, *later = waiter.looks
        assert before[:2] == (TaskStatus.WORKING, 2)
        assert {look[:2] for look in later} == {(TaskStatus.FAILED, 0)}
        assert later[0][2][-5:] == [
            "server_disconnected",
            "task_failed",
            "elicitation_expired",
            "sampling_expired",
            "server_reconnecting",
        ]


@pytest.mark.parametrize(
    "event",
    [
        PhaseChange(previous=Phase.CONNECTING, phase=Phase.CONNECTED),
        ProcessStarted(1),
        ProcessEnded(loss=LOSS, expected=True),
        ServerNotification("n", None),
        ListsDiffer(["tools"]),
        HealthChange(degraded=True, misses=1),
        Question(method="elicitation/create", params=None, key=1, deliver=lambda _: True),
    ],
    ids=lambda event: type(event).__name__,
)
async def test_whatever_is_told_wakes_those_who_wait(around: Around, event: BackendEvent) -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            latest = around.events.latest
            tasks.start_soon(_until_later_than, around, latest)
            await anyio.wait_all_tasks_blocked()
            around.take(event)


async def _until_later_than(around: Around, latest: int) -> None:
    assert await around.session.until(lambda: around.events.latest > latest, within=60.0)


async def test_a_log_line_wakes_nobody(around: Around) -> None:
    waiter = Waiter(around, around.task())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiter.wait)
        await anyio.wait_all_tasks_blocked()
        around.take(LogLine(source=LogSource.STDERR, text="x"))
        await anyio.wait_all_tasks_blocked()
        assert len(waiter.looks) == 1
        tasks.cancel_scope.cancel()
    assert len(around.session.state.logs["s"].last(10)) == 1
