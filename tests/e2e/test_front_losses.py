import os
import signal
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.backend_harness import HttpServer
from tests.e2e.client import (
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.peers import rude


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    log = tmp_path / "log"
    restart = {"base_ms": 300}
    return Setting(
        home=tmp_path / "home",
        servers={"s": server(era=era, log=log)},
        more={"restart": restart, **more},
        fixed={"restart_jitter": 0},
    )


async def pid(client: Client) -> int:
    [shown] = (await client.call("list_servers", name="s")).json["servers"]
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
        [shown] = (await client.call("list_servers", name="s")).json["servers"]
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
@pytest.mark.real
async def test_a_server_that_was_killed_is_said_to_be(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        await client.call("list_tools", server="s")
        await client.execute("mute", args={"methods": ["tools/call"]})
        safe = await client.begin_execute("echo", args={"message": "x"})
        unsafe = await client.begin_execute("add", args={"a": 1, "b": 2})
        await until(lambda: _received(tmp_path / "log", "add"))
        os.kill(await pid(client), signal.SIGKILL)
        killed = await safe.answer()
        assert killed.is_error
        assert "signal" in killed.text.lower() or "SIGKILL" in killed.text
        assert "may be repeated safely" in killed.text
        assert "check before repeating it" in (await unsafe.answer()).text
        # The next call does not wait for the pause to end.
        assert (await client.execute("echo", args={"message": "now"})).text == "now"


def _received(log: Path, tool: str) -> bool:
    return any(
        line["message"].get("params", {}).get("name") == tool for line in received_by_server(log)
    )


LOST = {"type": "server_disconnected", "server": "s"}
# The call that the loss finds in flight is no task by then, however late the loss comes.
PATIENT = {"question_pending_s": 30}


async def the_state_after_the_loss(client: Client, kill: Callable[[], None]) -> None:
    """A wait that the loss of a server ends shows the state after it, never the one before."""
    task = (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
    asking = (await client.execute("ask")).task
    await client.drain()
    waits = await client.begin_call("await_activity", timeout_ms=40_000)
    flying = await client.begin_execute("slow", args={"seconds": 60})
    await client.call("list_tasks")  # both have been taken up
    kill()
    answer = (await waits.answer()).json
    assert LOST in answer["triggers"]
    assert answer["pending_server"] == []
    assert answer["pending_client"] == {"elicitations": [], "sampling_requests": []}
    assert "[server_disconnected]" in (await flying.answer()).text
    await client.drain()
    failed = [e["data"]["task_id"] for e in client.events if e["type"] == "task_failed"]
    assert {task, asking} <= set(failed)


@pytest.mark.real
async def test_a_wait_that_a_crash_ends_sees_the_state_after_it(tmp_path: Path) -> None:
    made = setting(tmp_path, restart={"base_ms": 1, "attempts": 100})
    made.fixed |= PATIENT
    async with proxy(made) as client:
        for _ in range(3):
            await client.connected()
            number = await pid(client)
            await the_state_after_the_loss(client, partial(os.kill, number, signal.SIGKILL))
            assert (await client.execute("echo", args={"message": "back"})).text == "back"


async def test_a_wait_that_the_loss_of_an_http_server_ends_sees_the_state_after_it(
    tmp_path: Path,
) -> None:
    behind = HttpServer(["--era", "legacy"], {})
    await behind.start()
    made = setting(tmp_path)
    made.fixed |= PATIENT
    made.servers = {"s": {"url": behind.url}}
    try:
        async with proxy(made) as client:
            await client.connected()
            await the_state_after_the_loss(client, behind.kill)
    finally:
        behind.kill()


async def _removed(client: Client, made: Setting) -> None:
    del made
    await client.call("remove_server", name="s")


async def _replaced(client: Client, made: Setting) -> None:
    entry = dict(made.servers["s"], env={"OTHER": "1"})
    await client.call("add_server", name="s", replace=True, **entry)


async def _taken_from_the_file(client: Client, made: Setting) -> None:
    made.servers = {}
    made.write()
    await client.until_event("server_removed")


@both_backends
@pytest.mark.parametrize("leave", [_removed, _replaced, _taken_from_the_file])
async def test_a_call_whose_server_goes_is_told_that_it_may_have_been_carried_out(
    tmp_path: Path, era: str, leave: Callable[[Client, Setting], Awaitable[None]]
) -> None:
    made = setting(tmp_path, era, policy={"mode": "allow"})
    made.fixed["config_poll_s"] = 0.02
    async with proxy(made) as client:
        await client.connected()
        plain = await client.begin_execute("slow", args={"seconds": 60})
        quoted = await client.begin_execute("slow", args={"seconds": "60"})
        await until(lambda: sum(map(_is_slow, received_by_server(tmp_path / "log"))) == 2)
        await leave(client, made)
        for call in (plain, quoted):
            answer = await call.answer()
            assert answer.is_error
            assert "[server_disconnected]" in answer.text
            assert "check before repeating it" in answer.text


def _is_slow(line: dict[str, Any]) -> bool:
    return line["message"].get("params", {}).get("name") == "slow"


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
