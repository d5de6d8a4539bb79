"""`emceepee doctor` on every kind of trouble: what it finds, and whether its advice works."""

import json
import re
import shlex
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import Draft202012Validator

from tests.e2e.cli_harness import EMCEEPEE, WAIT_S, Home, Ran, Screen
from tests.e2e.client import command, http_server, received_by_server, until
from tests.e2e.harness import free_port
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange
from tests.peers import SERVERS, peer_python, plain, rude

TOKEN = "tok-8d1f6c2b9a7e4f30"

Checks = dict[str, dict[str, Any]]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def checks(home: Home, *arguments: str, code: int, **env: str) -> Checks:
    """The checks of servers, by the name of each."""
    ran = await home.run("doctor", "--json", *arguments, **env)
    assert ran.code == code, (ran.out, ran.err)
    assert ran.err == ""
    found = json.loads(ran.out)["checks"]
    return {check["id"].removeprefix("backend."): check for check in found}


async def one(home: Home, entry: dict[str, Any], *arguments: str, code: int, **env: str) -> Any:
    """What is found of a single server."""
    home.write({"it": entry})
    return (await checks(home, "it", *arguments, code=code, **env))["it"]


def commands(check: dict[str, Any]) -> list[str]:
    """The commands of a remedy, each of which stands on a line of its own."""
    lines = check["remediation"].split("\n")
    return [line.removeprefix("  ") for line in lines if line.startswith("  ")]


def shell(home: Home, line: str, **env: str) -> Ran:
    """What a person gets who pastes that line into their shell, where `emceepee` is a command."""
    (home.path / "bin").mkdir(exist_ok=True)
    script(home.path / "bin" / "emceepee", f'exec {shlex.join(EMCEEPEE)} "$@"')
    environ = home.environ(**env)
    environ["PATH"] = f"{home.path / 'bin'}:{environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=home.path,
        env=environ,
        timeout=WAIT_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


@asynccontextmanager
async def locked(status: int = 401) -> AsyncIterator[McpServer]:
    """A server that wants a token."""

    async def guard(exchange: Exchange) -> bool:
        if exchange.headers.get("authorization") == f"Bearer {TOKEN}":
            return False
        await exchange.reply(status, {"error": "a token is wanted"})
        return True

    async with mcp_server() as server:
        server.before = guard
        yield server


def hanging(home: Home) -> dict[str, Any]:
    return command(rude("silent"), env={"FIXTURE_LOG": str(home.path / "hangs.jsonl")})


@asynccontextmanager
async def troubled(home: Home) -> AsyncIterator[None]:
    """One server of each kind."""
    async with http_server() as url, locked() as guarded:
        home.write(
            {
                "well": command(plain()),
                "web": {"url": url},
                "missing": {"command": "no-such-command"},
                "exits": command(rude("exit-at-once", "3")),
                "noisy": command(rude("banner")),
                "hangs": hanging(home),
                "refused": {"url": f"http://127.0.0.1:{free_port()}/mcp"},
                "locked": {"url": guarded.url},
                "old": command([sys.executable, str(SERVERS / "sdkold.py")]),
                "unset": command(plain(), env={"A": "${NOT_SET_HERE}"}),
                "off": command(plain(), disabled=True),
            }
        )
        yield


STATES = {
    "well": "ok",
    "web": "ok",
    "missing": "failed",
    "exits": "failed",
    "noisy": "warning",
    "hangs": "failed",
    "refused": "failed",
    "locked": "auth",
    "old": "failed",
    "unset": "broken",
    "off": "disabled",
}
STATUSES = STATES | {"unset": "failed", "off": "off"}
FOUND = {
    "missing": "The command 'no-such-command' was not found.",
    "exits": "Exited with code 3. It ended before it answered initialize.",
    "noisy": "Works, but prints to stdout, where only MCP belongs: 'Rude server 1.0, listening on "
    "stdio'.",
    "hangs": "Did not answer initialize within 8 s.",
    "refused": "Could not be reached: the connection was refused.",
    "locked": "Answered with HTTP status 401 Unauthorized: a token is wanted",
    "old": "Exited with code 1. It ended before it answered initialize.",
    "unset": "Its entry is broken: mcpServers.unset.env.A needs the environment variable "
    "NOT_SET_HERE, which is not set.",
    "off": "Disabled in the configuration.",
}


