import re
import sys
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emceepee_stdio.errors import (
    InvalidArguments,
    InvalidPattern,
    ResourceNotFound,
    ResultExpired,
    ResultTooLarge,
)
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.state.results import Hit, Results


def make_results(max_bytes: int = 64 << 20) -> Results:
    numbers = count(1)
    return Results(new_id=lambda: f"r{next(numbers)}", max_bytes=max_bytes)


def size_of(text: str) -> int:
    return sys.getsizeof(text)


# The store


def test_a_result_is_stored_whole():
    results = make_results()
    stored = results.put("abc", now=4.0)
    assert (stored.id, stored.created_at, stored.chars) == ("r1", 4.0, 3)
    assert stored.size == size_of("abc") == results.size
    assert results.all() == [stored]
    page = results.page(stored.id, offset=0, limit=100, now=4.0)
    assert (page.text, page.next_offset, page.total) == ("abc", None, 3)


def test_the_oldest_results_go_when_the_store_is_full_and_are_said_to_be_gone():
    one = size_of("x" * 1000)
    results = make_results(max_bytes=3 * one)
    stored = [results.put("x" * 1000, now=float(n)) for n in range(4)]
    assert results.all() == stored[1:]
    assert results.size == 3 * one
    with pytest.raises(ResultExpired, match=r"room was needed for newer results, 2\.0 s ago"):
        results.page(stored[0].id, offset=0, limit=1, now=5.0)
    with pytest.raises(ResultExpired, match="r1 is no longer kept"):
        results.search(stored[0].id, Pattern("x"), now=5.0)


def test_a_large_result_takes_the_place_of_several():
    results = make_results(max_bytes=size_of("x" * 3000))
    for _ in range(4):
        results.put("x" * 100, now=0.0)
    large = results.put("x" * 3000, now=0.0)
    assert results.all() == [large]
    assert results.size == large.size


def test_the_store_counts_the_memory_that_wide_characters_take():
    results = make_results()
    assert results.put("😀" * 1000, now=0.0).size >= 4000


def test_a_result_larger_than_the_store_is_refused_and_nothing_goes_for_it():
    results = make_results(max_bytes=size_of("x" * 100))
    kept = results.put("x" * 100, now=0.0)
    with pytest.raises(ResultTooLarge, match=rf"the store holds {kept.size} in all"):
        results.put("x" * 101, now=0.0)
    assert results.all() == [kept]


def test_an_unknown_result_is_not_found():
    with pytest.raises(ResourceNotFound, match="'r9'"):
        make_results().page("r9", offset=0, limit=1, now=0.0)


def test_the_reprs_show_id_and_size():
    results = make_results(max_bytes=1000)
    stored = results.put("abc", now=0.0)
    assert repr(stored) == "<Stored r1 3 chars>"
    assert repr(results) == f"<Results 1 stored {size_of('abc')}/1000 bytes>"


# Pages


@pytest.mark.parametrize(("offset", "limit"), [(-1, 10), (0, 0), (0, -5)])
def test_a_range_that_makes_no_sense_is_refused(offset: int, limit: int):
    results = make_results()
    stored = results.put("abc", now=0.0)
    with pytest.raises(InvalidArguments, match=f"offset was {offset} and limit {limit}"):
        results.page(stored.id, offset=offset, limit=limit, now=0.0)
    with pytest.raises(InvalidArguments, match=f"offset was {offset} and limit {limit}"):
        results.search(stored.id, Pattern("a"), offset=offset, limit=limit, now=0.0)


def test_beyond_the_end_a_page_is_empty_and_the_last():
    results = make_results()
    stored = results.put("abc", now=0.0)
    page = results.page(stored.id, offset=50, limit=10, now=0.0)
    assert (page.text, page.offset, page.next_offset, page.total) == ("", 50, None, 3)
    hits = results.search(stored.id, Pattern("a"), offset=50, now=0.0)
    assert (hits.hits, hits.next_offset) == ((), None)


def test_a_page_that_ends_with_the_text_is_the_last():
    results = make_results()
    stored = results.put("abcd", now=0.0)
    assert results.page(stored.id, offset=2, limit=2, now=0.0).next_offset is None
    assert results.page(stored.id, offset=1, limit=2, now=0.0).next_offset == 3


