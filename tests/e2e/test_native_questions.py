"""What servers ask goes to the person, through the client's own elicitation, and to nobody else."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.raw import entry, until
from tests.e2e.persons import ADA, Person, person, result_of, server_entry
from tests.peers import plain


class FormsOnly(Person):
    @property
    def capabilities(self) -> dict[str, Any]:
        return {"elicitation": {}}


both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
PAIRINGS = [
    pytest.param(modern, era, transport, id=f"{'modern' if modern else 'legacy'}-{era}-{transport}")
    for modern in (False, True)
    for era in ("legacy", "modern")
    for transport in ("stdio", "http")
]
ANSWERS: list[dict[str, Any]] = [
    {"action": "accept", "content": ADA},
    {"action": "decline"},
    {"action": "cancel"},
]


@pytest.mark.parametrize(("modern", "era", "transport"), PAIRINGS)
def test_every_pairing_takes_a_question_to_the_person_and_the_answer_back(
    tmp_path: Path, era: str, transport: str, *, modern: bool
) -> None:
    with (
        server_entry(tmp_path, era, transport) as at,
        person(tmp_path, modern=modern, servers={"s": at}) as client,
    ):
        number = 0
        for mode in ("form", "url"):
            for answer in ANSWERS:
                call = client.begin("ask", args={"mode": mode})
                shown = client.asked(call, number)
                known = ', in a call of "ask"' if (era, transport) != ("legacy", "stdio") else ""
                if mode == "form":
                    assert shown["message"] == (
                        f'emceepee: the server "s" asks{known}:\n> Who are you?'
                    )
                    assert shown["requestedSchema"]["required"] == ["name"]
                else:
                    assert shown["message"] == (
                        f'emceepee: the server "s" wants you to open example.com{known}:\n> Sign in'
                    )
                    assert shown["url"] == "https://example.com/sign-in"
                said = {k: v for k, v in answer.items() if mode == "form" or k == "action"}
                call = client.say(call, said, number)
                assert result_of(client.said_to(call)) == said
                number += 1
        assert not {"elicitation_request", "task_created"} & set(client.events())
        rounds = 2 if era == "modern" else 1
        assert client.calls_of("ask") == 6 * rounds, "each call was made once"
        assert client.withdrawn() == []


@pytest.mark.parametrize(("modern", "era", "transport"), PAIRINGS)
def test_in_every_pairing_a_question_that_nobody_answers_expires_and_goes_to_nobody(
    tmp_path: Path, era: str, transport: str, *, modern: bool
) -> None:
    settings = {"timeouts": {"client_request_ms": 400}}
    with (
        server_entry(tmp_path, era, transport) as at,
        person(tmp_path, modern=modern, servers={"s": at}, settings=settings) as client,
    ):
        for number, mode in enumerate(("form", "url")):
            call = client.begin("ask", args={"mode": mode})
            client.asked(call, number)
            if modern:
                until(lambda: not client.pending(), "the end of the question")
                late = client.said_to(client.say(call, {"action": "accept", "content": ADA}))
                assert "[request_not_found]" in late.text
                if (era, transport) == ("legacy", "stdio"):
                    until(lambda n=number: len(stopped(client)) == n + 1, "the word to stop")
            else:
                said = client.said_to(call)
                assert said.is_error
                assert "did not answer in time" in said.text
                assert client.withdrawn() == [q["id"] for q in client.questions]
        assert client.calls_of("ask") == 2
        assert not {"elicitation_request", "elicitation_expired"} & set(client.events())
        status = json.loads(
            client.use("read_resource", server="emceepee", uri="emceepee://status").text
        )
        assert status["calls_in_flight"] == 0


def stopped(client: Person) -> list[int]:
    """The calls that the server was told to stop, before it was told of the question."""
    received = [line["message"] for line in client.received("s")]
    found: list[int] = []
    for call, said in pairwise(m for m in received if m.get("method") != "tools/list"):
        if call.get("method") == "tools/call" and said.get("method") == "notifications/cancelled":
            assert said["params"]["requestId"] == call["id"]
            found.append(call["id"])
    return found


# The story: a question that only the model saw was answered by the model


@both_eras
@pytest.mark.parametrize("era", ["legacy", "modern"], ids=lambda era: f"{era}-server")
def test_money_is_paid_when_the_person_says_so_and_never_because_the_model_does(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, era=era) as client:
        paid = {"amount": 500, "to": "ACME"}
        for number, (sure, outcome) in enumerate(
            (("no", "nothing was paid"), ("yes", "500 EUR paid to ACME"))
        ):
            call = client.begin("transfer", args=paid)
            assert "> Transfer 500 EUR to ACME?" in client.asked(call, number)["message"]
            [seen] = client.pending()
            assert seen.keys() <= {
                "request_id",
                "server",
                "age_ms",
                "expires_in_ms",
                "asked",
                "task_id",
            }
            assert seen["asked"] == "person"
            for action in ("accept", "decline", "cancel"):
                refused = client.use(
                    "respond_to_elicitation",
                    request_id=seen["request_id"],
                    action=action,
                    content={"sure": "yes"},
                )
                assert refused.is_error
                assert "The user is being asked" in refused.text
                assert "500 EUR" not in refused.text
            call = client.say(call, {"action": "accept", "content": {"sure": sure}}, number)
            assert client.said_to(call).blocks[0]["text"] == outcome
        assert client.pending() == []


@both_eras
def test_a_call_that_waits_for_the_person_becomes_a_task_in_time_and_the_question_stays(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        client.execute("s", "echo", message="it is up")
        call = client.begin("ask", timeout_ms=3000)
        client.asked(call)
        if modern:  # its time stands still until the client waits again
            client.said_to(client.begin("slow", args={"seconds": 3.2}))
            call = client.say(call, {"action": "accept", "content": ADA})
            assert result_of(client.said_to(call))["content"] == ADA
            return
        said = client.said_to(call)
        task = json.loads(said.blocks[1]["text"])
        assert task["reason"] == "timeout"
        assert "the user is being asked a question of s" in said.text
        [asked] = json.loads(said.result["content"][-1]["text"])["pending_client_action"][
            "elicitations"
        ]
        assert task["pending_on_server"]["elicitations_for_server"] == [asked["request_id"]]
        assert asked["asked"] == "person"
        assert "message" not in said.text
        waits = client.start("get_task_result", task_id=task["proxy_task"]["task_id"])
        client.sync()
        assert not client.answers(waits), "a question to the person ends no wait"
        client.say(call, {"action": "accept", "content": ADA})
        assert result_of(client.said_to(waits)) == {"action": "accept", "content": ADA}


@both_eras
@pytest.mark.parametrize("era", ["legacy", "modern"], ids=lambda era: f"{era}-server")
def test_questions_in_several_rounds_all_belong_to_one_call(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, era=era) as client:
        call = client.begin("ask_twice")
        assert "> First: who are you?" in client.asked(call)["message"]
        call = client.say(call, {"action": "accept", "content": {"name": "one"}})
        assert "> Second: who else?" in client.asked(call, 1)["message"]
        call = client.say(call, {"action": "accept", "content": {"name": "two"}}, 1)
        names = [answer["content"]["name"] for answer in result_of(client.said_to(call))]
        assert names == ["one", "two"]
        assert client.calls_of("ask_twice") == (3 if era == "modern" else 1)


@both_eras
def test_what_the_person_leaves_out_is_answered_with_the_defaults_of_the_form(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        call = client.begin("ask_with_defaults")
        call = client.say(call, {"action": "accept", "content": {}})
        assert result_of(client.said_to(call))["content"] == ADA


# Clients that are not as they should be

ODD: dict[str, dict[str, Any]] = {
    "a number": {"result": 7},
    "an unknown action": {"result": {"action": "maybe"}},
    "no content": {"result": {"action": "accept"}},
    "a field of the wrong kind": {"result": {"action": "accept", "content": {"name": 5}}},
    "a field that was not asked for": {
        "result": {"action": "accept", "content": {"name": "Ada", "more": 1}}
    },
    "nesting": {"result": {"action": "accept", "content": {"name": {"deep": [[]]}}}},
    "an error": {"error": {"code": -32603, "message": "no"}},
}


def test_an_answer_that_cannot_be_one_is_told_the_server_as_no_decision(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        for number, odd in enumerate(ODD.values()):
            call = client.begin("ask")
            client.send({"id": client.question(number)["id"], **odd})
            assert result_of(client.said_to(call)) == {"action": "cancel"}
        assert client.pending() == []
        assert "elicitation_request" not in client.events()


def test_a_modern_answer_that_cannot_be_one_is_told_the_server_as_no_decision(
    tmp_path: Path,
) -> None:
    with person(tmp_path, modern=True) as client:
        for odd in (case["result"] for case in ODD.values() if "result" in case):
            call = client.say(client.begin("ask"), odd)
            assert result_of(client.said_to(call)) == {"action": "cancel"}


@both_eras
def test_what_a_client_refuses_at_once_goes_to_the_tools_and_it_is_remembered_after_two_servers(
    tmp_path: Path, *, modern: bool
) -> None:
    other = {"t": entry(plain("--era", "legacy"), tmp_path, "t", era="legacy")}
    with person(
        tmp_path, modern=modern, servers=other, fixed={"automatic_answer_s": 30.0}
    ) as client:
        for number, server in enumerate(("s", "t")):
            call = client.begin("transfer", server, args={"amount": 1, "to": "x"})
            said = client.said_to(client.say(call, {"action": "cancel"}, number))
            _answer_by_tool(client, said.result, server)
        said = client.said_to(client.begin("transfer", args={"amount": 1, "to": "x"}))
        assert not said.is_question, "nobody is there to be asked"
        _answer_by_tool(client, said.result, "s")
        assert len(client.questions) == (0 if modern else 2)


def _answer_by_tool(client: Person, result: dict[str, Any], server: str) -> None:
    blocks = [json.loads(b["text"]) for b in result["content"] if b["text"].startswith("{")]
    [task] = [block["proxy_task"] for block in blocks if "proxy_task" in block]
    [pending] = [
        block["pending_client_action"] for block in blocks if "pending_client_action" in block
    ]
    [question] = pending["elicitations"]
    assert (question["server"], question["message"]) == (server, "Transfer 1 EUR to x?")
    told = client.use(
        "respond_to_elicitation",
        request_id=question["request_id"],
        action="accept",
        content={"sure": "yes"},
    )
    assert not told.is_error, told
    done = client.use("get_task_result", task_id=task["task_id"])
    assert done.blocks[0]["text"] == "1 EUR paid to x"


def test_a_fast_answer_that_accepts_is_the_persons(tmp_path: Path) -> None:
    with person(tmp_path, fixed={"automatic_answer_s": 30.0}) as client:
        call = client.begin("ask")
        client.say(call, {"action": "accept", "content": ADA})
        assert result_of(client.said_to(call)) == {"action": "accept", "content": ADA}


# Forms with fields that a host cannot show

PAYMENT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "amount": {"type": "number", "description": "In EUR.", "minimum": 1, "maximum": 1000},
        "copies": {"type": "integer", "default": 2},
        "to": {"type": "array", "items": {"type": "string", "enum": ["Ada", "Grace"]}},
        "note": {"type": "string", "title": "A note"},
    },
    "required": ["amount", "to"],
}


def begin_form(client: Person, **how: Any) -> int:
    question = {"mode": "form", "message": "Transfer 500 EUR?", "requestedSchema": PAYMENT}
    return client.begin("ask_this", args={"question": json.dumps(question)}, **how)


@both_eras
def test_what_a_host_cannot_show_is_asked_as_text_until_the_answer_fits(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, client="codex-mcp-client") as client:
        call = begin_form(client)
        shown = client.asked(call)["requestedSchema"]
        assert {field["type"] for field in shown["properties"].values()} == {"string"}
        assert shown["properties"]["note"] == PAYMENT["properties"]["note"]
        assert shown["properties"]["copies"]["default"] == "2"
        assert shown["properties"]["amount"]["description"] == (
            "In EUR. Write a number from 1 to 1000, in digits with a point before decimals, such as"
            " 1500 or 12.50."
        )
        assert shown["properties"]["to"]["description"] == (
            "Write one or more of these, with commas between them: Ada, Grace."
        )
        assert shown["required"] == ["amount"]
        call = client.say(call, {"action": "accept", "content": {"amount": "1,500"}})
        again = client.asked(call, 1)
        lines = again["message"].splitlines()
        assert lines[0].startswith('emceepee: the server "s" asks again, as the answer did not fit')
        assert lines[1].startswith('> amount: "1,500" cannot be read. Write a number from 1 to')
        assert lines[2] == "> Transfer 500 EUR?"
        assert again["requestedSchema"] == shown
        good = {"amount": "500", "to": "grace, Ada", "note": "rent"}
        call = client.say(call, {"action": "accept", "content": good}, 1)
        assert result_of(client.said_to(call)) == {
            "action": "accept",
            "content": {"amount": 500, "copies": 2, "to": ["Grace", "Ada"], "note": "rent"},
        }
        assert "elicitation_request" not in client.events()
        assert client.calls_of("ask_this") == 1
        assert len(client.questions) == (0 if modern else 2)


@both_eras
def test_an_answer_that_never_fits_is_no_decision_after_three_tries(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, client="codex-mcp-client") as client:
        call = begin_form(client)
        for number, amount in enumerate(("1.500", "", "2000")):
            client.asked(call, number)
            call = client.say(call, {"action": "accept", "content": {"amount": amount}}, number)
        assert result_of(client.said_to(call)) == {"action": "cancel"}
        assert client.pending() == []


@both_eras
def test_a_form_that_a_host_refuses_by_itself_is_asked_once_more_as_text(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, fixed={"automatic_answer_s": 30.0}) as client:
        call = begin_form(client)
        assert client.asked(call)["requestedSchema"]["properties"]["amount"]["type"] == "number"
        call = client.say(call, {"action": "cancel"})
        shown = client.asked(call, 1)["requestedSchema"]["properties"]
        assert shown["amount"]["type"] == "string"
        assert client.pending()[0]["asked"] == "person"
        good = {"action": "accept", "content": {"amount": "5", "to": "Ada", "copies": "3"}}
        call = client.say(call, good, 1)
        assert result_of(client.said_to(call))["content"] == {
            "amount": 5,
            "copies": 3,
            "to": ["Ada"],
        }
        call = begin_form(client)
        call = client.say(call, {"action": "decline"}, 2)
        client.asked(call, 3)
        said = client.said_to(client.say(call, {"action": "decline"}, 3))
        assert "proxy_task" in said.text, "refused as text, too: the tools have it"


def test_a_form_of_a_task_that_ends_is_withdrawn_although_it_was_asked_again(
    tmp_path: Path,
) -> None:
    with person(tmp_path, client="codex-mcp-client") as client:
        call = begin_form(client, timeout_ms=0)
        task = json.loads(client.said_to(call).result["content"][1]["text"])["proxy_task"]
        client.accept(client.question(), amount="many")
        asked = client.question(1)
        client.use("cancel_task", task_id=task["task_id"])
        client.read_until(lambda: client.withdrawn() == [asked["id"]], "its withdrawal")
        client.accept(asked, amount="5", to="Ada")
        assert client.execute("s", "echo", message="still here").text.startswith("still here")
        assert len(client.questions) == 2


@both_eras
def test_a_page_that_is_accepted_at_once_was_seen_by_no_person(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, fixed={"automatic_answer_s": 30.0}) as client:
        call = client.begin("ask", args={"mode": "url"})
        said = client.said_to(client.say(call, {"action": "accept"}))
        assert "proxy_task" in said.text
        [question] = client.pending()
        assert question["url"] == "https://example.com/sign-in"
        client.use("respond_to_elicitation", request_id=question["request_id"], action="decline")


@both_eras
def test_a_page_that_is_accepted_at_once_is_not_decided_where_no_tool_may_answer(
    tmp_path: Path, *, modern: bool
) -> None:
    how: dict[str, Any] = {"settings": {"questions": "client"}, "modern": modern}
    with person(tmp_path, fixed={"automatic_answer_s": 30.0}, **how) as client:
        call = client.begin("ask", args={"mode": "url"})
        said = client.said_to(client.say(call, {"action": "accept"}))
        assert result_of(said) == {"action": "cancel"}


def late_answers(client: Person) -> list[dict[str, Any]]:
    told = client.use("await_activity", timeout_ms=0).json["events"]
    events = [event for group in told for event in group["events"]]
    return [event["data"] for event in events if event["type"] == "late_answer"]


def test_an_answer_after_the_call_was_cancelled_is_told(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        call = client.begin("ask")
        asked = client.question()
        client.send({"method": "notifications/cancelled", "params": {"requestId": call}})
        client.accept(asked, **ADA)
        client.sync()
        assert late_answers(client) == [
            {
                "tool": "ask",
                "delivered": True,
                "note": "The call had ended before, and its answer did not wait for this one.",
            }
        ]


@pytest.mark.parametrize("limit", ["8000", None], ids=["the host's limit", "the question's"])
def test_an_answer_of_a_modern_client_after_its_call_was_stopped_is_told(
    tmp_path: Path, limit: str | None
) -> None:
    more: dict[str, Any] = {"settings": {"timeouts": {"client_request_ms": 400}}}
    if limit is not None:
        more = {"env": {"MCP_TOOL_TIMEOUT": limit}}
    with person(tmp_path, modern=True, **more) as client:
        call = client.begin("ask")
        client.asked(call)
        until(lambda: stopped(client) or None, "the word to stop")
        late = client.said_to(client.say(call, {"action": "accept", "content": ADA}))
        assert "[request_not_found]" in late.text
        [told] = late_answers(client)
        assert (told["tool"], told["delivered"]) == ("ask", False)
        again = client.say(call, {"action": "accept", "content": ADA})
        assert "[request_not_found]" in client.said_to(again).text
        assert late_answers(client) == [], "told once"


def test_an_answer_after_the_task_has_ended_is_nobodys(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        call = client.begin("ask", timeout_ms=0)
        task = json.loads(client.said_to(call).result["content"][1]["text"])["proxy_task"]
        asked = client.question()
        client.use("cancel_task", task_id=task["task_id"])
        client.read_until(lambda: client.withdrawn() == [asked["id"]], "its withdrawal")
        for _ in range(2):
            client.accept(asked, **ADA)
        assert client.execute("s", "echo", message="still here").text.startswith("still here")
        assert client.pending() == []


def test_an_answer_counts_once(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        call = client.begin("ask_twice")
        asked = client.question()
        for name in ("one", "two", "three"):
            client.accept(asked, name=name)
        client.say(call, {"action": "accept", "content": {"name": "last"}}, 1)
        names = [answer["content"]["name"] for answer in result_of(client.said_to(call))]
        assert names == ["one", "last"]


def test_a_client_that_answers_one_after_the_other_gets_every_answer_to_its_own_call(
    tmp_path: Path,
) -> None:
    with person(tmp_path) as client:
        calls = [client.begin("ask") for _ in range(3)]
        client.question(2)
        for number, asked in enumerate(client.questions):
            client.accept(asked, name=f"n{number}")
        names = [result_of(client.said_to(call))["content"]["name"] for call in calls]
        assert sorted(names) == ["n0", "n1", "n2"]


@both_eras
def test_a_client_that_leaves_while_its_person_is_asked_leaves_nothing(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        client.asked(client.begin("ask"))
        assert client.hang_up() == 0
        assert client.left_over() == set()


def test_a_question_that_its_server_takes_back_or_dies_with_is_withdrawn_at_the_client(
    tmp_path: Path,
) -> None:
    with person(tmp_path) as client:
        client.said_to(client.begin("ask_and_withdraw"))
        client.read_until(lambda: len(client.withdrawn()) == 1, "the first withdrawal")
        call = client.begin("ask")
        client.question(1)
        client.said_to(client.begin("crash"))
        assert client.said_to(call).is_error
        client.read_until(lambda: len(client.withdrawn()) == 2, "the second withdrawal")
        assert client.withdrawn() == [q["id"] for q in client.questions]
        assert client.pending() == []


def test_a_question_outside_any_call_is_asked_at_once(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        client.said_to(client.begin("ask_soon"))
        client.accept(client.question(), name="Ada")
        until(lambda: client.received("s", "answered"), "the answer at the server")
        [noted] = client.received("s", "answered")
        assert noted["reply"]["result"] == {"action": "accept", "content": {"name": "Ada"}}


# The modern era


def test_a_question_outside_any_call_of_a_modern_client_is_carried_by_the_next_one(
    tmp_path: Path,
) -> None:
    with person(tmp_path, modern=True) as client:
        client.said_to(client.begin("ask_soon"))
        until(lambda: client.noted("elicitation_received"), "the question")
        call = client.start("list_timers")
        assert "> By the way?" in client.asked(call)["message"]
        said = client.said_to(client.say(call, {"action": "accept", "content": {"name": "Ada"}}))
        assert said.json == {"timers": []}
        until(lambda: client.received("s", "answered"), "the answer at the server")


def test_a_question_of_a_task_is_carried_by_the_call_that_waits_for_it(tmp_path: Path) -> None:
    with person(tmp_path, modern=True) as client:
        said = client.said_to(client.begin("ask", timeout_ms=0))
        task = None
        for block in said.result.get("content", []):
            if block["text"].startswith('{"proxy_task"'):
                task = json.loads(block["text"])["proxy_task"]["task_id"]
        assert task is not None
        until(lambda: client.noted("elicitation_received"), "the question")
        waits = client.start("get_task_result", task_id=task)
        answer = {"action": "accept", "content": ADA}
        done = client.said_to(client.say(waits, answer))
        assert result_of(done) == answer
        assert client.calls_of("ask") == 1


def test_a_state_counts_once_and_only_for_the_call_that_it_was_given_to(tmp_path: Path) -> None:
    with person(tmp_path, modern=True) as client:
        call = client.begin("transfer", args={"amount": 1, "to": "x"})
        said = client.said_to(call)
        [key] = said.result["inputRequests"]
        replies = {key: {"action": "accept", "content": {"sure": "yes"}}}
        state = said.result["requestState"]
        other = client.start(
            "execute_tool",
            server="s",
            tool="transfer",
            args={"amount": 500, "to": "x"},
            replies=replies,
            state=state,
        )
        assert "[invalid_arguments]" in client.said_to(other).text
        done = client.said_to(client.again(call, replies, state))
        assert done.blocks[0]["text"] == "1 EUR paid to x"
        twice = client.said_to(client.again(call, replies, state))
        assert "[request_not_found]" in twice.text
        made_up = client.said_to(client.again(call, replies, "question:made-up"))
        assert "[request_not_found]" in made_up.text
        assert client.calls_of("transfer") == 1


def test_a_call_that_is_made_again_without_its_answer_is_asked_again(tmp_path: Path) -> None:
    with person(tmp_path, modern=True) as client:
        call = client.begin("ask")
        state = client.said_to(call).result["requestState"]
        again = client.again(call, {}, state)
        call = client.say(again, {"action": "accept", "content": ADA})
        assert result_of(client.said_to(call))["content"] == ADA
        assert client.calls_of("ask") == 1


class Numbers(Person):
    """Sends a number that no float holds."""

    def write(self, data: bytes) -> None:
        super().write(data.replace(b'"NUMBER"', b"1e999"))


def test_arguments_that_cannot_be_read_end_nothing_when_their_call_asks(tmp_path: Path) -> None:
    with person(tmp_path, modern=True, kind=Numbers) as client:
        call = client.begin("transfer", args={"amount": "NUMBER", "to": "x"})
        call = client.say(call, {"action": "accept", "content": {"sure": "yes"}})
        assert client.said_to(call).blocks[0]["text"] == "inf EUR paid to x"


def test_several_questions_at_once_are_carried_together(tmp_path: Path) -> None:
    with person(tmp_path, modern=True, era="modern") as client:
        calls = [client.begin("ask") for _ in range(2)]
        for call in calls:
            call = client.say(call, {"action": "accept", "content": ADA})  # noqa: PLW2901
            assert result_of(client.said_to(call))["content"] == ADA
        asking = client.begin("ask_many")
        [question] = client.said_to(asking).result["inputRequests"].values()
        assert question["method"] == "elicitation/create", "the model is asked by the tools"


def test_a_result_that_came_while_the_client_asked_is_kept_for_it(tmp_path: Path) -> None:
    with person(tmp_path, modern=True) as client:
        call = client.begin("ask_and_withdraw")
        said = client.said_to(call)
        if said.is_question:
            said = client.said_to(client.say(call, {"action": "decline"}))
        assert said.blocks[0]["text"] == "withdrawn"
        assert client.calls_of("ask_and_withdraw") == 1


# The setting


@both_eras
def test_questions_for_the_tools_are_asked_by_the_tools(tmp_path: Path, *, modern: bool) -> None:
    with person(tmp_path, modern=modern, settings={"questions": "tools"}) as client:
        said = client.said_to(client.begin("ask"))
        assert not said.is_question
        assert '"message":"Who are you?"' in said.text
        assert client.questions == []


@both_eras
def test_questions_for_the_client_alone_never_reach_the_model(
    tmp_path: Path, *, modern: bool
) -> None:
    how: dict[str, Any] = {"settings": {"questions": "client"}, "modern": modern}
    with person(tmp_path, fixed={"automatic_answer_s": 30.0}, **how) as client:
        call = client.say(client.begin("ask"), {"action": "decline"})
        assert result_of(client.said_to(call)) == {"action": "decline"}
    (tmp_path / "mute").mkdir()
    with person(tmp_path / "mute", elicits=False, **how) as client:
        said = client.said_to(client.begin("ask"))
        assert said.is_error
        assert "no way to ask a person" in said.text
        assert client.pending() == []


@both_eras
def test_nothing_of_an_answer_reaches_the_model_or_the_journal(
    tmp_path: Path, *, modern: bool
) -> None:
    settings = {"logging": {"level": "debug"}}
    with person(tmp_path, modern=modern, settings=settings) as client:
        call = client.begin("transfer", args={"amount": 1, "to": "x"}, timeout_ms=900_000)
        client.asked(call)
        odd = {"action": "accept", "content": {"sure": "hunter2"}}
        call = client.say(call, odd)
        assert client.said_to(call).blocks[0]["text"] == "nothing was paid"
        call = client.begin("ask")
        call = client.say(call, {"action": "accept", "content": {"name": "hunter2"}}, 1)
        client.said_to(call)
        client.use("await_activity", timeout_ms=0)
        client.noted("elicitation_responded")
        told = [m for m in client.said if "hunter2" in json.dumps(m)]
        assert len(told) == 1, "only the server's own result"
        journal = [p.read_text() for p in (tmp_path / "journal").glob("*")]
        assert "hunter2" not in "".join(journal)


# Pages that a person is sent to


def completed(client: Person) -> list[str]:
    told = [m for m in client.said if m.get("method") == "notifications/elicitation/complete"]
    return [m["params"]["elicitationId"] for m in told]


def test_the_client_is_told_when_the_person_is_done_at_a_page(tmp_path: Path) -> None:
    with person(tmp_path) as client:
        call = client.begin("ask", args={"mode": "url"})
        shown = client.asked(call)["elicitationId"]
        client.say(call, {"action": "accept"})
        client.said_to(call)
        client.read_until(lambda: completed(client) == [shown], "the end of the visit")
        assert client.withdrawn() == []


@both_eras
def test_a_page_that_the_person_is_done_with_needs_no_answer_any_more(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        call = client.begin("sign_in")
        shown = client.asked(call)
        if modern:
            until(lambda: not client.pending(), "the end of the visit")
            call = client.say(call, {"action": "decline"})
        assert client.said_to(call).blocks[0]["text"] == '"accept"'
        assert client.calls_of("sign_in") == 2, "once before the visit, once after"
        if not modern:
            assert client.withdrawn() == [client.question()["id"]]
            assert completed(client) == [shown["elicitationId"]]


@both_eras
def test_a_call_that_needs_a_visit_first_is_made_again_after_it(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        call = client.begin("visit_first")
        assert "wants you to open example.com" in client.asked(call)["message"]
        call = client.say(call, {"action": "accept"})
        client.sync()
        assert not client.answers(call), "the person is still there"
        client.execute("s", "finish_visit")
        assert client.said_to(call).blocks[0]["text"] == "visited"
        assert client.calls_of("visit_first") == 2
        call = client.begin("insist")
        call = client.say(call, {"action": "decline"}, 1)
        refused = client.said_to(call)
        assert refused.is_error
        assert "-32042" in refused.text


def test_a_page_goes_to_the_tools_where_the_client_shows_only_forms(tmp_path: Path) -> None:
    with person(tmp_path, kind=FormsOnly) as client:
        said = client.said_to(client.begin("ask", args={"mode": "url"}))
        assert '"url":"https://example.com/sign-in"' in said.text
        assert client.questions == []


# Several at once


def drive(client: Person, calls: list[int], answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Bring the calls of a modern client to their ends, whichever carries which question."""
    results: list[dict[str, Any]] = []
    waiting = list(calls)
    while waiting:
        client.read_until(lambda: any(map(client.answers, waiting)), "an answer")
        ready = next(call for call in waiting if client.answers(call))
        waiting.remove(ready)
        said = client.said_to(ready)
        if said.is_question:
            waiting.append(client.say(ready, answer))
        else:
            results.append(said.result)
    return results


