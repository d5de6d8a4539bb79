import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.backend import Backend, BackendOptions, HealthPolicy
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    BackendEvent,
    Emit,
    Era,
    HealthChange,
    Hello,
    Kind,
    ListsDiffer,
    LogLine,
    LogSource,
    Loss,
    Params,
    PhaseChange,
    Question,
    RemoteError,
    Seen,
    ServerNotification,
    Withdrawn,
    log_line,
)
from emceepee_stdio.backends.lists import Remembered
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import (
    CallFailed,
    CallTimeout,
    InvalidArguments,
    NeedsApproval,
    PolicyDenied,
    ProxyError,
    ServerDisconnected,
    ServerUnavailable,
    ToolNotFound,
)
from emceepee_stdio.state.phases import Phase, RestartPolicy
from emceepee_stdio.wire.codec import (
    RequestId,
    RpcError,
    encode_error,
    encode_notification,
    encode_request,
    encode_result,
    to_json,
)
from emceepee_stdio.wire.peer import OutgoingRequest

CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "prompts": {},
}
MARK = "io.modelcontextprotocol/subscriptionId"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
FORM = {"method": "elicitation/create", "params": {}}
ASKS = {"resultType": "input_required", "inputRequests": {"who": FORM}}
POLLS = {"resultType": "input_required", "requestState": "s"}
YES = b'{"action":"accept"}'


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Told:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.notifications: list[tuple[str, bytes | None]] = []
        self.lines: list[LogLine] = []
        self.questions: list[Question] = []
        self.withdrawn: list[object] = []
        self.differing: list[Sequence[str]] = []
        self.health: list[bool] = []
        self.listed: list[Seen] = []

    def __call__(self, event: BackendEvent) -> None:
        match event:
            case PhaseChange(phase=phase):
                self.words.append(phase.value)
            case ServerNotification(method, params):
                self.notifications.append((method, None if params is None else bytes(params)))
            case LogLine():
                self.lines.append(event)
            case Question():
                self.questions.append(event)
            case Withdrawn(key):
                self.withdrawn.append(key)
            case ListsDiffer(kinds):
                self.differing.append(kinds)
            case Seen():
                self.listed.append(event)
            case HealthChange(degraded=degraded):
                self.health.append(degraded)
                self.words.append("degraded" if degraded else "restored")
            case _:
                pass


Answer = Callable[["FakeConnection", Any], Awaitable[object]]


class FakeConnection(Connection):
    """A connection without a wire: its server answers by functions.

    `then` is called right after an answer, before whoever waits for it runs.
    """

    def __init__(self, server: "FakeServer", tasks: TaskGroup) -> None:
        clock = Clock(monotonic=trio.current_time, wall=lambda: 0.0)
        super().__init__("server", emit=server.emit, clock=clock, proxy_id="c", max_line=1000)
        self.server = server
        self.hello = server.hello
        self.era = server.hello.era
        self.tasks = tasks
        self.then: Callable[[], None] = lambda: None
        self.last_id: dict[str, RequestId] = {}
        self.listed: list[Sequence[Params]] = []
        self.written: list[dict[str, Any]] = []
        self._answering: dict[RequestId, anyio.CancelScope] = {}

    @property
    def cancelled(self) -> list[RequestId]:
        """The requests of ours that the server was told to stop."""
        return [
            message["params"]["requestId"]
            for message in self.written
            if message.get("method") == "notifications/cancelled"
        ]

    def break_off(self, fact: str = "server exited with code 9.") -> None:
        self.lose(Loss(fact=fact))

    def push(self, request_id: RequestId, method: str, origin: RequestId | None = None) -> None:
        """The server asks; where the channel can tell, on the stream of a request of ours."""
        self._peer.take(encode_request(request_id, method, None), origin)

    def tell(self, method: str, params: object) -> None:
        self._peer.take(encode_notification(method, to_json(params)))

    def take_tools(self, tools: tuple[Params, ...]) -> tuple[Params, ...]:
        self.listed.append(tools)
        return tools

    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        params = msgspec.json.decode(line).get("params")
        self.server.requests.append((request.method, params))
        self.server.times.append(trio.current_time())
        self.last_id[request.method] = request_id
        scope = self._answering[request_id] = anyio.CancelScope()
        self.tasks.start_soon(self._answer, request_id, request.method, params, scope)

    async def _answer(
        self, request_id: RequestId, method: str, params: Any, scope: anyio.CancelScope
    ) -> None:
        with scope:
            try:
                outcome = await self.server.answers[method](self, params)
            except RemoteError as error:
                self._peer.take(encode_error(request_id, error.error))
            else:
                self._peer.take(encode_result(request_id, to_json(outcome)))
            self.then()

    def _write(self, data: bytes) -> None:
        message = msgspec.json.decode(data)
        self.written.append(message)
        if message.get("method") == "notifications/cancelled":
            self._answering[message["params"]["requestId"]].cancel()