TEXTS = st.text(st.sampled_from("aé\u0301😀👩‍🚀\U0010ffff\n漢\0")) | st.text()


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, limit=st.integers(1, 20))
def test_pages_put_together_are_the_text_exactly(text: str, limit: int):
    results = make_results()
    stored = results.put(text, now=0.0)
    pages: list[str] = []
    offset: int | None = 0
    while offset is not None:
        page = results.page(stored.id, offset=offset, limit=limit, now=0.0)
        assert (page.offset, page.total) == (offset, len(text))
        pages.append(page.text)
        offset = page.next_offset
    assert "".join(pages) == text
    assert all(len(page) == limit for page in pages[:-1])


# Searching


def search_all(text: str, pattern: str, *, window: int, limit: int = 20) -> list[tuple[int, int]]:
    """Search to the end, from look to look."""
    results = make_results()
    stored = results.put(text, now=0.0)
    found: list[tuple[int, int]] = []
    offset: int | None = 0
    while offset is not None:
        hits = results.search(
            stored.id, Pattern(pattern), offset=offset, limit=limit, window=window, now=0.0
        )
        found += [(hit.offset, hit.offset + hit.length) for hit in hits.hits]
        assert len(hits.hits) <= limit
        assert hits.next_offset is None or hits.next_offset > offset
        offset = hits.next_offset
    return found


@settings(max_examples=200, deadline=None)
@given(
    text=st.text("abA😀", max_size=80),
    literal=st.text("abA😀", min_size=1, max_size=4),
    window=st.integers(1, 100),
    limit=st.integers(1, 5),
)
@example(text="aaaa", literal="aa", window=1, limit=1)
@example(text="abab", literal="ab", window=3, limit=5)
def test_every_match_is_found_once_through_windows_of_any_size(
    text: str, literal: str, window: int, limit: int
):
    expected = [m.span() for m in re.finditer(re.escape(literal), text, re.IGNORECASE)]
    assert search_all(text, re.escape(literal), window=window, limit=limit) == expected


def test_a_match_across_the_border_of_two_windows_is_found_once():
    assert search_all("..needle..needle..", "needle", window=4) == [(2, 8), (10, 16)]


@pytest.mark.parametrize("place", [8_190, 8_200, 8_202])
def test_a_match_far_beyond_the_window_is_left_to_a_later_look_and_comes_whole(place: int):
    text = "." * place + "xxxx" + "." * 20_000
    assert search_all(text, "x+", window=10) == [(place, place + 4)]


def test_a_match_at_the_very_end_is_found():
    assert search_all("x" * 99 + "end", "end", window=10) == [(99, 102)]


@pytest.mark.parametrize("window", [1, 2, 3, 100])
@pytest.mark.parametrize("pattern", ["x*", "", "^", "$", "(?=a)"])
def test_a_pattern_that_matches_nothing_at_all_comes_to_an_end(pattern: str, window: int):
    expected = [m.span() for m in re.finditer(pattern, "axxb")]
    assert search_all("axxb", pattern, window=window) == expected


def test_a_pattern_that_matches_nothing_ends_with_a_limit_of_one_too():
    found = search_all("axxb", "x*", window=2, limit=1)
    assert [span for span in found if span[0] != span[1]] == [(1, 3)]


def test_what_stands_before_the_window_is_seen_by_the_pattern():
    assert search_all("aaaa", r"^a", window=1) == [(0, 1)]
    assert search_all("ab ab", r"\bb", window=1) == []
    assert search_all("ab cb", r"(?<=c)b", window=1) == [(4, 5)]


def test_a_hit_shows_what_stands_around_it():
    text = "l" * 500 + "needle" + "r" * 500
    results = make_results()
    stored = results.put(text, now=0.0)
    (hit,) = results.search(stored.id, Pattern("needle"), now=0.0).hits
    excerpt = "l" * 120 + "needle" + "r" * 120
    assert hit == Hit(offset=500, length=6, excerpt=excerpt)


def test_the_excerpt_of_a_very_long_hit_stays_short():
    results = make_results()
    stored = results.put("x" * 5000, now=0.0)
    (hit,) = results.search(stored.id, Pattern("x+"), now=0.0).hits
    assert hit.length == 5000
    assert len(hit.excerpt) <= 360


def test_as_many_hits_as_asked_for_and_the_place_to_look_on():
    results = make_results()
    stored = results.put("a.a.a.a", now=0.0)
    hits = results.search(stored.id, Pattern("a"), limit=2, now=0.0)
    assert [hit.offset for hit in hits.hits] == [0, 2]
    assert hits.next_offset == 3


def test_a_pattern_that_runs_away_is_given_up():
    results = make_results()
    stored = results.put("x" * 5000, now=0.0)
    with pytest.raises(InvalidPattern, match="took longer than 5 ms"):
        results.search(stored.id, Pattern("(x+x+)+y", timeout=0.005), now=0.0)
