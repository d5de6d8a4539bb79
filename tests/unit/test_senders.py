"""Both senders on a peer, to the client and to a server: each request ends once, and in time."""

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)
from msgspec import Raw

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import Loss, RemoteError, Sender
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout, ProxyError, ServerDisconnected
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.wire.codec import Malformed, Notification, Request, RequestId
from emceepee_stdio.wire.peer import OutgoingRequest, Peer

if TYPE_CHECKING:
    from emceepee_stdio.backends.interface import BackendEvent

Ended = tuple[Raw | type[ProxyError], float]


class Line:
    """A sender on a peer whose other side is this test."""

    sender: Sender
    peer: Peer
    keep_time: Callable[[], Awaitable[None]]
    overdue: type[ProxyError]
    closed: type[ProxyError]
    refused: type[ProxyError]

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.lines: list[bytes] = []
        self.ended: dict[str, Ended] = {}
        self.on_write: Callable[[], None] = lambda: None

    def write(self, data: bytes) -> None:
        self.lines.append(data)
        self.on_write()

    def request(self, method: str, within: float, **more: Any) -> OutgoingRequest:
        deadline = self.clock.now() + within
        return OutgoingRequest(method=method, within=within, deadline=deadline, **more)

    async def ask(self, name: str, within: float) -> None:
        outcome: Raw | type[ProxyError]
        try:
            outcome = await self.sender.request(self.request(name, within))
        except ProxyError as error:
            outcome = type(error)
        self.ended[name] = outcome, self.clock.now()

    def answer(self, request_id: int) -> None:
        self.peer.feed(b'{"id":%d,"result":{}}\n' % request_id)

    def refuse(self, request_id: int) -> None:
        self.peer.feed(b'{"id":%d,"error":{"code":-1,"message":"no"}}\n' % request_id)

    def hang_up(self) -> None:
        raise NotImplementedError

    def cancelled(self) -> list[RequestId]:
        """What the other side was told to give up."""
        raise NotImplementedError

    def asked(self) -> list[dict[str, Any]]:
        return [message for line in self.lines if "id" in (message := json.loads(line))]


class ToClient(Line):
    """Requests to the client. The front tells it what was given up; here that is only noted."""

    overdue = closed = refused = CallFailed

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._given_up: list[RequestId] = []
        self.peer = Peer(handler=self, write=self.write)
        self.sender = self._client = ClientRequests(self.peer)
        self.keep_time = anyio.lowlevel.checkpoint  # each wait keeps its own

    async def ask(self, name: str, within: float) -> None:
        answer = await self._client.ask(OutgoingRequest(method=name), within=within)
        self.ended[name] = CallFailed if answer is None else answer, self.clock.now()

    def hang_up(self) -> None:
        self.peer.close("gone")

    def cancelled(self) -> list[RequestId]:
        return self._given_up

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        self._given_up.append(request_id)

    def on_request(self, request: Request, origin: RequestId | None) -> None: ...
    def on_failed(self, request: Request, error: Exception) -> None: ...
    def on_notification(self, notification: Notification) -> None: ...
    def on_cancelled(self, request_id: RequestId) -> None: ...
    def on_malformed(self, message: Malformed) -> None: ...
    def on_noise(self, text: str) -> None: ...
    def on_stray(self, request_id: str) -> None: ...


class ServerConnection(Connection):
    """A connection whose bytes go to the test."""

    def __init__(self, clock: Clock, write: Callable[[bytes], None]) -> None:
        self.events: list[BackendEvent] = []
        super().__init__("s", emit=self.events.append, clock=clock, proxy_id="p", max_line=1 << 20)
        self._out = write

    @property
    def peer(self) -> Peer:
        return self._peer

    def _transmit(self, line: bytes, _request_id: RequestId, _request: OutgoingRequest) -> None:
        self._out(line)

    def _write(self, data: bytes) -> None:
        self._out(data)


