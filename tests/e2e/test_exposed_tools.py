"""Tools of exposed servers beside ours: listed and called as themselves, in both eras."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import (
    Client,
    P,
    Setting,
    both_backends,
    both_eras,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.peers import plain

FIXED = {"config_poll_s": 0.02, "exposed_settle_s": 0.02, "exposed_pace_s": 0.02}
LISTED = "notifications/tools/list_changed"
LONG = {"anthropic/maxResultSizeChars": 500_000}  # else a host shows 2 KB of a long result


async def listed(client: Client, method: str = "tools/list", key: str = "tools") -> dict[str, Any]:
    """What is listed that is not ours."""
    items = (await client.request(method))[key]
    known = "uri" if key == "resources" else "uriTemplate" if key == "resourceTemplates" else "name"
    ours = not known.startswith("uri")
    return {
        i[known]: i for i in items if ("__" in i[known] if ours else "emceepee:" not in i[known])
    }


def changes(client: Client, method: str = LISTED) -> list[dict[str, Any]]:
    return [note for note in client.notifications if note["method"] == method]


async def until_listed(client: Client, *names: str) -> dict[str, Any]:
    """Wait for the changes that are told until the tools of these names are there."""
    while True:
        count = len(changes(client))
        found = await listed(client)
        if set(names) <= found.keys():
            return found
        await client.received(lambda n=count: len(changes(client)) > n)


@asynccontextmanager
async def exposing(
    tmp_path: Path,
    expose: object = ("*",),
    *,
    modern: bool = False,
    era: str = "legacy",
    **more: Any,
) -> AsyncIterator[Client]:
    """A client of a proxy that exposes one server, once its tools are listed."""
    log = tmp_path / "received.jsonl"
    entry = more.pop("entry", None) or server(era=era, log=log)
    servers = {"s": {**entry, "expose": expose}, **more.pop("servers", {})}
    setting = more.pop("setting", None) or Setting(
        home=tmp_path / "home", servers=servers, fixed=FIXED, **more
    )
    async with proxy(setting, modern=modern) as client:
        client.exposes = True
        if modern:
            wanted = {f"{what}ListChanged": True for what in ("tools", "prompts", "resources")}
            stream = await client.begin("subscriptions/listen", {"notifications": wanted})
            yield client
            await client.cancel(stream)
        else:
            yield client


async def call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    return (await client.call(tool, **arguments)).result


def without_identity(result: dict[str, Any]) -> dict[str, Any]:
    """A result as both eras have it."""
    meta = {k: v for k, v in result.get("_meta", {}).items() if not k.startswith(P)}
    rest = {k: v for k, v in result.items() if k not in ("_meta", "resultType")}
    return rest | ({"_meta": meta} if meta else {})


@both_backends
@both_eras
async def test_exposed_tools_are_listed_as_their_server_gave_them_and_run(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with exposing(tmp_path, ["echo", "struct*", "image"], modern=modern, era=era) as client:
        tools = await until_listed(client, "s__echo")
        assert list(tools) == ["s__echo", "s__image", "s__structured"]
        direct = (await client.call("list_tools", server="s", detail="full", limit=500)).json
        for tool in direct["tools"]:
            if tool["name"] in ("echo", "image", "structured"):
                shown = tools[f"s__{tool['name']}"]
                expected = {
                    **{k: v for k, v in tool.items() if k in shown},
                    "name": f"s__{tool['name']}",
                    "_meta": {**tool.get("_meta", {}), **LONG},
                }
                assert shown == expected
                assert "inputSchema" in shown
                assert "outputSchema" not in shown
        assert tools["s__echo"]["annotations"] == {"readOnlyHint": True}
        assert (await client.call("s__echo", message="hi")).text == "hi"
        told = without_identity(await call(client, "s__structured", say=False))
        assert told == {"content": [], "structuredContent": {"n": 1}}
        image = without_identity(await call(client, "s__image"))
        assert image["_meta"] == {"fixture/key": 1}
        assert [block["type"] for block in image["content"]] == ["text", "image"]
        refused = await client.refused("tools/call", {"name": "s__add", "arguments": {}})
        assert refused["code"] == -32602


@both_eras
async def test_a_server_behind_a_url_is_exposed_as_well(tmp_path: Path, *, modern: bool) -> None:
    async with (
        http_server("--era", "modern") as url,
        exposing(tmp_path, ["echo"], modern=modern, entry={"url": url}) as client,
    ):
        await until_listed(client, "s__echo")
        assert (await client.call("s__echo", message="hi")).text == "hi"


@pytest.mark.virtual_time
@both_backends
@both_eras
async def test_a_slow_exposed_tool_becomes_a_task_as_with_execute_tool(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    timeouts = {"call_ms": 100}
    async with exposing(tmp_path, ["*"], modern=modern, era=era, timeouts=timeouts) as client:
        await until_listed(client, "s__slow")
        promoted = await client.call("s__slow", seconds=2)
        assert promoted.json["reason"] == "timeout"
        assert promoted.json["proxy_task"]["tool"] == "slow"
        done = await client.call("get_task_result", task_id=promoted.task)
        assert done.text == "slept 2"


async def test_a_result_of_an_exposed_tool_that_became_a_task_is_all_in_its_blocks(
    tmp_path: Path,
) -> None:
    """Tools of ours have no structured content, whatever they tell of."""
    async with exposing(tmp_path, ["*"], timeouts={"call_ms": 1}) as client:
        await until_listed(client, "s__structured")
        answer = await client.call("s__structured", say=False)
        if "proxy_task" in answer.text:
            answer = await client.call("get_task_result", task_id=answer.task)
            assert answer.text == '{"n":1}'
            assert "structuredContent" not in answer.result


@both_backends
async def test_a_question_during_an_exposed_call_is_asked_with_its_promotion(
    tmp_path: Path, era: str
) -> None:
    async with exposing(tmp_path, ["*"], era=era) as client:
        await until_listed(client, "s__ask")
        asked = await client.call("s__ask")
        assert asked.json["reason"] == "input_required"
        (question,) = asked.questions
        said = {"action": "accept", "content": {"name": "Ada"}}
        await client.call("respond_to_elicitation", request_id=question, **said)
        done = await client.call("get_task_result", task_id=asked.task)
        assert json.loads(done.text)["content"] == {"name": "Ada"}


async def test_the_result_of_an_exposed_tool_carries_no_events_and_the_next_answer_does(
    tmp_path: Path,
) -> None:
    async with exposing(tmp_path, ["*"]) as client:
        await until_listed(client, "s__notify")
        sent = await client.call("s__notify", n=1)
        assert sent.result["content"] == [{"type": "text", "text": "1 sent"}]
        assert "notification" in (await client.call("list_timers")).kinds


async def test_an_error_of_an_exposed_tool_carries_no_events_either(tmp_path: Path) -> None:
    entry = server(tools={"add": "off"})
    async with exposing(tmp_path, ["*"], entry=entry) as client:
        await until_listed(client, "s__notify")
        await client.call("s__notify", n=1)
        refused = await client.call("s__add", a=1, b=2)
        assert "[policy_denied]" in refused.text
        assert refused.events == []
        assert "notification" in (await client.call("list_timers")).kinds


async def test_a_large_result_of_an_exposed_tool_is_paged(tmp_path: Path) -> None:
    async with exposing(tmp_path, ["*"], limits={"result_bytes": 2_000}) as client:
        await until_listed(client, "s__big")
        answer = await client.call("s__big", bytes=50_000)
        uri = answer.json["stored_result"]["uri"]
        page = await client.call("read_resource", server="emceepee", uri=uri, limit=1_000)
        assert "x" * 500 in page.text
        result = json.dumps({"content": [], "structuredContent": {"text": "y" * 50_000}})
        answer = await client.call("s__verbatim", result=result)
        assert "stored_result" in answer.text
        assert "structuredContent" not in answer.result


async def test_progress_and_cancel_reach_an_exposed_call(tmp_path: Path) -> None:
    async with exposing(tmp_path, ["*"]) as client:
        await until_listed(client, "s__progress")
        pending = await client.begin_call("s__progress", token="t", steps=3)
        await pending.answer()
        assert len(pending.progress) == 3
        slow = await client.begin_call("s__slow", seconds=30)
        log = tmp_path / "received.jsonl"
        await until(lambda: '"slow"' in log.read_text())
        await client.cancel(slow)
        await until(lambda: received_by_server(log, "cancelled"))


# Their names


ODD = """
import json, os, sys, time
while "WAIT_FOR" in os.environ and not os.path.exists(os.environ["WAIT_FOR"]):
    time.sleep(0.01)