async def answered(_: FakeConnection, __: Any) -> object:
    return {}


async def never(_: FakeConnection, __: Any) -> object:
    await anyio.sleep_forever()


async def listening(connection: FakeConnection, params: Any) -> object:
    mark = len(connection.server.requests)
    said = {"notifications": params["notifications"], "_meta": {MARK: mark}}
    connection.tell("notifications/subscriptions/acknowledged", said)
    return await never(connection, params)


class FakeServer:
    """A channel to a server whose answers are functions."""

    transport = "fake"
    needs_tools = False
    target = "fake"
    emit: Emit

    def __init__(self, era: Era) -> None:
        version = "2026-07-28" if era is Era.MODERN else "2025-11-25"
        self.hello = Hello(era=era, protocol_version=version, capabilities=CAPABILITIES)
        self.connections: list[FakeConnection] = []
        self.requests: list[tuple[str, Any]] = []
        self.times: list[float] = []
        self.tools: list[object] = [{"name": "a"}]
        self.before_hello: Callable[[], None] = lambda: None
        self.opening = 0.0
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

    @property
    def current(self) -> FakeConnection:
        return self.connections[-1]

    def methods(self) -> list[str]:
        return [method for method, _ in self.requests]

    def calls(self) -> list[Any]:
        return [params for method, params in self.requests if method == "tools/call"]

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[FakeConnection]:
        self.before_hello()
        await anyio.sleep(self.opening)
        async with anyio.create_task_group() as tasks:
            connection = FakeConnection(self, tasks)
            self.connections.append(connection)
            try:
                yield connection
            finally:
                connection.close()
                tasks.cancel_scope.cancel()

    def crash(self) -> None:
        self.current.break_off()


async def _value(value: object) -> object:
    return value


def refusal(code: int, message: str = "no", data: bytes | None = None) -> Answer:
    async def refuse(_: FakeConnection, __: Any) -> object:
        raise RemoteError("server", RpcError(code, message, None if data is None else Raw(data)))

    return refuse


class Rig:
    def __init__(self, tasks: TaskGroup, era: Era, **options: Any) -> None:
        self.told = Told()
        self.server = FakeServer(era)

        def make_channel(emit: Emit) -> FakeServer:
            self.server.emit = emit
            return self.server

        options.setdefault("health", HealthPolicy(interval=math.inf))
        options.setdefault("restarts", RestartPolicy(base=1.0, limit=None))
        self.backend = Backend(
            "server",
            make_channel,
            emit=self.told,
            clock=Clock(monotonic=trio.current_time, wall=lambda: 0.0),
            uniform=lambda _low, _high: 1.0,
            tasks=tasks,
            roots=lambda tell: tell([{"uri": "file:///r"}]),
            options=BackendOptions(**options),
        )
        self.outcomes: list[Raw | ProxyError] = []

    async def crash(self) -> None:
        """Lose the connection, and have the next one settled."""
        self.server.crash()
        await anyio.wait_all_tasks_blocked()
        await self.backend.connect(within=60)
        await anyio.wait_all_tasks_blocked()

    def send(self, within: float = 60.0, call: object = "c") -> Callable[[], object]:
        """Call a tool; what comes of it is in `outcomes`."""
        request = OutgoingRequest(
            method="tools/call",
            params={"name": "t", "arguments": {}},
            within=within,
            deadline=trio.current_time() + within,
            call=call,
        )
        return self.backend.send(request, self.outcomes.append)


@asynccontextmanager
async def running(era: Era = Era.LEGACY, **options: Any) -> AsyncGenerator[Rig]:
    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks, era, **options)
        tasks.start_soon(rig.backend.run)
        await anyio.wait_all_tasks_blocked()
        yield rig
        await rig.backend.stop()
    assert rig.backend.phase is Phase.DISCONNECTED


both = pytest.mark.parametrize("era", list(Era))


