"""execute_tool on a real front and session, with a server that is this test."""

import json
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from msgspec import Raw

from emceepee_stdio.backends.exchange import Recheck
from emceepee_stdio.backends.interface import Cancel, OnResult, RemoteError, Sender
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import CallFailed, ProxyError, ServerDisconnected
from emceepee_stdio.front.front import Front
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Environment, Origin
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.state.tasks import TaskStatus
from emceepee_stdio.wire.codec import RpcError
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.process import StopTimes

Item = Mapping[str, Any]
TOOLS: Sequence[Item] = (
    {"name": "add", "inputSchema": {"properties": {"a": {"type": "integer"}}}},
    {"name": "look", "annotations": {"readOnlyHint": True}},
)


class Server(Sender):
    """A backend whose requests end when the test says so."""

    name = "s"
    phase = Phase.CONNECTED
    rules = None

    def __init__(self) -> None:
        self.sent: list[OutgoingRequest] = []
        self.given_up: list[OutgoingRequest] = []
        self.at_once: Raw | ProxyError | None = None
        self.listed: Sequence[Item] | ProxyError = TOOLS
        self.may_list = anyio.Event()
        self.may_list.set()
        self.lists = SimpleNamespace(
            tools=TOOLS,
            tool=self._tool,
            cut=set(),
            remembered=set(),
            had_until=lambda _tool: None,
        )
        self.channel = SimpleNamespace(needs_tools=False)
        self._on_done: list[OnResult] = []

    def _tool(self, name: str) -> Item | None:
        return next((tool for tool in self.lists.tools or () if tool["name"] == name), None)

    def forget_lists(self) -> None:
        """As after a reconnect: nobody knows its tools, and it takes its time to list them."""
        self.lists.tools = None
        self.may_list = anyio.Event()

    def send(
        self, request: OutgoingRequest, on_done: OnResult, _recheck: Recheck | None = None
    ) -> Cancel:
        self.sent.append(request)
        self._on_done.append(on_done)
        if self.at_once is not None:
            on_done(self.at_once)
        return partial(self.given_up.append, request)

    async def list_all(self, _kind: str, *, within: float) -> Sequence[Item]:
        with anyio.fail_after(within):
            await self.may_list.wait()
        if isinstance(self.listed, ProxyError):
            raise self.listed
        self.lists.tools = self.listed
        return self.listed

    def answer(self, outcome: Raw | ProxyError, *, nth: int = 0) -> None:
        self._on_done[nth](outcome)

    def arguments(self) -> list[bytes]:
        params = [request.params or {} for request in self.sent]
        return [bytes(cast("Raw", given["arguments"])) for given in params]


