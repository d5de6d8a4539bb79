"""What a server exposes, at a shell: shown, changed and taken back."""

import json
from pathlib import Path

import pytest

from emceepee_stdio.config.load import load_file
from tests.e2e.cli_harness import Cli, Home
from tests.e2e.client import server


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
    wanted = {"schema_version": 1, "server": "github", "expose": ["search_*", "get_issue"]}
    assert shown == wanted
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
        (["other", "*"], "there is no server 'other'"),
        (["github", "x", "--remove"], "github does not expose x"),
        (["github", "x["], "a [ without its ]"),
        (["github", "x", "--all"], "--all exposes everything: give it without patterns"),
        (["github", "--remove", "--all"], "--all exposes everything: give it without patterns"),
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


@pytest.mark.parametrize("said", ["search_*", [7], ["x["], 1])
def test_what_cannot_be_read_is_shown_as_that_and_replaced(cli: Cli, said: object) -> None:
    entry = {"command": "y", "expose": said, "env": {"A": "b"}}
    cli.config.write_text(json.dumps({"mcpServers": {"x": entry}}))
    shown = cli.run("config", "expose", "x").said("mcpServers.x.expose")
    assert "To replace it: emceepee config expose x 'PATTERN'" in shown.err
    done = cli.run("config", "expose", "x", "get_*").well()
    assert "What stands there cannot be read, and is replaced." in done.err
    assert exposed(cli) == ("get_*",)
    cli.config.write_text(json.dumps({"mcpServers": {"x": entry}}))
    cli.run("config", "expose", "x", "--remove").well()
    assert exposed(cli) is False


# What a client is listed


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home", {"EMCEEPEE_STATE_DIR": str(tmp_path / "state")})


def words(text: str) -> str:
    return " ".join(text.split())


async def test_the_shell_says_under_which_names_tools_are_listed_and_which_patterns_match_nothing(
    home: Home,
) -> None:
    home.write({"s": server(expose=["echo", "ehco"], tools={"slow": "off"}), "other": server()})
    unknown = (await home.run("config", "expose", "s")).well()
    assert "What s lists is not known yet. To see it: emceepee doctor s" in unknown.err
    checked = await home.run("doctor", "s")
    assert "Exposed as: s__echo." in words(checked.out)
    assert "No tool matches 'ehco' of expose" in words(checked.out)
    assert "emceepee config expose s" in words(checked.out + checked.err)
    shown = (await home.run("config", "expose", "s")).well()
    assert "Listed as: s__echo" in shown.out
    assert "No tool of s matches 'ehco'." in shown.err
    known = json.loads((await home.run("config", "expose", "s", "--json")).well().out)
    assert known.pop("known_at")
    assert known.pop("schema_version")
    assert known == {
        "server": "s",
        "expose": ["echo", "ehco"],
        "listed_as": ["s__echo"],
        "matches_nothing": ["ehco"],
    }
    changed = (await home.run("config", "expose", "s", "s[lt]*", "nope")).well()
    assert "Listed as: s__echo, s__stderr, s__structured" in words(changed.out)
    assert "No tool of s matches 'nope'." in changed.err
    assert "when the server is up" in words(changed.out)


async def test_config_show_and_ls_show_under_which_names_tools_are_listed(home: Home) -> None:
    home.write({"s": server(expose=["echo"]), "other": server()})
    assert "s exposes echo" in words((await home.run("config", "show")).well().out)
    listed = (await home.run("ls")).well()
    assert "s\ttool\techo (exposed as s__echo)" in listed.out
    assert "(exposed as s__echo)" in (await home.run("ls", "s")).well().out
    assert "other\ttool\techo\n" in listed.out
    offers = json.loads((await home.run("ls", "--json")).well().out)["servers"]
    assert [t["exposed_as"] for one in offers for t in one["tools"] if "exposed_as" in t] == [
        "s__echo"
    ]
    assert "s exposes s__echo" in words((await home.run("config", "show")).well().out)
    rows = json.loads((await home.run("config", "show", "--json")).well().out)["servers"]
    assert [row.get("exposed_as") for row in rows] == [["s__echo"], None]
