"""Messages that have begun and not ended: together they stay within a bound."""

import gc

import pytest

from emceepee_stdio.backends.channels.event_stream import EventStream, OversizedEvent, ServerEvent
from emceepee_stdio.backends.channels.http_carrier import Body, TooMuch
from emceepee_stdio.wire.framing import Lines, Oversized, PartialMessages

ROOM = 300_000
LINE = 200_000


def begun(partial: PartialMessages, size: int) -> Lines:
    lines = Lines(LINE, partial=partial)
    lines.feed(b"x" * size)
    return lines


def test_the_longest_gives_way_and_the_others_stay_whole() -> None:
    partial = PartialMessages(ROOM)
    long, short = begun(partial, 150_000), begun(partial, 100_000)
    third = begun(partial, 60_000)
    (cut,) = long.feed(b"y\n")
    assert isinstance(cut, Oversized)
    assert (cut.size, len(cut.head), cut.tail[-2:]) == (150_001, 65_536, b"xy")
    assert short.feed(b"\n") == [b"x" * 100_000]
    assert third.feed(b"\n") == [b"x" * 60_000]


def test_after_one_that_gave_way_lines_are_read_as_usual() -> None:
    partial = PartialMessages(ROOM)
    lines = begun(partial, 150_000)
    other = begun(partial, 149_999)
    begun_third = begun(partial, 10_000)
    lines.feed(b"\nnext")
    assert lines.feed(b"\n") == [b"next"]
    assert other.feed(b"\n") == [b"x" * 149_999]
    assert begun_third.feed(b"\n") == [b"x" * 10_000]


def test_however_many_there_are_no_more_is_kept_than_the_bound() -> None:
    partial = PartialMessages(ROOM)
    many = [begun(partial, 100_000) for _ in range(50)]
    kept = sum(len(lines._unfinished) for lines in many)
    assert kept <= ROOM + 50 * 65_536
    assert sum(isinstance(line, bytes) for lines in many for line in lines.feed(b"\n")) == 3


def test_what_has_ended_or_was_thrown_away_counts_no_more() -> None:
    partial = PartialMessages(ROOM)
    begun(partial, 150_000).feed(b"\n")
    begun(partial, 150_000).drop()
    begun(partial, 150_000)
    gc.collect()
    first, second = begun(partial, 150_000), begun(partial, 150_000)
    assert first.feed(b"\n") == second.feed(b"\n") == [b"x" * 150_000]


def test_an_event_of_many_lines_gives_way_too() -> None:
    partial = PartialMessages(ROOM)
    stream = EventStream(max_bytes=1_000_000, partial=partial)
    assert stream.feed(b"data: aa\n" * 80_000) == []
    whole = begun(partial, 150_000)
    (event,) = stream.feed(b"\n")
    assert isinstance(event, OversizedEvent)
    assert whole.feed(b"\n") == [b"x" * 150_000]
    assert stream.feed(b"data: next\n\n") == [ServerEvent("message", b"next")]


def test_the_body_of_an_answer_gives_way_too() -> None:
    partial = PartialMessages(ROOM)
    body = Body(1_000_000, partial)
    assert body.take(b"x" * 200_000)
    whole = begun(partial, 150_000)
    assert not body.take(b"x")
    with pytest.raises(TooMuch, match="200001 bytes"):
        body.whole()
    assert whole.feed(b"\n") == [b"x" * 150_000]
