"""One server tried from the shell: what it offers, and what of it is called, read and filled in."""

import base64
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.cli_harness import EMCEEPEE, WAIT_S, Home
from tests.e2e.client import command, http_server
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_wire import Exchange
from tests.peers import everything, plain, time


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def fixture(home: Home, *options: str, **fields: Any) -> dict[str, Any]:
    log = {"FIXTURE_LOG": str(home.path / "received.jsonl")}
    return command(plain(*options), env=log, **fields)


def was_called(home: Home) -> bool:
    return "tools/call" in (home.path / "received.jsonl").read_text()


# What it offers


async def test_tools_are_listed_as_functions_and_no_text_is_cut_in_a_pipe(home: Home):
    home.write({"it": fixture(home)})
    rows = [line.split("\t") for line in (await home.run("ls", "it")).well().out.splitlines()]
    assert rows[0] == ["SERVER", "WHAT", "NAME", "DESCRIPTION"]
    assert ["it", "tool", "add(a: float, b: float)", "Add two numbers."] in rows
    assert ["it", "tool", "progress(steps: int, interval?: float)", "Report every step."] in (rows)
    assert ["it", "prompt", "greet(name: str)", "Greets"] in rows
    assert ["it", "resource", "fixture://one", "Some text"] in rows
    assert ["it", "resource template", "fixture://item/{id}", "item"] in rows
    ran = (await home.run("ls", "--", *everything())).well()
    (whole,) = [line for line in ran.out.splitlines() if "gzip-file-as-resource(" in line]
    assert whole.endswith("during the current session.")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_shows_a_sentence_for_each_tool_and_all_of_it_if_asked(home: Home, columns: int):
    home.write({"it": command(everything())})
    with home.screen("ls", "it", columns=columns) as screen:
        assert screen.wait() == 0
    assert screen.fits()
    lines = screen.text.replace("\r", "\n").split("\n")
    assert "Tools" in lines
    at = lines.index("  get-sum(a: float, b: float)")
    assert lines[at + 1] == "      Returns the sum of two numbers"
    assert "  args-prompt(city: str, state?: str)" in lines
    assert "      Compresses a single file using gzip compression." in lines
    assert ('      messageType: "error" | "success" | "debug",' in lines) == (columns == 80)
    with home.screen("ls", "it", "--full", columns=columns) as screen:
        assert screen.wait() == 0
    assert screen.fits()
    assert "      a: First number" in screen.text
    assert "to be downloaded in a subsequent request during the current session." in screen.words


# Arguments


async def test_arguments_that_do_not_fit_are_named_before_the_call(home: Home):
    home.write({"it": fixture(home)})
    ran = await home.run("call", "it", "progress", "step=3", "interval=often")
    ran.said(
        "steps is missing; step is unknown (did you mean steps?);",
        'interval must be float, not "often".',
        "It takes: progress(steps: int, interval?: float)",
    )
    assert (ran.code, ran.out) == (2, "")
    assert not was_called(home)


async def test_arguments_that_do_not_fit_are_sent_to_a_server_if_asked(home: Home):
    home.write({"it": fixture(home)})
    ran = await home.run("call", "it", "echo", "--unchecked", "message=x", "more=1")
    assert ran.code in {0, 1}
    assert was_called(home)


# A server that is not configured


async def test_a_command_that_is_not_configured_is_tried(home: Home):
    home.write({})
    server = plain()
    ran = (await home.run("call", "echo", "message=--hi", "--", *server)).well()
    assert (ran.out, ran.err) == ("--hi\n", "")
    assert "echo(message: str)" in (await home.run("ls", "--", *server)).well().out
    ran = (await home.run("read", "fixture://one", "--", *server)).well()
    assert ran.out == "text of fixture://one\n"
    ran = (await home.run("prompt", "greet", "name=Ann", "--", *server)).well()
    assert ran.out == "user:\nSay hello to Ann.\n"
    ran = await home.run("call", "get_current_time", "--json", "timezone=UTC", "--", *time())
    assert '"timezone": "UTC"' in json.loads(ran.well().out)["content"][0]["text"]


