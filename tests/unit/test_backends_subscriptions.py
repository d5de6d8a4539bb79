from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from msgspec import Raw

from emceepee_stdio.backends.base import Era, Hello, Params, RemoteError
from emceepee_stdio.backends.listening import Listening
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.backends.notices import without_stream
from emceepee_stdio.backends.subscriptions import Subscriptions
from emceepee_stdio.backends.term import Term
from emceepee_stdio.errors import CallTimeout, NotSupported, ServerDisconnected, ServerUnavailable
from emceepee_stdio.wire.codec import RpcError, to_json

ALL = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
MARK = "io.modelcontextprotocol/subscriptionId"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Server:
    """The other side of the streams: grants, refuses, keeps silent, ends them."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions
        self.requests: list[tuple[str, Any]] = []
        self.open: dict[int, anyio.Event] = {}
        self.overlapping = 0
        self.mode = "grants"
        self.failures: list[Exception] = []
        self.began: list[float] = []

    @property
    def listens(self) -> list[Any]:
        return [p["notifications"] for m, p in self.requests if m == "subscriptions/listen"]

    async def ask(self, method: str, params: Params | None, within: float) -> Raw:
        self.requests.append((method, params))
        self.began.append(trio.current_time())
        mark = len(self.requests)
        if self.failures:
            raise self.failures.pop(0)
        if method != "subscriptions/listen":
            return Raw(b"{}")
        assert params is not None
        ended = self.open[mark] = anyio.Event()
        try:
            await trio.lowlevel.checkpoint()
            self.overlapping = max(self.overlapping, len(self.open))
            if self.mode != "silent":
                self.acknowledge(mark, params["notifications"])
            if self.mode != "ends":
                await ended.wait()
        finally:
            del self.open[mark]
        return Raw(b"{}")

    def acknowledge(self, mark: int, wanted: Any) -> None:
        honoured = dict(wanted)
        if self.mode == "deaf":
            honoured.pop("resourceSubscriptions", None)
        if self.mode == "ends":
            honoured = {}
        said = {"notifications": honoured, "_meta": {MARK: mark}}
        self._subscriptions.acknowledged(Raw(to_json(said)))

    def end_all(self) -> None:
        for ended in self.open.values():
            ended.set()


class Desk:
    """Subscriptions with a connection to a server of one era."""

    def __init__(self) -> None:
        self.gaps = 0
        self.notes: list[str] = []
        self.subscriptions = Subscriptions("server", on_gap=self.gap, note=self.notes.append)
        self.server = Server(self.subscriptions)

    def gap(self) -> None:
        self.gaps += 1

    def term(self, era: Era, capabilities: Params = ALL) -> Term:
        term = Term("server", Hello(era=era, protocol_version="x", capabilities=capabilities))
        self.subscriptions.begin(term)
        return term

    @asynccontextmanager
    async def connected(
        self, era: Era = Era.MODERN, capabilities: Params = ALL
    ) -> AsyncGenerator[Term]:
        term = self.term(era, capabilities)

        async def serve() -> None:
            with term.scope:
                await self.subscriptions.listen(self.server.ask)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            try:
                yield term
            finally:
                term.end("lost")

    async def add(self, uri: str, term: Term, within: float = 60.0) -> None:
        await self.subscriptions.add(uri, term, self.server.ask, within=within)

    async def remove(self, uri: str) -> None:
        await self.subscriptions.remove(uri, self.server.ask, within=60.0)

    @property
    def listening(self) -> Listening:
        assert self.subscriptions._listening is not None
        return self.subscriptions._listening


def refused(code: int = -32601) -> RemoteError:
    return RemoteError("server", RpcError(code, "no such thing"))


async def test_list_changes_are_listened_for_where_the_server_declares_them() -> None:
    desk = Desk()
    async with desk.connected():
        await desk.listening.settled()
        assert desk.server.listens == [{"toolsListChanged": True}]
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert not desk.subscriptions.tells_changes(Kind.PROMPTS)
        assert not desk.subscriptions.tells_changes(Kind.TEMPLATES)


async def test_without_anything_to_hear_there_is_no_stream() -> None:
    desk = Desk()
    async with desk.connected(capabilities={"tools": {}}):
        await desk.listening.settled()
        assert desk.server.requests == []


async def test_a_handshake_server_tells_of_itself() -> None:
    desk = Desk()
    async with desk.connected(Era.LEGACY):
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.server.requests == []


async def test_the_new_stream_is_open_before_the_old_one_ends() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.add("a", term)
        await desk.add("b", term)
        assert desk.server.overlapping == 2
        await desk.remove("a")
        await anyio.wait_all_tasks_blocked()
        assert len(desk.server.open) == 1
        uris = [wanted.get("resourceSubscriptions") for wanted in desk.server.listens]
        assert uris[-3:] == [["a"], ["a", "b"], ["b"]]
        assert desk.gaps == 0


async def test_the_late_words_of_a_stream_that_has_ended_are_not_heard() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.listening.settled()
        await desk.add("a", term)
        assert [desk.subscriptions.hears(mark) for mark in (1, 2)] == [False, True]


async def test_wishes_at_the_same_time_are_all_granted() -> None:
    desk = Desk()
    async with desk.connected() as term, anyio.create_task_group() as tasks:
        for n in range(10):
            tasks.start_soon(desk.add, str(n), term)
    assert sorted(desk.subscriptions.uris) == [str(n) for n in range(10)]


async def test_what_is_granted_already_is_not_asked_for_again() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.add("a", term)
        listens = len(desk.server.listens)
        await desk.add("a", term)
        assert len(desk.server.listens) == listens


async def test_what_is_not_granted_is_not_wanted_any_more() -> None:
    desk = Desk()
    desk.server.mode = "deaf"
    async with desk.connected() as term:
        with pytest.raises(NotSupported, match="did not accept a subscription to a"):
            await desk.add("a", term)
        assert desk.subscriptions.uris == ()
        await desk.listening.settled()
        assert desk.subscriptions.tells_changes(Kind.TOOLS)


@pytest.mark.parametrize("era", list(Era))
async def test_what_is_not_declared_is_not_asked_for(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era, {"resources": {}}) as term:
        with pytest.raises(NotSupported, match="does not support subscriptions"):
            await desk.add("a", term)
        assert desk.server.requests == []


async def test_a_server_that_knows_no_streams_is_asked_once_per_wish() -> None:
    desk = Desk()
    desk.server.failures = [refused(), refused(), refused()]
    async with desk.connected() as term:
        await desk.listening.settled()
        await anyio.sleep(1000)
        assert len(desk.server.listens) == 1
        with pytest.raises(NotSupported, match="no such thing"):
            await desk.add("a", term)
        assert desk.gaps == 0


async def test_a_refused_wish_leaves_the_stream_as_it_was() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.listening.settled()
        desk.server.failures = [refused(-32602)]
        with pytest.raises(NotSupported):
            await desk.add("a", term)
        await desk.listening.settled()
        assert list(desk.server.open) == [1]
        assert desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.subscriptions.hears(1)


async def test_a_failure_on_the_way_is_told_as_it_was() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.listening.settled()
        desk.server.failures = [ServerUnavailable("the network is gone")]
        with pytest.raises(ServerUnavailable, match="network"):
            await desk.add("a", term)


async def test_a_stream_that_ends_is_opened_again_and_the_gap_is_told() -> None:
    desk = Desk()
    async with desk.connected() as term:
        await desk.add("a", term)
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
    async with desk.connected() as term:
        began = trio.current_time()
        with pytest.raises(CallTimeout, match="did not open its stream"):
            await desk.add("a", term, within=5.0)
        assert trio.current_time() - began == pytest.approx(5.0)
        assert desk.subscriptions.uris == ()
        await anyio.sleep(100)
        assert len(desk.server.open) == 1


async def test_who_waits_for_a_stream_learns_of_the_loss() -> None:
    desk = Desk()
    desk.server.mode = "silent"
    async with desk.connected() as term:

        async def lose() -> None:
            await anyio.sleep(1)
            term.end("it exited.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lose)
            with pytest.raises(ServerDisconnected, match="it exited"):
                await desk.add("a", term)
    assert desk.subscriptions.uris == ()


@pytest.mark.parametrize("era", list(Era))
async def test_everything_is_wanted_again_on_the_next_connection(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era) as term:
        await desk.add("a", term)
        await desk.add("b", term)
        await desk.remove("a")
    desk.server.requests.clear()
    async with desk.connected(era):
        await desk.subscriptions.restore(desk.server.ask, within=60.0)
        if era is Era.LEGACY:
            assert desk.server.requests == [("resources/subscribe", {"uri": "b"})]
        else:
            assert desk.server.listens[-1]["resourceSubscriptions"] == ["b"]
    assert desk.notes == []


@pytest.mark.parametrize("era", list(Era))
async def test_what_is_not_granted_again_is_noted_and_still_wanted(era: Era) -> None:
    desk = Desk()
    async with desk.connected(era) as term:
        await desk.add("a", term)
    desk.server.mode = "deaf"
    desk.server.failures = [refused()] if era is Era.LEGACY else []
    async with desk.connected(era):
        await desk.subscriptions.restore(desk.server.ask, within=60.0)
    assert len(desk.notes) == 1
    assert "the subscription to a was not restored" in desk.notes[0]
    assert desk.subscriptions.uris == ("a",)


async def test_a_connection_that_is_lost_while_it_is_restored_forgets_nothing() -> None:
    desk = Desk()
    async with desk.connected(Era.LEGACY) as term:
        await desk.add("a", term)
    desk.server.failures = [ServerDisconnected("gone")]
    async with desk.connected(Era.LEGACY):
        with pytest.raises(ServerDisconnected):
            await desk.subscriptions.restore(desk.server.ask, within=60.0)
    assert desk.subscriptions.uris == ("a",)


async def test_a_handshake_server_that_has_never_heard_of_it() -> None:
    desk = Desk()
    desk.server.failures = [refused(), refused(), refused(-32000)]
    async with desk.connected(Era.LEGACY) as term:
        with pytest.raises(NotSupported):
            await desk.add("a", term)
        with pytest.raises(NotSupported):
            await desk.remove("a")
        with pytest.raises(RemoteError):
            await desk.add("a", term)
        assert desk.subscriptions.uris == ()


@pytest.mark.parametrize("said", [None, b"7", b"[]", b'{"notifications":7}', b"{}", b"[[[["])
async def test_an_odd_acknowledgement_grants_nothing(said: bytes | None) -> None:
    desk = Desk()
    desk.server.mode = "silent"
    async with desk.connected():
        await anyio.wait_all_tasks_blocked()
        desk.subscriptions.acknowledged(None if said is None else Raw(said))
        await desk.listening.settled()
        assert not desk.subscriptions.tells_changes(Kind.TOOLS)
        assert desk.subscriptions.hears(1)


async def test_an_acknowledgement_that_nobody_waits_for_changes_nothing() -> None:
    desk = Desk()
    desk.subscriptions.acknowledged(Raw(b"{}"))
    desk.term(Era.MODERN)
    desk.subscriptions.acknowledged(Raw(b"{}"))
    assert desk.listening.granted == {}
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
