"""What a client sees of its tasks: their arguments, how far they are, and how many there were."""

from pathlib import Path

import anyio

from tests.e2e.client import WAIT_S, Setting, both_backends, proxy, server


def setting(tmp_path: Path, era: str = "legacy") -> Setting:
    return Setting(home=tmp_path / "home", servers={"s": server(era=era, log=tmp_path / "log")})


@both_backends
async def test_a_task_shows_its_arguments_and_the_progress_since_it_became_one(
    tmp_path: Path, era: str
) -> None:
    async with proxy(setting(tmp_path, era)) as client:
        await client.connected()
        args = {"steps": 1000, "interval": 0.01}
        begun = await client.call(
            "execute_tool", token="t", server="s", tool="progress", args=args, timeout_ms=50
        )
        assert begun.json["proxy_task"]["tool_args"] == args
        created = begun.json["proxy_task"]["created_at"]
        with anyio.fail_after(WAIT_S):
            while True:
                task = (await client.call("get_task", task_id=begun.task)).json["task"]
                if "status_message" in task:
                    break
        assert task["status_message"].endswith("of 1000)")
        assert task["last_updated_at"] > created
        [listed] = (await client.call("list_tasks")).json["tasks"]
        assert listed["tool_args"] == args
        await client.call("cancel_task", task_id=begun.task)


async def test_a_cancel_does_not_tell_itself_as_news(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        begun = await client.execute("slow", args={"seconds": 60}, timeout_ms=0)
        assert begun.json["proxy_task"]["tool_args"] == {"seconds": 60}
        cancelled = await client.call("cancel_task", task_id=begun.task)
        assert cancelled.json["success"] is True
        assert cancelled.told == []
        assert await client.drain() == []


async def test_the_status_counts_the_tasks_that_there_were(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        slow = {"args": {"seconds": 60}, "timeout_ms": 0}
        await client.execute("slow", **slow)
        await client.call("cancel_task", task_id=(await client.execute("slow", **slow)).task)
        done = await client.execute("echo", args={"message": "x"}, timeout_ms=0)
        await client.call("get_task_result", task_id=done.task)
        failed = await client.execute("rpc_error", args={"code": -32000}, timeout_ms=0)
        await client.call("get_task_result", task_id=failed.task)
        await client.execute("slow", task_ttl_ms=1, **slow)
        await client.until_event("task_expired")
        totals = (await client.status())["tasks"]
        assert totals == {"working": 1, "completed": 1, "failed": 1, "cancelled": 1, "expired": 1}