@both
async def test_a_subscription_in_the_very_moment_of_the_connection(era: Era) -> None:
    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks, era, lazy=True)
        tasks.start_soon(rig.backend.run)
        await rig.backend.subscribe("u://1", within=60)
        await rig.backend.stop()
    assert rig.backend.subscriptions.uris == ("u://1",)


@both
async def test_a_lost_connection_is_never_poked_by_what_looks_after_it(era: Era) -> None:
    health = HealthPolicy(interval=10.0, within=5.0)
    async with running(era, health=health, restarts=RestartPolicy(base=1000.0, cap=1000.0)) as rig:
        await rig.backend.list_all("tools", within=60)
        rig.server.crash()
        await anyio.sleep(900)
        assert len(rig.server.connections) == 1
        assert rig.backend.phase is Phase.RECONNECTING


@both
async def test_a_connection_that_flickers_is_looked_after_in_the_end(era: Era) -> None:
    async with running(era) as rig:
        await rig.backend.list_all("tools", within=60)
        await rig.backend.set_log_level("info", within=60)
        for n in range(5):
            rig.server.tools = [{"name": str(n)}]
            rig.server.crash()
            while len(rig.server.connections) < n + 2:
                await trio.lowlevel.checkpoint()
                await rig.backend.connect(within=60)
        await anyio.wait_all_tasks_blocked()
        assert rig.told.differing[-1] == ["tools"]
        known = rig.backend.lists.known(Kind.TOOLS)
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
        assert rig.backend.snapshot().degraded
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
        await rig.backend.subscribe("u://1", within=60)
        await rig.backend.set_log_level("info", within=60)
        await rig.backend.list_all("tools", within=60)
        await rig.backend.list_all("resources", within=60)
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
        await rig.backend.list_all("tools", within=60)
        await rig.backend.list_all("resources", within=60)
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
        await rig.backend.list_all("resources", within=60)
        rig.server.hello = Hello(era=Era.LEGACY, protocol_version="2025-11-25")
        await rig.crash()
        await rig.crash()
        assert rig.told.differing == [["resources"]]
        assert rig.backend.lists.known(Kind.RESOURCES) == ()


async def test_a_round_is_not_carried_over_to_the_next_connection() -> None:
    async with running(Era.MODERN) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(ASKS)

        async def lose() -> None:
            while not rig.told.questions:
                await trio.lowlevel.checkpoint()
            await rig.crash()
            assert not rig.told.questions[0].respond(YES)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            with pytest.raises(ServerDisconnected, match="exited with code 9"):
                await rig.backend.call_tool("t", {}, within=60, call="c")
        assert rig.server.methods().count("tools/call") == 1
        assert rig.told.withdrawn == []


async def test_a_state_only_round_ends_with_the_connection_too() -> None:
    async with running(Era.MODERN) as rig:

        async def lose(connection: FakeConnection) -> None:
            await anyio.sleep(0.01)
            connection.break_off("it was replaced.")

        async def poll(connection: FakeConnection, _: Any) -> object:
            if len(rig.server.calls()) == 3:
                connection.tasks.start_soon(lose, connection)
            return POLLS

        rig.server.answers["tools/call"] = poll
        with pytest.raises(ServerDisconnected, match="replaced"):
            await rig.backend.call_tool("t", {}, within=60)
        assert len(rig.server.calls()) == 3


async def test_the_pages_of_a_list_come_from_one_connection() -> None:
    async with running() as rig:

        async def page(connection: FakeConnection, _: Any) -> object:
            connection.then = lambda: connection.break_off("it was replaced.")
            return {"tools": [], "nextCursor": "2"}

        rig.server.answers["tools/list"] = page
        with pytest.raises(ServerDisconnected, match="replaced"):
            await rig.backend.list_all("tools", within=60)
        assert rig.server.methods().count("tools/list") == 1


@both
async def test_the_time_of_a_call_is_one_time_however_many_rounds(era: Era) -> None:
    async with running(era) as rig:

        async def slow(_: FakeConnection, __: Any) -> object:
            await anyio.sleep(4)
            if era is Era.MODERN:
                return POLLS
            return await never(_, __)

        rig.server.answers["tools/call"] = slow
        began = trio.current_time()
        with pytest.raises(CallTimeout):
            await rig.backend.call_tool("t", {}, within=10)
        assert trio.current_time() - began == pytest.approx(10)


async def test_nothing_is_sent_once_the_time_of_a_call_is_up() -> None:
    async with running(Era.MODERN) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(POLLS)
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="no result until the call's time was up"):
            await rig.backend.call_tool("t", {}, within=10)
        assert rig.server.times[-1] < began + 10
        with pytest.raises(CallTimeout, match="did not answer tools/call within 0 s"):
            await rig.backend.call_tool("t", {}, within=0)
        assert rig.server.times[-1] < began + 10


