import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.state.phases import RestartPolicy, Restarts


def middle(low: float, high: float) -> float:
    return (low + high) / 2


HTTP = RestartPolicy(cap=180.0, limit=None)


def make_restarts(policy: RestartPolicy | None = None) -> Restarts:
    return Restarts(policy or RestartPolicy(), uniform=middle)


def test_the_defaults_are_those_of_the_design():
    stdio = RestartPolicy()
    assert (stdio.base, stdio.factor, stdio.cap, stdio.jitter) == (1.0, 2.0, 60.0, 0.1)
    assert (stdio.limit, stdio.stable_after) == (5, 60.0)


def test_a_crash_loop_is_given_up_even_though_every_start_succeeds():
    restarts = make_restarts()
    now, delays = 0.0, []
    for _ in range(6):
        restarts.connected(now=now)
        now += 59.9
        delays.append(restarts.after_loss(now=now))
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, None]


def test_a_server_that_never_starts_is_given_up_and_stays_so():
    restarts = make_restarts()
    delays = [restarts.after_loss(now=0.0) for _ in range(8)]
    assert delays == [1.0, 2.0, 4.0, 8.0, 16.0, None, None, None]
    assert restarts.attempts == 5


def test_staying_up_refills_the_budget():
    restarts = make_restarts()
    for _ in range(5):
        restarts.after_loss(now=0.0)
    restarts.connected(now=100.0)
    assert restarts.after_loss(now=160.0) == 1.0
    assert restarts.attempts == 1


def test_having_stayed_up_once_does_not_help_an_attempt_that_never_connects():
    restarts = make_restarts()
    restarts.connected(now=0.0)
    restarts.after_loss(now=100.0)
    delays = [restarts.after_loss(now=1000.0 * n) for n in range(1, 6)]
    assert delays == [2.0, 4.0, 8.0, 16.0, None]


def test_somebody_who_asks_gets_a_full_budget():
    restarts = make_restarts()
    for _ in range(6):
        restarts.after_loss(now=0.0)
    restarts.refill()
    assert restarts.attempts == 0
    assert restarts.after_loss(now=0.0) == 1.0


def test_a_refill_forgets_when_the_last_connection_came_up():
    restarts = make_restarts()
    restarts.connected(now=0.0)
    restarts.refill()
    restarts.after_loss(now=100.0)
    assert restarts.after_loss(now=100.0) == 2.0


def test_delays_grow_by_the_factor_up_to_the_cap():
    restarts = make_restarts(RestartPolicy(base=0.5, factor=3.0, cap=10.0, limit=6))
    assert [restarts.after_loss(now=0.0) for _ in range(6)] == [0.5, 1.5, 4.5, 10.0, 10.0, 10.0]


def test_a_base_over_the_cap_is_cut():
    assert make_restarts(RestartPolicy(base=99.0, cap=10.0)).after_loss(now=0.0) == 10.0


def test_jitter_is_asked_for_within_its_share():
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    restarts = Restarts(RestartPolicy(jitter=0.25), uniform=uniform)
    assert restarts.after_loss(now=0.0) == 1.25
    assert asked == [(0.75, 1.25)]


def test_http_never_gives_up_and_no_number_of_attempts_overflows():
    restarts = make_restarts(HTTP)
    delays = [restarts.after_loss(now=0.0) for _ in range(5000)]
    assert None not in delays
    assert delays[:9] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 180.0]
    assert set(delays[9:]) == {180.0}


def test_the_first_delay_after_a_huge_number_of_attempts_is_the_cap():
    restarts = make_restarts(HTTP)
    restarts.attempts = 10**12
    assert restarts.after_loss(now=0.0) == 180.0


@settings(max_examples=150, deadline=None)
@given(
    limit=st.integers(0, 6),
    lives=st.lists(st.none() | st.floats(0.0, 120.0), max_size=40),
    luck=st.floats(0.0, 1.0),
)
def test_the_budget_is_never_exceeded_whatever_the_up_times(
    limit: int, lives: list[float | None], luck: float
):
    policy = RestartPolicy(limit=limit)
    restarts = Restarts(policy, uniform=lambda low, high: low + (high - low) * luck)
    now, spent = 0.0, 0
    for life in lives:
        if life is not None:
            restarts.connected(now=now)
            if now + life - now >= policy.stable_after:
                spent = 0
            now += life
        delay = restarts.after_loss(now=now)
        if spent == limit:
            assert delay is None
        else:
            spent += 1
            assert delay is not None
            planned = min(2.0 ** (spent - 1), 60.0)
            assert planned * 0.9 - 1e-9 <= delay <= planned * 1.1 + 1e-9
            now += delay
        assert restarts.attempts == spent <= limit


@pytest.mark.parametrize(("limit", "shown"), [(5, "1/5"), (None, "1/∞")])
def test_the_repr_shows_the_attempts(limit: int | None, shown: str):
    restarts = make_restarts(RestartPolicy(limit=limit))
    restarts.after_loss(now=0.0)
    assert repr(restarts) == f"<Restarts {shown}>"
