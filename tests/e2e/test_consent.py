"""A person is asked by one choice whose default is No, and nothing but their yes is one."""

from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import TrustStore
from tests.e2e.hosts import ALWAYS, NO, ONCE, Host, host, proposal

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
ANY_TIME_IS_FAST = {"automatic_answer_s": 1e6}


def asked(client: Host, **proposed: Any) -> tuple[int, dict[str, Any], str | None]:
    """The call, the elicitation that it raised, and the state that its answer has to carry."""
    call = client.start("add_server", **proposed)
    if not client.modern:
        return call, client.question(len(client.questions))["params"], None
    said = client.said_to(call)
    return call, said.result["inputRequests"]["approval"]["params"], said.result["requestState"]


def answered(client: Host, answer: dict[str, Any], **proposed: Any) -> Any:
    call, _, state = asked(client, **proposed)
    if client.modern:
        return client.use("add_server", replies={"approval": answer}, state=state, **proposed)
    client.send({"id": client.questions[-1]["id"], "result": answer})
    return client.said_to(call)


def choose_no_as_codex_does(schema: dict[str, Any]) -> dict[str, Any]:
    """It lists the values of a field, and whichever is picked is an accept."""
    content: dict[str, Any] = {}
    for name, field in schema["properties"].items():
        if field["type"] == "boolean":
            content[name] = False
        else:
            values = field.get("enum") or [choice["const"] for choice in field["oneOf"]]
            content[name] = next(value for value in values if value == "No")
    return {"action": "accept", "content": content}


@both_eras
def test_a_no_in_a_host_that_accepts_with_every_choice_starts_nothing(
    tmp_path: Path, *, modern: bool
) -> None:
    mark = tmp_path / "started"
    proposed = {"name": "new", "command": "sh", "args": ["-c", "touch started"]}
    with host(tmp_path, client="codex-mcp-client", modern=modern, version="2025-06-18") as client:
        call, question, state = asked(client, **proposed)
        answer = choose_no_as_codex_does(question["requestedSchema"])
        if modern:
            said = client.use("add_server", replies={"approval": answer}, state=state, **proposed)
        else:
            client.send({"id": client.questions[-1]["id"], "result": answer})
            said = client.said_to(call)
        assert said.is_error
        assert client.servers() == {}
    assert not mark.exists()


@both_eras
def test_the_question_is_one_choice_and_shows_the_command_and_the_warning_first(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, client="claude-code", modern=modern) as client:
        proposed = {"name": "new", "command": "sh", "args": ["-c", "exit 1"], "env": {"TOKEN": "x"}}
        _, question, _ = asked(client, **proposed)
        assert question["message"].split("\n") == [
            "sh -c 'exit 1'",
            "It is a shell: it can do anything that its arguments say.",
            "Server new, variables TOKEN",
        ]
        ((name, field),) = question["requestedSchema"]["properties"].items()
        assert question["requestedSchema"]["required"] == [name]
        assert field["type"] == "string"
        assert field["default"] == NO
        assert field["title"] == "May the model add this server?"
        assert [choice["title"] for choice in field["oneOf"]] == [NO, ONCE, ALWAYS]


def test_a_client_that_does_not_know_titled_choices_gets_them_as_values_and_names(
    tmp_path: Path,
) -> None:
    with host(tmp_path, version="2025-06-18") as client:
        _, question, _ = asked(client, **proposal())
        field = question["requestedSchema"]["properties"]["decision"]
        assert "oneOf" not in field
        assert field["enum"] == field["enumNames"] == [NO, ONCE, ALWAYS]
        assert not answered(
            client, {"action": "accept", "content": {"decision": ONCE}}, **proposal("--paged")
        ).is_error


@pytest.mark.parametrize("length", [109, 110])
def test_what_does_not_fit_into_a_line_is_not_asked_and_the_model_is_told_where_it_waits(
    tmp_path: Path, length: int
) -> None:
    proposed = proposal("x" * (length - len("plain ")))
    with host(tmp_path) as client:
        call = client.start("add_server", **proposed)
        if length < 110:
            client.reply(client.question(), "accept", NO)
            assert "the person refused" in client.said_to(call).text
            return
        said = client.said_to(call).text
        assert client.questions == []
        (waiting,) = TrustStore(tmp_path / "state").waiting()
        assert "longer than this client shows" in said
        assert f"emceepee approve {waiting.id}" in said


NO_YES: list[Any] = [
    {},
    {"decision": NO},
    {"decision": ""},
    {"decision": True},
    {"decision": None},
    {"decision": "yes"},
    {"decision": [ALWAYS]},
    {"remember": True},
    {"approval": ALWAYS},
    "Yes, this time",
    5,
]


@both_eras
def test_nothing_but_one_of_the_two_yes_is_a_yes(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, modern=modern) as client:
        for number, content in enumerate(NO_YES):
            proposed = proposal(env={"N": str(number)})
            said = answered(client, {"action": "accept", "content": content}, **proposed)
            assert "the person refused" in said.text, content
        said = answered(client, {"action": "accept"}, **proposal())
        assert "the person refused" in said.text
        assert client.servers() == {}
        assert client.noted("approval_granted") == []


@both_eras
def test_a_yes_that_is_faster_than_anybody_reads_is_none(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, modern=modern, fixed=ANY_TIME_IS_FAST) as client:
        for decision in (ALWAYS, ONCE):
            yes = {"action": "accept", "content": {"decision": decision}}
            said = answered(client, yes, **proposal())
            assert "nobody was asked" in said.text
        assert client.servers() == {}
        assert not (tmp_path / "state" / "approvals.json").exists()


@both_eras
@pytest.mark.parametrize("action", ["decline", "cancel"])
def test_an_automatic_refusal_is_told_as_nobody_was_asked_and_waits_for_approve(
    tmp_path: Path, action: str, *, modern: bool
) -> None:
    with host(tmp_path, modern=modern, fixed=ANY_TIME_IS_FAST) as client:
        said = answered(client, {"action": action}, **proposal())
        assert "[needs_approval]" in said.text
        assert "nobody was asked" in said.text
        assert client.noted("approval_denied") == []
        trust = TrustStore(tmp_path / "state")
        (waiting,) = trust.waiting()
        assert f"emceepee approve {waiting.id}" in said.text
        trust.approve(waiting.digest, name="new", at="")
        assert client.use("add_server", **proposal()).json["phase"] == "connected"


@both_eras
def test_a_host_that_refused_twice_by_itself_is_not_asked_a_third_time(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, modern=modern, fixed=ANY_TIME_IS_FAST) as client:
        for number in range(2):
            answered(client, {"action": "decline"}, **proposal(env={"N": str(number)}))
        questions = len(client.questions)
        said = client.use("add_server", **proposal(env={"N": "2"}))
        assert "nobody was asked" in said.text
        assert len(client.questions) == questions
        assert len(TrustStore(tmp_path / "state").waiting()) == 3
        assert client.servers() == {}, "that nobody can be asked is no permission"


def test_an_error_at_once_is_an_automatic_refusal(tmp_path: Path) -> None:
    with host(tmp_path, fixed=ANY_TIME_IS_FAST) as client:
        call, _, _ = asked(client, **proposal())
        error = {"code": -32601, "message": "Method not found"}
        client.send({"id": client.questions[-1]["id"], "error": error})
        said = client.said_to(call).text
        assert "this client answers by itself" in said
        assert "emceepee approve " in said
