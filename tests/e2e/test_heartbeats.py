"""A client that gave a token hears of its call while nothing happens, and until it is answered."""

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Pending, Setting, both_eras, proxy, server

pytestmark = pytest.mark.virtual_time


def setting(tmp_path: Path, every: float = 0.02) -> Setting:
    servers = {"s": server(era="legacy", log=tmp_path / "log")}
    return Setting(home=tmp_path / "home", servers=servers, fixed={"heartbeat_s": every})


def values(pending: Pending) -> list[float]:
    return [told["progress"] for told in pending.progress]


async def several(client: Client, pending: Pending) -> list[float]:
    await client.received(lambda: len(pending.progress) >= 4)
    return values(pending)


CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "a call of a server": (
        "execute_tool",
        {"server": "s", "tool": "slow", "args": {"seconds": 60}},
    ),
    "a tool of ours that waits": ("await_activity", {"timeout_ms": 30_000}),
}


@both_eras
@pytest.mark.parametrize("what", CALLS)
async def test_a_call_that_takes_long_shows_signs_of_life(
    tmp_path: Path, what: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        await client.drain()
        tool, arguments = CALLS[what]
        pending = await client.begin_call(tool, token="t", **arguments)
        told = await several(client, pending)
        assert told == sorted(set(told)), "progress grows"
        await client.cancel(pending)


async def test_progress_of_the_server_grows_beside_signs_of_life(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        args = {"steps": 3, "interval": 0.7}
        pending = await client.begin_execute("progress", args=args, token=7)
        await pending.answer()
        told = values(pending)
        assert told == sorted(set(told))
        assert {1, 2, 3} <= set(told), "the server's own values are there as they are"
        assert len(told) > 4
        assert {p.get("total") for p in pending.progress if p["progress"] > 1} == {3}


async def test_without_a_token_and_after_the_answer_nothing_is_told(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        task = await client.call(
            "execute_tool",
            token="t",
            server="s",
            tool="slow",
            args={"seconds": 60},
            timeout_ms=1,
        )
        before = len(client.notifications)
        silent = await client.begin_execute("slow", args={"seconds": 0.3})
        await silent.answer()
        assert client.notifications[before:] == []
        await client.call("cancel_task", task_id=task.task)
