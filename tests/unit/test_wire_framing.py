from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.wire.framing import Lines, Oversized, turns

HEAD = 65_536
TAIL = 512


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in pairwise(points)]


def read(chunks: list[bytes], max_bytes: int) -> list[bytes | Oversized]:
    lines = Lines(max_bytes)
    out = [line for chunk in chunks for line in lines.feed(chunk)]
    return out + lines.end()


def expected(data: bytes, max_bytes: int) -> list[bytes | Oversized]:
    whole = data.split(b"\n")
    if not whole[-1]:
        whole.pop()
    return [
        line
        if len(line) <= max_bytes
        else Oversized(head=line[:HEAD], size=len(line), tail=line[-TAIL:])
        for line in whole
    ]


def test_lines_come_out_whole_and_without_their_newline():
    lines = Lines()
    assert lines.feed(b"a\nbc\n\nde") == [b"a", b"bc", b""]
    assert lines.feed(b"f") == []
    assert lines.feed(b"\n") == [b"def"]
    assert lines.end() == []


def test_carriage_returns_and_other_separators_are_left_alone():
    assert Lines().feed("a\r\nb\u2028c\x0b\x85\n".encode()) == [
        b"a\r",
        "b\u2028c\x0b\x85".encode(),
    ]


def test_what_stands_without_a_newline_at_the_end_is_a_line():
    lines = Lines()
    lines.feed(b"a\nlast")
    assert lines.end() == [b"last"]
    assert lines.end() == []


def test_the_end_of_nothing_is_nothing():
    assert Lines().end() == []
    lines = Lines()
    lines.feed(b"a\n")
    lines.feed(b"")
    assert lines.end() == []


@settings(max_examples=200)
@given(
    data=st.lists(
        st.sampled_from([b"\n", b"", b"a", b"{}", b"xyz" * 5, b"\r", b"\xff"]), max_size=40
    ).map(b"".join),
    cuts=st.lists(st.integers(0, 1000), max_size=20),
    max_bytes=st.integers(1, 20),
)
def test_any_split_of_a_stream_gives_the_same_lines(data: bytes, cuts: list[int], max_bytes: int):
    assert read(split(data, cuts), max_bytes) == expected(data, max_bytes)


@settings(max_examples=50)
@given(
    sizes=st.lists(st.integers(0, 3 * HEAD), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 12 * HEAD), max_size=8),
    max_bytes=st.sampled_from([10, HEAD - 1, HEAD, HEAD + 1, 2 * HEAD]),
)
def test_both_ends_and_the_true_size_of_a_line_over_the_bound_are_kept(
    sizes: list[int], cuts: list[int], max_bytes: int
):
    data = b"\n".join((bytes(range(48, 123)) * (size // 75 + 1))[:size] for size in sizes)
    assert read(split(data, cuts), max_bytes) == expected(data, max_bytes)


def test_the_lines_after_one_over_the_bound_are_intact():
    lines = Lines(10)
    assert lines.feed(b"x" * 11 + b"\nnext\n" + b"y" * 10) == [
        Oversized(b"x" * 11, 11, b"x" * 11),
        b"next",
    ]
    assert lines.feed(b"\nz") == [b"y" * 10]
    assert lines.feed(b"z" * 20) == []
    assert lines.end() == [Oversized(b"z" * 21, 21, b"z" * 21)]
    assert lines.feed(b"a\n") == [b"a"]


def test_a_line_of_exactly_the_bound_is_a_line():
    assert Lines(5).feed(b"12345\n123456\n") == [b"12345", Oversized(b"123456", 6, b"123456")]


@pytest.mark.parametrize("cut", [0, 1, HEAD, 2 * HEAD])
def test_a_line_of_exactly_the_bound_is_whole_however_it_comes(cut: int):
    data = bytes(range(48, 112)) * (2 * HEAD // 64)
    assert read([data[:cut], data[cut:], b"\n"], 2 * HEAD) == [data]
    assert read([data[:cut], data[cut:]], 2 * HEAD) == [data]


def test_no_more_than_the_bound_and_a_head_is_ever_held():
    lines = Lines(200_000)
    for _ in range(1_000):
        lines.feed(b"x" * 10_000)
        assert len(lines._unfinished) <= 200_000
        assert len(lines._tail) <= TAIL
    (line,) = lines.feed(b"\n")
    assert line == Oversized(b"x" * HEAD, 10_000_000, b"x" * TAIL)
    assert not lines._unfinished


@pytest.mark.parametrize("bound", [64 << 20, 100_000])
def test_a_megabyte_that_comes_byte_by_byte_is_read(bound: int):
    lines = Lines(bound)
    for _ in range(1 << 20):
        lines.feed(b"x")
    (line,) = lines.feed(b"\n")
    assert len(line) == 1 << 20 if isinstance(line, bytes) else line.size == 1 << 20


def test_the_repr_shows_what_waits():
    lines = Lines(10)
    lines.feed(b"abc")
    assert repr(lines) == "<Lines waiting=3/10>"


@pytest.mark.parametrize(
    ("data", "longest"),
    [
        (b"x" * 65_536, 65_536),
        (b"x" * 65_535 + b"\n", 65_536),
        ((b"x" * 200 + b"\n") * 50, 50 * 201),
        ((b"x" * 15_000 + b"\n") * 4, 16_384),
        (b"\n" * 65_536, 2_048),
    ],
    ids=["a part of a line", "one line", "some lines", "long lines", "very many lines"],
)
def test_what_holds_more_than_one_line_is_taken_in_a_little_at_a_time(
    data: bytes, longest: int
) -> None:
    pieces = list(turns(data))
    assert b"".join(pieces) == data
    assert max(map(len, pieces)) == longest
