import os
import signal
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    PATIENCE,
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    heard_by_server,
    proxy,
    server,
    until,
)
from tests.peers import rude


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    log = tmp_path / "log"
    restart = {"base_ms": 300, "jitter": 0}
    return Setting(
        home=tmp_path / "home",
        servers={"s": server(era=era, log=log)},
        more={"restart": restart, **more},
    )


async def pid(client: Client) -> int:
    [shown] = (await client.call("list_servers")).json["servers"]
    return shown["pid"]


@both_eras
@both_backends
async def test_a_server_that_dies_in_a_call_gets_a_post_mortem_and_comes_back(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        await client.drain()
        client.events.clear()
        first = await pid(client)
        others = [await client.begin_execute("slow", args={"seconds": 60}) for _ in range(2)]
        task = (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
        died = await client.execute("crash", args={"code": 3})
        answers = [died, *[await other.answer() for other in others]]
        for answer in answers:
            assert answer.is_error
            assert "exited with code 3" in answer.text
            assert "crashing with code 3, as asked" in answer.text
            assert "[server_disconnected]" in answer.text
            assert "1 of 5" in answer.text
            assert "check before repeating it" in answer.text
        assert (await client.call("get_task_result", task_id=task)).is_error
        again = await client.until_event("server_reconnected")
        assert again["data"]["era"] == era
        assert (await client.execute("echo", args={"message": "back"})).text == "back"
        assert await pid(client) != first
        [shown] = (await client.call("list_servers")).json["servers"]
        assert shown["restarts"] == 1
        await client.quiet()
        kinds = [e["type"] for e in client.events]
        for kind in (
            "process_crashed",
            "server_disconnected",
            "server_reconnecting",
            "process_started",
            "server_reconnected",
            "task_failed",
        ):
            assert kinds.count(kind) == 1, (kind, kinds)
        assert kinds.index("server_disconnected") < kinds.index("server_reconnected")


@both_eras
async def test_a_server_that_was_killed_is_said_to_be(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        await client.call("list_tools", server="s")
        await client.execute("mute", args={"methods": ["tools/call"]})
        safe = await client.begin_execute("echo", args={"message": "x"})
        unsafe = await client.begin_execute("add", args={"a": 1, "b": 2})
        await until(lambda: _heard(tmp_path / "log", "add"))
        os.kill(await pid(client), signal.SIGKILL)
        killed = await safe.answer()
        assert killed.is_error
        assert "signal" in killed.text.lower() or "SIGKILL" in killed.text
        assert "may be repeated safely" in killed.text
        assert "check before repeating it" in (await unsafe.answer()).text
        # The next call does not wait for the pause to end.
        assert (await client.execute("echo", args={"message": "now"})).text == "now"


def _heard(log: Path, tool: str) -> bool:
    return any(
        line["message"].get("params", {}).get("name") == tool for line in heard_by_server(log)
    )


async def test_a_wait_is_told_which_server_was_lost(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        waits = await client.begin_call("await_activity", timeout_ms=40_000)
        os.kill(await pid(client), signal.SIGKILL)
        triggers = (await waits.answer()).json["triggers"]
        with anyio.fail_after(PATIENCE):
            while {"type": "server_disconnected", "server": "s"} not in triggers:
                if "server_disconnected" in [e["type"] for e in client.events]:
                    break
                triggers = (await client.call("await_activity")).json["triggers"]
        await client.until_event("server_reconnected")


@both_eras
async def test_a_server_that_keeps_dying_is_given_up_and_tried_again_when_asked(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, restart={"base_ms": 10, "attempts": 2})
    made.servers = {"r": command(rude("crash-loop"))}
    async with proxy(made, modern=modern) as client:
        failed = await client.until_event("server_restart_failed")
        assert failed["server"] == "r"
        [shown] = (await client.call("list_servers")).json["servers"]
        assert shown["phase"] == "failed"
        assert shown["last_error"]
        # The next call tries again; it may even be quick enough.
        tried = await client.execute("echo", "r", args={"message": "x"})
        assert tried.text == "x" or "[server_" in tried.text
        again = await client.call("reconnect_server", name="r")
        assert again.is_error or again.json["phase"] in ("connected", "reconnecting", "connecting")


@pytest.mark.parametrize(
    ("mode", "said"),
    [("exit-at-once", "license file"), ("init-error", "database"), ("wrong-version", "1999-01-01")],
)
async def test_a_call_to_a_server_that_cannot_start_says_why(
    tmp_path: Path, mode: str, said: str
) -> None:
    made = setting(tmp_path)
    made.servers = {"r": command(rude(mode))}
    async with proxy(made) as client:
        answer = await client.execute("echo", "r", args={"message": "x"})
        assert answer.is_error
        assert said in answer.text
        assert "[server_" in answer.text
        await client.drain()
        status = await client.status()
        assert status["calls_in_flight"] == 0


async def test_a_command_that_is_not_there_fails_for_good_and_says_so(tmp_path: Path) -> None:
    made = setting(tmp_path)
    made.servers = {"n": {"command": "no-such-command-anywhere"}}
    async with proxy(made) as client:
        await client.until_event("server_restart_failed")
        [shown] = (await client.call("list_servers")).json["servers"]
        assert shown["phase"] == "failed"
        assert "no-such-command-anywhere" in shown["last_error"]
        answer = await client.execute("echo", "n", args={"message": "x"})
        assert "[server_failed]" in answer.text


@both_backends
async def test_a_storm_of_deaths_leaves_nothing_waiting(tmp_path: Path, era: str) -> None:
    """Calls, tasks, questions and waits end with the server, whatever they were doing."""
    made = setting(tmp_path, era, restart={"base_ms": 1, "attempts": 100})
    async with proxy(made) as client:
        await client.connected()
        for _ in range(4):
            calls = [await client.begin_execute("slow", args={"seconds": 60}) for _ in range(5)]
            calls += [await client.begin_execute("ask") for _ in range(2)]
            await client.execute("slow", args={"seconds": 60}, timeout_ms=0)
            crash = await client.begin_execute("crash", timeout_ms=0)
            for call in (*calls, crash):
                answer = await call.answer()
                if not answer.is_error:
                    waited = await client.call("get_task_result", task_id=answer.task)
                    while not waited.is_error:
                        waited = await client.call("get_task_result", task_id=answer.task)
            assert (await client.execute("echo", args={"message": "x"})).text == "x"
        await client.quiet()
        status = await client.status()
        assert status["working_tasks"] == 0
        assert status["pending_requests"] == 0
        expired = [e["data"]["request_id"] for e in client.events if "_expired" in e["type"]]
        assert len(expired) == len(set(expired))
        failed = [e["data"]["task_id"] for e in client.events if e["type"] == "task_failed"]
        assert len(failed) == len(set(failed))
