import pytest

from emceepee_stdio.errors import InvalidPattern
from emceepee_stdio.state.patterns import Pattern


def test_a_pattern_is_found_anywhere_and_case_is_ignored():
    pattern = Pattern("err(or)?")
    assert pattern.matches("an ERROR here")
    assert not pattern.matches("all is well")


def test_the_expression_may_ask_for_case():
    assert not Pattern("(?-i:error)").matches("ERROR")


def test_spans_are_found_in_order_without_overlaps():
    assert list(Pattern("aa").spans("aaaaa")) == [(0, 2), (2, 4)]


def test_spans_are_found_between_two_places():
    assert list(Pattern("a").spans("aaaa", 1, 3)) == [(1, 2), (2, 3)]
    assert list(Pattern("a").spans("aaaa", 2)) == [(2, 3), (3, 4)]


@pytest.mark.parametrize(
    "text", ["(", "[a", "*", "(?P<n", "a{2}{3}", "(?au)x", "(?<=2?^L{1s<&&?", "\\p{nonsense}"]
)
def test_what_is_no_regular_expression_is_refused(text: str):
    with pytest.raises(InvalidPattern, match="not a regular expression"):
        Pattern(text)


def test_a_pattern_has_a_greatest_length():
    Pattern("x" * 500)
    with pytest.raises(InvalidPattern, match="has 501 characters; 500 are allowed"):
        Pattern("x" * 501)
    with pytest.raises(InvalidPattern, match="3 are allowed"):
        Pattern("xxxx", max_chars=3)


@pytest.mark.parametrize("text", ["(x+x+)+y", "(?:x|xx|xxx)+y(?:z|zz)+$"])
def test_a_pattern_that_runs_away_is_given_up(text: str):
    pattern = Pattern(text, timeout=0.005)
    with pytest.raises(InvalidPattern, match="took longer than 5 ms"):
        pattern.matches("x" * 5000)
    with pytest.raises(InvalidPattern, match="took longer than 5 ms"):
        list(pattern.spans("x" * 5000))


@pytest.mark.parametrize(
    "text",
    [
        "a{200000}",
        "(?:((a{9999}){9999}){9999})",
        "((ab){1000} ){1000,}",
        "(a)(?1){9999999}",
        "(?x)(a{99 99}) {99 #\n 99}",
        "(" + r"\w\d" * 120 + "){9999}",
    ],
)
def test_counts_that_would_unroll_into_all_memory_are_refused_before_compiling(text: str):
    with pytest.raises(InvalidPattern, match="repeats too much"):
        Pattern(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"\d{4}-\d{2}-\d{2}T(\d{2}:){2}\d{2}", "2025-01-02T03:04:05"),
        (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "0b0e7c1e-6f3c-4d2a-9c1b-0123456789ab"),
        (r"(\d{1,3}\.){3}\d{1,3}", "127.0.0.1"),
        (r"a{,3}b{0,99999999}", "b"),
        (r"(ab{0,999999}){0,999999}", "ab"),
        (r'\{"id":7\}', '{"id":7}'),
        (r"x{1000}", "x" * 1000),
    ],
)
def test_ordinary_counts_are_welcome(text: str, found: str):
    assert Pattern(text).matches(found)


def test_searching_backwards_is_refused_because_hits_are_told_in_order():
    with pytest.raises(InvalidPattern, match="backwards"):
        Pattern("(?r)a")


def test_the_repr_shows_the_expression():
    assert repr(Pattern("a|b")) == "<Pattern 'a|b'>"
