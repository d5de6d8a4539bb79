"""Headers of the modern era, judged by the SDK's own reading of them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared import inbound
from msgspec import Raw

from emceepee_stdio.backends.channels.http_headers import (
    HeaderMaps,
    custom_headers,
    header_map,
    modern_headers,
)
from emceepee_stdio.wire.codec import Request, to_json

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


SCHEMAS = st.recursive(st.one_of(st.none(), marked(st.none())), marked, max_leaves=8)
ARGUMENTS = st.recursive(
    SCALARS, lambda inner: st.dictionaries(st.sampled_from(["a", "b", "c"]), inner), max_leaves=8
)


def request(method: str, params: object) -> Request:
    return Request(1, method, Raw(to_json(params)))


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
    assert header_map(schema) == (inbound.x_mcp_header_map(schema) if valid else {})


@given(SCHEMAS, st.dictionaries(st.sampled_from(["a", "b", "c"]), ARGUMENTS))
def test_the_sdk_accepts_every_call_that_we_mirror(
    schema: object, arguments: dict[str, object]
) -> None:
    maps = HeaderMaps()
    tools = {"tools": [{"name": "t", "inputSchema": schema}]}
    maps.learn(Raw(json.dumps(tools).encode()))
    call = request("tools/call", {"name": "t", "arguments": arguments})
    headers = sent(maps.headers(call))
    seen = json.loads(bytes(call.params or b""))["arguments"]
    assert inbound.validate_mcp_param_headers(schema, seen, headers) is None


@pytest.mark.parametrize(
    "result",
    [
        *(b"{}", b"[]", b"null", b"garbage", b"[" * 5_000, b'{"tools":null}', b'{"tools":[1]}'),
        *(b'{"tools":[{"name":7}]}', b'{"tools":[{"name":"t","inputSchema":7}]}'),
    ],
)
def test_a_list_that_cannot_be_read_teaches_nothing(result: bytes) -> None:
    maps = HeaderMaps()
    maps.learn(Raw(result))
    assert maps._maps == {}


def test_a_newer_list_replaces_what_an_older_one_taught() -> None:
    maps = HeaderMaps()
    schema = {"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
    maps.learn(Raw(json.dumps({"tools": [{"name": "t", "inputSchema": schema}]}).encode()))
    call = request("tools/call", {"name": "t", "arguments": {"a": "x"}})
    assert maps.headers(call)["mcp-param-A"] == "x"
    maps.learn(Raw(json.dumps({"tools": [{"name": "t", "inputSchema": {}}]}).encode()))
    assert "mcp-param-A" not in maps.headers(call)


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
