"""Over HTTP when the server goes and comes back: what is lost, what is resumed, what is left."""

import asyncio
import random
import signal
from dataclasses import replace
from typing import Any

import anyio
import pytest

from emceepee_stdio.backends.backend import Backend, BackendOptions
from emceepee_stdio.backends.channels.http_channel import HttpChannel
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError, ServerDisconnected
from emceepee_stdio.ids import Ids
from tests.e2e.harness import WAIT_S, Recorder
from tests.e2e.http_harness import (
    FOR_EVER,
    QUICK,
    HttpRig,
    fixture,
    http_backend,
    mcp_server,
    nothing_left,
    port_of,
    process,
    until,
)
from tests.e2e.judge import judge_client
from tests.e2e.servers.http_mcp import Call
from tests.e2e.servers.http_wire import Exchange, serving

ONE_LOSS = ["connecting", "connected", "reconnecting", "connected"]


def phases(sink: Recorder) -> list[str]:
    return [what for what in sink.received if what != "attempt failed"]


class Calls:
    """Calls that were started, and how each of them ended."""

    def __init__(self, rig: HttpRig) -> None:
        self._rig = rig
        self.ended: list[Any] = []

    async def make(self, tool: str, **arguments: object) -> None:
        try:
            self.ended.append(await self._rig.call(tool, **arguments))
        except ProxyError as error:
            self.ended.append(error)


async def call_until_it_works(rig: HttpRig) -> list[str]:
    """The codes of the errors until a call succeeds."""
    codes: list[str] = []
    with anyio.fail_after(WAIT_S):
        while True:
            try:
                assert await rig.text("echo", message="hello") == "hello"
            except ProxyError as error:
                codes.append(error.code)
                await anyio.sleep(0.05)
            else:
                return codes


@pytest.mark.parametrize(
    ("path", "era", "seconds"),
    [
        ("/mcp", "legacy", 1),
        ("/mcp", "modern", 1),
        ("/sse", "legacy", 1),
        pytest.param("/mcp", "legacy", 15, marks=pytest.mark.slow),
        pytest.param("/mcp", "modern", 15, marks=pytest.mark.slow),
    ],
)
async def test_a_server_that_is_away_for_a_while_costs_one_loss_and_one_reconnect(
    era: str, seconds: float, path: str
) -> None:
    async with mcp_server(era=era) as server, http_backend(server.url.replace("/mcp", path)) as rig:
        await rig.text("echo")
        calls = Calls(rig)
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(calls.make, "hang")
            await until(lambda: len(server.messages("tools/call")) == 4)
            await server.http.stop()
            server.sessions.clear()
            await until(lambda: len(calls.ended) == 3)
            tasks.start_soon(calls.make, "echo")
            await anyio.sleep(seconds)
            await until(lambda: len(calls.ended) == 4)
            await server.http.start()
        codes = await call_until_it_works(rig)
        assert set(codes) <= {"server_unavailable", "server_disconnected"}
        assert all(isinstance(ended, ProxyError) for ended in calls.ended)
        assert phases(rig.sink) == ONE_LOSS


async def test_a_server_process_that_is_killed_and_started_again_is_found_again() -> None:
    async with process(fixture("--era", "legacy")) as child:
        port = await port_of(child)
        async with http_backend(f"http://127.0.0.1:{port}/mcp") as rig:
            await rig.text("echo")
            child.kill()
            with pytest.raises(ProxyError):
                await rig.call("echo")
            async with process(fixture("--era", "legacy", "--port", str(port))) as second:
                assert await port_of(second) == port
                await call_until_it_works(rig)
                assert phases(rig.sink) == ONE_LOSS


async def test_a_server_away_without_a_call_is_noticed_by_the_listening_stream() -> None:
    async with mcp_server(era="legacy") as server, http_backend(server.url) as rig:
        await rig.text("echo")
        await until(lambda: server.exchanges("GET"))
        await server.http.stop()
        await rig.sink.until(lambda: "reconnecting" in rig.sink.received)
        (loss,) = [change.loss for change in rig.sink.changes if change.loss]
        assert "cannot be reached any more" in loss.fact
        assert "refused" in loss.fact
        server.sessions.clear()
        await server.http.start()
        await rig.sink.until(lambda: phases(rig.sink) == ONE_LOSS)


