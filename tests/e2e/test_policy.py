"""Servers that a model adds: who decides, what they see, and what is remembered of it."""

import fcntl
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import TrustStore
from tests.e2e.clients.raw import until
from tests.e2e.hosts import ALWAYS, ONCE, Host, host, programs, proposal
from tests.peers import plain

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])


def entry(proposed: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in proposed.items() if key != "name"}


def started(client: Host, name: str = "new") -> bool:
    return client.servers().get(name, {}).get("phase") == "connected"


def grounds(client: Host, name: str = "new") -> str:
    return client.servers()[name]["admitted"]


# The four modes


@both_eras
def test_auto_asks_for_a_command_that_nobody_knows_and_adds_it_when_the_person_agrees(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, modern=modern) as client:
        said = client.decide("accept", **proposal())
        assert said.json["phase"] == "connected"
        assert grounds(client) == "a person agreed"
        assert client.execute("new", "echo", message="hi").text.startswith("hi")
        assert len(client.noted("approval_granted")) == 1


@both_eras
@pytest.mark.parametrize("action", ["decline", "cancel"])
@pytest.mark.parametrize("mode", ["auto", "ask"])
def test_a_refusal_adds_nothing_and_names_no_way_around_it(
    tmp_path: Path, mode: str, action: str, *, modern: bool
) -> None:
    with host(tmp_path, mode=mode, modern=modern) as client:
        said = client.decide(action, **proposal())
        assert said.is_error
        assert "[policy_denied]" in said.text
        assert "--policy" not in said.text
        assert client.servers() == {}
        assert [line["level"] for line in client.noted("approval_denied")] == ["warning"]
        assert not (tmp_path / "state" / "approvals.json").exists()


UNASKING = ["claude-ai", "opencode", "Zed", "windsurf-client", "gemini-cli-mcp-client", "who-knows"]


@pytest.mark.parametrize("name", UNASKING)
def test_no_command_starts_unasked_in_a_client_that_cannot_ask(tmp_path: Path, name: str) -> None:
    mark = tmp_path / "started"
    args = ["-c", f"touch {mark}; sleep 1"]
    with host(tmp_path, elicits=False, client=name) as client:
        said = client.use("add_server", name="new", command="bash", args=args)
        assert "[needs_approval]" in said.text
        assert "emceepee approve " in said.text
        assert "--policy" not in said.text
        assert client.servers() == {}
        (noted,) = client.noted("approval_requested")
        assert noted["server"] == "new"
    assert not mark.exists()
    assert not (tmp_path / "state" / "approvals.json").exists(), "nobody agreed to anything"


@both_eras
def test_what_was_approved_meanwhile_is_added_by_the_same_call(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, elicits=False, modern=modern) as client:
        assert "[needs_approval]" in client.use("add_server", **proposal()).text
        trust = TrustStore(tmp_path / "state")
        trust.approve(trust.waiting()[0].digest, name="new", at="")
        assert client.use("add_server", **proposal()).json["phase"] == "connected"
        assert grounds(client) == "known to a person"


@both_eras
@pytest.mark.parametrize("mode", ["auto", "ask"])
def test_a_command_of_the_configuration_is_known_under_any_name(
    tmp_path: Path, mode: str, *, modern: bool
) -> None:
    servers = {"mine": {**entry(proposal(env={"A": "1"})), "disabled": False, "lazy": True}}
    with host(tmp_path, mode=mode, servers=servers, modern=modern) as client:
        added = client.use("add_server", **proposal(name="again", env={"A": "1"}))
        assert added.json["phase"] == "connected"
        assert grounds(client, "again") == "known to a person"
        other = (
            client.use("add_server", **proposal(name="other", env={"A": "2"})) if modern else None
        )
        if other is not None:
            assert other.is_question


@both_eras
def test_ask_puts_everything_to_the_person(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, mode="ask", modern=modern) as client:
        for proposed in (
            {"name": "web", "url": "http://127.0.0.1:9/mcp"},
            {"name": "far", "url": "https://192.0.2.1/mcp"},
        ):
            said = client.decide("decline", **proposed)
            assert "[policy_denied]" in said.text
        assert client.decide("accept", **proposal()).json["phase"] == "connected"


