"""The record of every request: its legs add up to its time, and it says how the request ended."""

import json
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    Client,
    Message,
    Setting,
    both_backends,
    both_eras,
    command,
    proxy,
    received_by_server,
    server,
)
from tests.e2e.hosts import proposal
from tests.e2e.persons import ADA, person
from tests.peers import rude

ONCE = {"action": "accept", "content": {"decision": "Yes, this time"}}


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    servers = {"s": server(era=era, log=tmp_path / "log")}
    return Setting(home=tmp_path / "home", servers=servers, **more)


def of_tool(made: Setting, tool: str) -> list[Message]:
    """The records of one tool, ours or a server's."""
    return [r for r in made.records() if tool in (r.get("server_tool"), r.get("tool"))]


def legs(record: Message) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, ms in record["legs"]:
        found[name] = found.get(name, 0.0) + ms
    return found


def check(made: Setting) -> None:
    """What holds of all records: once each, and the legs add up."""
    records = made.records()
    assert len({record["id"] for record in records}) == len(records)
    for record in records:
        assert sum(ms for _, ms in record["legs"]) == pytest.approx(record["duration_ms"], abs=0.1)
        assert 1 <= len(record["legs"]) <= 32
        assert all(ms >= 0 for _, ms in record["legs"])


async def test_a_call_that_reaches_no_server_is_recorded_with_the_one_that_it_names(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path)
    made.servers["s"]["tools"] = {"echo": "off"}
    made.servers["odd"] = {"command": 5}
    made.servers["gone"] = {"command": "no-such-command"}
    async with proxy(made) as client:
        await client.connected("s")
        for tool, name in (("echo", "s"), ("a", "odd"), ("a", "gone"), ("a", "nobody")):
            assert (await client.execute(tool, name, args={})).is_error
        assert (await client.call("execute_tool", tool="echo", args={})).is_error
        assert (await client.call("execute_tool", server="s", args={})).is_error
        assert (await client.call("get_prompt", server="nobody", name="x")).is_error
        assert (await client.call("reconnect_server", name="odd")).is_error
        await client.refused("tools/call", {"name": "s__nope", "arguments": {}})
    check(made)
    calls = [r for r in made.records() if r["method"] == "tools/call" and r["outcome"] == "error"]
    assert [(r.get("server"), r.get("server_tool")) for r in calls] == [
        ("s", "echo"),
        ("odd", "a"),
        ("gone", "a"),
        ("nobody", "a"),
        ("s", "echo"),
        ("s", None),
        ("nobody", None),
        ("odd", None),
        ("s", "nope"),
    ]


