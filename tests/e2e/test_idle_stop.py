"""Servers that are stopped because nobody uses them, and started by whoever needs them next."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    WAIT_S,
    Client,
    Setting,
    both_backends,
    proxy,
    received_by_server,
    server,
)

SOON_MS = 150  # without a use, so that a test need not wait for it


def setting_of(home: Path, *, era: str = "legacy", **fields: Any) -> Setting:
    return Setting(home=home, servers={"s": server(era=era, idle_stop_ms=SOON_MS, **fields)})


async def pid_of(client: Client) -> int | None:
    (facts,) = (await client.call("list_servers", name="s")).json["servers"]
    return facts.get("pid")


async def until_idle(client: Client) -> None:
    with anyio.fail_after(WAIT_S):
        while (await client.call("list_servers")).json["servers"][0]["phase"] != "idle":
            await anyio.sleep(0.05)


def lines(setting: Setting, event: str) -> int:
    return len([one for one in setting.journal() if one["event"] == event])


@both_backends
async def test_a_server_is_stopped_without_a_word_and_the_next_call_starts_it(
    tmp_path: Path, era: str
):
    setting = setting_of(tmp_path, era=era, log=tmp_path / "log")
    async with proxy(setting) as client:
        before = (await client.call("list_tools", server="s", detail="names")).json
        await client.drain()
        told_before = len(client.events)
        await until_idle(client)
        assert await pid_of(client) is None
        told = (await client.call("list_tools", detail="names")).json
        assert told["tools"] == before["tools"]
        assert set(told["from_catalogue"]) == {"s"}
        answer = await client.execute("echo", args={"message": "again"})
        assert (answer.text, answer.events) == ("again", [])
        await until_idle(client)
        await client.quiet()
        assert client.events[told_before:] == [], "no loss, no health, no restart"
    first, second = [line["pid"] for line in received_by_server(tmp_path / "log", "start")]
    assert first != second
    assert lines(setting, "server_idle") == 2
    assert lines(setting, "server_disconnected") == 0
    assert lines(setting, "server_reconnecting") == 0


async def test_calls_that_come_while_it_is_stopped_are_all_answered(tmp_path: Path):
    setting = setting_of(tmp_path)
    setting.servers["s"]["idle_stop_ms"] = 1
    async with proxy(setting) as client:
        assert (await client.execute("echo", args={"message": "up"})).text == "up"
        await client.drain()
        told_before = len(client.events)
        for number in range(15):
            answer = await client.execute("echo", args={"message": str(number)})
            assert answer.text == str(number), answer
            await anyio.sleep(0.004 * (number % 8))
        assert client.events[told_before:] == []


@pytest.mark.parametrize("what", ["call", "task", "question", "subscription"])
async def test_nothing_that_is_open_is_ended_by_it(tmp_path: Path, what: str):
    setting = setting_of(tmp_path)
    setting.more = {"questions": "tools"}
    async with proxy(setting) as client:
        if what == "question":
            asked = await client.execute("ask")
            (question,) = asked.questions
        elif what == "subscription":
            await client.call("subscribe_resource", server="s", uri="fixture://one")
        else:
            within = {"timeout_ms": 0} if what == "task" else {}
            pending = await client.begin_execute("slow", args={"seconds": 1.0}, **within)
        first = await pid_of(client)
        # More than six times as long as it takes to be stopped.
        assert not (await client.call("set_timer", duration_ms=1000, message="m")).is_error
        await client.until_event("timer_expired")
        if what in ("question", "subscription"):
            assert await pid_of(client) == first
        if what == "question":
            answered = await client.call(
                "respond_to_elicitation",
                request_id=question,
                action="accept",
                content={"name": "x"},
            )
            assert not answered.is_error, answered
            result = await client.call("get_task_result", task_id=asked.task)
            assert not result.is_error, result
        elif what == "subscription":
            await client.execute("touch", args={"uri": "fixture://one"})
            await client.until_event("notification", method="notifications/resources/updated")
            await client.call("unsubscribe_resource", server="s", uri="fixture://one")
        else:
            answer = await pending.answer()
            if what == "task":
                answer = await client.call("get_task_result", task_id=answer.task)
            assert not answer.is_error, answer
        await until_idle(client)


async def test_without_the_setting_a_server_runs_on(tmp_path: Path):
    setting = setting_of(tmp_path)
    setting.servers["s"]["idle_stop_ms"] = 0
    setting.more = {"idle_stop_ms": 1}
    setting.servers["t"] = server()
    async with proxy(setting) as client:
        await client.connected("s")
        with anyio.fail_after(WAIT_S):
            while True:
                servers = (await client.call("list_servers")).json["servers"]
                phases = {one["name"]: one["phase"] for one in servers}
                if phases["t"] == "idle":
                    break
                await anyio.sleep(0.05)
        assert phases["s"] == "connected"
