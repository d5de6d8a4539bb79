"""Promotion, on a clock of our own: who becomes a task, when, and why."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Settings
from emceepee_stdio.errors import CallFailed, InvalidArguments, TaskLimit
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.session import Session
from emceepee_stdio.state import TaskStatus
from emceepee_stdio.wire.codec import RpcError


class Question:
    """A question of a server, and what became of it."""

    method = "elicitation/create"
    params = Raw(b'{"message":"who?"}')

    def __init__(self, call: object = None) -> None:
        self.call = call
        self.outcomes: list[bytes | RpcError] = []

    def answer(self, result: bytes) -> bool:
        self.outcomes.append(result)
        return True

    def refuse(self, error: RpcError) -> bool:
        self.outcomes.append(error)
        return True


class World:
    """A session and its clock."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        self.now = 1_000.0
        clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)
        self.session = Session(
            msgspec.convert(settings, Settings),
            clock=clock,
            ids=Ids(clock),
            journal=Journal.open(directory=tmp_path, session="s", clock=clock, stderr=None),
        )
        self.answers: dict[int, list[Reply]] = {}

    def call(self, server: str = "s", *, within: float = 40.0, ttl: float | None = None) -> Call:
        replies: list[Reply] = []
        call = Call(answer=replies.append, ceiling=45.0)
        self.answers[id(call)] = replies
        self.session.begin(call, server=server, tool="t", within=within, ttl=ttl)
        return call

    def after(self, seconds: float) -> None:
        """Time goes by, and the ticker looks whenever something is due."""
        end = self.now + seconds
        sources = self.session.ticker._sources
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
    assert world.session.tasks.get(call.task or "", now=0).status is TaskStatus.COMPLETED
    assert len(world.answers[id(call)]) == 1


async def test_a_call_that_ends_in_time_never_is_one(world: World) -> None:
    call = world.call(within=5)
    world.session.finish(call, Reply.text("quick"))
    world.after(10)
    assert call.task is None
    assert list(world.session.tasks.all()) == []
    assert world.session.tasks.in_flight == 0


async def test_a_question_promotes_every_call_of_its_server_after_the_grace(world: World) -> None:
    first, second, other = world.call(), world.call(), world.call("other")
    world.session.asked("s", Question())
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
    world.session.asked("s", Question(second))
    world.after(1)
    assert world.said(first) is None
    assert world.said(second) is not None
    world.session.asked("s", Question(second))
    world.after(1)
    assert world.said(first) is None


async def test_question_after_question_cannot_put_the_promotion_off(world: World) -> None:
    call = world.call(within=0.5)
    for _ in range(20):
        world.session.asked("s", Question())
        world.after(0.05)
    assert world.said(call) is not None
    assert world.session.tasks.get(call.task or "", now=0).created_at <= 1_000.11


async def test_the_grace_never_lengthens_the_wait(tmp_path: Path) -> None:
    world = World(tmp_path, timeouts={"promotion_grace_ms": 10_000})
    call = world.call(within=1)
    world.session.asked("s", Question())
    world.after(1.01)
    assert world.said(call) is not None


async def test_a_question_that_is_gone_within_the_grace_promotes_nobody(world: World) -> None:
    call, question = world.call(within=5), Question()
    world.session.asked("s", question)
    world.session.withdrawn("s", question)
    world.after(4.9)
    assert world.said(call) is None
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "timeout"


async def test_a_call_made_while_a_question_waits_gets_a_second(world: World) -> None:
    question = Question()
    world.session.asked("s", question)
    call, other = world.call(within=30), world.call("other", within=30)
    world.after(0.9)
    assert world.said(call) is None
    world.after(0.2)
    said = world.said(call)
    assert said is not None
    assert said["reason"] == "input_required"
    assert world.said(other) is None
    late = world.call(within=30)
    world.session.withdrawn("s", question)
    world.after(5)
    assert world.said(late) is None


async def test_the_plain_timeout_can_be_had_back(tmp_path: Path) -> None:
    world = World(tmp_path, promote_on_input=False)
    call = world.call(within=5)
    world.session.asked("s", Question())
    late = world.call(within=5)
    world.after(4.9)
    assert (world.said(call), world.said(late)) == (None, None)


async def test_a_question_that_nobody_answers_is_refused_once(world: World) -> None:
    question = Question()
    world.session.asked("s", question)
    world.after(601)
    [refusal] = question.outcomes
    assert isinstance(refusal, RpcError)
    assert len(world.session.requests) == 0
    world.session.withdrawn("s", question)
    kinds = [event.type.value for event in world.session.events.take().events]
    assert kinds == ["elicitation_request", "elicitation_expired"]


async def test_a_task_whose_time_is_over_cancels_its_call_and_late_ends_count_for_nothing(
    world: World,
) -> None:
    call = world.call(within=1, ttl=10)
    world.after(10.9)
    assert not call.scope.cancel_called
    world.after(0.2)
    assert call.scope.cancel_called
    world.session.finish(call, Reply.text("late"))
    world.session.fail(call, CallFailed("late"))
    task = world.session.tasks.get(call.task or "", now=0)
    assert task.status is TaskStatus.EXPIRED
    kinds = [event.type.value for event in world.session.events.take().events]
    assert kinds == ["task_created", "task_expired"]


async def test_the_server_may_take_longer_than_the_task_lives(world: World) -> None:
    call = Call(answer=lambda _: None, ceiling=45.0)
    world.session.begin(call, server="s", tool="t", within=40.0, ttl=100.0)
    assert call.limit > 140.0


async def test_a_lifetime_is_judged_before_the_call_is_made(tmp_path: Path) -> None:
    world = World(tmp_path, timeouts={"task_ttl_max_ms": 5_000})
    with pytest.raises(InvalidArguments, match="task_ttl_ms"):
        world.call(ttl=6.0)
    assert world.session.tasks.in_flight == 0
    call = world.call(within=0)
    assert world.session.tasks.get(call.task or "", now=0).expires_at == world.now + 5


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
    assert list(world.session.tasks.all()) == []


async def test_what_was_fetched_is_forgotten_in_time_whatever_else_is_due(world: World) -> None:
    call = world.call(within=0)
    world.session.finish(call, Reply.text("done"))
    looked: list[float] = []
    world.session.ticker.look = looked.append  # type: ignore[method-assign]
    world.session.fetch(call.task or "")
    assert looked == [world.now + 300]


def test_a_question_that_would_fill_every_answer_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path, limits={"question_bytes": 1024})
    large = Question()
    large.params = Raw(b'{"message":"%b"}' % (b"x" * 2_000))
    world.session.asked("s", large)
    (refusal,) = large.outcomes
    assert isinstance(refusal, RpcError)
    assert "too large" in refusal.message
    assert not len(world.session.requests)
    assert world.session.events.waiting == 0


def test_one_server_cannot_ask_more_than_its_share(tmp_path: Path) -> None:
    world = World(tmp_path, limits={"server_questions": 2})
    questions = [Question() for _ in range(3)]
    for question in questions:
        world.session.asked("s", question)
    other = Question()
    world.session.asked("another", other)
    assert [len(question.outcomes) for question in (*questions, other)] == [0, 0, 1, 0]
    assert len(world.session.requests) == 3