class ToServer(Line):
    """Requests to a server, on a connection."""

    overdue, closed, refused = CallTimeout, ServerDisconnected, RemoteError

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.sender = self.connection = ServerConnection(clock, self.write)
        self.peer = self.connection.peer
        self.keep_time = self.connection.serve

    def hang_up(self) -> None:
        self.connection.lose(Loss(fact="s exited."))

    def cancelled(self) -> list[RequestId]:
        messages = [json.loads(line) for line in self.lines]
        return [
            message["params"]["requestId"]
            for message in messages
            if message["method"] == "notifications/cancelled"
        ]


async def settle() -> None:
    """Let every task that can go on go on."""
    for _ in range(10):
        await anyio.lowlevel.checkpoint()


def virtual_clock() -> Clock:
    return Clock(monotonic=trio.current_time, wall=lambda: 1e9 + trio.current_time())


def virtually(kind: type[Line], main: Callable[[Line], Awaitable[Any]]) -> None:
    """Run on trio's virtual time, with the deadlines of the line kept."""

    async def with_time() -> None:
        async with anyio.create_task_group() as tasks:
            line = kind(virtual_clock())
            tasks.start_soon(line.keep_time)
            await main(line)
            tasks.cancel_scope.cancel()

    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(with_time, backend="trio", backend_options={"clock": clock})


both = pytest.mark.parametrize("backend", ["asyncio", "trio"])
senders = pytest.mark.parametrize("kind", [ToClient, ToServer])


@both
@senders
def test_an_answer_ends_the_wait(kind: type[Line], backend: str):
    async def main() -> None:
        line = kind(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.keep_time)
            for name in ("a", "b", "c"):
                tasks.start_soon(line.ask, name, 60.0)
            await settle()
            for request_id in (3, 1, 2):
                line.answer(request_id)
            await settle()
            assert [outcome for outcome, _ in line.ended.values()] == [Raw(b"{}")] * 3
            assert set(line.ended) == {"a", "b", "c"}
            assert not line.cancelled()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@both
@senders
def test_cancelling_the_wait_cancels_at_the_other_side(kind: type[Line], backend: str):
    async def main() -> None:
        line = kind(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.keep_time)
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as inner:
                    inner.start_soon(line.ask, "a", 60.0)
                    await settle()
                    scope.cancel()
            assert line.cancelled() == [1]
            assert line.peer.statistics().sent == 0
            line.answer(1)
            assert line.ended == {}
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)


@both
@senders
def test_the_end_of_the_peer_ends_every_wait_also_of_who_comes_later(
    kind: type[Line], backend: str
):
    async def main() -> None:
        line = kind(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", 60.0)
            tasks.start_soon(line.ask, "b", 60.0)
            await settle()
            line.hang_up()
        written = len(line.lines)
        await line.ask("c", 60.0)
        assert [outcome for outcome, _ in line.ended.values()] == [line.closed] * 3
        assert len(line.lines) == written, "nothing goes out after the end"
        assert not line.cancelled()

    anyio.run(main, backend=backend)


@both
@senders
def test_real_time_ends_what_is_overdue(kind: type[Line], backend: str):
    async def main() -> None:
        line = kind(Clock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.keep_time)
            await line.ask("a", 0.01)
            tasks.cancel_scope.cancel()
        outcome, _ = line.ended["a"]
        assert outcome is line.overdue

    anyio.run(main, backend=backend)


@senders
def test_an_overdue_request_ends_at_its_deadline(kind: type[Line]):
    async def main(line: Line) -> None:
        start = trio.current_time()
        await line.ask("a", 30.0)
        assert line.ended == {"a": (line.overdue, start + 30.0)}
        assert line.cancelled() == [1]

    virtually(kind, main)


@senders
def test_a_time_of_nothing_is_over_at_once(kind: type[Line]):
    async def main(line: Line) -> None:
        start = trio.current_time()
        await line.ask("a", 0.0)
        await line.ask("b", -5.0)
        assert line.ended == {"a": (line.overdue, start), "b": (line.overdue, start)}

    virtually(kind, main)


@senders
def test_an_earlier_deadline_that_is_set_later_is_kept(kind: type[Line]):
    async def main(line: Line) -> None:
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "patient", 100.0)
            await trio.sleep(10.0)
            tasks.start_soon(line.ask, "hasty", 5.0)
            await settle()
            tasks.start_soon(line.ask, "hastier", 1.0)
        assert line.ended == {
            "hastier": (line.overdue, start + 11.0),
            "hasty": (line.overdue, start + 15.0),
            "patient": (line.overdue, start + 100.0),
        }
        assert list(line.ended) == ["hastier", "hasty", "patient"]

    virtually(kind, main)