async def test_all_kinds_of_trouble_in_one_table(home: Home):
    async with troubled(home):
        ran = await home.run("doctor", "--timeout", "8")
    assert ran.code == 4
    assert ran.err == ""
    lines = ran.out.splitlines()
    assert lines[0].split("\t") == ["WHAT", "STATE", "FOUND"]
    rows = {row[0]: row[1:] for line in lines if len(row := line.split("\t")) == 3}
    assert {name: state for name, (state, _) in rows.items() if name in STATES} == STATES
    assert {name: rows[name][1] for name in FOUND} == FOUND
    for name in ("well", "web"):
        assert rows[name][1].startswith("39 tools, 2 resources, 1 resource template, 2 prompts; ")
        assert " ms, round trip " in rows[name][1]
        assert "; MCP 20" in rows[name][1]
        assert "legacy" not in rows[name][1], "a healthy server is not outdated"
    ill = [name for name, state in STATES.items() if state in ("failed", "auth", "broken")]
    verdict = dict(part.split(": ") for part in lines[-1].removesuffix(".").split(". "))
    failed = verdict.pop("Failed").split(", ")
    assert verdict == {"Broken": "unset", "Credentials refused": "locked"}
    assert sorted([*failed, "unset", "locked"]) == sorted(ill)
    for name in ill:
        advice = ran.out.partition(f"\n{name}: {STATES[name]}\n")[2]
        assert "  → " in advice.split(": failed\n")[0], name
    assert "    rude: cannot start: the license file is missing\n" in ran.out
    assert "No module named 'mcp.server.fastmcp'" in ran.out
    assert "\x1b" not in ran.out


async def test_the_report_is_what_its_schema_says(home: Home):
    schema = json.loads((await home.run("doctor", "--schema")).well().out)
    Draft202012Validator.check_schema(schema)
    judge = Draft202012Validator(schema)
    async with troubled(home):
        ran = await home.run("doctor", "--json", "--timeout", "8")
    assert ran.code == 4
    report = json.loads(ran.out)
    judge.validate(report)
    assert (report["schema_version"], report["overall_status"]) == (1, "failed")
    found: Checks = {check["id"]: check for check in report["checks"]}
    assert {name: found[f"backend.{name}"]["status"] for name in STATES} == STATUSES
    well = found["backend.well"]["details"]
    assert well["program"] == sys.executable
    assert well["counts"] == {"tools": 39, "resources": 2, "resource_templates": 1, "prompts": 2}
    assert {"era", "protocol_version", "server_info", "start_ms", "round_trip_ms"} <= set(well)
    assert found["backend.web"]["details"]["transport"] == "http"
    assert "Rude server 1.0" in found["backend.noisy"]["details"]["stdout_noise"][0]
    last_words = found["backend.old"]["details"]["stderr"]
    assert last_words[-1].startswith("ModuleNotFoundError: No module named 'mcp.server.fastmcp'")
    assert {"environment.emceepee", "environment.journal", "config.file"} <= set(found)
    wrong = {**report, "checks": [{**report["checks"][0], "status": "odd"}]}
    assert not judge.is_valid(wrong)


COMMAND_IN_A_SENTENCE = re.compile(
    r"emceepee (?:install|config|secrets|doctor|login|approve)|\b(?:rm|kill|chmod|pip) "
)


