"""`emceepee config`: what it shows, what it writes, and what it keeps to itself."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.config.clients import CLIENTS, Client
from emceepee_stdio.config.load import load_file
from emceepee_stdio.tools.server_tools import AddServer, _config_line
from tests.e2e.cli_harness import Cli

SECRETS = {
    "header": "Bearer hdr-5f3759df5f3759df",
    "env": "env-9e3779b97f4a7c15",
    "argv": "arg-c6a4a7935bd1e995",
    "user": "usr-ff51afd7ed558ccd",
    "query": "qry-c4ceb9fe1a85ec53",
}

every_client = pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, monkeypatch, capsys)


def write(cli: Cli, document: object) -> str:
    cli.config.parent.mkdir(parents=True, exist_ok=True)
    text = document if isinstance(document, str) else json.dumps(document, indent=2)
    cli.config.write_text(text)
    return text


def entries(cli: Cli) -> dict[str, object]:
    return json.loads(cli.config.read_text())["mcpServers"]


def planted(cli: Cli) -> None:
    write(
        cli,
        {
            "mcpServers": {
                "web": {
                    "url": f"https://u:{SECRETS['user']}@example.com/mcp?api_key={SECRETS['query']}",
                    "headers": {"X-Whatever": SECRETS["header"], "X-Ref": "Bearer ${NOPE}"},
                },
                "tool": {
                    "command": "npx",
                    "args": ["-y", "thing", "--token", SECRETS["argv"]],
                    "env": {"GITHUB_TOKEN": SECRETS["env"], "LANG": "C"},
                },
                "zed": {"command": {"path": "npx", "args": ["--password", SECRETS["argv"]]}},
                "off": {"command": "x", "disabled": True},
                "odd": 1,
            },
            "emceepee": {"timeouts": {"call_ms": 5}},
        },
    )


def test_the_path_is_shown_and_a_variable_moves_it(cli: Cli):
    assert cli.run("config", "path").well().out == f"{cli.config}\n"
    cli.monkeypatch.setenv("EMCEEPEE_CONFIG", "/o/c.json")
    assert cli.run("config", "path").well().out == "/o/c.json\n"


def test_a_server_is_added_shown_checked_and_removed(cli: Cli):
    cli.run("config", "add", "time", "--env", "A=b=c", "--", "uvx", "mcp-time", "--env", "x").well()
    assert entries(cli) == {
        "time": {"command": "uvx", "args": ["mcp-time", "--env", "x"], "env": {"A": "b=c"}}
    }
    cli.run(
        *("config", "add", "web", "--url", "https://example.com/mcp"),
        *("--header", "X-Key: a: b", "--lazy"),
    ).well()
    assert entries(cli)["web"] == {
        "url": "https://example.com/mcp",
        "headers": {"X-Key": "a: b"},
        "lazy": True,
    }
    assert [server.name for server in load_file(cli.config, environ={}).servers] == ["time", "web"]
    shown = cli.run("config", "show").well().out.splitlines()
    assert shown == [
        str(cli.config),
        "NAME\tSTATE\tCOMMAND OR URL",
        "time\tusable\tuvx mcp-time --env x",
        "web\tusable\thttps://example.com/mcp",
    ]
    assert cli.run("config", "check").well().out == "2 usable servers.\n"
    cli.run("config", "remove", "time").well()
    assert list(entries(cli)) == ["web"]
    assert "time" in json.loads(cli.config.with_name("config.json.bak").read_text())["mcpServers"]


@pytest.mark.parametrize("start", ["eager", "auto", "lazy"])
def test_an_added_server_starts_when_it_is_said(cli: Cli, start: str):
    cli.run("config", "add", "time", "--start", start, "--", "uvx", "mcp-time").well()
    assert entries(cli)["time"] == {"command": "uvx", "args": ["mcp-time"], "start": start}
    [server] = load_file(cli.config, environ={}).servers
    assert server.start == start


def test_a_server_is_not_told_two_times_to_start(cli: Cli):
    both = ("--lazy", "--start", "auto")
    cli.run("config", "add", "t", *both, "--", "uvx").said("--lazy is --start lazy")
    cli.run("config", "add", "t", "--start", "soon", "--", "uvx").said("'eager', 'auto', 'lazy'")
    assert not cli.config.exists()


def test_the_line_that_the_product_prints_works(cli: Cli):
    line = _config_line(
        AddServer(
            name="my tool", command="npx", args=["-y", "a b"], env={"MY_TOKEN": SECRETS["env"]}
        )
    )
    assert SECRETS["env"] not in line
    cli.monkeypatch.setenv("MY_TOKEN", SECRETS["env"])
    words = shlex.split(line)
    cli.process(*words[1:]).well()
    assert entries(cli) == {
        "my tool": {"command": "npx", "args": ["-y", "a b"], "env": {"MY_TOKEN": "${MY_TOKEN}"}}
    }
    (server,) = load_file(cli.config, environ={"MY_TOKEN": "x"}).servers
    assert server.env == {"MY_TOKEN": "x"}
    url = _config_line(AddServer(name="web", url="https://example.com/mcp", headers={"X-Key": "s"}))
    cli.run(*shlex.split(url)[1:]).said("The header X-Key has no value yet", "in the place of …")
    cli.run(*shlex.split(url.replace("…", "${KEY}"))[1:]).well()
    hidden = _config_line(AddServer(name="h", command="x", args=["--token", SECRETS["argv"]]))
    cli.run(*shlex.split(hidden)[1:]).said("[redacted]", "Write the real value")


def test_what_is_written_keeps_the_rest_of_the_file(cli: Cli):
    text = '{\n    "odd": [1,   2],\n    "mcpServers": {\n        "a": {"command": "a"}\n    }\n}'
    write(cli, text)
    cli.run("config", "add", "b", "--", "x").well()
    added = cli.config.read_text()
    assert added.startswith('{\n    "odd": [1,   2],\n    "mcpServers": {\n        "a": {"command"')
    cli.run("config", "remove", "b").well()
    assert cli.config.read_text() == text


def test_a_dry_run_shows_the_diff_and_writes_nothing(cli: Cli):
    diff = cli.run("config", "add", "a", "--dry-run", "--", "x").well().out
    assert diff.startswith(f"--- /dev/null\n+++ {cli.config}\n@@ ")
    assert cli.files() == {}
    text = write(cli, {"mcpServers": {"a": {"command": "x"}}})
    assert '-    "a": {' in cli.run("config", "remove", "a", "--dry-run").well().out
    assert cli.config.read_text() == text


def test_a_name_is_only_taken_over_when_that_is_asked_for(cli: Cli):
    cli.run("config", "add", "a", "--", "x").well()
    cli.run("config", "add", "a", "--", "y").said("named a already", "--replace")
    assert "Nothing to do" in cli.run("config", "add", "a", "--", "x").well().out
    cli.run("config", "add", "a", "--replace", "--", "y").well()
    assert entries(cli) == {"a": {"command": "y"}}


def test_a_server_in_a_list_is_replaced_and_removed_there(cli: Cli):
    write(cli, {"servers": [{"name": "a", "command": "x"}, {"name": "b", "command": "y"}]})
    cli.run("config", "add", "a", "--replace", "--", "z").well()
    cli.run("config", "remove", "b").well()
    assert json.loads(cli.config.read_text()) == {"servers": [{"name": "a", "command": "z"}]}


def test_a_server_that_is_replaced_keeps_its_rules_and_says_so(cli: Cli):
    kept = {"tools": {"close_*": "off"}, "expose": ["read_*"], "description": "Money."}
    reached = {"url": "https://a.example/mcp", "type": "sse", "headers": {"X-A": "1"}}
    write(cli, {"mcpServers": {"bank": {**reached, **kept, "lazy": True, "disabled": True}}})
    header = "Authorization: Bearer ${TOKEN}"
    new = ["config", "add", "bank", "--replace", "--url", "https://b.example/mcp"]
    ran = cli.run(*new, "--header", header, "--start", "auto").well()
    assert "Kept from the entry before: tools, expose, description." in ran.err
    headers = {"Authorization": "Bearer ${TOKEN}"}
    assert entries(cli)["bank"] == {
        "url": "https://b.example/mcp",
        "headers": headers,
        "start": "auto",
        **kept,
    }


def test_a_command_without_the_dashes_is_answered_with_the_line_to_type(cli: Cli):
    ran = cli.run("config", "add", "it", "--env", "A=b", "npx", "-y", "some-server", "a b")
    assert ran.code == 2
    assert not cli.config.exists()
    line = ran.said("Two dashes are missing").err.split("\n")[1].strip()
    assert line == "emceepee config add it --env A=b -- npx -y some-server 'a b'"
    cli.run(*shlex.split(line)[1:]).well()
    assert entries(cli) == {
        "it": {"command": "npx", "args": ["-y", "some-server", "a b"], "env": {"A": "b"}}
    }


@pytest.mark.parametrize("arguments", [["it", "--no-such"], ["--no-such", "it", "npx"]])
def test_an_option_before_the_command_is_not_taken_for_the_commands(cli: Cli, arguments: list[str]):
    cli.run("config", "add", *arguments).said("No such option: --no-such")


def test_paths_are_made_whole(cli: Cli):
    cli.monkeypatch.chdir(cli.home)
    cli.run("config", "add", "a", "--cwd", "work", "--", "./run", "./x").well()
    assert entries(cli)["a"] == {
        "command": str(cli.home / "run"),
        "args": ["./x"],
        "cwd": str(cli.home / "work"),
    }


def test_a_variable_that_is_not_set_is_a_word_and_no_failure(cli: Cli):
    ran = cli.run("config", "add", "a", "--env", "NOT_SET", "--", "x").well()
    assert "NOT_SET, which is not set" in ran.err
    assert entries(cli) == {"a": {"command": "x", "env": {"NOT_SET": "${NOT_SET}"}}}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["a"], 2, "either a command"),
        (["a", "--url", "https://x", "--", "y"], 2, "either a command"),
        (["a", "--url", "ftp://x"], 2, "must begin with http"),
        (["a", "--url", "https://x", "--env", "A=b"], 2, "are for a command"),
        (["a", "--url", "https://x", "--header", "odd"], 2, "'NAME: VALUE'"),
        (["a", "--header", "A: b", "--", "x"], 2, "--header is for --url"),
        (["a", "--env", "=b", "--", "x"], 2, "NAME=VALUE"),
        (["a" * 65, "--", "x"], 2, "printable characters"),
        (["emceepee", "--", "x"], 2, "emceepee: The name emceepee is reserved"),
        (["a", "--", "emceepee"], 2, "emceepee: a would start emceepee behind itself."),
        (["a", "--", "${"], 2, "neither ${NAME}"),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, arguments: list[str], code: int, words: str):
    assert cli.run("config", "add", *arguments).said(words).code == code
    assert cli.files() == {}


@pytest.mark.parametrize("text", ['{\n  "a" 1\n}', "{ /* note\n}", "[]", '{"mcpServers": 1}'])
def test_a_file_that_cannot_be_used_is_not_written_to(cli: Cli, text: str):
    write(cli, text)
    before = cli.files()
    for arguments in (["add", "a", "--", "x"], ["remove", "a"], ["show"], ["check"]):
        assert "[config_invalid]" not in cli.run("config", *arguments).said(str(cli.config)).err
    assert cli.files() == before


def test_a_server_that_is_not_there_has_a_near_one(cli: Cli):
    cli.run("config", "remove", "github").said("there is no server 'github'. There are: ")
    write(cli, {"mcpServers": {"github": {"command": "x"}}})
    cli.run("config", "remove", "githbu").said("Did you mean github?")


def test_a_secret_is_hidden_also_where_its_name_does_not_tell_and_a_reference_is_shown(cli: Cli):
    random, password = "Zq9wXv7Lk3Tn5Rb1Yp8M", "hunter2-correct-horse"
    entry = {
        "command": "db",
        "args": ["-p", password, "${PORT}"],
        "env": {"DB_PASSWORD": password, "PLAIN": random, "A_TOKEN": "${A_TOKEN}", "B": "${B}"},
    }
    write(cli, {"mcpServers": {"db": entry}})
    runs = [cli.run("config", *words) for words in (["show"], ["show", "--json"])]
    for ran in runs:
        assert random not in ran.out
        assert password not in ran.out
    (row,) = json.loads(runs[1].out)["servers"]
    assert row["entry"]["args"] == ["-p", "[redacted]", "${PORT}"]
    assert row["entry"]["env"]["B"] == "${B}"
    assert row["entry"]["env"]["A_TOKEN"] == "${A_TOKEN}"


def test_what_is_plainly_no_secret_is_shown_and_what_may_be_one_is_not(cli: Cli):
    harmless = {"AWS_REGION": "eu-central-1", "MODEL": "claude-3-5-sonnet-20241022", "LANG": "C"}
    hidden = {
        "AWS_ZONE": "hunter2-correct-horse",  # a secret elsewhere
        "API_VERSION": "x9f8e7d6c5b4a3f2e1d0",
        "SETTING": "eu-central-1-setting",
        "MODEL_TOKEN": "gpt-4",
        "B_TOKEN": "${B_TOKEN:-default-2024}",
    }
    shown = {"A_TOKEN": "${keyring:db.A_TOKEN}", "C_TOKEN": "${env:C_TOKEN}"}
    password = {"DB_PASSWORD": "hunter2-correct-horse"}
    entry = {"command": "db", "env": harmless | hidden | shown | password}
    entry["headers"] = {"Authorization": "Bearer ${keyring:db.x}", "X-Key": "${K:-quiet-river}"}
    write(cli, {"mcpServers": {"db": entry}})
    (row,) = json.loads(cli.run("config", "show", "--json").out)["servers"]
    env = row["entry"]["env"]
    assert env == harmless | shown | dict.fromkeys([*hidden, *password], "[redacted]")
    assert row["entry"]["headers"] == {
        "Authorization": "Bearer ${keyring:db.x}",
        "X-Key": "[redacted]",
    }


def test_secrets_are_hidden_wherever_the_configuration_is_shown(cli: Cli):
    planted(cli)
    runs = [cli.run("config", *words) for words in (["show"], ["show", "--json"], ["check"])]
    runs.append(cli.run("config", "check", "--json"))
    for ran in runs:
        for secret in SECRETS.values():
            assert secret not in ran.out + ran.err
            assert secret.split()[-1] not in ran.out + ran.err
    shown = json.loads(runs[1].out)
    rows = {row["name"]: row for row in shown["servers"]}
    assert rows["web"]["entry"]["headers"] == {
        "X-Whatever": "[redacted]",
        "X-Ref": "Bearer ${NOPE}",
    }
    assert rows["tool"]["entry"]["env"]["LANG"] == "C"
    assert {name: row["state"] for name, row in rows.items()} == {
        "web": "broken",
        "tool": "usable",
        "zed": "usable",
        "off": "off",
        "odd": "broken",
    }
    assert shown["settings"] == {"timeouts": {"call_ms": 5}}
    assert "odd: mcpServers.odd: expected an object" in runs[0].err
    assert "off\tdisabled\tx\n" in runs[0].out


def test_servers_are_listed_with_state_and_what_they_run_without_secrets(cli: Cli):
    planted(cli)
    text = cli.run("config", "list").well()
    shown = json.loads(cli.run("config", "list", "--json").well().out)
    assert text.out.splitlines() == [
        "NAME\tSTATE\tCOMMAND OR URL",
        "web\tbroken\thttps://[redacted]@example.com/mcp?api_key=[redacted]",
        "tool\tusable\tnpx -y thing --token '[redacted]'",
        "zed\tusable\tnpx --password '[redacted]'",
        "off\tdisabled\tx",
        "odd\tbroken\t",
    ]
    assert text.err == "See why: emceepee config check\n"
    assert (shown["schema_version"], shown["path"]) == (1, str(cli.config))
    assert [tuple(row.values()) for row in shown["servers"] if row["name"] == "tool"] == [
        ("tool", "usable", "npx -y thing --token '[redacted]'")
    ]
    write(cli, {})
    assert cli.run("config", "list").well().out.startswith("No servers yet. Add one: emceepee ")


@pytest.mark.parametrize("command", [["config", "list"], ["config", "show"], ["ls"]])
def test_a_typo_is_named_where_it_hides_the_servers(cli: Cli, command: list[str]):
    cli.config.parent.mkdir(parents=True)
    cli.config.write_text(json.dumps({"mcpServer": {"a": {"command": "x"}}}))
    ran = cli.run(*command).well()
    assert ran.err == (
        "warning: mcpServer is not a known key and is ignored; did you mean 'mcpServers'?\n"
    )
    assert "No servers yet." in ran.out


def test_a_check_names_every_problem_and_fails(cli: Cli):
    planted(cli)
    ran = cli.run("config", "check")
    assert ran.code == 1
    assert "broken: odd: " in ran.out
    assert "disabled: off: " in ran.out
    found = json.loads(cli.run("config", "check", "--json").out)
    assert found["ok"] is False
    assert [one["name"] for one in found["broken"]] == ["web", "odd"]
    assert (found["usable"], found["off"]) == (["tool", "zed"], ["off"])
    write(cli, {"mcpServers": {"off": {"command": "x", "disabled": True}}})
    assert json.loads(cli.run("config", "check", "--json").well().out)["ok"] is True
    write(cli, {"mcpServers": {"emceepee": {"command": "x"}}})
    assert (
        "skipped"
        in json.loads(cli.run("config", "show", "--json").well().out)["servers"][0]["reason"]
    )


def test_a_configuration_that_is_not_there_yet_is_empty(cli: Cli):
    ran = cli.run("config", "show").well()
    assert "(does not exist yet)" in ran.out
    assert "emceepee config add" in ran.out
    assert json.loads(cli.run("config", "show", "--json").well().out)["servers"] == []
    cli.run("config", "show", "--config", str(cli.home / "x.json")).said("does not exist")
    cli.run("config", "add", "a", "--config", str(cli.home / "x.json"), "--", "y").well()
    assert (cli.home / "x.json").exists()


def test_of_two_equal_keys_the_one_that_runs_is_shown_as_used_and_changed(cli: Cli):
    write(cli, '{"mcpServers": {"a": {"command": "first"}, "a": {"command": "last"}}}')
    ran = cli.run("config", "show").well()
    assert ran.out.split("\n")[2:4] == ["a\tusable\tlast", "a\tignored\tfirst"]
    assert "the last one is used" in ran.err
    rows = json.loads(cli.run("config", "show", "--json").well().out)["servers"]
    assert [row["state"] for row in rows] == ["usable", "ignored"]
    (server,) = load_file(cli.config, environ={}).servers
    assert server.command == "last"
    cli.run("config", "add", "a", "--replace", "--", "other").well()
    (server,) = load_file(cli.config, environ={}).servers
    assert server.command == "other"


def test_of_two_servers_of_a_name_in_a_list_the_first_is_shown_as_used(cli: Cli):
    write(cli, {"servers": [{"name": "a", "command": "x"}, {"name": "a", "command": "y"}]})
    rows = json.loads(cli.run("config", "show", "--json").well().out)["servers"]
    assert [(row["state"], row["entry"]["command"]) for row in rows] == [
        ("usable", "x"),
        ("ignored", "y"),
    ]


def test_the_schema_is_json(cli: Cli):
    assert json.loads(cli.run("config", "schema").well().out)["title"] == "emceepee configuration"


def client_file(client: Client, cli: Cli) -> Path:
    path = client.places("linux", {}, cli.home)[-1]
    path.parent.mkdir(parents=True, exist_ok=True)
    text = ""
    for name, entry in {
        "time": {"command": "uvx", "args": ["mcp-time"], "env": {"A": "1"}},
        "emceepee": {"command": "/old/emceepee", "args": ["serve"]},
        "bad": {"args": ["x"]},
    }.items():
        text = client.language.put(text, (client.section, name), entry)
    path.write_text(("# mine\n" if client.key == "codex" else "// mine\n") + text)
    return path


@every_client
def test_servers_are_taken_over_from_every_client(cli: Cli, client: Client):
    path = client_file(client, cli)
    before = path.read_text()
    ran = cli.run("config", "import", client.key).well()
    assert path.read_text() == before
    assert entries(cli) == {"time": {"command": "uvx", "args": ["mcp-time"], "env": {"A": "1"}}}
    rows = dict(line.split("\t", 1) for line in ran.out.splitlines() if "\t" in line)
    assert rows["time"].startswith("taken")
    assert rows["emceepee"].startswith("itself\tit is emceepee")
    assert rows["bad"].startswith("skipped\t")
    assert "neither command nor url" in rows["bad"]
    again = json.loads(cli.run("config", "import", client.key, "--json").well().out)
    assert {one["name"]: one["result"] for one in again["servers"]} == {
        "time": "there",
        "emceepee": "itself",
        "bad": "skipped",
    }


@every_client
def test_replacing_leaves_us_and_what_could_not_be_taken(cli: Cli, client: Client):
    path = client_file(client, cli)
    before = path.read_text()
    shown = cli.run("config", "import", client.key, "--replace", "--dry-run").well()
    assert f"--- {path}\n" in shown.out
    assert "time: would be taken" in shown.err
    assert (path.read_text(), cli.config.exists()) == (before, False)
    ran = cli.run("config", "import", client.key, "--replace").well()
    assert "now has emceepee and bad" in ran.out
    left = client.servers(path.read_text())
    assert sorted(left) == ["bad", "emceepee"]
    assert left["emceepee"] == client.entry(
        sys.executable, ["-m", "emceepee_stdio", "serve"], {"PATH": "/usr/bin:/bin"}
    )
    assert path.read_text().split("\n")[0].endswith(" mine")
    assert path.with_name(path.name + ".bak").read_text() == before


def test_replacing_leaves_only_us_when_all_was_taken(cli: Cli):
    path = cli.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"a": {"command": "x"}, "b": {"url": "https://x"}}}')
    cli.run("config", "import", "cursor", "--replace").well()
    assert list(json.loads(path.read_text())["mcpServers"]) == ["emceepee"]
    assert sorted(entries(cli)) == ["a", "b"]
    gone = cli.run("uninstall", "cursor").well()
    assert "Moved behind emceepee: a, b." in gone.err
    assert "emceepee uninstall cursor --restore" in gone.err
    cli.run("install", "cursor").well()
    cli.run("config", "remove", "a").well()
    cli.run("config", "remove", "b").well()
    assert cli.run("uninstall", "cursor").well().err == ""


@pytest.mark.parametrize("ours", [None, '{"mcpServers": {"b": {"command": "y"}}}'])
def test_replacing_changes_both_files_or_neither(cli: Cli, ours: str | None):
    path = cli.home / ".cursor" / "mcp.json"
    # Where the backup would be, so that the client's file cannot be written after ours was.
    path.with_name("mcp.json.bak").mkdir(parents=True)
    path.write_text('{"mcpServers": {"a": {"command": "x"}}}')
    if ours is not None:
        write(cli, ours)
    before = cli.files()
    cli.run("config", "import", "cursor", "--replace").said("Nothing was changed", str(path))
    assert cli.files() == before
    cli.run("config", "import", "cursor").well()
    assert "a" in entries(cli)


COMMAND = {"command": "mcp-server-time"}
REMOTE = {"url": "https://time.example/mcp"}


def imported(cli: Cli, ours: dict[str, object], theirs: dict[str, object]) -> str:
    """What `config import` says of a server that both have under one name."""
    write(cli, json.dumps({"mcpServers": {"time": ours}}))
    path = cli.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"mcpServers": {"time": theirs}}))
    ran = cli.run("config", "import", "cursor", "--json").well()
    return json.loads(ran.out)["servers"][0]["result"]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (COMMAND, {"type": "stdio", **COMMAND, "args": [], "env": {}}),
        ({**COMMAND, "tools": {"*": "ask"}, "expose": True, "start": "lazy"}, COMMAND),
        ({**COMMAND, "description": "d", "idle_stop_ms": 1, "restart": {"attempts": 1}}, COMMAND),
        ({**COMMAND, "env": {"K": "${keyring:time.K}"}}, {**COMMAND, "environment": {"K": "v"}}),
        (COMMAND, {**COMMAND, "autoApprove": ["now"], "timeout": 5, "disabled": False}),
        (REMOTE, {"type": "streamable-http", **REMOTE, "headers": {}}),
        ({**REMOTE, "transport": "http"}, {"type": "streamableHttp", **REMOTE}),
        ({**COMMAND, "tools": {"*": "off"}}, {**COMMAND, "tools": []}),
    ],
    ids=str,
)
def test_a_server_that_runs_as_ours_does_is_there(
    cli: Cli, ours: dict[str, object], theirs: dict[str, object]
):
    assert imported(cli, ours, theirs) == "there"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (COMMAND, {**COMMAND, "args": ["--utc"]}),
        (COMMAND, {**COMMAND, "env": {"TZ": "UTC"}}),
        (COMMAND, {**COMMAND, "envFile": ".env"}),
        (COMMAND, {**COMMAND, "cwd": "/srv"}),
        (COMMAND, {**COMMAND, "disabledTools": ["set"]}),
        (COMMAND, {**COMMAND, "disabledTools": "set"}),
        (REMOTE, {**REMOTE, "oauth": False}),
        ({**COMMAND, "disabled": True}, COMMAND),
        ({**REMOTE, "type": "http"}, {**REMOTE, "type": "sse"}),
        (REMOTE, {**REMOTE, "headers": {"A": "b"}}),
        (REMOTE, COMMAND),
    ],
    ids=str,
)
def test_a_server_that_runs_otherwise_is_another(
    cli: Cli, ours: dict[str, object], theirs: dict[str, object]
):
    assert imported(cli, ours, theirs) == "skipped"


def test_a_server_that_was_added_by_hand_does_not_run_twice_after_an_import(cli: Cli):
    cli.run("config", "add", "time", "--", "mcp-server-time").well()
    path = cli.home / ".claude.json"
    whole = {"mcpServers": {"time": {"type": "stdio", **COMMAND, "args": [], "env": {}}}}
    path.write_text(json.dumps(whole))
    cli.run("config", "import", "claude-code", "--replace").well()
    assert list(json.loads(path.read_text())["mcpServers"]) == ["emceepee"]
    assert list(entries(cli)) == ["time"]


def test_an_import_says_when_there_is_nothing(cli: Cli):
    cli.run("config", "import", "cursor").said("has no configuration at", "emceepee install")
    path = cli.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text("{}")
    ran = cli.run("config", "import", "cursor").well()
    assert "has no servers" in ran.out
    assert "Nothing was taken over." in ran.out
    assert not cli.config.exists()
    path.write_text("{")
    cli.run("config", "import", "cursor").said("is broken at line 1")


def test_a_directory_that_cannot_be_written_is_said(cli: Cli):
    (cli.home / ".config").write_text("in the way")
    cli.run("config", "add", "a", "--", "x").said("not a directory", "permissions")


def test_a_failure_nobody_thought_of_is_a_sentence_unless_debugging(cli: Cli):
    def fail(*_: object) -> None:
        raise KeyError(SECRETS["env"])

    cli.monkeypatch.setattr("emceepee_stdio.cli.config.default_path", fail)
    ran = cli.run("config", "path").said("an unexpected KeyError", "--debug")
    assert SECRETS["env"] not in ran.err
    with pytest.raises(KeyError):
        cli.run("--debug", "config", "path")


@pytest.mark.parametrize("arguments", [["--help"], ["config", "path"], ["install", "--json"]])
@pytest.mark.usefixtures("cli")
def test_nothing_heavy_is_loaded_for_little(arguments: list[str]):
    code = (
        "import sys\nfrom emceepee_stdio.__main__ import main\n"
        f"sys.argv = ['emceepee', *{arguments!r}]\n"
        "try:\n    main()\nfinally:\n"
        "    sys.stderr.write(' '.join({name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stderr.split())
    assert "emceepee_stdio" in loaded
    assert not loaded & {"mcp", "httpx2", "httpcore2"}
    if "--help" not in arguments:
        assert "rich" not in loaded


def test_an_address_without_its_option_is_taken_as_what_it_is(cli: Cli) -> None:
    cli.run("config", "add", "web", "https://example.com/mcp").well()
    assert entries(cli) == {"web": {"url": "https://example.com/mcp"}}


def test_adding_a_command_that_is_not_there_says_so_and_how_to_try_it_later(cli: Cli) -> None:
    ran = cli.run("config", "add", "a server", "--", "no-such-command").well()
    assert "There is no command no-such-command on the PATH" in ran.err
    assert "\n  emceepee doctor 'a server'\n" in ran.err
    for command in ("sh", "./later", "${PROGRAM:-sh}"):
        ran = cli.run("config", "add", "s", "--replace", "--", command).well()
        assert "There is no command" not in ran.err


@pytest.mark.parametrize("command", ["sh -c @scope/x", "/bin/sh -c x", "sh  -c 'x y'"])
def test_a_command_that_is_a_whole_line_is_told_to_be_taken_apart(cli: Cli, command: str) -> None:
    ran = cli.run("config", "add", "s", "--", command).well()
    first, *_ = command.split()
    assert f"The words after {first} belong in `args`, not in quotes together with it." in ran.err


def test_a_path_with_a_space_is_no_command_with_arguments(cli: Cli) -> None:
    for command in ("/no such/program", "no such"):
        ran = cli.run("config", "add", "s", "--replace", "--", command).well()
        assert "belong in `args`" not in ran.err
