from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    WAIT_S,
    Setting,
    both_backends,
    both_eras,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    log = tmp_path / "log"
    return Setting(home=tmp_path / "home", servers={"s": server(era=era, log=log)}, **more)


@both_eras
@both_backends
async def test_a_cancelled_call_is_cancelled_at_the_server_and_never_answered(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    log = tmp_path / "log"
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        slow = await client.begin_execute("slow", args={"seconds": 60})
        await until(lambda: _calls(log, "slow"))
        await client.cancel(slow)
        await until(lambda: received_by_server(log, "cancelled"))
        [asked] = _calls(log, "slow")
        cancelled = [
            line["message"]["params"]
            for line in received_by_server(log)
            if line["message"].get("method") == "notifications/cancelled"
        ]
        assert [params["requestId"] for params in cancelled] == [asked["id"]]
        assert (await client.execute("echo", args={"message": "alive"})).text == "alive"
        await client.quiet()
        assert slow.message is None


@both_eras
async def test_a_place_that_a_cancel_frees_goes_to_the_call_that_waits_for_it(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, limits={"server_calls": 1})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        slow = await client.begin_execute("slow", args={"seconds": 60})
        await until(lambda: _calls(tmp_path / "log", "slow"))
        waits = await client.begin_execute("echo", args={"message": "next"})
        await client.call("list_servers")  # answered after it was queued
        assert not _calls(tmp_path / "log", "echo")
        await client.cancel(slow)
        assert (await waits.answer()).text == "next"
        await client.quiet()


def _calls(log: Path, tool: str) -> list[dict[str, Any]]:
    return [
        line["message"]
        for line in received_by_server(log)
        if line["message"].get("method") == "tools/call"
        and line["message"]["params"]["name"] == tool
    ]


@both_backends
async def test_cancels_at_every_moment_leave_no_place_taken(tmp_path: Path, era: str) -> None:
    """Before the call began, while it runs, while it is promoted, after it has been answered."""
    made = setting(tmp_path, era)  # room for all of them: a refusal would be an answer, too
    async with proxy(made) as client:
        await client.connected()
        await client.drain()
        for n in range(40):
            one, message = client.calling(
                "execute_tool", server="s", tool="slow", args={"seconds": 0.03}, timeout_ms=n % 5
            )
            if n % 4 == 0:
                # A call that is to be a task at once is answered before the cancel is read.
                await client.send(message, client.cancelling(one, in_time=n % 5 != 0))
                continue
            await client.send(message)
            if n % 4 == 1:
                await client.call("list_tasks")
            elif n % 4 == 2:
                await one.response()
            await client.send(client.cancelling(one, in_time=False))
            await client.call("list_timers")
        with anyio.fail_after(WAIT_S):
            while (await client.call("list_tasks")).json["tasks"]:
                await client.call("await_activity", timeout_ms=100)
        await client.quiet()  # which asks that no place is taken


@both_eras
@both_backends
async def test_a_cancelled_task_is_cancelled_at_the_server_and_told_by_the_answer_alone(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    log = tmp_path / "log"
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        task = (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
        await until(lambda: _calls(log, "slow"))
        stopped = await client.call("cancel_task", task_id=task)
        assert stopped.json["success"] is True
        await until(lambda: received_by_server(log, "cancelled"))
        assert (await client.call("cancel_task", task_id=task)).json["success"] is False
        result = await client.call("get_task_result", task_id=task)
        assert result.is_error
        assert "cancelled" in result.text
        await client.quiet()
        assert [e["type"] for e in client.events].count("task_cancelled") == 0
        listed = await client.call("list_tasks", status="cancelled")
        assert [t["task_id"] for t in listed.json["tasks"]] == [task]


async def test_whoever_waits_for_a_task_hears_of_its_cancel(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        task = (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
        waits = await client.begin_call("get_task_result", task_id=task)
        await client.call("cancel_task", task_id=task)
        assert (await waits.answer()).is_error


@both_eras
@both_backends
@pytest.mark.parametrize("patience", [0, 60], ids=["at-once", "later"])
async def test_a_task_whose_time_is_over_expires_and_its_server_is_told(
    tmp_path: Path, era: str, patience: int, *, modern: bool
) -> None:
    log = tmp_path / "log"
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        started = await client.execute(
            "slow", args={"seconds": 60}, timeout_ms=patience, task_ttl_ms=250
        )
        expired = await client.until_event("task_expired", task_id=started.task)
        assert expired["server"] == "s"
        await until(lambda: received_by_server(log, "cancelled"))
        result = await client.call("get_task_result", task_id=started.task)
        assert result.is_error
        assert "expired" in result.text
        await client.quiet()
        assert not [e for e in client.events if e["type"] == "task_failed"]


async def test_over_http_a_cancel_reaches_the_server_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with http_server(log=log) as url:
        made = Setting(home=tmp_path / "home", servers={"h": {"url": url}})
        async with proxy(made) as client:
            await client.connected("h")
            slow = await client.begin_execute("slow", "h", args={"seconds": 60})
            await until(lambda: _calls(log, "slow"))
            await client.cancel(slow)
            await until(lambda: received_by_server(log, "cancelled"))
            await client.quiet()


@both_eras
@both_backends
async def test_progress_comes_under_the_token_of_whoever_asked_and_to_nobody_else(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        args = {"steps": 5, "interval": 0.01}
        tokens: list[int | str | None] = [0, "0", 7, "seven", None]
        pending = [
            await client.begin_execute("progress", token=token, args=args) for token in tokens
        ]
        for token, one in zip(tokens, pending, strict=True):
            assert (await one.answer()).text == "5 steps"
            steps = [p["progress"] for p in one.progress]
            assert steps == ([] if token is None else [1, 2, 3, 4, 5])
            assert all(p["total"] == 5 and p["message"] for p in one.progress)
        await client.quiet()
        assert not [e for e in client.events if "progress" in str(e["data"].get("method"))]


@pytest.mark.virtual_time
@both_eras
@both_backends
async def test_progress_ends_with_the_answer_even_if_that_is_a_task(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        started = await client.begin_execute(
            "progress", token=0, args={"steps": 30, "interval": 0.1}, timeout_ms=1_500
        )
        task = (await started.answer()).task
        result = await client.call("get_task_result", task_id=task)
        assert result.text == "30 steps"
        assert 0 < len(started.progress) < 30
