import json
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.session.reply import Reply


def passed(result: str | dict[str, Any]) -> tuple[Any, Reply]:
    text = result if isinstance(result, str) else json.dumps(result)
    reply = Reply.result(Raw(text.encode()), server="s")
    return json.loads(b"[%b]" % reply.content), reply


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def test_blocks_keep_their_bytes() -> None:
    given = '{"b":1.50,"a" :"\\u00e9","type":"y"} , {"type":"x"}'
    _, reply = passed(f'{{"content": [ {given} ], "other": 1}}')
    assert reply.content == given.encode()


@pytest.mark.parametrize("bad", ["7", "null", '"x"', "[]", "{}", '{"type":7}', '{"text":"y"}'])
def test_what_is_no_block_is_shown_as_text_and_the_others_stay_as_they_are(bad: str) -> None:
    good = '{"type":"text" , "text":"a"}'
    blocks, reply = passed(f'{{"content":[{good}, {bad} ,{good}]}}')
    assert blocks == [text("a"), text(bad), text("a")]
    assert reply.content.startswith(good.encode())


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


def test_contents_of_a_resource_are_text_or_embedded() -> None:
    result = {"contents": [{"uri": "x://1", "text": "abc"}, {"uri": "x://2", "blob": "aGk="}]}
    reply = Reply.contents(Raw(json.dumps(result).encode()), server="s")
    assert json.loads(b"[%b]" % reply.content) == [
        text("abc"),
        {"type": "resource", "resource": {"uri": "x://2", "blob": "aGk="}},
    ]
    with pytest.raises(CallFailed):
        Reply.contents(Raw(b"{}"), server="s")
