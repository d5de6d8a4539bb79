"""Headers of the modern era, judged by the SDK's own reading of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from emceepee_stdio.backends.channels.http_carrier import (
    HeaderMaps,
    custom_headers,
    header_map,
    modern_headers,
)
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.peer import OutgoingRequest

TEXTS = st.text(st.characters(exclude_categories=("Cs",)))
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), TEXTS)
MARKS = st.sampled_from(["Region", "region", "N", "a b", "", "Zürich", 7, None])
KINDS = st.sampled_from(["string", "integer", "boolean", "number", "object", ["string"], None])


def marked(children: Any) -> Any:
    """Schemas with marks, in places where they may be and where they may not."""
    return st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS,
            "x-mcp-header": MARKS,
            "properties": st.dictionaries(st.sampled_from(["a", "b", "c"]), children, max_size=3),
            "items": children,
            "anyOf": st.lists(children, max_size=2),
            "$defs": st.dictionaries(st.just("d"), children, max_size=1),
            "default": st.just({"x-mcp-header": "Region"}),
        },
    )


MARKED = {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
SCHEMAS = st.recursive(st.one_of(st.none(), marked(st.none())), marked, max_leaves=8)
ARGUMENTS = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c"]), inner), max_leaves=8
)


def request(method: str, params: dict[str, object]) -> OutgoingRequest:
    return OutgoingRequest(method=method, params=params)


def sent(headers: dict[str, str]) -> dict[str, str]:
    """As they arrive: HTTP strips the ends."""
    return {name: value.encode("ascii").decode().strip(" \t") for name, value in headers.items()}


@given(TEXTS)
def test_any_name_survives_the_way_through_a_header(name: str) -> None:
    for method, key in (("tools/call", "name"), ("prompts/get", "name"), ("resources/read", "uri")):
        headers = sent(modern_headers(request(method, {key: name}), {}))
        assert headers["mcp-method"] == method
        assert inbound.decode_header_value(headers["mcp-name"]) == name


@given(SCHEMAS)
def test_what_is_mirrored_is_what_the_sdk_would_mirror(schema: object) -> None:
    valid = inbound.find_invalid_x_mcp_header(schema) is None
    assert header_map(schema) == (inbound.x_mcp_header_map(schema) if valid else None)


@given(SCHEMAS, st.dictionaries(st.sampled_from(["a", "b", "c"]), ARGUMENTS), st.booleans())
def test_the_sdk_accepts_every_call_that_we_mirror(
    schema: object,
    arguments: dict[str, object],
    are_raw: bool,  # noqa: FBT001
) -> None:
    maps = HeaderMaps()
    maps.learn([{"name": "t", "inputSchema": schema}])
    params = {"name": "t", "arguments": Raw(to_json(arguments)) if are_raw else arguments}
    headers = sent(maps.headers(request("tools/call", params)))
    seen = json.loads(to_json(params))["arguments"]
    assert inbound.validate_mcp_param_headers(schema, seen, headers) is None


@pytest.mark.parametrize(
    "tools",
    [
        *([], [{}], [{"name": "t"}], [{"name": None, "inputSchema": MARKED}]),
        *([{"name": 7, "inputSchema": MARKED}], [{"name": ["t"], "inputSchema": MARKED}]),
        *([{"name": "t", "inputSchema": 7}], [{"name": "t", "inputSchema": [MARKED]}]),
        *([{"name": "t", "inputSchema": None}], [{"name": "t", "inputSchema": {}}]),
    ],
)
def test_a_list_that_cannot_be_read_teaches_nothing(tools: list[dict[str, object]]) -> None:
    maps = HeaderMaps()
    maps.learn(tools)
    assert repr(maps) == "<HeaderMaps []>"
    call = request("tools/call", {"name": "t", "arguments": {"a": "x"}})
    assert maps.headers(call) == {"mcp-method": "tools/call", "mcp-name": "t"}


def test_one_tool_that_cannot_be_read_hides_no_other() -> None:
    maps = HeaderMaps()
    maps.learn([{"name": 7}, {"name": "t", "inputSchema": MARKED}, {"inputSchema": MARKED}])
    assert repr(maps) == "<HeaderMaps ['t']>"


def test_a_newer_list_replaces_what_an_older_one_taught() -> None:
    maps = HeaderMaps()
    maps.learn([{"name": "t", "inputSchema": MARKED}])
    call = request("tools/call", {"name": "t", "arguments": {"a": "x"}})
    assert maps.headers(call)["mcp-param-A"] == "x"
    maps.learn([{"name": "t", "inputSchema": {}}])
    assert "mcp-param-A" not in maps.headers(call)


@pytest.mark.parametrize("arguments", [None, 7, "x", [], Raw(b"null"), Raw(b'[{"a":"x"}]')])
def test_arguments_that_are_no_object_mirror_nothing(arguments: object) -> None:
    maps = {"t": {("a",): "A"}}
    call = request("tools/call", {"name": "t", "arguments": arguments})
    assert modern_headers(call, maps) == {"mcp-method": "tools/call", "mcp-name": "t"}


@pytest.mark.parametrize("params", [None, {}, {"name": None}, {"name": 7}, {"uri": "u://1"}])
def test_a_request_without_a_name_has_none_in_its_headers(params: dict[str, object] | None) -> None:
    call = OutgoingRequest(method="tools/call", params=params)
    assert modern_headers(call, {}) == {"mcp-method": "tools/call"}


def test_only_calls_of_tools_mirror_arguments() -> None:
    maps = {"t": {("a",): "A"}}
    prompt = request("prompts/get", {"name": "t", "arguments": {"a": "x"}})
    assert modern_headers(prompt, maps) == {"mcp-method": "prompts/get", "mcp-name": "t"}


@given(st.dictionaries(st.text(min_size=1), st.text()))
def test_headers_of_the_configuration_are_fit_to_be_sent_or_named(given: dict[str, str]) -> None:
    headers, bad = custom_headers(given)
    if bad is None:
        assert all(value.isascii() and value == value.strip() for value in headers.values())
        assert all(value.isprintable() for value in headers.values())
    else:
        assert bad in headers


def test_what_cannot_be_read_beside_a_mirrored_argument_does_not_matter() -> None:
    maps = {"t": header_map(MARKED) or {}}
    beside = Raw(b'{"a":"here","n":1e999,"long":' + b"9" * 5_000 + b"}")
    headers = modern_headers(request("tools/call", {"name": "t", "arguments": beside}), maps)
    assert headers["mcp-param-A"] == "here"
