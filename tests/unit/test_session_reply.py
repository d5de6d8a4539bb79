import json
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from mcp_types import methods
from msgspec import Raw

from emceepee_stdio.errors import CallFailed, NotSupported
from emceepee_stdio.session.reply import Reply


def passed(result: str | dict[str, Any]) -> tuple[Any, Reply]:
    text = result if isinstance(result, str) else json.dumps(result)
    reply = Reply.result(Raw(text.encode()), server="s")
    return json.loads(b"[%b]" % reply.content), reply


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


BLOCKS = [
    {"type": "text", "text": "x", "annotations": {"priority": 1}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png"},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "x://1", "name": "n"},
    {"type": "resource", "resource": {"uri": "x://1", "text": "x"}},
    {"type": "resource", "resource": {"uri": "x://1", "blob": "aGk="}},
]
NO_BLOCKS = [
    *("7", "null", '"x"', "[]", "{}", '{"type":7}', '{"text":"y"}', '{"type":"novel","text":"y"}'),
    *('{"type":"text"}', '{"type":"text","text":5}', '{"type":"text","text":null}'),
    *('{"type":"image","mimeType":"image/png"}', '{"type":"image","data":"aGk="}'),
    *('{"type":"audio","data":7,"mimeType":"audio/wav"}', '{"type":"resource"}'),
    *('{"type":"resource","resource":{"uri":"x://1"}}', '{"type":"resource_link","uri":"x://1"}'),
]


def test_blocks_keep_their_bytes() -> None:
    given = '{"b":1.50,"text" :"\\u00e9","type":"text"} , {"type":"text","text":"x"}'
    _, reply = passed(f'{{"content": [ {given} ], "other": 1}}')
    assert reply.content == given.encode()


def test_every_kind_of_block_arrives_as_it_was() -> None:
    assert passed({"content": BLOCKS})[0] == BLOCKS
    methods.validate_server_result("tools/call", "2025-11-25", {"content": BLOCKS})


@pytest.mark.parametrize("bad", NO_BLOCKS)
def test_what_is_no_block_is_told_as_text_and_the_others_stay_as_they_are(bad: str) -> None:
    good = '{"type":"text" , "text":"a"}'
    blocks, reply = passed(f'{{"content":[{good}, {bad} ,{good}]}}')
    before, told, after = blocks
    assert before == after == text("a")
    assert told["type"] == "text"
    assert told["text"].startswith("The server sent something that is no content block (")
    assert told["text"].endswith(f": {bad}")
    assert reply.content.startswith(good.encode())


IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "x://1", "name": "n"}
HELD = {"uri": "x://1", "text": "x"}


@pytest.mark.parametrize(
    ("block", "wrong"),
    [
        (text("x"), {"annotations": None}),
        (text("x"), {"annotations": {"priority": "high"}, "_meta": 7}),
        ({**text("x"), "_meta": {"k": 1}}, {"annotations": []}),
        ({**IMAGE, "annotations": {"priority": 0.5}}, {"_meta": None}),
        ({**LINK, "title": "T", "size": 3}, {"description": None, "_meta": 7}),
        ({**LINK, "mimeType": "a/b"}, {"size": "large"}),
    ],
)
def test_what_is_wrong_beside_the_content_of_a_block_is_left_out(
    block: dict[str, Any], wrong: dict[str, Any]
) -> None:
    assert passed({"content": [{**block, **wrong}, text("y")]})[0] == [block, text("y")]
    methods.validate_server_result("tools/call", "2025-11-25", {"content": [block]})


def test_what_is_wrong_beside_the_contents_of_a_resource_is_left_out() -> None:
    block = {"type": "resource", "resource": {**HELD, "mimeType": None, "_meta": []}}
    assert passed({"content": [block]})[0] == [{"type": "resource", "resource": HELD}]


@pytest.mark.parametrize("content", ["[]", "[ ]", "null"])
def test_no_content_is_none(content: str) -> None:
    assert passed(f'{{"content":{content}}}')[0] == []
    assert passed("{}")[0] == []


@pytest.mark.parametrize(("given", "is_error"), [(True, True), (False, False), (None, False)])
def test_an_error_is_one_only_when_it_says_so(given: Any, *, is_error: bool) -> None:
    assert passed({"content": [], "isError": given})[1].is_error is is_error


@pytest.mark.parametrize("meta", [None, 7, [], "x"])
def test_what_is_no_meta_is_left_out(meta: Any) -> None:
    assert passed({"content": [], "_meta": meta})[1].meta is None


def test_meta_is_kept() -> None:
    kept = passed('{"_meta": {"a" : 1}, "content": []}')[1].meta
    assert kept is not None
    assert bytes(kept) == b'{"a" : 1}'


