"""The command line at a real terminal of 80 columns: what fits, what is asked, what is kept off."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from emceepee_stdio.config.clients import CLIENTS
from tests.e2e.cli_harness import Home, Screen
from tests.e2e.client import command, received_by_server
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_mcp import McpServer
from tests.e2e.servers.http_wire import Exchange
from tests.peers import plain, rude

LONG = "long-" * 15
SECRET = "tok-0f9e8d7c6b5a4321"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def fill(home: Home, url: str = "http://127.0.0.1:9/mcp") -> None:
    home.write(
        {
            "well": command(plain(), env={"API_TOKEN": SECRET}),
            "exits": command(rude("exit-at-once", "3")),
            "noisy": command(rude("banner")),
            "unset": command(plain(), env={"A": "${NOT_SET_HERE}"}),
            "refused": {"url": url},
            "a-name-that-is-rather-long-for-a-table": {"command": LONG, "args": [LONG, LONG]},
        }
    )


TABLES = [
    (["doctor", "--timeout", "10"], 4, "Failed:"),
    (["ls"], 4, "SERVER"),
    (["ls", "well"], 0, "fixture://item/{id}"),
    (["config", "show"], 0, "well"),
    (["config", "list"], 0, "broken"),
    (["config", "check"], 1, "unset"),
    (["install"], 0, "claude-desktop"),
]
tables = pytest.mark.parametrize(
    ("arguments", "code", "words"), TABLES, ids=[" ".join(row[0]) for row in TABLES]
)


@tables
def test_tables_fit_the_terminal_and_have_colours(
    home: Home, arguments: list[str], code: int, words: str
):
    fill(home)
    with home.screen(*arguments) as screen:
        assert screen.wait() == code
        assert words in screen.words
        assert screen.fits(), screen.text
        assert "\x1b[" in screen.raw or arguments == ["config", "check"]
        assert "Traceback" not in screen.text
        assert SECRET not in screen.text


def test_each_configured_server_is_listed_on_one_line_of_the_terminal(home: Home):
    fill(home)
    with home.screen("config", "list", color=False) as screen:
        assert screen.wait() == 0
        lines = [line.strip() for line in screen.text.splitlines()]
    head = next(index for index, line in enumerate(lines) if line.startswith("NAME "))
    rows = [line.split(maxsplit=2) for line in lines[head + 2 : head + 8]]
    assert [row[:2] for row in rows] == [
        ["well", "usable"],
        ["exits", "usable"],
        ["noisy", "usable"],
        ["unset", "broken"],
        ["refused", "usable"],
        ["a-name-that-is-rather-long-for-a-table", "usable"],
    ]
    assert rows[-1][2].startswith("long-")
    assert rows[-1][2].endswith("…")
    assert max(map(len, screen.text.splitlines())) <= screen.columns
    assert "See why: emceepee config check" in lines


@tables
def test_without_colours_there_are_no_colour_codes(
    home: Home, arguments: list[str], code: int, words: str
):
    fill(home)
    with home.screen(*arguments, color=False) as screen:
        assert screen.wait() == code
        assert words in screen.words
        assert screen.fits(), screen.text
        styles = re.findall(r"\x1b\[([\d;]*)m", screen.raw)
        coloured = [s for style in styles for s in style.split(";") if re.fullmatch("[349]\\d", s)]
        assert coloured == []


@tables
async def test_a_pipe_gets_no_escape_codes_and_the_same_every_time(
    home: Home, arguments: list[str], code: int, words: str
):
    fill(home)
    first, second = [await home.run(*arguments, TERM="xterm-256color") for _ in range(2)]
    assert first.code == code
    assert words in " ".join(first.out.split())
    assert "\x1b" not in first.out + first.err
    # The doctor tells of a server when it knows: which comes first is not the same every time.
    assert sorted(_timeless(first.out).split("\n")) == sorted(_timeless(second.out).split("\n"))
    wide = await home.run(*arguments, TERM="dumb", COLUMNS="30")
    assert sorted(_timeless(wide.out).split("\n")) == sorted(_timeless(first.out).split("\n"))


def _timeless(text: str) -> str:
    return re.sub(r"[\d.]+ ms", "… ms", text)


def test_a_very_narrow_terminal_is_no_failure(home: Home):
    fill(home)
    with home.screen("config", "show", columns=24) as screen:
        assert screen.wait() == 0
        assert screen.fits(), screen.text


# Sentences


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_sentences_are_broken_between_words_and_commands_are_not(home: Home, columns: int):
    home.write({"it": command(plain(), env={"API_TOKEN": SECRET})})
    report = home.path / "report.json"
    for arguments in (["status"], ["doctor", "--report", "report.json"], ["config", "list"]):
        with home.screen(*arguments, columns=columns, color=False) as screen:
            screen.wait()
        long = [line for line in screen.text.splitlines() if len(line) > columns]
        assert [line for line in long if str(home.path) not in line] == []
    assert report.exists()
    with home.screen("status", columns=columns, color=False) as screen:
        assert screen.wait() == 0
        for words in ("`emceepee install`", "`emceepee tail-logs`", "`emceepee serve --http`"):
            assert words in screen.text


def test_a_command_at_the_end_of_a_note_stays_whole(home: Home):
    home.write({name: {**command(plain()), "disabled": True} for name in ("one", "another-one")})
    with home.screen("ls", columns=60, color=False) as screen:
        assert screen.wait() == 0
        lines = screen.text.splitlines()
    assert lines[-2:] == ["Disabled: one, another-one. Enable one:", "emceepee config enable NAME"]


async def test_a_server_that_fails_is_named_once(home: Home):
    home.write({"exits": command(rude("exit-at-once", "3"))})
    ran = await home.run("ls")
    assert "exits: exits" not in ran.err
    assert "exits exited with code 3." in ran.err


async def test_a_variable_without_a_name_is_told(home: Home):
    ran = await home.run("config", "add", "time2", "-e", "--", "mcp-server-time")
    assert "-e: it needs NAME or NAME=VALUE." in " ".join(ran.err.replace("│", " ").split())
    assert ran.code == 2


async def test_a_pipe_gets_each_sentence_on_one_line(home: Home):
    home.write({name: {**command(plain()), "disabled": True} for name in ("one", "another-one")})
    ran = await home.run("ls", COLUMNS="30")
    assert "Disabled: one, another-one. Enable one: emceepee config enable NAME\n" in ran.err


# Instead of waiting for a client


@pytest.mark.parametrize("arguments", [[], ["serve"], ["serve", "--server", "x=y"]], ids=str)
def test_a_person_is_told_what_it_is_and_how_to_register(home: Home, arguments: list[str]):
    home.write({})
    with home.screen(*arguments) as screen:
        assert screen.wait() == 0
        assert "emceepee is an MCP proxy" in screen.words
        assert re.search("emceepee install [a-z-]+ register it in your client", screen.words)
        assert "Registered in: none yet." in screen.words
        for key in CLIENTS:
            assert key in screen.words
        assert screen.fits(), screen.text
    with home.screen("install", "cursor", "--force") as screen:
        assert screen.wait() == 0
    with home.screen(*arguments) as screen:
        assert screen.wait() == 0
        assert "Registered in: Cursor." in screen.words


def test_advice_names_a_client_that_is_on_this_machine(home: Home):
    home.write({})
    (home.path / ".claude.json").write_text("{}")
    for arguments, words in (
        ([], "emceepee install claude-code register it in your client"),
        ([], "emceepee config import claude-code take over the servers"),
        (["doctor"], "for example in Claude Code; `emceepee install` lists all"),
        (["demo"], "Next: emceepee install claude-code, or see the others"),
    ):
        with home.screen(*arguments, columns=120) as screen:
            assert screen.wait() == 0
            assert words in screen.words
            assert "install claude-desktop" not in screen.words


def test_the_demo_does_not_advise_to_register_what_is_registered(home: Home):
    with home.screen("install", "cursor", "--force") as screen:
        assert screen.wait() == 0
    with home.screen("demo") as screen:
        assert screen.wait() == 0
        assert "All of this happened" in screen.words
        assert "emceepee install" not in screen.words


def test_every_command_of_the_welcome_is_there(home: Home):
    home.write({})
    with home.screen() as screen:
        assert screen.wait() == 0
        named = re.findall(r"^  emceepee (\w+(?: import| add)?)", screen.text, re.MULTILINE)
    assert named == ["install", "config import", "config add", "doctor", "demo"]
    for words in named:
        with home.screen(*words.split(), "--help") as screen:
            assert screen.wait() == 0
            assert screen.fits(), screen.text


def test_the_help_of_serve_fits_the_terminal_and_names_every_option(home: Home):
    with home.screen("serve", "--help") as screen:
        assert screen.wait() == 0
        assert "--config FILE Another configuration file." in screen.words
        assert "--server NAME=COMMAND A server for this run; may be repeated." in screen.words
        assert (
            "--policy MODE auto, ask, allow or deny; overrides the configuration." in screen.words
        )
        assert screen.fits(), screen.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--policy", "perhaps"], "'perhaps' is not one of 'auto', 'ask'"), (["--nope"], "--nope")],
    ids=str,
)
def test_a_person_who_mistypes_an_option_of_serve_is_told(
    home: Home, arguments: list[str], words: str
):
    with home.screen("serve", *arguments) as screen:
        assert screen.wait() == 2
        assert words in screen.words


# Questions


def fixture(home: Home, *options: str) -> dict[str, Any]:
    return command(plain(*options), env={"FIXTURE_LOG": str(home.path / "received.jsonl")})


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_the_person_answers_what_a_server_asks(home: Home, era: str):
    home.write({"it": fixture(home, "--era", era)})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("it asks: Who are you?")
        screen.until_said("Answer it? [Y/n]:")
        screen.type("\n")
        screen.until_said("name (string)")
        screen.type("Ada\n")
        screen.until_said("age (integer, optional)")
        screen.type("old\n")
        screen.until_said("That does not fit: age must be a whole number.")
        screen.until_said_times("age (integer, optional):", 2)
        screen.type("36\n")
        assert screen.wait() == 0
        assert _answer(screen) == {"action": "accept", "content": {"name": "Ada", "age": 36}}


@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_what_is_optional_may_be_left_out(home: Home, era: str):
    home.write({"it": fixture(home, "--era", era)})
    with home.screen("call", "it", "ask_twice") as screen:
        for count, (order, name) in enumerate((("First", "Ada"), ("Second", "Bob")), start=1):
            screen.until_said(f"it asks: {order}: who")
            screen.until_said_times("Answer it? [Y/n]:", count)
            screen.type("y\n")
            screen.until_said_times("name (string):", count)
            screen.type(f"{name}\n")
            screen.until_said_times("age (integer, optional):", count)
            screen.type("\n")
        assert screen.wait() == 0
        assert [answer["content"] for answer in _answer(screen)] == [
            {"name": "Ada"},
            {"name": "Bob"},
        ]


def test_the_person_declines(home: Home):
    home.write({"it": fixture(home, "--era", "legacy")})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("Answer it? [Y/n]:")
        screen.type("n\n")
        assert screen.wait() == 0
        assert _answer(screen) == {"action": "decline"}


@pytest.mark.parametrize(("word", "action"), [("y", "accept"), ("n", "decline")])
def test_a_page_to_visit_is_shown_and_not_opened(home: Home, word: str, action: str):
    home.write({"it": fixture(home, "--era", "legacy")})
    with home.screen("call", "it", "ask", "mode=url") as screen:
        screen.until_said("open this address yourself: https://example.com/sign-in")
        screen.until_said("Have you done so? [y/N]:")
        screen.type(f"{word}\n")
        assert screen.wait() == 0
        assert _answer(screen)["action"] == action


ASKS_YES_OR_NO = """
import json, sys
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
fields = {"pay": {"type": "boolean", "description": "Pay it"},
          "gift": {"type": "boolean", "default": True}, "note": {"type": "boolean"},
          "size": {"type": "string", "oneOf": [{"const": "s", "title": "Small"}, {"const": "l"}],
                   "default": "s"},
          "with": {"type": "array", "items": {"anyOf": [{"const": "milk", "title": "Whole milk"},
                                                        {"const": "sugar"}]}},
          "count": {"type": "integer", "default": 42},
          "who": {"type": "string", "default": "Monica"}}
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "initialize":
        say(id=m["id"], result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                                "serverInfo": {"name": "x", "version": "1"}})
    elif m.get("method") == "tools/list":
        say(id=m["id"], result={"tools": [{"name": "buy", "inputSchema": {"type": "object"}}]})
    elif m.get("method") == "tools/call":
        call = m["id"]
        form = {"type": "object", "properties": fields, "required": ["pay", "who"]}
        say(id="q", method="elicitation/create", params={"message": "?", "requestedSchema": form})
    elif m.get("id") == "q" and "result" in m:
        text = json.dumps(m["result"])
        say(id=call, result={"content": [{"type": "text", "text": text}]})
    elif "id" in m:
        say(id=m["id"], error={"code": -32601, "message": "Method not found"})
