"""Settings that no other test would miss: each of them makes the difference here."""

import json
import os
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import WAIT_S, Setting, command, proxy, server, until
from tests.peers import rude

DAY_S = 86_400


def setting(tmp_path: Path, entry: dict[str, Any] | None = None, **more: Any) -> Setting:
    servers = {"s": server() if entry is None else entry}
    return Setting(home=tmp_path / "home", servers=servers, **more)


async def test_a_call_that_names_no_time_is_a_task_after_the_configured_one(tmp_path: Path):
    async with proxy(setting(tmp_path, timeouts={"call_ms": 50})) as client:
        await client.connected()
        slow = await client.execute("slow", args={"seconds": 60})
        assert slow.json["reason"] == "timeout"
        await client.call("cancel_task", task_id=slow.task)
        await client.quiet()


async def test_a_task_expires_after_the_configured_time(tmp_path: Path):
    async with proxy(setting(tmp_path, timeouts={"task_ttl_ms": 100})) as client:
        await client.connected()
        slow = await client.execute("slow", args={"seconds": 60}, timeout_ms=0)
        expired = await client.until_event("task_expired")
        assert expired["data"]["task_id"] == slow.task


async def test_a_server_that_does_not_open_in_the_configured_time_is_not_waited_for(
    tmp_path: Path,
):
    mute = command(rude("silent"), restart={"attempts": 0})
    async with proxy(setting(tmp_path, mute, timeouts={"connect_ms": 200})) as client:
        await client.until_event("server_restart_failed")
        assert "0.2 s" in (await client.call("list_servers")).text


async def test_a_request_that_is_not_answered_in_the_configured_time_is_an_error(tmp_path: Path):
    mute = command(rude("silent-after-init"), era="legacy")
    async with proxy(setting(tmp_path, mute, timeouts={"request_ms": 200})) as client:
        await client.connected()
        mute = await client.call("set_log_level", server="s", level="error")
        assert "0.2 s" in mute.text


async def test_an_answer_over_the_configured_bytes_of_a_line_is_refused(tmp_path: Path):
    made = setting(tmp_path, limits={"line_bytes": 20_000, "result_bytes": 0})
    async with proxy(made) as client:
        await client.connected()
        assert not (await client.execute("big", args={"bytes": 10_000})).is_error
        refused = await client.execute("big", args={"bytes": 30_000})
        assert "[result_too_large]" in refused.text


async def test_a_delay_before_a_restart_is_at_most_the_configured_one(tmp_path: Path):
    restart = {"base_ms": 3_600_000, "cap_ms": 20}
    dying = command(rude("crash-on-call"), era="legacy")
    async with proxy(setting(tmp_path, dying, more={"restart": restart})) as client:
        await client.connected()
        assert (await client.execute("misbehave")).is_error
        await client.until_event("server_reconnected")


def journals(directory: Path) -> list[Path]:
    return sorted(directory.glob("emceepee-*.jsonl*"))


async def test_the_journal_is_written_where_and_rotated_as_it_is_configured(tmp_path: Path):
    place = tmp_path / "elsewhere"
    logging = {"directory": str(place), "max_bytes": 1_024, "files": 2}
    async with proxy(setting(tmp_path, more={"logging": logging})) as client:
        await client.connected()
        await client.execute("stderr", args={"text": "x" * 100, "n": 50})
        await until(lambda: len(journals(place)) == 2)
    assert len(journals(place)) == 2
    assert max(path.stat().st_size for path in journals(place)) < 2_048
    assert not (tmp_path / "home" / "logs").exists()


@pytest.mark.parametrize("level", ["info", "error"])
async def test_the_journal_keeps_what_is_as_important_as_configured(tmp_path: Path, level: str):
    made = setting(tmp_path, more={"logging": {"level": level}})
    async with proxy(made) as client:
        await client.connected()
    assert bool(made.journal()) is (level == "info")
    assert {line["level"] for line in made.journal()} <= {"info", "warning", "error"}


async def test_a_journal_older_than_the_configured_days_is_removed(tmp_path: Path):
    made = setting(tmp_path, more={"logging": {"max_age_days": 3}})
    logs = made.home / "logs"
    logs.mkdir(parents=True)
    kept, old = (logs / f"emceepee-20260101T000000Z-{n}-S.jsonl" for n in (1, 2))
    for path, days in ((kept, 2), (old, 4)):
        path.write_text(json.dumps({"event": "of an earlier proxy"}) + "\n")
        at = time.time() - days * DAY_S
        os.utime(path, (at, at))
    async with proxy(made) as client:
        await client.connected()
        await until(lambda: not old.exists())
    assert kept.exists()


@pytest.mark.parametrize("mebibytes", [1, 32])
async def test_log_lines_are_kept_within_the_configured_memory(tmp_path: Path, mebibytes: int):
    async with proxy(setting(tmp_path, limits={"memory_bytes": mebibytes << 20})) as client:
        await client.connected()
        await client.execute("stderr", args={"text": "x" * 10_000, "n": 100})

        async def read() -> dict[str, int]:
            logs = (await client.call("get_logs", server="s", limit=1, peek=True)).json
            return {key: logs[key] for key in ("overwritten", "remaining")}

        with anyio.fail_after(WAIT_S):
            while sum((await read()).values()) < 99:
                pass
        assert bool((await read())["overwritten"]) is (mebibytes == 1)
