"""The front with a real session and no processes: what a bug inside may cost."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Config
from emceepee_stdio.front.front import Front
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.servers import Environment
from emceepee_stdio.state import EventType
from emceepee_stdio.tools.registry import Params, Tool
from emceepee_stdio.tools.table import TABLE
from emceepee_stdio.wire.process import StopTimes


class Rig:
    """A front whose lines are kept here; they count as written when the test says so."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.lines: list[bytes] = []
        self.front = Front(runtime, Protocol(), tasks=tasks, write=self._write)
        self._news = anyio.Event()

    def _write(self, data: bytes) -> None:
        self.lines.append(data)
        news, self._news = self._news, anyio.Event()
        news.set()

    def say(self, request_id: int, tool: str, **arguments: Any) -> None:
        params = {"name": tool, "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        self.front.peer.feed(json.dumps(message).encode() + b"\n")

    def cancel(self, request_id: int) -> None:
        params = {"requestId": request_id}
        message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
        self.front.peer.feed(json.dumps(message).encode() + b"\n")

    async def result(self, request_id: int) -> dict[str, Any]:
        with anyio.fail_after(10):
            while True:
                for line in self.lines:
                    if json.loads(line).get("id") == request_id:
                        return json.loads(line)["result"]
                await self._news.wait()

    def written(self) -> None:
        self.front.written(sum(map(len, self.lines)))

    @property
    def leased(self) -> int:
        return self.runtime.session.events.statistics().leased

    @property
    def waiting(self) -> int:
        return self.runtime.session.events.waiting


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
        said = answer["content"][0]["text"]
        assert "boom" in said
        assert "[call_failed]" in said
        assert "secret detail" not in said
        reference = said.split("under ")[1].split(";")[0]
        assert "timer_expired" in answer["content"][1]["text"]
        it.written()
        assert (it.leased, it.waiting) == (0, 0)
        it.say(2, "list_timers")
        assert "isError" not in await it.result(2)
        assert it.runtime.session.tasks.in_flight == 0
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
        it.front.written(len(it.lines[0]) - 1)
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
            tasks.start_soon(it.front.idle)
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
        assert "timer_expired" in result["content"][-1]["text"]


async def test_an_answer_that_nobody_takes_any_more_leaves_its_events_waiting(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path) as world:
        world.runtime.session.tell(EventType.TIMER_EXPIRED)
        world.say(1, "list_timers")
        world.front.peer.close("the client is gone")
        with anyio.fail_after(10):
            await world.front.idle()
        assert world.lines == []
        assert (world.leased, world.waiting) == (0, 1)
