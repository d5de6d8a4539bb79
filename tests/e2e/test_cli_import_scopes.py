"""`emceepee config import claude-code`: the user's servers, local ones, and a project's file."""

import json
import shlex
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests import peers
from tests.e2e.cli_harness import Home

USER: dict[str, Any] = {"type": "stdio", "command": "npx", "args": ["user"], "env": {}}
LOCAL: dict[str, Any] = {"type": "stdio", "command": "npx", "args": ["local"], "env": {"K": "V"}}
SHARED: dict[str, Any] = {"type": "stdio", "command": "npx", "args": ["shared"], "env": {}}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    made = Home(tmp_path / "home")
    made.path.mkdir()
    return made


def claude_file(home: Home) -> Path:
    return home.path / ".claude.json"


def project(home: Home, place: Path | None = None, **more: object) -> None:
    """What `claude mcp add` leaves for the directory that commands run in."""
    local = {"mcpServers": {"near": LOCAL}, "hasTrustDialogAccepted": False, **more}
    whole = {"mcpServers": {"mine": USER}, "projects": {str(place or home.path): local}}
    claude_file(home).write_text(json.dumps(whole, indent=2))


def shared_file(place: Path, **servers: object) -> Path:
    path = place / ".mcp.json"
    path.write_text(json.dumps({"mcpServers": servers or {"shared": SHARED}}))
    return path


def ours(home: Home) -> list[str]:
    return sorted(json.loads(home.config.read_text())["mcpServers"]) if home.config.exists() else []


async def test_the_local_scope_is_taken_over_and_the_project_file_is_not_without_a_person(
    home: Home,
):
    project(home)
    path = shared_file(home.path)
    ran = (await home.run("config", "import", "claude-code", "--json")).well()
    rows = {row["name"]: (row["scope"], row["result"]) for row in json.loads(ran.out)["servers"]}
    assert rows == {
        "near": ("local", "taken"),
        "mine": ("user", "taken"),
        "shared": ("project", "skipped"),
    }
    assert str(path) in ran.out
    assert ours(home) == ["mine", "near"]


async def test_another_project_is_named_but_not_looked_at_and_the_repository_around_is(home: Home):
    project(home, home.path.parent)
    ran = (await home.run("config", "import", "claude-code")).well()
    assert "near" not in ran.out
    assert f"servers for other directories, too: {home.path.parent}. To take them over" in ran.err
    (home.path.parent / ".git").mkdir()
    ran = (await home.run("config", "import", "claude-code")).well()
    assert "near (local)\ttaken" in ran.out
    assert "other directories" not in ran.err


async def test_installing_counts_the_servers_that_an_import_would_take(home: Home):
    project(home, disabledMcpjsonServers=["refused"])
    path = shared_file(home.path, shared=SHARED, mine=USER, refused=SHARED)
    ran = (await home.run("install", "claude-code", "--force")).well()
    assert "Claude Code has 3 other servers; to move them behind emceepee" in ran.err
    path.unlink()
    claude_file(home).write_text("{}")
    shared_file(home.path)
    ran = (await home.run("install", "claude-code", "--force")).well()
    assert "Claude Code has 1 other server; to move it behind emceepee" in ran.err


def test_each_server_of_a_project_file_is_shown_and_no_is_the_default(home: Home):
    project(home)
    shared_file(home.path, one=SHARED, two={**SHARED, "args": ["\x1b[2Jtwo"]}, near=LOCAL)
    with home.screen("config", "import", "claude-code") as screen:
        screen.until_said("Take one over? [y/N]:")
        assert '"shared"' in screen.text
        screen.type("\n")
        screen.until_said("Take two over? [y/N]:")
        assert "\x1b[2J" not in screen.raw
        screen.type("y\n")
        assert screen.wait() == 0
        assert screen.fits()
        assert "you did not agree" in screen.words
        assert "can be used in every project" in screen.words
    assert ours(home) == ["mine", "near", "two"]


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--dry-run", "you will be asked whether to take it."),
        ("--json", "without --json you are asked whether to take it."),
    ],
)
def test_at_a_terminal_it_says_when_a_person_is_asked(home: Home, option: str, said: str):
    project(home)
    path = shared_file(home.path)
    with home.screen("config", "import", "claude-code", option) as screen:
        assert screen.wait() == 0
        assert f"{path.name}: {said}" in screen.words
        assert "at a terminal" not in screen.words


async def test_what_the_person_refused_in_the_client_is_not_even_asked_for(home: Home):
    project(home, disabledMcpjsonServers=["shared"])
    shared_file(home.path)
    with home.screen("config", "import", "claude-code") as screen:
        assert screen.wait() == 0
        assert "you refused it in the client" in screen.words
    assert ours(home) == ["mine", "near"]


async def test_a_project_file_alone_is_enough_and_a_broken_one_stops_nothing(home: Home):
    path = shared_file(home.path)
    assert "at a terminal you are asked" in (await home.run("config", "import", "claude-code")).out
    path.write_text("{")
    project(home)
    ran = (await home.run("config", "import", "claude-code")).well()
    assert f"{path} is broken at line 1" in ran.err
    assert ours(home) == ["mine", "near"]


