from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from emceepee_stdio.errors import InvalidArguments, TimerLimit, TimerNotFound
from emceepee_stdio.state.machine import IllegalMove
from emceepee_stdio.state.timers import TIMER_STATES, Fired, Timer, Timers, TimerStatus

ACTIVE, EXPIRED, DELETED = TimerStatus


def make_timers(*, limit: int = 100, keep_inactive: int = 100) -> Timers:
    numbers = count(1)
    return Timers(new_id=lambda: f"t{next(numbers)}", limit=limit, keep_inactive=keep_inactive)


def every(timers: Timers, duration: float, *, now: float = 0.0) -> Timer:
    return timers.set(duration=duration, message="tick", repeats=True, now=now)


def once(timers: Timers, duration: float, *, now: float = 0.0) -> Timer:
    return timers.set(duration=duration, message="ring", now=now)


def fire(timers: Timers, *, now: float) -> Fired:
    (fired,) = timers.expire(now=now)
    return fired


@pytest.mark.parametrize("source", TimerStatus)
@pytest.mark.parametrize("target", TimerStatus)
def test_only_an_active_timer_fires_or_is_deleted(source: TimerStatus, target: TimerStatus):
    assert TIMER_STATES.allows(source, target) == (source is ACTIVE)


@pytest.mark.parametrize("duration", [0.001, 86_400.0])
def test_a_timer_lasts_from_a_millisecond_to_a_day(duration: float):
    assert once(make_timers(), duration, now=1.0).due_at == 1.0 + duration


@pytest.mark.parametrize("duration", [0.0, 0.000999, -1.0, 86_400.001, float("inf"), float("nan")])
def test_other_durations_are_refused(duration: float):
    timers = make_timers()
    with pytest.raises(InvalidArguments, match=r"duration_ms was .* from 1 to 86400000"):
        once(timers, duration)
    assert timers.all() == []


@pytest.mark.parametrize("length", [1, 500])
def test_a_message_has_one_to_five_hundred_characters(length: int):
    timer = make_timers().set(duration=1.0, message="😀" * length, now=0.0)
    assert len(timer.message) == length


@pytest.mark.parametrize("length", [0, 501])
def test_other_messages_are_refused(length: int):
    with pytest.raises(InvalidArguments, match=f"message had {length} characters"):
        make_timers().set(duration=1.0, message="x" * length, now=0.0)


def test_the_limit_counts_active_timers_only():
    timers = make_timers(limit=2)
    first = once(timers, 1.0)
    every(timers, 100.0)
    with pytest.raises(TimerLimit, match="2 timers are active"):
        once(timers, 1.0)
    timers.delete(first.id)
    once(timers, 1.0)
    with pytest.raises(TimerLimit):
        once(timers, 1.0)
    timers.expire(now=1.0)
    once(timers, 1.0)


def test_a_one_shot_timer_fires_once():
    timers = make_timers()
    timer = once(timers, 2.0, now=1.0)
    assert timers.next_deadline() == 3.0
    assert timers.expire(now=2.999) == []
    fired = fire(timers, now=3.0)
    assert (fired.timer.id, fired.timer.status, fired.timer.fired) == (timer.id, EXPIRED, 1)
    assert fired.missed == 0
    assert timers.next_deadline() is None
    assert timers.expire(now=99.0) == []
    assert timers.get(timer.id) == fired.timer


def test_a_one_shot_timer_that_slept_missed_nothing():
    timers = make_timers()
    once(timers, 2.0)
    assert fire(timers, now=1000.0).missed == 0


def test_timers_fire_earliest_first():
    timers = make_timers()
    late, early = once(timers, 2.0), every(timers, 1.5)
    assert [f.timer.id for f in timers.expire(now=2.0)] == [early.id, late.id]


@pytest.mark.parametrize("late", [0.0, 0.125])
def test_an_interval_does_not_drift_over_a_thousand_rounds(late: float):
    timers = make_timers()
    timer = every(timers, 0.25, now=1024.0)
    for n in range(1, 1001):
        assert timers.next_deadline() == 1024.0 + n * 0.25
        fired = fire(timers, now=1024.0 + n * 0.25 + late)
        assert (fired.timer.fired, fired.missed, fired.timer.status) == (n, 0, ACTIVE)
    assert timers.get(timer.id).due_at == 1024.0 + 1001 * 0.25


@pytest.mark.parametrize("duration", [0.1, 0.125, 1 / 3, 7.7])
def test_an_interval_of_any_duration_stays_in_step(duration: float):
    timers = make_timers()
    every(timers, duration, now=12_345.678)
    for n in range(1, 1001):
        due = timers.next_deadline()
        assert due is not None
        assert due == pytest.approx(12_345.678 + n * duration, abs=1e-6)
        assert fire(timers, now=due).missed == 0


