"""The front with a real session and no processes: each request is answered once, or taken back."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import CallFailed
from emceepee_stdio.front import tool_calls
from emceepee_stdio.front.front import Front
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.tools import TABLE
from emceepee_stdio.tools.registry import Params, Tool
from emceepee_stdio.versions import CLIENT_CAPABILITIES, MODERN_VERSION, PROTOCOL_VERSION
from emceepee_stdio.wire.codec import INTERNAL_ERROR, INVALID_REQUEST, RequestId
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.process import StopTimes


class Rig:
    """A front whose lines are kept here; they count as written when the test says so."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.lines: list[bytes] = []
        self.front = Front(runtime, Protocol(), tasks=tasks, write=self._write, queued=self._queued)
        self._news = anyio.Event()

    def _write(self, data: bytes) -> None:
        self.lines.append(data)
        news, self._news = self._news, anyio.Event()
        news.set()

    def _queued(self) -> int:
        return sum(map(len, self.lines))

    def say(self, request_id: RequestId, tool: str, **arguments: Any) -> None:
        self.ask(request_id, "tools/call", name=tool, arguments=arguments)

    def read(self, request_id: RequestId) -> None:
        self.ask(request_id, "resources/read", uri="emceepee://diagrams")

    def ask(self, request_id: RequestId, method: str, **params: Any) -> None:
        self._feed({"id": request_id, "method": method, "params": params})

    def cancel(self, request_id: RequestId) -> None:
        self._feed({"method": "notifications/cancelled", "params": {"requestId": request_id}})

    def _feed(self, message: dict[str, Any]) -> None:
        self.front.peer.feed(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answers(self, request_id: RequestId) -> list[dict[str, Any]]:
        """All answers to that id, in the order in which they were written."""
        messages = [json.loads(line) for line in self.lines]
        return [message for message in messages if message.get("id") == request_id]

    async def answer(self, request_id: RequestId, *, nth: int = 1) -> dict[str, Any]:
        with anyio.fail_after(10):
            while len(self.answers(request_id)) < nth:
                await self._news.wait()
        return self.answers(request_id)[nth - 1]

    async def result(self, request_id: RequestId, *, nth: int = 1) -> dict[str, Any]:
        return (await self.answer(request_id, nth=nth))["result"]

    async def known(self) -> None:
        """The servers of the configuration are known by name, as they are soon after the start."""
        self.front.start()
        with anyio.fail_after(10):
            await self.runtime.configured.known()

    def written(self) -> None:
        self.front.calls.written(self._queued())

    @property
    def leased(self) -> int:
        return self.runtime.session.state.events.statistics().leased

    @property
    def waiting(self) -> int:
        return self.runtime.session.state.events.waiting


@asynccontextmanager
async def rig(directory: Path) -> AsyncIterator[Rig]:
    clock = Clock()
    ids = Ids(clock)
    journal = Journal.open(directory=directory, session=ids(), clock=clock, stderr=None)
    runtime = Runtime(
        Config(),
        clock=clock,
        ids=ids,
        journal=journal,
        environment=Environment(
            environ={},
            cwd=directory,
            home=directory,
            trust=directory,
            uniform=lambda low, _high: low,
        ),
    )
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(runtime.run)
            yield Rig(runtime, tasks)
            await runtime.stop(StopTimes(term=0, kill=0))
            tasks.cancel_scope.cancel()
    finally:
        journal.close()


class Nothing(Params):
    """Takes nothing."""


async def boom(*_: object) -> Reply:
    raise ZeroDivisionError("a secret detail")


async def test_a_bug_in_a_tool_is_its_answer_and_the_connection_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLE, "boom", Tool(name="boom", params=Nothing, run=boom, description=""))
    async with rig(tmp_path) as it:
        it.runtime.session.tell(EventType.TIMER_EXPIRED, data={"n": 1})
        it.say(1, "boom")
        answer = await it.result(1)
        assert answer["isError"] is True
        said = answer["content"][1]["text"]
        assert "boom" in said
        assert "[call_failed]" in said
        assert "secret detail" not in said
        reference = said.split("under ")[1].split(";")[0]
        assert "timer_expired" in answer["content"][0]["text"]
        it.written()
        assert (it.leased, it.waiting) == (0, 0)
        it.say(2, "list_timers")
        assert "isError" not in await it.result(2)
        assert it.runtime.session.state.tasks.in_flight == 0
    [journal] = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    [noted] = [line for line in lines if line["event"] == "unexpected_error"]
    assert noted["request_id"] == reference
    assert "a secret detail" in json.dumps(noted)


