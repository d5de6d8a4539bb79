"""What a server exposes, at a shell: shown, changed and taken back."""

import json
from pathlib import Path

import pytest

from emceepee_stdio.config import load_file
from tests.e2e.cli_harness import Cli


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    made = Cli(tmp_path, monkeypatch, capsys)
    made.run("config", "add", "github", "--", "run-github").well()
    return made


def exposed(cli: Cli) -> object:
    (entry,) = load_file(cli.config, environ={}).servers
    return entry.expose


def test_patterns_are_added_shown_and_taken_back(cli: Cli) -> None:
    assert "Nothing is exposed" in cli.run("config", "expose", "github").well().out
    done = cli.run("config", "expose", "github", "search_*").well()
    assert f"Changed what github exposes: {cli.config}" in done.out
    cli.run("config", "expose", "github", "get_issue", "search_*").well()
    assert exposed(cli) == ("search_*", "get_issue")
    assert cli.run("config", "expose", "github").well().out == "search_*\nget_issue\n"
    shown = json.loads(cli.run("config", "expose", "github", "--json").well().out)
    assert shown == {"server": "github", "expose": ["search_*", "get_issue"]}
    cli.run("config", "expose", "github", "search_*", "--remove").well()
    assert exposed(cli) == ("get_issue",)
    cli.run("config", "expose", "github", "get_issue", "--remove").well()
    assert exposed(cli) is False
    cli.run("config", "check").well()


def test_everything_is_exposed_and_taken_back(cli: Cli) -> None:
    cli.run("config", "expose", "github", "--all").well()
    assert exposed(cli) is True
    assert "All tools" in cli.run("config", "expose", "github").well().out
    assert "Nothing to do" in cli.run("config", "expose", "github", "--all").well().out
    cli.run("config", "expose", "github", "--remove").well()
    assert exposed(cli) is False


def test_a_dry_run_changes_nothing(cli: Cli) -> None:
    before = cli.files()
    shown = cli.run("config", "expose", "github", "search_*", "--dry-run").well().out
    assert '"search_*"' in shown
    assert cli.files() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["other", "*"], "has no server named other"),
        (["github", "x", "--remove"], "github does not expose x"),
        (["github", "x["], "a [ without its ]"),
        (["github", "x", "--all"], "give either patterns, --all or --remove"),
    ],
)
def test_a_mistake_is_said_and_changes_nothing(cli: Cli, arguments: list[str], words: str) -> None:
    before = cli.files()
    done = cli.run("config", "expose", *arguments)
    assert done.code != 0
    assert words in done.err.replace("\n", " ")
    assert cli.files() == before


def test_patterns_beside_everything_are_refused_with_the_way_to_less(cli: Cli) -> None:
    cli.run("config", "expose", "github", "--all").well()
    done = cli.run("config", "expose", "github", "search_*")
    assert done.code != 0
    assert "emceepee config expose github --remove" in done.err


@pytest.mark.parametrize("said", ['"search_*"', "[7]", '["x["]', "1"])
def test_what_cannot_be_read_costs_the_entry_and_says_why(cli: Cli, said: str) -> None:
    entry = {"command": "y", "expose": json.loads(said)}
    cli.config.write_text(json.dumps({"mcpServers": {"x": entry}}))
    loaded = load_file(cli.config, environ={})
    assert loaded.servers == ()
    assert "mcpServers.x.expose" in loaded.disabled[0].reason