@pytest.mark.parametrize(
    ("content", "structured", "added"),
    [
        ([], {"n": 1}, True),
        ([text('{"n":1}')], {"n": 1}, False),
        ([text(' {\n"n": 1.0 }')], {"n": 1}, False),
        ([text("n is 1")], {"n": 1}, True),
        ([text('{"n":2}')], {"n": 1}, True),
        ([text("x"), text('{"a":[1],"b":2}')], {"b": 2, "a": [1]}, False),
        ([{"type": "image", "data": "", "mimeType": "x"}], {}, True),
        ([text("")], [], True),
        ([text("[1]")], [1], False),
        ([text('"x"')], "x", False),
        ([text("x")], "x", True),
        ([], None, False),
        ([{"type": "text", "text": "7"}], {"result": 7}, False),
        ([{"type": "text", "text": "a file"}], {"result": "a file"}, False),
        ([{"type": "text", "text": "a file"}], {"content": "a file"}, False),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {"result": "b"}, False),
        ([{"type": "text", "text": "a file"}], {"result": "another"}, True),
        ([{"type": "text", "text": "ok"}], {"status": "ok"}, True),
        ([{"type": "text", "text": "ok"}], {"result": "ok", "more": 1}, True),
        ([{"type": "text", "text": "null"}], {"other": None}, True),
    ],
)
def test_structured_content_becomes_a_text_block_where_it_is_news(
    content: list[Any], structured: Any, *, added: bool
) -> None:
    blocks, _ = passed({"content": content, "structuredContent": structured})
    assert blocks[: len(content)] == content
    assert len(blocks) == len(content) + added
    if added:
        assert json.loads(blocks[-1]["text"]) == structured


@pytest.mark.parametrize("result", ["[]", "7", '"x"', '{"content":{}}', '{"content":7}'])
def test_what_is_no_result_is_said_to_be_none(result: str) -> None:
    with pytest.raises(CallFailed, match="s gave a result"):
        passed(result)


def held(*contents: dict[str, Any]) -> Any:
    result = Raw(json.dumps({"contents": contents}).encode())
    return json.loads(b"[%b]" % Reply.contents(result, server="s").content)


def test_contents_of_a_resource_are_text_or_embedded() -> None:
    blob = {"uri": "x://2", "blob": "aGk=", "mimeType": "image/png", "_meta": {"k": 1}}
    first, second = held({"uri": "x://1", "text": "abc"}, blob)
    assert (first["type"], first["text"]) == ("text", "abc")
    assert second == {"type": "resource", "resource": blob}
    with pytest.raises(CallFailed):
        Reply.contents(Raw(b"{}"), server="s")


def test_a_text_keeps_what_its_resource_said_beside_it() -> None:
    [block] = held(
        {"uri": "x://1", "text": "{}", "mimeType": "application/json", "_meta": {"k": 1}}
    )
    assert block["_meta"] == {
        "k": 1,
        "emceepee/resource": {"uri": "x://1", "mimeType": "application/json"},
    }
    [bare] = held({"uri": "x://1", "text": "abc", "mimeType": None})
    assert bare["_meta"] == {"emceepee/resource": {"uri": "x://1"}}


@pytest.mark.parametrize("bad", [{"uri": "x://1"}, {"uri": 7, "blob": "x"}, {"text": 5}])
def test_contents_that_are_none_are_told_as_text(bad: dict[str, Any]) -> None:
    [block] = held(bad)
    assert block["type"] == "text"
    assert "no content block" in block["text"]


def test_what_is_wrong_beside_the_content_is_left_out_however_many_values_it_holds() -> None:
    wrong = text("x") | {"annotations": [[]] * 20_000, "_meta": {"a": [1] * 20_000}}
    [block] = passed({"content": [wrong]})[0]
    assert block == text("x") | {"_meta": {"a": [1] * 20_000}}


@pytest.mark.parametrize(
    "contents", [b",".join([b"1e308"] * 2_000), b",".join([b'{"uri":"x://1"}'] * 1_001)]
)
def test_many_contents_that_are_none_are_not_looked_at_one_by_one(contents: bytes) -> None:
    with pytest.raises(CallFailed, match="without readable contents"):
        Reply.contents(Raw(b'{"contents":[%b]}' % contents), server="s")


def test_more_contents_than_can_be_read_are_refused_unread() -> None:
    many = b",".join([b'{"uri":"x://1","text":""}'] * 101_000)
    with pytest.raises(CallFailed, match=r"a resource of \d+ bytes, unread"):
        Reply.contents(Raw(b'{"contents":[%b]}' % many), server="s")
    some = b",".join([b'{"uri":"x://1","text":""}'] * 2_000)
    assert Reply.contents(Raw(b'{"contents":[%b]}' % some), server="s").content.count(b"text") > 1