async def test_a_lost_stream_is_looked_into_at_once_not_when_it_is_opened_again() -> None:
    never = replace(QUICK, reopen=3600.0, reopen_cap=3600.0)
    async with (
        mcp_server(era="legacy", retry_ms=None) as server,
        http_backend(server.url, options=never) as rig,
    ):
        await until(lambda: server.exchanges("GET"))
        await server.http.stop()
        await rig.sink.until(lambda: "reconnecting" in rig.sink.received)
        server.sessions.clear()
        await server.http.start()
        await rig.sink.until(lambda: phases(rig.sink) == ONE_LOSS)


async def test_a_server_of_the_older_transport_that_cannot_be_spoken_to_is_lost() -> None:
    """Its stream may stay open for ever: half a connection is none."""
    async with mcp_server() as server:
        url = server.url.replace("/mcp", "/sse")
        async with http_backend(url, options=replace(QUICK, sse=True)) as rig:
            await rig.text("echo")
            (stream,) = server.exchanges("GET")
            server.http.refuse(keep=stream)
            with pytest.raises(ProxyError, match="could not be reached"):
                await rig.text("echo")
            await rig.sink.until(lambda: "reconnecting" in rig.sink.received)
            await server.http.stop()
            await server.http.start()
            await rig.sink.until(lambda: phases(rig.sink) == ONE_LOSS)


async def knows_no_session(exchange: Exchange) -> None:
    """What many servers answer, where 404 would be right."""
    error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
    await exchange.reply(400, {"jsonrpc": "2.0", "error": error, "id": None})


@pytest.mark.parametrize("status", [404, 400])
async def test_a_forgotten_session_is_replaced_once_and_the_calls_in_it_end(status: int) -> None:
    async with mcp_server(era="legacy", answers="sse") as server:

        async def forget(exchange: Exchange) -> bool:
            named = exchange.headers.get("mcp-session-id")
            if status == 404 or exchange.method != "POST" or not named or named in server.sessions:
                return False
            await knows_no_session(exchange)
            return True

        server.before = forget
        async with http_backend(server.url) as rig:
            await rig.text("echo")
            old = server.only_session().name
            calls = Calls(rig)
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(calls.make, "hang")
                await until(lambda: len(server.messages("tools/call")) == 4)
                server.sessions.clear()
                with pytest.raises(ProxyError):
                    await rig.text("echo")
            assert [type(ended) for ended in calls.ended] == [ServerDisconnected] * 3
            assert "forgotten the session" in str(calls.ended[0])
            assert await rig.text("echo", message="hello") == "hello"
            assert phases(rig.sink) == ONE_LOSS
            assert server.only_session().name != old
        assert len(server.messages("initialize")) == 2
        judge_client(server.messages()[1:], "2025-11-25")


async def test_a_bad_request_in_a_living_session_is_only_that() -> None:
    async with mcp_server(era="legacy") as server, http_backend(server.url) as rig:

        async def bad(call: Call) -> None:
            await knows_no_session(call.exchange)

        server.tools["bad"] = bad
        with pytest.raises(CallFailed, match="No valid session"):
            await rig.call("bad")
        await until(lambda: server.messages("ping"))
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.sink.received == ["connecting", "connected"]


async def test_after_a_new_session_the_lists_are_read_again() -> None:
    async with mcp_server(era="legacy") as server:
        clock, sink = Clock(), Recorder()
        async with anyio.create_task_group() as tasks:
            link = Backend(
                "server",
                lambda emit: HttpChannel(
                    "server", server.url, emit=emit, clock=clock, ids=Ids(clock), options=QUICK
                ),
                emit=sink.take,
                clock=clock,
                uniform=random.uniform,
                tasks=tasks,
                options=BackendOptions(restarts=FOR_EVER),
            )
            tasks.start_soon(link.run)
            await link.list_all("tools", within=WAIT_S)
            server.sessions.clear()
            server.tools["new"] = server.tools["echo"]
            await link.call_tool("echo", {}, within=WAIT_S)
            await sink.until(lambda: sink.differing)
            assert sink.differing == [["tools"]]
            assert phases(sink) == [*ONE_LOSS, "lists differ tools"]
            await link.stop()


