"""A message of many tiny values: what is made of it takes memory in measure with its bytes."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import anyio
import msgspec
import pytest
from msgspec import Raw

from emceepee_stdio.backends.eras import read_discovery, read_handshake
from emceepee_stdio.backends.interface import Kind, without_stream
from emceepee_stdio.backends.lists import Lists
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CannotConnect
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import Noise, Response, RpcError, decode

ZEROS = b"[%b0]" % (b"0," * 1_000_000)
EMPTY = b"[%b[]]" % (b"[]," * 1_000_000)
FIELDS = b",".join(b'"key-%d":0' % n for n in range(150_000))
HELLO = b'{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s"}%b}'
FACTOR = 8  # times the bytes of the message; as one object for each value it is over 25


def test_a_batch_of_nothings_is_noise() -> None:
    messages = within_measure(lambda: decode(ZEROS), len(ZEROS))
    assert isinstance(messages[0], Noise)
    assert messages[0].text.startswith(f"a batch of {len(ZEROS)} bytes was dropped")


def test_content_of_nothings_is_one_text_that_says_so() -> None:
    result = Raw(b'{"content":%b}' % ZEROS)
    reply = within_measure(lambda: Reply.result(result, server="s"), len(ZEROS))
    assert reply.content.startswith(b'{"type":"text","text":"The server sent something that is no')
    assert reply.content.count(b'"type"') == 1
    assert f"cut from {len(ZEROS)} bytes".encode() in reply.content


def test_more_blocks_than_anybody_reads_are_one_text() -> None:
    content = b",".join([b'{"type":"text","text":"x"}'] * 5_001)
    (block,) = msgspec.json.decode(
        b"[%b]" % Reply.result(Raw(b'{"content":[%b]}' % content), server="s").content
    )
    assert block["text"].endswith(f"(but 5001 of them): [{content.decode()}]")


def test_of_a_large_batch_the_answers_are_taken_and_the_rest_is_not() -> None:
    note = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"%b"}}'
    answer = b'{"jsonrpc":"2.0","id":1,"result":{}}'
    batch = b"[%b]" % b",".join([note % (b"x" * 10_000)] * 4 + [answer])
    taken, noise = decode(batch)
    assert isinstance(taken, Response)
    assert noise == Noise(f"4 messages of a batch of {len(batch)} bytes were dropped")


def test_what_only_the_slow_reader_reads_is_read_up_to_a_number_of_values() -> None:
    numbers = b'{"jsonrpc":"2.0","id":1,"result":{"nan":NaN,"values":[%b1]}}'
    (few,) = decode(numbers % (b"1," * 40_000))
    (many,) = decode(numbers % (b"1," * 60_000))
    assert isinstance(few, Response)
    assert isinstance(many, Response)
    assert isinstance(few.outcome, Raw)
    assert isinstance(many.outcome, RpcError)


@pytest.mark.parametrize("text", [b"same", ZEROS], ids=["a short text", "a long text"])
def test_structured_content_of_nothings_is_passed_on_uncompared(text: bytes) -> None:
    block = b'{"type":"text","text":"%b"}' % text
    result = Raw(b'{"content":[%b],"structuredContent":%b}' % (block, EMPTY))
    reply = within_measure(lambda: Reply.result(result, server="s"), len(EMPTY) + len(text))
    assert reply.content.startswith(block)


def test_a_short_value_is_not_compared_with_a_text_of_nothings() -> None:
    result = Raw(b'{"content":[{"type":"text","text":"%b"}],"structuredContent":1}' % EMPTY)
    within_measure(lambda: Reply.result(result, server="s"), len(EMPTY))


def test_a_server_that_says_nothings_of_itself_is_known_by_their_size() -> None:
    hello = within_measure(
        lambda: read_handshake(Raw(HELLO % (b',"serverInfo":' + EMPTY)), server="s"), len(EMPTY)
    )
    assert hello.server_info == {"truncated": True, "bytes": len(EMPTY)}


def test_fields_that_nobody_knows_take_no_memory() -> None:
    hello = Raw(HELLO % (b"," + FIELDS))
    assert within_measure(lambda: read_handshake(hello, server="s"), len(FIELDS)).capabilities == {}
    page = b'{"tools":[{"name":"t"}],%b}' % FIELDS
    assert within_measure(lambda: listed(page), len(FIELDS)) == ["t"]


def test_a_large_notification_of_a_stream_is_passed_on_as_it_came() -> None:
    params = Raw(b'{"_meta":{"%b":7},%b}' % (SUBSCRIPTION_ID.encode(), FIELDS))
    rest, stream = within_measure(lambda: without_stream(params), len(FIELDS))
    assert (rest, stream) == (params, 7)


def test_long_instructions_are_kept_cut() -> None:
    hello = read_handshake(Raw(HELLO % (b',"instructions":"%b"' % (b"a" * 300_000))), server="s")
    assert hello.instructions == f"{'a' * 262_144} … (cut from 300000 characters)"


@pytest.mark.parametrize(
    ("read", "head"),
    [
        (read_handshake, b'"protocolVersion":"2025-11-25"'),
        (read_discovery, b'"supportedVersions":["2026-07-28"]'),
    ],
)
def test_capabilities_without_measure_are_none(read: Callable[..., Any], head: bytes) -> None:
    many = b"{%b}" % b",".join(b'"c%d":{}' % n for n in range(10_000))
    with pytest.raises(CannotConnect, match=r'without capabilities: .*"bytes":'):
        read(Raw(b'{%b,"capabilities":%b}' % (head, many)), server="s")


def test_a_page_of_nothings_is_not_read() -> None:
    with pytest.raises(CallFailed, match=f"answered tools/list with {len(EMPTY) + 10} bytes"):
        within_measure(lambda: listed(b'{"tools":%b}' % EMPTY), len(EMPTY))


def test_of_a_list_of_large_tools_as_many_are_read_as_there_is_room_for() -> None:
    tool = b'{"name":"t%d","description":"' + b"d" * 10_000 + b'"}'
    pages = [b'{"tools":[%b],"nextCursor":"%d"}' % (tool % n, n) for n in range(1_000)]
    lists = Lists("s", Clock(), room=lambda: 1 << 20)
    names = listed(*pages, lists=lists)
    assert 90 < len(names) < 110
    assert lists.bytes <= 1 << 20
    assert lists.cut == {Kind.TOOLS}


def test_the_room_of_a_list_that_failed_is_that_of_the_one_that_is_known() -> None:
    lists = Lists("s", Clock())
    listed(b'{"tools":[{"name":"t"}]}', lists=lists)
    before = lists.bytes
    assert before > 0
    with pytest.raises(CallFailed):
        listed(b'{"tools":[{"name":"t"}],"nextCursor":"2"}', b"{}", lists=lists)
    assert lists.bytes == before


def test_a_cursor_without_end_is_refused() -> None:
    with pytest.raises(CallFailed, match="a cursor of 10001 characters"):
        listed(b'{"tools":[],"nextCursor":"%b"}' % (b"c" * 10_001))


def within_measure(work: Callable[[], Any], size: int) -> Any:
    tracemalloc.start()
    try:
        return work()
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < FACTOR * size


def listed(*pages: bytes, lists: Lists | None = None) -> list[object]:
    coming = iter(pages)

    async def fetch(_: object) -> Raw:
        return Raw(next(coming))

    async def get() -> list[object]:
        kept = lists or Lists("s", Clock())
        found = await kept.get(Kind.TOOLS, fetch, told_of_changes=False, within=60)
        return [item["name"] for item in found]

    return anyio.run(get)
