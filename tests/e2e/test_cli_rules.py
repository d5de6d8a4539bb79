"""Rules for tools at a shell: shown, changed, taken over from clients, and obeyed."""

import json
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.config.load import load_file
from emceepee_stdio.trust.store import TrustStore
from tests.e2e.cli_harness import Cli, Home
from tests.e2e.client import command, received_by_server
from tests.peers import plain


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", env={"EMCEEPEE_STATE_DIR": str(tmp_path / "state")})


def fixture(home: Home, **fields: Any) -> dict[str, Any]:
    return command(plain(), env={"FIXTURE_LOG": str(home.path / "received.jsonl")}, **fields)


def ran(home: Home) -> list[Any]:
    received = [line["message"] for line in received_by_server(home.path / "received.jsonl")]
    return [m["params"] for m in received if m.get("method") == "tools/call"]


def rules(cli: Cli, name: str = "bank") -> dict[str, str]:
    loaded = load_file(cli.config, environ={})
    return next(server.tools for server in loaded.servers if server.name == name)


# config rules


def test_rules_are_set_shown_and_taken_out(cli: Cli) -> None:
    cli.run("config", "add", "bank", "--", "run-bank").well()
    assert "every tool runs" in cli.run("config", "rules", "bank").well().out
    done = cli.run("config", "rules", "bank", "*", "ask").well()
    assert f"Changed the rules of bank: {cli.config}" in done.out
    cli.run("config", "rules", "bank", "delete_*", "off").well()
    assert rules(cli) == {"*": "ask", "delete_*": "off"}
    shown = cli.run("config", "rules", "bank").well().out
    assert shown == "PATTERN\tRULE\n*\task\ndelete_*\toff\n"
    listed = json.loads(cli.run("config", "rules", "bank", "--json").well().out)
    assert listed["rules"][1] == {"pattern": "delete_*", "rule": "off"}
    cli.run("config", "rules", "bank", "delete_*", "--remove").well()
    assert rules(cli) == {"*": "ask"}
    cli.run("config", "check").well()


def test_a_wide_rule_says_what_it_takes_the_effect_from(cli: Cli) -> None:
    cli.run("config", "add", "bank", "--", "run-bank").well()
    cli.run("config", "rules", "bank", "send", "off").well()
    done = cli.run("config", "rules", "bank", "*", "ask").well()
    assert "counts for send as well, which was off" in done.err
    assert "emceepee config rules bank send off" in done.err


def test_a_dry_run_changes_nothing(cli: Cli) -> None:
    cli.run("config", "add", "bank", "--", "run-bank").well()
    before = cli.files()
    assert '"ask"' in cli.run("config", "rules", "bank", "*", "ask", "--dry-run").well().out
    assert cli.files() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["other", "*", "ask"], "there is no server 'other'"),
        (["bank", "x", "--remove"], "bank has no rule for x"),
        (["bank", "x", "never"], "'never' is not one of 'allow', 'ask', 'off'"),
        (["bank", "x"], "a rule, allow, ask or off"),
        (["bank", "x", "ask", "--remove"], "either a rule, allow, ask or off, or --remove"),
        (["bank", "[x", "ask"], "a [ without its ]"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, arguments: list[str], words: str) -> None:
    cli.run("config", "add", "bank", "--", "run-bank").well()
    before = cli.files()
    refused = cli.run("config", "rules", *arguments)
    assert refused.code != 0
    assert words in " ".join(refused.err.replace("│", " ").split())
    assert cli.files() == before


def test_a_rule_that_cannot_be_read_is_a_problem_of_its_server(cli: Cli) -> None:
    cli.config.parent.mkdir(parents=True)
    entry = {"command": "x", "tools": {"send": "never"}}
    cli.config.write_text(json.dumps({"mcpServers": {"bank": entry}}))
    checked = cli.run("config", "check")
    assert checked.code == 1
    assert "bank: mcpServers.bank.tools.send: expected one of allow, ask, off" in checked.out


def test_rules_of_secretive_names_are_shown(cli: Cli) -> None:
    cli.run("config", "add", "bank", "--", "run-bank").well()
    cli.run("config", "rules", "bank", "get_token", "off").well()
    shown = json.loads(cli.run("config", "show", "--json").well().out)
    assert shown["servers"][0]["entry"]["tools"] == {"get_token": "off"}


# Taken over from clients

RESTRICTED = [
    ("gemini", {"includeTools": ["a", "b"]}, {"*": "off", "a": "allow", "b": "allow"}),
    ("gemini", {"excludeTools": ["a"]}, {"a": "off"}),
    ("windsurf", {"disabledTools": ["a"]}, {"a": "off"}),
]


@pytest.mark.parametrize(("client", "own", "wanted"), RESTRICTED)
def test_the_restrictions_of_a_client_become_rules_and_the_import_says_so(
    cli: Cli, client: str, own: dict[str, Any], wanted: dict[str, str]
) -> None:
    files = {"gemini": ".gemini/settings.json", "windsurf": ".codeium/windsurf/mcp_config.json"}
    theirs = cli.home / files[client]
    theirs.parent.mkdir(parents=True)
    theirs.write_text(json.dumps({"mcpServers": {"bank": {"command": "x", **own}}}))
    done = cli.run("config", "import", client).well()
    assert f"{next(iter(own))} became rules for its tools" in done.out
    assert rules(cli) == wanted
    assert not set(own) & set(json.loads(cli.config.read_text())["mcpServers"]["bank"])
    assert "the same server" in cli.run("config", "import", client).well().out


