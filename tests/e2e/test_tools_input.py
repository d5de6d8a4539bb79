"""Whatever a client sends: a readable answer, and nobody else has to wait for it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.errors import error_types
from emceepee_stdio.tools import TABLE
from tests.e2e.client import Answer, Client, Setting, proxy, server

CODES = tuple(f"[{kind.code}]" for kind in error_types())
LOOK_ALIKES = ("\u0455", "s\u200b", "\uff53", "S", "s ", "\u202es", "s\u0301", "s\x00")
LONG = "n" * 10_000
HUGE = "h" * 1_000_000
ODD: tuple[Any, ...] = ("", " ", LONG, HUGE, *LOOK_ALIKES, "\ud800", "../..", "'; --", "{}")
WRONG: tuple[Any, ...] = (None, 7, -1, 1.5, True, [], {}, [[]], {"a": {}}, 10**30)
# What a call of it takes at least; none of them exists, where something must exist.
LEAST: dict[str, dict[str, Any]] = {
    "add_server": {"name": "n"},
    "remove_server": {"name": "none"},
    "reconnect_server": {"name": "none"},
    "execute_tool": {"tool": "none", "server": "s"},
    "execute_readonly_tool": {"tool": "none", "server": "s"},
    "read_resource": {"server": "s", "uri": "fixture://none"},
    "subscribe_resource": {"server": "s", "uri": "fixture://one"},
    "unsubscribe_resource": {"server": "s", "uri": "fixture://one"},
    "get_prompt": {"server": "s", "name": "none"},
    "complete_argument": {"server": "s", "prompt": "greet", "argument": "name"},
    "set_log_level": {"server": "s", "level": "info"},
    "await_activity": {"timeout_ms": 1},
    "get_task": {"task_id": "none"},
    "get_task_result": {"task_id": "none"},
    "cancel_task": {"task_id": "none"},
    "respond_to_elicitation": {"request_id": "none", "action": "decline"},
    "respond_to_sampling": {"request_id": "none", "action": "decline"},
    "set_timer": {"duration_ms": 86_400_000, "message": "m"},
    "get_timer": {"timer_id": "none"},
    "delete_timer": {"timer_id": "none"},
}
OF_A_SERVER = {
    "read_resource",
    "subscribe_resource",
    "unsubscribe_resource",
    "list_resources",
    "list_resource_templates",
    "list_tools",
    "list_prompts",
    "get_prompt",
    "complete_argument",
    "get_notifications",
    "get_logs",
    "set_log_level",
    "execute_tool",
}


def setting(tmp_path: Path) -> Setting:
    return Setting(
        home=tmp_path / "home",
        servers={"s": server()},
        timeouts={"client_ceiling_ms": 2_000},
        fixed={"await_s": 0.001},
    )


def readable(answer: Answer) -> bool:
    if not answer.is_error:
        return True
    return (
        len(answer.text) <= 8_000
        and answer.text.count("[") > 0
        and any(code in answer.text for code in CODES)
        and "inside emceepee" not in answer.text
    )


def variants(name: str) -> list[dict[str, Any]]:
    """Calls that are wrong in one argument each."""
    least = LEAST.get(name, {})
    properties = TABLE[name].listed()["inputSchema"]["properties"]  # type: ignore[index]
    found: list[dict[str, Any]] = [{}, {"extra": 1}, {**least, "extra": 1}, {**least, "": 1}]
    for field in properties:
        if (name, field) == ("add_server", "cwd"):
            continue
        found += [{**least, field: value} for value in (*ODD, *WRONG)]
    return found


@pytest.mark.parametrize("tool", list(TABLE))
async def test_nothing_that_is_sent_ends_or_stalls_anything(tmp_path: Path, tool: str) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        # It tells everything again to whoever names an event that is not known.
        client.told_twice_is_fine = tool == "await_activity"
        for arguments in variants(tool):
            pending = await client.begin_call(tool, **arguments)
            assert (await client.call("get_timer", timer_id="none")).is_error
            answer = await pending.answer()
            assert readable(answer), (arguments, answer)
        assert (await client.execute("echo", args={"message": "well"})).text == "well"


async def refused(client: Client, tool: str, code: str, /, **arguments: Any) -> str:
    answer = await client.call(tool, **{**LEAST.get(tool, {}), **arguments})
    assert answer.is_error, (tool, arguments, answer)
    assert f"[{code}]" in answer.text, (tool, arguments, answer.text)
    return answer.text


@pytest.mark.parametrize("tool", sorted(OF_A_SERVER))
async def test_an_unknown_server_is_told_and_who_there_is(tmp_path: Path, tool: str) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        for name in ("t", LONG, *LOOK_ALIKES):
            if tool.startswith("list") and name in ("S", LONG):  # which is a pattern, too
                continue
            text = await refused(client, tool, "server_not_found", server=name)
            assert re.search(r"are: s\.", text)
        assert "server" in await refused(client, tool, "invalid_arguments", server=7)
        if tool != "execute_tool":
            text = await refused(client, tool, "invalid_arguments", colour="red")
            assert "'colour'" in text
            assert "server" in text


async def test_what_is_missing_is_named(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        for tool in TABLE.values():
            schema: dict[str, Any] = tool.listed()["inputSchema"]  # type: ignore[assignment]
            for field in schema.get("required", ()):
                least = {key: value for key, value in LEAST[tool.name].items() if key != field}
                answer = await client.call(tool.name, **least)
                assert f"'{field}' is missing. [invalid_arguments]" in answer.text, answer


MISTAKES: list[tuple[str, str, dict[str, Any]]] = [
    *((tool, "task_not_found", {"task_id": LONG}) for tool in ("get_task", "cancel_task")),
    ("get_task_result", "task_not_found", {"task_id": ""}),
    *((tool, "timer_not_found", {"timer_id": ""}) for tool in ("get_timer", "delete_timer")),
    ("respond_to_elicitation", "request_not_found", {"request_id": "\u0455"}),
    ("respond_to_sampling", "request_not_found", {"request_id": LONG}),
    *(
        (tool, "invalid_arguments", {"cursor": cursor})
        for tool in ("list_tools", "list_resources", "list_prompts")
        for cursor in ("", "x", "-1", "1.5", "\u0661", "0x1")
    ),
    *(
        (tool, "invalid_arguments", {"limit": limit})
        for tool in ("list_tools", "list_resource_templates", "get_logs", "get_notifications")
        for limit in (0, -1, 1001, "5", 10**30)
    ),
    *(
        (tool, "invalid_arguments", {"level": level})
        for tool in ("set_log_level", "get_logs")
        for level in ("loud", "", "DEBUG", "\uff49nfo")
    ),
    ("get_logs", "invalid_arguments", {"sources": ["stdin"]}),
    ("read_resource", "invalid_arguments", {"offset": 5}),
    ("read_resource", "resource_not_found", {"uri": LONG}),
    ("complete_argument", "invalid_arguments", {"template": "fixture://item/{id}"}),
    ("get_prompt", "invalid_arguments", {"arguments": {"name": 7}}),
    ("get_prompt", "prompt_not_found", {"name": LONG}),
    ("execute_tool", "tool_not_found", {"tool": LONG}),
    *(
        ("read_resource", "resource_not_found", {"server": "emceepee", "uri": uri})
        for uri in ("", "emceepee://", "emceepee://statu\u0455", "emceepee://results/", LONG)
    ),
]


async def test_mistakes_are_told_by_their_code(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        for tool, code, arguments in MISTAKES:
            await refused(client, tool, code, **arguments)
        assert not (await client.call("list_tools", cursor="9" * 10_000)).is_error


async def test_an_unknown_tool_and_broken_params_leave_the_connection(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        for params in (
            {"name": "list_tool"},
            {"name": LONG},
            {"name": ""},
            {"name": 7},
            {},
            {"name": "list_timers", "arguments": []},
            {"name": "list_timers", "arguments": "x"},
        ):
            pending = await client.begin("tools/call", params)
            message = await pending.response()
            if "error" in message:
                assert message["error"]["code"] == -32602
            else:
                assert "[invalid_arguments]" in Answer(message["result"]).text
        deep = '{"a":' * 5_000 + "1" + "}" * 5_000
        line = (
            '{"jsonrpc":"2.0","id":"deep","method":"tools/call","params":'
            '{"name":"execute_tool","arguments":{"server":"s","tool":"echo","args":' + deep + "}}}"
        )
        pending, _ = client.prepare("tools/call", id="deep")
        await client.send(line.encode() + b"\n")
        assert await pending.response()
        assert json.loads((await client.call("list_timers")).text) == {"timers": []}
