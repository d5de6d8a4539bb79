"""A short mix of calls and faults with a person who is asked breaks no rule about questions."""

import json

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


def test_a_call_that_brings_a_question_is_judged_when_it_is_made_again() -> None:
    """A server of the handshake era does not say which of its calls asks."""
    arguments = {"server": "s", "tool": "notify", "args": {"n": 100}}
    call = {"method": "tools/call", "params": {"name": "execute_tool", "arguments": arguments}}
    asked = {
        "method": "elicitation/create",
        "params": {"message": 'emceepee: the server "s" asks:'},
    }
    question = {"resultType": "input_required", "inputRequests": {"q": asked}, "requestState": "x"}
    for again, rules in (("100 sent", []), ("7 sent", ["the answer of another call"])):
        model = PersonModel()
        results = (question, {"content": [{"type": "text", "text": again}]})
        for number, result in enumerate(results, start=1):
            model.take(number, "sent", {"id": number, **call})
            model.take(number, "received", json.dumps({"id": number, "result": result}))
        assert [violation.rule for violation in model.violations] == rules
        assert model.asked_natively == {"q": 1}