"""


def test_a_form_shows_choices_by_title_and_defaults_and_says_why_it_asks_again(home: Home):
    home.write({"it": command([plain()[0], "-c", ASKS_YES_OR_NO], era="legacy")})
    with home.screen("call", "it", "buy") as screen:
        screen.until_said("Answer it? [Y/n]:")
        screen.type("y\n")
        screen.until_said("pay (Pay it) [y/n]:")
        screen.type("perhaps\n")
        screen.until_said("That does not fit: pay must be true or false.")
        screen.until_said_times("pay (Pay it) [y/n]:", 2)
        screen.type("no\n")
        screen.until_said("gift (boolean, optional) [Y/n]:")
        screen.type("\n")
        screen.until_said("note (boolean, optional) [y/n]:")
        screen.type("\n")
        screen.until_said("size (string, one of Small, l, optional) [Small]:")
        screen.type("m\n")
        screen.until_said("That does not fit: size must be one of 's', 'l'.")
        screen.type("l\n")
        screen.until_said("with (array, any of Whole milk, sugar, with commas between, optional):")
        screen.type("whole milk, sugar\n")
        screen.until_said("count (integer, optional) [42]:")
        screen.type("\n")
        screen.until_said("who (string) [Monica]:")
        screen.type("\n")
        assert screen.wait() == 0
        content = {"pay": False, "gift": True, "size": "l", "with": ["milk", "sugar"]}
        content |= {"count": 42, "who": "Monica"}
        assert _answer(screen) == {"action": "accept", "content": content}


WITHDRAWS = """
import json, pathlib, sys, time
asked_file, received_file = map(pathlib.Path, sys.argv[1:])
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    asked, method = message.get("id"), message.get("method")
    if method == "initialize":
        say(id=asked, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                              "serverInfo": {"name": "w", "version": "1"}})
    elif method == "tools/list":
        say(id=asked, result={"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]})
    elif method == "tools/call":
        call = asked
        params = {"message": "Who?", "requestedSchema": {"type": "object", "properties": {}}}
        say(id="q", method="elicitation/create", params=params)
        while not asked_file.exists():
            time.sleep(0.01)
        say(method="notifications/cancelled", params={"requestId": "q"})
        say(id="p", method="ping")
    elif asked == "p" and method is None:
        received_file.touch()
        say(id="r", method="elicitation/create", params={**params, "message": "And now?"})
    elif asked == "r" and method is None:
        text = json.dumps(message["result"])
        say(id=call, result={"content": [{"type": "text", "text": text}]})
    elif asked is not None and method is not None:
        say(id=asked, error={"code": -32601, "message": "Method not found"})
"""


def test_an_answer_to_a_question_that_was_taken_back_is_no_failure(home: Home):
    asked, received = home.path / "asked", home.path / "received"
    argv = [plain()[0], "-c", WITHDRAWS, str(asked), str(received)]
    home.write({"it": command(argv, era="legacy")})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("it asks: Who? Answer it? [Y/n]:")
        asked.touch()
        screen.until(received.exists, "that the question was taken back")
        screen.type("y\n")
        screen.until_said("it no longer wants to know. it asks: And now? Answer it? [Y/n]:")
        screen.type("y\n")
        assert screen.wait() == 0
        assert _answer(screen) == {"action": "accept", "content": {}}


def test_an_interrupt_while_a_question_waits_ends_everything(home: Home):
    home.write({"it": fixture(home, "--era", "legacy")})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("Answer it? [Y/n]:")
        screen.type("\x03")
        assert screen.wait() == 130
        assert "Traceback" not in screen.text
        assert home.left_over() == []


def test_the_end_of_input_declines_and_does_not_hang(home: Home):
    home.write({"it": fixture(home, "--era", "legacy")})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("Answer it? [Y/n]:")
        screen.type("\x04")
        assert screen.wait() == 0
        assert _answer(screen) == {"action": "decline"}


def _answer(screen: Screen) -> Any:
    """The tool's result is the last that is shown: the answer as the server got it."""
    line = [line for line in screen.text.splitlines() if line.startswith(("{", "["))][-1]
    return json.loads(line)


# Interrupted


@pytest.mark.parametrize("arguments", [["doctor"], ["ls"], ["call", "it", "echo"]], ids=str)
def test_ctrl_c_at_a_terminal_ends_it_quietly(home: Home, arguments: list[str]):
    log = home.path / "received.jsonl"
    home.write({"it": command(rude("silent"), env={"FIXTURE_LOG": str(log)})})
    with home.screen(*arguments) as screen:
        screen.until(lambda: received_by_server(log), "the server to be asked")
        screen.type("\x03")
        assert screen.wait() == 130
        assert "Traceback" not in screen.text
        assert home.left_over() == []


@pytest.mark.parametrize(
    "arguments", [["doctor"], ["ls"], ["call", "it", "echo"], ["tail-logs"], ["demo"]], ids=" ".join
)
def test_the_impatient_read_no_traceback_either(home: Home, arguments: list[str]):
    """Ctrl-C again and again: also while the first one is being seen to."""
    log = home.path / "received.jsonl"
    home.write({"it": command(rude("silent"), env={"FIXTURE_LOG": str(log)})})
    begun = {
        "tail-logs": lambda: "No journal" in screen.words,
        "demo": lambda: "went on as a task" in screen.words,
    }
    with home.screen(*arguments) as screen:
        screen.until(begun.get(arguments[0], lambda: received_by_server(log)), "it to have begun")
        screen.hammer("\x03")
        assert "Traceback" not in screen.text
        assert "Exception ignored" not in screen.text


# What servers say of themselves

EVIL = "\x1b[31mred\x1b[0m\x1b]0;title\x07\x1b[2J\x9b5m\u202ebye"

SERVER = f"""
import json, sys
EVIL = {EVIL!r}
sys.stderr.write("stderr " + EVIL + "\\n")
sys.stderr.flush()
mode = sys.argv[1]
if mode == "exit":
    sys.exit(1)
if mode == "noise":
    print("noise " + EVIL, flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        if message.get("id") == "q":
            answer = json.dumps(message.get("result"))
            content = [{{"type": "text", "text": "answered " + answer}}]
            print(json.dumps({{"jsonrpc": "2.0", "id": asked, "result": {{"content": content}}}}),
                  flush=True)
        continue
    method, result, error = message["method"], None, None
    if method == "initialize" and mode == "refuse":
        error = {{"code": -32603, "message": "refused " + EVIL}}
    elif method == "initialize":
        result = {{"protocolVersion": "2025-11-25", "serverInfo": {{"name": EVIL, "version": EVIL}},
                  "capabilities": {{"tools": {{}}, "prompts": {{}}, "resources": {{}}}}}}
    elif method == "tools/list":
        names = ["say", "fail", "ask", "structured", "tool " + EVIL]
        result = {{"tools": [{{"name": name, "description": "does " + EVIL,
                             "inputSchema": {{"type": "object"}}}} for name in names]}}
        field = {{"enum": [EVIL], "default": EVIL, "description": "field " + EVIL}}
        picky = {{"properties": {{"colour" + EVIL: field}}, "required": ["needed" + EVIL]}}
        picky["properties"]["needed" + EVIL] = {{"type": EVIL}}
        result["tools"].append({{"name": "picky", "inputSchema": picky}})
    elif method == "prompts/list":
        arguments = [{{"name": "topic" + EVIL, "required": True}}]
        result = {{"prompts": [{{"name": "evil", "description": "asks " + EVIL}},
                             {{"name": "picky" + EVIL, "arguments": arguments}}]}}
    elif method == "prompts/get":
        content = {{"type": "text", "text": "prompts " + EVIL}}
        result = {{"messages": [{{"role": EVIL, "content": content}}]}}
    elif method == "resources/list":
        result = {{"resources": [{{"uri": "evil://" + EVIL, "name": EVIL, "mimeType": EVIL}}]}}
    elif method == "resources/read":
        blob = {{"uri": EVIL, "mimeType": EVIL, "blob": "AAAA"}}
        result = {{"contents": [{{"uri": EVIL, "text": "reads " + EVIL}}, blob]}}
    elif method == "ping":
        result = {{}}
    elif method == "tools/call" and message["params"]["name"] == "ask":
        asked = message["id"]
        schema = {{"type": "object", "properties": {{
            "colour" + EVIL: {{"type": "string", "description": "of " + EVIL, "enum": [EVIL]}}}}}}
        params = {{"message": "which " + EVIL, "requestedSchema": schema}}
        print(json.dumps({{"jsonrpc": "2.0", "id": "q", "method": "elicitation/create",
                          "params": params}}), flush=True)
        continue
    elif method == "tools/call" and message["params"]["name"] == "say":
        result = {{"content": [{{"type": "text", "text": "says " + EVIL}}]}}
    elif method == "tools/call" and message["params"]["name"] == "structured":
        result = {{"content": [], "structuredContent": {{"says " + EVIL: [EVIL]}}}}
    else:
        error = {{"code": -32601, "message": "error " + EVIL}}
    answer = {{"result": result}} if error is None else {{"error": error}}
    print(json.dumps({{"jsonrpc": "2.0", "id": message["id"], **answer}}), flush=True)
"""


def evil(home: Home, mode: str) -> dict[str, Any]:
    home.path.mkdir(parents=True, exist_ok=True)
    script = home.path / "evil.py"
    script.write_text(SERVER)
    return command([plain()[0], str(script), mode])


def obeys_nothing(screen: Screen) -> bool:
    """Whether of all that a server said, nothing would steer the terminal."""
    steering = ("\x1b[31mred", "\x1b]0;title", "\x1b[2J", "\x9b", "\u202e")
    return not any(code in screen.raw for code in steering)


@pytest.mark.parametrize(
    ("mode", "arguments", "words"),
    [
        ("serve", ["ls", "it"], "does"),
        ("serve", ["ls", "it", "--full"], "field"),
        ("serve", ["call", "it", "picky", "other=1"], "is missing"),
        ("serve", ["read", "it", "evil://one"], "reads"),
        ("serve", ["prompt", "it", "evil"], "prompts"),
        ("serve", ["prompt", "it", "nothing"], "It has: evil"),
        ("noise", ["doctor", "it"], "noise"),
        ("exit", ["doctor", "it"], "stderr"),
        ("refuse", ["doctor", "it"], "refused"),
        ("refuse", ["ls"], "refused"),
        ("refuse", ["call", "it", "say"], "refused"),
        ("exit", ["call", "it", "say"], "stderr"),
        ("serve", ["call", "it", "fail"], "error"),
        ("serve", ["call", "it", "say"], "says"),
        ("serve", ["call", "it", "say", "--json"], "says"),
        ("serve", ["call", "it", "structured"], "says"),
        ("serve", ["call", "it", "structured", "--json"], "says"),
        ("serve", ["ls", "it", "--json"], "does"),
        ("noise", ["doctor", "it", "--json"], "noise"),
        ("refuse", ["doctor", "it", "--json"], "refused"),
        ("serve", ["call", "it", "nothing"], "It has: say"),
        ("serve", ["call", "it", EVIL], "has no tool"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value).replace(EVIL, "evil"),
)
def test_what_a_server_says_does_not_steer_the_terminal(
    home: Home, mode: str, arguments: list[str], words: str
):
    home.write({"it": evil(home, mode)})
    with home.screen(*arguments) as screen:
        screen.wait()
        assert words in screen.words
        assert obeys_nothing(screen), repr(screen.raw)


def test_what_a_server_asks_does_not_steer_the_terminal(home: Home):
    home.write({"it": evil(home, "serve")})
    with home.screen("call", "it", "ask") as screen:
        screen.until_said("Answer it? [Y/n]:")
        screen.type("\n")
        screen.until_said("):")
        screen.type("\n")
        assert screen.wait() == 0
        assert "it asks: which" in screen.words
        assert obeys_nothing(screen), repr(screen.raw)


def test_a_neighbour_in_a_diff_does_not_steer_the_terminal(home: Home):
    config = home.path / ".claude.json"
    home.path.mkdir(parents=True, exist_ok=True)
    beside = {"command": "x", "env": {"SAID": "said \x9b2J\u202ebye"}}
    text = json.dumps({"mcpServers": {"a": beside}}, ensure_ascii=False, indent=2)
    config.write_text(text, encoding="utf-8")
    with home.screen("install", "claude-code", "--dry-run", "--force") as screen:
        screen.wait()
        assert "said" in screen.words
        assert obeys_nothing(screen), repr(screen.raw)


async def test_a_refusal_behind_a_url_does_not_steer_the_terminal(home: Home):
    async with refusing() as server:
        home.write({"it": {"url": server.url}})
        for arguments in (["doctor", "it"], ["ls"], ["call", "it", "say"]):
            screen = await anyio.to_thread.run_sync(_shown, home, arguments)
            assert "no, no" in screen.words
            assert obeys_nothing(screen), repr(screen.raw)


@asynccontextmanager
async def refusing() -> AsyncIterator[McpServer]:
    async def refuse(exchange: Exchange) -> bool:
        await exchange.reply(403, {"error": f"no, no {EVIL}"})
        return True

    async with mcp_server() as server:
        server.before = refuse
        yield server


def _shown(home: Home, arguments: list[str]) -> Screen:
    with home.screen(*arguments) as screen:
        screen.wait()
    return screen


async def test_a_name_in_the_file_does_not_steer_the_terminal(home: Home):
    home.write({f"n{EVIL}": evil(home, "exit"), f"m{EVIL}": {"command": f"x{EVIL}"}})
    for arguments in (["config", "show"], ["config", "check"], ["doctor"], ["ls"]):
        screen = await anyio.to_thread.run_sync(_shown, home, arguments)
        assert obeys_nothing(screen), (arguments, screen.raw)


async def test_a_result_in_a_pipe_is_passed_on_to_the_letter(home: Home):
    home.write({"it": evil(home, "serve")})
    ran = (await home.run("call", "it", "say")).well()
    assert ran.out == f"says {EVIL}\n"
    coded = json.loads((await home.run("call", "it", "structured", "--json")).well().out)
    assert coded["structuredContent"] == {f"says {EVIL}": [EVIL]}