async def test_a_stream_that_is_cut_is_taken_up_where_it_was() -> None:
    async with mcp_server(era="legacy", answers="sse") as server, http_backend(server.url) as rig:
        assert await rig.progress("cut") == ("after the cut", [1, 2])
        resumed = [e for e in server.exchanges("GET") if "last-event-id" in e.headers]
        assert [e.headers["last-event-id"].partition("/")[2] for e in resumed] == ["0"]
        assert rig.sink.received == ["connecting", "connected"]
        assert len(server.messages("tools/call")) == 1


async def test_a_stream_that_is_taken_up_later_waits_for_the_server() -> None:
    refused: list[int] = []
    async with mcp_server(era="legacy", answers="sse") as server:

        async def busy(exchange: Exchange) -> bool:
            if "last-event-id" not in exchange.headers or len(refused) == 3:
                return False
            refused.append(503)
            await exchange.reply(503)
            return True

        server.before = busy
        async with http_backend(server.url) as rig:
            assert await rig.progress("cut") == ("after the cut", [1, 2])
            assert len(refused) == 3


async def test_a_stream_without_ids_that_is_cut_ends_its_call_and_no_more() -> None:
    async with (
        mcp_server(era="legacy", answers="sse", event_ids=False) as server,
        http_backend(server.url) as rig,
    ):
        await rig.text("echo")
        with pytest.raises(CallFailed, match="ended the stream before") as caught:
            await rig.progress("cut")
        assert "may have been carried out" in caught.value.next_step
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.sink.received == ["connecting", "connected"]
        assert len(server.messages("tools/call")) == 3


async def test_the_listening_stream_is_opened_again_and_misses_nothing() -> None:
    dropped: list[str] = []
    async with mcp_server(era="legacy") as server, http_backend(server.url) as rig:
        await rig.text("tell", n=3)
        await rig.sink.until(lambda: len(rig.sink.notifications) == 3)

        async def no_listening(exchange: Exchange) -> bool:
            if exchange.method == "GET":
                dropped.append(exchange.headers["last-event-id"])
                exchange.drop()
            return exchange.method == "GET"

        server.before = no_listening
        server.exchanges("GET")[0].drop()
        await until(lambda: len(dropped) >= 5)
        for n in range(3, 10):
            server.only_session().log.add({"method": "n", "params": {"n": n}})
        await until(lambda: len(dropped) >= 8)
        server.before = None
        await rig.sink.until(lambda: len(rig.sink.notifications) == 10)
        assert [params["n"] for _, params in rig.sink.notifications] == list(range(10))
        assert rig.sink.received == ["connecting", "connected"]
        assert len(set(dropped)) == 1


async def test_a_server_that_knows_no_listening_is_not_asked_twice() -> None:
    for status in (404, 405):
        async with mcp_server(era="legacy") as server:

            async def refuse(exchange: Exchange, status: int = status) -> bool:
                if exchange.method == "GET":
                    await exchange.reply(status)
                return exchange.method == "GET"

            server.before = refuse
            async with http_backend(server.url) as rig:
                await rig.text("echo")
                await until(lambda: server.exchanges("GET"))
                for _ in range(20):
                    await rig.text("echo")
                assert rig.sink.received == ["connecting", "connected"]
                assert len(server.exchanges("GET")) == 1


async def test_of_fifty_calls_at_once_one_may_fail() -> None:
    for era, answers in (("legacy", "sse"), ("modern", "json")):
        async with mcp_server(era=era, answers=answers) as server, http_backend(server.url) as rig:
            await rig.text("echo")
            gate = asyncio.Event()

            async def gated(call: Call, gate: asyncio.Event = gate) -> str:
                if call.arguments["n"] == 17:
                    call.exchange.drop()
                await gate.wait()
                return str(call.arguments["n"])

            server.tools["gated"] = gated
            server.event_ids = False
            calls = Calls(rig)
            async with anyio.create_task_group() as tasks:
                for n in range(50):
                    tasks.start_soon(lambda n=n, calls=calls: calls.make("gated", n=n))
                await until(lambda calls=calls: len(calls.ended) == 1)
                gate.set()
            failed = [ended for ended in calls.ended if isinstance(ended, ProxyError)]
            texts = [e["content"][0]["text"] for e in calls.ended if isinstance(e, dict)]
            assert len(failed) == 1
            assert sorted(map(int, texts)) == [n for n in range(50) if n != 17]
            assert rig.sink.received == ["connecting", "connected"]


