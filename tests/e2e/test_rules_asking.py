"""The rule `ask`: a call is put to the person as it is, and only their yes runs it, once."""

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import TrustStore
from tests.e2e.cli_harness import Home
from tests.e2e.client import received_by_server
from tests.e2e.clients.raw import ROOT, until
from tests.e2e.hosts import ALWAYS, NO, ONCE, Host, Said, host
from tests.e2e.test_pins import (
    NOW_HELPFUL,
    SEND,
    TURN,
    Turncoat,
    first_run,
    seen,
    until_told,
)
from tests.peers import plain

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
HI = {"server": "bank", "tool": "echo", "args": {"message": "hi"}}


def entry(tmp_path: Path, **rules: str) -> dict[str, Any]:
    argv = plain("--era", "legacy")
    log = {"FIXTURE_LOG": str(tmp_path / "received.jsonl")}
    return {"command": argv[0], "args": argv[1:], "env": log, "tools": rules}


@contextmanager
def bank(tmp_path: Path, **how: Any) -> Iterator[Host]:
    """A proxy before a server whose tool `echo` is asked for."""
    with host(tmp_path, servers={"bank": entry(tmp_path, echo="ask")}, **how) as client:
        yield client


def ran(tmp_path: Path) -> list[Any]:
    received = [line["message"] for line in received_by_server(tmp_path / "received.jsonl")]
    return [m["params"]["arguments"] for m in received if m.get("method") == "tools/call"]


def edit(tmp_path: Path, **servers: Any) -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    config["mcpServers"] |= servers
    new = tmp_path / "config.new"
    new.write_text(json.dumps(config))
    new.replace(tmp_path / "config.json")


