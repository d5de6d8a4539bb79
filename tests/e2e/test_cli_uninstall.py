"""Servers that `uninstall --restore` puts back, and variables that `install --env` gives."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.config.clients import CLIENTS, Client
from tests.e2e.cli_harness import Cli, Ran

SECRET = "ghp_9e3779b97f4a7c159e3779b97f4a7c15abcd"

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


def filled(client: Client, cli: Cli) -> Path:
    """The client's file, with two servers in it."""
    path = client.places("linux", {}, cli.home)[-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    client.home(path, {}, cli.home).mkdir(parents=True, exist_ok=True)
    if client.key == "codex":
        path.write_text(
            'model = "x"\n\n[mcp_servers.time]\ncommand = "uvx"\nargs = ["t"]\n\n'
            '[mcp_servers.gh]\ncommand = "npx"\n\n'
            f'[mcp_servers.gh.env]\nGITHUB_TOKEN = "{SECRET}"\n'
        )
    else:
        both = {
            "time": {"command": "uvx", "args": ["t"]},
            "gh": {"command": "npx", "env": {"GITHUB_TOKEN": SECRET}},
        }
        path.write_text(json.dumps({"theme": "dark", client.section: both}, indent=2))
    return path


def servers(client: Client, path: Path) -> dict[str, Any]:
    text = path.read_text()
    document: Any = client.language.read(text)
    return document.get(client.section, {})


@every_client
def test_servers_that_were_moved_behind_emceepee_come_back(cli: Cli, client: Client):
    path = filled(client, cli)
    before = servers(client, path)
    cli.run("config", "import", client.key, "--replace").well()
    assert list(servers(client, path)) == ["emceepee"]
    shown = cli.run("uninstall", client.key, "--restore", "--dry-run").well()
    assert "time" in shown.out
    assert SECRET not in shown.out + shown.err
    assert list(servers(client, path)) == ["emceepee"]
    ran = cli.run("uninstall", client.key, "--restore").well()
    assert f"Put back into {client.title}: time, gh." in ran.out
    assert SECRET not in ran.out + ran.err
    assert servers(client, path) == before
    assert json.loads(cli.config.read_text())["mcpServers"].keys() == {"time", "gh"}


REMARKED = {
    "codex": (
        'model = "x"\n\n[mcp_servers.time]\ncommand = "uvx" # via uv\nargs = ["t"]\n'
        'env = { A = "b" }\n# a disabled one\n#[mcp_servers.old]\n\n[mcp_servers.gh]\n'
        'command = "npx"\n\n[other]\nx = 1\n# last line comment\n'
    ),
    "cursor": (
        '{\n  "mcpServers": {\n    // by uv\n    "time": {"args": ["t"], /* it */ "command": "x"},'
        '\n    "gh": {\n      "command": "npx", // a token\n    },\n  },\n  "theme": "dark"\n}\n'
    ),
}


@pytest.mark.parametrize("installed", [[], ["install"]], ids=["", "installed before"])
@pytest.mark.parametrize("key", REMARKED)
def test_a_file_that_nothing_else_changed_is_again_what_it_was(
    cli: Cli, key: str, installed: list[str]
):
    path = filled(CLIENTS[key], cli)  # pyright: ignore[reportArgumentType]
    path.write_text(REMARKED[key])
    for words in (*([word, key] for word in installed), ["config", "import", key, "--replace"]):
        cli.run(*words).well()
    cli.run("uninstall", key, "--restore").well()
    assert path.read_text() == REMARKED[key]


def test_what_was_moved_in_several_steps_comes_back_whole(cli: Cli):
    client = CLIENTS["cursor"]
    path = filled(client, cli)
    cli.run("config", "import", "cursor", "--replace").well()
    document = json.loads(path.read_text())
    document["mcpServers"] |= {"late": {"command": "late"}, "own": {"command": "${userHome}/own"}}
    path.write_text(json.dumps(document))
    cli.run("config", "import", "cursor", "--replace").well()
    cli.run("config", "remove", "gh").well()  # a person does not want it any more
    assert list(servers(client, path)) == ["emceepee", "own"]
    cli.run("uninstall", "cursor", "--restore").well()
    assert servers(client, path).keys() == {"own", "late", "time"}


@every_client
def test_secrets_that_stand_in_plain_text_again_are_named(cli: Cli, client: Client):
    path = filled(client, cli)
    cli.run("config", "import", client.key, "--replace").well()
    for words in (["--dry-run"], []):
        ran = cli.run("uninstall", client.key, "--restore", *words).well()
        line = f"Secrets in plain text in {path}: gh: env.GITHUB_TOKEN. To change that: "
        assert f"{line}emceepee config import {client.key} --replace\n" in ran.err
        assert SECRET not in ran.out + ran.err
    cli.run("config", "import", client.key, "--replace").well()
    cli.run("config", "remove", "gh").well()
    assert "plain text" not in cli.run("uninstall", client.key, "--restore").well().err


SWITCHES = {"codex": {"enabled": False}, "zed": {"enabled": False}, "opencode": {"enabled": False}}


@every_client
def test_a_server_that_is_off_in_emceepee_is_not_switched_on_by_a_restore(cli: Cli, client: Client):
    path = filled(client, cli)
    before = servers(client, path)
    cli.run("config", "import", client.key, "--replace").well()
    cli.run("config", "disable", "gh").well()
    shown = cli.run("uninstall", client.key, "--restore", "--dry-run").well()
    ran = cli.run("uninstall", client.key, "--restore").well()
    switch = SWITCHES.get(client.key)
    if switch:
        assert servers(client, path) == {**before, "gh": {**before["gh"], **switch}}
        said = f"Off in {client.title}, as in emceepee: gh."
        assert said in shown.err
        assert said in ran.err
        return
    assert servers(client, path) == {"time": before["time"]}
    assert f"Put back into {client.title}: time." in ran.out
    assert "plain text" not in ran.err, "the secret stays out with its server"
    for told in (shown.err, ran.err):
        assert "Not put back: gh, which you switched off in emceepee." in told
    followed(cli, ran.err)
    assert servers(client, path) == before


def followed(cli: Cli, said: str) -> None:
    """Run the commands that stand on lines of their own."""
    for line in said.splitlines():
        if line.startswith("  emceepee "):
            cli.run(*shlex.split(line)[1:]).well()


def test_where_all_that_was_moved_is_off_only_emceepee_goes(cli: Cli):
    client = CLIENTS["cursor"]
    path = filled(client, cli)
    before = servers(client, path)
    other = cli.home / "other.json"
    cli.run("config", "import", "cursor", "--replace", "--config", str(other)).well()
    for name in before:
        cli.run("config", "disable", name, "--config", str(other)).well()
    ran = cli.run("uninstall", "cursor", "--restore").well()
    assert servers(client, path) == {}
    assert "Not put back: time, gh" in ran.err
    assert "none to put back" not in ran.out
    followed(cli, ran.err)
    assert servers(client, path) == before


def test_a_server_that_the_client_had_off_comes_back_as_it_was(cli: Cli):
    path = CLIENTS["cursor"].places("linux", {}, cli.home)[-1]
    path.parent.mkdir(parents=True)
    before = {"mcpServers": {"gh": {"command": "npx", "disabled": True}}}
    path.write_text(json.dumps(before))
    cli.run("config", "import", "cursor", "--replace").well()
    cli.run("uninstall", "cursor", "--restore").well()
    assert json.loads(path.read_text()) == before


def test_servers_of_a_project_come_back_to_their_project(cli: Cli):
    client = CLIENTS["claude-code"]
    path = filled(client, cli)
    document = json.loads(path.read_text())
    document["projects"] = {str(cli.home): {"mcpServers": {"here": {"command": "x"}}}}
    path.write_text(json.dumps(document))
    cli.monkeypatch.chdir(cli.home)
    cli.run("config", "import", "claude-code", "--replace").well()
    assert json.loads(path.read_text())["projects"][str(cli.home)]["mcpServers"] == {}
    cli.run("uninstall", "claude-code", "--restore").well()
    assert json.loads(path.read_text()) == document


def test_servers_come_back_also_after_emceepee_was_taken_out(cli: Cli):
    client = CLIENTS["cursor"]
    path = filled(client, cli)
    before = servers(client, path)
    cli.run("config", "import", "cursor", "--replace").well()
    ran = cli.run("uninstall", "cursor").well()
    assert "time, gh" in ran.err
    assert "emceepee uninstall cursor --restore" in ran.err
    assert servers(client, path) == {}
    cli.run("uninstall", "cursor", "--restore").well()
    assert servers(client, path) == before
    assert "not registered" in cli.run("uninstall", "cursor", "--restore").well().out


# Servers that were put back, and removed by the person afterwards


CLAUDE = CLIENTS["claude-code"]
FOO = {"type": "stdio", "command": "foo"}


class Claude:
    """The file of Claude Code, with a project that commands run in."""

    def __init__(self, cli: Cli) -> None:
        self.path = cli.home / ".claude.json"
        self.project = cli.home / "project"
        self.project.mkdir()
        (cli.home / ".claude").mkdir()
        cli.monkeypatch.chdir(self.project)

    def write(self, *, user: dict[str, Any], local: dict[str, Any]) -> None:
        projects = {str(self.project): {"mcpServers": local}}
        self.path.write_text(json.dumps({"mcpServers": user, "projects": projects}))

    @property
    def user(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()).get("mcpServers", {})

    @property
    def local(self) -> dict[str, Any]:
        return json.loads(self.path.read_text())["projects"][str(self.project)]["mcpServers"]


@pytest.fixture
def claude(cli: Cli) -> Claude:
    return Claude(cli)


def moved_and_put_back(cli: Cli) -> Ran:
    cli.run("install", "claude-code").well()
    cli.run("config", "import", "claude-code", "--replace").well()
    return cli.run("uninstall", "claude-code", "--restore").well()


def test_a_server_that_moved_to_another_scope_comes_back_only_there(cli: Cli, claude: Claude):
    claude.write(user={}, local={"foo": FOO})
    ran = moved_and_put_back(cli)
    assert f"Put back into Claude Code: foo (local, {claude.project}).\n" in ran.out
    assert "emceepee keeps foo, for other clients" in ran.err
    assert claude.local == {"foo": FOO}
    claude.write(user={"foo": {**FOO, "args": ["2"]}}, local={})
    cli.run("config", "remove", "foo").well()
    for _ in range(4):  # until the oldest backups are gone
        ran = moved_and_put_back(cli)
        assert "Put back into Claude Code: foo.\n" in ran.out
        assert (claude.user, claude.local) == ({"foo": {**FOO, "args": ["2"]}}, {})


RESTORE = ("uninstall", "claude-code", "--restore")


@pytest.mark.parametrize("undone", [[RESTORE], [RESTORE[:2], RESTORE]], ids=["at once", "later"])
@pytest.mark.parametrize("again", [[], [("install", "claude-code")]], ids=["", "installed again"])
def test_a_server_that_was_put_back_and_then_removed_stays_away(
    cli: Cli, claude: Claude, undone: list[tuple[str, ...]], again: list[tuple[str, ...]]
):
    claude.write(user={"foo": FOO, "bar": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    for words in undone:
        cli.run(*words).well()
    assert claude.user == {"foo": FOO, "bar": FOO}
    claude.write(user={"bar": FOO}, local={})
    for words in again:
        cli.run(*words).well()
    ran = cli.run(*RESTORE).well()
    assert claude.user == {"bar": FOO}
    assert "Put back" not in ran.out
    assert "emceepee's configuration has, and Claude Code has not: foo." in ran.err


def test_a_server_that_was_put_back_and_moved_once_more_comes_back_once_more(
    cli: Cli, claude: Claude
):
    claude.write(user={"foo": FOO}, local={"near": FOO})
    for _ in range(3):
        moved_and_put_back(cli)
        assert (claude.user, claude.local) == ({"foo": FOO}, {"near": FOO})


def test_servers_come_back_also_after_emceepee_was_registered_again(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    cli.run("uninstall", "claude-code").well()
    cli.run("install", "claude-code").well()
    assert claude.user.keys() == {"emceepee"}
    cli.run(*RESTORE).well()
    assert claude.user == {"foo": FOO}


def test_servers_come_back_also_after_emceepee_was_removed_by_hand(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    claude.write(user={}, local={})
    cli.run(*RESTORE).well()
    assert claude.user == {"foo": FOO}


def test_the_file_as_it_was_before_a_restore_is_named(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    before = claude.path.read_text()
    ran = cli.run(*RESTORE).well()
    (named,) = [line for line in ran.out.splitlines() if line.startswith("The file as it was: ")]
    assert Path(named.removeprefix("The file as it was: ")).read_text() == before


def test_servers_come_back_also_where_older_backups_cannot_be_kept(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    claude.path.with_name(".claude.json.bak.2").mkdir()  # so one more backup cannot be made
    ran = cli.run(*RESTORE).well()
    assert claude.user == {"foo": FOO}
    assert f"The file as it was: {claude.path}.bak\n" in ran.out


def test_names_that_would_steer_a_terminal_are_shown_as_text(cli: Cli, claude: Claude):
    claude.project = cli.home / "project\n\x1b[2J"
    claude.project.mkdir()
    cli.monkeypatch.chdir(claude.project)
    claude.write(user={}, local={"foo": FOO})
    ran = moved_and_put_back(cli)
    assert f"foo (local, {cli.home}/project\\n\\x1b[2J)." in ran.out


def moved_list(cli: Cli) -> Path:
    return cli.home / ".claude.json.moved.json"


def test_the_list_of_moved_servers_has_no_secrets_and_goes_with_a_restore(cli: Cli, claude: Claude):
    secret = {**FOO, "env": {"TOKEN": SECRET}}
    claude.write(user={"foo": secret}, local={"near": secret})
    cli.run("config", "import", "claude-code", "--replace", "--dry-run").well()
    assert not moved_list(cli).exists()
    cli.run("config", "import", "claude-code", "--replace").well()
    local = ["projects", str(claude.project), "mcpServers", "near"]
    assert json.loads(moved_list(cli).read_text()) == [local, ["mcpServers", "foo"]]
    assert moved_list(cli).stat().st_mode & 0o777 == 0o600
    cli.run("uninstall", "claude-code").well()
    assert moved_list(cli).exists()
    cli.run(*RESTORE).well()
    assert not moved_list(cli).exists()


@pytest.mark.parametrize("listed", ["", "{", "[1]", '{"foo": 1}'])
def test_a_list_of_moved_servers_that_cannot_be_read_puts_nothing_back(
    cli: Cli, claude: Claude, listed: str
):
    claude.write(user={"foo": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    moved_list(cli).write_text(listed)
    ran = cli.run(*RESTORE).well()
    assert claude.user == {}
    assert "emceepee's configuration has, and Claude Code has not: foo." in ran.err


def test_a_server_that_the_person_removed_before_an_import_stays_away(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO, "bar": FOO}, local={})
    cli.run("install", "claude-code").well()  # its backup has both
    cli.run("config", "add", "foo", "--", "foo").well()
    claude.write(user={"bar": FOO}, local={})
    cli.run("config", "import", "claude-code", "--replace").well()
    cli.run(*RESTORE).well()
    assert claude.user == {"bar": FOO}


def test_a_server_is_put_back_as_the_newest_backup_has_it(cli: Cli, claude: Claude):
    new = {**FOO, "args": ["new"]}
    for entry in (FOO, new):
        claude.write(user={"foo": entry}, local={})
        cli.run("config", "import", "claude-code", "--replace").well()
        cli.run("config", "remove", "foo").well()
    cli.run("config", "add", "foo", "--", "foo").well()
    cli.run(*RESTORE).well()
    assert claude.user == {"foo": new}


def test_a_server_that_came_back_by_hand_is_not_listed_twice(cli: Cli, claude: Claude):
    for _ in range(2):
        claude.write(user={"foo": FOO}, local={})
        cli.run("config", "import", "claude-code", "--replace").well()
    assert json.loads(moved_list(cli).read_text()) == [["mcpServers", "foo"]]


def test_where_the_list_cannot_be_written_an_import_moves_nothing(cli: Cli, claude: Claude):
    claude.write(user={"foo": FOO}, local={})
    moved_list(cli).mkdir()
    cli.run("config", "import", "claude-code", "--replace").said("cannot be read")
    assert claude.user == {"foo": FOO}


def test_a_configuration_of_its_own_tells_what_was_moved(cli: Cli):
    client = CLIENTS["cursor"]
    path = filled(client, cli)
    other = cli.home / "other.json"
    cli.run("config", "import", "cursor", "--replace", "--config", str(other)).well()
    cli.run("uninstall", "cursor", "--restore").well()
    assert servers(client, path).keys() == {"time", "gh"}


def test_where_nothing_was_moved_nothing_comes_back(cli: Cli):
    client = CLIENTS["cursor"]
    path = filled(client, cli)
    before = path.read_text()
    cli.run("install", "cursor").well()
    assert "none to put back" in cli.run("uninstall", "cursor", "--restore").well().err
    assert path.read_text() == before


def test_where_the_backups_are_gone_the_servers_are_named_and_what_to_do(cli: Cli):
    path = filled(CLIENTS["cursor"], cli)
    cli.run("config", "import", "cursor", "--replace").well()
    for backup in path.parent.glob("*.bak*"):
        backup.unlink()
    for words in (["--dry-run"], [], []):  # at the end it is not registered any more
        ran = cli.run("uninstall", "cursor", "--restore", *words).well()
        assert f"There is no backup of {path} with a server to put back." in ran.err
        assert "and Cursor has not: time, gh." in ran.err
        assert f"the command or the URL that {cli.config} has for it" in ran.err
        assert "was moved" not in ran.out + ran.err


def test_a_backup_without_servers_is_not_taken_for_a_sign_that_none_was_moved(cli: Cli):
    path = filled(CLIENTS["cursor"], cli)
    cli.run("config", "import", "cursor", "--replace").well()
    for backup in path.parent.glob("*.bak*"):
        backup.unlink()
    cli.run("install", "cursor", "--env", "A=b").well()
    said = cli.run("uninstall", "cursor", "--restore").well().err
    assert f"There is no backup of {path} with a server to put back." in said
    assert "time, gh" in said


# Variables for the registration


@every_client
def test_variables_are_written_into_the_registration(cli: Cli, client: Client):
    path = filled(client, cli)
    shown = cli.run("install", client.key, "--env", f"TOKEN={SECRET}", "--dry-run").well()
    assert SECRET not in shown.out + shown.err
    ran = cli.run("install", client.key, "--env", f"TOKEN={SECRET}", "-e", "B=c=d").well()
    assert SECRET not in ran.out + ran.err
    env = servers(client, path)["emceepee"]["env"]
    assert (env["TOKEN"], env["B"]) == (SECRET, "c=d")
    assert env["PATH"].startswith("/usr/bin")
    # Registered anew, it keeps those that are not given again.
    cli.run("install", client.key, "--env", "B=e").well()
    env = servers(client, path)["emceepee"]["env"]
    assert (env["TOKEN"], env["B"]) == (SECRET, "e")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--env", "TOKEN"], "expected NAME=VALUE"),
        (["--env", "=x"], "expected NAME=VALUE"),
        (["--env", "A=b", "--http", "http://127.0.0.1:1/mcp"], "--env"),
    ],
    ids=" ".join,
)
def test_what_is_no_variable_for_a_registration_changes_nothing(
    cli: Cli, words: list[str], said: str
):
    path = filled(CLIENTS["cursor"], cli)
    before = path.read_text()
    cli.run("install", "cursor", *words).said(said)
    assert path.read_text() == before
