"""What is asked during calls of exposed tools: by servers, and by rules."""

import json
from pathlib import Path

import pytest

from tests.e2e.clients.raw import MODERN as ENVELOPE
from tests.e2e.clients.raw import entry
from tests.e2e.hosts import NO, ONCE
from tests.e2e.persons import ADA, Person, person, server_entry
from tests.e2e.test_pins import NOW_HELPFUL, SEND, TURN, Turncoat, agree, approve
from tests.peers import plain

FIXED = {"exposed_settle_s": 0.02, "exposed_pace_s": 0.02}
both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
both_backends = pytest.mark.parametrize("era", ["legacy", "modern"], ids=lambda e: f"{e}-server")


def until_listed(client: Person, name: str) -> None:
    meta = {"_meta": ENVELOPE} if client.modern else {}
    while name not in json.dumps(client.request("tools/list", meta)):
        client.use("await_activity", timeout_ms=20)


@both_backends
@both_eras
def test_the_person_is_asked_during_an_exposed_call_and_it_goes_on(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    with (
        server_entry(tmp_path, era, "stdio") as at,
        person(
            tmp_path, modern=modern, servers={"s": {**at, "expose": ["ask"]}}, fixed=FIXED
        ) as client,
    ):
        until_listed(client, "s__ask")
        for name in ("s__ask", "ask"):
            number = len(client.questions)
            call = client.start(name)
            assert "Who are you?" in client.asked(call, number)["message"]
            call = client.say(call, {"action": "accept", "content": ADA}, number)
            said = client.said_to(call)
            assert json.loads(said.text) == {"action": "accept", "content": ADA}
        rounds = 2 if era == "modern" else 1
        assert client.calls_of("ask") == 2 * rounds, "each call was made once"


@both_eras
def test_a_rule_that_asks_puts_an_exposed_call_to_the_person(
    tmp_path: Path, *, modern: bool
) -> None:
    argv = plain("--era", "legacy")
    at = entry(argv, tmp_path, "s", expose=["echo"], tools={"echo": "ask"})
    with person(tmp_path, modern=modern, servers={"s": at}, fixed=FIXED) as client:
        until_listed(client, "s__echo")
        said = client.decide("accept", "s__echo", decision=ONCE, message="hi")
        assert said.text == "hi"
        said = client.decide("accept", "s__echo", decision=NO, message="hi")
        assert "[policy_denied]" in said.text
        asked = client.asked_for(client.start("s__echo", message="again"), 2)
        assert asked.split("\n") == ["Server s, tool echo", '{"message":"again"}']
        assert client.calls_of("echo") == 1


def names(client: Person) -> list[str]:
    tools = client.request("tools/list")["tools"]
    return [tool["name"] for tool in tools if "__" in tool["name"]]


def test_a_tool_that_is_not_what_it_was_shows_again_once_a_person_has_seen_it(
    tmp_path: Path,
) -> None:
    """Under enforce: till then it is not listed, and a call of it says who can agree."""
    server = Turncoat(tmp_path)
    at = server.entry(expose=["send", "turn"])
    settings = {"policy": {"pin": "enforce"}}
    fixed = {**FIXED, "config_poll_s": 0.05}
    with person(tmp_path, servers={"s": at}, settings=settings, fixed=fixed) as client:
        until_listed(client, "s__send")
        assert client.use("s__send").text == "ran send"
        server.offer(NOW_HELPFUL, TURN)
        before = len(changes(client))
        assert client.use("s__turn").text == "ran turn"
        client.read_until(lambda: len(changes(client)) > before, "the change")
        assert names(client) == ["s__turn"]
        said = client.use("s__send")
        assert "[needs_approval]" in said.text
        approve(tmp_path, said)
        client.read_until(lambda: len(changes(client)) > before + 1, "the change back")
        assert names(client) == ["s__send", "s__turn"]
        assert "And a copy to us" in json.dumps(client.request("tools/list"))
        assert client.use("s__send").text == "ran send"


def test_a_tool_that_becomes_a_reading_one_later_is_not_listed_as_one_until_a_person_agrees(
    tmp_path: Path,
) -> None:
    """Hosts run what only reads without asking: no hint counts that came after the first look."""
    server = Turncoat(tmp_path)
    hints = {"title": "Send", "readOnlyHint": False}
    promises = {"title": "Send", "readOnlyHint": True, "destructiveHint": False}
    server.offer(SEND | {"annotations": hints}, TURN)
    fixed = {**FIXED, "config_poll_s": 0.05}
    servers = {"s": server.entry(expose=True)}
    with person(tmp_path, servers=servers, fixed=fixed) as client:
        until_listed(client, "s__send")
        server.offer(NOW_HELPFUL | {"annotations": promises}, TURN)
        before = len(changes(client))
        assert client.use("s__turn").text == "ran turn"
        client.read_until(lambda: len(changes(client)) > before, "the change")
        assert annotations(client) == hints
        refused = client.use("execute_readonly_tool", server="s", tool="send")
        assert "not what it was" in refused.text
        agree(tmp_path, json.dumps(client.said).partition("emceepee approve ")[2][:8])
        client.read_until(lambda: len(changes(client)) > before + 1, "the change of the hints")
        assert annotations(client) == promises


def annotations(client: Person) -> object:
    (tool,) = [t for t in client.request("tools/list")["tools"] if t["name"] == "s__send"]
    assert "And a copy to us" in tool["description"]
    return tool["annotations"]


def changes(client: Person) -> list[object]:
    return [m for m in client.said if m.get("method") == "notifications/tools/list_changed"]
