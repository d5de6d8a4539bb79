"""Over HTTP when all is well: both eras, both transports, and every message valid."""

from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from emceepee_stdio.backends.interface import Era
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.phases import Phase
from tests.e2e.harness import WAIT_S, outgoing
from tests.e2e.http_harness import (
    ONCE,
    QUICK,
    HttpRig,
    http_backend,
    mcp_server,
    until,
)
from tests.e2e.judge import judge_client
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange

LEGACY_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MODERN = "2026-07-28"
SSE = replace(QUICK, sse=True)


def sse_url(server: McpServer) -> str:
    return server.url.replace("/mcp", "/sse")


@asynccontextmanager
async def started(rig: HttpRig, tool: str, **arguments: object) -> Any:
    """A call under way, and what came of it."""
    outcome: list[Any] = []

    async def run() -> None:
        outcome.append(await rig.call(tool, call="the call", **arguments))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield outcome


@pytest.mark.parametrize("answers", ["json", "sse"])
@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_every_handshake_version_is_spoken_and_its_header_sent(
    version: str, answers: str
) -> None:
    async with mcp_server(era="legacy", version=version, answers=answers) as server:
        async with http_backend(server.url) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            assert len(await rig.tools()) == 8
            assert rig.hello() == ("legacy", version)
        seen = judge_client(server.messages()[1:], version)
        assert seen == ["initialize", "notifications/initialized", "tools/call", "tools/list"]
        first, *later = server.exchanges("POST")[1:]
        assert "mcp-protocol-version" not in first.headers
        assert {e.headers["mcp-protocol-version"] for e in later} == {version}


@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_the_modern_era_is_tried_first_and_needs_no_session(answers: str) -> None:
    async with mcp_server(answers=answers) as server:
        async with http_backend(server.url) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            assert len(await rig.tools()) == 8
            assert rig.hello() == ("modern", MODERN)
            session = rig.supervisor.snapshot().session
            assert session is not None
            assert session.upstream_id is None
        seen = judge_client(server.messages(), MODERN)
        assert seen == ["server/discover", "tools/call", "tools/list"]
        assert {e.method for e in server.http.received} == {"POST"}


async def test_a_session_is_named_on_every_request_and_ended_with_us() -> None:
    async with mcp_server(era="legacy") as server:
        async with http_backend(server.url) as rig:
            await rig.text("echo")
            await until(lambda: server.exchanges("GET"))
            session = rig.supervisor.snapshot().session
            assert session is not None
            assert session.upstream_id == server.only_session().name
            assert len(session.proxy_id) == 26
        discover, initialize, *rest = server.http.received
        assert "mcp-session-id" not in discover.headers | initialize.headers
        assert {e.headers["mcp-session-id"] for e in rest} == {session.upstream_id}
        assert server.http.received[-1].method == "DELETE"
        assert server.sessions == {}


async def test_a_server_without_sessions_is_left_without_a_goodbye() -> None:
    async with mcp_server(era="legacy", sessions=False, listening=False) as server:
        async with http_backend(server.url) as rig:
            assert await rig.text("echo", message="hello") == "hello"
        assert server.exchanges("DELETE") == []


async def test_two_backends_of_one_url_have_sessions_of_their_own() -> None:
    async with (
        mcp_server(era="legacy", answers="sse") as server,
        http_backend(server.url) as one,
        http_backend(server.url) as two,
    ):
        await one.text("echo")
        await two.text("echo")
        assert len(server.sessions) == 2
        assert await one.text("tell", n=3) == "told"
        await one.sink.until(lambda: len(one.sink.notifications) == 3)
        await two.text("echo")
        assert two.sink.notifications == []


async def test_progress_comes_in_order_on_the_stream_of_its_call() -> None:
    for era in ("legacy", "modern"):
        async with (
            mcp_server(era=era, answers="sse") as server,
            http_backend(server.url) as rig,
        ):
            assert await rig.progress("progress", steps=5) == ("5 steps", [1, 2, 3, 4, 5])


