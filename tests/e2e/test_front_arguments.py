import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Answer, Client, Setting, both_eras, proxy, server

ULID = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
HUGE = "x" * 300_000
WRONG: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("get_task", {"task_id": ULID}, "task_not_found", [ULID]),
    ("get_task_result", {"task_id": ULID}, "task_not_found", [ULID]),
    ("cancel_task", {"task_id": ULID}, "task_not_found", [ULID]),
    ("get_timer", {"timer_id": ULID}, "timer_not_found", [ULID]),
    ("delete_timer", {"timer_id": ULID}, "timer_not_found", [ULID]),
    ("respond_to_elicitation", {"request_id": ULID, "action": "cancel"}, "request_not_found", []),
    ("respond_to_sampling", {"request_id": ULID, "content": "x"}, "request_not_found", []),
    ("execute_tool", {"server": "z", "tool": "echo"}, "server_not_found", ["z"]),
    ("execute_tool", {"server": "s", "tool": "ecko"}, "tool_not_found", ["ecko", "echo"]),
    ("execute_tool", {"server": "S", "tool": "echo"}, "server_not_found", ["s"]),
    ("read_resource", {"server": "z", "uri": "x://1"}, "server_not_found", []),
    ("read_resource", {"server": "s", "uri": "x://1"}, "resource_not_found", ["x://1"]),
    ("remove_server", {"name": "z"}, "server_not_found", []),
    ("get_task", {}, "invalid_arguments", ["task_id", "missing"]),
    ("get_task", {"task_id": 7}, "invalid_arguments", ["task_id", "int", "str"]),
    ("get_task", {"task_id": None}, "invalid_arguments", ["task_id", "null", "str"]),
    ("get_task", {"taskId": ULID}, "invalid_arguments", ["taskId", "task_id"]),
    ("get_task", {"task_id": ULID, "extra": 1}, "invalid_arguments", ["extra", "task_id"]),
    ("get_task", {"task_id": HUGE}, "task_not_found", []),
    ("get_task", {HUGE: 1}, "invalid_arguments", []),
    ("get_task", {"a\nb": 1}, "invalid_arguments", ["task_id"]),
    ("set_timer", {"duration_ms": 0, "message": "x"}, "invalid_arguments", ["duration_ms"]),
    ("set_timer", {"duration_ms": "5", "message": "x"}, "invalid_arguments", ["duration_ms"]),
    ("set_timer", {"duration_ms": True, "message": "x"}, "invalid_arguments", ["duration_ms"]),
    ("set_timer", {"duration_ms": 10**30, "message": "x"}, "invalid_arguments", ["duration_ms"]),
    ("set_timer", {"duration_ms": 1.5, "message": "x"}, "invalid_arguments", ["duration_ms"]),
    ("set_timer", {"duration_ms": 5, "message": ""}, "invalid_arguments", ["message"]),
    ("set_timer", {"duration_ms": 5, "message": HUGE}, "invalid_arguments", ["message", "500"]),
    ("set_timer", {"duration_ms": 5}, "invalid_arguments", ["message", "missing"]),
    ("await_activity", {"timeout_ms": -1}, "invalid_arguments", ["timeout_ms"]),
    ("await_activity", {"timeout_ms": 10**9}, "invalid_arguments", ["timeout_ms"]),
    ("list_tasks", {"status": "done"}, "invalid_arguments", ["status", "done"]),
    ("list_servers", {"server": "s"}, "invalid_arguments", ["server", "known are: name"]),
    ("list_servers", {"name": "nobody"}, "server_not_found", ["nobody"]),
    ("respond_to_elicitation", {"request_id": ULID, "action": "yes"}, "invalid_arguments", ["yes"]),
    (
        "respond_to_elicitation",
        {"request_id": ULID, "action": "accept", "content": "text"},
        "invalid_arguments",
        ["content", "str", "object"],
    ),
    ("add_server", {"name": "p", "command": "x", "args": "y"}, "invalid_arguments", ["args"]),
    ("add_server", {"name": "p", "command": "x", "args": [1]}, "invalid_arguments", ["args", "0"]),
    ("add_server", {"name": "p", "command": "x", "env": {"A": 1}}, "invalid_arguments", ["env"]),
    (
        "add_server",
        {"name": "p", "command": "x", "restart": {"tries": 1}},
        "invalid_arguments",
        ["tries", "restart"],
    ),
    ("execute_tool", {"server": "s"}, "invalid_arguments", ["tool", "missing"]),
    ("execute_tool", {"server": "s", "tool": "echo", "args": [1]}, "invalid_arguments", ["object"]),
    ("execute_tool", {"server": "s", "tool": "echo", "args": 5}, "invalid_arguments", ["object"]),
    ("execute_tool", {"server": "s", "tool": "echo", "args": "{"}, "invalid_arguments", ["string"]),
    ("execute_tool", {"server": "s", "tool": "echo", "massage": 1}, "invalid_arguments", []),
    ("execute_tool", {"server": "s", "tool": HUGE}, "tool_not_found", []),
    ("execute_tool", {"server": HUGE, "tool": "echo"}, "server_not_found", []),
    ("execute_tool", {"server": "s", "tool": "echo", "timeout_ms": 10**7}, "invalid_arguments", []),
]


