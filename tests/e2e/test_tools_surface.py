"""The tools as a client is told of them: few bytes, strict schemas, nothing left to guess."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from emceepee_stdio.tools import TABLE
from tests.e2e.client import Setting, both_eras, proxy

NAME = re.compile(r"^[a-zA-Z0-9_-]{1,64}$")
COMBINED = {"anyOf", "oneOf", "allOf", "not", "if"}
# What a model has to learn from the instructions alone, to do the ten commonest jobs.
TAUGHT = [
    "list_servers",
    "add_server",
    "list_tools",
    "query",
    "execute_tool",
    "args",
    "list_resources",
    "read_resource",
    "subscribe_resource",
    "list_prompts",
    "get_prompt",
    "task_id",
    "await_activity",
    "get_task_result",
    "pending_client_action",
    "respond_to_elicitation",
    "respond_to_sampling",
    "events_since_last_response",
    "last_error",
    "get_logs",
    "reconnect_server",
    "offset",
    "pattern",
]


def subschemas(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for name, value in schema.items():
        inner = value.values() if name == "properties" else [value]
        for item in inner:
            if isinstance(item, dict) and name != "default":
                yield from subschemas(item)


@both_eras
async def test_the_whole_surface_is_small_and_strict(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        result = await client.request("tools/list")
        tools = result["tools"]
        assert len(json.dumps(result, separators=(",", ":")).encode()) < 20_000
        assert [tool["name"] for tool in tools] == list(TABLE)
        assert len(tools) == 31
        for tool in tools:
            assert NAME.match(tool["name"])
            assert 10 <= len(tool["description"]) <= 300
            schema = tool["inputSchema"]
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
            assert (schema.get("additionalProperties") is False) != (tool["name"] == "execute_tool")
            assert "$ref" not in json.dumps(schema)
            for part in subschemas(schema):
                assert not COMBINED & set(part), tool["name"]
                assert "type" in part, tool["name"]
                assert part.get("enum") is None or part["type"] == "string"
                assert part["type"] != "array" or "items" in part, tool["name"]
            for name, argument in schema["properties"].items():
                assert NAME.match(name)
                assert argument["description"], (tool["name"], name)
            assert set(schema.get("required", ())) <= set(schema["properties"])


async def test_the_instructions_teach_what_people_want_most(tmp_path: Path) -> None:
    async with proxy(Setting(home=tmp_path / "home"), greet=False) as client:
        text = (await client.greet())["instructions"]
        assert len(text.encode()) < 2_000
        assert [word for word in TAUGHT if word not in text] == []
        named = set(re.findall(r"[a-z]+_[a-z_]+", text))
        tools = set(TABLE)
        assert named - tools == {
            "task_id",
            "pending_client_action",
            "events_since_last_response",
            "last_error",
            "proxy_task",
            "stored_result",
        }