async def test_the_late_words_of_a_replaced_stream_do_not_reach_the_session() -> None:
    async with running(Era.MODERN) as rig:
        await rig.backend.subscribe("u://1", within=60)
        for mark in (1, 2):
            said = {"uri": "u://1", "_meta": {MARK: mark}}
            rig.server.current.tell("notifications/resources/updated", said)
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
            await rig.backend.list_all("tools", within=10)
        assert trio.current_time() - began == pytest.approx(10)


async def test_a_modern_request_carries_the_log_level_and_a_handshake_one_does_not() -> None:
    for era in Era:
        async with running(era) as rig:
            await rig.backend.set_log_level("info", within=60)
            await rig.backend.call_tool("t", {"x": 1}, within=60)
            await rig.crash()
            await rig.backend.call_tool("t", {"x": 1}, within=60)
            for params in rig.server.calls():
                if era is Era.MODERN:
                    assert params["_meta"][LOG_LEVEL] == "info"
                else:
                    assert "_meta" not in params
            with pytest.raises(InvalidArguments, match="no log level"):
                await rig.backend.set_log_level("shout", within=60)


async def test_a_pushed_question_names_its_call_and_is_left_to_the_session_when_that_ends() -> None:
    async with running() as rig:

        async def push(connection: FakeConnection, _: Any) -> object:
            origin = connection.last_id["tools/call"]
            for request_id in ("q1", "q2"):
                connection.push(request_id, "elicitation/create", origin)
            connection.push("q3", "sampling/createMessage")
            assert rig.told.questions[0].respond(b"{}")
            return {}

        rig.server.answers["tools/call"] = push
        await rig.backend.call_tool("t", {}, within=60, call="c")
        assert [question.call for question in rig.told.questions] == ["c", "c", None]
        assert [question.is_open for question in rig.told.questions] == [False, True, True]
        assert rig.told.withdrawn == []
        assert rig.told.questions[1].respond(RpcError(-32600, "The call has ended."))
        said = [(message["id"], "error" in message) for message in rig.server.current.written]
        assert said == [("q1", False), ("q2", True)]


async def test_a_pushed_question_is_withdrawn_by_its_key() -> None:
    async with running() as rig:
        rig.server.current.push("q1", "elicitation/create")
        rig.server.current.tell("notifications/cancelled", {"requestId": "q1"})
        assert rig.told.withdrawn == [question.key for question in rig.told.questions]


async def test_the_roots_are_told_without_asking_anybody() -> None:
    async with running() as rig:
        rig.server.current.push("q1", "roots/list")
        (message,) = rig.server.current.written
        assert message["result"] == {"roots": [{"uri": "file:///r"}]}
        assert rig.told.questions == []


@pytest.mark.parametrize("said", [b"null", b"[]", b'"x"', b"7"])
@both
async def test_a_result_that_is_no_object_is_shown(era: Era, said: bytes) -> None:
    async with running(era) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(Raw(said))
        with pytest.raises(CallFailed, match="no object") as caught:
            await rig.backend.call_tool("t", {}, within=60)
        assert said.decode() in str(caught.value)


@pytest.mark.parametrize("data", [None, b"7", b'"uri"', b"[[[", b'{"other":1}'])
async def test_wrong_params_are_not_a_missing_resource(data: bytes | None) -> None:
    async with running() as rig:
        rig.server.answers["resources/read"] = refusal(-32602, "wrong", data)
        with pytest.raises(RemoteError):
            await rig.backend.read_resource("u://1", within=60)


@both
async def test_odd_notices_are_heard_before_and_after_the_hello(era: Era) -> None:
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
                rig.server.emit(ServerNotification(method, params))

    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks, era)
        rig.server.before_hello = say
        tasks.start_soon(rig.backend.run)
        await rig.backend.list_all("tools", within=60)
        say()
        assert await rig.backend.list_all("tools", within=60)
        await rig.backend.stop()
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
    received = log_line(None if params is None else Raw(params))
    assert received == LogLine(source=LogSource.PROTOCOL, text=text, level=level, logger=logger)


