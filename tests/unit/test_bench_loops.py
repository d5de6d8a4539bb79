"""How two event loops are compared."""

import pytest

from bench.loops import ratio


def test_loops_are_compared_within_each_round_so_that_a_busy_round_changes_nothing() -> None:
    uvloop = [1.0, 10.0, 2.0, 5.0, 1.0]
    asyncio = [1.1, 11.0, 2.2, 5.5, 1.1]
    assert ratio(asyncio, uvloop) == pytest.approx((1.1, 1.1, 1.1))


def test_the_interval_is_around_the_median_and_as_wide_as_the_rounds_differ() -> None:
    middle, low, high = ratio([1.0, 1.0, 2.0, 3.0, 3.0], [1.0] * 5)
    assert middle == 2.0
    assert 1.0 <= low <= middle <= high <= 3.0