tools = json.load(open(sys.argv[1]))
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m:
        continue
    if m["method"] == "initialize":
        info = {"name": "odd", "version": "1"}
        r = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    elif m["method"] == "tools/list":
        r = {"tools": tools}
    elif m["method"] == "tools/call":
        r = {"content": [{"type": "text", "text": sys.argv[2] + " ran " + m["params"]["name"]}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
SCHEMA = {"type": "object"}


def odd(tmp_path: Path, who: str, *tools: object, expose: object = True) -> dict[str, Any]:
    """A server that lists these; a name stands for a tool of that name."""
    script = tmp_path / "odd.py"
    script.write_text(ODD)
    given = [{"name": t, "inputSchema": SCHEMA} if isinstance(t, str) else t for t in tools]
    catalogue = tmp_path / f"{who}.json"
    catalogue.write_text(json.dumps(given))
    argv = [plain()[0], str(script), str(catalogue), who]
    return {"command": argv[0], "args": argv[1:], "expose": expose}


@both_eras
async def test_names_that_collide_are_too_long_or_odd_are_told_apart_and_run(
    tmp_path: Path, *, modern: bool
) -> None:
    long = "read_" + "x" * 60
    servers = {
        "a": odd(tmp_path, "a", "b__c", "get.user", "get_user", long, long + "y", "do it 😀"),
        "a__b": odd(tmp_path, "a__b", "c"),
    }
    entry = odd(tmp_path, "s", "fine")
    async with exposing(tmp_path, entry=entry, servers=servers, modern=modern) as client:
        tools = await until_listed(client, "s__fine", "a__do_it__")
        while len(tools) < 8:
            await client.call("await_activity", timeout_ms=20)
            tools = await listed(client)
        assert all(len(name) <= 46 for name in tools)
        assert not {"a__b__c", "a__get_user"} & tools.keys()
        assert len(tools) == 8
        ran = [(await client.call(name)).text for name in tools]
        expected = ["b__c", "get.user", "get_user", long, long + "y", "do it 😀"]
        assert sorted(ran) == sorted(
            [f"a ran {name}" for name in expected] + ["a__b ran c", "s ran fine"]
        )
        again = await listed(client)
        assert list(again) == list(tools)


async def test_a_tool_can_be_called_by_its_own_name_where_only_one_server_has_it(
    tmp_path: Path,
) -> None:
    servers = {
        "a": odd(tmp_path, "a", "mine", "both", "list_timers"),
        "b": odd(tmp_path, "b", "both"),
        "c": odd(tmp_path, "c", "hidden", expose=False),
    }
    async with exposing(tmp_path, ["echo"], servers=servers) as client:
        await until_listed(client, "a__mine", "b__both")
        assert (await client.call("mine")).text == "a ran mine"
        assert (await client.call("list_timers")).json == {"timers": []}
        for name in ("both", "hidden", "c__hidden"):
            refused = await client.refused("tools/call", {"name": name})
            assert refused["code"] == -32602


async def test_what_would_spoil_the_list_for_a_client_is_left_out_and_journaled(
    tmp_path: Path,
) -> None:
    bad: list[object] = [
        {"name": "no_schema"},
        {"name": "array", "inputSchema": {"type": "array"}},
        {"name": "number", "inputSchema": SCHEMA, "description": 7},
        {"name": "hints", "inputSchema": SCHEMA, "annotations": {"readOnlyHint": "yes"}},
        {"name": "icons", "inputSchema": SCHEMA, "icons": [{}]},
        {"name": "meta", "inputSchema": SCHEMA, "_meta": []},
        {"name": "properties", "inputSchema": {"type": "object", "properties": {"a": 7}}},
        {"name": "huge", "inputSchema": SCHEMA, "description": "x" * 70_000},
        {"inputSchema": SCHEMA},
    ]
    nulls = dict.fromkeys(("title", "description", "annotations", "outputSchema", "_meta"))
    good = {
        "name": "good",
        "inputSchema": SCHEMA,
        **nulls,
        "execution": {"taskSupport": "required"},
    }
    many = [
        {"name": f"t{n}", "inputSchema": SCHEMA, "description": "x" * 20_000} for n in range(60)
    ]
    servers = {"flood": odd(tmp_path, "f", *many)}
    entry = odd(tmp_path, "s", *bad, good)
    setting = Setting(
        home=tmp_path / "home", servers={"s": {**entry, "expose": True}, **servers}, fixed=FIXED
    )
    async with exposing(tmp_path, setting=setting) as client:
        tools = await until_listed(client, "s__good", "flood__t0")
        assert tools["s__good"] == {"name": "s__good", "inputSchema": SCHEMA, "_meta": LONG}
        assert [name for name in tools if name.startswith("s__")] == ["s__good"]
        assert 20 < len(tools) < 30, "half a megabyte of one server"
        assert (await client.call("good")).text == "s ran good"
    left = {
        line["server"]: line for line in setting.journal() if line["event"] == "exposed_left_out"
    }
    assert left["s"]["data"]["count"] == len(bad) - 1
    assert left["flood"]["data"]["count"] > 30


@both_eras
async def test_a_name_that_is_not_listed_leads_to_the_tool_that_runs_it(
    tmp_path: Path, *, modern: bool
) -> None:
    servers = {"c": odd(tmp_path, "c", "hidden", "c__echo", expose=False)}
    async with exposing(tmp_path, ["echo"], modern=modern, servers=servers) as client:
        await until_listed(client, "s__echo")
        await client.connected("s", "c")
        for name, server_name, tool in (("s__add", "s", "add"), ("c__hidden", "c", "hidden")):
            refused = await client.refused("tools/call", {"name": name})
            assert refused["message"] == (
                f"Unknown tool: {name}. Call execute_tool with server {server_name!r} and tool "
                f"{tool!r}."
            )
        refused = await client.refused("tools/call", {"name": "no_such_tool"})
        assert refused["message"] == (
            "Unknown tool: no_such_tool. Call list_tools to find the tools of servers, and "
            "execute_tool to run one."
        )


@both_eras
async def test_a_call_of_an_exposed_tool_waits_for_its_server_to_list_it(
    tmp_path: Path, *, modern: bool
) -> None:
    """The client knows the name from an earlier session, and its server is slow to start."""
    opened = tmp_path / "opened"
    entry = odd(tmp_path, "late", "echo", expose=["echo"])
    entry["env"] = {"WAIT_FOR": str(opened)}
    setting = Setting(home=tmp_path / "home", servers={"s": entry}, fixed={"exposed_pace_s": 30})
    async with proxy(setting, modern=modern) as client:
        waiting = await client.begin_call("s__echo")
        unknown = await client.begin("tools/call", {"name": "s__other"})
        await client.refused("tools/call", {"name": "t__echo"})
        opened.touch()
        assert (await waiting.answer()).text == "late ran echo"
        assert (await unknown.error())["message"].startswith("Unknown tool: s__other. Call ")


async def test_a_call_of_an_exposed_tool_says_why_its_server_cannot_list_it(tmp_path: Path) -> None:
    entry = {"command": "/nowhere/at/all", "expose": True}
    setting = Setting(home=tmp_path / "home", servers={"s": entry}, fixed=FIXED)
    async with proxy(setting) as client:
        refused = await client.refused("tools/call", {"name": "s__echo"})
        assert refused["code"] == -32602
        assert "Unknown tool: s__echo. " in refused["message"]
        assert "/nowhere/at/all" in refused["message"]


async def test_execute_tool_knows_a_tool_of_the_server_by_the_name_under_which_it_is_listed(
    tmp_path: Path,
) -> None:
    servers = {"c": odd(tmp_path, "c", "echo", "c__echo", "off", "get.it")}
    servers["c"]["tools"] = {"off": "off"}
    async with exposing(tmp_path, ["echo"], servers=servers) as client:
        await until_listed(client, "s__echo", "c__get_it")
        said = await client.execute("s__echo", args={"message": "hi"})
        assert said.text == "hi"
        said = await client.call(
            "execute_readonly_tool", server="s", tool="s__echo", args={"message": "hi"}
        )
        assert said.text == "hi"
        assert (await client.execute("c__get_it", "c")).text == "c ran get.it"
        assert (await client.execute("c__echo", "c")).text == "c ran c__echo", "its own name"
        assert "'off' of c is off by a rule" in (await client.execute("c__off", "c")).text
        said = await client.execute("s__add", args={"a": 1, "b": 2})
        assert "has no tool 's__add'" in said.text
        assert "Call execute_tool with server 's' and tool 'add'." in said.text


async def test_the_listing_tools_say_under_which_name_a_tool_is_exposed(tmp_path: Path) -> None:
    forged = {"name": "echo", "inputSchema": SCHEMA, "exposed_as": "s__echo"}
    servers = {"c": odd(tmp_path, "c", forged, expose=False)}
    async with exposing(tmp_path, ["echo", "a*"], servers=servers) as client:
        await until_listed(client, "s__echo", "s__add")
        await client.connected("s", "c")
        for detail in ("names", "summary", "full"):
            found = (await client.call("list_tools", tool="echo|slow", detail=detail)).json
            names = {(one["server"], one["name"]): one.get("exposed_as") for one in found["tools"]}
            assert names == {("s", "echo"): "s__echo", ("s", "slow"): None, ("c", "echo"): None}
        (whole,) = (await client.call("list_servers", name="s")).json["servers"]
        assert whole["exposed_as"][:2] == ["s__add", "s__ask"]
        assert "s__echo" in whole["exposed_as"]
        (other,) = (await client.call("list_servers", name="c")).json["servers"]
        assert "exposed_as" not in other
        assert "exposed_as" not in (await client.call("list_servers")).text


# Who may show


async def test_a_server_that_a_model_put_in_the_place_of_an_exposed_one_is_not_exposed(
    tmp_path: Path,
) -> None:
    more = {"policy": {"mode": "allow"}}
    async with exposing(tmp_path, ["echo"], more=more) as client:
        await until_listed(client, "s__echo")
        await client.call("remove_server", name="s")
        await client.received(lambda: len(changes(client)) >= 2)
        assert await listed(client) == {}
        other = odd(tmp_path, "impostor", "echo")
        del other["expose"]
        assert not (await client.call("add_server", name="s", **other)).is_error
        assert await listed(client) == {}
        for name in ("s__echo", "echo"):
            refused = await client.refused("tools/call", {"name": name})
            assert refused["code"] == -32602
        assert (await client.execute("echo")).text == "impostor ran echo"


async def test_a_model_cannot_expose_anything(tmp_path: Path) -> None:
    async with exposing(tmp_path, ["echo"]) as client:
        added = odd(tmp_path, "x", "x")
        said = await client.call("add_server", name="x", **added)
        assert "there is no argument 'expose'" in said.text


# Changes


@both_backends
@both_eras
async def test_a_change_of_the_tools_is_told_once_and_listed(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with exposing(tmp_path, ["grow*"], modern=modern, era=era) as client:
        tools = await until_listed(client, "s__grow")
        assert list(tools) == ["s__grow"]
        before = len(changes(client))
        name = (await client.call("s__grow")).text
        await client.received(lambda: len(changes(client)) > before)
        assert list(await listed(client)) == ["s__grow", f"s__{name}"]
        note = changes(client)[-1]
        meta = note.get("params", {}).get("_meta", {})
        assert (f"{P}subscriptionId" in meta) is modern
        assert (await client.call(f"s__{name}")).text == "grown"
        assert len(changes(client)) == before + 1
        assert not changes(client, "notifications/prompts/list_changed")


async def test_a_modern_client_is_told_only_of_what_it_listens_for(tmp_path: Path) -> None:
    setting = Setting(home=tmp_path / "home", servers={"s": server(expose=["grow*"])}, fixed=FIXED)
    async with proxy(setting, modern=True) as client:
        client.exposes = True
        for wanted in ({"promptsListChanged": True}, {"toolsListChanged": True}):
            params = {"notifications": wanted}
            await client.begin("subscriptions/listen", params, id=f"l-{next(iter(wanted))}")
        await client.received(lambda: len(client.notifications) >= 2)
        granted = [note["params"]["notifications"] for note in client.notifications[:2]]
        assert granted == [{"promptsListChanged": True}, {"toolsListChanged": True}]
        await until_listed(client, "s__grow")
        ids = {note["params"]["_meta"][f"{P}subscriptionId"] for note in changes(client)}
        assert ids == {"l-toolsListChanged"}


async def test_an_edit_of_the_configuration_changes_what_is_exposed_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    log = tmp_path / "received.jsonl"
    entry = server(log=log)
    setting = Setting(
        home=tmp_path / "home", servers={"s": {**entry, "expose": ["echo"]}}, fixed=FIXED
    )

    def edit(**more: Any) -> None:
        new = setting.home / "config.json.new"
        new.write_text(json.dumps({"mcpServers": {"s": {**entry, **more}}}))
        new.replace(setting.config)

    async with exposing(tmp_path, setting=setting) as client:
        await until_listed(client, "s__echo")
        assert list(await listed(client)) == ["s__echo"]
        edit(expose=["echo", "add"])
        await until_listed(client, "s__add")
        before = len(changes(client))
        edit(expose=["echo", "add"], tools={"add": "off"})
        await client.received(lambda: len(changes(client)) > before)
        assert list(await listed(client)) == ["s__echo"]
        assert "[policy_denied]" in (await client.call("s__add", a=1, b=2)).text
        edit()
        await client.received(lambda: len(changes(client)) > before + 1)
        assert await listed(client) == {}
        assert (await client.execute("echo", args={"message": "hi"})).text == "hi"
        begun = [m for m in received_by_server(log) if m["message"].get("method") == "initialize"]
        assert len(begun) == 1