@both
async def test_a_call_during_a_reconnect_goes_to_the_new_connection_in_its_own_way(
    era: Era,
) -> None:
    async with running(era) as rig:
        other = Era.LEGACY if era is Era.MODERN else Era.MODERN
        rig.server.hello = Hello(era=other, protocol_version="x", capabilities=CAPABILITIES)
        await rig.backend.set_log_level("info", within=60)
        reconnect = rig.backend._supervisor.reconnect

        async def call_and_reconnect(*, within: float) -> object:
            """The call is made when the old connection has been given up, and nobody told yet."""
            tasks.start_soon(lambda: rig.backend.call_tool("t", {}, within=60))
            return await reconnect(within=within)

        rig.backend._supervisor.reconnect = call_and_reconnect
        async with anyio.create_task_group() as tasks:
            await rig.backend.reconnect(within=60)
        (call,) = rig.server.calls()
        assert ("_meta" in call) is (other is Era.MODERN)
        assert len(rig.server.connections) == 2


# One request, from its sending to its result


def urls_required() -> Answer:
    data = {"elicitations": [{"mode": "url", "url": "https://a", "elicitationId": "e"}]}
    return refusal(-32042, "URL elicitation required", to_json(data))


@both
async def test_a_request_is_answered_once_and_cannot_be_given_up_after_that(era: Era) -> None:
    async with running(era) as rig:
        cancel = rig.send()
        await anyio.wait_all_tasks_blocked()
        cancel()
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == [Raw(b"{}")]
        assert rig.server.current.cancelled == []


@pytest.mark.parametrize("is_seen", [False, True])
@both
async def test_a_request_given_up_while_it_waits_for_a_connection_is_never_sent(
    era: Era,
    is_seen: bool,  # noqa: FBT001
) -> None:
    async with running(era, lazy=True) as rig:
        rig.server.opening = 5.0
        cancel = rig.send()
        if is_seen:
            await anyio.sleep(1)
        cancel()
        await rig.backend.connect(within=60)
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == []
        assert len(rig.server.connections) == 1
        assert rig.server.calls() == []
        assert rig.server.current.cancelled == []


@pytest.mark.parametrize("lazy", [False, True])
@both
async def test_a_request_given_up_after_it_was_sent_is_cancelled_at_the_server(
    era: Era,
    lazy: bool,  # noqa: FBT001
) -> None:
    async with running(era, lazy=lazy) as rig:
        rig.server.answers["tools/call"] = never
        cancel = rig.send()
        await anyio.wait_all_tasks_blocked()
        assert len(rig.server.calls()) == 1
        cancel()
        await anyio.wait_all_tasks_blocked()
        call_id = rig.server.current.last_id["tools/call"]
        assert rig.server.current.cancelled == [call_id]
        rig.server.current._peer.take(encode_result(call_id, b"{}"))
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == []
        assert rig.told.lines == []


@both
async def test_a_request_given_up_during_a_question_withdraws_it_and_is_not_sent_again(
    era: Era,
) -> None:
    async with running(era) as rig:
        modern = era is Era.MODERN
        rig.server.answers["tools/call"] = (
            (lambda _c, _p: _value(ASKS)) if modern else urls_required()
        )
        cancel = rig.send()
        await anyio.wait_all_tasks_blocked()
        (question,) = rig.told.questions
        assert question.call == "c"
        cancel()
        await anyio.wait_all_tasks_blocked()
        assert rig.told.withdrawn == [question.key]
        assert not question.respond(YES)
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == []
        assert len(rig.server.calls()) == 1
        assert rig.server.current.cancelled == []


async def test_a_request_given_up_in_a_pause_between_two_rounds_is_not_sent_again() -> None:
    async with running(Era.MODERN) as rig:
        rig.server.answers["tools/call"] = lambda _c, _p: _value(POLLS)
        cancel = rig.send()
        await anyio.sleep(0.1)
        cancel()
        sent = len(rig.server.calls())
        await anyio.sleep(60)
        assert len(rig.server.calls()) == sent == 2
        assert rig.outcomes == []


@both
async def test_a_request_given_up_in_a_later_round_is_cancelled_at_the_server(era: Era) -> None:
    async with running(era) as rig:
        modern = era is Era.MODERN
        first = (lambda _c, _p: _value(ASKS)) if modern else urls_required()
        rig.server.answers["tools/call"] = first
        cancel = rig.send()
        await anyio.wait_all_tasks_blocked()
        rig.server.answers["tools/call"] = never
        assert rig.told.questions[0].respond(YES)
        rig.server.current.tell("notifications/elicitation/complete", {"elicitationId": "e"})
        await anyio.wait_all_tasks_blocked()
        assert len(rig.server.calls()) == 2
        cancel()
        await anyio.wait_all_tasks_blocked()
        assert rig.server.current.cancelled == [rig.server.current.last_id["tools/call"]]
        assert rig.outcomes == []
        assert rig.told.withdrawn == []