@both_eras
def test_ask_without_a_client_that_can_ask_waits_for_emceepee_approve(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, mode="ask", elicits=False, modern=modern) as client:
        said = client.use("add_server", **proposal())
        assert "[needs_approval]" in said.text
        (waiting,) = json.loads((tmp_path / "state" / "pending.json").read_text())["waiting"]
        assert f"emceepee approve {waiting['digest'][:8]}" in said.text
        assert client.servers() == {}
        again = client.use("add_server", **proposal())
        assert again.text == said.text
        kept = json.loads((tmp_path / "state" / "pending.json").read_text())["waiting"]
        assert len(kept) == 1


@both_eras
def test_allow_asks_nobody(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, mode="allow", modern=modern) as client:
        assert client.use("add_server", **proposal()).json["phase"] == "connected"
        assert grounds(client) == "policy allow"
        assert client.questions == []


@both_eras
def test_deny_adds_nothing_not_even_what_is_known(tmp_path: Path, *, modern: bool) -> None:
    servers = {"mine": entry(proposal())}
    with host(tmp_path, mode="deny", servers=servers, modern=modern) as client:
        for proposed in (
            proposal(name="again"),
            {"name": "web", "url": "https://example.com/"},
            {"name": "loop", "url": "http://127.0.0.1:9/"},
        ):
            said = client.use("add_server", **proposed)
            assert "[policy_denied]" in said.text
            assert "emceepee config add" in said.text
        until(lambda: started(client, "mine"), "what a person configured")
        assert client.questions == []


@pytest.mark.parametrize(
    ("file", "option", "code"),
    [("deny", "allow", None), ("allow", "deny", "policy_denied"), (None, "deny", "policy_denied")],
)
def test_the_command_line_goes_before_the_file(
    tmp_path: Path, file: str | None, option: str, code: str | None
) -> None:
    with host(tmp_path, mode=file, arguments=["--policy", option]) as client:
        said = client.use("add_server", **proposal())
        assert (code is None) == (not said.is_error)
        assert code is None or f"[{code}]" in said.text


def test_the_default_is_auto(tmp_path: Path) -> None:
    with host(tmp_path, mode=None) as client:
        client.start("add_server", **proposal())
        assert "new" in client.question()["params"]["message"]


def test_a_policy_that_there_is_not_ends_the_command_with_usage(tmp_path: Path) -> None:
    client = Host(tmp_path, arguments=["serve", "--policy", "maybe"])
    try:
        client.close_stdin()
        assert client.wait() == 2
        assert "invalid choice: 'maybe'" in client.errors()
    finally:
        client.clear_away()


def rewrite(tmp_path: Path, **policy: str) -> None:
    config = json.loads((tmp_path / "config.json").read_text())
    config["emceepee"]["policy"] = policy
    config["mcpServers"][f"mark-{policy['mode']}"] = {"command": "/nowhere", "lazy": True}
    new = tmp_path / "config.new"
    new.write_text(json.dumps(config))
    new.replace(tmp_path / "config.json")


def test_a_policy_that_is_changed_in_the_file_counts_from_then_on(tmp_path: Path) -> None:
    with host(tmp_path, mode="deny") as client:
        assert "[policy_denied]" in client.use("add_server", **proposal()).text
        for mode in ("allow", "deny"):
            rewrite(tmp_path, mode=mode)
            until(lambda m=mode: f"mark-{m}" in client.servers(), "the edit")
            said = client.use("add_server", **proposal(name=f"under-{mode}"))
            assert said.is_error == (mode == "deny")
        assert started(client, "under-allow"), "what was let in stays"


def test_a_policy_of_the_command_line_stays_when_the_file_changes(tmp_path: Path) -> None:
    with host(tmp_path, mode="auto", arguments=["--policy", "deny"]) as client:
        rewrite(tmp_path, mode="allow")
        until(lambda: "mark-allow" in client.servers(), "the edit")
        assert "[policy_denied]" in client.use("add_server", **proposal()).text


# What the person sees


def put_aside(client: Host, **proposed: Any) -> str:
    """What waits for `emceepee approve` after a call for which nobody was asked."""
    said = client.use("add_server", **proposed)
    assert "nobody was asked" in said.text, said
    waiting = json.loads((client.tmp_path / "state" / "pending.json").read_text())["waiting"]
    assert f"emceepee approve {waiting[-1]['digest'][:8]}" in said.text
    return waiting[-1]["text"]