def test_calls_of_which_nobody_knows_which_one_asked_carry_each_others_questions(
    tmp_path: Path,
) -> None:
    with person(tmp_path, modern=True) as client:
        calls = [client.begin("ask") for _ in range(5)]
        answer = {"action": "accept", "content": ADA}
        results = drive(client, calls, answer)
        assert [json.loads(result["content"][0]["text"]) for result in results] == [answer] * 5
        assert client.calls_of("ask") == 5
        assert client.pending() == []


@both_eras
@pytest.mark.parametrize("era", ["legacy", "modern"], ids=lambda era: f"{era}-server")
def test_a_call_that_asks_the_person_and_the_model_gets_both_answers(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern, era=era) as client:
        call = client.begin("ask_many")
        client.asked(call)
        if modern:
            call = client.say(call, {"action": "accept", "content": ADA})
        said = client.said_to(call)
        task = json.loads(said.blocks[1]["text"])["proxy_task"]["task_id"]
        [sampling] = client.use("get_sampling_requests").json["sampling_requests"]
        client.use("respond_to_sampling", request_id=sampling["request_id"], content="Hello")
        if not modern:
            client.say(call, {"action": "accept", "content": ADA})
        done = result_of(client.use("get_task_result", task_id=task))
        assert done["who"] == {"action": "accept", "content": ADA}
        assert done["model"]["content"] == {"type": "text", "text": "Hello"}
