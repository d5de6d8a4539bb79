import re

import pytest

from emceepee_stdio.clock import Clock


class Moved:
    """Monotonic and wall time that move as they are told."""

    def __init__(self, monotonic: float = 100.0, wall: float = 1_700_000_000.0) -> None:
        self.monotonic = monotonic
        self.wall = wall
        self.clock = Clock(monotonic=lambda: self.monotonic, wall=lambda: self.wall)

    def pass_by(self, seconds: float) -> None:
        self.monotonic += seconds
        self.wall += seconds


def test_an_instant_is_shown_in_utc_with_milliseconds():
    moved = Moved(wall=1_700_000_000.0)
    assert moved.clock.iso(100.0) == "2023-11-14T22:13:20.000Z"
    assert moved.clock.iso(101.5) == "2023-11-14T22:13:21.500Z"
    assert moved.clock.iso(99.9375) == "2023-11-14T22:13:19.937Z"


def test_now_is_the_monotonic_clock():
    moved = Moved(monotonic=42.5)
    assert moved.clock.now() == 42.5


def test_an_instant_of_the_past_or_the_future_is_placed_beside_now():
    moved = Moved()
    moved.pass_by(50.0)
    assert moved.clock.epoch(100.0) == 1_700_000_000.0
    assert moved.clock.epoch(160.0) == 1_700_000_060.0


@pytest.mark.parametrize("jitter", [0.9, -0.9, 1e-6])
def test_the_same_instant_reads_the_same_although_the_wall_jitters(jitter: float):
    moved = Moved()
    before = moved.clock.iso(100.0), moved.clock.epoch(100.0)
    moved.wall += jitter
    assert (moved.clock.iso(100.0), moved.clock.epoch(100.0)) == before
    moved.pass_by(1000.0)
    assert (moved.clock.iso(100.0), moved.clock.epoch(100.0)) == before


@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_follows_a_wall_that_was_set(hours: int):
    moved = Moved()
    moved.wall += hours * 3600
    assert moved.clock.epoch(moved.clock.now()) == moved.wall
    moved.pass_by(10.0)
    assert moved.clock.epoch(moved.clock.now()) == moved.wall


def test_small_steps_that_add_up_are_followed_in_the_end():
    moved = Moved()
    for _ in range(10):
        moved.wall += 0.5
        assert abs(moved.clock.epoch(moved.clock.now()) - moved.wall) <= 1.0


def test_a_machine_that_slept_shows_the_time_of_the_wall():
    moved = Moved()
    moved.wall += 8 * 3600
    assert moved.clock.iso(moved.clock.now()) == "2023-11-15T06:13:20.000Z"


def test_the_repr_shows_the_time():
    assert repr(Moved().clock) == "<Clock 2023-11-14T22:13:20.000Z>"


def test_the_real_clock_goes_on():
    clock = Clock()
    first = clock.now()
    assert clock.now() >= first
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", clock.iso(first))
