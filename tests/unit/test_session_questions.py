import json

import pytest
from msgspec import Raw

from emceepee_stdio.backends.backend_events import Question
from emceepee_stdio.config import FixedValues
from emceepee_stdio.session.questions import Questions
from emceepee_stdio.state import Requests
from emceepee_stdio.wire.codec import RpcError

ids = iter(f"id-{n}" for n in range(10_000))


def asked(**params: object) -> bytes | RpcError | None:
    """What the server is told at once; None when its question waits for the client."""
    answers: list[bytes | RpcError] = []

    def deliver(outcome: bytes | RpcError) -> bool:
        answers.append(outcome)
        return True

    questions = Questions(
        Requests(new_id=lambda: next(ids), timeout=60.0, limit=10),
        FixedValues(),
        memory_bytes=1 << 20,
    )
    question = Question(
        method="elicitation/create",
        params=Raw(json.dumps({"message": "m", **params}).encode()),
        key="k",
        deliver=deliver,
    )
    waiting = questions.admit("s", question, now=0.0)
    assert (waiting is None) == bool(answers)
    return answers[0] if answers else None


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "JavaScript://example.com/%0aalert(1)",
        "file:///etc/passwd",
        "data:text/html,x",
        "vscode://evil/x",
        "ssh://host/",
        "//example.com/x",
        "example.com",
        "https://",
        "https:///path",
        "http://[::1",
        " https://example.com/",
        "https://example.com/\u202egnp",
        "https://exa mple.com/",
        "",
        7,
        None,
    ],
    ids=repr,
)
def test_a_url_that_is_not_of_the_web_is_refused(url: object):
    refused = asked(mode="url", elicitationId="e", url=url)
    assert isinstance(refused, RpcError)
    assert refused.message.startswith("The url of a question must")


@pytest.mark.parametrize("url", ["https://example.com/sign-in?a=b#c", "http://localhost:8080/x"])
def test_a_url_of_the_web_waits_for_the_client(url: str):
    assert asked(mode="url", elicitationId="e", url=url) is None


def test_a_url_is_judged_whatever_the_mode_says():
    assert isinstance(asked(mode="form", url="javascript:x"), RpcError)
    assert asked(mode="form", requestedSchema={"type": "object"}) is None


NESTED = [
    {"type": "object", "properties": {}},
    {"type": "array", "items": {"type": "object"}},
    {"type": "array", "items": {"type": "array"}},
    {"properties": {"b": {"type": "string"}}},
]


@pytest.mark.parametrize("field", NESTED, ids=repr)
def test_a_form_with_fields_inside_fields_is_refused(field: object):
    refused = asked(requestedSchema={"type": "object", "properties": {"a": field}})
    assert isinstance(refused, RpcError)
    assert "'a' is nested" in refused.message
