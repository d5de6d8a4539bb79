"""Questions of a server: pushed, or asked inside an answer, they reach the session alike."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from emceepee_stdio.backends.interface import RemoteError
from emceepee_stdio.errors import CallFailed, CallTimeout, ServerDisconnected
from emceepee_stdio.wire.codec import RpcError
from tests.e2e.backend_harness import (
    COMBINATIONS,
    ROOTS,
    BackendRig,
    Reply,
    beside,
    fields,
    running,
)
from tests.e2e.harness import WAIT_S

pytestmark = pytest.mark.parametrize("combination", COMBINATIONS)

ADA = {"action": "accept", "content": {"name": "Ada"}}
GRACE = {"action": "accept", "content": {"name": "Grace"}}
ACCEPT = {"action": "accept"}
SAID = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "something"}}
REFUSAL = RpcError(-1, "nobody wants to answer this")


def asker(rig: BackendRig, tool: str) -> str | None:
    """Who is known to have asked: pushed on a pipe, a question belongs to no call."""
    return None if rig.combination == "stdio-legacy" else tool


async def test_a_form_is_put_and_its_answer_goes_back(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask", Reply(rig, ADA), mode="form")
        assert json.loads(outcome.text) == ADA
        (question,) = rig.sink.questions
        assert question.method == "elicitation/create"
        assert question.call == asker(rig, "ask")
        assert fields(question)["message"] == "Who are you?"
        assert fields(question)["requestedSchema"]["required"] == ["name"]
        assert rig.sink.withdrawn_questions == []


async def test_a_url_is_put_and_agreed_to(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask", Reply(rig, ACCEPT), mode="url")
        assert json.loads(outcome.text) == ACCEPT
        (question,) = rig.sink.questions
        assert fields(question)["mode"] == "url"
        assert fields(question)["url"] == "https://example.com/sign-in"


@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_no_is_an_answer(combination: str, tmp_path: Path, action: str) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask", Reply(rig, {"action": action}))
        assert json.loads(outcome.text) == {"action": action}


@pytest.mark.parametrize("with_tools", [False, True])
async def test_the_model_is_asked(combination: str, tmp_path: Path, with_tools: bool) -> None:  # noqa: FBT001
    used = {"type": "tool_use", "id": "u1", "name": "weather", "input": {}}
    said: dict[str, Any] = {**SAID, "content": [used], "stopReason": "toolUse"}
    answer = said if with_tools else SAID
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "sample", Reply(rig, answer), with_tools=with_tools)
        assert json.loads(outcome.text) == answer
        (question,) = rig.sink.questions
        assert question.method == "sampling/createMessage"
        assert ("tools" in fields(question)) is with_tools


async def test_the_roots_are_answered_without_the_session(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        assert json.loads(await rig.text("roots")) == {"roots": ROOTS}
        rig.roots.clear()
        assert json.loads(await rig.text("roots")) == {"roots": []}
        assert rig.sink.questions == []


async def test_two_questions_in_a_row(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask_twice", Reply(rig, ADA, GRACE))
        assert json.loads(outcome.text) == [ADA, GRACE]
        assert [question.call for question in rig.sink.questions] == [asker(rig, "ask_twice")] * 2


async def test_several_questions_at_once(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask_many", Reply(rig, ADA, SAID))
        assert json.loads(outcome.text) == {"who": ADA, "model": SAID, "roots": {"roots": ROOTS}}
        assert len(rig.sink.questions) == 2
        if rig.is_modern:
            _, again = rig.messages("tools/call")
            assert set(again["params"]["inputResponses"]) == {"who", "model", "roots"}
            assert "requestState" not in again["params"]


async def test_a_server_that_only_wants_to_be_called_again(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        assert await rig.text("poll", times=5) == "polled 5"
        calls = rig.messages("tools/call")
        assert len(calls) == (6 if rig.is_modern else 1)
        assert not any("inputResponses" in call["params"] for call in calls)
        assert len({call["id"] for call in calls}) == len(calls)


async def test_what_nobody_wants_to_answer_ends_in_words_that_say_so(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:

        async def refuse() -> None:
            await rig.sink.until(lambda: len(rig.sink.questions) == 2)
            assert rig.sink.questions[0].respond(REFUSAL)
            assert not rig.sink.questions[0].respond(REFUSAL)

        outcome = await beside(rig, "ask_many", refuse)
        await rig.sink.until(lambda: rig.sink.withdrawn_questions)
        assert rig.sink.withdrawn_questions == rig.sink.questions[1:]
        assert not rig.sink.questions[1].respond(b"{}")
        if rig.is_modern:
            assert isinstance(outcome.error, CallFailed)
            assert REFUSAL.message in str(outcome.error)
        else:
            assert outcome.result["isError"]
            assert REFUSAL.message in outcome.text


async def test_a_caller_who_gives_up_takes_the_question_along(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.call("ask"))
            await rig.sink.until(lambda: rig.sink.questions)
            tasks.cancel_scope.cancel()
        await rig.sink.until(lambda: rig.sink.withdrawn_questions)
        (question,) = rig.sink.questions
        assert rig.sink.withdrawn_questions == [question]
        assert not question.respond(b'{"action":"decline"}')
        assert await rig.text("echo", message="still there") == "still there"
        assert rig.sink.withdrawn_questions == [question]


async def test_a_deadline_that_passes_takes_the_question_along(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.call("echo", message="warm")
        outcome = await beside(rig, "ask", within=3)
        assert isinstance(outcome.error, CallTimeout)
        await rig.sink.until(lambda: rig.sink.withdrawn_questions)
        assert rig.sink.withdrawn_questions == rig.sink.questions
        assert not rig.sink.questions[0].respond(b'{"action":"decline"}')


async def test_a_server_that_asks_for_ever_is_stopped(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path, rounds=2) as rig:
        outcome = await beside(rig, "insist", Reply(rig, ACCEPT, ACCEPT))
        assert isinstance(outcome.error, CallFailed)
        assert "asked 3 times in a row" in str(outcome.error)
        assert len(rig.sink.questions) == 2


async def test_a_question_that_nobody_has_heard_of(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "ask_oddly")
        if rig.is_modern:
            assert "asks the unknown question odd/question" in str(outcome.error)
        else:
            assert "-32601" in outcome.text
        assert rig.sink.questions == []


async def test_a_round_that_makes_no_sense_is_an_error_only_where_there_are_rounds(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        empty = await beside(rig, "ask_nothing", how="empty")
        broken = await beside(rig, "ask_nothing", how="broken")
        if rig.is_modern:
            assert "asks for input, but not for what" in str(empty.error)
            assert "cannot be read" in str(broken.error)
        else:
            assert empty.result == {"resultType": "input_required"}
            assert broken.error is None


async def test_a_url_that_comes_first_is_put_and_then_the_call_works(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "sign_in", Reply(rig, ACCEPT))
        assert outcome.text == '"accept"'
        (question,) = rig.sink.questions
        assert question.method == "elicitation/create"
        assert question.call == "sign_in"
        assert fields(question)["url"] == "https://example.com/sign-in"
        assert len(rig.messages("tools/call")) == 2


async def test_a_call_is_made_again_only_when_the_person_has_been_at_the_url(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        if rig.is_modern:  # which asks inside its result instead
            await rig.backend.connect(within=WAIT_S)
            return

        async def agree_and_visit() -> None:
            await Reply(rig, ACCEPT)()
            assert fields(rig.sink.questions[0])["elicitationId"] == "e-1"
            await rig.text("echo", message="in the meantime")
            await rig.text("finish_visit")

        outcome = await beside(rig, "visit_first", agree_and_visit)
        assert outcome.text == "visited"
        called = [m["params"]["name"] for m in rig.messages("tools/call")]
        assert called == ["visit_first", "echo", "finish_visit", "visit_first"]


async def test_a_url_that_comes_first_and_is_declined(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        outcome = await beside(rig, "sign_in", Reply(rig, {"action": "decline"}))
        if rig.is_modern:
            assert outcome.text == '"decline"'
        else:
            assert isinstance(outcome.error, RemoteError)
            assert outcome.error.error.code == -32042
            assert len(rig.messages("tools/call")) == 1


async def test_a_question_that_the_server_takes_back(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        if rig.is_modern:  # a modern server has no way to ask by request
            await rig.backend.connect(within=WAIT_S)
            return
        assert await rig.text("ask_and_withdraw") == "withdrawn"
        await rig.sink.until(lambda: rig.sink.withdrawn_questions)
        assert rig.sink.withdrawn_questions == rig.sink.questions
        assert not rig.sink.questions[0].respond(b'{"action":"decline"}')


async def test_a_connection_lost_while_a_question_is_open_ends_the_call_for_good(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:

        async def lose() -> None:
            await rig.sink.until(lambda: rig.sink.questions)
            await rig.lose()

        outcome = await beside(rig, "ask", lose)
        await rig.sink.until(lambda: "connected" in rig.sink.received)
        assert isinstance(outcome.error, ServerDisconnected | CallFailed)
        if rig.is_modern or not rig.is_http:
            assert isinstance(outcome.error, ServerDisconnected)
            assert not rig.sink.questions[0].respond(b'{"action":"decline"}')
        await rig.come_back()
        assert await rig.text("echo", message="again") == "again"
        asked = [m for m in rig.messages("tools/call") if m["params"]["name"] == "ask"]
        assert len(asked) == 1
        assert rig.sink.withdrawn_questions in ([], rig.sink.questions)