@pytest.mark.parametrize("columns", [80, 120])
async def test_every_command_is_on_a_line_of_its_own_and_can_be_copied_whole(
    home: Home, columns: int
):
    """Also where it is wider than the terminal, which then breaks it without a border."""
    async with troubled(home):
        (home.path / "config.json.bak").write_text(
            json.dumps({"mcpServers": {"s": {"command": "x", "env": {"A_TOKEN": TOKEN}}}})
        )
        report = json.loads((await home.run("doctor", "--json", "--timeout", "8")).out)
        screen = await anyio.to_thread.run_sync(shown, home, columns)
    # What other tests leave behind on this machine is not the same a second later.
    lasting = [one for one in report["checks"] if one["id"] != "environment.leftovers"]
    wrong = [check for check in lasting if check["remediation"]]
    lines = screen.text.split("\n")
    named = [line for check in wrong for line in commands(check)]
    assert f"rm {home.path}/config.json.bak" in named
    assert any(line.startswith("emceepee install ") for line in named)
    assert max(map(len, named)) > 80
    assert [line for line in named if line not in lines] == []
    for check in wrong:
        prose = [line for line in check["remediation"].split("\n") if not line.startswith("  ")]
        quoted = re.sub("`[^`]*`", "", " ".join(prose))
        assert not COMMAND_IN_A_SENTENCE.search(quoted), check["remediation"]


def shown(home: Home, columns: int) -> Screen:
    with home.screen("doctor", "--timeout", "8", columns=columns) as screen:
        screen.wait()
    return screen


async def test_a_command_of_several_lines_can_be_copied_line_by_line(home: Home):
    entry = command(["/bin/sh", "-c", "echo one >&2\n  echo two >&2\nexit 3"])
    home.write({"it": entry})
    ill = await one(home, entry, code=4)
    assert shell(home, "\n".join(commands(ill))).err == "one\ntwo\n"


async def test_every_server_is_tried_while_others_hang(home: Home):
    """The one that works waits until all that hang have started: in a row none would."""
    started = [home.path / f"started-{n}" for n in range(3)]
    hang = "echo $$ >> $1; exec sleep 600"
    wait = (
        'while [ "$#" -gt 2 ]; do until [ -s "$1" ]; do sleep 0.02; done; '
        'kill -0 "$(cat "$1")" || exit 9; shift; done; exec "$@"'
    )
    servers = {
        f"hang-{n}": command(["/bin/sh", "-c", hang, "sh", str(file)])
        for n, file in enumerate(started)
    }
    last = command(["/bin/sh", "-c", wait, "sh", *map(str, started), *plain()])
    home.write({**servers, "last": last})
    found = await checks(home, "--timeout", "10", code=4)
    assert found["last"]["status"] == "ok", found["last"]
    assert [found[name]["status"] for name in servers] == ["failed"] * 3


# Advice that is followed


async def test_a_command_that_is_missing_is_installed(home: Home):
    ill = await one(home, {"command": "my-server"}, code=4)
    assert ill["remediation"] == (
        "Install it, or write its absolute path as `command` of it:\n  emceepee config edit"
    )
    made = script(home.path / "tools" / "my-server", f"exec {shlex.join(plain())}")
    assert (await one(home, {"command": str(made)}, code=0))["status"] == "ok"
    path = f"{made.parent}:{home.environ()['PATH']}"
    assert (await one(home, {"command": "my-server"}, code=0, PATH=path))["status"] == "ok"


async def test_a_path_that_does_not_exist_is_not_answered_with_the_advice_to_write_a_path(
    home: Home,
):
    ill = await one(home, {"command": "/opt/gone/my-server"}, code=4)
    assert ill["remediation"] == (
        "Install it, or write the path where it is now as `command` of it:\n  emceepee config edit"
    )


@pytest.mark.parametrize("runner", ["node", sys.executable])
@pytest.mark.parametrize("place", ["/nope/index.js", "nope/index.js"])
async def test_a_script_that_is_not_there_is_named(home: Home, runner: str, place: str):
    ill = await one(home, command([runner, place], cwd=str(home.path)), code=4)
    assert ill["remediation"] == (
        f"There is no file {home.path / place}: correct it in `args` of it:\n  emceepee config edit"
    )


