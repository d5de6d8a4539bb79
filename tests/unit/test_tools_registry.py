import json
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.tools.registry import Tool
from emceepee_stdio.tools.table import TABLE, TOOLS


def mistake(tool: str, arguments: object) -> str:
    with pytest.raises(InvalidArguments) as raised:
        TABLE[tool].decode(Raw(json.dumps(arguments).encode()))
    return raised.value.fact


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("get_task", {}, ["get_task", "'task_id'", "missing"]),
        ("get_task", {"task_id": 7}, ["task_id", "expected `str`", "got `int`"]),
        ("get_task", {"id": "x", "task_id": "x"}, ["no argument 'id'", "known are: task_id"]),
        ("get_task", {"a\nb": 1}, ["no argument", "known are: task_id"]),
        ("list_servers", {"x": 1}, ["'x'", "known are: none"]),
        ("set_timer", {"duration_ms": -1, "message": "x"}, ["duration_ms", ">= 1"]),
        ("set_timer", {"duration_ms": 1, "message": "x" * 501}, ["message", "<= 500"]),
        ("list_tasks", {"status": "done"}, ["status", "'done'"]),
        ("add_server", {"name": "p", "args": [7]}, ["args[0]", "expected `str`"]),
        ("add_server", {"name": "p", "restart": {"x": 1}}, ["restart", "unknown field `x`"]),
        ("add_server", {"name": "p", "restart": {"attempts": ""}}, ["restart.attempts", "`int`"]),
        ("get_task", [], ["Expected `object`", "got `array`"]),
        ("get_task", "text", ["Expected `object`", "got `str`"]),
    ],
)
def test_a_mistake_names_the_field_what_was_given_and_what_is_expected(
    tool: str, arguments: object, said: list[str]
) -> None:
    fact = mistake(tool, arguments)
    assert all(part in fact for part in said), fact


@pytest.mark.parametrize("arguments", [None, Raw(b"{}")])
def test_a_tool_without_arguments_needs_none(arguments: Raw | None) -> None:
    TABLE["list_servers"].decode(arguments)


@pytest.mark.parametrize("raw", [b"{", b"{'a': 1}", b"[" * 20_000 + b"]" * 20_000])
def test_what_is_no_json_at_all_is_no_bug(raw: bytes) -> None:
    with pytest.raises(InvalidArguments):
        TABLE["get_task"].decode(Raw(raw))


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_a_row_is_complete_and_its_schema_plain(tool: Tool) -> None:
    listed = tool.listed()
    text = json.dumps(listed)
    assert "$ref" not in text
    assert '"title"' not in text
    assert listed["description"]
    annotations: Any = listed["annotations"]
    reads = annotations.get("readOnlyHint", False)
    assert reads or "destructiveHint" in annotations
    assert tool.name in repr(tool)


def test_names_are_used_once() -> None:
    assert len(TABLE) == len(TOOLS)
    assert {"add_server", "execute_tool"} <= {
        tool.name for tool in TOOLS if tool.annotations.get("openWorldHint")
    }