@senders
def test_many_deadlines_are_each_kept_to_the_instant(kind: type[Line]):
    async def main(line: Line) -> None:
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(line.ask, str(number), float(number * 37 % 100) + 1)
        assert {name: when for name, (_, when) in line.ended.items()} == {
            str(number): start + number * 37 % 100 + 1 for number in range(100)
        }

    virtually(kind, main)


@senders
def test_a_request_made_before_anybody_keeps_time_is_not_forgotten(kind: type[Line]):
    async def main() -> None:
        line = kind(virtual_clock())
        start = trio.current_time()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", 3.0)
            await settle()
            tasks.start_soon(line.keep_time)
            while not line.ended:
                await trio.sleep(0.5)
            tasks.cancel_scope.cancel()
        assert line.ended == {"a": (line.overdue, start + 3.0)}

    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(main, backend="trio", backend_options={"clock": clock})


@senders
def test_no_timer_is_left_when_nothing_is_under_way(kind: type[Line]):
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
        assert not line.cancelled()

    virtually(kind, main)


@senders
def test_an_endless_time_needs_no_timer(kind: type[Line]):
    async def main(line: Line) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "a", float("inf"))
            await trio.sleep(80_000.0)
            assert trio.lowlevel.current_statistics().seconds_to_next_deadline == float("inf")
            line.answer(1)
        outcome, _ = line.ended["a"]
        assert outcome == Raw(b"{}")

    virtually(kind, main)


def test_progress_reaches_who_asked_for_it_under_the_id_of_the_request():
    async def main(line: Line) -> None:
        seen: list[Raw] = []

        async def ask() -> None:
            await line.sender.request(line.request("m", 60.0, on_progress=seen.append))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.ask, "first", 60.0)
            await settle()
            tasks.start_soon(ask)
            await settle()
            first, second = line.asked()
            assert "params" not in first
            assert second["params"] == {"_meta": {"progressToken": second["id"]}}
            line.peer.feed(
                b'{"method":"notifications/progress","params":{"progressToken":2,"progress":5}}\n'
            )
            line.answer(1)
            line.answer(2)
        assert seen == [Raw(b'{"progressToken":2,"progress":5}')]

    virtually(ToServer, main)


# Without waiting


def send(line: Line, method: str = "m", within: float = 60.0, **more: Any) -> tuple[Any, list[Any]]:
    """What gives it up, and what was told."""
    told: list[Raw | ProxyError] = []
    return line.sender.send(line.request(method, within, **more), told.append), told


@senders
async def test_a_request_goes_out_under_the_number_that_its_answer_brings_back(
    kind: type[Line],
) -> None:
    line = kind(Clock())
    _, first = send(line, "a", params={"x": [1, "é"]})
    _, second = send(line, "b")
    assert [(message["id"], message["method"]) for message in line.asked()] == [(1, "a"), (2, "b")]
    assert line.asked()[0]["params"] == {"x": [1, "é"]}
    assert all(data.endswith(b"\n") and data.count(b"\n") == 1 for data in line.lines)
    line.peer.feed(b'{"id":2,"result":{"a" : 1.50}}\n')
    assert (first, second) == ([], [Raw(b'{"a" : 1.50}')])


@senders
async def test_an_answer_that_comes_within_the_write_is_taken(kind: type[Line]) -> None:
    line = kind(Clock())
    line.on_write = lambda: line.answer(1)
    cancel, told = send(line)
    assert told == [Raw(b"{}")]
    cancel()
    assert not line.cancelled()


@senders
async def test_params_that_cannot_be_made_leave_nothing_behind(kind: type[Line]) -> None:
    line = kind(Clock())
    with pytest.raises(TypeError):
        send(line, params={"x": object()})
    assert line.peer.next_deadline() is None
    assert line.peer.statistics().sent == 0
    line.peer.expire(1e9)
    line.hang_up()
    assert line.lines == []