@both
async def test_a_request_that_is_seen_through_its_questions_is_answered_once(era: Era) -> None:
    async with running(era) as rig:
        modern = era is Era.MODERN
        rig.server.answers["tools/call"] = (
            (lambda _c, _p: _value(ASKS)) if modern else urls_required()
        )
        cancel = rig.send()
        await anyio.wait_all_tasks_blocked()
        rig.server.answers["tools/call"] = answered
        assert rig.told.questions[0].respond(YES)
        rig.server.current.tell("notifications/elicitation/complete", {"elicitationId": "e"})
        await anyio.wait_all_tasks_blocked()
        cancel()
        rig.server.crash()
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == [Raw(b"{}")]


@pytest.mark.parametrize("lazy", [False, True])
async def test_questions_that_come_in_the_very_moment_of_the_loss_are_no_result(
    lazy: bool,  # noqa: FBT001
) -> None:
    async with running(Era.MODERN, lazy=lazy) as rig:

        async def ask_and_die(connection: FakeConnection, _: Any) -> object:
            connection.then = connection.break_off
            return ASKS

        rig.server.answers["tools/call"] = ask_and_die
        rig.send()
        await anyio.wait_all_tasks_blocked()
        (error,) = rig.outcomes
        assert isinstance(error, ServerDisconnected)
        assert "exited with code 9" in error.fact
        assert rig.told.questions == []


async def test_a_result_in_the_very_moment_of_the_loss_is_a_result() -> None:
    for lazy in (False, True):
        async with running(lazy=lazy) as rig:

            async def answer_and_die(connection: FakeConnection, _: Any) -> object:
                connection.then = connection.break_off
                return {"content": []}

            rig.server.answers["tools/call"] = answer_and_die
            rig.send()
            await anyio.wait_all_tasks_blocked()
            assert rig.outcomes == [Raw(b'{"content":[]}')]


@both
async def test_a_request_that_waits_when_the_backend_is_removed_is_told_so(era: Era) -> None:
    async with running(era, lazy=True) as rig:
        rig.server.opening = 5.0
        rig.send()
        await anyio.sleep(1)
        await rig.backend.stop()
        await anyio.wait_all_tasks_blocked()
        (error,) = rig.outcomes
        assert isinstance(error, ServerUnavailable)
        assert (error.code, error.fact) == ("server_unavailable", "server was removed.")


@pytest.mark.parametrize("state", ["sent", "question", "pause"])
async def test_a_request_under_way_when_the_backend_is_removed_hears_of_it(state: str) -> None:
    says: dict[str, Answer] = {
        "sent": never,
        "question": lambda _c, _p: _value(ASKS),
        "pause": lambda _c, _p: _value(POLLS),
    }
    async with running(Era.MODERN) as rig:
        rig.server.answers["tools/call"] = says[state]
        rig.send()
        await anyio.sleep(0.01)
        await rig.backend.stop()
        await anyio.sleep(1)
        (error,) = rig.outcomes
        assert isinstance(error, ServerDisconnected)
        assert error.fact == "server was removed."
        assert rig.told.withdrawn == []


@pytest.mark.parametrize(
    ("era", "said", "other"),
    [
        (Era.MODERN, "no back-channel to the client", Era.LEGACY),
        (Era.LEGACY, "the tool returned an invalid result", Era.MODERN),
        (Era.MODERN, "the tool returned an invalid result", None),
        (Era.LEGACY, "no back-channel to the client", None),
    ],
)
async def test_a_tool_that_asks_in_the_way_of_the_other_era_is_told_how_to_switch(
    era: Era, said: str, other: Era | None
) -> None:
    async with running(era) as rig:
        rig.server.answers["tools/call"] = refusal(-32603, said)
        with pytest.raises(RemoteError) as caught:
            await rig.backend.call_tool("t", {}, within=60)
        assert ("reconnect_server for server" in caught.value.next_step) is (other is not None)
        if other is not None:
            assert f"with era {other.value}" in caught.value.next_step


