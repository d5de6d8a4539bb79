import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.state.ring import Reading, Ring, Rings


def ring_of(capacity: int, items: range) -> Ring[int]:
    ring: Ring[int] = Ring(capacity)
    for item in items:
        ring.append(item)
    return ring


def even(item: int) -> bool:
    return item % 2 == 0


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_ring_holds_at_least_one_item(capacity: int):
    with pytest.raises(ValueError, match="at least one"):
        Ring(capacity)


def test_a_ring_keeps_the_newest_and_counts_what_it_overwrote():
    ring = ring_of(3, range(10))
    assert len(ring) == 3
    assert ring.read(peek=True) == Reading(items=(7, 8, 9), remaining=0, overwritten=7)


def test_nothing_is_overwritten_before_the_ring_is_full():
    assert ring_of(3, range(3)).read(peek=True).overwritten == 0


def test_looking_changes_nothing():
    ring = ring_of(3, range(5))
    assert ring.read(peek=True) == ring.read(peek=True)
    ring.last(2)
    assert ring.read().items == (2, 3, 4)


def test_reading_takes_out_what_it_returns_and_starts_the_count_anew():
    ring = ring_of(3, range(5))
    assert ring.read(limit=2) == Reading(items=(2, 3), remaining=1, overwritten=2)
    assert ring.read() == Reading(items=(4,), remaining=0, overwritten=0)
    assert ring.read() == Reading(items=(), remaining=0, overwritten=0)


def test_after_a_reading_there_is_room_again():
    ring = ring_of(3, range(3))
    ring.read(limit=2)
    ring.append(10)
    ring.append(11)
    assert ring.read(peek=True) == Reading(items=(2, 10, 11), remaining=0, overwritten=0)


def test_a_filtered_reading_leaves_the_others_in_their_order():
    ring = ring_of(10, range(7))
    assert ring.read(keep=even).items == (0, 2, 4, 6)
    assert ring.read(peek=True).items == (1, 3, 5)


def test_a_limit_takes_the_oldest_or_the_newest_of_those_that_match():
    ring = ring_of(10, range(9))
    assert ring.read(peek=True, limit=2, keep=even) == Reading(
        items=(0, 2), remaining=3, overwritten=0
    )
    newest = ring.read(peek=True, limit=2, keep=even, newest=True)
    assert newest == Reading(items=(6, 8), remaining=3, overwritten=0)
    assert (
        ring.read(peek=True, limit=0).items
        == ring.read(peek=True, limit=0, newest=True).items
        == ()
    )


def test_the_last_items_come_oldest_first():
    ring = ring_of(5, range(9))
    assert ring.last(2) == [7, 8]
    assert ring.last(2, even) == [6, 8]
    assert ring.last(0) == []
    assert ring.last(99) == [4, 5, 6, 7, 8]


def test_a_filter_that_raises_changes_nothing():
    ring = ring_of(3, range(4))
    with pytest.raises(ZeroDivisionError):
        ring.read(keep=lambda item: bool(1 // (item - 2)))
    assert ring.read(peek=True) == Reading(items=(1, 2, 3), remaining=0, overwritten=1)


def test_the_repr_shows_how_full_the_ring_is():
    assert repr(ring_of(3, range(5))) == "<Ring 3/3 overwritten=2>"


LOOKS = st.tuples(
    st.sampled_from(["peek", "read"]),
    st.none() | st.integers(0, 8),
    st.booleans(),
    st.booleans(),
)


@settings(max_examples=150, deadline=None)
@given(
    capacity=st.integers(1, 6),
    steps=st.lists(st.integers(0, 20) | LOOKS, max_size=40),
)
def test_a_ring_agrees_with_a_plain_list(
    capacity: int, steps: list[int | tuple[str, int | None, bool, bool]]
):
    ring: Ring[int] = Ring(capacity)
    items: list[int] = []
    lost = 0
    for step in steps:
        if isinstance(step, int):
            ring.append(step)
            items.append(step)
            lost += max(0, len(items) - capacity)
            items = items[-capacity:]
            continue
        how, limit, only_even, newest = step
        matching = [n for n, item in enumerate(items) if even(item) or not only_even]
        number = len(matching) if limit is None else min(limit, len(matching))
        chosen = matching[len(matching) - number :] if newest else matching[:number]
        keep = even if only_even else lambda _: True
        reading = ring.read(limit=limit, keep=keep, newest=newest, peek=how == "peek")
        assert reading == Reading(
            items=tuple(items[n] for n in chosen),
            remaining=len(matching) - number,
            overwritten=lost,
        )
        if how == "read":
            items = [item for n, item in enumerate(items) if n not in chosen]
            lost = 0
        assert len(ring) == len(items) <= capacity


# The rings of all servers


def rings_of(*, capacity: int = 100, servers: int = 10, max_bytes: int = 400) -> Rings[int]:
    return Rings(capacity=capacity, servers=servers, max_bytes=max_bytes)


def test_a_server_has_one_ring_with_its_newest_items():
    rings = rings_of(capacity=2)
    for item in range(3):
        rings.append("a", item, 1)
    assert list(rings) == ["a"]
    assert rings["a"].read() == Reading(items=(1, 2), remaining=0, overwritten=1)


def test_rings_of_servers_that_are_gone_make_room_the_longest_silent_first():
    rings = rings_of(servers=2)
    for number in range(52):
        rings.append(f"s{number}", 0, 1)
    rings.append("s0", 0, 1)
    rings.append("new", 0, 1)
    assert len(rings) == 52
    assert "s0" in rings
    assert "s1" not in rings


def test_one_server_holds_its_share_of_the_bytes_and_the_loss_is_counted():
    rings = rings_of()
    for item in range(5):
        rings.append("loud", item, 40)
    assert rings["loud"].read() == Reading(items=(3, 4), remaining=0, overwritten=3)


def test_an_item_larger_than_the_share_is_counted_as_lost():
    rings = rings_of()
    rings.append("loud", 1, 101)
    assert rings["loud"].read(peek=True) == Reading(items=(), remaining=0, overwritten=1)


def test_in_sum_who_has_most_makes_room_for_the_others():
    rings = rings_of()
    for server in "abcde":
        for item in range(2):
            rings.append(server, item, 45)
    assert sum(rings[server].bytes for server in rings) <= 400
    assert [len(rings[server]) for server in "abcde"] == [1, 1, 2, 2, 2]


def test_what_was_read_makes_room():
    rings = rings_of()
    for server in "abcd":
        rings.append(server, 1, 100)
    for server in "abcd":
        rings[server].read()
    rings.append("e", 1, 100)
    assert rings["e"].bytes == 100
    assert repr(rings) == "<Rings of 5 servers, 100/400 bytes>"


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 120), st.booleans()), max_size=60))
def test_rings_stay_within_their_bytes_and_count_every_loss(steps: list[tuple[str, int, bool]]):
    rings = rings_of(capacity=5)
    added, told = 0, 0
    for server, size, reads in steps:
        rings.append(server, 0, size)
        added += 1
        assert sum(ring.bytes for ring in rings.values()) <= 400
        assert all(ring.bytes <= 100 for ring in rings.values())
        if reads:
            reading = rings[server].read(limit=2)
            told += len(reading.items) + reading.overwritten
    for ring in rings.values():
        reading = ring.read()
        told += len(reading.items) + reading.overwritten
    assert told == added
