"""emceepee in each client's file: every client, every state of its file, every command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.config.clients import CLIENTS, Client
from tests.e2e.cli_harness import Cli
from tests.e2e.keyring_harness import keyring_environ

SECRET = "hunter2-hunter2"

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


def file_of(client: Client, cli: Cli) -> Path:
    path = client.places("linux", {}, cli.home)[-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    client.home(path, {}, cli.home).mkdir(parents=True, exist_ok=True)
    return path


def contents(client: Client) -> dict[str, str | None]:
    if client.key == "codex":
        return {
            "missing": None,
            "empty": "",
            "others": '# mine\nmodel = "x" # the best\n\n[mcp_servers.time]\ncommand = "uvx"\n'
            f'\n[mcp_servers.time.env]\nTOKEN = "{SECRET}"\n\n# last\n[profiles.a]\nmodel = "y"',
        }
    return {
        "missing": None,
        "empty": "{}",
        "others": f'// mine\n{{\n\t"theme": "dark", /* nice */\n\t"{client.section}": {{\n'
        f'\t\t// the time\n\t\t"time": {{"command": "uvx", "env": {{"TOKEN": "{SECRET}"}}}}, // x\n'
        '\t},\n\t"list": [1, 2,],\n}',
    }


def servers(client: Client, text: str) -> dict[str, Any]:
    document: Any = client.language.read(text)
    return document[client.section]


def patched(path: Path, diff: str, tmp_path: Path) -> bytes:
    """What `patch` makes of the file with this diff."""
    if shutil.which("patch") is None:
        pytest.skip("needs the command patch")
    copy = tmp_path / "patched"
    if path.exists():
        copy.write_bytes(path.read_bytes())
    subprocess.run(
        ["patch", "--quiet", "--binary", str(copy)], input=diff.encode(), check=True, timeout=20
    )
    return copy.read_bytes()


@pytest.mark.parametrize("state", ["missing", "empty", "others"])
@every_client
def test_registering_shows_does_renews_and_undoes(
    cli: Cli, client: Client, state: str, tmp_path_factory: pytest.TempPathFactory
):
    path, before = file_of(client, cli), contents(client)[state]
    if before is not None:
        path.write_bytes(before.encode())
    untouched = cli.files()

    shown = cli.run("install", client.key, "--dry-run").well()
    assert cli.files() == untouched
    is_exact = "Secrets are hidden" not in shown.err
    assert is_exact or state == "others"
    assert SECRET not in shown.out
    if is_exact:
        expected = patched(path, shown.out, tmp_path_factory.mktemp("patch"))

    cli.run("install", client.key).well()
    if is_exact:
        assert path.read_bytes() == expected
    text = path.read_text()
    entry = servers(client, text)["emceepee"]
    assert entry["command"] == str(Path(sys.executable).absolute())
    assert entry["args"] == ["-m", "emceepee_stdio", "serve"]
    assert entry["env"] == {"PATH": "/usr/bin:/bin"}
    others = {key: value for key, value in servers(client, text).items() if key != "emceepee"}
    assert others == (servers(client, before) if state == "others" and before else {})
    backup = path.with_name(path.name + ".bak")
    assert backup.exists() == (before is not None)

    installed = cli.files()
    assert "already" in cli.run("install", client.key).well().out
    assert cli.files() == installed

    cli.monkeypatch.setenv("PATH", "/opt/bin")
    assert "Renewed" in cli.run("install", client.key).well().out
    assert servers(client, path.read_text())["emceepee"]["env"] == {"PATH": "/opt/bin"}

    removal = cli.run("uninstall", client.key, "--dry-run").well().out
    assert removal.startswith(f"--- {path}\n")
    cli.run("uninstall", client.key).well()
    assert (path.read_bytes() if path.exists() else None) == (
        None if before is None else before.encode()
    )
    assert "not registered" in cli.run("uninstall", client.key).well().out


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("claude-code", ["timeout"]),
        (
            "codex",
            [
                "startup_timeout_sec",
                "tool_timeout_sec",
                "supports_parallel_tool_calls",
                "omit_tools_from",
            ],
        ),
    ],
)
def test_a_client_is_told_what_makes_it_work_well_and_the_person_why(
    cli: Cli, key: Any, settings: list[str]
):
    file_of(CLIENTS[key], cli)
    shown = cli.run("install", key, "--dry-run").well()
    for setting in settings:
        assert f"{setting}" in shown.out
        assert f"{setting}: " in shown.err


def test_what_a_person_chose_for_our_entry_stays_when_it_is_renewed(cli: Cli):
    codex = CLIENTS["codex"]
    path = file_of(codex, cli)
    cli.run("install", "codex").well()
    text = path.read_text().replace("tool_timeout_sec = 300", "tool_timeout_sec = 60")
    path.write_text(text.replace("args =", 'enabled_tools = ["list_tools"]\nargs ='))
    cli.monkeypatch.setenv("PATH", "/opt/bin")
    assert "Renewed" in cli.run("install", "codex").well().out
    entry = servers(codex, path.read_text())["emceepee"]
    assert entry["tool_timeout_sec"] == 60
    assert entry["enabled_tools"] == ["list_tools"]
    assert entry["env"] == {"PATH": "/opt/bin"}
    assert entry["startup_timeout_sec"] == 30


def test_a_timeout_that_an_earlier_version_wrote_is_raised_and_a_chosen_one_is_not(cli: Cli):
    code = CLIENTS["claude-code"]
    path = file_of(code, cli)
    for present, expected in ((300_000, 660_000), (120_000, 120_000)):
        cli.run("install", "claude-code").well()
        document = json.loads(path.read_text())
        document["mcpServers"]["emceepee"]["timeout"] = present
        path.write_text(json.dumps(document))
        renewed = cli.run("install", "claude-code").well()
        assert servers(code, path.read_text())["emceepee"]["timeout"] == expected
        assert ("timeout: 300000 became 660000." in renewed.err) == (present != expected)


TOKEN = "ghp_quietriverbank0123456789abcdefghij"


@pytest.mark.parametrize("key", ["claude-code", "codex", "zed"])
def test_a_secret_that_is_given_to_a_client_is_told_with_the_better_way(cli: Cli, key: Any):
    path = file_of(CLIENTS[key], cli)
    for name, value in keyring_environ(cli.home).items():
        cli.monkeypatch.setenv(name, value)
    given = ("--env", f"API_KEY={TOKEN}", "--env", "LANG=C")
    ran = cli.run("install", key, *given).well()
    assert TOKEN in path.read_text()
    line = f"Secrets in plain text in {path}: emceepee: env.API_KEY. To change that: "
    assert f"{line}emceepee uninstall {key}\n" in ran.err
    told = cli.run("install", key, *given, "--json").well()
    assert "env.API_KEY" in told.err
    assert json.loads(told.out)["client"] == key
    assert TOKEN not in ran.out + ran.err + told.out + told.err
    named = cli.run("install", key, "--name", "hub", *given).well()
    assert f" To change that: emceepee uninstall {key} --name hub\n" in named.err
    assert "plain text" not in cli.run("install", key, "--env", "LANG=C").well().err
    plain = cli.run("install", key, "--env", "API_KEY=${API_KEY}").well()
    assert "plain text" not in plain.err


def test_where_there_is_no_keyring_an_installation_does_not_propose_one(cli: Cli):
    file_of(CLIENTS["claude-code"], cli)
    cli.monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    ran = cli.run("install", "claude-code", "--env", f"API_KEY={TOKEN}").well()
    assert "secrets set" not in ran.err
    assert "${keyring:" not in ran.err
    assert "env.API_KEY. To change that: emceepee uninstall claude-code\n" in ran.err


@every_client
def test_a_broken_file_is_named_and_left_alone(cli: Cli, client: Client):
    path = file_of(client, cli)
    broken = f'[a]\nb = "{SECRET}\n' if client.key == "codex" else f'{{\n  "a" "{SECRET}"\n}}'
    path.write_text(broken)
    line = f"{path} is broken at line 2, column "
    for arguments in (["install"], ["install", "--dry-run"], ["uninstall"]):
        ran = cli.run(*arguments, client.key).said(line, "fix the file")
        assert ran.out == ""
        assert SECRET not in ran.err
    assert cli.files() == {str(path.relative_to(cli.home)): broken.encode()}


@every_client
def test_a_client_that_is_not_there_is_said_and_done_only_when_forced(cli: Cli, client: Client):
    cli.run("install", client.key).said("does not seem to be installed", "--force")
    assert cli.files() == {}
    ran = cli.run("install", client.key, "--dry-run").well()
    assert "does not seem to be installed" in ran.err
    assert ran.out.startswith("--- /dev/null\n")
    assert cli.files() == {}
    cli.run("install", client.key, "--force").well()
    assert len(cli.files()) == 1
    cli.run("uninstall", client.key).well()
    assert cli.files() == {}


@every_client
def test_the_real_command_does_the_same(cli: Cli, client: Client):
    path, before = file_of(client, cli), contents(client)["others"] or ""
    path.write_bytes(before.encode())
    shown = cli.process("install", client.key, "--dry-run").well()
    assert path.read_text() == before
    cli.process("install", client.key).well()
    assert path.read_text() != before
    assert all(f"+{line}" in shown.out for line in path.read_text().split("\n") if "PATH" in line)
    cli.process("uninstall", client.key).well()
    assert path.read_bytes() == before.encode()


def test_the_real_command_fails_with_a_sentence(cli: Cli):
    path = file_of(CLIENTS["cursor"], cli)
    path.write_text("{")
    ran = cli.process("install", "cursor").said("is broken at line 1, column 2", "Nothing was")
    assert ran.code == 1
    assert ran.err.count("\n") == 2  # the fact, and the next step


def test_the_clients_are_listed(cli: Cli):
    file_of(CLIENTS["cursor"], cli)
    cli.run("install", "cursor").well()
    file_of(CLIENTS["zed"], cli).write_text("{")
    file_of(CLIENTS["gemini"], cli)
    rows = {
        row["client"]: row for row in json.loads(cli.run("install", "--json").well().out)["clients"]
    }
    assert list(rows) == list(CLIENTS)
    assert rows["cursor"]["state"] == "registered"
    assert rows["cursor"]["names"] == ["emceepee"]
    assert rows["zed"]["state"] == "broken"
    assert rows["gemini"]["state"] == "not registered"
    assert rows["windsurf"]["state"] == "not installed"
    lines = cli.run("install").well().out.splitlines()
    assert lines[0] == "CLIENT\tSTATE\tFILE"
    assert len(lines) == len(CLIENTS) + 1


@pytest.mark.parametrize(
    "client", [one for one in CLIENTS.values() if one.programs], ids=lambda one: one.key
)
def test_a_client_with_a_command_on_the_path_is_installed_before_its_first_start(
    cli: Cli, client: Client, tmp_path_factory: pytest.TempPathFactory
):
    program = tmp_path_factory.mktemp("bin") / client.programs[0]
    program.write_text("#!/bin/sh\n")
    program.chmod(0o700)
    cli.monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    rows = {
        row["client"]: row for row in json.loads(cli.run("install", "--json").well().out)["clients"]
    }
    assert rows[client.key]["state"] == "not registered"
    cli.run("install", client.key).well()
    rows = {
        row["client"]: row for row in json.loads(cli.run("install", "--json").well().out)["clients"]
    }
    assert rows[client.key]["state"] == "registered"


def test_another_name_and_another_configuration(cli: Cli):
    path = file_of(CLIENTS["cursor"], cli)
    own = cli.home / "my config.json"
    ran = cli.run("install", "cursor", "--name", "hub", "--config", str(own)).well()
    add = f"emceepee config add --config '{own}' NAME -- COMMAND"
    assert f"{own} does not exist yet; `{add}` makes it." in ran.err
    entry = servers(CLIENTS["cursor"], path.read_text())["hub"]
    assert entry["args"][-3:] == ["serve", "--config", str(own)]
    cli.run("uninstall", "cursor").said("another name: hub", "--name hub")
    cli.run("uninstall", "cursor", "--name", "hub").well()
    assert not path.exists()
    cli.run("install", "cursor", "--name", " ").said("printable")


def test_the_configuration_of_the_shell_goes_with_the_entry(cli: Cli):
    path = file_of(CLIENTS["cursor"], cli)
    own = cli.home / "own.json"
    own.write_text("{}")
    cli.monkeypatch.setenv("EMCEEPEE_CONFIG", str(own))
    cli.run("install", "cursor").well()
    assert servers(CLIENTS["cursor"], path.read_text())["emceepee"]["args"][-1] == str(own)


def test_a_server_that_is_not_ours_keeps_its_name(cli: Cli):
    path = file_of(CLIENTS["cursor"], cli)
    text = '{"mcpServers": {"emceepee": {"command": "else"}}}'
    path.write_text(text)
    cli.run("install", "cursor").said("not emceepee", "--name")
    cli.run("uninstall", "cursor").said("not emceepee")
    assert path.read_text() == text


def test_a_client_that_refuses_comments_is_warned_about(cli: Cli):
    client = CLIENTS["claude-desktop"]
    file_of(client, cli).write_text(contents(client)["others"] or "")
    ran = cli.run("install", client.key).well()
    assert "may refuse this file: it has a comment in line 1" in ran.err
    assert "1 other server; to move it behind" in ran.err


def test_the_console_script_is_registered_by_its_whole_path(cli: Cli):
    path = file_of(CLIENTS["cursor"], cli)
    script = cli.home / ".cache" / "bin" / "emceepee"
    script.parent.mkdir(parents=True)
    script.write_text("")
    ran = cli.run("install", "cursor", script=script).well()
    assert "cache that may be cleared" in ran.err
    assert servers(CLIENTS["cursor"], path.read_text())["emceepee"]["command"] == str(script)


def test_the_newer_place_of_claude_desktop_on_windows_is_found(cli: Cli):
    client = CLIENTS["claude-desktop"]
    cli.monkeypatch.setattr(sys, "platform", "win32")
    first, last = client.places("win32", {}, cli.home)
    last.parent.mkdir(parents=True)
    cli.run("install", client.key).well()
    assert last.exists()
    assert not first.exists()
    first.parent.mkdir(parents=True)
    cli.run("install", client.key).well()
    assert first.exists()


def test_a_home_that_is_unknown_is_said(cli: Cli):
    def unknown() -> Path:
        raise RuntimeError

    cli.monkeypatch.setattr(Path, "home", unknown)
    cli.run("install", "cursor").said("home directory is unknown", "Set HOME")


@every_client
def test_a_client_can_be_led_to_a_running_front_and_away_again(client: Client, cli: Cli) -> None:
    path = file_of(client, cli)
    before = contents(client)["others"]
    path.write_text(before or "")
    url = "http://127.0.0.1:8080/mcp"
    ran = cli.run("install", client.key, "--http", url)
    if client.remote is None:
        why = (
            "has no variables"
            if client.key in ("zed", "lm-studio")
            else "cannot name a server behind a URL"
        )
        ran.said(f"The file of {client.title} {why}", f"emceepee install {client.key}")
        assert path.read_text() == before
        return
    told = " ".join(ran.well().err.split())
    assert "EMCEEPEE_HTTP_TOKEN" in told
    assert f"doctor --http {url}" in told
    entry = servers(client, path.read_text())["emceepee"]
    assert url in entry.values()
    assert "command" not in entry
    for key, setting in client.settings.items():
        assert entry[key] == setting.value
        assert f"{key}: {client.title}" in told
    assert "EMCEEPEE_HTTP_TOKEN" in json.dumps(entry)
    listed = json.loads(cli.run("install", "--json").well().out)["clients"]
    assert [row["client"] for row in listed if row["state"] == "registered"] == [client.key]
    cli.run("uninstall", client.key).well()
    assert path.read_text() == before


def test_a_setting_that_a_person_chose_stays_when_the_entry_turns_to_a_front(cli: Cli) -> None:
    codex = CLIENTS["codex"]
    path = file_of(codex, cli)
    cli.run("install", "codex", "-e", "COLOR=blue").well()
    path.write_text(path.read_text().replace("tool_timeout_sec = 300", "tool_timeout_sec = 99"))
    for url in ("http://127.0.0.1:8080/mcp", "http://127.0.0.1:9090/mcp"):
        cli.run("install", "codex", "--http", url).well()
        entry = servers(codex, path.read_text())["emceepee"]
        assert (entry["url"], entry["tool_timeout_sec"]) == (url, 99)
        assert not {"command", "args", "env"} & set(entry)


def test_what_is_no_address_of_a_front_changes_nothing(cli: Cli) -> None:
    path = file_of(CLIENTS["claude-code"], cli)
    cli.run("install", "claude-code", "--http", "8080").said("no address of an HTTP front")
    assert not path.exists()
