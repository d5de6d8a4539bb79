"""What the protocol asks of whoever stands between a client and a server, end to end."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Setting, both_backends, heard_by_server, proxy, server
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
            answer = await client.call("add_server", name="s", url=server.url)
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
        [call] = [
            line["message"]["params"]
            for line in heard_by_server(log)
            if line["message"].get("method") == "tools/call"
        ]
        passed = {k: call["_meta"][k] for k in ("traceparent", "claudecode/toolUseId")}
        assert passed == {k: meta[k] for k in passed}
        assert "io.modelcontextprotocol/novel" not in call["_meta"]
        assert call["_meta"]["progressToken"] != 7


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