async def test_the_connection_and_the_session_see_each_new_list_of_tools_once() -> None:
    async with running() as rig:

        def seen() -> list[Sequence[object]]:
            return [one.items for one in rig.told.listed if one.kind is Kind.TOOLS]

        for _ in range(2):
            await rig.backend.list_all("tools", within=60)
        await rig.backend.list_all("resources", within=60)
        assert rig.server.current.listed == seen() == [({"name": "a"},)]
        await rig.crash()
        assert rig.server.current.listed == [({"name": "a"},)]
        assert seen() == [({"name": "a"},)] * 2


# Its end


async def test_a_stop_before_the_run_and_a_run_after_the_stop() -> None:
    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks, Era.LEGACY)
        await rig.backend.stop()
        await rig.backend.run()
        with pytest.raises(ServerUnavailable, match="removed"):
            await rig.backend.call_tool("t", {}, within=60)
    assert rig.told.words == []
    assert "Backend" in repr(rig.backend)


def own_tasks() -> list[str | None]:
    return [
        task.name for task in anyio.get_running_tasks() if "emceepee_stdio" in (task.name or "")
    ]


@both
async def test_a_stop_returns_when_the_last_task_has_ended(era: Era) -> None:
    async with anyio.create_task_group() as tasks:
        rig = Rig(tasks, era)
        tasks.start_soon(rig.backend.run)
        await rig.backend.subscribe("u://1", within=60)
        assert own_tasks()
        await rig.backend.stop()
        assert own_tasks() == []


async def test_nothing_is_told_of_a_backend_once_its_stop_has_returned() -> None:
    async with running() as rig:
        await rig.backend.list_all("tools", within=60)
        await rig.backend.list_all("resources", within=60)
        rig.server.tools = []
        rig.server.answers["resources/list"] = never
        await rig.crash()
        assert rig.told.differing == []
        await rig.backend.stop()
        told = list(rig.told.differing)
        await anyio.wait_all_tasks_blocked()
        assert rig.told.differing == told


@both
async def test_cancelling_the_run_ends_everything(era: Era) -> None:
    ends: list[ProxyError] = []

    async def call() -> None:
        try:
            await rig.backend.call_tool("t", {}, within=60)
        except ProxyError as error:
            ends.append(error)

    async with anyio.create_task_group() as callers, anyio.create_task_group() as tasks:
        rig = Rig(tasks, era)
        rig.server.answers["tools/call"] = never
        tasks.start_soon(rig.backend.run)
        await rig.backend.subscribe("u://1", within=60)
        callers.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert isinstance(ends[0], ServerDisconnected)
    assert rig.backend._supervisor.current is None
    assert own_tasks() == []
    await rig.backend.stop()


async def test_no_request_for_a_tool_gets_past_the_rules_whoever_makes_it() -> None:
    async with running() as rig:
        listed = {"tools": [{"name": name} for name in ("free", "asks", "never")]}
        rig.server.answers["tools/list"] = lambda _c, _p: _value(listed)
        rig.server.answers["tools/call"] = lambda _c, _p: _value({"content": []})
        rig.backend.obey(ToolRules({"asks": "ask", "never": "off"}))
        with pytest.raises(ToolNotFound):
            await rig.backend.call_tool("free", {}, within=60)
        await rig.backend.list_all("tools", within=60)
        await rig.backend.call_tool("free", {}, within=60)
        refusals = {"asks": NeedsApproval, "never": PolicyDenied, "Free": ToolNotFound}
        for tool, refusal in refusals.items():
            with pytest.raises(refusal):
                await rig.backend.call_tool(tool, {}, within=60)
        await rig.backend.call_tool("asks", {}, within=60, is_agreed=True)
        with pytest.raises(PolicyDenied):
            await rig.backend.call_tool("never", {}, within=60, is_agreed=True)
        assert rig.server.methods().count("tools/call") == 2


# Stopped because nobody uses it, and what it is known by then


@both
async def test_a_server_that_nobody_uses_is_stopped_and_the_next_call_starts_it(era: Era) -> None:
    health = HealthPolicy(interval=7.0, within=5.0)
    async with running(era, health=health, idle_stop=100.0) as rig:
        await rig.backend.list_all("tools", within=60)
        await anyio.sleep(90)
        assert rig.backend.phase is Phase.CONNECTED
        rig.send()
        await anyio.sleep(90)
        assert rig.backend.phase is Phase.CONNECTED, "it was used"
        await anyio.sleep(45)
        assert rig.backend.phase is Phase.IDLE
        await anyio.sleep(10_000)
        assert len(rig.server.connections) == 1
        rig.send()
        await anyio.wait_all_tasks_blocked()
        assert rig.outcomes == [Raw(b"{}"), Raw(b"{}")]
        assert len(rig.server.connections) == 2
        assert rig.told.words == [
            *("connecting", "connected", "idle"),
            *("connecting", "connected"),
        ]
        assert (rig.told.health, rig.told.differing) == ([], [])


