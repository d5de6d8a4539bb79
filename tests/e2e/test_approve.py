"""`emceepee approve`: only a person at a terminal answers, and what they see is all of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import Pending, TrustStore
from tests.e2e.cli_harness import Home, Ran
from tests.e2e.clients.raw import ROOT
from tests.e2e.hosts import Host, host, proposal
from tests.peers import plain

AT = "2026-01-01T00:00:00.000Z"


def person(tmp_path: Path) -> Home:
    """Somebody at a terminal of their own, who shares what is agreed to with the proxy."""
    shared = {"EMCEEPEE_STATE_DIR": str(tmp_path / "state"), "PYTHONPATH": str(ROOT)}
    return Home(tmp_path / "person", env=shared)


def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "state")


def put(tmp_path: Path, text: str = "Server: s\nCommand: run it", name: str = "s") -> str:
    pending = Pending(digest="ab" * 32, name=name, text=text, at=AT)
    store(tmp_path).wait_for(pending)
    return pending.id


def ask(client: Host, **proposed: Any) -> str:
    """Have a server put aside; the id under which it waits."""
    said = client.use("add_server", **proposed)
    assert "[needs_approval]" in said.text
    return said.text.partition("emceepee approve ")[2][:8]


async def test_what_waits_is_shown_to_the_model_and_by_doctor(tmp_path: Path) -> None:
    with host(tmp_path, elicits=False) as client:
        assert "waiting_for_a_person" not in client.use("list_servers").json
        waiting = ask(client, **proposal(env={"TOKEN": "hunter2-and-more"}))
        found = {"server": "new", "about": "a new server", "approve": f"emceepee approve {waiting}"}
        assert client.use("list_servers").json["waiting_for_a_person"] == [found]
    home = person(tmp_path)
    home.write({})
    report = json.loads((await home.run("doctor", "--json")).out)
    [check] = [one for one in report["checks"] if one["id"] == "config.approvals"]
    assert check["status"] == "warning"
    assert check["summary"] == "1 waiting for your approval: new: a new server."
    assert check["remediation"].endswith("  emceepee approve")
    assert "hunter2" not in json.dumps(report)


def at_terminal(tmp_path: Path, *arguments: str, answer: str) -> tuple[int, str]:
    with person(tmp_path).screen("approve", *arguments, color=False) as screen:
        screen.until_said("Do you allow this? [y/N]:")
        screen.type(answer)
        return screen.wait(), screen.words


async def in_pipe(tmp_path: Path, *arguments: str, stdin: bytes = b"") -> Ran:
    return await person(tmp_path).run("approve", *arguments, stdin=stdin)


def test_a_yes_at_a_terminal_lets_the_server_in_without_a_restart(tmp_path: Path) -> None:
    with host(tmp_path, mode="ask", elicits=False) as client:
        waiting = ask(client, **proposal(env={"TOKEN": "hunter2-and-more"}))
        code, words = at_terminal(tmp_path, waiting, answer="y\n")
        assert code == 0
        assert "Server: new" in words
        assert "Variables: TOKEN" in words
        assert "hunter2" not in words
        assert "Allowed. The model can try again now." in words
        said = client.use("add_server", **proposal(env={"TOKEN": "hunter2-and-more"}))
        assert said.json["phase"] == "connected"
        assert client.servers()["new"]["admitted"] == "known to a person"
        other = {**proposal("--paged"), "name": "other"}
        assert ask(client, **other) != waiting, "anything else still needs a word"


@pytest.mark.parametrize("answer", ["n\n", "\n", "no\n"])
def test_a_no_lets_nothing_in_and_nothing_waits_any_more(tmp_path: Path, answer: str) -> None:
    with host(tmp_path, mode="ask", elicits=False) as client:
        waiting = ask(client, **proposal())
        code, words = at_terminal(tmp_path, waiting, answer=answer)
        assert code == 1
        assert "Refused, and forgotten." in words
        assert store(tmp_path).waiting() == []
        assert store(tmp_path).granted() == []
        assert ask(client, **proposal()) == waiting


@pytest.mark.parametrize("key", ["\x03", "\x04"], ids=["Ctrl-C", "Ctrl-D"])
def test_walking_away_answers_nothing(tmp_path: Path, key: str) -> None:
    waiting = put(tmp_path)
    code, words = at_terminal(tmp_path, waiting, answer=key)
    assert code != 0
    assert "Traceback" not in words
    assert [one.id for one in store(tmp_path).waiting()] == [waiting]
    assert store(tmp_path).granted() == []


def test_walking_away_in_a_hurry_answers_nothing(tmp_path: Path) -> None:
    waiting = put(tmp_path)
    with person(tmp_path).screen("approve", waiting, color=False) as screen:
        screen.until_said("Do you allow this? [y/N]:")
        assert screen.hammer("\x03") != 0
        assert "Traceback" not in screen.text
    assert [one.id for one in store(tmp_path).waiting()] == [waiting]


@pytest.mark.parametrize("arguments", [(), ("--yes",), ("-y",), ("--force",)], ids=" ".join)
@pytest.mark.parametrize("stdin", [b"", b"y\ny\ny\n"], ids=["nothing", "yes"])
async def test_no_pipe_and_no_option_says_yes(
    tmp_path: Path, arguments: Sequence[str], stdin: bytes
) -> None:
    waiting = put(tmp_path)
    ran = await in_pipe(tmp_path, waiting, *arguments, stdin=stdin)
    assert ran.code != 0
    assert "Traceback" not in ran.err
    if not arguments:
        assert "Command: run it" in ran.out, "it may be seen by everybody"
        ran.said("This is for a person to answer.", "at a terminal")
    assert store(tmp_path).granted() == []
    assert [one.id for one in store(tmp_path).waiting()] == [waiting]


def test_a_server_cannot_approve_itself(tmp_path: Path) -> None:
    """The proxy's own children have no terminal: what they start has none either."""
    waiting = put(tmp_path)
    with host(tmp_path, mode="allow", servers={"s": _shell_server(tmp_path)}) as client:
        said = client.execute("s", "run", argv=["approve", waiting])
        assert "This is for a person to answer." in said.text
    assert store(tmp_path).granted() == []


