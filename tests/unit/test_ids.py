from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ulid import ULID

from emceepee_stdio.clock import Clock
from emceepee_stdio.ids import Ids, ulid_of


class Wall:
    """A clock that stands still until it is moved."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


def make_ids(wall: Wall, *, random: int = 7) -> Ids:
    return Ids(Clock(monotonic=lambda: 0.0, wall=wall), random_bits=lambda _bits: random)


@pytest.mark.parametrize("random", [0, 1, 2**80 - 1])
def test_an_id_is_a_ulid(random: int):
    ulid = ULID.from_str(make_ids(Wall(1_700_000_000.5), random=random)())
    assert ulid.milliseconds == 1_700_000_000_500
    assert int.from_bytes(ulid.bytes) & (2**80 - 1) == random


def test_an_id_is_written_as_the_example_of_the_specification():
    ids = make_ids(Wall(1_469_918_176.385), random=0xD6764C61EFB99302BD5B)
    assert ids() == "01ARYZ6S41TSV4RRFFQ69G5FAV"


def test_an_id_from_the_real_clock_is_a_ulid_of_about_now():
    clock = Clock()
    before = int(clock.epoch(clock.now()) * 1000)
    ulid = ULID.from_str(Ids(clock)())
    assert before <= ulid.milliseconds <= clock.epoch(clock.now()) * 1000


def test_the_random_part_is_asked_for_in_full():
    asked: list[int] = []

    def random_bits(bits: int) -> int:
        asked.append(bits)
        return 0

    Ids(Clock(), random_bits=random_bits)()
    assert asked == [80]


@pytest.mark.parametrize(("random", "number"), [(0, 100_000), (2**80 - 1, 100)])
def test_ids_of_one_millisecond_increase_strictly(random: int, number: int):
    ids = make_ids(Wall(1_700_000_000.0), random=random)
    made = [ids() for _ in range(number)]
    assert all(one < next_ for one, next_ in pairwise(made))
    assert {len(name) for name in made} == {26}
    assert ULID.from_str(made[-1]) > ULID.from_str(made[0])


def test_ids_increase_when_the_clock_goes_back_and_follow_when_it_goes_on():
    wall = Wall(1_700_000_000.0)
    ids = make_ids(wall)
    first = ids()
    wall.seconds -= 3600
    second = ids()
    wall.seconds += 7200
    third = ids()
    assert first < second < third
    assert ULID.from_str(second).milliseconds == 1_700_000_000_000
    assert ULID.from_str(third).milliseconds == 1_700_003_600_000


def test_a_random_part_that_is_used_up_is_carried_into_the_time():
    ids = make_ids(Wall(1_700_000_000.0), random=2**80 - 1)
    last, first = ULID.from_str(ids()), ULID.from_str(ids())
    assert int(first) == int(last) + 1
    assert (last.milliseconds, first.milliseconds) == (1_700_000_000_000, 1_700_000_000_001)


def test_random_ids_of_one_millisecond_increase_whatever_the_random_part():
    randoms = iter([2**79, 0, 2**80 - 1, 5])
    clock = Clock(monotonic=lambda: 0.0, wall=lambda: 1_700_000_000.0)
    ids = Ids(clock, random_bits=lambda _bits: next(randoms))
    made = [ids() for _ in range(4)]
    assert made == sorted(made)
    assert len(set(made)) == 4


@given(st.integers(0, 2**48 - 1), st.integers(0, 2**80 - 1))
def test_a_ulid_of_ours_reads_as_the_package_writes_it(milliseconds: int, rest: int):
    assert ulid_of(milliseconds, rest) == str(ULID.from_int(milliseconds << 80 | rest))