@both
async def test_what_is_open_at_a_server_keeps_it_running(era: Era) -> None:
    held = True
    async with running(era, idle_stop=10.0, is_held=lambda: held) as rig:
        await anyio.sleep(1000)
        assert rig.backend.phase is Phase.CONNECTED, "the session holds it"
        held = False
        rig.server.answers["tools/call"] = never
        cancel = rig.send(within=math.inf)
        await anyio.sleep(1000)
        assert rig.backend.phase is Phase.CONNECTED, "a call"
        cancel()
        await rig.backend.subscribe("u://1", within=60)
        await anyio.sleep(1000)
        assert rig.backend.phase is Phase.CONNECTED, "a subscription"
        rig.server.answers["resources/unsubscribe"] = answered
        await rig.backend.unsubscribe("u://1", within=60)
        await anyio.sleep(12)
        assert rig.backend.phase is Phase.IDLE
        assert rig.outcomes == []


@both
async def test_a_list_in_several_pages_keeps_its_server_running(era: Era) -> None:
    async def slowly(_: FakeConnection, params: Any) -> object:
        await anyio.sleep(9.9)
        page = int((params or {}).get("cursor", "0"))
        more = {"nextCursor": str(page + 1)} if page < 9 else {}
        return {"tools": [{"name": str(page)}], **more}

    async with running(era, idle_stop=10.0) as rig:
        rig.server.answers["tools/list"] = slowly
        assert len(await rig.backend.list_all("tools", within=1000)) == 10
        assert len(rig.server.connections) == 1


@both
async def test_a_server_that_was_stopped_is_known_by_what_it_listed(era: Era) -> None:
    async with running(era, idle_stop=10.0) as rig:
        tools = await rig.backend.list_all("tools", within=60)
        assert rig.backend.snapshot().remembered_at is None
        await anyio.sleep(12)
        snapshot = rig.backend.snapshot()
        assert (snapshot.phase, snapshot.hello) == (Phase.IDLE, rig.server.hello)
        assert snapshot.remembered_at is not None
        assert rig.backend.lists.known(Kind.TOOLS) == tools
        assert rig.backend.lists.remembered == {Kind.TOOLS}
        rig.server.tools = [{"name": "b"}]
        rig.send()
        await anyio.wait_all_tasks_blocked()
        assert rig.told.differing == [["tools"]]
        assert rig.backend.lists.remembered == set()
        assert rig.backend.lists.had_until("a") == snapshot.remembered_at
        assert rig.backend.lists.had_until("b") is None


@both
async def test_a_known_server_is_not_started_and_what_it_lists_then_corrects_what_was_known(
    era: Era,
) -> None:
    hello = Hello(era=era, protocol_version="1", instructions="as before")
    remembered = Remembered(
        hello=hello, at="T", lists={kind: ({"name": "old"},) for kind in Kind}, sizes={}
    )
    async with running(era, lazy=True, learns=True, remembered=remembered) as rig:
        seen = rig.told.listed
        await anyio.sleep(1000)
        snapshot = rig.backend.snapshot()
        assert (snapshot.phase, snapshot.hello, snapshot.remembered_at) == (Phase.IDLE, hello, "T")
        assert snapshot.counts == dict.fromkeys(Kind, 1)
        assert rig.backend.lists.tool("old") is not None
        assert not rig.backend.lists.lists_tool("old")
        rig.server.answers["prompts/list"] = lambda _c, _p: _value({"prompts": []})
        rig.server.answers["resources/templates/list"] = lambda _c, _p: _value(
            {"resourceTemplates": []}
        )
        rig.send()
        await anyio.wait_all_tasks_blocked()
        assert [(one.kind, len(one.items), one.first) for one in seen] == [
            (Kind.TOOLS, 1, True),
            (Kind.RESOURCES, 0, False),
            (Kind.TEMPLATES, 0, False),
            (Kind.PROMPTS, 0, False),
        ]
        assert rig.told.differing == [["tools", "resources", "prompts"]]
        assert rig.backend.snapshot().hello == rig.server.hello
        await rig.crash()
        assert [one.first for one in seen if one.kind is Kind.TOOLS] == [True, True]