def test_an_interval_that_slept_fires_once_counts_what_it_missed_and_is_in_step_again():
    timers = make_timers()
    every(timers, 1.0)
    fired = fire(timers, now=10.5)
    assert (fired.missed, fired.timer.fired, fired.timer.due_at) == (9, 1, 11.0)
    assert timers.expire(now=10.9) == []
    assert fire(timers, now=11.0).missed == 0


@settings(max_examples=300, deadline=None)
@given(
    start=st.floats(0.0, 1e9),
    duration=st.floats(0.001, 86_400.0) | st.sampled_from([0.001, 0.1, 0.3, 1 / 3]),
    slept=st.floats(0.0, 1e6) | st.integers(0, 1000),
)
@example(start=0.0, duration=0.001, slept=1e6)
@example(start=1e6, duration=0.001, slept=999)
@example(start=1e9, duration=0.001, slept=0.0)
def test_after_firing_an_interval_is_due_later_and_every_round_is_accounted_for(
    start: float, duration: float, slept: float
):
    timers = make_timers()
    timer = every(timers, duration, now=start)
    # Whole numbers of rounds land on the very edge, where rounding decides.
    now = timer.due_at + (slept * duration if isinstance(slept, int) else slept)
    fired = fire(timers, now=now)
    assert fired.timer.due_at > now
    assert fired.timer.due_at - now <= duration + (0.1 if duration < 0.1 else 0.0) + 1e-6
    rounds = (fired.timer.due_at - timer.due_at) / duration
    assert rounds == pytest.approx(fired.missed + 1, rel=1e-6, abs=1e-3)
    assert timers.expire(now=now) == []


def test_a_repeating_timer_fires_at_most_ten_times_a_second_and_counts_the_rest_as_missed():
    timers = make_timers()
    every(timers, 0.001)
    fired: list[float] = []
    missed = 0
    while (due := timers.next_deadline()) is not None and due < 1.0:
        missed += fire(timers, now=due).missed
        fired.append(due)
    assert 9 <= len(fired) <= 10
    assert missed + len(fired) == pytest.approx(1_000, abs=110)


def test_a_round_that_rounding_nearly_hid_is_counted_as_missed():
    due = 0.1
    hidden = [n for n in range(1, 200) if int((due + n * 0.1 - due) / 0.1) < n]
    assert hidden
    for n in hidden:
        timers = make_timers()
        every(timers, 0.1)
        fired = fire(timers, now=due + n * 0.1)
        assert fired.missed == n
        assert fired.timer.due_at == pytest.approx(due + (n + 1) * 0.1)


def test_a_deleted_timer_never_fires():
    timers = make_timers()
    timer = every(timers, 1.0)
    deleted = timers.delete(timer.id)
    assert deleted.status is DELETED
    assert timers.next_deadline() is None
    assert timers.expire(now=9.0) == []
    assert timers.get(timer.id) == deleted


@pytest.mark.parametrize("ended", [EXPIRED, DELETED])
def test_a_timer_that_ended_cannot_be_deleted_and_stays_as_it_was(ended: TimerStatus):
    timers = make_timers()
    timer = once(timers, 1.0)
    timers.expire(now=1.0) if ended is EXPIRED else timers.delete(timer.id)
    before = timers.get(timer.id)
    with pytest.raises(IllegalMove):
        timers.delete(timer.id)
    assert timers.get(timer.id) == before


def test_an_unknown_timer_is_not_found():
    timers = make_timers()
    for ask in (timers.get, timers.delete):
        with pytest.raises(TimerNotFound, match="'t9'"):
            ask("t9")


def test_inactive_timers_are_listed_on_demand():
    timers = make_timers()
    gone, active = once(timers, 1.0), once(timers, 2.0)
    timers.expire(now=1.0)
    assert [t.id for t in timers.all()] == [active.id]
    assert [t.id for t in timers.all(include_inactive=True)] == [active.id, gone.id]


def test_only_the_last_inactive_timers_are_kept():
    timers = make_timers(keep_inactive=2)
    ids = [once(timers, 1.0 + n).id for n in range(4)]
    timers.expire(now=9.0)
    assert [t.id for t in timers.all(include_inactive=True)] == ids[2:]
    with pytest.raises(TimerNotFound):
        timers.get(ids[0])


def test_the_reprs_show_id_state_and_rhythm():
    timers = make_timers(limit=5)
    every(timers, 1.5)
    once(timers, 1.0)
    assert repr(timers) == "<Timers active=2 limit=5>"
    assert [repr(f.timer) for f in timers.expire(now=2.0)] == [
        "<Timer t2 expired once 1.0s fired=1>",
        "<Timer t1 active every 1.5s fired=1>",
    ]