async def test_a_module_that_a_script_misses_is_none_of_its_arguments(home: Home):
    words = """console.error("Error: Cannot find module './main.js'"); process.exit(1)"""
    main = home.path / "main.js"
    home.path.mkdir()
    main.write_text(words)
    ill = await one(home, command(["node", str(main)]), code=4)
    assert ill["remediation"].startswith("Its modules are incomplete")


async def test_a_command_that_is_a_whole_line_is_told_to_be_taken_apart(home: Home):
    ill = await one(home, {"command": "sh -c @scope/x"}, code=4)
    assert ill["remediation"] == (
        "The words after sh belong in `args`, not in quotes together with it:\n"
        "  emceepee config edit"
    )


async def test_a_runner_that_is_missing_is_named_with_what_brings_it(home: Home):
    empty = home.path / "nothing"
    ill = await one(home, {"command": "npx", "args": ["-y", "x"]}, code=4, PATH=str(empty))
    assert ill["remediation"].startswith("Install Node.js, which brings npx, or write")
    assert ill["details"]["path"] == str(empty)


async def test_a_server_that_exits_says_why_when_run_by_hand(home: Home):
    ill = await one(home, command(rude("exit-at-once", "3"), env={"SOME": "thing"}), code=4)
    assert "Run it by hand to see why, with what is not shown here put in:" in ill["remediation"]
    (line,) = commands(ill)
    assert line.startswith("SOME=… ")
    by_hand = shell(home, line)
    assert by_hand.code == 3
    assert by_hand.err == "rude: cannot start: the license file is missing\n"


async def test_a_directory_is_part_of_what_is_run_by_hand(home: Home):
    place = home.path / "a place"
    place.mkdir(parents=True)
    entry = command(["/bin/sh", "-c", "pwd >&2; exit 1"], cwd=str(place))
    ill = await one(home, entry, code=4)
    assert ill["details"]["stderr"] == [str(place)]
    (line,) = commands(ill)
    assert shell(home, line).err == f"{place}\n"


async def test_a_server_that_prints_to_stdout_is_well_once_it_does_not(home: Home):
    ill = await one(home, command(rude("banner")), code=0)
    assert ill["status"] == "warning"
    assert "Have it log to stderr." in ill["remediation"]
    quiet = command(["/bin/sh", "-c", 'echo banner >&2; exec "$@"', "sh", *plain()])
    assert (await one(home, quiet, code=0))["status"] == "ok"


async def test_a_slow_first_start_is_well_with_more_time(home: Home):
    entry = command(["/bin/sh", "-c", 'sleep 2; exec "$@"', "sh", *plain()])
    ill = await one(home, entry, "--timeout", "0.5", code=4)
    assert ill["summary"] == "it did not answer initialize within 0.5 s."
    line, _ = commands(ill)
    assert line == "emceepee doctor it --timeout 120"
    assert "it\tok\t" in shell(home, line).well().out


async def test_a_server_that_hangs_is_shown_as_it_is_started(home: Home):
    ill = await one(home, command(["/bin/sh", "-c", "sleep 600"]), "--timeout", "0.5", code=4)
    assert ill["remediation"].endswith(
        "it must speak MCP on stdin and stdout:\n  /bin/sh -c 'sleep 600'"
    )


async def test_a_refused_port_is_well_once_the_server_runs(home: Home):
    async with mcp_server() as server:
        await server.http.stop()
        ill = await one(home, {"url": server.url}, code=4)
        assert ill["remediation"] == "Start the server, or check the host and port in the URL."
        await server.http.start()
        assert (await one(home, {"url": server.url}, code=0))["status"] == "ok"


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_have_a_code_and_a_line_that_mends_them(home: Home, status: int):
    async with locked(status) as server:
        ill = await one(home, {"url": server.url}, code=3)
        assert ill["status"] == "auth"
        (line,) = commands(ill)
        assert shell(home, line).code == 0
        still = (await checks(home, "it", code=3, TOKEN="not-the-right-one"))["it"]
        assert still["status"] == "auth"
        assert commands(still) == ["emceepee config edit"]
        well = (await checks(home, "it", code=0, TOKEN=TOKEN))["it"]
        assert well["status"] == "ok"