def approve(tmp_path: Path, said: Said, answer: str = "y\n") -> str:
    """As a person does it at a terminal; what they read."""
    assert "[needs_approval]" in said.text, said
    waiting = said.text.partition("emceepee approve ")[2][:8]
    shared = {"EMCEEPEE_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    person = Home(tmp_path / "person", env=shared)
    with person.screen("approve", waiting, color=False, columns=200) as screen:
        screen.until_said("Do you allow this?")
        screen.type(answer)
        screen.wait()
        return screen.text


# Through the client


@both_eras
def test_the_person_reads_server_tool_and_arguments_and_a_yes_runs_exactly_that(
    tmp_path: Path, *, modern: bool
) -> None:
    with bank(tmp_path, modern=modern) as client:
        first = client.start("execute_tool", **HI)
        asked = client.asked_for(first).split("\n")
        assert asked == ["Server bank, tool echo", '{"message":"hi"}']
        assert ran(tmp_path) == []
    with bank(tmp_path, modern=modern) as client:
        said = client.decide("accept", "execute_tool", decision=ONCE, **HI)
        assert said.text.startswith("hi")
        again = client.decide("accept", "execute_tool", decision=ONCE, **HI)
        assert again.text.startswith("hi"), "and was asked for again"
        assert ran(tmp_path) == [{"message": "hi"}] * 2
        assert [line["data"]["tool"] for line in client.noted("approval_granted")] == ["echo"] * 2


@both_eras
@pytest.mark.parametrize(("action", "choice"), [("accept", NO), ("decline", ""), ("cancel", "")])
def test_a_refusal_runs_nothing_and_the_next_call_asks_again(
    tmp_path: Path, action: str, choice: str, *, modern: bool
) -> None:
    with bank(tmp_path, modern=modern) as client:
        said = client.decide(action, "execute_tool", decision=choice, **HI)
        assert "[policy_denied]" in said.text
        assert "the person refused" in said.text
        assert ran(tmp_path) == []
        assert client.decide("accept", "execute_tool", decision=ONCE, **HI).text.startswith("hi")


@both_eras
def test_over_http_a_yes_is_for_one_call_whatever_the_client_answers(
    tmp_path: Path, *, modern: bool
) -> None:
    with bank(tmp_path, modern=modern, env={"EMCEEPEE_HTTP_SESSION": "h"}) as client:
        said = client.decide("accept", "execute_tool", decision=ALWAYS, **HI)
        assert said.text.startswith("hi")
        again = client.start("execute_tool", **HI)
        assert client.asked_for(again), "it is asked again"
        (noted,) = client.noted("approval_granted")
        assert noted["data"]["remembered"] is False
    assert not (tmp_path / "state" / "approvals.json").exists()
    with bank(tmp_path, modern=modern) as owner:
        assert owner.asked_for(owner.start("execute_tool", **HI)), "so is the owner"
    assert ran(tmp_path) == [{"message": "hi"}]


def test_over_http_an_approval_is_for_the_call_of_one_token(tmp_path: Path) -> None:
    def client_with(token: str) -> AbstractContextManager[Host]:
        env = {"EMCEEPEE_HTTP_SESSION": "h", "EMCEEPEE_HTTP_TOKEN": token}
        return bank(tmp_path, elicits=False, env=env)

    store = TrustStore(tmp_path / "state")
    with client_with("one") as one, client_with("two") as two:
        assert "[needs_approval]" in one.use("execute_tool", **HI).text
        (waiting,) = store.waiting()
        assert waiting.token == "one"
        assert "HTTP client: one" in waiting.text
        store.approve(waiting.digest, name="bank", at="", until="9999")
        assert "[needs_approval]" in two.use("execute_tool", **HI).text
        assert ran(tmp_path) == []
        assert one.use("execute_tool", **HI).text.startswith("hi")
        assert "[needs_approval]" in one.use("execute_tool", **HI).text
    assert ran(tmp_path) == [{"message": "hi"}]


@both_eras
def test_who_does_not_want_to_be_asked_again_is_not_until_the_tool_is_another(
    tmp_path: Path, *, modern: bool
) -> None:
    server = Turncoat(tmp_path)
    send = {"server": "s", "tool": "send", "args": {"to": "ACME"}}
    servers = {"s": server.entry(tools={"send": "ask"}), "t": server.entry("t", tools={"*": "ask"})}
    with host(tmp_path, modern=modern, servers=servers) as client:
        assert "ran send" in client.decide("accept", "execute_tool", decision=ALWAYS, **send).text
        other = {**send, "args": {"to": "another"}}
        assert "ran send" in client.use("execute_tool", **other).text
        first = client.start("execute_tool", **(send | {"server": "t"}))
        assert "Server t" in client.asked_for(first, 1), "another target"
        (granted,) = TrustStore(tmp_path / "state").granted()
        assert granted.what == "every call of send"
        server.offer(NOW_HELPFUL, TURN)
        assert "ran turn" in client.execute("s", "turn").text
        first = client.start("execute_tool", **send)
        assert "tool send" in client.asked_for(first, 2)
        server.offer(SEND, TURN)
        assert "ran turn" in client.execute("s", "turn").text
        assert "ran send" in client.use("execute_tool", **other).text, "it is what it was"


def test_two_equal_calls_at_once_are_two_questions(tmp_path: Path) -> None:
    with bank(tmp_path) as client:
        both = [client.start("execute_tool", **HI), client.start("execute_tool", **HI)]
        client.reply(client.question(0), "accept", ONCE)
        client.reply(client.question(1), "accept", NO)
        said = sorted(client.said_to(one).is_error for one in both)
        assert said == [False, True]
        assert ran(tmp_path) == [{"message": "hi"}]


def test_an_answer_after_the_call_has_ended_is_for_the_next_equal_call_and_for_one(
    tmp_path: Path,
) -> None:
    short = {"timeouts": {"client_ceiling_ms": 2_000}}  # one that is answered comes in time
    with bank(tmp_path, settings=short) as client:
        until(lambda: client.servers()["bank"]["phase"] == "connected", "its server")
        said = client.use("execute_tool", **HI)
        assert "has not said yet" in said.text
        assert "[needs_approval]" in said.text
        client.reply(client.question(), "accept", ONCE)
        client.until_noted("approval_granted")
        other = client.use("execute_tool", **(HI | {"args": {"message": "ho"}}))
        assert "has not said yet" in other.text
        assert client.use("execute_tool", **HI).text.startswith("hi")
        assert "has not said yet" in client.use("execute_tool", **HI).text
        assert ran(tmp_path) == [{"message": "hi"}]


def test_a_task_is_asked_for_before_it_is_one(tmp_path: Path) -> None:
    with bank(tmp_path) as client:
        said = client.decide("accept", "execute_tool", decision=ONCE, timeout_ms=0, **HI)
        task = json.loads(said.result["content"][1]["text"])["proxy_task"]["task_id"]
        assert client.use("get_task_result", task_id=task).text.startswith("hi")


def test_repaired_arguments_are_what_the_person_reads(tmp_path: Path) -> None:
    servers = {"bank": entry(tmp_path, add="ask")}
    with host(tmp_path, servers=servers) as client:
        first = client.start("execute_tool", server="bank", tool="add", args='{"a":"1","b":2}')
        assert client.asked_for(first).split("\n")[1] == '{"a":1,"b":2}'
        client.reply(client.question(), "accept", ONCE)
        assert client.said_to(first).text.startswith("3")


def test_a_key_that_stands_there_twice_is_one_to_the_person_and_to_the_server(
    tmp_path: Path,
) -> None:
    with bank(tmp_path) as client:
        client.last_id += 1
        given = '{"server":"bank","tool":"echo","args":{"message":"hi","message":"evil"}}'
        params = f'{{"name":"execute_tool","arguments":{given}}}'
        call = f'{{"jsonrpc":"2.0","id":{client.last_id},"method":"tools/call","params":{params}}}'
        client.write(call.encode() + b"\n")
        asked = client.question()
        assert asked["params"]["message"].endswith('{"message":"evil"}')
        client.reply(asked, "accept", ONCE)
        client.said_to(client.last_id)
        assert ran(tmp_path) == [{"message": "evil"}]


# The answer of a modern client


@pytest.mark.parametrize(
    "other",
    [{"args": {"message": "ho"}}, {"tool": "structured", "args": {}}, {"server": "second"}],
    ids=["arguments", "tool", "server"],
)
def test_an_answer_is_sealed_to_server_tool_and_arguments(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    rules = {"echo": "ask", "structured": "ask"}
    second = entry(tmp_path, **rules) | {"url": None}
    second["args"] = [*second["args"], "--paged"]
    servers = {"bank": entry(tmp_path, **rules), "second": second}
    with host(tmp_path, modern=True, servers=servers) as client:
        first = client.use("execute_tool", **HI)
        yes = {"approval": {"action": "accept", "content": {"decision": ONCE}}}
        state = first.result["requestState"]
        said = client.use("execute_tool", replies=yes, state=state, **(HI | other))
        assert said.is_question, "it is asked anew"
        assert ran(tmp_path) == []
        assert client.use("execute_tool", replies=yes, state=state, **HI).text.startswith("hi")
        assert client.use("execute_tool", replies=yes, state=state, **HI).is_question, "spent"


# Where nobody can be asked


@both_eras
@pytest.mark.parametrize(
    "how",
    [{"elicits": False}, {"fixed": {"automatic_answer_s": 1e6}}],
    ids=["cannot", "automatic"],
)
def test_what_nobody_was_asked_waits_for_approve_and_runs_once(
    tmp_path: Path, how: dict[str, Any], *, modern: bool
) -> None:
    with bank(tmp_path, modern=modern, **how) as client:
        if "fixed" in how:
            said = client.decide("decline", "execute_tool", **HI)
        else:
            said = client.use("execute_tool", **HI)
        assert "nobody was asked" in said.text
        assert "refused" not in said.text
        read = approve(tmp_path, said)
        assert 'Server: bank\nTool: echo\nArguments: {"message":"hi"}' in read
        assert client.use("execute_tool", **HI).text.startswith("hi")
        assert ran(tmp_path) == [{"message": "hi"}]
        assert TrustStore(tmp_path / "state").granted() == []


def test_arguments_that_a_client_does_not_show_whole_wait_for_approve(tmp_path: Path) -> None:
    long = HI | {"args": {"message": "x" * 200}}
    with bank(tmp_path) as client:
        said = client.use("execute_tool", **long)
        assert "longer than this client shows" in said.text
        assert client.questions == []
        assert "x" * 200 in approve(tmp_path, said).replace("\n", "")
        assert not client.use("execute_tool", **long).is_error
        again = client.use("execute_tool", **long)
        assert "[needs_approval]" in again.text
        more = client.use("execute_tool", **(HI | {"args": {"message": "x" * 30_000}}))
        assert "longer than a person reads" in more.text


def test_a_no_at_the_terminal_runs_nothing(tmp_path: Path) -> None:
    with bank(tmp_path, elicits=False) as client:
        approve(tmp_path, client.use("execute_tool", **HI), answer="n\n")
        assert "[needs_approval]" in client.use("execute_tool", **HI).text
        assert ran(tmp_path) == []


def test_an_approval_is_for_one_target_tool_and_arguments(tmp_path: Path) -> None:
    servers = {"bank": entry(tmp_path, **{"*": "ask"}), "second": {}}
    servers["second"] = servers["bank"] | {"args": [*servers["bank"]["args"], "--paged"]}
    with host(tmp_path, elicits=False, servers=servers) as client:
        approve(tmp_path, client.use("execute_tool", **HI))
        for other in ({"server": "second"}, {"tool": "fail"}, {"args": {"message": "ho"}}):
            assert "[needs_approval]" in client.use("execute_tool", **(HI | other)).text
        assert ran(tmp_path) == []
        assert client.use("execute_tool", **HI).text.startswith("hi")


def test_no_secret_of_a_call_that_waits_is_in_a_file(tmp_path: Path) -> None:
    with bank(tmp_path, elicits=False) as client:
        args = {"message": "hi", "api_key": "sk-live-quiet-river-52"}
        assert "[needs_approval]" in client.use("execute_tool", **(HI | {"args": args})).text
    for path in (tmp_path / "state").rglob("*"):
        assert not path.is_file() or b"quiet-river" not in path.read_bytes()


def test_a_model_is_told_nothing_of_the_changes_of_a_tool_that_is_off(tmp_path: Path) -> None:
    server = Turncoat(tmp_path)
    servers = {"s": server.entry(tools={"send": "off", "secret_*": "off"})}
    first_run(tmp_path, server)
    server.offer(NOW_HELPFUL, TURN, SEND | {"name": "secret_send"})
    with host(tmp_path, servers=servers) as client:
        client.use("list_tools")
        client.until_noted("tools_changed")
        client.use("await_activity", timeout_ms=0)
        assert seen(client) == []
        server.offer(NOW_HELPFUL, TURN, SEND | {"name": "plain"})
        assert "ran turn" in client.execute("s", "turn").text
        client.use("list_tools")
        (event,) = until_told(client)
        assert (event["data"]["changed"], event["data"]["added"]) == ({}, ["plain"])


# While the person thinks


@pytest.mark.parametrize("becomes", ["off", "allow"])
def test_a_rule_that_is_changed_while_the_person_thinks_holds_when_they_answer(
    tmp_path: Path, becomes: str
) -> None:
    with bank(tmp_path) as client:
        first = client.start("execute_tool", **HI)
        asked = client.question()
        mark = {"command": plain()[0], "args": plain()[1:]}
        edit(tmp_path, bank=entry(tmp_path, echo=becomes), mark=mark)
        until(lambda: "mark" in client.servers(), "the edit")
        client.reply(asked, "accept", ONCE)
        said = client.said_to(first)
        if becomes == "off":
            assert "[policy_denied]" in said.text
            assert ran(tmp_path) == []
        else:
            assert said.text.startswith("hi")


def test_what_takes_the_place_of_a_server_while_the_person_thinks_is_not_called(
    tmp_path: Path,
) -> None:
    with bank(tmp_path) as client:
        first = client.start("execute_tool", **HI)
        asked = client.question()
        another = entry(tmp_path, echo="allow")
        another["args"] = [*another["args"], "--paged"]
        edit(tmp_path, bank=another)
        until(lambda: "--paged" in client.servers().get("bank", {}).get("target", ""), "the edit")
        client.reply(asked, "accept", ONCE)
        assert client.said_to(first).is_error
        assert ran(tmp_path) == []