@both_eras
def test_what_is_longer_than_a_client_shows_waits_with_the_whole_resolved_command(
    tmp_path: Path, *, modern: bool
) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    long = "x" * 12_000
    argv = ["-u", plain()[1], "--toolbox", long, "", "two words"]
    env = {"TOKEN": "hunter2-and-more", "LD_PRELOAD": "/tmp/evil.so"}
    with host(tmp_path, modern=modern) as client:
        proposed = {"command": "python3", "args": argv, "env": env, "cwd": str(place)}
        lines = put_aside(client, name="new", **proposed).split("\n")
        assert client.questions == []
        assert lines[0] == "Server: new"
        assert "LD_PRELOAD can make it load other code" in lines[1]
        assert lines[2] == f"Command: python3 -u {plain()[1]} --toolbox {long} '' 'two words'"
        label, _, found = lines[3].partition(": ")
        program, _, file = found.partition(", a link to ")
        assert label == "Program"
        assert Path(program).is_absolute()
        assert Path(program).resolve() == Path(file or program)
        assert os.access(program, os.X_OK)
        assert lines[4] == f"Directory: {place}"
        assert lines[5] == "Variables: TOKEN, LD_PRELOAD"
        assert len(lines) == 6
        assert "hunter2" not in "".join(lines)


@both_eras
@pytest.mark.parametrize(
    "text", ["x\nProgram: /bin/true", "x\x1b[2K\x1b[1A", "x\u202ecod.exe", "x\u2028Server: y"]
)
def test_nothing_that_the_model_writes_forges_a_line_of_the_question(
    tmp_path: Path, text: str, *, modern: bool
) -> None:
    with host(tmp_path, modern=modern) as client:
        named = client.use("add_server", **proposal(name=text))
        assert "[invalid_arguments]" in named.text
        proposed = proposal(text, env={text: "y"})
        message = client.asked_for(client.start("add_server", **proposed))
        assert len(message.split("\n")) == len(message.splitlines()) == 3
        assert message.replace("\n", "").isprintable()