async def test_a_variable_that_is_not_set_is_set_or_given_a_default(home: Home):
    entry = command(plain(), env={"A": "${NOT_SET_HERE}"})
    ill = await one(home, entry, code=4)
    assert "Set NOT_SET_HERE where emceepee is started" in ill["remediation"]
    assert "${NOT_SET_HERE:-…}" in ill["remediation"]
    assert (await one(home, entry, code=0, NOT_SET_HERE="x"))["status"] == "ok"
    entry["env"] = {"A": "${NOT_SET_HERE:-y}"}
    assert (await one(home, entry, code=0))["status"] == "ok"


async def test_a_package_that_does_not_fit_is_well_with_one_that_does(home: Home):
    source = str(SERVERS / "sdkold.py")
    ill = await one(home, command([sys.executable, source]), code=4)
    assert ill["details"]["stderr"][0] == "Traceback (most recent call last):"
    assert ill["details"]["stderr"][-1].startswith("ModuleNotFoundError: No module named 'mcp.")
    install, line = commands(ill)
    assert install == "pip install 'mcp<2'"
    assert "ModuleNotFoundError" in shell(home, line).err
    well = await one(home, command([str(peer_python("py-old")), source]), code=0)
    assert well["status"] == "ok"
    assert well["details"]["counts"]["tools"] == 1


@pytest.mark.parametrize(
    "line",
    [
        "import mcp.types; mcp.types.NotThere",
        "from mcp import NotThere",
        "from mcp.server.lowlevel import Server; Server('it').list_tools()",
    ],
)
async def test_an_older_mcp_is_advised_where_something_of_mcp_is_missing(home: Home, line: str):
    ill = await one(home, command([sys.executable, "-c", line]), code=4)
    assert commands(ill)[0] == "pip install 'mcp<2'"


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("import os; os.environ.get('NOT_SET').strip()", "Run it by hand to see why:"),
        ("import os; os.not_there", "Run it by hand to see why:"),
        ("import not_there", "Its Python packages are incomplete"),
        ("from json import not_there", "Its Python packages are incomplete"),
    ],
)
async def test_no_older_mcp_is_advised_where_mcp_is_not_the_cause(
    home: Home, line: str, advice: str
):
    ill = await one(home, command([sys.executable, "-c", line]), code=4)
    assert ill["remediation"].startswith(advice)
    assert "mcp<2" not in ill["remediation"]


async def test_a_desktop_finds_neither_the_path_nor_the_variables_of_a_shell(home: Home):
    made = script(home.path / "shell bin" / "only-in-a-shell", f"exec {shlex.join(plain())}")
    mine = {"PATH": f"{made.parent}:{home.environ()['PATH']}", "ONLY_IN_A_SHELL": "x"}
    entries = {
        "tool": {"command": made.name},
        "variable": command(plain(), env={"A": "${ONLY_IN_A_SHELL}"}),
    }
    home.write(entries)
    in_shell = await checks(home, "tool", "variable", code=0, **mine)
    assert [check["status"] for check in in_shell.values()] == ["ok", "ok"]
    bare = await checks(home, "--desktop-env", "tool", "variable", code=4, **mine)
    assert bare["tool"]["summary"] == "The command 'only-in-a-shell' was not found."
    assert bare["tool"]["details"]["path"] == "/usr/local/bin:/usr/bin:/bin"
    assert bare["tool"]["remediation"].startswith(f"Your shell finds it at {made}: write that path")
    assert "ONLY_IN_A_SHELL, which is not set" in bare["variable"]["summary"]
    assert "install CLIENT --env ONLY_IN_A_SHELL=VALUE" in bare["variable"]["remediation"]
    entries["tool"]["command"] = str(made)
    entries["variable"]["env"] = {"A": "${ONLY_IN_A_SHELL:-y}"}
    home.write(entries)
    mended = await checks(home, "--desktop-env", "tool", "variable", code=0, **mine)
    assert [check["status"] for check in mended.values()] == ["ok", "ok"]


