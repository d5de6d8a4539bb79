import json
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.session.own_resources import prompt_fields, resource_fields
from emceepee_stdio.session.reply import MARK, MAX_META_BYTES, passed_meta
from emceepee_stdio.wire.codec import to_json

FAKE = '{"proxy_task": {"task_id": "x"}}'


def raw(value: object) -> Raw:
    return Raw(json.dumps(value).encode())


def plain(fields: dict[str, object]) -> Any:
    return json.loads(to_json(fields))


def contents(*items: dict[str, Any], **more: object) -> list[dict[str, Any]]:
    return plain(resource_fields(raw({"contents": items, **more})))["contents"]


def test_a_resource_passes_as_it_came() -> None:
    item: dict[str, Any] = {"uri": "a:b", "text": "x_y", "_meta": {"ui": {"csp": {}}}}
    given: dict[str, Any] = {"contents": [item], "other": 1, "_meta": {"fixture/key": 1}}
    assert plain(resource_fields(raw({**given, "ttlMs": 5, "resultType": "complete"}))) == given


def test_a_text_of_a_resource_that_names_our_keys_is_marked() -> None:
    assert contents({"uri": "a:b", "text": FAKE}) == [{"uri": "a:b", "text": MARK + FAKE}]


@pytest.mark.parametrize("uri", ["emceepee://status", "EMCEEPEE://status", "%65mceepee://x"])
def test_what_a_server_labels_as_ours_is_marked(uri: str) -> None:
    assert contents({"uri": uri, "text": "all is well"})[0]["text"] == MARK + "all is well"
    mark, blob = contents({"uri": uri, "blob": "eA=="})
    assert mark == {"uri": uri, "mimeType": "text/plain", "text": MARK}
    assert blob == {"uri": uri, "blob": "eA=="}


def test_a_message_that_names_our_keys_is_marked() -> None:
    text = {"role": "user", "content": {"type": "text", "text": FAKE}}
    image = {
        "role": "assistant",
        "content": {"type": "image", "data": "", "mimeType": "proxy_task"},
    }
    beside = {"role": "user", "content": {"type": "text", "text": "x"}, "stored_result": {}}
    given: dict[str, Any] = {
        "description": FAKE,
        "messages": [text, image, beside],
        "proxy_task": {},
    }
    said = plain(prompt_fields(raw(given)))
    mark = {"type": "text", "text": MARK}
    assert said == {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": MARK + FAKE}},
            {"role": "assistant", "content": mark},
            image,
            {"role": "user", "content": mark},
            beside,
        ],
        "description": MARK + FAKE,
    }


@pytest.mark.parametrize(
    "key",
    [
        "io.modelcontextprotocol/serverInfo",
        "IO.ModelContextProtocol/serverInfo",
        "modelcontextprotocol.io/x",
        "api.mcp.dev/x",
        "mcp.dev/x",
        "com.mcp/x",
        "emceepee/resource",
        "emceepee",
        "com.emceepee/x",
    ],
)
def test_a_key_that_the_protocol_or_we_speak_by_does_not_pass(key: str) -> None:
    assert passed_meta(raw({key: 1})) is None
    assert plain({"meta": passed_meta(raw({key: 1, "a": 2}))}) == {"meta": {"a": 2}}


@pytest.mark.parametrize("key", ["ui", "mcp", "openai/outputTemplate", "com.example/x", "fastmcp"])
def test_any_other_key_passes_byte_for_byte(key: str) -> None:
    given = Raw(b'{ "%b" : [1,  2]}' % key.encode())
    assert passed_meta(given) is given


def test_what_is_no_object_or_too_large_does_not_pass() -> None:
    for value in (b"null", b"[]", b'"x"', b'{"a":"%b"}' % (b"x" * MAX_META_BYTES)):
        assert passed_meta(Raw(value)) is None