async def test_a_question_on_the_stream_of_a_call_belongs_to_that_call() -> None:
    async with mcp_server(era="legacy", answers="sse") as server:
        async with http_backend(server.url) as rig, started(rig, "ask") as outcome:
            await rig.sink.until(lambda: rig.sink.questions)
            (question,) = rig.sink.questions
            assert question.call == "the call"
            assert question.respond(b'{"action":"accept","content":{"name":"Ada"}}')
            await until(lambda: outcome)
            assert "Ada" in str(outcome)
        judge_client(server.messages()[1:], "2025-11-25")


async def test_a_question_on_the_listening_stream_belongs_to_no_call() -> None:
    async with (
        mcp_server(era="legacy", answers="json") as server,
        http_backend(server.url) as rig,
        started(rig, "ask_on_get") as outcome,
    ):
        await rig.sink.until(lambda: rig.sink.questions)
        (question,) = rig.sink.questions
        assert question.call is None
        assert question.respond(b'{"action":"decline"}')
        await until(lambda: outcome)
        assert "decline" in str(outcome)


async def test_notifications_come_on_the_listening_stream_in_order() -> None:
    async with mcp_server(era="legacy") as server, http_backend(server.url) as rig:
        await rig.text("tell", n=50)
        await rig.sink.until(lambda: len(rig.sink.notifications) == 50)
        assert [params["n"] for _, params in rig.sink.notifications] == list(range(50))


@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_a_handshake_server_is_told_of_a_call_that_is_taken_back(answers: str) -> None:
    async with mcp_server(era="legacy", answers=answers) as server:
        async with http_backend(server.url) as rig:
            await rig.text("echo")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rig.call, "hang")
                await until(lambda: len(server.messages("tools/call")) == 2)
                tasks.cancel_scope.cancel()
            asked = server.messages("tools/call")[1]["id"]
            await until(lambda: server.cancelled == [asked])
            connection = await rig.connection()
            await until(lambda: connection.statistics() == {"posts": 0, "waiting": 0})
        judge_client(server.messages()[1:], "2025-11-25")


@pytest.mark.parametrize("answers", ["json", "sse"])
async def test_a_modern_server_sees_the_stream_closed_when_a_call_is_taken_back(
    answers: str,
) -> None:
    async with mcp_server(answers=answers) as server, http_backend(server.url) as rig:
        await rig.text("echo")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(rig.call, "hang")
            await until(lambda: len(server.messages("tools/call")) == 2)
            tasks.cancel_scope.cancel()
        asked = server.messages("tools/call")[1]["id"]
        await until(lambda: server.hung_up == [asked])
        assert server.messages("notifications/cancelled") == []


async def test_a_call_taken_back_at_once_is_never_sent() -> None:
    async with mcp_server() as server, http_backend(server.url) as rig:
        connection = await rig.connection()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await connection.request(outgoing("tools/call", {"name": "hang"}))
        await rig.text("echo")
        assert len(server.messages("tools/call")) == 1
        assert connection.statistics() == {"posts": 0, "waiting": 0}


@pytest.mark.parametrize("chosen", [True, False], ids=["chosen", "found"])
async def test_the_older_transport_works_chosen_or_found(chosen: bool) -> None:  # noqa: FBT001
    async with mcp_server() as server:
        options = SSE if chosen else QUICK
        async with http_backend(sse_url(server), options=options) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            assert await rig.progress("progress", steps=3) == ("3 steps", [1, 2, 3])
            async with started(rig, "ask") as outcome:
                await rig.sink.until(lambda: rig.sink.questions)
                assert rig.sink.questions[0].call is None
                rig.sink.questions[0].respond(b'{"action":"cancel"}')
                await until(lambda: outcome)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rig.call, "hang")
                await until(lambda: len(server.messages("tools/call")) == 4)
                tasks.cancel_scope.cancel()
            await until(lambda: server.cancelled)
            assert rig.hello()[0] == "legacy"
        posted = [e.message for e in server.exchanges() if e.path.startswith("/messages")]
        judge_client(posted, "2025-11-25")
        tried = [e for e in server.exchanges() if e.path.startswith("/sse")]
        assert len(tried) == (0 if chosen else 2)


