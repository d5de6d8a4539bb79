from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest
import trio
import trio.testing
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    BackendEvent,
    Era,
    Hello,
    Kind,
    Loss,
    Params,
    RemoteError,
    ServerNotification,
    without_stream,
)
from emceepee_stdio.backends.subscriptions import ACKNOWLEDGED, Subscriptions, SubscriptionStream
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    NotSupported,
    ProxyError,
    ServerDisconnected,
    ServerUnavailable,
)
from emceepee_stdio.wire.codec import (
    RequestId,
    RpcError,
    encode_error,
    encode_notification,
    encode_result,
    to_json,
)
from emceepee_stdio.wire.peer import OutgoingRequest

ALL = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
MARK = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Server:
    """The other side of the streams: grants, refuses, keeps silent, ends them, dies."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, Any]] = []
        self.open: dict[int, tuple[FakeConnection, RequestId]] = {}
        self.overlapping = 0
        self.mode = "grants"
        self.failures: list[ProxyError] = []
        self.began: list[float] = []

    @property
    def listens(self) -> list[Any]:
        return [p["notifications"] for m, p in self.requests if m == "subscriptions/listen"]

    async def take(
        self, connection: "FakeConnection", request_id: RequestId, request: OutgoingRequest
    ) -> None:
        self.requests.append((request.method, request.params))
        self.began.append(trio.current_time())
        mark = len(self.requests)
        if self.mode == "dies":
            connection.break_off("it exited.")
        elif self.failures:
            connection.refuse(request_id, self.failures.pop(0))
        elif request.method != "subscriptions/listen":
            connection.answer(request_id)
        else:
            assert request.params is not None
            self.open[mark] = connection, request_id
            self.overlapping = max(self.overlapping, len(self.open))
            await trio.lowlevel.checkpoint()
            if self.mode != "silent":
                self.acknowledge(connection, mark, request.params["notifications"])
            if self.mode == "ends":
                self.end_all()

    def acknowledge(self, connection: "FakeConnection", mark: int, wanted: Any) -> None:
        honoured = dict(wanted)
        if self.mode == "deaf":
            honoured.pop("resourceSubscriptions", None)
        if self.mode == "ends":
            honoured = {}
        connection.tell(ACKNOWLEDGED, {"notifications": honoured, "_meta": {MARK: mark}})

    def end_all(self) -> None:
        streams, self.open = self.open, {}
        for connection, request_id in streams.values():
            connection.answer(request_id)

    def cancelled(self, connection: "FakeConnection", request_id: RequestId) -> None:
        self.open = {m: of for m, of in self.open.items() if of != (connection, request_id)}


class FakeConnection(Connection):
    """A connection whose requests go to the server of the test."""

    def __init__(self, desk: "Desk", hello: Hello, tasks: TaskGroup) -> None:
        clock = Clock(monotonic=trio.current_time, wall=lambda: 0.0)
        super().__init__("server", emit=desk.take, clock=clock, proxy_id="c", max_line=1000)
        self.era = hello.era
        self.hello = hello
        self._server = desk.server
        self._tasks = tasks

    def break_off(self, fact: str) -> None:
        self.lose(Loss(fact=fact))

    def answer(self, request_id: RequestId) -> None:
        self._peer.take(encode_result(request_id, b"{}"))

    def refuse(self, request_id: RequestId, error: ProxyError) -> None:
        if isinstance(error, RemoteError):
            self._peer.take(encode_error(request_id, error.error))
        else:
            self._peer.give_up(request_id, error)

    def tell(self, method: str, params: object) -> None:
        self._peer.take(encode_notification(method, to_json(params)))

    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest) -> None:
        self._tasks.start_soon(self._server.take, self, request_id, request)

    def _write(self, data: bytes) -> None:
        message = msgspec.json.decode(data)
        assert message["method"] == "notifications/cancelled"
        self._server.cancelled(self, message["params"]["requestId"])


class Desk:
    """Subscriptions with a connection to a server of one era."""

    def __init__(self) -> None:
        self.gaps = 0
        self.notes: list[str] = []
        self.subscriptions = Subscriptions("server", on_gap=self.gap, note=self.notes.append)
        self.server = Server()

    def gap(self) -> None:
        self.gaps += 1

    def take(self, event: BackendEvent) -> None:
        assert isinstance(event, ServerNotification)
        assert event.method == ACKNOWLEDGED
        self.subscriptions.acknowledged(event.params)

    def connection(self, tasks: TaskGroup, era: Era, capabilities: Params = ALL) -> FakeConnection:
        hello = Hello(era=era, protocol_version="x", capabilities=capabilities)
        connection = FakeConnection(self, hello, tasks)
        self.subscriptions.begin(connection)
        return connection

    @asynccontextmanager
    async def connected(
        self, era: Era = Era.MODERN, capabilities: Params = ALL
    ) -> AsyncGenerator[FakeConnection]:
        async with anyio.create_task_group() as tasks:
            connection = self.connection(tasks, era, capabilities)
            connection.services.append(self.subscriptions.listen)
            tasks.start_soon(connection.serve)
            try:
                yield connection
            finally:
                connection.break_off("lost")
                self.server.open.clear()

    async def add(self, uri: str, connection: Connection, within: float = 60.0) -> None:
        await self.subscriptions.add(uri, connection, within=within)

    async def remove(self, uri: str, connection: Connection) -> None:
        await self.subscriptions.remove(uri, connection, within=60.0)

    @property
    def stream(self) -> SubscriptionStream:
        assert self.subscriptions._stream is not None
        return self.subscriptions._stream


def refused(code: int = -32601) -> RemoteError:
    return RemoteError("server", RpcError(code, "no such thing"))


async def test_list_changes_are_listened_for_where_the_server_declares_them() -> None:
    desk = Desk()
    async with desk.connected():
        await desk.stream.wait_until_answered()
        assert desk.server.listens == [{"toolsListChanged": True}]
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert not desk.subscriptions.tells_changes(Kind.PROMPTS)
        assert not desk.subscriptions.tells_changes(Kind.TEMPLATES)


async def test_without_anything_to_hear_there_is_no_stream() -> None:
    desk = Desk()
    async with desk.connected(capabilities={"tools": {}}):
        await desk.stream.wait_until_answered()
        assert desk.server.requests == []


async def test_a_handshake_server_tells_of_itself() -> None:
    desk = Desk()
    async with desk.connected(Era.LEGACY):
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.server.requests == []


async def test_the_new_stream_is_open_before_the_old_one_ends() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.add("a", connection)
        await desk.add("b", connection)
        assert desk.server.overlapping == 2
        await desk.remove("a", connection)
        await anyio.wait_all_tasks_blocked()
        assert len(desk.server.open) == 1
        uris = [wanted.get("resourceSubscriptions") for wanted in desk.server.listens]
        assert uris[-3:] == [["a"], ["a", "b"], ["b"]]
        assert desk.gaps == 0


async def test_the_late_words_of_a_stream_that_has_ended_are_not_heard() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.stream.wait_until_answered()
        await desk.add("a", connection)
        assert [desk.subscriptions.takes(mark) for mark in (1, 2)] == [False, True]


async def test_a_server_that_ends_every_stream_is_not_remembered_for_all_of_them() -> None:
    desk = Desk()
    async with desk.connected():
        for _ in range(150):
            await anyio.sleep(100)
            desk.server.end_all()
        await anyio.sleep(100)
        assert len(desk.server.listens) == 151
        assert [desk.subscriptions.takes(mark) for mark in (1, 50, 51, 150, 151)] == [
            *(True, True, False, False, True)
        ]


async def test_a_mark_that_is_no_id_of_ours_is_not_kept() -> None:
    desk = Desk()
    long = "x" * 1_000
    async with desk.connected() as connection:
        desk.server.mode = "silent"
        await anyio.wait_all_tasks_blocked()
        connection.tell(
            ACKNOWLEDGED, {"notifications": {"toolsListChanged": True}, "_meta": {MARK: long}}
        )
        await anyio.sleep(1)
        desk.server.mode = "grants"
        desk.server.end_all()
        await anyio.sleep(100)
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.subscriptions.takes(long)


async def test_subscriptions_at_the_same_time_are_all_granted() -> None:
    desk = Desk()
    async with desk.connected() as connection, anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(desk.add, str(n), connection)
    assert sorted(desk.subscriptions.uris) == [str(n) for n in range(10)]


async def test_what_is_granted_already_is_not_asked_for_again() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.add("a", connection)
        listens = len(desk.server.listens)
        await desk.add("a", connection)
        assert len(desk.server.listens) == listens


async def test_what_is_not_granted_is_not_wanted_any_more() -> None:
    desk = Desk()
    desk.server.mode = "deaf"
    async with desk.connected() as connection:
        with pytest.raises(NotSupported, match="did not accept a subscription to a"):
            await desk.add("a", connection)
        assert desk.subscriptions.uris == ()
        await desk.stream.wait_until_answered()
        assert desk.subscriptions.tells_changes(Kind.TOOLS)


@pytest.mark.parametrize("era", list(Era))
async def test_what_is_not_declared_is_not_asked_for(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era, {"resources": {}}) as connection:
        with pytest.raises(NotSupported, match="does not support subscriptions"):
            await desk.add("a", connection)
        assert desk.server.requests == []


async def test_a_server_that_knows_no_streams_is_asked_once_per_proposal() -> None:
    desk = Desk()
    desk.server.failures = [refused(), refused(), refused()]
    async with desk.connected() as connection:
        await desk.stream.wait_until_answered()
        await anyio.sleep(1000)
        assert len(desk.server.listens) == 1
        with pytest.raises(NotSupported, match="no such thing"):
            await desk.add("a", connection)
        assert desk.gaps == 0


async def test_a_refused_proposal_leaves_the_stream_as_it_was() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.stream.wait_until_answered()
        desk.server.failures = [refused(-32602)]
        with pytest.raises(NotSupported):
            await desk.add("a", connection)
        await desk.stream.wait_until_answered()
        assert list(desk.server.open) == [1]
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.subscriptions.takes(1)


async def test_a_failure_on_the_way_is_told_as_it_was() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.stream.wait_until_answered()
        desk.server.failures = [ServerUnavailable("the network is gone")]
        with pytest.raises(ServerUnavailable, match="network"):
            await desk.add("a", connection)


async def test_a_stream_that_ends_is_opened_again_and_the_gap_is_told() -> None:
    desk = Desk()
    async with desk.connected() as connection:
        await desk.add("a", connection)
        listens = len(desk.server.listens)
        desk.server.end_all()
        await anyio.wait_all_tasks_blocked()
        assert desk.gaps == 1
        assert not desk.subscriptions.tells_changes(Kind.TOOLS)
        await anyio.sleep(1.5)
        assert len(desk.server.listens) == listens + 1
        assert desk.server.listens[-1] == desk.server.listens[-2]
        assert desk.subscriptions.tells_changes(Kind.TOOLS)


async def test_a_stream_that_cannot_be_opened_is_tried_again_ever_more_rarely() -> None:
    desk = Desk()
    desk.server.failures = [ServerDisconnected("broke off") for _ in range(9)]
    async with desk.connected():
        await anyio.sleep(400)
        pauses = [b - a for a, b in zip(desk.server.began, desk.server.began[1:], strict=False)]
        assert pauses == pytest.approx([1, 2, 4, 8, 16, 32, 60, 60, 60])
        assert desk.subscriptions.tells_changes(Kind.TOOLS)


async def test_a_stream_with_nothing_to_tell_may_end_at_once() -> None:
    desk = Desk()
    desk.server.mode = "ends"
    async with desk.connected():
        await anyio.sleep(1000)
        assert len(desk.server.listens) == 1


async def test_a_server_that_never_acknowledges_does_not_hold_up_for_ever() -> None:
    desk = Desk()
    desk.server.mode = "silent"
    async with desk.connected() as connection:
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="did not open its stream"):
            await desk.add("a", connection, within=5.0)
        assert trio.current_time() - began == pytest.approx(5.0)
        assert desk.subscriptions.uris == ()
        await anyio.sleep(100)
        assert len(desk.server.open) == 1


async def test_who_waits_for_a_stream_learns_of_the_loss() -> None:
    desk = Desk()
    desk.server.mode = "silent"
    async with desk.connected() as connection:

        async def lose() -> None:
            await anyio.sleep(1)
            connection.break_off("it exited.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            with pytest.raises(ServerDisconnected, match="it exited"):
                await desk.add("a", connection)
    assert desk.subscriptions.uris == ()


@pytest.mark.parametrize("era", list(Era))
async def test_everything_is_wanted_again_on_the_next_connection(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era) as connection:
        await desk.add("a", connection)
        await desk.add("b", connection)
        await desk.remove("a", connection)
    desk.server.requests.clear()
    async with desk.connected(era) as connection:
        await desk.subscriptions.restore(connection, within=60.0)
        if era is Era.LEGACY:
            assert desk.server.requests == [("resources/subscribe", {"uri": "b"})]
        else:
            assert desk.server.listens[-1]["resourceSubscriptions"] == ["b"]
    assert desk.notes == []


@pytest.mark.parametrize("era", list(Era))
async def test_what_is_not_granted_again_is_noted_and_still_wanted(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era) as connection:
        await desk.add("a", connection)
    desk.server.mode = "deaf"
    desk.server.failures = [refused()] if era is Era.LEGACY else []
    async with desk.connected(era) as connection:
        await desk.subscriptions.restore(connection, within=60.0)
    assert len(desk.notes) == 1
    assert "the subscription to a was not restored" in desk.notes[0]
    assert desk.subscriptions.uris == ("a",)


async def test_a_connection_that_is_lost_while_it_is_restored_forgets_nothing() -> None:
    desk = Desk()
    async with desk.connected(Era.LEGACY) as connection:
        await desk.add("a", connection)
    desk.server.mode = "dies"
    async with desk.connected(Era.LEGACY) as connection:
        with pytest.raises(ServerDisconnected, match="it exited"):
            await desk.subscriptions.restore(connection, within=60.0)
    assert desk.subscriptions.uris == ("a",)


async def test_a_handshake_server_that_has_never_heard_of_it() -> None:
    desk = Desk()
    desk.server.failures = [refused(), refused(), refused(-32000)]
    async with desk.connected(Era.LEGACY) as connection:
        with pytest.raises(NotSupported):
            await desk.add("a", connection)
        with pytest.raises(NotSupported):
            await desk.remove("a", connection)
        with pytest.raises(RemoteError):
            await desk.add("a", connection)
        assert desk.subscriptions.uris == ()


@pytest.mark.parametrize("said", [None, b"7", b"[]", b'{"notifications":7}', b"{}", b"[[[["])
async def test_an_odd_acknowledgement_grants_nothing(said: bytes | None) -> None:
    desk = Desk()
    desk.server.mode = "silent"
    async with desk.connected():
        await anyio.wait_all_tasks_blocked()
        desk.subscriptions.acknowledged(None if said is None else Raw(said))
        await desk.stream.wait_until_answered()
        assert not desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.subscriptions.takes(1)


async def test_an_acknowledgement_that_nobody_waits_for_changes_nothing() -> None:
    desk = Desk()
    desk.subscriptions.acknowledged(Raw(b"{}"))
    async with anyio.create_task_group() as tasks:
        desk.connection(tasks, Era.MODERN)
    desk.subscriptions.acknowledged(Raw(b"{}"))
    assert desk.stream.granted == {}
    assert repr(desk.subscriptions) == "<Subscriptions server 0 resources>"


@pytest.mark.parametrize(
    ("said", "rest", "mark"),
    [
        (b'{"uri":"a","_meta":{"%b":"L1"}}', b'{"uri":"a"}', "L1"),
        (b'{"_meta":{"%b":3}}', None, 3),
        (b'{"_meta":{"%b":3,"x":1.50}}', b'{"_meta":{"x":1.50}}', 3),
        (b'{"text":"%b"}', b'{"text":"%b"}', None),
        (b'{"_meta":{"%b":[1]}}', b'{"_meta":{"%b":[1]}}', None),
        (b'{"_meta":"%b"}', b'{"_meta":"%b"}', None),
        (b'["%b"]', b'["%b"]', None),
        (b'{"n":12345678901234567890123,"_meta":{"%b":3}}', b'{"n":12345678901234567890123}', 3),
    ],
)
def test_the_mark_of_a_stream_is_taken_off_and_nothing_else(
    said: bytes, rest: bytes | None, mark: object
) -> None:
    key = MARK.encode()
    params, found = without_stream(Raw(said.replace(b"%b", key)))
    assert (None if params is None else bytes(params)) == (rest and rest.replace(b"%b", key))
    assert found == mark
