import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Raw

from emceepee_stdio.config.settings import Settings
from emceepee_stdio.errors import CallFailed, InvalidArguments
from emceepee_stdio.session.client_calls import Call, CallingClient
from emceepee_stdio.tools.resource_tools import CompleteArgument, _messages, complete_argument

WORDS = {"type": "text", "text": "hello"}
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def said(*messages: Any, **more: Any) -> list[Any]:
    result = Raw(json.dumps({"messages": list(messages), **more}).encode())
    return json.loads(b"[%b]" % _messages(result, server="s").content)


def test_the_head_names_who_says_each_block() -> None:
    head, *blocks = said(
        {"role": "user", "content": WORDS},
        {"role": "assistant", "content": IMAGE},
        description="d",
    )
    assert json.loads(head["text"]) == {"description": "d", "roles": ["user", "assistant"]}
    assert blocks == [WORDS, IMAGE]


def test_several_blocks_and_bare_words_are_understood() -> None:
    head, *blocks = said(
        {"role": "user", "content": [WORDS, IMAGE]}, {"role": "assistant", "content": "yes"}
    )
    assert json.loads(head["text"])["roles"] == ["user", "user", "assistant"]
    assert blocks == [WORDS, IMAGE, {"type": "text", "text": "yes"}]
    assert len(said()) == 1


def test_a_block_keeps_its_bytes() -> None:
    result = Raw(b'{"messages":[{"role":"user","content":{ "type":"text","text":"\\u00e9" }}]}')
    assert b'{ "type":"text","text":"\\u00e9" }' in _messages(result, server="s").content


@pytest.mark.parametrize(
    "result",
    [b"7", b"{}", b'{"messages":7}', b'{"messages":[7]}', b'{"messages":[{"role":"user"}]}'],
)
def test_what_cannot_be_read_is_told(result: bytes) -> None:
    with pytest.raises(CallFailed, match="without readable messages"):
        _messages(Raw(result), server="s")


def test_of_very_many_blocks_that_are_none_the_beginning_is_told() -> None:
    bad = b"[%b]" % b",".join([b"1e308"] * 1_500)
    result = Raw(b'{"messages":[{"role":"user","content":%b}]}' % bad)
    told = _messages(result, server="s").content
    assert told.count(b"no content block") == 1


def test_a_prompt_of_more_values_than_can_be_read_is_refused_unread() -> None:
    many = b",".join([b"1e308"] * 20_001)
    result = Raw(b'{"messages":[{"role":"user","content":[%b]}]}' % many)
    with pytest.raises(CallFailed, match=r"a prompt of \d+ bytes, unread"):
        _messages(result, server="s")


@pytest.mark.parametrize("bad", [b"7", b"null", b"[7]", b'{"type":"text","text":5}'])
def test_what_is_no_block_is_told_in_its_place(bad: bytes) -> None:
    result = Raw(b'{"messages":[{"role":"user","content":%b}]}' % bad)
    assert b"no content block" in _messages(result, server="s").content


class Completing:
    """A server that completes with what it is told."""

    name = "s"

    def __init__(self, result: bytes) -> None:
        self.result = result
        self.asked: list[Any] = []

    def get(self, _name: str) -> "Completing":
        return self

    async def complete(self, *asked: Any, within: float, call: object) -> Raw:
        self.asked.append(asked)
        return Raw(self.result)


async def complete(server: Completing, **arguments: Any) -> Any:
    runtime: Any = SimpleNamespace(servers=server, settings=Settings())
    params = CompleteArgument(server="s", argument="a", **arguments)
    reply = await complete_argument(runtime, params, Call(client=CallingClient(ceiling=45.0)))
    return json.loads(json.loads(reply.content)["text"])


async def test_a_completion_is_asked_of_a_prompt_or_a_template() -> None:
    server = Completing(b'{"completion":{"values":["x"],"total":1}}')
    assert await complete(server, prompt="p", context={"k": "v"}) == {
        "completion": {"values": ["x"], "total": 1}
    }
    await complete(server, template="x://{a}")
    first, second = server.asked
    assert first == ({"type": "ref/prompt", "name": "p"}, {"name": "a", "value": ""}, {"k": "v"})
    assert second[0] == {"type": "ref/resource", "uri": "x://{a}"}
    assert second[2] is None


async def test_one_of_both_must_be_named() -> None:
    server = Completing(b"{}")
    for arguments in ({}, {"prompt": "p", "template": "t"}):
        with pytest.raises(InvalidArguments, match="either prompt or template"):
            await complete(server, **arguments)


@pytest.mark.parametrize("result", [b"[]", b"{}", b'{"completion":null}', b'{"completion":[]}'])
async def test_a_completion_that_cannot_be_read_is_told(result: bytes) -> None:
    with pytest.raises(CallFailed, match="cannot be read"):
        await complete(Completing(result), prompt="p")