@senders
async def test_an_error_of_the_other_side_is_an_error_and_no_result(kind: type[Line]) -> None:
    line = kind(Clock())
    _, told = send(line)
    line.refuse(1)
    line.answer(1)
    line.hang_up()
    (error,) = told
    assert isinstance(error, line.refused)


@senders
async def test_what_was_given_up_is_told_to_the_other_side_once_and_to_nobody_here(
    kind: type[Line],
) -> None:
    line = kind(Clock())
    cancel, told = send(line)
    cancel()
    cancel()
    line.answer(1)
    line.peer.expire(1e9)
    line.hang_up()
    cancel()
    assert (told, line.cancelled()) == ([], [1])


@senders
async def test_giving_up_what_has_ended_is_nothing(kind: type[Line]) -> None:
    line = kind(Clock())
    cancel, told = send(line)
    line.answer(1)
    cancel()
    assert (told, line.cancelled()) == ([Raw(b"{}")], [])


@senders
async def test_a_request_after_the_end_fails_at_once_and_is_not_written(kind: type[Line]) -> None:
    line = kind(Clock())
    line.hang_up()
    cancel, told = send(line)
    cancel()
    (error,) = told
    assert isinstance(error, line.closed)
    assert line.lines == []


@senders
async def test_whoever_is_told_of_the_end_may_ask_again_and_is_told_at_once(
    kind: type[Line],
) -> None:
    line = kind(Clock())
    told: list[Raw | ProxyError] = []

    def ask_again(outcome: Raw | ProxyError) -> None:
        told.append(outcome)
        if len(told) < 3:
            line.sender.send(line.request("m", 60.0), ask_again)

    line.sender.send(line.request("m", 60.0), ask_again)
    line.hang_up()
    assert [type(outcome) for outcome in told] == [line.closed] * 3


class Sends(RuleBasedStateMachine):
    """Whatever happens, and in whatever order: each request is told once, or was given up."""

    kind: type[Line]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.line = self.make()
        self.told: dict[int, list[Raw | ProxyError]] = {}
        self.cancels: dict[int, Callable[[], object]] = {}
        self.deadlines: dict[int, float] = {}
        self.given_up: set[int] = set()
        self.is_over = False

    def make(self) -> Line:
        return self.kind(Clock(monotonic=lambda: self.now, wall=lambda: self.now))

    @rule(within=st.one_of(st.floats(0.5, 50.0), st.just(float("inf"))))
    def send(self, within: float) -> None:
        number = len(self.told) + 1
        told: list[Raw | ProxyError] = []
        self.deadlines[number] = self.now + within
        cancel = self.line.sender.send(self.line.request("m", within), told.append)
        self.told[number], self.cancels[number] = told, cancel

    @rule(pick=st.integers(1, 30), how=st.sampled_from(["answer", "refuse"]))
    def reply(self, pick: int, how: str) -> None:
        getattr(self.line, how)(pick)

    @rule(pick=st.integers(1, 30))
    def cancel(self, pick: int) -> None:
        if pick in self.cancels:
            if not self.told[pick]:
                self.given_up.add(pick)
            self.cancels[pick]()

    @rule(seconds=st.floats(0.1, 30.0))
    def let_time_pass(self, seconds: float) -> None:
        self.now += seconds
        self.line.peer.expire(self.now)

    @rule()
    def hang_up(self) -> None:
        self.is_over = True
        self.line.hang_up()

    @invariant()
    def each_is_told_at_most_once_and_rightly(self) -> None:
        overdue: list[RequestId] = []
        for number, told in self.told.items():
            assert len(told) + (number in self.given_up) <= 1
            if self.is_over or self.deadlines[number] <= self.now:
                assert told or number in self.given_up
            if self.line.overdue is not self.line.closed:
                overdue += [number for outcome in told if isinstance(outcome, self.line.overdue)]
        cancelled = self.line.cancelled()
        assert len(set(cancelled)) == len(cancelled)
        assert {*overdue, *self.given_up} <= {*cancelled}
        if self.line.overdue is not self.line.closed:
            assert {*cancelled} == {*overdue, *self.given_up}

    def teardown(self) -> None:
        self.hang_up()
        self.each_is_told_at_most_once_and_rightly()
        assert self.line.peer.statistics().sent == 0


