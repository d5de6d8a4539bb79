import json

import pytest
from msgspec import Raw

from emceepee_stdio.backends.interface import Question
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.settings import Settings
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.journal import Journal
from emceepee_stdio.session.client_link import ClientLink
from emceepee_stdio.session.person import Choice, Decision
from emceepee_stdio.session.questions import Questions
from emceepee_stdio.state.pending_requests import PendingRequest, Requests
from emceepee_stdio.wire.codec import RpcError

ids = iter(f"id-{n}" for n in range(10_000))


def made(client: ClientLink | None = None, told: list[object] | None = None) -> Questions:
    return Questions(
        Requests(new_id=lambda: next(ids), timeout=60.0, limit=10),
        Settings(),
        clock=Clock(),
        journal=Journal.silent(Clock()),
        client=client or ClientLink(),
        tell=lambda kind, **_: "" if told is None else str(told.append(kind)),
        make_way=lambda *_: None,
        look=lambda _: None,
    )


def asked(**params: object) -> bytes | RpcError | None:
    """What the server is told at once; None when its question waits for the client."""
    answers: list[bytes | RpcError] = []

    def deliver(outcome: bytes | RpcError) -> bool:
        answers.append(outcome)
        return True

    questions = made()
    question = Question(
        method="elicitation/create",
        params=Raw(json.dumps({"message": "m", **params}).encode()),
        key="k",
        deliver=deliver,
    )
    waiting = questions.admit("s", question)
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


@pytest.mark.parametrize("mode", ["video", "", None, ["form"], 7], ids=repr)
def test_a_mode_that_does_not_exist_is_an_error_in_the_params(mode: object):
    refused = asked(mode=mode, requestedSchema={"type": "object"})
    assert isinstance(refused, RpcError)
    assert refused.code == -32602


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


class NoWay:
    """A client that has no way to ask its person; if it `refuses`, it says so at once."""

    def __init__(self, questions: Questions, *, refuses: bool) -> None:
        self._questions = questions
        self._refuses = refuses

    async def confirm(self, *_: object, **__: object) -> Decision:
        return Decision.CANNOT_ASK

    def show(self, asked: PendingRequest) -> bool:
        if self._refuses:
            self._questions.refuse(asked, "The client has no way to ask a person this.")
        return self._refuses

    def withdraw(self, asked: PendingRequest) -> None: ...
    def visited(self, server: str, elicitation_id: str) -> None: ...


@pytest.mark.parametrize("refuses", [True, False])
async def test_a_question_of_ours_that_cannot_be_asked_leaves_nothing_behind(
    *,
    refuses: bool,
):
    link, told = ClientLink(), list[object]()
    questions = made(link, told)
    link.connect(Protocol(), person=NoWay(questions, refuses=refuses))
    choice = Choice(
        title="May it?", lines=("m",), digest="e", server="s", url="https://example.com/"
    )
    assert await questions.confirm(choice) is Decision.CANNOT_ASK
    assert not told