SHELL = """
import json, os, subprocess, sys
state = sys.argv[1]
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        info = {"name": "shell", "version": "1"}
        r = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]}
    elif m["method"] == "tools/call":
        argv = [sys.executable, "-m", "emceepee_stdio", *m["params"]["arguments"]["argv"]]
        env = dict(os.environ, EMCEEPEE_STATE_DIR=state)
        done = subprocess.run(argv, input=b"y\\n", capture_output=True, env=env)
        r = {"content": [{"type": "text", "text": (done.stdout + done.stderr).decode()}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""


def _shell_server(tmp_path: Path) -> dict[str, Any]:
    script = tmp_path / "shell.py"
    script.write_text(SHELL)
    python, *_ = plain()
    return {
        "command": python,
        "args": [str(script), str(tmp_path / "state")],
        "pass_env": ["PYTHONPATH"],
    }


def test_what_waits_cannot_steer_the_terminal_and_is_shown_whole(tmp_path: Path) -> None:
    long = "x" * 3_000
    text = f"Server: s\nCommand: run [red]{long}[/red] \x1b[2K\x1b]0;title\x07\u202e \\[b]"
    waiting = put(tmp_path, text, name="evil\x1b[2K\nname")
    with person(tmp_path).screen("approve", waiting, color=False) as screen:
        screen.until_said("Do you allow this?")
        screen.type("n\n")
        screen.wait()
        shown = screen.raw.replace("\n", "")
        assert f"[red]{long}[/red]" in shown
        assert "\\x1b[2K\\x1b]0;title\\x07\\u202e" in shown
        assert "\x1b[2K" not in screen.raw
        assert "\u202e" not in screen.raw
    put(tmp_path, text, name="evil\x1b[2K\nname")
    with person(tmp_path).screen("approve", color=False) as screen:
        assert screen.wait() == 0
        assert "\x1b[2K" not in screen.raw
        assert r"evil\x1b[2K\nname" in screen.raw


async def test_what_waits_and_what_was_granted_is_listed(tmp_path: Path) -> None:
    assert "Nothing waits for you." in (await in_pipe(tmp_path)).well().out
    assert "agreed to nothing" in (await in_pipe(tmp_path, "--granted")).well().out
    waiting = put(tmp_path)
    listed = (await in_pipe(tmp_path)).well().out
    assert waiting in listed
    assert "a new server" in listed
    (shown,) = json.loads((await in_pipe(tmp_path, "--json")).well().out)["waiting"]
    assert shown == {
        "id": waiting,
        "name": "s",
        "about": "a new server",
        "text": "Server: s\nCommand: run it",
        "at": AT,
    }
    store(tmp_path).approve("cd" * 32, name="t", at=AT)
    assert "cdcdcdcd" in (await in_pipe(tmp_path, "--granted")).well().out
    granted = json.loads((await in_pipe(tmp_path, "--granted", "--json")).well().out)["granted"]
    assert granted == [{"id": "cdcdcdcd", "name": "t", "what": "", "at": AT}]


SECRETS = ["sk-live-quiet-river", "amber-lantern-52"]


def secret_proposals() -> list[dict[str, Any]]:
    argv = [*plain()[1:], "--api-key", SECRETS[0]]
    return [
        {"name": "cmd", "command": plain()[0], "args": argv},
        {"name": "web", "url": f"http://127.0.0.1:9/mcp?token={SECRETS[1]}"},
    ]


def leaks(*texts: str) -> list[str]:
    return [secret for secret in SECRETS for text in texts if secret in text]


def kept_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "state").rglob("*") if path.is_file()]


async def test_no_secret_of_what_waits_is_in_a_file_or_in_a_pipe(tmp_path: Path) -> None:
    with host(tmp_path, mode="ask", elicits=False) as client:
        waiting = [ask(client, **proposed) for proposed in secret_proposals()]
    for path in kept_files(tmp_path):
        assert leaks(path.read_bytes().decode(errors="replace")) == []
    for arguments in ([], ["--json"], *([one] for one in waiting)):
        ran = await in_pipe(tmp_path, *arguments)
        assert leaks(ran.out, ran.err) == []
    (await in_pipe(tmp_path, waiting[0], "--show-secrets")).said("at a terminal only")
    refused = await in_pipe(tmp_path, "--json", "--show-secrets")
    assert "at a terminal only" in refused.out


def test_a_person_sees_the_secrets_of_what_waits_when_they_ask_for_them(tmp_path: Path) -> None:
    with host(tmp_path, mode="ask", elicits=False) as client:
        for proposed, secret in zip(secret_proposals(), SECRETS, strict=True):
            waiting = ask(client, **proposed)
            with person(tmp_path).screen("approve", waiting, columns=2000, color=False) as screen:
                screen.until_said("Do you allow this?")
                assert "--show-secrets shows them" in screen.words
                assert secret not in screen.raw
                screen.type("\x04")
                screen.wait()
            arguments = ("approve", waiting, "--show-secrets")
            with person(tmp_path).screen(*arguments, columns=2000, color=False) as screen:
                screen.until_said("Do you allow this?")
                assert secret in screen.raw
                screen.type("y\n")
                assert screen.wait() == 0
    assert leaks(*(path.read_text(errors="replace") for path in kept_files(tmp_path))) == []


async def test_what_an_earlier_version_kept_whole_is_hidden_as_well(tmp_path: Path) -> None:
    waiting = put(tmp_path, f"Server: s\nCommand: run --api-key {SECRETS[0]}")
    ran = await in_pipe(tmp_path, waiting)
    coded = await in_pipe(tmp_path, "--json")
    assert leaks(ran.out, coded.out) == []


async def test_what_does_not_wait_cannot_be_answered(tmp_path: Path) -> None:
    (await in_pipe(tmp_path, "deadbeef")).said("Nothing waits under deadbeef.")
    (await in_pipe(tmp_path, "--revoke", "deadbeef")).said("There is no agreement deadbeef.")


async def test_an_agreement_that_is_taken_back_is_asked_again(tmp_path: Path) -> None:
    with host(tmp_path) as client:
        assert not client.decide("accept", **proposal()).is_error
    (granted,) = store(tmp_path).granted()
    ran = (await in_pipe(tmp_path, "--revoke", granted.id)).well()
    assert "new needs your word again." in ran.out
    with host(tmp_path) as client:
        client.start("add_server", **proposal())
        client.question()


def test_where_the_answer_cannot_be_written_that_is_said(tmp_path: Path) -> None:
    waiting = put(tmp_path)
    (tmp_path / "state" / "lock").unlink()
    (tmp_path / "state" / "lock").mkdir()
    code, words = at_terminal(tmp_path, waiting, answer="y\n")
    assert code != 0
    assert "Traceback" not in words
    assert "Allowed" not in words
