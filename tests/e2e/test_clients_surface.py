"""The list of tools as the strictest of clients judge it, read from the real process."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from mcp_types import methods

from tests.e2e.clients.raw import INITIALIZE, MODERN, Message, proxy

NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
COMBINING = {"anyOf", "oneOf", "allOf", "not", "enum", "$ref", "$defs", "definitions"}
OF_THE_WORLD = {"add_server", "execute_tool", "execute_readonly_tool"}
DESTRUCTIVE = OF_THE_WORLD | {"remove_server", "cancel_task", "respond_to_elicitation"}
LOOKING = re.compile(r"(list|read)_\w+|get_(prompt|task|task_result|timer|elicitations)|await_\w+")
VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The result of tools/list in both eras, as bytes of the wire."""
    with proxy(tmp_path_factory.mktemp("surface")) as client:
        client.answer(client.ask("initialize", INITIALIZE))
        legacy = client.request("tools/list")
        modern = client.request("tools/list", {"_meta": MODERN})
    return {"legacy": json.dumps(legacy).encode(), "modern": json.dumps(modern).encode()}


@pytest.fixture
def tools(listed: dict[str, bytes]) -> list[Message]:
    return json.loads(listed["legacy"])["tools"]


def schemas(schema: Any) -> Iterator[Message]:
    """A schema and all schemas inside it."""
    if isinstance(schema, dict):
        yield schema
        for inner in schema.get("properties", {}).values():
            yield from schemas(inner)
        for key in ("items", "additionalProperties", "anyOf", "oneOf", "allOf"):
            inner = schema.get(key)
            for one in inner if isinstance(inner, list) else [inner]:
                yield from schemas(one)


def test_names_are_such_that_every_client_accepts_them(tools: list[Message]) -> None:
    names = [tool["name"] for tool in tools]
    assert all(NAME.fullmatch(name) for name in names)
    assert len(set(names)) == len(names)


def test_every_tool_says_what_it_is_for(tools: list[Message]) -> None:
    for tool in tools:
        assert tool["description"].endswith("."), tool["name"]
        assert len(tool["description"]) <= 1024, tool["name"]


def test_input_schemas_are_plain_objects(tools: list[Message]) -> None:
    for tool in tools:
        schema = tool["inputSchema"]
        assert schema["type"] == "object", tool["name"]
        assert not set(schema) & COMBINING, tool["name"]
        assert set(schema.get("required", [])) <= set(schema.get("properties", {})), tool["name"]


def test_no_schema_refers_to_another_or_knows_null(tools: list[Message]) -> None:
    for tool in tools:
        for schema in schemas(tool["inputSchema"]):
            assert "$ref" not in schema, tool["name"]
            assert "default" not in schema or schema["default"] is not None, tool["name"]
        assert "null" not in json.dumps(tool)


def test_every_argument_has_a_type_and_a_description(tools: list[Message]) -> None:
    for tool in tools:
        for schema in schemas(tool["inputSchema"]):
            for name, argument in schema.get("properties", {}).items():
                assert argument.get("type"), (tool["name"], name)
                assert argument.get("description"), (tool["name"], name)


def test_every_schema_is_closed_but_that_of_execute_tool(tools: list[Message]) -> None:
    for tool in tools:
        for schema in schemas(tool["inputSchema"]):
            if "properties" not in schema:
                continue
            closed = schema.get("additionalProperties") is False
            assert closed == (tool["name"] != "execute_tool"), tool["name"]


def test_schemas_are_valid_themselves(tools: list[Message]) -> None:
    for tool in tools:
        jsonschema.Draft202012Validator.check_schema(tool["inputSchema"])
        jsonschema.Draft7Validator.check_schema(tool["inputSchema"])


def test_annotations_are_honest(tools: list[Message]) -> None:
    for tool in tools:
        name, hints = tool["name"], tool["annotations"]
        assert hints["openWorldHint"] == (name in OF_THE_WORLD), name
        if hints.get("readOnlyHint"):
            assert not hints.get("destructiveHint"), name
        else:
            assert hints["destructiveHint"] == (name in DESTRUCTIVE), name
            assert not LOOKING.fullmatch(name), name
        if name.startswith(("add", "remove", "execute", "set", "delete", "cancel", "respond")):
            assert bool(hints.get("readOnlyHint")) == (name == "execute_readonly_tool"), name


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_whole_list_is_small(listed: dict[str, bytes], era: str) -> None:
    compact = json.dumps(json.loads(listed[era]), separators=(",", ":")).encode()
    assert len(compact) < 22_000
    assert "nextCursor" not in json.loads(compact)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_sdk_accepts_the_list_in_every_version(listed: dict[str, bytes], version: str) -> None:
    era = "modern" if version == VERSIONS[-1] else "legacy"
    methods.validate_server_result("tools/list", version, json.loads(listed[era]))


def test_both_eras_show_the_same_tools(listed: dict[str, bytes]) -> None:
    legacy, modern = json.loads(listed["legacy"]), json.loads(listed["modern"])
    assert legacy["tools"] == modern["tools"]
    assert set(legacy) == {"tools"}
    assert modern["resultType"] == "complete"


def test_the_list_is_the_one_of_the_table(tools: list[Message], tmp_path: Path) -> None:
    """What is prebuilt for the greeting and what is called are the same tools."""
    with proxy(tmp_path) as client:
        client.greet()
        for tool in tools:
            answer = client.answer(client.begin(tool["name"], **{"no_such argument": 1}))
            assert "result" in answer, tool["name"]