class SendsToClient(Sends):
    kind = ToClient


class SendsToServer(Sends):
    kind = ToServer


@pytest.mark.parametrize("sends", [SendsToClient, SendsToServer])
async def test_each_request_ends_once_whatever_happens(sends: type[Sends]) -> None:
    run_state_machine_as_test(
        sends, settings=settings(max_examples=50, stateful_step_count=40, deadline=None)
    )


# On a connection


@pytest.mark.parametrize("method", ["initialize", "server/discover"])
async def test_the_opening_is_never_cancelled_on_the_wire(method: str) -> None:
    line = ToServer(Clock(monotonic=lambda: 0.0, wall=lambda: 0.0))
    cancel, given_up = send(line, method)
    _, overdue = send(line, method, within=5.0)
    cancel()
    line.peer.expire(5.0)
    assert given_up == []
    assert [type(outcome) for outcome in overdue] == [CallTimeout]
    assert line.cancelled() == []
    line.answer(1)
    line.answer(2)
    assert line.connection.events == [], "a late answer to it is no news"


def test_the_opening_has_a_time_of_its_own_before_anybody_keeps_time():
    async def main() -> None:
        line = ToServer(virtual_clock())
        outcome = await line.connection.greet("initialize", {"a": 1}, 7.0)
        assert isinstance(outcome, CallTimeout)
        assert "within 7 s" in outcome.fact
        assert (trio.current_time(), line.cancelled()) == (7.0, [])

    anyio.run(
        main,
        backend="trio",
        backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)},
    )


async def test_a_request_whose_time_is_over_already_is_not_sent() -> None:
    line = ToServer(Clock(monotonic=lambda: 0.0, wall=lambda: 0.0))
    for within in (0.0, -5.0):
        cancel, told = send(line, within=within)
        cancel()
        assert [type(outcome) for outcome in told] == [CallTimeout]
    assert line.lines == []
    assert line.peer.statistics().sent == 0


async def test_the_services_of_a_connection_run_until_its_end() -> None:
    line = ToServer(Clock())
    running: list[str] = []

    async def service() -> None:
        running.append("begun")
        try:
            await anyio.sleep_forever()
        finally:
            running.append("over")

    line.connection.services += [service, service]
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.connection.serve)
            await anyio.wait_all_tasks_blocked()
            assert running == ["begun", "begun"]
            line.hang_up()
    assert running == ["begun", "begun", "over", "over"]


async def test_a_connection_knows_who_ended_it_and_the_first_end_counts() -> None:
    lost, left = ToServer(Clock()).connection, ToServer(Clock()).connection
    lost.lose(Loss(fact="s exited."))
    lost.close()
    left.close()
    left.lose(Loss(fact="s exited."))
    assert (lost.is_left, left.is_left) == (False, True)
    assert lost.lost_error().fact == "s exited."
    assert left.lost_error().fact == "The connection to s was closed."


async def test_a_server_is_told_what_was_given_up_and_why() -> None:
    line = ToServer(Clock(monotonic=lambda: 0.0, wall=lambda: 0.0))
    cancel, _ = send(line)
    send(line, within=5.0)
    line.lines.clear()
    cancel()
    line.peer.expire(5.0)
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
    assert [json.loads(data) for data in line.lines] == [
        {**note, "params": {"requestId": 1, "reason": "cancelled"}},
        {**note, "params": {"requestId": 2, "reason": "timeout"}},
    ]


async def test_whoever_waits_is_told_of_a_loss_after_the_supervisor_was() -> None:
    line = ToServer(Clock())
    order: list[object] = []

    def on_lost(connection: Connection, loss: Loss) -> str:
        assert connection is line.connection
        order.append(loss.fact)
        assert line.connection.loss is loss
        return "Wait for it."

    line.connection.own(on_lost)
    line.sender.send(line.request("m", 60.0), order.append)
    line.hang_up()
    line.hang_up()
    fact, error = order
    assert fact == "s exited."
    assert isinstance(error, ServerDisconnected)
    assert (error.fact, error.next_step) == ("s exited.", "Wait for it.")
