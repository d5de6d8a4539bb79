"""What the protocol asks of whoever stands between a client and a server, end to end."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import (
    Client,
    Setting,
    both_backends,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange

REGION = {"type": "string", "x-mcp-header": "Region"}


def behind(tmp_path: Path, url: str, **more: Any) -> Setting:
    return Setting(home=tmp_path / "home", servers={"s": {"url": url}}, **more)


def wants_region(server: McpServer) -> None:
    """Calls of echo are refused without the header that its schema asks for."""
    server.schemas["echo"] = {"type": "object", "properties": {"region": REGION}}

    async def look(exchange: Exchange) -> bool:
        message = exchange.message
        if message.get("method") != "tools/call" or "mcp-param-region" in exchange.headers:
            return False
        error = {"code": -32020, "message": "Header mismatch"}
        await exchange.reply(400, {"jsonrpc": "2.0", "id": message["id"], "error": error})
        return True

    server.before = look


async def test_a_cold_call_has_the_headers_that_only_the_list_tells_of(tmp_path: Path) -> None:
    async with mcp_server(era="modern") as server:
        wants_region(server)
        async with proxy(behind(tmp_path, server.url)) as client:
            answer = await client.execute("echo", args={"message": "hello", "region": "west"})
            assert answer.text == "hello"
        asked = [m["method"] for m in server.messages()]
        assert asked == ["server/discover", "tools/list", "tools/call"]


async def test_a_call_without_the_argument_of_a_header_is_refused_once_more_and_no_more(
    tmp_path: Path,
) -> None:
    async with mcp_server(era="modern") as server:
        wants_region(server)
        async with proxy(behind(tmp_path, server.url)) as client:
            answer = await client.execute("echo", args={"message": "hello"})
            assert "-32020" in answer.text
        assert len(server.messages("tools/call")) == 2


async def test_a_tool_with_a_header_out_of_place_is_not_listed_over_http(tmp_path: Path) -> None:
    wrong = [
        {"type": "string", "x-mcp-header": "with space"},
        {"type": "string", "x-mcp-header": ""},
        {"type": "object", "x-mcp-header": "Region"},
        {"type": "array", "items": REGION},
    ]
    async with mcp_server(era="modern") as server:
        good = {"region": REGION}
        server.schemas["echo"] = {"type": "object", "properties": good}
        for name, schema in zip(("hang", "ask", "big", "tell"), wrong, strict=True):
            server.schemas[name] = {"type": "object", "properties": {"region": schema}}
        async with proxy(behind(tmp_path, server.url)) as client:
            listed = (await client.call("list_tools", detail="names")).text
            assert "echo" in listed
            assert not any(f'"{name}"' in listed for name in ("hang", "ask", "big", "tell"))
            logs = (await client.call("get_logs", server="s")).text
            assert "x-mcp-header" in logs


@pytest.mark.parametrize("status", [404, 400])
async def test_a_call_that_a_forgotten_session_refused_is_made_on_a_new_one(
    tmp_path: Path, status: int
) -> None:
    async with mcp_server(era="legacy") as server:

        async def forget(exchange: Exchange) -> bool:
            known = exchange.headers.get("mcp-session-id")
            if exchange.method != "POST" or known is None or known in server.sessions:
                return False
            await exchange.reply(status, {"error": "no such session"})
            return True

        server.before = forget
        async with proxy(behind(tmp_path, server.url)) as client:
            assert (await client.execute("echo", args={"message": "one"})).text == "one"
            server.sessions.clear()
            answer = await client.execute("echo", args={"message": "two"})
            assert answer.text == "two"
            server.sessions.clear()
            read = await client.call("list_tools", server="s", detail="names")
            assert "echo" in read.text


@pytest.mark.parametrize("status", [404, 400])
async def test_every_call_that_a_forgotten_session_refused_is_made_on_a_new_one(
    tmp_path: Path, status: int
) -> None:
    """They are refused one after the other: the first refusal says nothing of the others."""
    async with mcp_server(era="legacy") as server:
        refused: list[Exchange] = []

        async def forget(exchange: Exchange) -> bool:
            known = exchange.headers.get("mcp-session-id")
            if exchange.method != "POST" or known is None or known in server.sessions:
                return False
            if exchange.message.get("method") == "tools/call":
                refused.append(exchange)
                place = len(refused)
                await until(lambda: len(refused) == 5)
                await asyncio.sleep(0.05 * place)  # a server that takes its time
            await exchange.reply(status, {"error": "no such session"})
            return True

        server.before = forget
        async with proxy(behind(tmp_path, server.url)) as client:
            assert (await client.execute("echo", args={"message": "first"})).text == "first"
            server.sessions.clear()
            wanted = [str(n) for n in range(5)]
            calls = [await client.begin_execute("echo", args={"message": n}) for n in wanted]
            assert [(await call.answer()).text for call in calls] == wanted
        assert len(server.messages("initialize")) == 2


async def test_a_server_that_forgets_every_session_is_asked_twice_and_no_more(
    tmp_path: Path,
) -> None:
    async with mcp_server(era="legacy") as server:

        async def forget(exchange: Exchange) -> bool:
            if exchange.method == "POST" and exchange.message.get("method") == "tools/call":
                server.sessions.clear()
            return False

        server.before = forget
        async with proxy(behind(tmp_path, server.url)) as client:
            answer = await client.execute("echo", args={"message": "one"})
            assert answer.is_error
            assert "has forgotten the session" in answer.text
            assert "may or may not" not in answer.text
        assert len(server.messages("tools/call")) == 2


async def test_a_call_that_was_not_taken_is_not_made_again_with_a_tool_that_nobody_has_seen(
    tmp_path: Path,
) -> None:
    async with mcp_server(era="legacy") as server:
        setting = behind(tmp_path, server.url, more={"policy": {"pin": "enforce"}})
        async with proxy(setting) as client:
            assert (await client.execute("echo", args={"message": "one"})).text == "one"
            server.schemas["echo"] = {"type": "object", "properties": {"key": {"type": "string"}}}
            server.sessions.clear()
            answer = await client.execute("echo", args={"message": "two"})
            assert answer.is_error
            assert "[needs_approval]" in answer.text
        assert [m["params"]["arguments"]["message"] for m in server.messages("tools/call")] == [
            "one",
            "two",
        ]
        assert [call.arguments["message"] for call in server.calls.values()] == ["one"]


async def test_a_log_level_that_a_forgotten_session_refused_is_set_in_the_new_one(
    tmp_path: Path,
) -> None:
    async with mcp_server(era="legacy") as server:
        async with proxy(behind(tmp_path, server.url)) as client:
            assert (await client.execute("echo", args={"message": "one"})).text == "one"
            server.sessions.clear()
            answer = await client.call("set_log_level", server="s", level="info")
            assert not answer.is_error, answer.text
        assert len(server.messages("logging/setLevel")) == 2


async def test_a_call_to_a_server_that_is_away_is_not_said_to_have_been_made(
    tmp_path: Path,
) -> None:
    async with mcp_server(era="legacy", listening=False) as server:
        async with proxy(behind(tmp_path, server.url)) as client:
            assert (await client.execute("echo", args={"message": "one"})).text == "one"
            await server.http.stop()
            answer = await client.execute("echo", args={"message": "two"})
            assert answer.is_error
            assert "could not be reached" in answer.text
            assert "may or may not" not in answer.text
            await server.http.start()
        assert len(server.messages("tools/call")) == 1


async def test_a_refusal_for_want_of_credentials_says_what_would_do(tmp_path: Path) -> None:
    async with mcp_server() as server:

        async def refuse(exchange: Exchange) -> bool:
            asked = (
                'Bearer error="invalid_token", scope="files:read files:write", '
                'resource_metadata="https://example.com/.well-known/oauth-protected-resource"'
            )
            await exchange.reply(401, {"error": "no token"}, www_authenticate=asked)
            return True

        server.before = refuse
        async with proxy(Setting(home=tmp_path / "home")) as client:
            given = {"Authorization": "Bearer quiet-river"}
            answer = await client.call("add_server", name="s", url=server.url, headers=given)
            assert "scope files:read files:write" in answer.text
            assert "resource_metadata https://example.com/.well-known" in answer.text


@both_backends
async def test_what_a_client_says_beside_its_call_reaches_the_server(
    tmp_path: Path, era: str
) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era, log=log)})
    async with proxy(setting) as client:
        await client.connected()
        meta = {
            "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "claudecode/toolUseId": {"deep": [1]},
            "progressToken": 7,
            "io.modelcontextprotocol/novel": "ours",
        }
        arguments = {"server": "s", "tool": "echo", "args": {"message": "hello"}}
        await _called(client, {"name": "execute_tool", "arguments": arguments, "_meta": meta})
        [call] = asked(log, "tools/call")
        assert passed_on(call) == passed_on({"_meta": meta})
        assert "io.modelcontextprotocol/novel" not in call["_meta"]
        assert call["_meta"]["progressToken"] != 7


@both_backends
@pytest.mark.parametrize(
    ("tool", "arguments", "method"),
    [
        ("read_resource", {"uri": "fixture://one"}, "resources/read"),
        ("get_prompt", {"name": "greet", "arguments": {"name": "Ada"}}, "prompts/get"),
        ("complete_argument", {"prompt": "greet", "argument": "name"}, "completion/complete"),
    ],
)
async def test_what_a_client_says_beside_other_requests_reaches_the_server_too(
    tmp_path: Path, era: str, tool: str, arguments: dict[str, Any], method: str
) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era, log=log)})
    async with proxy(setting) as client:
        await client.connected()
        meta = {"traceparent": "00-0af7-b7ad-01", "io.modelcontextprotocol/novel": "ours"}
        call = {"name": tool, "arguments": {"server": "s", **arguments}, "_meta": meta}
        await _called(client, call)
        [request] = asked(log, method)
        assert request["_meta"]["traceparent"] == meta["traceparent"]
        assert "io.modelcontextprotocol/novel" not in request["_meta"]


async def test_a_call_that_needs_a_url_is_made_again_when_the_person_has_been_there(
    tmp_path: Path,
) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(log=log)})
    async with proxy(setting) as client:
        await client.connected()
        asking = await client.execute("visit_first")
        [shown] = asking.pending["elicitations"]
        assert shown["url"] == "https://example.com/sign-in"
        assert shown["elicitation_id"] == "e-1"
        answer = {"request_id": shown["request_id"], "action": "accept"}
        await client.call("respond_to_elicitation", **answer)
        await client.execute("echo", args={"message": "in the meantime"})
        await client.execute("finish_visit")
        told = await client.until_event("notification", method="notifications/elicitation/complete")
        assert told["data"]["params"] == {"elicitationId": shown["elicitation_id"]}
        result = await client.call("get_task_result", task_id=asking.task)
        assert result.text == "visited"
    called = [call["name"] for call in asked(log, "tools/call")]
    assert called == ["visit_first", "echo", "finish_visit", "visit_first"]


@both_backends
async def test_an_error_of_a_server_is_told_with_its_data(tmp_path: Path, era: str) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)})
    async with proxy(setting) as client:
        await client.connected()
        answer = await client.execute("rpc_error", args={"code": -32050})
        assert answer.is_error
        assert 'error -32050 as asked Its data: {"asked":-32050}' in answer.text


@both_backends
async def test_what_a_text_resource_says_of_itself_goes_with_the_text(
    tmp_path: Path, era: str
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)})
    async with proxy(setting) as client:
        await client.connected()
        [block] = (await client.call("read_resource", server="s", uri="fixture://item/7")).blocks
        about = {"uri": "fixture://item/7", "mimeType": "text/plain"}
        assert block["_meta"] == {"emceepee/resource": about}


def asked(log: Path, method: str) -> list[dict[str, Any]]:
    """The params of what the server was asked."""
    received = [line["message"] for line in received_by_server(log)]
    return [message["params"] for message in received if message.get("method") == method]


def passed_on(params: dict[str, Any]) -> dict[str, Any]:
    return {key: params["_meta"][key] for key in ("traceparent", "claudecode/toolUseId")}


async def _called(client: Client, params: dict[str, Any]) -> None:
    result = await client.request("tools/call", params)
    assert not result.get("isError"), json.dumps(result)


async def test_a_server_that_prints_something_else_is_told_with_what_it_printed(
    tmp_path: Path,
) -> None:
    made = Setting(home=tmp_path / "home", timeouts={"client_ceiling_ms": 1500})
    async with proxy(made) as client:
        script = "import time; print('Usage: tool [OPTIONS]', flush=True); time.sleep(60)"
        answer = await client.call(
            "add_server", name="s", command=sys.executable, args=["-c", script]
        )
        assert "still connecting" in answer.text
        assert answer.json["printed"] == ["Usage: tool [OPTIONS]"]