@both_eras
@both_backends
async def test_a_plain_call_is_recorded_with_its_server_its_bytes_and_its_legs(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    made = setting(tmp_path, era)
    async with proxy(made, modern=modern) as client:
        await client.connected()
        pending = await client.begin_execute("slow", args={"seconds": 1.2})
        answer = await pending.answer()
    check(made)
    [record] = of_tool(made, "slow")
    assert record["kind"] == "request"
    assert record["request_id"] == pending.id
    assert (record["method"], record["tool"]) == ("tools/call", "execute_tool")
    assert (record["server"], record["outcome"]) == ("s", "ok")
    assert legs(record)["server"] >= 1200
    assert legs(record)["server"] > 0.5 * record["duration_ms"]
    assert record["bytes_in"] > 60
    assert record["bytes_out"] > len(answer.text)
    assert "parent" not in record


async def test_a_call_that_becomes_a_task_ends_as_promoted_and_the_task_has_a_record_of_its_own(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path)
    async with proxy(made) as client:
        await client.connected()
        begun = await client.execute("slow", args={"seconds": 2.5}, timeout_ms=50)
        await client.call("get_task_result", task_id=begun.task)
    check(made)
    [request, task] = of_tool(made, "slow")
    assert (request["kind"], request["outcome"]) == ("request", "promoted")
    assert (task["kind"], task["outcome"]) == ("task", "ok")
    assert task["parent"] == request["id"]
    assert task["task_id"] == request["task_id"] == begun.task
    assert request["duration_ms"] + task["duration_ms"] >= 2500
    assert legs(task)["server"] > 100
    assert "request_id" not in task
    assert task["start_ms"] == pytest.approx(request["start_ms"] + request["duration_ms"], abs=0.1)
    [waiting] = of_tool(made, "get_task_result")
    assert legs(waiting)["waiting"] > 0.5 * waiting["duration_ms"]


async def test_failed_cancelled_and_refused_requests_say_how_they_ended(tmp_path: Path) -> None:
    made = setting(tmp_path)
    async with proxy(made) as client:
        await client.connected()
        assert (await client.execute("fail")).is_error
        assert (await client.execute("rpc_error", args={"code": -32000})).is_error
        assert (await client.execute("echo", "nobody")).is_error
        pending = await client.begin_execute("slow", args={"seconds": 60})
        await client.call("list_servers")
        await client.cancel(pending)
        await client.refused("tools/call", {"name": "no_such_tool"})
        await client.refused("resources/read", {"uri": "emceepee://nothing"})
    check(made)
    [failed] = of_tool(made, "fail")
    assert failed["outcome"] == "tool_error"
    assert "error_code" not in failed
    [refused] = of_tool(made, "rpc_error")
    assert (refused["outcome"], refused["error_code"]) == ("error", "call_failed")
    [cancelled] = of_tool(made, "slow")
    assert cancelled["outcome"] == "cancelled"
    codes = [record.get("error_code") for record in made.records()]
    assert "server_not_found" in codes
    assert "resource_not_found" in codes
    assert "-32602" in codes


async def test_the_time_in_which_a_server_connects_is_a_leg_of_the_call_that_waits_for_it(
    tmp_path: Path,
) -> None:
    slow = command(rude("slow-start", "1"), era="legacy", lazy=True)
    made = Setting(home=tmp_path / "home", servers={"s": slow})
    async with proxy(made) as client:
        assert not (await client.execute("echo", args={"message": "x"})).is_error
    check(made)
    [record] = of_tool(made, "echo")
    assert [name for name, _ in record["legs"]].count("connecting") == 1
    assert legs(record)["connecting"] >= 1000


async def test_a_crash_ends_its_calls_and_tasks_in_the_records_too(tmp_path: Path) -> None:
    crash = command(rude("crash-on-call"), era="legacy")
    made = Setting(home=tmp_path / "home", servers={"s": crash})
    async with proxy(made) as client:
        await client.connected()
        assert (await client.execute("misbehave")).is_error
        await client.until_event("server_disconnected")
        await client.connected()
        begun = await client.execute("misbehave", timeout_ms=0)
        await client.until_event("task_failed", task_id=begun.task)
    check(made)
    [call, promoted, task] = of_tool(made, "misbehave")
    assert (call["outcome"], call["error_code"]) == ("error", "server_disconnected")
    assert promoted["outcome"] == "promoted"
    assert (task["outcome"], task["error_code"]) == ("error", "server_disconnected")


async def answered(client: Client, request_id: str) -> None:
    await client.call("respond_to_elicitation", request_id=request_id, action="decline")


@both_backends
async def test_what_waits_for_an_answer_of_the_client_is_a_leg_of_its_own(
    tmp_path: Path, era: str
) -> None:
    made = setting(tmp_path, era)
    async with proxy(made) as client:
        await client.connected()
        begun = await client.execute("ask")
        [question] = begun.questions
        await anyio.sleep(0.2)  # time that has to be found again in the record
        await answered(client, question)
        await client.call("get_task_result", task_id=begun.task)
    check(made)
    [request, task] = of_tool(made, "ask")
    assert request["outcome"] == "promoted"
    assert request["questions"] == 1
    assert legs(request)["model"] > 0
    assert legs(task)["model"] >= 200
    assert legs(task).get("person", 0) == 0


@both_eras
def test_the_time_that_a_person_takes_is_theirs_in_both_eras(
    tmp_path: Path, *, modern: bool
) -> None:
    with person(tmp_path, modern=modern) as client:
        call = client.begin("ask", args={"mode": "form"})
        client.asked(call)
        time.sleep(0.3)  # that the person thinks
        client.said_to(client.say(call, {"action": "accept", "content": ADA}))
        approved = client.start("add_server", **proposal())
        client.asked(approved, 1)
        time.sleep(0.3)
        client.said_to(client.say(approved, ONCE, 1))
    lines = (tmp_path / "journal").glob("requests-*.jsonl")
    records = [json.loads(line) for path in lines for line in path.read_text().splitlines()]
    for tool in ("execute_tool", "add_server"):
        made = [record for record in records if record.get("tool") == tool]
        assert [r["outcome"] for r in made] == (["input_required"] if modern else []) + ["ok"]
        person_ms = legs(made[-1])["person"]
        assert 300 <= person_ms < made[-1]["duration_ms"]
        assert sum(ms for _, ms in made[-1]["legs"]) == pytest.approx(
            made[-1]["duration_ms"], abs=0.1
        )


async def test_what_is_open_when_the_client_leaves_is_recorded(tmp_path: Path) -> None:
    made = setting(tmp_path)
    async with proxy(made, modern=True) as client:
        await client.connected()
        await client.execute("slow", args={"seconds": 60}, timeout_ms=0)
        await client.begin("subscriptions/listen", {"notifications": {}})
        await client.call("list_servers")
    check(made)
    assert [r["outcome"] for r in of_tool(made, "slow")] == ["promoted", "error"]
    [stream] = [r for r in made.records() if r["method"] == "subscriptions/listen"]
    assert stream["outcome"] == "cancelled"


async def test_a_traceparent_stands_in_the_record_and_reaches_the_server(tmp_path: Path) -> None:
    made = setting(tmp_path)
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with proxy(made) as client:
        await client.connected()
        call = {"name": "execute_tool", "arguments": {"server": "s", "tool": "echo", "args": {}}}
        await client.request("tools/call", {**call, "_meta": {"traceparent": parent}})
        await client.request("tools/call", {**call, "_meta": {"traceparent": "<script>"}})
        uri = (await client.call("list_resources")).json["resources"][0]["uri"]
        await client.request("resources/read", {"uri": uri, "_meta": {"traceparent": parent}})
    check(made)
    assert [r.get("traceparent") for r in of_tool(made, "echo")] == [parent, None]
    [read] = [r for r in made.records() if r["method"] == "resources/read"]
    assert (read["traceparent"], read["server"]) == (parent, "s")
    sent = [
        line["message"]["params"].get("_meta", {}).get("traceparent")
        for line in received_by_server(tmp_path / "log")
        if line["message"].get("method") in ("tools/call", "resources/read")
    ]
    assert sent == [parent, "<script>", parent]


async def test_a_model_reads_the_last_requests_of_its_own_session(tmp_path: Path) -> None:
    made = setting(tmp_path, more={"logging": {"payloads": True}})
    async with proxy(made) as client:
        await client.connected()
        await client.execute("fail", args={"x": "a payload"})
        told = await client.call("read_resource", server="emceepee", uri="emceepee://trace")
        native = await client.request("resources/read", {"uri": "emceepee://trace"})
    requests = json.loads(told.text)["requests"]
    [failed] = [r for r in requests if r.get("server_tool") == "fail"]
    assert (failed["server"], failed["outcome"]) == ("s", "tool_error")
    assert "a payload" not in told.text
    assert len(json.loads(native["contents"][0]["text"])["requests"]) == len(requests) + 1


async def test_progress_is_counted(tmp_path: Path) -> None:
    made = setting(tmp_path)
    async with proxy(made) as client:
        await client.connected()
        await client.call("execute_tool", token="t", server="s", tool="progress", args={"steps": 5})
    check(made)
    [record] = of_tool(made, "progress")
    assert record["progress"] == 5