def test_a_task_in_place_of_a_result_is_not_supported() -> None:
    with pytest.raises(NotSupported, match='"k"'):
        passed({"task": {"taskId": "k"}})
    assert passed({"task": {}, "content": [text("x")]})[0] == [text("x")]


def test_a_result_of_another_type_is_never_an_empty_success() -> None:
    with pytest.raises(CallFailed, match='"input_required"'):
        passed({"resultType": "input_required", "inputRequests": {}})
    with pytest.raises(NotSupported, match='"k"'):
        passed({"resultType": "task", "taskId": "k"})
    assert passed({"resultType": "complete", "_meta": {}, "isError": False})[0] == []


def test_a_result_without_content_is_told_with_what_it_holds() -> None:
    [block] = passed('{"toolResult": {"n": 1}}')[0]
    assert block == text('The server sent a result without content: {"toolResult": {"n": 1}}')
    assert passed({"toolResult": 1, "content": []})[0] == []


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def deepest() -> int:
    """The deepest nesting that can be read where nobody else is on the stack: in a new thread."""

    def is_too_deep(depth: int) -> bool:
        try:
            msgspec.json.decode(nested(depth))
        except RecursionError:
            return True
        return False

    with ThreadPoolExecutor(max_workers=1) as fresh:
        return fresh.submit(bisect_left, range(200_000), 1, key=is_too_deep).result()


# Where a reader gives up depends on who called it, so every depth in a range is tried.
LIMIT = deepest()
DEPTHS = [10, *range(LIMIT - 150, LIMIT + 10), 2 * LIMIT]


def attempted(result: str) -> str:
    """The content of the reply; nothing where the result is too deep to be read."""
    try:
        return Reply.result(Raw(result.encode()), server="s").content.decode()
    except CallFailed as error:
        if "nested too deeply" not in error.fact:
            raise
        return ""


def test_a_text_of_any_depth_arrives_beside_structured_content() -> None:
    for depth in DEPTHS:
        deep = text(nested(depth))
        blocks, _ = passed({"content": [deep], "structuredContent": {"n": 1}})
        assert blocks == [deep, text('{"n": 1}')], depth


@pytest.mark.parametrize(
    ("content", "structured"),
    [
        ('{"type":"text","text":"x"}', "DEEP"),
        ('{"type":"text","text":TEXT}', "DEEP"),
        ('{"type":"text","text":"x","_meta":DEEP}', '{"n":1}'),
    ],
    ids=["structured", "structured-and-text", "block"],
)
def test_what_is_too_deep_to_be_compared_arrives_until_it_is_too_deep_to_be_read(
    content: str, structured: str
) -> None:
    for depth in DEPTHS:
        deep = nested(depth)
        given = content.replace("TEXT", json.dumps(deep)).replace("DEEP", deep)
        value = structured.replace("DEEP", deep)
        found = attempted(f'{{"content":[{given}],"structuredContent":{value}}}')
        allowed = {f'{given},{{"type":"text","text":{json.dumps(value)}}}'}
        if "TEXT" in content:
            allowed.add(given)
        if depth >= LIMIT - 150:
            allowed.add("")
        assert found in allowed, depth


def test_a_block_that_is_none_is_shown_until_it_is_too_deep_to_be_read() -> None:
    for depth in DEPTHS:
        deep = nested(depth)
        content = attempted(f'{{"content":[7,{deep}]}}')
        found = json.loads(f"[{content}]")
        ends = [block["text"].partition("): ")[2] for block in found]
        as_a_whole = [f"[7,{deep}]"]  # too deep to be looked at one by one
        is_near = depth >= LIMIT - 150
        assert ends == ["7", deep] or (is_near and ends in ([], as_a_whole)), depth


@pytest.mark.parametrize("number", ["1e999", "-1e999", "7" * 5_000], ids=["huge", "low", "long"])
@pytest.mark.parametrize(
    ("content", "structured"),
    [
        ('{"type":"text","text":"x"}', '{"n":NUMBER}'),
        ('{"type":"text","text":"{\\"n\\":NUMBER}"}', '{"n":1}'),
        ('{"type":"text","text":"x","_meta":{"n":NUMBER}}', '{"n":1}'),
    ],
    ids=["structured", "text", "block"],
)
def test_a_number_that_is_out_of_range_arrives_as_it_was(
    content: str, structured: str, number: str
) -> None:
    given, value = (part.replace("NUMBER", number) for part in (content, structured))
    found = attempted(f'{{"content":[{given}],"structuredContent":{value}}}')
    assert found == f'{given},{{"type":"text","text":{json.dumps(value)}}}'
