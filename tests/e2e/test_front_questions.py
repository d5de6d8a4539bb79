import json
from pathlib import Path
from typing import Any

import pytest
from mcp_types import methods

from tests.e2e.client import (
    LEGACY,
    Answer,
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    http_server,
    proxy,
    received_by_server,
    server,
)
from tests.peers import rude

ALICE = {"name": "Alice", "age": 7}


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    log = tmp_path / "log"
    return Setting(home=tmp_path / "home", servers={"s": server(era=era, log=log)}, **more)


def promoted(answer: Answer) -> tuple[str, str]:
    """The task and the question of a call that was promoted because its server asked."""
    assert answer.json["reason"] == "input_required"
    asked = answer.json["pending_on_server"]["elicitations_for_server"]
    elicitations = answer.pending["elicitations"]
    assert asked == [q["request_id"] for q in elicitations]
    kind = "elicitation" if elicitations else "sampling"
    assert f"answer it with respond_to_{kind}, " in answer.text
    [question] = answer.questions
    return answer.task, question


async def accept(client: Client, question: str, **content: Any) -> Answer:
    return await client.call(
        "respond_to_elicitation", request_id=question, action="accept", content=content
    )


@both_eras
@both_backends
async def test_a_client_that_calls_one_tool_at_a_time_can_answer_what_its_call_asked(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        await client.drain()
        asking = await client.execute("ask")
        task, question = promoted(asking)
        [shown] = asking.pending["elicitations"]
        assert shown["server"] == "s"
        assert shown["message"] == "Who are you?"
        assert shown["mode"] == "form"
        assert shown["schema"]["required"] == ["name"]
        assert asking.kinds == ["elicitation_request"]
        again = await client.call("list_tasks")
        assert again.questions == [question], "it stands in every answer until it is answered"
        assert [
            e["request_id"] for e in (await client.call("get_elicitations")).json["elicitations"]
        ]
        held = await client.call("get_task", task_id=task)
        assert [q["request_id"] for q in held.json["pending_elicitations_for_server"]] == [question]
        assert shown.get("task_id") == (task if era == "modern" else None), "only what is known"
        early = await client.call("get_task_result", task_id=task, timeout_ms=0)
        [again_shown] = early.json["pending_elicitations_for_server"]
        [held_shown] = held.json["pending_elicitations_for_server"]
        assert again_shown.keys() == held_shown.keys() == shown.keys()
        assert ("waits for the answer" in early.text) == (era == "modern")
        assert early.json["task"]["status"] == "working"
        assert early.questions == [question]
        waits = await client.begin_call("get_task_result", task_id=task)
        await client.call("list_timers")
        assert waits.message is None, "what it was shown before ends no wait"
        told = await accept(client, question, **ALICE)
        assert told.json == {"answered": question, "server": "s", "action": "accept"}
        assert not told.pending
        result = await waits.answer()
        assert json.loads(result.text) == {"action": "accept", "content": ALICE}
        await client.quiet()
        kinds = [e["type"] for e in client.events]
        assert kinds.count("elicitation_request") == 1
        assert kinds.count("task_completed") == 1
        assert "task_created" not in kinds


@both_eras
@both_backends
async def test_the_model_answers_what_it_is_asked(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        said: list[tuple[Any, Any]] = [
            ("hello", {"type": "text", "text": "hello"}),
            ({"type": "text", "text": "block"}, {"type": "text", "text": "block"}),
            ([{"type": "text", "text": "list"}], [{"type": "text", "text": "list"}]),
        ]
        for content, expected in said:
            asking = await client.execute("sample", args={"with_tools": True})
            task, question = promoted(asking)
            [shown] = asking.pending["sampling_requests"]
            assert shown["preview"] == "Say something."
            whole = (await client.call("get_sampling_requests")).json["sampling_requests"]
            assert [w["request"]["systemPrompt"] for w in whole] == ["Be brief."]
            held = await client.call("get_task", task_id=task)
            assert held.json["pending_elicitations_for_server"] == []
            await client.call(
                "respond_to_sampling", request_id=question, content=content, model="me"
            )
            result = json.loads((await client.call("get_task_result", task_id=task)).text)
            assert result == {
                "role": "assistant",
                "content": expected,
                "model": "me",
                "stopReason": "endTurn",
            }
        task, question = promoted(await client.execute("sample"))
        await client.call("respond_to_sampling", request_id=question, action="decline")
        refused = await client.call("get_task_result", task_id=task)
        assert refused.is_error
        assert "declined" in refused.text
        await client.quiet()


NOT_SAID: list[Any] = [
    {},
    {"text": "hi"},
    {"type": "text", "text": 5},
    {"type": "novel"},
    [{"type": "text", "text": "a"}, 7],
    {"type": "image", "data": "aGk="},
    {"type": "resource_link", "uri": "x://1", "name": "n"},
    {"type": "tool_use", "id": "1", "name": "t", "input": []},
    {"type": "tool_result", "toolUseId": "1", "content": "words"},
]


async def test_an_answer_that_no_model_can_give_is_refused_and_the_question_waits(
    tmp_path: Path,
) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        task, question = promoted(await client.execute("sample", args={"with_tools": True}))
        for content in NOT_SAID:
            refused = await client.call("respond_to_sampling", request_id=question, content=content)
            assert "[invalid_arguments]" in refused.text, content
            assert refused.questions == [question]
        used = [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}]
        await client.call("respond_to_sampling", request_id=question, content=used)
        result = json.loads((await client.call("get_task_result", task_id=task)).text)
        assert result["content"] == used
        methods.validate_client_result("sampling/createMessage", LEGACY, result)


@both_backends
async def test_what_the_user_leaves_out_is_answered_with_the_defaults_of_the_form(
    tmp_path: Path, era: str
) -> None:
    async with proxy(setting(tmp_path, era)) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask_with_defaults"))
        await accept(client, question)
        result = json.loads((await client.call("get_task_result", task_id=task)).text)
        assert result == {"action": "accept", "content": {"name": "Ada", "age": 36}}


@both_eras
@both_backends
async def test_a_second_question_returns_early_from_waiting_for_the_result(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        task, first = promoted(await client.execute("ask_twice"))
        await accept(client, first, name="one")
        # The only call in flight waits for the result when the second question comes.
        early = await client.call("get_task_result", task_id=task)
        assert early.json["task"]["status"] == "working"
        [second] = early.questions
        assert second != first
        assert early.pending["elicitations"][0]["message"] == "Second: who else?"
        await accept(client, second, name="two")
        result = json.loads((await client.call("get_task_result", task_id=task)).text)
        assert [answer["content"]["name"] for answer in result] == ["one", "two"]
        await client.quiet()


@both_eras
@both_backends
async def test_a_question_that_was_shown_ends_no_wait_for_the_result_of_another_call(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        _, question = promoted(await client.execute("ask"))
        slow = await client.execute("slow", args={"seconds": 0.5}, timeout_ms=0)
        task = slow.json["proxy_task"]["task_id"]
        done = await client.call("get_task_result", task_id=task)
        assert "No result yet" not in done.text
        assert done.questions == [question]
        await accept(client, question, name="one")


@both_eras
@both_backends
async def test_a_person_may_be_sent_to_a_url(tmp_path: Path, era: str, *, modern: bool) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        for tool, args in (("ask", {"mode": "url"}), ("sign_in", {})):
            asking = await client.execute(tool, args=args)
            task, question = promoted(asking)
            [shown] = asking.pending["elicitations"]
            assert shown["mode"] == "url"
            assert shown["url"] == "https://example.com/sign-in"
            assert ("elicitation_id" in shown) is (era == "legacy")
            assert "schema" not in shown
            await client.call("respond_to_elicitation", request_id=question, action="accept")
            result = await client.call("get_task_result", task_id=task)
            assert json.loads(result.text) in ({"action": "accept"}, "accept")
        await client.quiet()


@both_backends
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_a_person_may_refuse(tmp_path: Path, era: str, action: str) -> None:
    async with proxy(setting(tmp_path, era)) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        await client.call("respond_to_elicitation", request_id=question, action=action)
        result = await client.call("get_task_result", task_id=task)
        assert json.loads(result.text) == {"action": action}
        again = await accept(client, question, **ALICE)
        assert "[request_not_found]" in again.text
        assert f"{action.rstrip('e')}" in again.text
        await client.quiet()


@both_eras
@both_backends
async def test_a_wrong_answer_is_explained_and_the_question_stays(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        wrong: list[tuple[dict[str, Any], list[str]]] = [
            ({}, ["name is missing"]),
            ({"name": "", "age": "7"}, ["name must have at least 1", "age must be a whole number"]),
            ({"name": 7}, ["name must be a string"]),
            ({"name": "A", "nom": "B"}, ["nom was not asked for", "name, age"]),
            ({"name": "A", "age": 1.5}, ["age must be a whole number"]),
            ({"name": "A", "age": True}, ["age must be a whole number"]),
        ]
        for content, problems in wrong:
            answer = await accept(client, question, **content)
            assert answer.is_error
            assert "[invalid_arguments]" in answer.text
            assert all(problem in answer.text for problem in problems), answer.text
            assert answer.questions == [question]
        other = await client.call("respond_to_sampling", request_id=question, content="x")
        assert "[request_not_found]" in other.text
        assert "elicitation" in other.text
        assert len(received_by_server(tmp_path / "log", "cancelled")) == 0
        await accept(client, question, name="right")
        result = await client.call("get_task_result", task_id=task)
        assert json.loads(result.text)["content"] == {"name": "right"}


@both_eras
@both_backends
async def test_a_question_that_nobody_answers_expires_and_its_server_is_told(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    made = setting(tmp_path, era, timeouts={"client_request_ms": 400})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        expired = await client.until_event("elicitation_expired", request_id=question)
        assert expired["data"]["reason"] == "timeout"
        result = await client.call("get_task_result", task_id=task)
        assert result.is_error
        assert "did not answer in time" in result.text
        late = await accept(client, question, **ALICE)
        assert "[request_not_found]" in late.text
        assert "expired" in late.text
        task, question = promoted(await client.execute("sample"))
        assert (await client.until_event("sampling_expired"))["data"]["request_id"] == question
        assert (await client.call("get_task_result", task_id=task)).is_error
        await client.quiet()


@pytest.mark.virtual_time
async def test_a_question_taken_back_is_told_and_its_call_is_answered_as_usual(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path, fixed={"promotion_grace_s": 2})
    made.servers["r"] = command(rude("withdraw", "4"))
    async with proxy(made) as client:
        await client.connected("s", "r")
        await client.drain()
        # At once: nobody needs to make way for a question that is no more.
        quick = await client.execute("ask_and_withdraw")
        assert quick.text == "withdrawn"
        assert quick.kinds == ["elicitation_request", "elicitation_expired"]
        assert quick.events[-1]["data"]["reason"] == "withdrawn"
        assert not quick.pending
        # After a while: the call has become a task by then.
        task, question = promoted(await client.execute("misbehave", "r"))
        expired = await client.until_event("elicitation_expired", request_id=question)
        assert expired["data"]["reason"] == "withdrawn"
        assert "[request_not_found]" in (await accept(client, question)).text
        assert (await client.call("get_task_result", task_id=task)).text == "withdrawn"
        await client.quiet()


@both_backends
async def test_a_server_that_dies_takes_its_question_along(tmp_path: Path, era: str) -> None:
    made = setting(tmp_path, era, more={"restart": {"base_ms": 50}})
    async with proxy(made) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        died = await client.execute("crash", args={"code": 3})
        if not died.is_error:
            died = await client.call("get_task_result", task_id=died.task)
        assert died.is_error
        expired = await client.until_event("elicitation_expired", request_id=question)
        assert expired["data"]["reason"] == "disconnected"
        await client.until_event("task_failed", task_id=task)
        result = await client.call("get_task_result", task_id=task)
        assert result.is_error
        assert "exited with code 3" in result.text
        assert "[request_not_found]" in (await accept(client, question, **ALICE)).text
        await client.connected()
        await client.quiet()
        kinds = [e["type"] for e in client.events if e["data"].get("task_id") == task]
        assert kinds == ["task_failed"]
        assert [e["type"] for e in client.events].count("elicitation_expired") == 1


@both_backends
async def test_a_task_that_is_cancelled_takes_its_question_along(tmp_path: Path, era: str) -> None:
    async with proxy(setting(tmp_path, era)) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        await client.call("cancel_task", task_id=task)
        await client.until_event("elicitation_expired", request_id=question)
        assert (await client.call("get_elicitations")).json["elicitations"] == []
        await client.quiet()


@both_eras
async def test_the_plain_timeout_can_be_had_back(tmp_path: Path, *, modern: bool) -> None:
    made = setting(tmp_path, more={"promote_on_input": False})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        asking = await client.begin_execute("ask", timeout_ms=60_000)
        await client.until_event("elicitation_request")
        [question] = (await client.call("list_tasks")).questions
        assert asking.message is None
        await accept(client, question, **ALICE)
        assert json.loads((await asking.answer()).text)["action"] == "accept"
        slow = await client.execute("ask", timeout_ms=150)
        assert slow.json["proxy_task"]["status"] == "working"
        still = await client.call("get_task_result", task_id=slow.task, timeout_ms=150)
        assert still.json["task"]["status"] == "working"


@pytest.mark.virtual_time
async def test_all_calls_of_a_handshake_server_make_way_unless_they_finish(tmp_path: Path) -> None:
    made = setting(tmp_path, fixed={"promotion_grace_s": 2})
    async with proxy(made) as client:
        await client.connected()
        await client.drain()
        slow = [await client.begin_execute("slow", args={"seconds": 60}) for _ in range(2)]
        quick = await client.begin_execute("slow", args={"seconds": 0.05})
        asking = await client.begin_execute("ask")
        assert (await quick.answer()).text == "slept 0.05"
        answers = [await one.answer() for one in (*slow, asking)]
        assert [answer.json["reason"] for answer in answers] == ["input_required"] * 3
        for answer in answers:
            assert len(answer.questions) == 1
        assert len({answer.task for answer in answers}) == 3
        for answer in answers[:2]:
            await client.call("cancel_task", task_id=answer.task)
        await accept(client, answers[2].questions[0], **ALICE)
        done = await client.call("get_task_result", task_id=answers[2].task)
        assert json.loads(done.text)["action"] == "accept"
        await client.quiet()


async def test_only_the_asking_call_of_a_modern_server_makes_way(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path, "modern")) as client:
        await client.connected()
        slow = [await client.begin_execute("slow", args={"seconds": 0.8}) for _ in range(2)]
        task, question = promoted(await client.execute("ask"))
        for one in slow:
            assert (await one.answer()).text == "slept 0.8"
        await accept(client, question, **ALICE)
        result = await client.call("get_task_result", task_id=task)
        assert json.loads(result.text)["action"] == "accept"
        await client.quiet()


@pytest.mark.virtual_time
@both_backends
async def test_a_call_made_while_a_question_waits_is_soon_a_task(tmp_path: Path, era: str) -> None:
    made = setting(tmp_path, era, fixed={"question_pending_s": 1.5})
    async with proxy(made) as client:
        await client.connected()
        task, question = promoted(await client.execute("ask"))
        quick = await client.execute("echo", args={"message": "still quick"})
        assert quick.text == "still quick"
        assert quick.questions == [question]
        slow = await client.execute("slow", args={"seconds": 60}, timeout_ms=40_000)
        assert slow.json["reason"] == "question_pending", "the question is older than the call"
        assert "s has a question open" in slow.text
        read = await client.call("read_resource", server="s", uri="fixture://one")
        assert read.text == "text of fixture://one"
        await accept(client, question, **ALICE)
        await client.call("cancel_task", task_id=slow.task)
        await client.call("get_task_result", task_id=task)
        # With the question gone the usual patience is back.
        assert (await client.execute("slow", args={"seconds": 2})).text == "slept 2"
        await client.quiet()


async def test_a_call_whose_question_is_answered_in_time_need_not_make_way(tmp_path: Path) -> None:
    made = setting(tmp_path, fixed={"promotion_grace_s": 20})
    async with proxy(made) as client:
        await client.connected()
        asking = await client.begin_execute("ask")
        await client.until_event("elicitation_request")
        [question] = (await client.call("list_tasks")).questions
        await accept(client, question, **ALICE)
        assert json.loads((await asking.answer()).text)["action"] == "accept"
        await client.quiet()


@both_eras
async def test_a_question_is_never_left_out_and_its_message_is_cut(
    tmp_path: Path, *, modern: bool
) -> None:
    fixed = {"question_chars": 5, "sampling_preview_chars": 3, "response_event_bytes": 1}
    made = setting(tmp_path, "modern", fixed=fixed)
    async with proxy(made, modern=modern) as client:
        await client.connected()
        for _ in range(12):
            await client.execute("ask", timeout_ms=0)
        await client.execute("sample", timeout_ms=0)
        asked: list[str] = []
        while len(asked) < 13:
            answer = await client.call("list_tasks")
            asked = answer.questions
        assert {q["message"] for q in answer.pending["elicitations"]} == {"Who a …"}
        assert [q["preview"] for q in answer.pending["sampling_requests"]] == ["Say …"]
        assert len(answer.events) <= 1
        waited = await client.call("await_activity", timeout_ms=0)
        assert sorted(waited.questions) == sorted(asked)
        for task in answer.json["tasks"]:
            await client.call("cancel_task", task_id=task["task_id"])
        await client.quiet()


async def test_too_many_questions_are_refused_to_the_server(tmp_path: Path) -> None:
    made = setting(tmp_path, "modern", fixed={"pending_requests": 2})
    async with proxy(made) as client:
        await client.connected()
        for _ in range(2):
            promoted_call = await client.execute("ask")
            assert promoted_call.json["reason"] == "input_required"
        refused = await client.execute("ask")
        if not refused.is_error:
            refused = await client.call("get_task_result", task_id=refused.task)
        assert refused.is_error
        assert "2 questions are already waiting" in refused.text


@both_backends
async def test_an_answer_races_with_its_expiry_and_one_of_them_counts(
    tmp_path: Path, era: str
) -> None:
    made = setting(
        tmp_path, era, timeouts={"client_request_ms": 60}, fixed={"promotion_grace_s": 0}
    )
    async with proxy(made) as client:
        await client.connected()
        for n in range(8):
            asking = await client.execute("ask")
            task = asking.task
            [question] = asking.json["pending_on_server"]["elicitations_for_server"] or [None]
            if question is None:
                continue
            if n % 2:
                await client.call("await_activity", timeout_ms=40 + 3 * n)
            answered = await accept(client, question, **ALICE)
            result = await client.call("get_task_result", task_id=task)
            assert result.is_error == answered.is_error, (answered, result)
        await client.quiet()
        assert received_by_server(tmp_path / "log")


async def test_over_http_the_call_that_asks_is_told_apart(tmp_path: Path) -> None:
    """The POST stream tells which call asked: the others keep waiting."""
    async with http_server() as url:
        made = Setting(home=tmp_path / "home", servers={"h": {"url": url}})
        async with proxy(made) as client:
            await client.connected("h")
            slow = await client.begin_execute("slow", "h", args={"seconds": 0.8})
            task, question = promoted(await client.execute("ask", "h"))
            [shown] = (await client.call("get_elicitations")).json["elicitations"]
            assert shown["task_id"] == task
            assert (await slow.answer()).text == "slept 0.8"
            await accept(client, question, **ALICE)
            result = await client.call("get_task_result", task_id=task)
            assert json.loads(result.text)["content"] == ALICE
            await client.quiet()