def test_replacing_empties_both_scopes_and_leaves_the_file_of_the_project(home: Home):
    project(home)
    path = shared_file(home.path)
    before = path.read_bytes()
    with home.screen("config", "import", "claude-code", "--replace") as screen:
        screen.until_said("Take shared over? [y/N]:")
        screen.type("y\n")
        assert screen.wait() == 0
        assert "belongs to the project and stays as it is" in screen.words
        assert '{"disabledMcpjsonServers": ["shared"]}' in screen.words
        assert "does not exist yet" not in screen.words
    assert path.read_bytes() == before
    whole = json.loads(claude_file(home).read_text())
    assert list(whole["mcpServers"]) == ["emceepee"]
    assert whole["projects"][str(home.path)] == {"mcpServers": {}, "hasTrustDialogAccepted": False}
    assert ours(home) == ["mine", "near", "shared"]


LONG = "n" * 300


def odd_names(home: Home) -> None:
    """Servers whose names do not fit on one line: of the user, and of the project."""
    odd = {"bad\nname\x1b[2J": USER, LONG: USER}
    local = {"mcpServers": {f"near\n{LONG}": LOCAL}}
    whole = {"mcpServers": {"fine": USER, **odd}, "projects": {str(home.path): local}}
    claude_file(home).write_text(json.dumps(whole))
    shared_file(home.path, **{"shared\nname": SHARED})


@pytest.mark.parametrize("options", [["--dry-run"], [], ["--replace"]], ids=" ".join)
async def test_a_name_that_does_not_fit_on_a_line_is_escaped_and_cut(
    home: Home, options: list[str]
):
    odd_names(home)
    ran = (await home.run("config", "import", "claude-code", *options)).well()
    told = ran.err if options == ["--dry-run"] else ran.out
    for shown in ("bad\\nname\\x1b[2J", f"{LONG[:63]}…", f"near\\n{LONG[:57]}… (local)"):
        assert shown in told
    assert "shared\\nname (project)" in told
    assert LONG not in told
    if "--replace" in options:
        assert f"now has emceepee and near\\n{LONG[:57]}…, bad\\nname\\x1b[2J, " in told


def test_a_name_with_a_line_break_stays_on_one_line_of_the_table(home: Home):
    shared_file(home.path, **{"one\ntwo": SHARED})
    with home.screen("config", "import", "claude-code") as screen:
        assert screen.wait() == 0
        assert "one\\ntwo (project)" in screen.words


async def test_a_dry_run_says_what_would_be_taken(home: Home):
    project(home)
    ran = (await home.run("config", "import", "claude-code", "--dry-run")).well()
    assert "near (local): would be taken\n" in ran.err
    assert "mine: would be taken\n" in ran.err
    (await home.run("config", "import", "claude-code")).well()
    ran = (await home.run("config", "import", "claude-code", "--dry-run")).well()
    assert "mine: there: the configuration has the same server." in ran.err


def in_both_scopes(home: Home) -> None:
    local = {"mcpServers": {"foo": LOCAL}}
    whole = {"mcpServers": {"foo": USER}, "projects": {str(home.path): local}}
    claude_file(home).write_text(json.dumps(whole))


@pytest.mark.parametrize("option", ["--dry-run", "--json", "--replace"])
async def test_one_name_in_two_scopes_is_told_with_the_scopes_and_a_command(
    home: Home, option: str
):
    in_both_scopes(home)
    ran = (await home.run("config", "import", "claude-code", option)).well()
    said = (
        f"another server of this name comes first: local, {home.path}. Rename this one in "
        f"{claude_file(home)}, or remove it: `claude mcp remove foo -s user`."
    )
    assert said in ran.out + ran.err


async def test_a_name_that_the_configuration_has_is_told_with_both_files(home: Home):
    home.write({"near": USER, "mine": LOCAL, "shared": USER})
    project(home)
    path = shared_file(home.path)
    ran = (await home.run("config", "import", "claude-code", "--json")).well()
    reasons = {row["name"]: row["reason"] for row in json.loads(ran.out)["servers"]}
    first = f"{home.config} has another server of this name. Rename this one in"
    near, mine = (
        f"{first} {claude_file(home)}, or remove it: `claude mcp remove {name} -s {scope}`."
        for name, scope in (("near", "local"), ("mine", "user"))
    )
    assert reasons == {"near": near, "mine": mine, "shared": f"{first} {path}."}


async def test_a_client_without_scopes_is_told_the_file_to_rename_in(home: Home):
    home.write({"foo": USER})
    path = home.path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"foo": LOCAL}}))
    ran = (await home.run("config", "import", "cursor")).well()
    assert f"has another server of this name. Rename this one in {path}.\n" in ran.out


@pytest.mark.slow
async def test_the_command_for_one_name_in_two_scopes_works(home: Home):
    in_both_scopes(home)
    words = shlex.split("mcp remove foo -s user")
    await anyio.run_process([peers.claude_code(), *words], cwd=home.path, env=home.environ())
    ran = (await home.run("config", "import", "claude-code", "--json")).well()
    (row,) = json.loads(ran.out)["servers"]
    assert (row["scope"], row["result"]) == ("local", "taken")


@pytest.mark.slow
async def test_servers_that_claude_code_itself_added_are_found(home: Home):
    claude = peers.claude_code()
    for scope in ("local", "user", "project"):
        words = [claude, "mcp", "add", "-s", scope, f"it-{scope}", "--", "npx", "-y", scope]
        await anyio.run_process(words, cwd=home.path, env=home.environ())
    ran = (await home.run("config", "import", "claude-code", "--json")).well()
    rows = {row["name"]: row["scope"] for row in json.loads(ran.out)["servers"]}
    assert rows == {"it-local": "local", "it-user": "user", "it-project": "project"}