async def test_events_count_as_told_once_their_answer_has_been_written(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        for n in range(3):
            it.runtime.session.tell(EventType.TIMER_EXPIRED, data={"n": n})
        it.say(1, "await_activity")
        await it.result(1)
        assert (it.leased, it.waiting) == (3, 0)
        it.front.calls.written(len(it.lines[0]) - 1)
        assert it.leased == 3
        it.written()
        assert (it.leased, it.waiting) == (0, 0)


@pytest.mark.parametrize("tool", ["await_activity", "list_tasks"])
async def test_a_call_cancelled_before_it_began_takes_nothing_along(
    tmp_path: Path, tool: str
) -> None:
    async with rig(tmp_path) as it:
        it.runtime.session.tell(EventType.TIMER_EXPIRED, data={"n": 1})
        it.say(1, tool)
        it.cancel(1)
        it.say(2, "await_activity")
        told = await it.result(2)
        assert "timer_expired" in told["content"][0]["text"]
        it.written()
        assert (it.leased, it.waiting) == (0, 0)
        assert len(it.lines) == 1


async def test_a_call_cancelled_while_it_waits_is_over_for_those_who_wait_for_all(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as it:
        it.say(1, "await_activity", timeout_ms=900_000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(it.front.calls.idle)
            await anyio.wait_all_tasks_blocked()
            it.cancel(1)
        assert it.lines == []


async def test_an_answer_larger_than_a_line_may_be_still_tells_its_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def big(*_: object) -> Reply:
        return Reply.text("x" * (8 << 20))

    monkeypatch.setitem(TABLE, "big", Tool(name="big", params=Nothing, run=big, description=""))
    async with rig(tmp_path) as it:
        it.runtime.session.tell(EventType.TIMER_EXPIRED, data={"n": 1})
        it.say(1, "big")
        result = await it.result(1)
        assert len(json.dumps(result)) < 100_000
        assert "timer_expired" in result["content"][0]["text"]


async def test_an_answer_that_nobody_takes_any_more_leaves_its_events_waiting(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as world:
        world.runtime.session.tell(EventType.TIMER_EXPIRED)
        world.say(1, "list_timers")
        world.front.peer.close("the client is gone")
        with anyio.fail_after(10):
            await world.front.calls.idle()
        assert world.lines == []
        assert (world.leased, world.waiting) == (0, 1)


# Ids


NEWS_IN = 900_000


async def test_an_id_that_is_open_is_refused_and_an_answered_one_may_return(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        it.say(1, "await_activity", timeout_ms=NEWS_IN)
        it.say(1, "list_timers")
        it.ask(1, "ping")
        it.read(1)
        assert [answer["error"]["code"] for answer in it.answers(1)] == [INVALID_REQUEST] * 3
        assert "already in use" in it.answers(1)[0]["error"]["message"]
        it.say("1", "list_timers")
        assert "isError" not in await it.result("1"), "another id"
        it.runtime.session.tell(EventType.TIMER_EXPIRED)
        assert "timer_expired" in (await it.result(1, nth=4))["content"][0]["text"]
        it.say(1, "list_timers")
        assert "isError" not in await it.result(1, nth=5)
        assert len(it.answers(1)) == 5


async def test_an_id_that_is_open_before_the_configuration_is_known_is_refused(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as it:
        it.say(1, "list_timers")
        it.say(1, "list_timers")
        (refusal,) = it.answers(1)
        assert refusal["error"]["code"] == INVALID_REQUEST
        await it.result(1, nth=2)
        it.read(2)
        await it.result(2)
        assert (len(it.answers(1)), len(it.answers(2))) == (2, 1)


async def test_a_reading_that_waits_for_the_configuration_keeps_its_id(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        it.read(1)
        it.read(1)
        refusal = await it.answer(1)
        assert refusal["error"]["code"] == INVALID_REQUEST
        assert "contents" in await it.result(1, nth=2)


async def test_a_stream_that_is_open_keeps_its_id_until_it_is_taken_back(tmp_path: Path) -> None:
    meta = {PROTOCOL_VERSION: MODERN_VERSION, CLIENT_CAPABILITIES: {}}
    async with rig(tmp_path) as it:
        it.ask(1, "subscriptions/listen", notifications={}, _meta=meta)
        assert it.answers(1) == []
        it.ask(1, "ping")
        (refusal,) = it.answers(1)
        assert refusal["error"]["code"] == INVALID_REQUEST
        it.cancel(1)
        it.ask(1, "ping")
        assert it.answers(1)[1]["result"] == {}


async def test_more_open_requests_than_the_limit_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "_MAX_REQUESTS", 2)
    async with rig(tmp_path) as it:
        for request_id in (1, 2, 3):
            it.say(request_id, "await_activity", timeout_ms=NEWS_IN)
        (refusal,) = it.answers(3)
        assert refusal["error"]["code"] == INVALID_REQUEST
        assert (it.answers(1), it.answers(2)) == ([], [])
        it.cancel(1)
        it.say(3, "list_timers")
        assert "isError" not in await it.result(3, nth=2)


async def test_so_many_requests_may_be_open_at_the_same_time(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        for request_id in range(1_001):
            it.say(request_id, "await_activity", timeout_ms=NEWS_IN)
        assert [json.loads(line)["id"] for line in it.lines] == [1_000]
        for request_id in range(1_000):
            it.cancel(request_id)
        assert len(it.lines) == 1


# Taking back


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_call_that_is_taken_back_is_not_answered_and_its_id_is_free(
    tmp_path: Path,
    is_known: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with rig(tmp_path) as it:
        if is_known:
            await it.known()
        it.say(1, "await_activity", timeout_ms=NEWS_IN)
        it.say("x", "await_activity", timeout_ms=NEWS_IN)
        await anyio.wait_all_tasks_blocked()
        it.cancel(1)
        it.cancel(1)
        it.cancel("nobody")
        it.runtime.session.tell(EventType.TIMER_EXPIRED)
        await it.result("x")
        assert it.answers(1) == []
        it.say(1, "list_timers")
        await it.result(1)
        assert len(it.answers(1)) == 1


async def test_taking_back_what_was_answered_is_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        it.say(1, "list_timers")
        await it.result(1)
        it.cancel(1)
        it.say(2, "list_timers")
        await it.result(2)
        assert len(it.lines) == 2


async def test_a_reading_that_is_taken_back_before_the_configuration_is_known_is_not_answered(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as it:
        it.read(1)
        it.cancel(1)
        it.read(2)
        assert "contents" in await it.result(2)
        assert it.answers(1) == []


async def test_the_client_is_told_which_question_of_ours_nobody_waits_for(tmp_path: Path) -> None:
    async with rig(tmp_path) as it:
        peer = it.front.peer
        told: list[object] = []
        for deadline in (1e9, 5.0):
            request = OutgoingRequest(method="elicitation/create", deadline=deadline)
            peer.expect(request, told.append)
        peer.cancel(1, "cancelled")
        peer.expire(6.0)
        note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        assert [json.loads(line) for line in it.lines] == [
            {**note, "params": {"requestId": 1, "reason": "cancelled"}},
            {**note, "params": {"requestId": 2, "reason": "timeout"}},
        ]
        assert len(told) == 1


# How a tool answers


class Kept:
    """A tool that answers when the test says so; what it needs is given up by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        tool = Tool(name="kept", params=Nothing, run=self.run, description="")
        monkeypatch.setitem(TABLE, "kept", tool)

    def run(self, _runtime: Runtime, _params: Nothing, call: Call) -> None:
        self.calls.append(call)
        call.cancel_request = lambda: self.cancelled.append(call)


async def test_a_tool_may_answer_at_once_without_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quick(*_: object) -> Reply:
        return Reply.text("here")

    monkeypatch.setitem(
        TABLE, "quick", Tool(name="quick", params=Nothing, run=quick, description="")
    )
    async with rig(tmp_path) as it:
        await it.known()
        it.say(1, "quick")
        (answer,) = it.answers(1)
        assert answer["result"]["content"][0]["text"] == "here"


async def test_what_comes_later_is_answered_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waited() -> Reply:
        await anyio.wait_all_tasks_blocked()
        return Reply.text("waited for")

    def fail() -> Reply:
        raise CallFailed("It broke.")

    kept = Kept(monkeypatch)
    async with rig(tmp_path) as it:
        await it.known()
        for request_id in (1, 2, 3):
            it.say(request_id, "kept")
        assert it.lines == []
        first, second, third = kept.calls
        third.client.end.proceed(third, lambda: Reply.text("plain"))
        second.client.end.proceed(second, fail)
        first.client.end.proceed(first, waited)
        assert it.answers(1) == []
        assert (await it.result(1))["content"][0]["text"] == "waited for"
        assert "It broke." in (await it.result(2))["content"][0]["text"]
        assert (await it.result(3))["content"][0]["text"] == "plain"
        for call in kept.calls:
            call.client.end.proceed(call, lambda: Reply.text("again"))
        assert len(it.lines) == 3


async def test_a_call_without_a_task_is_given_up_where_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(monkeypatch)
    async with rig(tmp_path) as it:
        await it.known()
        it.say(1, "kept")
        it.say(2, "kept")
        it.cancel(1)
        first, second = kept.calls
        assert kept.cancelled == [first]
        first.client.end.proceed(first, lambda: Reply.text("too late"))
        second.client.end.proceed(second, lambda: Reply.text("in time"))
        assert it.answers(1) == []
        await it.result(2)
        with anyio.fail_after(10):
            await it.front.calls.idle()


async def test_a_bug_outside_the_tools_is_the_answer_of_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise ZeroDivisionError("a secret detail")

    monkeypatch.setattr(Protocol, "answer", fail)
    async with rig(tmp_path) as it:
        it.ask(1, "tools/list")
        (answer,) = it.answers(1)
        assert answer["error"]["code"] == INTERNAL_ERROR
        said = answer["error"]["message"]
        assert "secret detail" not in said
        reference = said.split("under ")[1].split(";")[0]
        it.say(2, "list_timers")
        await it.result(2)
    [journal] = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    [noted] = [line for line in lines if line["event"] == "unexpected_error"]
    assert noted["request_id"] == reference
    assert "a secret detail" in json.dumps(noted)