# Around the servers


async def test_nothing_wrong_is_said_in_one_line_and_code_0(home: Home):
    home.write({"well": command(plain())})
    (await home.run("install", "cursor", "--force")).well()
    ran = (await home.run("doctor")).well()
    # Other tests on the same machine may kill a proxy and leave its servers for a moment.
    assert ran.out.splitlines()[-1] in ("All is well.", "Nothing failed. Warnings: leftovers.")
    assert "cursor\tok\tRegistered in Cursor" in ran.out


async def test_registrations_are_looked_at(home: Home):
    home.write({})
    none = (await checks(home, code=0))["registration.none"]
    assert none["status"] == "warning"
    assert (await home.run("install")).code == 0, "the remedy names a command that lists clients"
    (await home.run("install", "cursor", "--force")).well()
    assert (await checks(home, code=0))["registration.cursor"]["status"] == "ok"
    (file,) = home.path.rglob("mcp.json")
    document = json.loads(file.read_text())
    document["mcpServers"]["emceepee"]["command"] = "/gone/emceepee"
    document["mcpServers"]["emceepee"]["args"] = []
    file.write_text(json.dumps(document))
    gone = (await checks(home, code=1))["registration.cursor"]
    assert gone["status"] == "failed"
    assert "/gone/emceepee, which is not there" in gone["summary"]
    (line,) = commands(gone)
    assert shell(home, line).code == 0
    assert (await checks(home, code=0))["registration.cursor"]["status"] == "ok"
    file.write_text("{")
    broken = (await checks(home, code=0))["registration.cursor"]
    assert (broken["status"], broken["remediation"]) == ("warning", "Fix that file by hand.")


async def test_an_entry_in_which_a_question_outlives_the_call_is_named(home: Home):
    home.write({})
    (await home.run("install", "claude-code", "--force")).well()
    assert (await checks(home, code=0))["registration.claude-code"]["status"] == "ok"
    (file,) = home.path.rglob(".claude.json")
    document = json.loads(file.read_text())
    document["mcpServers"]["emceepee"]["timeout"] = 300_000
    file.write_text(json.dumps(document))
    found = await checks(home, code=0)
    assert "registration.none" not in found
    old = found["registration.claude-code"]
    assert old["status"] == "warning"
    assert "the timeout of an earlier version, 300000" in old["summary"]
    (line,) = commands(old)
    assert shell(home, line).code == 0
    assert (await checks(home, code=0))["registration.claude-code"]["status"] == "ok"


async def test_the_name_of_a_client_is_not_broken(home: Home):
    home.write({})
    (await home.run("install", "claude-desktop", "--force")).well()
    screen = await anyio.to_thread.run_sync(shown, home, 80)
    assert re.search(r"^claude-desktop +ok ", screen.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("client", "setting", "who"),
    [
        ("cursor", None, "the person"),
        ("cursor", "client", "the person"),
        ("cursor", "tools", "the model"),
        ("zed", "auto", "the model"),
        ("zed", "client", "nobody"),
    ],
)
async def test_it_says_who_is_asked_what_servers_ask(
    home: Home, client: str, setting: str | None, who: str
):
    home.write({}, **({} if setting is None else {"questions": setting}))
    (await home.run("install", client, "--force")).well()
    found = (await checks(home, code=0))[f"registration.{client}"]
    assert found["summary"].endswith(f" Questions of servers go to {who}.")
    assert found["details"]["questions_go_to"] == who


async def test_a_file_with_secrets_that_others_can_read_is_closed(home: Home):
    home.write({"it": command(plain(), env={"API_TOKEN": TOKEN})})
    home.config.chmod(0o644)
    found = (await checks(home, code=0))["config.file"]
    assert found["status"] == "warning"
    (line,) = commands(found)
    assert shell(home, line).code == 0
    assert (await checks(home, code=0))["config.file"]["status"] == "ok"