async def test_an_event_of_five_megabytes_is_one_result() -> None:
    async with mcp_server(answers="sse") as server, http_backend(server.url) as rig:
        assert len(await rig.text("big", bytes=5_000_000)) == 5_000_000


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_that_is_stopped_and_continued_has_lost_nothing(era: str) -> None:
    async with process(fixture("--era", era, "--answers", "sse")) as child:
        port = await port_of(child)
        options = replace(QUICK, probe=1.5)
        async with http_backend(f"http://127.0.0.1:{port}/mcp", options=options) as rig:
            await rig.text("echo")
            calls = Calls(rig)
            async with anyio.create_task_group() as tasks:
                child.send_signal(signal.SIGSTOP)
                for n in range(10):
                    tasks.start_soon(lambda n=n: calls.make("echo", message=str(n)))
                await anyio.sleep(2)
                connection = await rig.connection()
                connection._suspect()
                assert calls.ended == []
                await anyio.sleep(2)
                child.send_signal(signal.SIGCONT)
            texts = [ended["content"][0]["text"] for ended in calls.ended]
            assert sorted(texts) == [str(n) for n in range(10)]
            assert rig.sink.received == ["connecting", "connected"]


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_stopping_ends_every_call_and_leaves_nothing(era: str, path: str) -> None:
    async with (
        mcp_server(era=era, answers="sse") as server,
        http_backend(server.url.replace("/mcp", path)) as rig,
    ):
        await rig.text("echo")
        calls = Calls(rig)
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(calls.make, "hang")
            await until(lambda: len(server.messages("tools/call")) == 6)
            await rig.supervisor.stop()
        assert [type(ended) for ended in calls.ended] == [ServerDisconnected] * 5
        assert rig.sink.received == ["connecting", "connected", "disconnected"]


async def test_a_server_that_does_not_answer_the_goodbye_holds_nobody_up() -> None:
    async with mcp_server(era="legacy") as server:

        async def deaf(exchange: Exchange) -> bool:
            if exchange.method != "DELETE":
                return False
            await until(lambda: exchange.gone)
            return True

        server.before = deaf
        async with http_backend(server.url) as rig:
            await rig.text("echo")
        assert len(server.exchanges("DELETE")) == 1


@pytest.mark.parametrize(
    "silent_to", ["server/discover", "initialize", "notifications/initialized"]
)
async def test_an_opening_can_be_stopped_at_any_point(silent_to: str) -> None:
    async with mcp_server(era="legacy") as server:

        async def silent(exchange: Exchange) -> bool:
            if exchange.message.get("method") != silent_to:
                return False
            await until(lambda: exchange.gone)
            return True

        server.before = silent
        async with http_backend(server.url) as rig:
            await until(lambda: server.messages(silent_to))
            await rig.supervisor.stop()
            assert rig.sink.received == ["connecting", "disconnected"]
        assert server.sessions == {}


async def test_an_opening_of_the_older_transport_can_be_stopped() -> None:
    async def stream(exchange: Exchange) -> None:
        await exchange.stream()
        await until(lambda: exchange.gone)

    async with (
        nothing_left(),
        serving(stream) as server,
        http_backend(server.url, options=replace(QUICK, sse=True)) as rig,
    ):
        await until(lambda: server.received)
        await rig.supervisor.stop()


async def test_a_session_that_cannot_be_used_is_ended_all_the_same() -> None:
    async with mcp_server(era="legacy", version="1999-01-01") as server:
        async with http_backend(server.url) as rig:
            with pytest.raises(ProxyError, match="1999-01-01"):
                await rig.supervisor.connection(within=WAIT_S)
        assert server.sessions == {}
        assert len(server.exchanges("DELETE")) == 1


async def test_an_answer_of_ours_that_is_refused_for_now_is_delivered_later() -> None:
    """A question is answered once: were the answer lost, the call would hang."""
    refused: list[int] = []
    async with mcp_server(era="legacy", answers="sse") as server:

        async def busy(exchange: Exchange) -> bool:
            if "result" not in exchange.message or refused:
                return False
            refused.append(503)
            await exchange.reply(503, retry_after="0")
            return True

        server.before = busy
        async with http_backend(server.url) as rig:
            calls = Calls(rig)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(calls.make, "ask")
                await rig.sink.until(lambda: rig.sink.questions)
                rig.sink.questions[0].respond(b'{"action":"decline"}')
            assert "decline" in str(calls.ended)
            assert refused == [503]
