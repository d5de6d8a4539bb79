"""Server-sent events, in whatever pieces they come."""

import re
from itertools import pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from emceepee_stdio.backends.channels.event_stream import (
    EventStream,
    OversizedEvent,
    ServerEvent,
)

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
VALUES = st.one_of(
    st.sampled_from([b"", b" ", b"x", b"12", b"a\0b", b"{}", b":", b"data: x", b"\xff\xfe"]),
    st.text(st.characters(blacklist_characters="\r\n"), max_size=6).map(
        lambda text: text.encode("utf-8", "replace")
    ),
)
NAMES = st.sampled_from([b"data", b"event", b"id", b"retry", b"", b"other", b"Data", b"data "])
LINES = st.one_of(
    st.just(b""),
    st.builds(lambda n, colon, v: n + colon + v, NAMES, st.sampled_from([b":", b": "]), VALUES),
    NAMES,
)
DOCUMENTS = st.lists(st.tuples(LINES, ENDS)).map(lambda lines: b"".join(a + b for a, b in lines))


def by_the_book(document: bytes) -> tuple[list[ServerEvent], str | None, float | None]:
    """The format read as a whole, word by word as its specification has it."""
    events: list[ServerEvent] = []
    data: list[bytes] = []
    kind, next_id, last_id, retry = b"", None, None, None
    *lines, _ = re.split(rb"\r\n|\r|\n", document.removeprefix(b"\xef\xbb\xbf"))
    for line in lines:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if not line:
            last_id = next_id
            if b"\n".join(data):
                events.append(ServerEvent(kind.decode(errors="replace") or "message", joined(data)))
            data, kind = [], b""
        elif name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value
        elif name == b"id" and b"\0" not in value:
            next_id = value.decode(errors="replace") or None
        elif name == b"retry" and re.fullmatch(rb"[0-9]+", value):
            retry = int(value) / 1000
    return events, last_id, retry


def joined(data: list[bytes]) -> bytes:
    return b"\n".join(data)


def pieces(document: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({cut % (len(document) + 1) for cut in cuts})
    edges = [0, *places, len(document)]
    return [document[a:b] for a, b in pairwise(edges)]


@given(DOCUMENTS, st.lists(st.integers(0, 10_000)))
@example(b"data: a\r\n\r\n", [8, 9, 10])
@example(b"data: a\r\ndata: b\r\n\r\n", [8])
@example(b"data: a\r\ndata: b\r\n\r\n", [8, 9])
@example(b"\xef\xbb\xbfdata: a\n\n", [1, 2])
def test_any_stream_in_any_pieces_reads_as_the_specification_has_it(
    document: bytes, cuts: list[int]
) -> None:
    stream = EventStream(max_bytes=1_000_000)
    events = [event for piece in pieces(document, cuts) for event in stream.feed(piece)]
    assert (events, stream.last_id, stream.retry) == by_the_book(document)


def test_an_event_that_ends_with_a_bare_cr_does_not_wait_for_more() -> None:
    stream = EventStream(max_bytes=100)
    assert stream.feed(b"data: x\r\r") == [ServerEvent("message", b"x")]
    assert stream.feed(b"\ndata: y\r") == []
    assert stream.feed(b"\n\r\n") == [ServerEvent("message", b"y")]


@given(st.integers(1, 300), st.lists(st.integers(0, 200), min_size=1), st.lists(st.integers(0)))
def test_no_event_over_the_bound_is_kept_and_none_within_is_lost(
    bound: int, sizes: list[int], cuts: list[int]
) -> None:
    document = b"".join(b"data: %b\n\n" % (b"x" * size) for size in sizes)
    stream = EventStream(max_bytes=bound)
    events = [event for piece in pieces(document, cuts) for event in stream.feed(piece)]
    expected = [size for size in sizes if size]
    assert [
        (event.size >= size) if isinstance(event, OversizedEvent) else len(event.data) == size
        for event, size in zip(events, expected, strict=True)
    ] == [True] * len(expected)
    assert [isinstance(event, OversizedEvent) for event in events] == [
        size > bound for size in expected
    ]


def test_lines_without_data_count_towards_the_bound() -> None:
    stream = EventStream(max_bytes=100)
    for _ in range(1_000):
        stream.feed(b"data:\n" * 100)
    assert len(stream._data) <= 101
    (event,) = stream.feed(b"\n")
    assert isinstance(event, OversizedEvent)


def test_an_event_over_the_bound_shows_its_beginning_and_its_end() -> None:
    stream = EventStream(max_bytes=100)
    body = b'{"jsonrpc":"2.0","result":"%b","id":7}' % (b"x" * 100_000)
    (event,) = stream.feed(b"data: %b\n\n" % body)
    assert isinstance(event, OversizedEvent)
    assert event.head.lstrip().startswith(b'{"jsonrpc"')
    assert event.tail.endswith(b'"id":7}')
    assert stream.feed(b"data: x\n\n") == [ServerEvent("message", b"x")]


def test_a_comment_over_the_bound_says_nothing() -> None:
    stream = EventStream(max_bytes=100)
    assert stream.feed(b": %b\n\ndata: x\n\n" % (b"y" * 1_000)) == [ServerEvent("message", b"x")]


def test_a_pause_or_an_id_that_nobody_could_mean_is_not_taken() -> None:
    stream = EventStream(max_bytes=100_000)
    stream.feed(b"retry: 5\nid: a\n\n")
    stream.feed(b"retry: %b\nid: %b\n\n" % (b"9" * 5_000, b"i" * 5_000))
    assert (stream.retry, stream.last_id) == (0.005, "a")


def test_a_stream_opened_anew_keeps_its_position_and_forgets_half_an_event() -> None:
    stream = EventStream(max_bytes=100)
    stream.feed(b"id: 1\nretry: 50\ndata: a\n\nid: 2\ndata: half")
    again = stream.again()
    assert (again.last_id, again.retry, again.has_data) == ("1", 0.05, False)
    assert again.feed(b"data: b\n\n") == [ServerEvent("message", b"b")]
    assert again.has_data