def test_the_restrictions_of_codex_become_rules(cli: Cli) -> None:
    theirs = cli.home / ".codex" / "config.toml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(
        '[mcp_servers.bank]\ncommand = "x"\nenabled_tools = ["a", "b"]\ndisabled_tools = ["b"]\n'
    )
    done = cli.run("config", "import", "codex").well()
    assert "enabled_tools, disabled_tools became rules for its tools" in done.out
    assert rules(cli) == {"*": "off", "a": "allow", "b": "off"}


def test_what_codex_asks_for_becomes_rules(cli: Cli) -> None:
    theirs = cli.home / ".codex" / "config.toml"
    theirs.parent.mkdir(parents=True)
    theirs.write_text(
        '[mcp_servers.bank]\ncommand = "x"\ndefault_tools_approval_mode = "prompt"\n'
        '[mcp_servers.bank.tools.look]\napproval_mode = "approve"\n'
        '[mcp_servers.some]\ncommand = "y"\nenabled_tools = ["a", "b"]\ndisabled_tools = ["c"]\n'
        '[mcp_servers.some.tools.a]\napproval_mode = "prompt"\n'
        '[mcp_servers.plain]\ncommand = "z"\n[mcp_servers.plain.tools.a]\napproval_mode = "auto"\n'
    )
    done = cli.run("config", "import", "codex").well()
    assert done.out.count("became rules for its tools") == 2
    assert rules(cli) == {"*": "ask", "look": "allow"}
    assert rules(cli, "some") == {"*": "off", "a": "ask", "b": "allow", "c": "off"}
    assert rules(cli, "plain") == {}
    cli.run("config", "check").well()


def test_a_restriction_that_cannot_be_read_keeps_the_server_where_it_is(cli: Cli) -> None:
    theirs = cli.home / ".gemini" / "settings.json"
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"mcpServers": {"bank": {"command": "x", "excludeTools": "a"}}}')
    done = cli.run("config", "import", "gemini").well()
    assert "skipped" in done.out
    assert "excludeTools: expected a list" in done.out


# ls, doctor, call


async def test_what_is_off_is_not_listed_and_what_asks_is_marked(home: Home) -> None:
    home.write({"bank": fixture(home, tools={"e*": "off", "add": "ask"})})
    listed = (await home.run("ls")).well()
    names = [line.split("\t")[2] for line in listed.out.splitlines() if "\ttool\t" in line]
    assert "echo" not in names
    assert "add (you are asked)" in names
    assert "slow" in names
    assert "off: emceepee config rules bank" in listed.err
    (offers,) = json.loads((await home.run("ls", "bank", "--json")).well().out)["servers"]
    assert [t["rule"] for t in offers["tools"] if "rule" in t] == ["ask"]
    assert "echo" not in [tool["name"] for tool in offers["tools"]]


async def test_the_doctor_tells_of_rules_and_of_one_that_matches_nothing(home: Home) -> None:
    home.write({"bank": fixture(home, tools={"add": "ask", "echo": "off"})})
    well = await home.run("doctor", "bank")
    assert "you are asked for 1 of its tools, and 1 is off." in " ".join(well.out.split())
    home.write({"bank": fixture(home, tools={"echo": "off"})})
    off = await home.run("doctor", "bank")
    assert "By your rules 1 of its tools is off." in " ".join(off.out.split())
    home.write({"bank": fixture(home, tools={"ehco": "off"})})
    warned = await home.run("doctor", "bank")
    assert "No tool matches 'ehco' of your rules." in " ".join(warned.out.split())


async def test_without_a_terminal_a_call_that_asks_is_put_aside_with_the_next_step(
    home: Home,
) -> None:
    home.write({"bank": fixture(home, tools={"echo": "ask"})})
    refused = (await home.run("call", "bank", "echo", "message=hi", stdin=b"y\n")).said(
        "A person has to allow this call of echo of bank"
    )
    assert refused.code == 1
    waiting = refused.err.partition("emceepee approve ")[2][:8]
    assert ran(home) == []
    with home.screen("approve", waiting, color=False) as screen:
        screen.until_said("Do you allow this?")
        assert 'Arguments: {"message":"hi"}' in screen.words
        screen.type("y\n")
        assert screen.wait() == 0
        assert "Allowed, once. The same call can be made within an hour." in screen.words
    (await home.run("call", "bank", "echo", "message=ho")).said("has to allow")
    assert (await home.run("call", "bank", "echo", "message=hi")).well().out == "hi\n"
    (await home.run("call", "bank", "echo", "message=hi")).said("has to allow")
    assert [params["arguments"] for params in ran(home)] == [{"message": "hi"}]


@pytest.mark.parametrize(("answer", "runs"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_at_a_terminal_the_person_is_asked(home: Home, answer: str, runs: bool) -> None:  # noqa: FBT001 - a row of the table
    home.write({"bank": fixture(home, tools={"echo": "ask"})})
    with home.screen("call", "bank", "echo", "message=hi", color=False) as screen:
        screen.until_said("May this tool run? [y/N]:")
        assert 'Server bank, tool echo {"message":"hi"}' in screen.words
        screen.type(answer)
        assert screen.wait() == (0 if runs else 1)
    assert runs or screen.words.endswith("did not run: the person refused this call.")
    assert len(ran(home)) == runs
    assert TrustStore(home.path.parent / "state").waiting() == []


async def test_what_is_off_does_not_run_from_a_shell_and_is_not_suggested(home: Home) -> None:
    home.write({"bank": fixture(home, tools={"echo": "off"})})
    (await home.run("call", "bank", "echo", "message=hi")).said(
        "'echo' of bank is off by a rule", "emceepee config rules bank"
    )
    missing = await home.run("call", "bank", "ecko")
    assert "echo" not in missing.err
    assert ran(home) == []
