"""A short mix of calls and faults breaks no rule."""

import pytest

from tests.faults.__main__ import complaint
from tests.faults.run import run
from tests.faults.steps import KINDS, REST, Step, steps


@pytest.mark.fresh
@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_goes_wrong_no_rule_is_broken(seed: int) -> None:
    outcome = run(seed, steps=95)
    assert not outcome.model.violations, complaint(outcome)
    assert set(outcome.kinds) == {*KINDS, REST}


def test_a_seed_always_makes_the_same_steps() -> None:
    def first(seed: int) -> list[tuple[Step, float]]:
        made = steps(seed)
        return [(step, step.random().random()) for step in (next(made) for _ in range(300))]

    assert first(7) == first(7)
    assert first(7) != first(8)