class World:
    """A front whose client and whose one server are the test, on a clock of its own."""

    def __init__(self, runtime: Runtime, tasks: anyio.abc.TaskGroup) -> None:
        self.runtime = runtime
        self.session = runtime.session
        self.server = Server()
        self.lines: list[bytes] = []
        self._front = Front(
            runtime, Protocol(), tasks=tasks, write=self.lines.append, queued=lambda: 0
        )

    def begin(self) -> None:
        member: Any = SimpleNamespace(backend=self.server, config=None, origin=Origin.CLIENT)
        self.runtime.servers.members["s"] = member

    async def know(self) -> None:
        """The configuration is known, as it is soon after the start."""
        self._front.start()
        await self.runtime.configured.known()

    def hold(self) -> None:
        """Nothing configured is started by itself: the test says when it is known."""
        self._front._started = True

    def end(self) -> None:
        del self.runtime.servers.members["s"]

    def execute(self, request_id: int, tool: str = "add", **arguments: Any) -> None:
        given = {"server": "s", "tool": tool} | arguments
        given = {name: value for name, value in given.items() if value is not None}
        params = {"name": "execute_tool", "arguments": given}
        self._feed({"id": request_id, "method": "tools/call", "params": params})

    def cancel(self, request_id: int) -> None:
        self._feed({"method": "notifications/cancelled", "params": {"requestId": request_id}})

    def _feed(self, message: dict[str, Any]) -> None:
        self._front.peer.feed(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def said(self, request_id: int) -> str:
        """The first text of the only answer."""
        (answer,) = [json.loads(line) for line in self.lines]
        assert answer["id"] == request_id
        return answer["result"]["content"][0]["text"]

    def task(self) -> str:
        (task,) = self.session.state.tasks.all()
        return task.id


class Time:
    """A clock that the test turns."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)


@pytest.fixture
def time() -> Time:
    return Time()


@asynccontextmanager
async def world(directory: Path, time: Time, *, known: bool = True) -> AsyncIterator[World]:
    clock = time.clock
    ids = Ids(clock)
    journal = Journal.open(directory=directory, session=ids(), clock=clock, stderr=None)
    environment = Environment(
        environ={}, cwd=directory, home=directory, trust=directory, uniform=lambda low, _high: low
    )
    runtime = Runtime(Config(), clock=clock, ids=ids, journal=journal, environment=environment)
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(runtime.run)
            made = World(runtime, tasks)
            if known:
                await made.know()
            made.begin()
            try:
                yield made
            finally:
                made.end()
            await runtime.stop(StopTimes(term=0, kill=0))
            tasks.cancel_scope.cancel()
    finally:
        journal.close()


RESULT = Raw(b'{"content":[{"type":"text","text":"3"}]}')


async def test_a_plain_call_of_a_known_server_is_sent_at_once(tmp_path: Path, time: Time) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, args={"a": 1, "b": "x"})
        (request,) = it.server.sent
        assert request.method == "tools/call"
        assert (request.params or {})["name"] == "add"
        assert json.loads(it.server.arguments()[0]) == {"a": 1, "b": "x"}
        assert it.lines == []
        it.server.answer(RESULT)
        assert it.said(1) == "3"
        assert it.session.state.tasks.in_flight == 0
        it.server.answer(RESULT)
        assert len(it.lines) == 1


async def test_an_outcome_that_is_there_at_once_is_the_answer(tmp_path: Path, time: Time) -> None:
    async with world(tmp_path, time) as it:
        it.server.at_once = RESULT
        it.execute(1)
        assert it.said(1) == "3"
        it.server.at_once = CallFailed("It broke.")
        it.lines.clear()
        it.execute(2)
        assert "It broke." in it.said(2)


async def test_the_server_may_take_as_long_as_the_task_lives(tmp_path: Path, time: Time) -> None:
    """The request has no time of its own: it would end a task that may still go on."""
    async with world(tmp_path, time) as it:
        it.execute(1, timeout_ms=40_000, task_ttl_ms=100_000)
        (request,) = it.server.sent
        assert request.deadline == math.inf
        time.now += 40.0
        it.session._expire(time.now)
        assert "proxy_task" in it.lines[0].decode()
        time.now += 99.9
        it.session._expire(time.now)
        assert it.server.given_up == []
        time.now += 0.2
        it.session._expire(time.now)
        assert it.server.given_up == [request]
        assert it.session.state.tasks.get(it.task(), now=time.now).status is TaskStatus.EXPIRED


async def test_a_task_at_once_is_sent_all_the_same(tmp_path: Path, time: Time) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, timeout_ms=0)
        assert len(it.server.sent) == len(it.lines) == 1
        it.server.answer(RESULT)
        assert it.session.state.tasks.get(it.task(), now=time.now).status is TaskStatus.COMPLETED
        assert len(it.lines) == 1


async def test_a_call_that_is_taken_back_is_given_up_at_the_server(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1)
        it.execute(2)
        it.cancel(1)
        assert it.server.given_up == it.server.sent[:1]
        assert it.session.state.tasks.in_flight == 1
        it.server.answer(RESULT, nth=1)
        assert it.said(2) == "3"


async def test_a_cancelled_task_is_given_up_at_the_server_once(tmp_path: Path, time: Time) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, timeout_ms=0)
        it.session.cancel_task(it.task())
        assert it.server.given_up == it.server.sent
        it.server.answer(RESULT)
        assert it.session.state.tasks.get(it.task(), now=time.now).status is TaskStatus.CANCELLED


# What has to be known first


async def test_arguments_that_may_mean_something_else_wait_for_the_tools(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.server.forget_lists()
        it.execute(1, args={"a": "5"})
        await anyio.wait_all_tasks_blocked()
        assert (it.server.sent, it.session.state.tasks.in_flight) == ([], 1)
        it.server.may_list.set()
        await anyio.wait_all_tasks_blocked()
        assert it.server.arguments() == [b'{"a":5}']
        it.server.answer(RESULT)
        assert it.said(1) == "3"


async def test_a_call_that_is_taken_back_while_it_waits_for_the_tools_is_never_sent(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.server.forget_lists()
        it.execute(1, args={"a": "5"})
        await anyio.wait_all_tasks_blocked()
        it.cancel(1)
        await anyio.wait_all_tasks_blocked()
        it.server.may_list.set()
        await anyio.wait_all_tasks_blocked()
        assert (it.server.sent, it.lines) == ([], [])
        assert it.session.state.tasks.in_flight == 0


async def test_a_call_that_is_taken_back_as_the_tools_are_listed_is_not_left_at_the_server(
    tmp_path: Path, time: Time
) -> None:
    """The list and the cancellation are read in one go: the call must not be sent and forgotten."""
    async with world(tmp_path, time) as it:
        it.server.forget_lists()
        it.execute(1, args={"a": "5"})
        await anyio.wait_all_tasks_blocked()
        it.server.may_list.set()
        it.cancel(1)
        await anyio.wait_all_tasks_blocked()
        assert it.server.given_up == it.server.sent
        assert (it.lines, it.session.state.tasks.in_flight) == ([], 0)


async def test_a_call_that_is_taken_back_as_its_server_is_found_is_not_left_at_the_server(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.server.forget_lists()
        it.execute(1, server=None)
        await anyio.wait_all_tasks_blocked()
        it.server.may_list.set()
        it.cancel(1)
        await anyio.wait_all_tasks_blocked()
        assert it.server.given_up == it.server.sent
        assert (it.lines, it.session.state.tasks.in_flight) == ([], 0)


async def test_a_call_that_is_taken_back_as_the_servers_become_known_is_not_left_at_its_server(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time, known=False) as it:
        it.hold()
        it.execute(1)
        await anyio.wait_all_tasks_blocked()
        assert it.server.sent == []
        it.runtime.configured.skip("The test has no servers of its own.")
        it.cancel(1)
        await anyio.wait_all_tasks_blocked()
        assert it.server.given_up == it.server.sent
        assert (it.lines, it.session.state.tasks.in_flight) == ([], 0)


async def test_what_stands_beside_the_tool_is_taken_as_its_arguments(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, a=7)
        await anyio.wait_all_tasks_blocked()
        assert it.server.arguments() == [b'{"a":7}']


# What went wrong


@pytest.mark.parametrize(
    ("tool", "listed", "said"),
    [
        ("ad", TOOLS, "has no tool 'ad'. Close are: add."),
        ("add", TOOLS, "answered with error -5: no"),
        ("ad", CallFailed("no list"), "answered with error -5: no"),
    ],
    ids=["not listed", "listed", "no list"],
)
async def test_a_refusal_is_told_as_what_it_is(
    tmp_path: Path, time: Time, tool: str, listed: Sequence[Item] | ProxyError, said: str
) -> None:
    async with world(tmp_path, time) as it:
        it.server.listed = listed
        it.execute(1, tool)
        it.server.answer(RemoteError("s", RpcError(-5, "no")))
        await anyio.wait_all_tasks_blocked()
        assert said in it.said(1)


@pytest.mark.parametrize(
    ("tool", "said"), [("add", "may or may not have been carried out"), ("look", "repeated safely")]
)
async def test_after_a_loss_is_told_whether_to_repeat_the_call(
    tmp_path: Path, time: Time, tool: str, said: str
) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, tool)
        it.server.answer(ServerDisconnected("s exited.", hint="Wait for it."))
        assert "s exited." in it.said(1)
        assert said in it.said(1)
        assert "Wait for it." in it.said(1)


async def test_an_unknown_server_is_the_answer_and_nothing_is_counted(
    tmp_path: Path, time: Time
) -> None:
    async with world(tmp_path, time) as it:
        it.execute(1, server="t")
        await anyio.wait_all_tasks_blocked()
        assert "server_not_found" in it.said(1)
        assert it.session.state.tasks.in_flight == 0
