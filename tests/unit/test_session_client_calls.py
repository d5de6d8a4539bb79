"""Promotion, on a clock of our own: who becomes a task, when, and why."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.backends.interface import Question, Withdrawn
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import CallFailed, InvalidArguments, TaskLimit
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.backend_handler import BackendHandler
from emceepee_stdio.session.client_calls import Call, CallEnd, CallingClient, ServerRun, shown_task
from emceepee_stdio.session.rendering import shown_elicitation
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import RequestKind
from emceepee_stdio.state.tasks import TaskStatus
from emceepee_stdio.wire.codec import RpcError


class Asking:
    """A question of a server, and what became of it."""

    def __init__(
        self,
        call: object = None,
        *,
        params: bytes = b'{"message":"who?"}',
        method: str = "elicitation/create",
    ) -> None:
        self.outcomes: list[bytes | RpcError] = []
        self.question = Question(
            method=method,
            params=Raw(params),
            key=self,
            deliver=self._deliver,
            call=call,
        )

    def _deliver(self, outcome: bytes | RpcError) -> bool:
        self.outcomes.append(outcome)
        return True


class Kept(CallEnd):
    """Keeps the replies of calls."""

    def __init__(self, replies: list[Reply]) -> None:
        self._replies = replies

    def answer(self, call: Call, reply: Reply) -> None:
        self._replies.append(reply)


class World:
    """A session and its clock."""

    def __init__(self, tmp_path: Path, *, level: str = "info", **settings: Any) -> None:
        self.now = 1_000.0
        clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)
        self.session = Session(
            msgspec.convert(settings, Settings),
            clock=clock,
            ids=Ids(clock),
            journal=Journal.open(
                directory=tmp_path, session="s", clock=clock, level=level, stderr=None
            ),
        )
        self._handler = BackendHandler(self.session, target_of=lambda _: None)
        self.answers: dict[int, list[Reply]] = {}

    def asked(self, server: str, asking: Asking) -> None:
        self._handler.take(server, asking.question)

    def withdrawn(self, server: str, asking: Asking) -> None:
        self._handler.take(server, Withdrawn(asking))

    def sentence(self, call: Call) -> str:
        [reply] = self.answers[id(call)]
        return json.loads(b"[%b]" % reply.content)[0]["text"]

    def told(self) -> list[str]:
        """The kinds of all events so far."""
        return [event.type.value for event in self.session.state.events.since(0)]

    def call(
        self,
        server: str = "s",
        *,
        within: float = 40.0,
        ttl: float | None = None,
        args: bytes = b"{}",
    ) -> Call:
        replies: list[Reply] = []
        call = Call(client=CallingClient(ceiling=45.0, end=Kept(replies)))
        self.answers[id(call)] = replies
        run = ServerRun(server=server, tool="t", args=Raw(args), ttl=ttl)
        self.session.begin(call, run, within=within)
        return call

    def after(self, seconds: float) -> None:
        """Time goes by, and the ticker looks whenever something is due."""
        end = self.now + seconds
        sources = self.session.ticker.sources
        while True:
            due = [when for source in sources if (when := source()) is not None and when <= end]
            if not due:
                break
            self.now = max(self.now, min(due))
            self.session._expire(self.now)
        self.now = end

    def said(self, call: Call) -> dict[str, Any] | None:
        """The facts of the only answer to a call, if there is one."""
        replies = self.answers[id(call)]
        assert len(replies) <= 1
        if not replies:
            return None
        return json.loads(json.loads(b"[%b]" % replies[0].content)[-1]["text"])


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_a_call_is_a_task_when_its_time_is_up_and_not_before(world: World) -> None:
    call = world.call(within=5)
    world.after(4.9)
    assert world.said(call) is None
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "timeout"
    assert said["pending_on_server"]["elicitations_for_server"] == []
    world.session.finish(call, Reply.text("late"))
    assert world.session.state.tasks.get(call.task or "", now=0).status is TaskStatus.COMPLETED
    assert len(world.answers[id(call)]) == 1


async def test_a_call_that_ends_in_time_never_is_one(world: World) -> None:
    call = world.call(within=5)
    world.session.finish(call, Reply.text("quick"))
    world.after(10)
    assert call.task is None
    assert list(world.session.state.tasks.all()) == []
    assert world.session.state.tasks.in_flight == 0


async def test_a_question_promotes_every_call_of_its_server_after_the_grace(world: World) -> None:
    first, second, other = world.call(), world.call(), world.call("other")
    world.asked("s", Asking())
    assert world.said(first) is None
    world.after(0.05)
    world.session.finish(second, Reply.text("{}"))
    world.after(0.06)
    said = world.said(first)
    assert said is not None
    assert said["reason"] == "input_required"
    assert second.task is None
    assert world.said(other) is None


async def test_where_the_asking_call_is_known_it_alone_makes_way(world: World) -> None:
    first, second = world.call(), world.call()
    world.asked("s", Asking(second))
    world.after(1)
    assert world.said(first) is None
    assert world.said(second) is not None
    world.asked("s", Asking(second))
    world.after(1)
    assert world.said(first) is None


async def test_question_after_question_cannot_put_the_promotion_off(world: World) -> None:
    call = world.call(within=0.5)
    for _ in range(20):
        world.asked("s", Asking())
        world.after(0.05)
    assert world.said(call) is not None
    assert world.session.state.tasks.get(call.task or "", now=0).created_at <= 1_000.11


async def test_the_grace_never_lengthens_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"promotion_grace_s": 10})
    call = world.call(within=1)
    world.asked("s", Asking())
    world.after(1.01)
    assert world.said(call) is not None


async def test_a_question_that_is_gone_within_the_grace_promotes_nobody(world: World) -> None:
    call, question = world.call(within=5), Asking()
    world.asked("s", question)
    world.withdrawn("s", question)
    world.after(4.9)
    assert world.said(call) is None
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "timeout"


async def test_a_call_made_while_a_question_waits_gets_a_second(world: World) -> None:
    question = Asking()
    world.asked("s", question)
    call, other = world.call(within=30), world.call("other", within=30)
    world.after(0.9)
    assert world.said(call) is None
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "question_pending", "the question is older than the call"
    assert "s has a question open" in world.sentence(call)
    assert world.said(other) is None
    late = world.call(within=30)
    world.withdrawn("s", question)
    world.after(5)
    assert world.said(late) is None


async def test_a_call_whose_question_the_person_has_waits_its_time_beside_one_at_the_tools(
    world: World,
) -> None:
    world.asked("s", Asking())
    call, other = world.call(within=30), world.call(within=30)
    world.session.wait_for_person(call)
    world.after(29)
    assert world.said(call) is None
    said = world.said(other)
    assert said is not None
    assert said["reason"] == "question_pending"
    world.after(2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "timeout"


async def test_a_call_that_has_asked_the_tools_as_well_does_not_wait_for_the_person(
    world: World,
) -> None:
    call = world.call(within=30)
    world.asked("s", Asking(call))
    world.session.wait_for_person(call)
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "input_required"


async def test_the_plain_timeout_can_be_had_back(tmp_path: Path) -> None:
    world = World(tmp_path, promote_on_input=False)
    call = world.call(within=5)
    world.asked("s", Asking())
    late = world.call(within=5)
    world.after(4.9)
    assert (world.said(call), world.said(late)) == (None, None)


async def test_without_promotion_on_input_a_call_that_ran_out_of_time_says_just_that(
    tmp_path: Path,
) -> None:
    world = World(tmp_path, promote_on_input=False)
    call, asking = world.call(within=5), world.call(within=6)
    world.asked("s", Asking())
    world.asked("s", Asking(asking))
    world.after(7)
    assert (world.said(call) or {})["reason"] == "timeout"
    assert (world.said(asking) or {})["reason"] == "input_required", "it is known to have asked"


async def test_a_call_is_not_said_to_have_asked_what_another_is_known_to_have_asked(
    world: World,
) -> None:
    first, second = world.call(within=0.5), world.call()
    world.asked("s", Asking(second))
    world.after(1)
    assert (world.said(first) or {})["reason"] == "timeout"
    assert world.sentence(first).startswith("t on s is still running; s has a question open")
    assert (world.said(second) or {})["reason"] == "input_required"
    assert world.sentence(second).startswith("s asks a question before it goes on with t")


async def test_of_a_question_that_no_call_is_known_to_have_raised_no_cause_is_claimed(
    world: World,
) -> None:
    call = world.call()
    world.asked("s", Asking())
    world.after(0.2)
    assert (world.said(call) or {})["reason"] == "input_required"
    assert "before it goes on" not in world.sentence(call)
    assert world.sentence(call).startswith("t on s is still running; s has a question open")


async def test_what_a_promotion_shows_of_its_server_are_ids_of_elicitations_and_no_samplings(
    world: World,
) -> None:
    call = world.call()
    sampling = Asking(params=b'{"messages":[]}', method="sampling/createMessage")
    world.asked("s", sampling)
    world.asked("s", Asking(call))
    world.asked("other", Asking())
    world.after(0.2)
    said = world.said(call) or {}
    [asked] = world.session.state.requests.pending(kind=RequestKind.ELICITATION, server="s")
    assert said["pending_on_server"] == {"tasks": [], "elicitations_for_server": [asked.id]}
    assert said["proxy_task"]["task_id"] == call.task
    assert "last_updated_at" not in said["proxy_task"]


async def test_a_question_names_the_task_of_the_call_that_asked_it(world: World) -> None:
    call = world.call()
    world.asked("s", Asking(call))
    world.asked("s", Asking())
    mine, of_nobody = world.session.state.requests.pending()
    assert "task_id" not in shown_elicitation(world.session, mine), "it is no task yet"
    world.after(0.2)
    assert shown_elicitation(world.session, mine)["task_id"] == call.task
    assert "task_id" not in shown_elicitation(world.session, of_nobody)


# What a task shows of itself


async def test_a_task_shows_its_arguments_without_secrets_and_not_all_of_them(
    world: World,
) -> None:
    world.session.secrets.add(["hunter2hunter2"])
    plain = world.call(within=5, args=b'{"a":1}')
    secret = world.call(within=5, args=b'{"password":"p4ssw0rd","said":"it is hunter2hunter2"}')
    large = world.call(within=5, args=b'{"text":"%b"}' % (b"x" * 5_000))
    world.after(6)
    shown = [(world.said(call) or {})["proxy_task"]["tool_args"] for call in (plain, secret, large)]
    assert shown[0] == {"a": 1}
    assert "p4ssw0rd" not in json.dumps(shown[1])
    assert "hunter2" not in json.dumps(shown[1])
    assert len(json.dumps(shown[2])) < 1_000


async def test_progress_of_a_task_is_kept_and_moves_its_time(world: World) -> None:
    call = world.call(within=5)
    world.session.note_progress(call, Raw(b'{"progressToken":1,"progress":1}'))
    world.after(6)
    task = world.session.state.tasks.get(call.task or "", now=world.now)
    assert task.status_message is None, "what came before belongs to the call"
    world.after(10)
    progress = b'{"progressToken":1,"progress":2,"total":4,"message":"half of it"}'
    world.session.note_progress(call, Raw(progress))
    task = world.session.state.tasks.get(call.task or "", now=world.now)
    assert (task.status_message, task.updated_at) == ("half of it (2 of 4)", world.now)
    world.after(1)
    for odd in (b"7", b'{"progress":"x"}', b'{"progressToken":1}', b"[" * 99):
        world.session.note_progress(call, Raw(odd))
    world.session.note_progress(call, Raw(b'{"progress":3,"message":"%b"}' % (b"x" * 5_000)))
    task = world.session.state.tasks.get(call.task or "", now=world.now)
    assert len(task.status_message or "") < 300
    assert shown_task(task, world.session.clock)["status_message"] == task.status_message
    world.session.finish(call, Reply.text("done"))
    world.session.note_progress(call, Raw(b'{"progress":4,"message":"late"}'))
    assert "late" not in str(
        world.session.state.tasks.get(call.task or "", now=world.now).status_message
    )


async def test_a_new_task_is_told_with_its_time_to_live(world: World) -> None:
    call = world.call(within=0, ttl=10)
    [event] = world.session.state.events.since(0)
    assert dict(event.data) == {
        "task_id": call.task,
        "tool": "t",
        "reason": "timeout",
        "ttl_ms": 10_000,
    }


async def test_a_question_that_nobody_answers_is_refused_once(world: World) -> None:
    question = Asking()
    world.asked("s", question)
    world.after(601)
    [refusal] = question.outcomes
    assert isinstance(refusal, RpcError)
    assert len(world.session.state.requests) == 0
    world.withdrawn("s", question)
    kinds = [event.type.value for event in world.session.state.events.take().events]
    assert kinds == ["elicitation_request", "elicitation_expired"]


async def test_a_task_whose_time_is_over_cancels_its_call_and_late_ends_count_for_nothing(
    world: World,
) -> None:
    call = world.call(within=1, ttl=10)
    given_up: list[Call] = []
    call.cancel_request = lambda: given_up.append(call)
    world.after(10.9)
    assert not call.scope.cancel_called
    assert given_up == []
    world.after(0.2)
    assert call.scope.cancel_called
    assert given_up == [call]
    world.session.finish(call, Reply.text("late"))
    world.session.fail(call, CallFailed("late"))
    task = world.session.state.tasks.get(call.task or "", now=0)
    assert task.status is TaskStatus.EXPIRED
    kinds = [event.type.value for event in world.session.state.events.take().events]
    assert kinds == ["task_expired"], "its answer reports that it was created"


async def test_a_lifetime_is_judged_before_the_call_is_made(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"task_ttl_max_s": 5})
    with pytest.raises(InvalidArguments, match="task_ttl_ms"):
        world.call(ttl=6.0)
    assert world.session.state.tasks.in_flight == 0
    call = world.call(within=0)
    assert world.session.state.tasks.get(call.task or "", now=0).expires_at == world.now + 5


async def test_an_abandoned_call_gives_its_place_back_and_is_never_answered(tmp_path: Path) -> None:
    world = World(tmp_path, limits={"tasks": 1})
    for _ in range(5):
        call = world.call(within=5)
        with pytest.raises(TaskLimit):
            world.call()
        world.session.abandon(call)
        world.session.abandon(call)
        world.after(10)
        world.session.finish(call, Reply.text("late"))
        assert world.answers[id(call)] == []
    assert list(world.session.state.tasks.all()) == []


async def test_what_was_fetched_is_forgotten_in_time_whatever_else_is_due(world: World) -> None:
    call = world.call(within=0)
    world.session.finish(call, Reply.text("done"))
    world.session.fetch(call.task or "")
    assert world.session.ticker.next == world.now + 300


def test_a_question_that_would_fill_every_answer_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"question_bytes": 1024})
    large = Asking(params=b'{"message":"%b"}' % (b"x" * 2_000))
    world.asked("s", large)
    (refusal,) = large.outcomes
    assert isinstance(refusal, RpcError)
    assert "too large" in refusal.message
    assert not len(world.session.state.requests)
    assert world.session.state.events.waiting == 0


def test_one_server_cannot_ask_more_than_its_share(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"server_questions": 2})
    questions = [Asking() for _ in range(3)]
    for question in questions:
        world.asked("s", question)
    other = Asking()
    world.asked("another", other)
    assert [len(question.outcomes) for question in (*questions, other)] == [0, 0, 1, 0]
    assert len(world.session.state.requests) == 3


def test_a_call_is_answered_once(world: World) -> None:
    call = world.call()
    world.session.finish(call, Reply.text("first"))
    world.session.finish(call, Reply.text("second"))
    world.session.fail(call, CallFailed("third"))
    assert len(world.answers[id(call)]) == 1
    assert repr(call) == "<Call s/t answered>"


# What the journal says of calls and events


def journal(world: World, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    world.session.journal.close()
    (path,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["event"], line["data"]) for line in lines]


@pytest.mark.parametrize("end", ["finish", "fail", "abandon", "cancel", "expire"])
async def test_every_call_that_was_begun_ends_in_the_journal_once_with_its_duration(
    tmp_path: Path, end: str
) -> None:
    world = World(tmp_path, level="debug")
    call = world.call(within=40, ttl=50)
    world.after(41 if end in ("cancel", "expire") else 2)
    match end:
        case "finish":
            world.session.finish(call, Reply.text("done", is_error=True))
        case "fail":
            world.session.fail(call, CallFailed("It broke."))
        case "abandon":
            world.session.abandon(call)
        case "cancel":
            world.session.cancel_task(call.task or "")
        case _:
            world.after(100)
    world.session.finish(call, Reply.text("late"))
    told = [data for event, data in journal(world, tmp_path) if event == "tool_execution_complete"]
    [data] = told
    words = {"finish": "completed", "fail": "failed", "expire": "expired"}
    assert data["outcome"] == words.get(end, "cancelled")
    assert data["duration_ms"] == {"cancel": 41_000, "expire": 90_000}.get(end, 2_000)
    assert data["tool"] == "t"
    assert data.get("error") == ("call_failed" if end == "fail" else None)


async def test_a_task_ends_in_the_journal_with_its_tool(tmp_path: Path) -> None:
    world = World(tmp_path)
    done, failed = world.call(within=0), world.call(within=0)
    world.session.finish(done, Reply.text("done"))
    world.session.fail(failed, CallFailed("It broke."))
    told = dict(journal(world, tmp_path))
    assert told["task_completed"] == {"task_id": done.task, "tool": "t"}
    assert (told["task_failed"]["task_id"], told["task_failed"]["tool"]) == (failed.task, "t")


async def test_a_log_that_is_nearly_full_has_evicted_nothing_yet(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"events": 10})
    for _ in range(9):
        world.session.tell(EventType.TIMER_EXPIRED)
    events = [line for line in journal(world, tmp_path) if line[0] != "event_added"]
    assert events == [
        ("event_store_approaching_limit", {"waiting": 8, "capacity": 10, "percent_full": 80})
    ]


async def test_events_that_had_to_go_are_an_eviction(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"events": 10})
    for _ in range(12):
        world.session.tell(EventType.TIMER_EXPIRED)
    assert "event_store_eviction" in dict(journal(world, tmp_path))


# The end of a call and what it has asked


def finish(world: World, call: Call) -> None:
    world.session.finish(call, Reply.text("done"))


def fail(world: World, call: Call) -> None:
    world.session.fail(call, CallFailed("It broke."))


def abandon(world: World, call: Call) -> None:
    world.session.abandon(call)


def cancel_its_task(world: World, call: Call) -> None:
    world.after(1)
    world.session.cancel_task(call.task or "", by=Call(client=CallingClient(ceiling=45.0)))


def let_its_task_expire(world: World, _call: Call) -> None:
    world.after(100)


@pytest.mark.parametrize("end", [finish, fail, abandon, cancel_its_task, let_its_task_expire])
async def test_a_call_that_ends_withdraws_and_refuses_what_it_has_asked(
    world: World, end: Callable[[World, Call], None]
) -> None:
    call, other = world.call(ttl=50), world.call(ttl=5_000)
    mine, also_mine, of_other, of_nobody = Asking(call), Asking(call), Asking(other), Asking()
    for asking in (mine, also_mine, of_other, of_nobody):
        world.asked("s", asking)
    answered = Asking(call)
    world.asked("s", answered)
    *_, last = world.session.state.requests.pending()
    assert world.session.questions.answer(last, "accept")
    assert world.told().count("elicitation_expired") == 0
    ids = [asked.id for asked in world.session.state.requests.pending()]
    end(world, call)
    for asking in (mine, also_mine):
        (refusal,) = asking.outcomes
        assert isinstance(refusal, RpcError)
        assert "has ended" in refusal.message
        assert not asking.question.respond(b"{}"), "it is closed"
    assert answered.outcomes == [b'{"action":"accept"}']
    assert (of_other.outcomes, of_nobody.outcomes) == ([], [])
    assert [asked.id for asked in world.session.state.requests.pending()] == ids[2:]
    expired = [
        dict(event.data)
        for event in world.session.state.events.since(0)
        if event.type is EventType.ELICITATION_EXPIRED
    ]
    assert expired == [{"request_id": asked, "reason": "withdrawn"} for asked in ids[:2]]
    told = world.told()
    world.withdrawn("s", mine)
    world.session.abandon(call)
    assert world.told() == told, "it ends once"


async def test_a_promoted_call_goes_on_and_so_do_its_questions(world: World) -> None:
    call = world.call()
    asking = Asking(call)
    world.asked("s", asking)
    world.after(1)
    assert world.said(call) is not None
    assert (asking.outcomes, len(world.session.state.requests)) == ([], 1)
    world.session.finish(call, Reply.text("done"))
    assert (len(asking.outcomes), len(world.session.state.requests)) == (1, 0)