def test_a_command_that_is_not_there_is_told_without_asking_anybody(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        said = client.use("add_server", name="new", command="no-such-program-anywhere")
        assert "was not found" in said.text
        assert client.questions == []


def test_what_nobody_could_read_is_not_asked(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        said = client.use("add_server", **proposal("x" * 25_000))
        assert "[policy_denied]" in said.text
        assert "longer than a person reads" in said.text
        assert client.questions == []


def test_a_relative_directory_is_shown_and_remembered_as_the_place_that_it_is() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="w") as short:
        places = [Path(short, name) for name in ("here", "there")]
        shared = {"EMCEEPEE_STATE_DIR": f"{short}/state"}
        for place in places:
            (place / "work").mkdir(parents=True)
            with host(place, env=shared) as client:
                first = client.start("add_server", **proposal(cwd="work"))
                asked = client.question()
                surroundings = asked["params"]["message"].split("\n")[2]
                program = f"{programs()}/plain"
                assert surroundings == f"Server new, program {program}, in {place}/work"
                client.reply(asked, "accept")
                assert not client.said_to(first).is_error


# What is remembered


def agree(tmp_path: Path, **proposed: Any) -> None:
    with host(tmp_path) as client:
        assert client.decide("accept", **proposed).json["phase"] == "connected"


@both_eras
@pytest.mark.parametrize("mode", ["auto", "ask"])
def test_what_was_agreed_to_is_not_asked_again_in_the_next_run(
    tmp_path: Path, mode: str, *, modern: bool
) -> None:
    agree(tmp_path, **proposal(env={"A": "1"}))
    with host(tmp_path, mode=mode, modern=modern) as client:
        said = client.use("add_server", **proposal(name="other-name", env={"A": "1"}))
        assert said.json["phase"] == "connected"
        assert grounds(client, "other-name") == "known to a person"
        assert client.questions == []


@pytest.mark.parametrize(
    "changed",
    [
        proposal("--era", "legacy", env={"A": "1"}),
        proposal(env={"A": "2"}),
        proposal(env={"B": "1"}),
        proposal(env={"A": "1", "B": ""}),
        proposal(),
        proposal(env={"A": "1"}, cwd="/"),
        proposal(env={"A": "1"}) | {"command": "python3"},
    ],
    ids=["argv", "value", "name", "one more", "one less", "cwd", "program"],
)
def test_any_part_that_is_changed_alone_is_asked_again(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    agree(tmp_path, **proposal(env={"A": "1"}))
    with host(tmp_path) as client:
        client.start("add_server", **changed)
        client.question()


def test_another_program_of_the_same_name_is_asked_again(tmp_path: Path) -> None:
    script = f'#!/bin/sh\nexec {sys.executable} {plain()[1]} "$@"\n'
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "serverlet").write_text(script)
        (tmp_path / place / "serverlet").chmod(0o755)
    path = os.environ["PATH"]
    proposed = {"name": "new", "command": "serverlet"}
    with host(tmp_path, env={"PATH": f"{tmp_path}/one:{path}"}) as client:
        assert client.decide("accept", **proposed).json["phase"] == "connected"
    with host(tmp_path, env={"PATH": f"{tmp_path}/one:{path}"}) as client:
        assert not client.use("add_server", **proposed).is_error
    with host(tmp_path, env={"PATH": f"{tmp_path}/two:{path}"}) as client:
        client.start("add_server", **proposed)
        client.question()


def test_a_link_of_the_same_name_elsewhere_is_asked_again(tmp_path: Path) -> None:
    """As with virtual environments: the same Python behind both, but not the same code."""
    interpreter = Path(sys.executable).resolve()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "interpreter").symlink_to(interpreter)
    path = os.environ["PATH"]
    proposed = proposal(plain()[1], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    proposed["command"] = "interpreter"
    with host(tmp_path, env={"PATH": f"{tmp_path}/one:{path}"}) as client:
        assert client.decide("accept", **proposed).json["phase"] == "connected"
    with host(tmp_path, env={"PATH": f"{tmp_path}/two:{path}"}) as client:
        client.start("add_server", **proposed)
        client.question()


def interpreter_at(tmp_path: Path, *places: str) -> dict[str, Any]:
    """A proposal for a program of ours that is found in these places; others leave a mark."""
    good, *others = places
    for place in places:
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
    (tmp_path / good / "interpreter").symlink_to(Path(sys.executable).resolve())
    evil = tmp_path / "evil"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/evil-ran\n")
    evil.chmod(0o755)
    for place in others:
        (tmp_path / place / "interpreter").symlink_to(evil)
    proposed = proposal(plain()[1], env={"PYTHONPATH": os.pathsep.join(sys.path)})
    return proposed | {"command": "interpreter"}


def test_a_link_that_is_swapped_while_the_person_reads_is_not_followed(tmp_path: Path) -> None:
    proposed = interpreter_at(tmp_path, "one", "two")
    with host(tmp_path, env={"PATH": f"{tmp_path}/one:{os.environ['PATH']}"}) as client:
        first = client.start("add_server", **proposed)
        asked = client.question()
        (tmp_path / "two" / "interpreter").replace(tmp_path / "one" / "interpreter")
        client.reply(asked, "accept")
        said = client.said_to(first)
        assert "is not the file any more" in said.text
        assert client.servers() == {}
    assert not (tmp_path / "evil-ran").exists()


def test_a_link_that_is_swapped_later_is_not_followed_by_a_restart(tmp_path: Path) -> None:
    proposed = interpreter_at(tmp_path, "one", "two")
    with host(tmp_path, env={"PATH": f"{tmp_path}/one:{os.environ['PATH']}"}) as client:
        assert client.decide("accept", **proposed).json["phase"] == "connected"
        (tmp_path / "two" / "interpreter").replace(tmp_path / "one" / "interpreter")
        said = client.use("reconnect_server", name="new")
        assert "is not the file any more" in said.text
    assert not (tmp_path / "evil-ran").exists()


@both_eras
def test_an_empty_entry_of_the_path_shows_and_starts_the_same_program(
    tmp_path: Path, *, modern: bool
) -> None:
    proposed = interpreter_at(tmp_path, "work", "later") | {"cwd": str(tmp_path / "work")}
    path = f":{tmp_path}/later:{os.environ['PATH']}"
    with host(tmp_path, env={"PATH": path}, modern=modern) as client:
        text = put_aside(client, **proposed)
        assert f"Program: {tmp_path}/work/interpreter, a link to" in text
        trust = TrustStore(tmp_path / "state")
        trust.approve(trust.waiting()[0].digest, name="new", at="")
        assert client.use("add_server", **proposed).json["phase"] == "connected"
    assert not (tmp_path / "evil-ran").exists()


def test_an_agreement_for_once_counts_for_this_run_alone(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        client.reply(client.question(), "accept", ONCE)
        assert not client.said_to(first).is_error
        client.use("remove_server", name="new")
        assert not client.use("add_server", **proposal()).is_error, "in this run it is known"
        assert len(client.questions) == 1
        assert not (tmp_path / "state" / "approvals.json").exists()
    with host(tmp_path) as client:
        client.start("add_server", **proposal())
        client.question()


def test_what_one_proxy_learns_counts_for_another_that_runs_beside_it(tmp_path: Path) -> None:
    shared = {"EMCEEPEE_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with host(tmp_path / "one", env=shared) as one, host(tmp_path / "two", env=shared) as two:
        proposed = proposal(cwd="/")
        assert not one.decide("accept", **proposed).is_error
        assert not two.use("add_server", **proposed).is_error
        assert two.questions == []


def test_the_hash_is_keyed_and_the_files_are_private(tmp_path: Path) -> None:
    agree(tmp_path, **proposal(env={"TOKEN": "hunter2-and-more"}))
    state = tmp_path / "state"
    assert state.stat().st_mode & 0o777 == 0o700
    files = [path for path in state.rglob("*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert b"hunter2" not in b"".join(path.read_bytes() for path in files)
    (state / "key").write_bytes(bytes(32))
    with host(tmp_path) as client:
        client.start("add_server", **proposal(env={"TOKEN": "hunter2-and-more"}))
        client.question()


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    agree(tmp_path, **proposal())
    (tmp_path / "state" / "key").chmod(0o644)
    with host(tmp_path) as client:
        client.start("add_server", **proposal())
        client.question()
        assert (tmp_path / "state" / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "{", "[[[[", '{"granted": [{}]}'])
def test_a_broken_file_of_agreements_asks_again_and_breaks_nothing(
    tmp_path: Path, text: str
) -> None:
    agree(tmp_path, **proposal())
    for name in ("approvals", "pending", "pins"):
        (tmp_path / "state" / f"{name}.json").write_text(text)
    with host(tmp_path) as client:
        assert not client.decide("accept", **proposal()).is_error
    with host(tmp_path) as client:
        assert not client.use("add_server", **proposal()).is_error


def test_where_nothing_can_be_written_an_agreement_counts_for_the_run_and_that_is_noted(
    tmp_path: Path,
) -> None:
    (tmp_path / "state" / "lock").mkdir(parents=True)
    with host(tmp_path) as client:
        assert not client.decide("accept", **proposal()).is_error
        (noted, *_) = client.until_noted("approval_unwritable")
        assert noted["level"] == "warning"
        client.use("remove_server", name="new")
        assert not client.use("add_server", **proposal()).is_error
        assert len(client.questions) == 1
    with host(tmp_path, mode="ask", elicits=False) as client:
        said = client.use("add_server", **proposal())
        assert "[needs_approval]" in said.text
        assert "cannot be noted" in said.text
        assert "emceepee config add" in said.text


# What never counts as consent


@both_eras
def test_no_tool_answers_for_the_person(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, modern=modern) as client:
        first = client.start("add_server", **proposal())
        client.asked_for(first)
        pending = client.use("get_elicitations")
        assert pending.json["elicitations"] == []
        for request_id in ("approval", "1", "0"):
            said = client.use("respond_to_elicitation", request_id=request_id, action="accept")
            assert "[request_not_found]" in said.text
        assert client.servers() == {}
        assert client.noted("approval_granted") == []


def test_arguments_that_speak_of_consent_are_no_consent(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        said = client.use("add_server", **proposal(), approved=True)
        assert said.is_error
        client.start("add_server", **proposal(), replace=True)
        client.question()
        assert client.servers() == {}


def test_replacing_and_reconnecting_do_not_go_round_the_gate(tmp_path: Path) -> None:
    servers = {"mine": entry(proposal())}
    with host(tmp_path, mode="ask", elicits=False, servers=servers) as client:
        until(lambda: started(client, "mine"), "the server")
        said = client.use("add_server", **proposal("--paged", name="mine"), replace=True)
        assert "[needs_approval]" in said.text
        assert started(client, "mine"), "what was there is not touched"
        again = client.use("reconnect_server", name="mine")
        assert not again.is_error


# States of the modern era


def first_answer(client: Host, **proposed: Any) -> str:
    said = client.use("add_server", **proposed)
    assert said.is_question
    return said.result["requestState"]


YES = {"approval": {"action": "accept", "content": {"decision": ALWAYS}}}


def test_a_state_counts_once_and_only_for_exactly_this_proposal(tmp_path: Path) -> None:
    with host(tmp_path, modern=True) as client:
        state = first_answer(client, **proposal())
        swapped = proposal("--paged")
        assert client.use("add_server", replies=YES, state=state, **swapped).is_question
        renamed = proposal(name="renamed")
        assert client.use("add_server", replies=YES, state=state, **renamed).is_question
        good = client.use("add_server", replies=YES, state=state, **proposal())
        assert good.json["phase"] == "connected"
        replay = proposal(name="other", env={"A": "1"})
        assert client.use("add_server", replies=YES, state=state, **replay).is_question


def test_a_state_that_was_used_to_refuse_is_spent(tmp_path: Path) -> None:
    with host(tmp_path, modern=True) as client:
        state = first_answer(client, **proposal())
        no = {"approval": {"action": "decline"}}
        assert client.use("add_server", replies=no, state=state, **proposal()).is_error
        again = client.use("add_server", replies=YES, state=state, **proposal())
        assert again.is_error
        assert "refused before in this session" in again.text


@both_eras
def test_what_was_refused_is_not_asked_again_in_the_session(
    tmp_path: Path, *, modern: bool
) -> None:
    with host(tmp_path, modern=modern) as client:
        assert client.decide("decline", **proposal()).is_error
        again = client.use("add_server", **proposal())
        assert again.is_error
        assert "refused before in this session" in again.text


@pytest.mark.parametrize("state", ["", "x", "1e400:a:b", "\x00", "é" * 100, "9" * 5000])
def test_a_state_that_was_never_given_is_asked_again(tmp_path: Path, state: str) -> None:
    with host(tmp_path, modern=True) as client:
        good = first_answer(client, **proposal())
        assert client.use("add_server", replies=YES, state=state, **proposal()).is_question
        tampered = good[:-3] + ("AAA" if not good.endswith("AAA") else "BBB")
        assert client.use("add_server", replies=YES, state=tampered, **proposal()).is_question
        expires, _, rest = good.partition(":")
        longer = f"{float(expires) + 1}:{rest}"
        assert client.use("add_server", replies=YES, state=longer, **proposal()).is_question
        assert not client.use("add_server", replies=YES, state=good, **proposal()).is_error


def test_a_state_of_an_earlier_run_is_asked_again(tmp_path: Path) -> None:
    with host(tmp_path, modern=True) as client:
        state = first_answer(client, **proposal())
    with host(tmp_path, modern=True) as client:
        assert client.use("add_server", replies=YES, state=state, **proposal()).is_question


@pytest.mark.parametrize(
    "reply",
    [{"other": {"action": "accept"}}, {"approval": {"action": "maybe"}}, {"approval": []}, {}],
)
def test_a_reply_that_is_no_yes_is_no_yes(tmp_path: Path, reply: dict[str, Any]) -> None:
    with host(tmp_path, modern=True) as client:
        state = first_answer(client, **proposal())
        said = client.use("add_server", replies=reply, state=state, **proposal())
        assert said.is_question or "[policy_denied]" in said.text
        assert client.servers() == {}


def test_a_legacy_client_cannot_bring_a_reply_of_the_modern_era(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        arguments = {"name": "add_server", "arguments": proposal()}
        first = client.ask("tools/call", arguments | {"inputResponses": YES, "requestState": "x"})
        client.reply(client.question(), "decline")
        assert "[policy_denied]" in client.said_to(first).text


# A person in the way of the handshake era: late, twice, or not at all


def test_the_same_proposal_at_the_same_time_is_asked_once(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        first, second = (client.start("add_server", **proposal(name=name)) for name in ("a", "b"))
        asked = client.question()
        client.sync()
        assert len(client.questions) == 1
        client.reply(asked, "accept")
        assert not client.said_to(first).is_error
        assert not client.said_to(second).is_error
        assert sorted(client.servers()) == ["a", "b"]


def test_a_proposal_that_crosses_the_answer_to_the_same_is_not_asked_again(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        for number in range(40):  # each meets the answer at another moment
            what = {"command": "true", "args": [str(number)]}
            calls = [client.start("add_server", name=name, **what) for name in ("a", "b")]
            client.reply(client.question(number), "accept")
            for call in calls:
                assert "[server_failed]" in client.said_to(call).text
            assert len(client.questions) == number + 1


def test_what_is_proposed_while_a_yes_is_written_down_is_not_asked_again(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal(name="a"))
        asked = client.question()
        with (tmp_path / "state" / "lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the yes cannot be written down before it ends
            client.reply(asked, "accept")
            client.until_noted("approval_granted")
            second = client.start("add_server", **proposal(name="b"))
            for _ in range(20):  # time enough to ask again
                client.sync()
        assert not client.said_to(first).is_error
        assert not client.said_to(second).is_error
        assert len(client.questions) == 1


def test_other_calls_go_on_while_a_person_thinks(tmp_path: Path) -> None:
    servers = {"mine": entry(proposal())}
    with host(tmp_path, servers=servers) as client:
        first = client.start("add_server", **proposal("--paged"))
        asked = client.question()
        assert client.execute("mine", "echo", message="hi").text.startswith("hi")
        client.reply(asked, "decline")
        assert client.said_to(first).is_error


def cancel(client: Host, request_id: int) -> None:
    client.send({"method": "notifications/cancelled", "params": {"requestId": request_id}})
    client.sync()


def test_a_cancelled_call_is_not_answered_and_a_late_yes_counts_for_the_next(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        asked = client.question()
        cancel(client, first)
        client.reply(asked, "accept")
        client.until_noted("approval_granted")
        assert client.servers() == {}, "the call is over: nothing is added for it"
        assert not client.use("add_server", **proposal()).is_error
        assert len(client.questions) == 1
        assert client.answers(first) == []


def test_a_late_no_is_asked_again(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        asked = client.question()
        cancel(client, first)
        client.reply(asked, "decline")
        client.sync()
        client.start("add_server", **proposal())
        client.question(1)


def test_a_call_that_waits_no_longer_says_so_and_the_answer_counts_for_the_next(
    tmp_path: Path,
) -> None:
    impatient = {"client_ceilings_ms": {"impatient": 300}}
    with host(tmp_path, client="impatient", settings=impatient) as client:
        said = client.use("add_server", **proposal())
        assert "[needs_approval]" in said.text
        assert "has not said yet" in said.text
        client.reply(client.question(), "accept")
        client.until_noted("approval_granted")
        again = client.use("add_server", **proposal())
        assert not again.is_error
        assert len(client.questions) == 1


def test_a_second_answer_and_one_that_nobody_asked_for_are_noted_and_change_nothing(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        asked = client.question()
        client.reply(asked, "decline")
        client.reply(asked, "accept")
        client.send({"id": "never", "result": {"action": "accept"}})
        assert client.said_to(first).is_error
        client.sync()
        assert client.servers() == {}
        noted = client.until_noted("client_noise", 2)
        assert all("nobody waits for" in line["data"]["text"] for line in noted)
        assert not [m for m in client.said if "error" in m], "nobody waits for a word on it"
        assert client.noted("approval_granted") == []


@pytest.mark.parametrize(
    "answer",
    [
        {"result": None},
        {"result": "accept"},
        {"result": {"action": 1}},
        {"result": {"action": "accept" * 2}},
        {"result": []},
        {"error": {"code": -32601, "message": "no"}},
        {"error": "broken"},
    ],
    ids=str,
)
def test_garbage_is_no_agreement(tmp_path: Path, answer: dict[str, Any]) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        client.send({"id": client.question()["id"], **answer})
        said = client.said_to(first)
        assert said.is_error
        assert "[policy_denied]" in said.text or "[needs_approval]" in said.text
        assert client.servers() == {}


def test_a_client_that_cannot_ask_after_all_leaves_it_to_emceepee_approve(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        first = client.start("add_server", **proposal())
        error = {"code": -32601, "message": "Method not found"}
        client.send({"id": client.question()["id"], "error": error})
        assert "emceepee approve " in client.said_to(first).text


def test_a_client_that_hangs_up_while_its_person_is_asked_ends_the_proxy_well(
    tmp_path: Path,
) -> None:
    with host(tmp_path) as client:
        client.start("add_server", **proposal())
        client.question()
        assert client.hang_up() == 0
        assert client.left_over() == set()
        assert not (tmp_path / "state" / "approvals.json").exists()


def test_a_signal_while_a_person_is_asked_ends_the_proxy_well(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        client.start("add_server", **proposal())
        client.question()
        client.process.send_signal(signal.SIGTERM)
        assert client.wait() == 0


def test_a_question_that_is_never_answered_expires_and_is_taken_back(tmp_path: Path) -> None:
    short = {"timeouts": {"client_request_ms": 200}}
    with host(tmp_path, settings=short) as client:
        first = client.start("add_server", **proposal())
        asked = client.question()
        assert "emceepee approve " in client.said_to(first).text
        taken_back = [m for m in client.said if m.get("method") == "notifications/cancelled"]
        assert [m["params"]["requestId"] for m in taken_back] == [asked["id"]]


# What an attacker would try


@pytest.mark.parametrize(
    "name", [" x", "x ", "a  b", "Emceepee", "EMCEEPEE", "bank\u3164", "ba\u200bnk", "bank\ufe0f"]
)
def test_a_name_that_passes_for_another_is_refused(tmp_path: Path, name: str) -> None:
    with host(tmp_path, mode="allow") as client:
        said = client.use("add_server", **proposal(name=name))
        assert "[invalid_arguments]" in said.text
        assert client.servers() == {}


@both_eras
def test_taking_the_place_of_a_configured_server_is_put_to_the_person(
    tmp_path: Path, *, modern: bool
) -> None:
    servers = {"mine": entry(proposal())}
    with host(tmp_path, servers=servers, modern=modern, elicits=False) as client:
        said = client.use("add_server", **proposal("--paged", name="mine", replace=True))
        assert "[needs_approval]" in said.text
        waiting = (tmp_path / "state" / "pending.json").read_text()
        assert "It takes the place of mine, which you configured." in waiting


def test_a_person_who_is_asked_again_and_again_is_left_in_peace(tmp_path: Path) -> None:
    with host(tmp_path, modern=True) as client:
        for n in range(50):
            assert client.use("add_server", **proposal(env={"N": str(n)})).is_question
        said = client.use("add_server", **proposal(env={"N": "50"}))
        assert said.is_error
        assert "left in peace" in said.text


def test_the_last_question_that_may_be_put_can_be_answered(tmp_path: Path) -> None:
    with host(tmp_path, modern=True) as client:
        for n in range(49):
            assert client.use("add_server", **proposal(env={"N": str(n)})).is_question
        assert not client.decide("accept", **proposal(env={"N": "49"})).is_error


@both_eras
def test_each_refusal_counts_once(tmp_path: Path, *, modern: bool) -> None:
    with host(tmp_path, modern=modern) as client:
        for n in range(50):
            said = client.decide("decline", **proposal(env={"N": str(n)}))
            assert "left in peace" not in said.text, n
        assert "left in peace" in client.use("add_server", **proposal(env={"N": "50"})).text


def test_a_person_who_agrees_once_can_be_asked_as_often_again(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        for n in range(49):
            assert client.decide("decline", **proposal(env={"N": str(n)})).is_error
        assert not client.decide("accept", **proposal(env={"N": "49"})).is_error
        said = client.decide("decline", **proposal(name="next", env={"N": "50"}))
        assert "refused" in said.text