async def refused(client: Client, tool: str, arguments: Any) -> Answer:
    pending = await client.begin("tools/call", {"name": tool, "arguments": arguments})
    return await pending.answer()


@both_eras
async def test_a_mistake_in_the_arguments_is_told_so_that_it_can_be_mended(
    tmp_path: Path, *, modern: bool
) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        for tool, arguments, code, words in WRONG:
            answer = await refused(client, tool, arguments)
            case = (tool, json.dumps(arguments)[:100], answer)
            assert answer.is_error, case
            assert f"[{code}]" in answer.text, case
            assert all(word in answer.text for word in words), case
            assert len(answer.text) <= 8_000, case
            assert len(answer.blocks) == 1, case
        await client.quiet()
        assert await client.request("tools/list")


@both_eras
@pytest.mark.parametrize("arguments", [[], "text", 7, True, [{"task_id": ULID}]])
async def test_arguments_that_are_no_object_are_refused(
    tmp_path: Path, arguments: Any, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        names = [tool["name"] for tool in (await client.request("tools/list"))["tools"]]
        for name in names:
            answer = await refused(client, name, arguments)
            assert answer.is_error
            assert "[invalid_arguments]" in answer.text
            assert name in answer.text
            assert "object" in answer.text
        await client.quiet()


@both_eras
async def test_no_arguments_are_as_good_as_none(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        for params in ({}, {"arguments": {}}, {"arguments": None}):
            answer = await client.begin("tools/call", {"name": "list_servers", **params})
            assert (await answer.answer()).json == {"servers": []}


async def test_deep_and_odd_json_ends_nothing(tmp_path: Path) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server()})
    async with proxy(setting) as client:
        await client.connected()
        deep = b"[" * 50_000 + b"]" * 50_000
        odd = [
            b'{"server":"s","tool":"echo","args":%b}' % deep,
            b'{"server":"s","tool":"echo","args":{"message":%b}}' % deep,
            b'{"task_id":%b}' % deep,
            b'{"server":"s","tool":"echo","args":{"message":"\\ud800"}}',
            b'{"server":"s","tool":"add","args":{"a":1e999,"b":1}}',
            b'{"server":"s","tool":"echo","tool":"add","args":{}}',
        ]
        for arguments in odd:
            for tool in ("execute_tool", "get_task"):
                pending, _ = client.prepare("tools/call")
                await client.send(
                    b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":'
                    b'{"name":"%b","arguments":%b}}\n'
                    % (json.dumps(pending.id).encode(), tool.encode(), arguments)
                )
                message = await pending.response()
                assert "error" in message or message["result"]["content"]
        assert (await client.execute("echo", args={"message": "alive"})).text == "alive"
        await client.quiet()
