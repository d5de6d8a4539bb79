import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.backends.base import (
    Era,
    Hello,
    LogLine,
    LogSource,
    Loss,
    OnProgress,
    Params,
    PhaseChange,
    Question,
    RemoteError,
    SessionIds,
    Sink,
)
from emceepee_stdio.backends.health import HealthPolicy
from emceepee_stdio.backends.link import Link, LinkOptions
from emceepee_stdio.backends.notices import log_line
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallFailed,
    CallTimeout,
    InvalidArguments,
    ProxyError,
    ServerDisconnected,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.state.restarts import RestartPolicy
from emceepee_stdio.wire.codec import RpcError, to_json

CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "prompts": {},
}
MARK = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Told:
    """A sink that writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.notifications: list[tuple[str, bytes | None]] = []
        self.lines: list[LogLine] = []
        self.questions: list[Question] = []
        self.withdrawn_questions: list[Question] = []
        self.differing: list[Sequence[str]] = []
        self.health: list[bool] = []

    def phase_changed(self, server: str, change: PhaseChange) -> None:
        self.words.append(change.phase.value)

    def attempt_failed(self, server: str, error: ProxyError) -> None: ...
    def process_started(self, server: str, pid: int) -> None: ...
    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None: ...

    def notification(self, server: str, method: str, params: Raw | None) -> None:
        self.notifications.append((method, None if params is None else bytes(params)))

    def log(self, server: str, line: LogLine) -> None:
        self.lines.append(line)

    def asked(self, server: str, question: Question) -> None:
        self.questions.append(question)

    def withdrawn(self, server: str, question: Question) -> None:
        self.withdrawn_questions.append(question)

    def lists_differ(self, server: str, kinds: Sequence[str]) -> None:
        self.differing.append(kinds)

    def health_changed(self, server: str, *, degraded: bool, misses: int) -> None:
        self.health.append(degraded)
        self.words.append("degraded" if degraded else "restored")


class Pushed:
    """A question that a server pushed on the stream of a call."""

    method = "elicitation/create"
    params = None

    def __init__(self, call: object) -> None:
        self.call = call
        self.outcome: object = None

    def answer(self, result: bytes) -> bool:
        return self._settle(result)

    def refuse(self, error: RpcError) -> bool:
        return self._settle(error)

    def _settle(self, outcome: object) -> bool:
        is_open = self.outcome is None
        self.outcome = outcome if is_open else self.outcome
        return is_open


Answer = Callable[["FakeConnection", Any], Awaitable[object]]


class FakeConnection:
    def __init__(self, server: "FakeServer", hello: Hello) -> None:
        self.server = server
        self.hello = hello
        self.pid = None
        self.session = SessionIds(proxy_id="c")
        self.over = anyio.Event()

    async def lost(self) -> Loss:
        await self.over.wait()
        return Loss(fact="server exited with code 9.")

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw:
        self.server.requests.append((method, params))
        self.server.times.append(trio.current_time())
        outcome: list[object] = []

        async def answer() -> None:
            try:
                outcome.append(await self.server.answers[method](self, params))
            except ProxyError as error:
                outcome.append(error)
            tasks.cancel_scope.cancel()

        with anyio.move_on_after(within) as limit:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(answer)
                await self.over.wait()
                tasks.cancel_scope.cancel()
        if limit.cancelled_caught:
            raise CallTimeout("too long")
        if not outcome:
            raise ServerDisconnected("server exited with code 9.")
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        return outcome[0] if isinstance(outcome[0], Raw) else Raw(to_json(outcome[0]))

    def notify(self, method: str, params: Params | None = None) -> None: ...


async def answered(_: FakeConnection, __: Any) -> object:
    return {}


async def never(_: FakeConnection, __: Any) -> object:
    await anyio.sleep_forever()


async def listening(connection: FakeConnection, params: Any) -> object:
    mark = len(connection.server.requests)
    said = {"notifications": params["notifications"], "_meta": {MARK: mark}}
    connection.server.sink.notification(
        "server", "notifications/subscriptions/acknowledged", Raw(to_json(said))
    )
    return await never(connection, params)


class FakeServer:
    """A channel to a server whose answers are functions."""

    transport = "fake"
    target = "fake"
    sink: Sink

    def __init__(self, era: Era) -> None:
        version = "2026-07-28" if era is Era.MODERN else "2025-11-25"
        self.hello = Hello(era=era, protocol_version=version, capabilities=CAPABILITIES)
        self.connections: list[FakeConnection] = []
        self.requests: list[tuple[str, Any]] = []
        self.times: list[float] = []
        self.tools: list[object] = [{"name": "a"}]
        self.before_hello: Callable[[], None] = lambda: None
        self.answers: dict[str, Answer] = {
            "ping": answered,
            "server/discover": answered,
            "tools/call": answered,
            "tools/list": self._tools,
            "resources/list": lambda _c, _p: _value({"resources": []}),
            "resources/subscribe": answered,
            "resources/read": answered,
            "logging/setLevel": answered,
            "subscriptions/listen": listening,
        }

    async def _tools(self, _: FakeConnection, __: Any) -> object:
        return {"tools": self.tools}

    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[FakeConnection]:
        self.before_hello()
        connection = FakeConnection(self, self.hello)
        self.connections.append(connection)
        try:
            yield connection
        finally:
            connection.over.set()

    def crash(self) -> None:
        self.connections[-1].over.set()


async def _value(value: object) -> object:
    return value


def refusal(code: int, message: str = "no", data: bytes | None = None) -> Answer:
    async def refuse(_: FakeConnection, __: Any) -> object:
        raise RemoteError("server", RpcError(code, message, None if data is None else Raw(data)))

    return refuse


class Rig:
    def __init__(self, era: Era, **options: Any) -> None:
        self.told = Told()
        self.server = FakeServer(era)

        def make_channel(sink: Sink) -> FakeServer:
            self.server.sink = sink
            return self.server

        options.setdefault("health", HealthPolicy(interval=math.inf))
        options.setdefault("restarts", RestartPolicy(base=1.0, limit=None))
        self.link = Link(
            "server",
            make_channel,
            sink=self.told,
            clock=Clock(monotonic=trio.current_time, wall=lambda: 0.0),
            uniform=lambda _low, _high: 1.0,
            roots=lambda: [{"uri": "file:///r"}],
            options=LinkOptions(**options),
        )

    async def crash(self) -> None:
        """Lose the connection, and have the next one settled."""
        self.server.crash()
        await anyio.wait_all_tasks_blocked()
        await self.link.connect(within=60)
        await anyio.wait_all_tasks_blocked()


@asynccontextmanager
async def running(era: Era = Era.LEGACY, **options: Any) -> AsyncGenerator[Rig]:
    rig = Rig(era, **options)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.link.run)
        await anyio.wait_all_tasks_blocked()
        yield rig
        await rig.link.stop()
    assert rig.link.phase is Phase.DISCONNECTED


both = pytest.mark.parametrize("era", list(Era))


@both
async def test_a_subscription_in_the_very_moment_of_the_connection(era: Era) -> None:
    rig = Rig(era, lazy=True)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.link.run)
        await rig.link.subscribe("u://1", within=60)
        await rig.link.stop()
    assert rig.link._subscriptions.uris == ("u://1",)


@both
async def test_a_lost_connection_is_never_poked_by_what_looks_after_it(era: Era) -> None:
    health = HealthPolicy(interval=10.0, within=5.0)
    async with running(era, health=health, restarts=RestartPolicy(base=1000.0, cap=1000.0)) as rig:
        await rig.link.list_all("tools", within=60)
        rig.server.crash()
        await anyio.sleep(900)
        assert len(rig.server.connections) == 1
        assert rig.link.phase is Phase.RECONNECTING


@both
async def test_a_connection_that_flickers_is_looked_after_in_the_end(era: Era) -> None:
    async with running(era) as rig:
        await rig.link.list_all("tools", within=60)
        await rig.link.set_log_level("info", within=60)
        for n in range(5):
            rig.server.tools = [{"name": str(n)}]
            rig.server.crash()
            while len(rig.server.connections) < n + 2:
                await trio.lowlevel.checkpoint()
                await rig.link.connect(within=60)
        await anyio.wait_all_tasks_blocked()
        assert rig.told.differing[-1] == ["tools"]
        known = rig.link.known("tools")
        assert known is not None
        assert known[0]["name"] == "4"


@both
async def test_the_health_is_looked_at_by_the_lightest_request(era: Era) -> None:
    look = "server/discover" if era is Era.MODERN else "ping"
    health = HealthPolicy(interval=100.0, within=5.0, misses=2)
    async with running(era, health=health) as rig:
        rig.server.answers[look] = never
        await anyio.sleep(250)
        assert rig.told.health == [True]
        assert rig.link.snapshot().degraded
        rig.server.answers[look] = answered
        await anyio.sleep(150)
        assert rig.told.health == [True, False]
        assert len(rig.server.connections) == 1


async def test_a_new_connection_is_told_before_it_is_well_again() -> None:
    async with running(health=HealthPolicy(interval=10.0, within=5.0, misses=1)) as rig:
        rig.server.answers["ping"] = never
        await anyio.sleep(20)
        await rig.crash()
        assert rig.told.words[-2:] == ["connected", "restored"]


@both
async def test_a_refusal_on_one_thing_does_not_keep_the_others_from_being_restored(
    era: Era,
) -> None:
    async with running(era) as rig:
        await rig.link.subscribe("u://1", within=60)
        await rig.link.set_log_level("info", within=60)
        await rig.link.list_all("tools", within=60)
        await rig.link.list_all("resources", within=60)
        rig.server.answers |= {
            "resources/subscribe": refusal(-32000, "not now"),
            "subscriptions/listen": refusal(-32601),
            "logging/setLevel": refusal(-32000, "no levels"),
        }
        rig.server.tools = []
        await rig.crash()
        assert rig.told.differing == [["tools"]]
        assert any("u://1 was not restored" in line.text for line in rig.told.lines)
        if era is Era.LEGACY:
            assert any("no levels" in line.text for line in rig.told.lines)


async def test_a_difference_that_was_seen_is_told_even_if_the_connection_is_lost_again() -> None:
    async with running() as rig:
        await rig.link.list_all("tools", within=60)
        await rig.link.list_all("resources", within=60)
        rig.server.tools = []
        rig.server.answers["resources/list"] = never
        await rig.crash()
        assert rig.told.differing == []
        rig.server.crash()
        await anyio.wait_all_tasks_blocked()
        assert rig.told.differing == [["tools"]]


async def test_a_server_that_no_longer_has_a_list_has_lost_its_items() -> None:
    async with running() as rig:
        resource = {"resources": [{"uri": "u://1", "name": "n"}]}
        rig.server.answers["resources/list"] = lambda _c, _p: _value(resource)
        await rig.link.list_all("resources", within=60)
        rig.server.hello = Hello(era=Era.LEGACY, protocol_version="2025-11-25")
        await rig.crash()
        await rig.crash()
        assert rig.told.differing == [["resources"]]
        assert rig.link.known("resources") == ()


async def test_a_round_is_not_carried_over_to_the_next_connection() -> None:
    form = {"method": "elicitation/create", "params": {}}
    asks = {"resultType": "input_required", "inputRequests": {"who": form}}
    async with running(Era.MODERN) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(asks)

        async def lose() -> None:
            while not rig.told.questions:
                await trio.lowlevel.checkpoint()
            await rig.crash()
            assert not rig.told.questions[0].answer(b'{"action":"accept"}')

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            with pytest.raises(ServerDisconnected, match="exited with code 9"):
                await rig.link.call_tool("t", {}, within=60, call="c")
        assert rig.server.methods().count("tools/call") == 1
        assert rig.told.withdrawn_questions == []


async def test_a_state_only_round_ends_with_the_connection_too() -> None:
    async with running(Era.MODERN) as rig:

        async def poll(_: FakeConnection, __: Any) -> object:
            if rig.server.methods().count("tools/call") == 3:
                await trio.lowlevel.checkpoint()
                rig.link._ear.leave("it was replaced.")
            return {"resultType": "input_required", "requestState": "s"}

        rig.server.answers["tools/call"] = poll
        with pytest.raises(ServerDisconnected, match="replaced"):
            await rig.link.call_tool("t", {}, within=60)


async def test_the_pages_of_a_list_come_from_one_connection() -> None:
    async with running() as rig:

        async def page(_: FakeConnection, __: Any) -> object:
            rig.link._ear.leave("it was replaced.")
            return {"tools": [], "nextCursor": "2"}

        rig.server.answers["tools/list"] = page
        with pytest.raises(ServerDisconnected, match="replaced"):
            await rig.link.list_all("tools", within=60)


@both
async def test_the_time_of_a_call_is_one_time_however_many_rounds(era: Era) -> None:
    async with running(era) as rig:

        async def slow(_: FakeConnection, __: Any) -> object:
            await anyio.sleep(4)
            if era is Era.MODERN:
                return {"resultType": "input_required", "requestState": "s"}
            return await never(_, __)

        rig.server.answers["tools/call"] = slow
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await rig.link.call_tool("t", {}, within=10)
        assert trio.current_time() - began == pytest.approx(10)


async def test_nothing_is_sent_once_the_time_of_a_call_is_up() -> None:
    async with running(Era.MODERN) as rig:
        polls = {"resultType": "input_required", "requestState": "s"}
        rig.server.answers["tools/call"] = lambda _c, _p: _value(polls)
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="no result until the call's time was up"):
            await rig.link.call_tool("t", {}, within=10)
        assert rig.server.times[-1] < began + 10
        with pytest.raises(CallTimeout, match="did not answer tools/call within 0 s"):
            await rig.link.call_tool("t", {}, within=0)
        assert rig.server.times[-1] < began + 10


async def test_the_late_words_of_a_replaced_stream_do_not_reach_the_session() -> None:
    async with running(Era.MODERN) as rig:
        await rig.link.subscribe("u://1", within=60)
        for mark in (1, 2):
            said = {"uri": "u://1", "_meta": {MARK: mark}}
            rig.server.sink.notification(
                "server", "notifications/resources/updated", Raw(to_json(said))
            )
        assert rig.told.notifications == [("notifications/resources/updated", b'{"uri":"u://1"}')]


async def test_all_pages_of_a_list_have_one_time() -> None:
    async with running() as rig:

        async def slow(_: FakeConnection, params: Any) -> object:
            await anyio.sleep(4)
            page = int((params or {}).get("cursor", "0"))
            return {"tools": [], "nextCursor": str(page + 1)}

        rig.server.answers["tools/list"] = slow
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="within 10 s"):
            await rig.link.list_all("tools", within=10)
        assert trio.current_time() - began == pytest.approx(10)


async def test_a_modern_request_carries_the_log_level_and_a_handshake_one_does_not() -> None:
    level = {"io.modelcontextprotocol/logLevel": "info"}
    for era in Era:
        async with running(era) as rig:
            await rig.link.set_log_level("info", within=60)
            await rig.link.call_tool("t", {"x": 1}, within=60)
            params: Mapping[str, object] = rig.server.requests[-1][1]
            assert params.get("_meta") == (level if era is Era.MODERN else None)
            with pytest.raises(InvalidArguments, match="no log level"):
                await rig.link.set_log_level("shout", within=60)


async def test_a_question_of_a_call_that_has_ended_is_taken_back() -> None:
    async with running() as rig:
        pushed = [Pushed("c"), Pushed("c"), Pushed(None)]

        async def push(_: FakeConnection, __: Any) -> object:
            for question in pushed:
                rig.server.sink.asked("server", question)
            pushed[0].answer(b"{}")
            return {}

        rig.server.answers["tools/call"] = push
        await rig.link.call_tool("t", {}, within=60, call="c")
        assert rig.told.withdrawn_questions == [pushed[1]]
        assert isinstance(pushed[1].outcome, RpcError)
        assert pushed[2].outcome is None


@pytest.mark.parametrize("said", [b"null", b"[]", b'"x"', b"7"])
@both
async def test_a_result_that_is_no_object_is_shown(era: Era, said: bytes) -> None:
    async with running(era) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(Raw(said))
        with pytest.raises(CallFailed, match="no object") as caught:
            await rig.link.call_tool("t", {}, within=60)
        assert said.decode() in str(caught.value)


@pytest.mark.parametrize("data", [None, b"7", b'"uri"', b"[[[", b'{"other":1}'])
async def test_wrong_params_are_not_a_missing_resource(data: bytes | None) -> None:
    async with running() as rig:
        rig.server.answers["resources/read"] = refusal(-32602, "wrong", data)
        with pytest.raises(RemoteError):
            await rig.link.read_resource("u://1", within=60)


@both
async def test_odd_notices_are_heard_before_and_after_the_hello(era: Era) -> None:
    rig = Rig(era)
    odd = [None, Raw(b"7"), Raw(b"[1]"), Raw(b'{"_meta":7}'), Raw(b'{"_meta":{"%b":{}}}')]
    methods = [
        "notifications/message",
        "notifications/tools/list_changed",
        "notifications/subscriptions/acknowledged",
        "notifications/odd",
    ]

    def say() -> None:
        for method in methods:
            for params in odd:
                rig.server.sink.notification("server", method, params)

    rig.server.before_hello = say
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.link.run)
        await rig.link.list_all("tools", within=60)
        say()
        assert await rig.link.list_all("tools", within=60)
        await rig.link.stop()
    assert len(rig.told.lines) == 2 * len(odd)
    assert len(rig.told.notifications) == 4 * len(odd)


@pytest.mark.parametrize(
    ("params", "line"),
    [
        (b'{"level":"info","logger":"x","data":"text"}', ("text", "info", "x")),
        (b'{"level":7,"logger":null,"data":{"k": 1.50}}', ('{"k": 1.50}', None, None)),
        (b'{"data":null}', ("null", None, None)),
        (b"{}", ("", None, None)),
        (b"[1]", ("[1]", None, None)),
        (None, ("", None, None)),
    ],
)
def test_a_log_message_is_a_line_whatever_it_holds(
    params: bytes | None, line: tuple[str, str | None, str | None]
) -> None:
    text, level, logger = line
    heard = log_line(None if params is None else Raw(params))
    assert heard == LogLine(source=LogSource.PROTOCOL, text=text, level=level, logger=logger)


@both
async def test_a_call_during_a_reconnect_goes_to_the_new_connection_in_its_own_way(
    era: Era,
) -> None:
    async with running(era) as rig:
        other = Era.LEGACY if era is Era.MODERN else Era.MODERN
        rig.server.hello = Hello(era=other, protocol_version="x", capabilities=CAPABILITIES)
        await rig.link.set_log_level("info", within=60)
        reconnect = rig.link._supervisor.reconnect

        async def call_and_reconnect(*, within: float) -> object:
            """The call is made when the old connection has been given up, and nobody told yet."""
            tasks.start_soon(lambda: rig.link.call_tool("t", {}, within=60))
            return await reconnect(within=within)

        rig.link._supervisor.reconnect = call_and_reconnect
        async with anyio.create_task_group() as tasks:
            await rig.link.reconnect(within=60)
        calls = [params for method, params in rig.server.requests if method == "tools/call"]
        assert ("_meta" in calls[0]) is (other is Era.MODERN)
        assert len(rig.server.connections) == 2


async def test_a_stop_before_the_run_and_a_run_after_the_stop() -> None:
    rig = Rig(Era.LEGACY)
    await rig.link.stop()
    await rig.link.run()
    with pytest.raises(ServerUnavailable, match="removed"):
        await rig.link.call_tool("t", {}, within=60)
    assert rig.told.words == []
    assert "Link" in repr(rig.link)


async def test_a_stop_returns_when_the_last_task_has_ended() -> None:
    ended: list[float] = []

    async def lingering(_: FakeConnection, __: Any) -> object:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(5)
            ended.append(trio.current_time())

    rig = Rig(Era.MODERN)
    rig.server.answers["subscriptions/listen"] = lingering
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(rig.link.run)
        await anyio.wait_all_tasks_blocked()
        await rig.link.stop()
        assert ended == [trio.current_time()]


@both
async def test_cancelling_the_run_ends_everything(era: Era) -> None:
    rig = Rig(era)
    rig.server.answers["tools/call"] = never
    ends: list[ProxyError] = []

    async def call() -> None:
        try:
            await rig.link.call_tool("t", {}, within=60)
        except ProxyError as error:
            ends.append(error)

    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        tasks.start_soon(rig.link.run)
        await rig.link.subscribe("u://1", within=60)
        callers.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert isinstance(ends[0], ServerDisconnected)
    assert rig.link._ear.term is None
    await rig.link.stop()