@pytest.mark.parametrize("what", ["file", "directory"])
async def test_a_configuration_that_others_can_write_is_closed(home: Home, what: str):
    home.write({"it": command(plain())})
    path = home.config if what == "file" else home.config.parent
    path.chmod(path.stat().st_mode | stat.S_IWOTH)
    found = (await checks(home, code=0))["config.file"]
    assert found["status"] == "warning"
    assert f"Every user of this machine can write {path}" in found["summary"]
    (line,) = commands(found)
    assert shell(home, line).code == 0
    assert (await checks(home, code=0))["config.file"]["status"] == "ok"


async def test_a_journal_that_cannot_be_written_is_said(home: Home):
    home.write({}, logging={"directory": str(home.config / "logs")})
    found = (await checks(home, code=0))["environment.journal"]
    assert found["status"] == "warning"
    assert found["remediation"].endswith("or set emceepee.logging.directory.")
    home.write({}, logging={"directory": str(home.path / "a" / "b")})
    assert (await checks(home, code=0))["environment.journal"]["status"] == "ok"


async def test_a_configuration_that_cannot_be_read_is_code_1(home: Home):
    home.write({})
    home.config.write_text('{"mcpServers": {')
    ran = await home.run("doctor")
    assert ran.code == 1
    assert "is not valid JSON at line 1" in ran.out
    assert "→ Fix it there" in ran.out
    found = (await checks(home, "it", code=1))["config.file"]
    assert found["status"] == "failed"
    home.config.unlink()
    ran = await home.run("doctor", "--json", "--config", str(home.path / "none.json"))
    assert ran.code == 1
    assert "does not exist" in ran.out


async def test_a_warning_of_the_configuration_is_not_a_failure(home: Home):
    home.write({"well": command(plain(), comand="typo")})
    found = (await checks(home, code=0))["config.file"]
    assert found["status"] == "warning"
    assert "comand" in found["summary"]
    assert "emceepee config check" in found["remediation"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["wel"], "Did you mean well?"),
        (["quite-other"], "There are: well."),
        (["--timeout", "0"], "--timeout"),
        (["--desktop-env", "--shell-env"], "give one of"),
        (["--timout", "1"], "--timeout"),
    ],
    ids=str,
)
async def test_a_mistake_in_the_words_is_code_2(home: Home, arguments: list[str], words: str):
    home.write({"well": command(plain())})
    ran = (await home.run("doctor", *arguments)).said(words)
    assert ran.code == 2
    assert ran.out == ""


async def test_only_the_named_are_tried(home: Home):
    log = home.path / "received.jsonl"
    home.write({"a": command(plain(), env={"FIXTURE_LOG": str(log)}), "b": command(plain())})
    assert list(await checks(home, "b", code=0)) == ["b"]
    assert not log.exists()


async def test_a_server_that_is_slow_to_list_counts_as_failed_and_is_gone(home: Home):
    ill = await one(home, command(rude("silent-after-init")), "--timeout", "0.5", code=4)
    assert ill["status"] == "failed"
    assert ill["remediation"]


async def test_stubborn_servers_are_gone_after_it(home: Home):
    home.write({"stubborn": command(rude("stubborn")), "child": command(plain())})
    assert (await home.run("doctor", "stubborn", "child")).code == 0


@pytest.mark.parametrize("arguments", [[], ["--json"]], ids=["table", "json"])
async def test_an_interrupt_ends_it_quietly_with_all_it_started(home: Home, arguments: list[str]):
    home.write({"hangs": hanging(home), "stubborn": command(rude("stubborn"))})
    process = home.start("doctor", *arguments)
    log = home.path / "hangs.jsonl"
    await until(lambda: received_by_server(log))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert err == b""
    assert b"hangs\t" not in out
    if arguments:
        report = json.loads(out)
        assert report["interrupted"] is True
        assert "backend.hangs" not in [check["id"] for check in report["checks"]]
    else:
        assert b"Interrupted. Not finished: hangs" in out
    assert home.left_over() == []