async def test_what_was_found_out_is_used_for_the_next_connection() -> None:
    for path, kind, asked in (
        ("/mcp", "both", ["server/discover"]),
        ("/mcp", "legacy", ["initialize"]),
        ("/sse", "both", ["initialize"]),
    ):
        async with (
            mcp_server(era=kind) as server,
            http_backend(server.url.replace("/mcp", path)) as rig,
        ):
            await rig.text("echo")
            server.http.received.clear()
            await rig.supervisor.reconnect(within=WAIT_S)
            await rig.text("echo")
            asking = [m["method"] for m in server.messages() if "id" in m]
            assert asking == [*asked, "tools/call"]


async def test_what_was_found_out_is_forgotten_when_it_holds_no_longer() -> None:
    async with mcp_server(era="legacy") as server, http_backend(server.url) as rig:
        await rig.text("echo")
        server.era = "modern"
        await rig.supervisor.reconnect(within=WAIT_S)
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.hello()[0] == "modern"
        server.era = "legacy"
        await rig.supervisor.reconnect(within=WAIT_S)
        await rig.text("echo")
        assert rig.hello()[0] == "legacy"


async def test_a_server_that_has_left_the_older_transport_is_found_again() -> None:
    async with mcp_server() as server, http_backend(sse_url(server)) as rig:
        await rig.text("echo")

        async def newer(exchange: Exchange) -> bool:
            exchange.path = "/mcp"
            if exchange.method == "GET":
                await exchange.reply(405)
            return exchange.method == "GET"

        server.before = newer
        with pytest.raises(ProxyError, match="405"):
            await rig.supervisor.reconnect(within=WAIT_S)
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.hello()[0] == "modern"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_era_can_be_chosen(era: str) -> None:
    options = replace(QUICK, era=Era(era))
    async with mcp_server() as server, http_backend(server.url, options=options) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.hello()[0] == era
        other = "server/discover" if era == "legacy" else "initialize"
        assert server.messages(other) == []


@pytest.mark.parametrize(("chosen", "spoken"), [("legacy", "modern"), ("modern", "legacy")])
async def test_the_wrong_choice_of_an_era_is_given_up_with_the_switch_to_turn(
    chosen: str, spoken: str
) -> None:
    options = replace(QUICK, era=Era(chosen))
    async with mcp_server(era=spoken) as server, http_backend(server.url, options=options) as rig:
        with pytest.raises(ProxyError, match=f"Remove era: {chosen}"):
            await rig.supervisor.connection(within=WAIT_S)
        assert rig.supervisor.phase is Phase.FAILED


async def test_a_server_that_is_silent_to_the_modern_question_is_opened_by_handshake() -> None:
    async with mcp_server(era="legacy") as server:

        async def silent(exchange: Exchange) -> bool:
            if exchange.message.get("method") != "server/discover":
                return False
            await until(lambda: exchange.gone)
            return True

        server.before = silent
        options = replace(QUICK, probe=0.2)
        async with http_backend(server.url, options=options) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            connection = await rig.connection()
            assert connection.statistics()["posts"] == 0


async def test_a_discovery_without_a_common_version_leads_to_the_handshake() -> None:
    async with mcp_server() as server:

        async def foreign(exchange: Exchange) -> bool:
            if exchange.message.get("method") != "server/discover":
                return False
            result = {"supportedVersions": ["2099-01-01"], "capabilities": {}}
            await exchange.reply(200, {"jsonrpc": "2.0", "id": 1, "result": result})
            return True

        server.before = foreign
        async with http_backend(server.url) as rig:
            await rig.text("echo")
            assert rig.hello()[0] == "legacy"


def refusing(server: McpServer, times: int, code: int, data: object = None) -> None:
    """Discovery is refused so often, with that error."""

    async def refuse(exchange: Exchange) -> bool:
        nonlocal times
        if exchange.message.get("method") != "server/discover" or not times:
            return False
        times -= 1
        error = {"code": code, "message": "refused", **({} if data is None else {"data": data})}
        await exchange.reply(400, {"jsonrpc": "2.0", "id": exchange.message["id"], "error": error})
        return True

    server.before = refuse


