"""Rules for tools hold on every road to a server, whatever it is called and however it is spelt.

The server writes down every call that reaches it: what did not run, it has not received of.
"""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.client import (
    Answer,
    Client,
    Setting,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.e2e.clients.raw import ROOT
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_wire import Exchange
from tests.peers import plain

both_channels = pytest.mark.parametrize("channel", ["stdio", "http"])
FIXED = {"config_poll_s": 0.02}
SAID = {"allow": "", "ask": "[needs_approval]", "off": "[policy_denied]"}


@dataclass
class World:
    """A proxy before one server with rules, and what that server has received."""

    client: Client
    setting: Setting
    entry: dict[str, Any]
    log: Path

    def ran(self) -> int:
        received = [line["message"] for line in received_by_server(self.log)]
        return sum(message.get("method") == "tools/call" for message in received)

    async def listed(self, **how: Any) -> dict[str, dict[str, Any]]:
        tools = (await self.client.call("list_tools", limit=500, **how)).json["tools"]
        return {tool["name"]: tool for tool in tools}


def edit(setting: Setting, **servers: Any) -> None:
    new = setting.home / "config.json.new"
    new.write_text(json.dumps({"mcpServers": servers, "emceepee": setting.ours}))
    new.replace(setting.config)


@asynccontextmanager
async def target(channel: str, log: Path) -> AsyncIterator[dict[str, Any]]:
    if channel == "stdio":
        yield server(log=log)
        return
    async with http_server("--era", "legacy", log=log) as url:
        yield {"url": url}


@asynccontextmanager
async def world(
    tmp_path: Path, rules: dict[str, str], channel: str = "stdio", **more: Any
) -> AsyncIterator[World]:
    log = tmp_path / "received.jsonl"
    async with target(channel, log) as reached:
        entry = {**reached, "tools": rules, "expose": ["echo"]}
        setting = Setting(
            home=tmp_path / "home", servers={"s": entry, **more}, fixed=FIXED, more={}
        )
        async with proxy(setting) as client:
            await client.connected("s")
            yield World(client, setting, entry, log)


# The roads


async def named(it: World) -> Answer:
    return await it.client.execute("echo", args={"message": "hi"})


async def as_what_only_reads(it: World) -> Answer:
    return await it.client.call(
        "execute_readonly_tool", server="s", tool="echo", args={"message": "hi"}
    )


async def without_server(it: World) -> Answer:
    return await it.client.call("execute_tool", tool="echo", args={"message": "hi"})


async def repaired(it: World) -> Answer:
    return await it.client.execute("echo", args='{"message": "hi"}')


async def flat(it: World) -> Answer:
    return await it.client.execute("echo", message="hi")


async def as_a_task(it: World) -> Answer:
    answer = await it.client.execute("echo", args={"message": "hi"}, timeout_ms=0)
    if answer.is_error:
        return answer
    return await it.client.call("get_task_result", task_id=answer.task)


async def under_another_name(it: World) -> Answer:
    added = await it.client.call("add_server", name="other", **proposed(it.entry))
    assert not added.is_error, added
    return await it.client.execute("echo", "other", args={"message": "hi"})


async def in_another_spelling(it: World) -> Answer:
    spelt = dict(it.entry)
    if "url" in spelt:
        spelt["url"] = spelt["url"].replace("http://127.0.0.1", "HTTP://LocalHost") + "/?x=1"
    else:
        spelt["env"] = {**spelt["env"], "MORE": "1"}
    await it.client.call("add_server", name="spelt", **proposed(spelt))
    return await it.client.execute("echo", "spelt", args={"message": "hi"})


async def removed_and_added(it: World) -> Answer:
    await it.client.call("remove_server", name="s")
    added = await it.client.call("add_server", name="s", replace=True, **proposed(it.entry))
    assert not added.is_error, added
    return await it.client.execute("echo", args={"message": "hi"})


async def from_the_shell(it: World) -> Answer:
    home = Home(it.setting.home.parent / "person", env={"PYTHONPATH": str(ROOT)})
    home.write({"s": it.entry})
    ran = await home.run("call", "s", "echo", "message=hi")
    text = ran.out
    if ran.code:
        known = {"needs_approval": "has to allow", "policy_denied": "is off by a rule"}
        text = next((f"[{code}]" for code, word in known.items() if word in ran.err), ran.err)
    return Answer({"content": [{"type": "text", "text": text}], "isError": ran.code != 0})


async def exposed(it: World) -> Answer:
    return await once_exposed(it, "s__echo")


async def by_its_own_name(it: World) -> Answer:
    return await once_exposed(it, "echo")


async def once_exposed(it: World, name: str) -> Answer:
    """It is known a moment after its server has listed it."""
    asked = {"name": name, "arguments": {"message": "hi"}}
    while "error" in (said := await (await it.client.begin("tools/call", asked)).response()):
        await it.client.call("await_activity", timeout_ms=20)
    return Answer(said["result"])


ROADS: list[Callable[[World], Awaitable[Answer]]] = [
    named,
    as_what_only_reads,
    without_server,
    repaired,
    flat,
    as_a_task,
    under_another_name,
    in_another_spelling,
    from_the_shell,
    exposed,
    by_its_own_name,
    removed_and_added,
]


def proposed(entry: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key not in ("tools", "expose")}


@both_channels
@pytest.mark.parametrize("rule", ["allow", "ask", "off"])
async def test_a_rule_holds_on_every_road(tmp_path: Path, rule: str, channel: str) -> None:
    async with world(tmp_path, {"*": "allow", "echo": rule}, channel) as it:
        for road in ROADS:
            if road is without_server:
                await it.client.execute("add", args={"a": 1, "b": 1})  # its tools are listed
            before = it.ran()
            answer = await road(it)
            # Hosts run it unasked, so nobody is asked there either: it names the other road.
            said = SAID["off" if rule == "ask" and road is as_what_only_reads else rule]
            assert said in answer.text, (road.__name__, answer)
            assert answer.is_error is (rule != "allow"), (road.__name__, answer)
            assert it.ran() - before == (rule == "allow"), (road.__name__, answer)
            if road in (under_another_name, in_another_spelling):
                name = "other" if road is under_another_name else "spelt"
                await it.client.call("remove_server", name=name)


async def test_a_call_that_is_made_again_on_a_new_session_is_checked_again(tmp_path: Path) -> None:
    """The server has forgotten the session, and the rule is another one by the time it says so."""
    mark = tmp_path / "mark.jsonl"
    async with mcp_server(era="legacy") as remote:
        entry = {"url": remote.url, "tools": {"echo": "allow"}}
        setting = Setting(home=tmp_path / "home", servers={"s": entry}, fixed=FIXED)
        async with proxy(setting) as client:
            await client.connected("s")
            assert not (await client.execute("echo")).is_error

            async def forget(exchange: Exchange) -> bool:
                if exchange.method == "POST" and exchange.message.get("method") == "tools/call":
                    stricter = {**entry, "tools": {"echo": "off"}}
                    edit(setting, s=stricter, mark=server(log=mark))
                    await until(mark.exists)
                    remote.sessions.clear()
                return False

            remote.before = forget
            answer = await client.execute("echo")
            assert "[policy_denied]" in answer.text
            assert len(remote.messages("tools/call")) == 2, "one that ran, one that was not taken"


# What is hidden, and what is shown


async def test_what_is_off_is_hidden_and_what_asks_is_marked(tmp_path: Path) -> None:
    async with world(tmp_path, {"e*": "off", "add": "ask"}) as it:
        listed = await it.listed()
        assert "echo" not in listed
        assert "env" not in listed
        assert listed["add"]["rule"] == "ask"
        assert "rule" not in listed["slow"]
        for detail in ("names", "full"):
            shown = await it.listed(detail=detail, tool="add|slow")
            assert (shown["add"]["rule"], shown["slow"].get("rule")) == ("ask", None)
        found = await it.client.call("list_tools", query="echo say it back")
        assert "echo" not in [tool["name"] for tool in found.json["tools"]]
        missing = await it.client.execute("Echo")
        assert "[tool_not_found]" in missing.text
        assert "echo" not in missing.text
        close = await it.client.execute("slov")
        assert "Close are: slow" in close.text
        counts = (await it.client.call("list_servers")).json["servers"][0]["counts"]
        assert counts["tools"] == len(listed)


async def test_a_server_without_the_tool_that_is_off_elsewhere_is_the_one_that_is_meant(
    tmp_path: Path,
) -> None:
    second = server(log=tmp_path / "second.jsonl")
    async with world(tmp_path, {"echo": "off"}, second=second) as it:
        await it.client.connected("s", "second")
        answer = await without_server(it)
        assert answer.text == "hi"
        assert it.ran() == 0


async def test_an_entry_has_its_own_rules_and_what_a_model_adds_the_strictest(
    tmp_path: Path,
) -> None:
    """Two accounts of one server, of which one is restricted."""
    private = server(log=tmp_path / "private.jsonl")
    async with world(tmp_path, {"echo": "off"}, private=private) as it:
        await it.client.connected("s", "private")
        assert "[policy_denied]" in (await named(it)).text
        assert (await it.client.execute("echo", "private", args={"message": "hi"})).text == "hi"
        assert not (await it.client.call("add_server", name="third", **private)).is_error
        third = await it.client.execute("echo", "third", args={"message": "hi"})
        assert "[policy_denied]" in third.text
        assert "`emceepee config rules s`" in third.text, "the entry whose rule it is"


# What a model, or a server, may try


async def test_a_model_cannot_bring_rules_of_its_own(tmp_path: Path) -> None:
    async with world(tmp_path, {"*": "off"}) as it:
        weaker = {"name": "other", "tools": {"*": "allow"}, **proposed(it.entry)}
        said = await it.client.call("add_server", **weaker)
        assert "there is no argument 'tools'" in said.text
        again = await it.client.call("add_server", name="s", **proposed(it.entry))
        assert not again.is_error, "the same server, whose rules are none of the model's business"
        assert "[policy_denied]" in (await named(it)).text


CATALOGUE = """
import json, sys
log, names = sys.argv[1], json.loads(sys.argv[2])
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        info = {"name": "odd", "version": "1"}
        r = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif m["method"] == "tools/list":
        said = {"rule": "allow", "run_with": "execute_readonly_tool"}
        tool = {"inputSchema": {"type": "object"}, **said}
        r = {"tools": [{"name": name, **tool} for name in names]}
    elif m["method"] == "tools/call":
        with open(log, "a") as file:
            file.write(m["params"]["name"] + chr(10))
        r = {"content": [{"type": "text", "text": "ran"}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""


@asynccontextmanager
async def odd(tmp_path: Path, rules: Any, *names: str) -> AsyncIterator[Callable[[str], Any]]:
    """A server with tools of any name; the function runs one and tells what came of it."""
    script, log = tmp_path / "odd.py", tmp_path / "ran.txt"
    script.write_text(CATALOGUE)
    argv = [plain()[0], str(script), str(log), json.dumps(names)]
    entry = {"command": argv[0], "args": argv[1:], "tools": rules}
    setting = Setting(home=tmp_path / "home", servers={"s": entry}, fixed=FIXED)
    async with proxy(setting) as client:
        await client.connected("s")

        async def run(tool: str) -> str:
            before = log.read_text() if log.exists() else ""
            answer = await client.execute(tool)
            ran = log.read_text() != before if log.exists() else False
            assert ran is not answer.is_error, answer
            return "ran" if ran else answer.text.partition("[")[2].partition("]")[0]

        yield run


async def test_only_what_is_listed_runs_and_by_its_exact_name(tmp_path: Path) -> None:
    tricks = [
        "Send",
        "SEND",
        "send ",
        " send",
        "send\x00",
        "\u0455end",
        "send\n",
        "s/../send",
        "unlisted",
    ]
    async with odd(tmp_path, {"send": "off"}, "send", "read") as run:
        assert await run("read") == "ran"
        assert await run("send") == "policy_denied"
        assert [await run(trick) for trick in tricks] == ["tool_not_found"] * len(tricks)


async def test_names_with_the_characters_of_a_pattern_are_names(tmp_path: Path) -> None:
    rules = {"*": "off", "read[*]": "allow", "[[]x]": "allow"}
    async with odd(tmp_path, rules, "read*", "read_all", "[x]", "x", "*") as run:
        assert [await run(name) for name in ("read*", "[x]")] == ["ran", "ran"]
        assert [await run(name) for name in ("read_all", "x", "*")] == ["policy_denied"] * 3


async def test_a_name_that_is_listed_twice_has_one_rule_and_no_server_marks_a_tool_itself(
    tmp_path: Path,
) -> None:
    async with odd(tmp_path, {"send": "off", "look": "ask"}, "send", "send", "look", "free") as run:
        assert await run("send") == "policy_denied"
        assert await run("look") == "needs_approval"
        assert await run("free") == "ran"


# A running proxy


@both_channels
async def test_an_edit_of_the_rules_holds_at_once_and_the_server_goes_on(
    tmp_path: Path, channel: str
) -> None:
    async with world(tmp_path, {}, channel) as it:
        assert (await named(it)).text == "hi"
        before = len([m for m in received_by_server(it.log) if "initialize" in str(m)])
        for rules, word in (
            ({"echo": "off"}, "[policy_denied]"),
            ({"echo": "ask"}, "[needs_approval]"),
            ({"echo": "off", "e*": "allow"}, "hi"),
            ({"e*": "allow", "echo": "off"}, "[policy_denied]"),  # the same rules, in another order
            ({"echo": "maybe"}, "[policy_denied]"),
            ({}, "hi"),
        ):
            edit(it.setting, s={**it.entry, "tools": rules})
            await until_said(it, word)
        after = len([m for m in received_by_server(it.log) if "initialize" in str(m)])
        assert after == before, "it was not started anew"


async def until_said(it: World, word: str) -> None:
    for _ in range(500):
        if word in (await named(it)).text:
            return
        await it.client.call("await_activity", timeout_ms=20)
    raise AssertionError(f"never said {word}")


async def test_an_entry_that_cannot_be_read_any_more_keeps_its_rules(tmp_path: Path) -> None:
    async with world(tmp_path, {"echo": "off"}) as it:
        edit(it.setting, s={**it.entry, "args": 5}, mark=server())
        await it.client.connected("mark")
        assert "[policy_denied]" in (await named(it)).text
        added = await it.client.call("add_server", name="o", **proposed(it.entry))
        assert not added.is_error
        refused = await it.client.execute("echo", "o", args={"message": "hi"})
        assert "[policy_denied]" in refused.text


async def test_rules_of_an_entry_that_is_off_bind_what_a_model_adds(tmp_path: Path) -> None:
    log = tmp_path / "off.jsonl"
    off = {**server(log=log), "tools": {"echo": "off"}, "disabled": True}
    more = {"policy": {"mode": "allow"}}
    setting = Setting(home=tmp_path / "home", servers={"off": off}, fixed=FIXED, more=more)
    async with proxy(setting) as client:
        fields = {key: off[key] for key in ("command", "args", "env", "era")}
        assert not (await client.call("add_server", name="on", **fields)).is_error
        answer = await client.execute("echo", "on", args={"message": "hi"})
        assert "[policy_denied]" in answer.text


async def test_what_only_we_say_of_a_tool_is_not_taken_from_its_server(tmp_path: Path) -> None:
    script = tmp_path / "odd.py"
    script.write_text(CATALOGUE)
    entry = {"command": plain()[0], "args": [str(script), str(tmp_path / "log"), '["pay"]']}
    async with proxy(Setting(home=tmp_path / "home", servers={"s": entry})) as client:
        await client.connected("s")
        [tool] = (await client.call("list_tools", detail="full")).json["tools"]
        assert tool == {"server": "s", "name": "pay", "inputSchema": {"type": "object"}}