async def test_a_url_that_is_not_configured_is_tried(home: Home):
    home.write({})
    async with http_server() as url:
        assert (await home.run("call", url, "echo", "message=hi")).well().out == "hi\n"
        assert "echo(message: str)" in (await home.run("ls", url)).well().out
        assert "text of" in (await home.run("read", url, "fixture://one")).well().out


async def test_a_server_that_is_not_configured_and_fails_has_a_next_step(home: Home):
    home.write({})
    broken = [sys.executable, "-c", "raise SystemExit('the license file is missing')", "--token"]
    for words in (["ls"], ["call", "echo"]):
        ran = await home.run(*words, "--", *broken, "hunter2")
        ran.said("the license file is missing")
        assert "hunter2" not in ran.err
        ran.said(f"Start it by itself to see what it says: {shlex.join(broken)}")
        assert ran.code == 4
    ran = await home.run("ls", "--", "no-such-command")
    ran.said("was not found", "Install it, or give the absolute path")
    assert "Start it by itself" not in ran.err
    ran = await home.run("ls", "--", "sh -c true")
    ran.said("was not found", "The words after sh belong in `args`, not in quotes together with it")

    async def refuse(exchange: Exchange) -> bool:
        await exchange.reply(403, {"error": "a token is wanted"})
        return True

    async with mcp_server() as server:
        server.before = refuse
        for words in (["ls", server.url], ["call", server.url, "echo"]):
            ran = await home.run(*words)
            ran.said("a token is wanted", "Configure it with its credentials:")
            assert f"\n  emceepee config add NAME --url {server.url} --header " in ran.err
            assert ran.code == 3
    ran = await home.run("ls", "--")
    assert ran.code == 2
    assert "no command after them" in " ".join(ran.err.replace("│", " ").split())


# Resources and prompts


async def test_a_resource_is_printed_and_in_a_pipe_its_bytes(home: Home):
    home.write({"it": fixture(home)})
    ran = (await home.run("read", "it", "fixture://one")).well()
    assert (ran.out, ran.err) == ("text of fixture://one\n", "")
    with anyio.fail_after(WAIT_S):
        words = [*EMCEEPEE, "read", "it", "fixture://two"]
        done = await anyio.run_process(words, env=home.environ())
    assert done.stdout.startswith(b"\x89PNG")
    told = json.loads((await home.run("read", "it", "fixture://two", "--json")).well().out)
    assert (told["schema_version"], told["server"]) == (1, "it")
    (content,) = told["result"]["contents"]
    assert base64.b64decode(content["blob"]) == done.stdout
    ran = (await home.run("read", "it", "fixture://none")).said("has no resource")
    ran.said("See what it has: emceepee ls it")
    assert ran.code == 2


def test_a_resource_that_is_no_text_is_described_at_a_terminal(home: Home):
    home.write({"it": fixture(home)})
    with home.screen("read", "it", "fixture://two") as screen:
        assert screen.wait() == 0
    assert "[image/png, 67 bytes; in a pipe you get them]" in screen.words


async def test_a_prompt_is_filled_in_and_what_it_lacks_is_named(home: Home):
    home.write({"it": fixture(home)})
    told = json.loads((await home.run("prompt", "it", "plain", "--json")).well().out)
    assert told["schema_version"] == 1
    assert told["result"]["messages"][0]["content"]["text"] == "Say something."
    ran = (await home.run("prompt", "it", "greet", "nam=Ann")).said("name is missing")
    ran.said("nam is unknown (did you mean name?).", "It takes: greet(name: str)")
    assert ran.code == 2
    ran = (await home.run("prompt", "it", "gret")).said("Did you mean greet?")
    assert ran.code == 2
