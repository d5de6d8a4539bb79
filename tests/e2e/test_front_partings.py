"""When we leave a server: its questions are refused first, and its tasks say why they ended."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import (
    Client,
    Setting,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)

both_channels = pytest.mark.parametrize("channel", ["stdio", "http"])


@asynccontextmanager
async def behind(tmp_path: Path, channel: str) -> AsyncIterator[Setting]:
    log = tmp_path / "log"
    made = Setting(home=tmp_path / "home", fixed={"config_poll_s": 0.02})
    if channel == "stdio":
        made.servers = {"s": server(log=log)}
        yield made
    else:
        async with http_server("--era", "legacy", log=log) as url:
            made.servers = {"s": {"url": url}}
            yield made


def refusals(tmp_path: Path) -> list[dict[str, Any]]:
    """The errors with which a server was answered."""
    lines = received_by_server(tmp_path / "log")
    return [line["message"]["error"] for line in lines if "error" in line["message"]]


async def ask(client: Client) -> str:
    await client.connected()
    return (await client.execute("ask")).task


@both_channels
async def test_a_removal_refuses_the_open_questions_and_says_that_it_was_one(
    tmp_path: Path, channel: str
) -> None:
    async with behind(tmp_path, channel) as made, proxy(made) as client:
        task = await ask(client)
        removed = await client.call("remove_server", name="s")
        assert removed.json["failed_tasks"] == [task]
        await until(lambda: refusals(tmp_path))
        assert "no answer" in refusals(tmp_path)[0]["message"]
        ended = await client.call("get_task_result", task_id=task)
        assert ended.is_error
        assert ended.text.startswith("s was removed.")


@both_channels
async def test_a_reconnect_refuses_the_open_questions_first(tmp_path: Path, channel: str) -> None:
    async with behind(tmp_path, channel) as made, proxy(made) as client:
        await ask(client)
        await client.call("reconnect_server", name="s")
        await until(lambda: refusals(tmp_path))


@pytest.mark.real
@both_channels
async def test_the_end_of_the_proxy_refuses_the_open_questions(
    tmp_path: Path, channel: str
) -> None:
    async with behind(tmp_path, channel) as made:
        async with proxy(made) as client:
            await ask(client)
        await until(lambda: refusals(tmp_path))
    [line] = [line for line in made.journal() if line["event"] == "server_disconnected"]
    assert line["data"]["reason"] == "s was stopped: the proxy is ending."


async def test_servers_that_come_and_go_are_told_with_their_target_and_journaled(
    tmp_path: Path,
) -> None:
    async with behind(tmp_path, "stdio") as made:
        entry = made.servers["s"]
        made.more = {"policy": {"mode": "allow"}}
        async with proxy(made) as client:
            await client.connected()
            made.servers = {"s": {**entry, "env": {"OTHER": "1"}}, "t": entry}
            made.write()
            added = await client.until_event("server_added", by="configuration")
            assert entry["args"][-1] in added["data"]["target"]
            await client.connected("s", "t")
            await client.call("add_server", name="u", **entry)
            await client.call("remove_server", name="u")
            made.servers = {}
            made.write()
            await client.until_event("server_removed", by="configuration")
    changes = [line for line in made.journal() if line["event"].startswith("server_config_")]
    said = [(line["event"], line["server"], line["data"]["by"]) for line in changes]
    assert said[0] == ("server_config_added", "s", "configuration")
    assert ("server_config_updated", "s", "configuration") in said
    assert ("server_config_added", "t", "configuration") in said
    assert ("server_config_added", "u", "client") in said
    assert ("server_config_removed", "u", "client") in said
    assert ("server_config_removed", "t", "configuration") in said
    assert all(line["data"]["target"] for line in changes)