async def test_a_discovery_that_names_our_version_in_its_refusal_is_made_again() -> None:
    async with mcp_server(era="modern") as server:
        refusing(server, 1, -32022, {"supported": [MODERN], "requested": "x"})
        async with http_backend(server.url) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            assert rig.hello()[0] == "modern"
        asked = [m["method"] for m in server.messages()]
        assert asked == ["server/discover", "server/discover", "tools/call"]


@pytest.mark.parametrize(
    ("code", "data"),
    [
        (-32020, None),
        (-32021, {"requiredCapabilities": {"tasks": {}}}),
        (-32022, {"supported": [MODERN]}),
        (-32022, {"supported": ["2099-01-01"]}),
    ],
)
async def test_the_refusal_of_a_modern_server_is_not_answered_with_a_handshake(
    code: int, data: object
) -> None:
    async with mcp_server() as server:
        refusing(server, 9, code, data)
        async with http_backend(server.url) as rig:
            with pytest.raises(ProxyError, match=f"error {code}") as caught:
                await rig.supervisor.connection(within=WAIT_S)
            assert data is None or next(iter(data)) in str(caught.value)
        assert server.messages("initialize") == []


@pytest.mark.parametrize("data", [{"supported": ["2025-11-25"]}, {"supported": []}, None])
async def test_a_refusal_that_names_no_modern_version_is_answered_with_a_handshake(
    data: object,
) -> None:
    async with mcp_server() as server:
        refusing(server, 9, -32022, data)
        async with http_backend(server.url) as rig:
            assert await rig.text("echo", message="hello") == "hello"
            assert rig.hello()[0] == "legacy"


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
async def test_the_headers_of_the_configuration_go_with_every_request(path: str) -> None:
    headers = {"Authorization": "Bearer abc", "X-Team": " blue\n"}
    async with mcp_server(era="legacy") as server:
        url = server.url.replace("/mcp", path)
        async with http_backend(url, headers=headers) as rig:
            await rig.text("echo")
        received = server.http.received
        assert {e.headers["authorization"] for e in received} == {"Bearer abc"}
        assert {e.headers["x-team"] for e in received} == {"blue"}


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
@pytest.mark.parametrize(
    ("headers", "sent"),
    [({}, "Basic bWU6a2V5"), ({"authorization": "Bearer abc"}, "Bearer abc")],
    ids=["alone", "beside a header"],
)
async def test_the_user_in_the_url_is_sent_unless_a_header_says_otherwise(
    path: str, headers: dict[str, str], sent: str
) -> None:
    async with mcp_server(era="legacy") as server:
        url = server.url.replace("/mcp", path).replace("://", "://me:key@")
        async with http_backend(url, headers=headers) as rig:
            await rig.text("echo")
        assert {e.headers["authorization"] for e in server.http.received} == {sent}


async def test_what_the_modern_era_wants_mirrored_is_mirrored() -> None:
    async with mcp_server() as server:
        region = {"type": "string", "x-mcp-header": "Region"}
        deep = {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}
        server.schemas["echo"] = {"type": "object", "properties": {"region": region, "deep": deep}}
        async with http_backend(server.url) as rig:
            await rig.tools()
            await rig.text("echo", region="Zürich", deep={"n": 7})
            await rig.supervisor.reconnect(within=WAIT_S)
            await rig.text("echo", region="west")
        discover, listed, first, again, second = server.exchanges()
        assert discover.headers["mcp-method"] == again.headers["mcp-method"] == "server/discover"
        assert listed.headers["mcp-method"] == "tools/list"
        assert first.headers["mcp-name"] == "echo"
        assert first.headers["mcp-param-region"] == "=?base64?WsO8cmljaA==?="
        assert first.headers["mcp-param-n"] == "7"
        assert second.headers["mcp-param-region"] == "west"
        assert {e.headers["mcp-protocol-version"] for e in server.exchanges()} == {MODERN}


async def test_a_loopback_server_is_never_looked_for_behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    async with mcp_server() as server, http_backend(server.url, restarts=ONCE) as rig:
        assert await rig.text("echo", message="hello") == "hello"
