"""Signs of life: when they are due, and that progress grows whoever tells it."""

import pytest

from emceepee_stdio.clock import Clock
from emceepee_stdio.front.progress import Heartbeats, Progress
from emceepee_stdio.session.client_calls import Call, CallingClient

EVERY = 15.0


class Rig:
    """A clock that the test turns, and what was told of which call."""

    def __init__(self) -> None:
        self.now = 100.0
        self.beats: list[tuple[Call, Progress]] = []
        clock = Clock(monotonic=lambda: self.now, wall=lambda: self.now)
        self.heartbeats = Heartbeats(
            clock, every=EVERY, beat=lambda call, progress: self.beats.append((call, progress))
        )

    def begin(self) -> Call:
        call = Call(client=CallingClient(ceiling=45.0))
        self.heartbeats.begin(call)
        return call

    def turn(self, seconds: float) -> list[float]:
        """The values of the heartbeats in that time."""
        before = len(self.beats)
        end = self.now + seconds
        while (due := self.heartbeats.next_deadline()) is not None and due <= end:
            self.now = due
            self.heartbeats.expire(due)
        self.now = end
        return [progress.value for _, progress in self.beats[before:]]


def test_a_silent_call_gets_one_every_so_often_and_it_grows():
    rig = Rig()
    rig.begin()
    assert rig.turn(14.9) == []
    values = rig.turn(45.1)
    assert len(values) == 4
    assert values == sorted(set(values))
    assert values[-1] < 0.001


def test_a_call_that_has_ended_gets_none_and_is_forgotten():
    rig = Rig()
    ended, answered = rig.begin(), rig.begin()
    rig.heartbeats.end(ended)
    answered.answered = True
    assert rig.turn(100.0) == []
    assert repr(rig.heartbeats) == "<Heartbeats 0 calls>"
    assert rig.heartbeats.next_deadline() is None


def test_what_the_server_tells_is_passed_on_as_it_is():
    rig = Rig()
    call = rig.begin()
    for value in (1, 2.5, 2, 0):
        told = rig.heartbeats.told(call, Progress(value))
        assert told.value is value, "also where the server itself counts backwards"


def test_only_silence_is_filled_and_by_less_than_a_step():
    rig = Rig()
    call = rig.begin()
    rig.turn(10.0)
    rig.heartbeats.told(call, Progress(1, 4))
    assert rig.turn(14.0) == []
    (value,) = rig.turn(2.0)
    assert 1 < value < 1.001
    assert rig.beats[-1][1].total == 4
    assert rig.heartbeats.told(call, Progress(2, 4)).value == 2


@pytest.mark.parametrize("first", [0, 0.0, -1, 1e-9])
def test_a_first_step_that_is_no_more_than_our_own_is_told_as_a_hair_more(first: float):
    rig = Rig()
    call = rig.begin()
    values = [*rig.turn(31.0), rig.heartbeats.told(call, Progress(first)).value]
    assert values == sorted(set(values))
    assert rig.heartbeats.told(call, Progress(1)).value == 1


@pytest.mark.parametrize("value", [1e6, 1e12, 2**53, -5, 1e-3])
def test_heartbeats_grow_after_any_number(value: float):
    rig = Rig()
    call = rig.begin()
    rig.heartbeats.told(call, Progress(value))
    beats = rig.turn(60.0)
    assert [value, *beats] == sorted({value, *beats})
    assert len(beats) == 4


def test_calls_are_due_each_in_its_own_time():
    rig = Rig()
    first = rig.begin()
    rig.turn(5.0)
    second = rig.begin()
    rig.heartbeats.told(first, Progress(1))
    rig.turn(16.0)
    assert [call for call, _ in rig.beats] == [second, first]


def test_progress_of_a_call_that_nobody_waits_for_is_not_kept():
    rig = Rig()
    call = rig.begin()
    rig.heartbeats.end(call)
    rig.heartbeats.told(call, Progress(1))
    assert repr(rig.heartbeats) == "<Heartbeats 0 calls>"
