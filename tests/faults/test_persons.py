"""A short mix of calls and faults with a person who is asked breaks no rule about questions."""

import pytest

from tests.faults.__main__ import complaint
from tests.faults.persons import PersonModel, PersonProxy
from tests.faults.run import run


@pytest.mark.parametrize("seed", [3, 4])
def test_whatever_goes_wrong_the_person_is_asked_once_and_answers_once(seed: int) -> None:
    outcome = run(seed, steps=95, proxy_type=PersonProxy, model_type=PersonModel)
    assert not outcome.model.violations, complaint(outcome)
    assert isinstance(outcome.model, PersonModel)
    assert outcome.model.asked_natively
