import pytest

from emceepee_stdio.state.machine import Tombstones


def test_a_name_that_was_never_here_has_no_grave():
    assert Tombstones().describe("x", now=0.0) is None


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.0, "0.0 s"),
        (0.26, "0.3 s"),
        (59.9, "59.9 s"),
        (60.0, "1 min"),
        (150.1, "3 min"),
        (3599.0, "60 min"),
        (3600.0, "1.0 h"),
        (9000.0, "2.5 h"),
        (864_000.0, "240.0 h"),
    ],
)
def test_a_grave_tells_why_and_how_long_ago(seconds: float, told: str):
    tombstones = Tombstones()
    tombstones.add("x", "it was time", now=100.0)
    assert tombstones.describe("x", now=100.0 + seconds) == f"it was time, {told} ago"


def test_only_the_last_graves_are_remembered():
    tombstones = Tombstones(capacity=3)
    for name in "abcde":
        tombstones.add(name, "gone", now=0.0)
    assert len(tombstones) == 3
    assert [name for name in "abcde" if tombstones.describe(name, now=0.0)] == ["c", "d", "e"]


def test_burying_again_renews_the_grave():
    tombstones = Tombstones(capacity=2)
    tombstones.add("a", "first", now=0.0)
    tombstones.add("b", "gone", now=0.0)
    tombstones.add("a", "second", now=5.0)
    tombstones.add("c", "gone", now=5.0)
    assert tombstones.describe("a", now=6.0) == "second, 1.0 s ago"
    assert tombstones.describe("b", now=6.0) is None
