"""What shells are offered to complete, by their own protocols."""

import shlex
import sys
from pathlib import Path

import anyio
import pytest

from tests.e2e.cli_harness import EMCEEPEE, WAIT_S, Home
from tests.e2e.client import command, received_by_server
from tests.peers import plain


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


async def offered(home: Home, line: str, shell: str = "bash") -> list[str]:
    """The candidates for the end of a line; nothing else may be said."""
    words = line.split(" ")
    protocol = {
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }
    ran = (await home.run(_EMCEEPEE_COMPLETE=f"complete_{shell}", **protocol[shell])).well()
    assert ran.err == ""
    return ran.out.split()


def write(home: Home, **servers: list[str]) -> Path:
    """A configuration with these servers; what they receive is in the file that is returned."""
    log = home.path / "received.jsonl"
    env = {"FIXTURE_LOG": str(log)}
    home.write({name: command(argv, env=env) for name, argv in servers.items()})
    return log


async def test_servers_are_offered_where_a_server_is_wanted(home: Home):
    write(home, time=plain(), timber=plain(), git=plain())
    for line in ("ls ti", "call ti", "doctor git ti", "config remove ti", "tail-logs --server ti"):
        assert await offered(home, f"emceepee {line}") == ["timber", "time"], line
    assert await offered(home, "emceepee ls g", "zsh") == ["_arguments", "'*:", ':(("git"))\'']
    assert await offered(home, "emceepee ls g", "fish") == ["git"]


async def test_servers_that_are_disabled_or_broken_are_offered_with_a_mark(home: Home):
    home.write({"time": command(plain(), disabled=True), "timber": {"command": 5}})
    assert await offered(home, "emceepee ls ti") == ["timber", "time"]
    fish = await offered(home, "emceepee ls ti", "fish")
    assert fish == ["timber", "broken", "time", "disabled"]
    assert '"time":"disabled"' in (await offered(home, "emceepee ls ti", "zsh"))[-1]


async def test_tools_are_those_of_the_last_run_and_no_server_is_started(home: Home):
    log = write(home, it=plain(), other=plain("--without", "prompts"))
    assert await offered(home, "emceepee call it ec") == []
    assert not log.exists()
    (await home.run("ls", "it")).well()
    before = len(received_by_server(log))
    assert await offered(home, "emceepee call it ec") == ["echo"]
    assert await offered(home, "emceepee prompt it g") == ["greet"]
    assert await offered(home, "emceepee config rules it ec") == ["echo"]
    assert await offered(home, "emceepee config rules it echo ") == ["allow", "ask", "off"]
    assert await offered(home, "emceepee call other ec") == []
    assert len(received_by_server(log)) == before


async def test_a_tool_that_is_off_is_not_offered_to_call(home: Home):
    home.write({"it": command(plain(), tools={"echo": "off"})})
    (await home.run("ls", "it")).well()
    assert await offered(home, "emceepee call it ec") == []
    assert await offered(home, "emceepee config rules it ec") == ["echo"]


async def test_names_that_a_shell_would_evaluate_are_not_offered(home: Home, tmp_path: Path):
    toolbox = tmp_path / "toolbox"
    evil = ["x$(touch it)", "x`id`", "x'y", 'x"y', r"x\$(id)", "x*", "x;y", "x:y", "x-fine"]
    toolbox.write_text("\n".join(evil))
    home.write({"it": command(plain("--toolbox", str(toolbox))), "x$(id)": command(plain())})
    (await home.run("ls", "it")).well()
    for shell in ("bash", "fish"):
        assert await offered(home, "emceepee call it x", shell) == ["x-fine"]
    assert '"x-fine"' in (await offered(home, "emceepee call it x", "zsh"))[-1]
    assert await offered(home, "emceepee ls x") == []


async def test_events_sessions_and_clients_are_offered(home: Home):
    write(home)
    logs = home.path / "logs"
    logs.mkdir()
    for name in (
        "emceepee-20260102T030405Z-7-01KAB.jsonl",
        "requests-20260102T030405Z-7-01KAC.jsonl",
    ):
        (logs / name).touch()
    events = await offered(home, "emceepee tail-logs --event task_")
    assert "task_failed" in events
    assert all(event.startswith("task_") for event in events)
    for line in ("tail-logs --session 01K", "trace --session 01K"):
        assert await offered(home, f"emceepee {line}") == ["01KAB", "01KAC"]
    for line in ("install cu", "uninstall cu", "config import cu"):
        assert await offered(home, f"emceepee {line}") == ["cursor"]


@pytest.mark.parametrize("text", ["{", "", '{"mcpServers": 3}', "\0"])
async def test_a_broken_configuration_offers_nothing_and_says_nothing(home: Home, text: str):
    home.write({})
    home.config.write_text(text)
    for line in ("emceepee ls ", "emceepee call it ", "emceepee config rules it e"):
        assert await offered(home, line) == []
    assert "doctor" in await offered(home, "emceepee doc")


async def test_what_bash_installs_completes_a_line(home: Home):
    """The script that `--install-completion` puts in place, in a real bash."""
    write(home, time=plain(), git=plain())
    shim = home.path / "bin" / "emceepee"
    shim.parent.mkdir(parents=True)
    shim.write_text(f'#!/bin/sh\nexec {shlex.join(EMCEEPEE)} "$@"\n')
    shim.chmod(0o755)
    path = {"PATH": f"{shim.parent}:{home.environ()['PATH']}"}
    script = (await home.run(_EMCEEPEE_COMPLETE="source_bash", **path)).well().out
    line = (
        'COMP_WORDS=(emceepee ls t); COMP_CWORD=2; _emceepee_completion emceepee; echo "$COMPREPLY"'
    )
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process(
            ["bash", "--norc", "-c", f"{script}\n{line}"], env=home.environ(**path)
        )
    assert (done.stdout, done.stderr) == (b"time\n", b"")


async def test_completing_loads_nothing_heavy(home: Home):
    write(home, it=plain())
    (await home.run("ls", "it")).well()
    completing = {
        "_EMCEEPEE_COMPLETE": "complete_bash",
        "COMP_WORDS": "emceepee\ncall\nit\nec",
        "COMP_CWORD": "3",
    }
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process(
            [sys.executable, "-X", "importtime", "-m", "emceepee_stdio"],
            env=home.environ(**completing),
        )
    assert done.stdout == b"echo\n"
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    heavy = {"mcp", "anyio", "httpx2", "asyncio", "regex", "rich", "pydantic"}
    assert heavy & {name.partition(".")[0] for name in loaded} == set()
    other_commands = {
        f"emceepee_stdio.cli.{name}"
        for name in ("config", "doctor.doctor", "clients.install", "ls")
    }
    assert other_commands & loaded == set()


async def test_words_before_the_one_that_is_completed_need_not_be_right(home: Home):
    """They are not checked: `--timeout` wants a number, and `ls` has no such option."""
    write(home, time=plain())
    assert await offered(home, "emceepee ls --timeout soon ti") == ["time"]
    assert await offered(home, "emceepee ls --nonsense ti") == ["time"]
    assert await offered(home, f"emceepee ls --config {home.config} ti") == ["time"]
