"""What servers say without being asked: as events, in get_notifications and in get_logs."""

from pathlib import Path
from typing import Any

from tests.e2e.client import Client, Setting, both_backends, proxy, server

CUSTOM = "notifications/fixture"


def setting(tmp_path: Path, *names: str, era: str = "legacy", **fixed: float) -> Setting:
    servers = {name: server(era=era) for name in names or ("s",)}
    return Setting(home=tmp_path / "home", servers=servers, fixed=fixed)


async def notifications(client: Client, **arguments: Any) -> dict[str, Any]:
    return (await client.call("get_notifications", **arguments)).json


async def logs(client: Client, **arguments: Any) -> dict[str, Any]:
    return (await client.call("get_logs", **arguments)).json


async def lines(client: Client, **arguments: Any) -> list[str]:
    return [line["text"] for line in (await logs(client, **arguments))["logs"]]


async def test_a_notification_of_any_kind_is_an_event_and_is_kept_in_full(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        methods = (
            CUSTOM,
            "notifications/prompts/list_changed",
            "notifications/resources/list_changed",
            "notifications/tools/list_changed",
            "notifications/resources/updated",
        )
        for method in methods:
            await client.execute("notify", args={"n": 1, "method": method})
            await client.until_event("notification", method=method)
        kept = await notifications(client)
        assert [notice["method"] for notice in kept["notifications"]] == list(methods)
        assert kept["notifications"][0]["params"] == {"n": 0}
        assert kept["notifications"][0]["server"] == "s"
        assert (kept["overwritten"], kept["remaining"]) == (0, 0)
        assert (await notifications(client))["notifications"] == []


@both_backends
async def test_list_changes_are_told_in_both_eras(tmp_path: Path, era: str) -> None:
    async with proxy(setting(tmp_path, era=era)) as client:
        await client.connected()
        await client.execute("grow")
        event = await client.until_event("notification", method="notifications/tools/list_changed")
        assert event["server"] == "s"
        (notice,) = (await notifications(client, server="s"))["notifications"]
        assert notice["method"] == "notifications/tools/list_changed"


async def test_progress_that_nobody_asked_for_costs_nothing(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        done = await client.execute("notify", args={"n": 5, "method": "notifications/progress"})
        assert done.text == "5 sent"
        assert (await client.execute("echo", args={"message": "on"})).text == "on"
        assert not client.notifications


async def test_a_flood_is_folded_where_it_says_the_same_and_counted_where_it_is_lost(
    tmp_path: Path,
) -> None:
    async with proxy(setting(tmp_path, notifications=100, events=50)) as client:
        await client.connected()
        await client.drain()
        await client.execute("notify", args={"n": 250, "method": "notifications/resources/updated"})
        event = await client.until_event("notification")
        await client.drain()
        counts = [e.get("count", 1) for e in client.events if e["type"] == "notification"]
        assert sum(counts) == 250
        assert event["data"]["params"] == {"uri": "fixture://one"}
        kept = await notifications(client, limit=30)
        assert len(kept["notifications"]) == 30
        assert (kept["overwritten"], kept["remaining"]) == (150, 70)
        kept = await notifications(client)
        assert len(kept["notifications"]) == 70
        assert (kept["overwritten"], kept["remaining"]) == (0, 0)
        client.events.clear()
        await client.execute("notify", args={"n": 300, "method": CUSTOM})
        await client.drain()
        told = [e for e in client.events if e["type"] == "notification"]
        dropped = [e for e in client.events if e["type"] == "events_dropped"]
        assert dropped
        lost = sum(event["data"]["count"] for event in dropped)
        assert len(told) + lost == 300
        assert told[-1]["data"]["params"] == {"n": 299}
        kept = await notifications(client)
        assert [notice["params"]["n"] for notice in kept["notifications"]] == list(range(200, 300))
        assert kept["overwritten"] == 200


async def test_notifications_of_several_servers_are_all_given_once(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path, "a", "b")) as client:
        await client.connected("a", "b")
        for name in ("a", "b"):
            await client.execute("notify", name, args={"n": 5})
            await client.until_event("notification", method=CUSTOM)
        seen: list[tuple[str, int]] = []
        while page := (await notifications(client, limit=3))["notifications"]:
            assert len(page) <= 3
            seen += [(notice["server"], notice["params"]["n"]) for notice in page]
        assert sorted(seen) == sorted((name, n) for name in ("a", "b") for n in range(5))


async def test_a_log_line_never_wakes_anybody_and_is_no_event(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        waiting = await client.begin_call("await_activity", timeout_ms=500)
        await client.execute("log", args={"level": "emergency", "n": 3})
        await client.execute("stderr", args={"text": "oops"})
        answer = await waiting.answer()
        assert answer.json["triggers"] == [{"type": "timeout"}]
        assert len(await lines(client)) == 4


async def test_every_filter_of_the_logs(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        levels = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
        for level in levels:
            await client.execute("log", args={"level": level})
        await client.execute("stderr", args={"text": "on stderr"})
        shown = await logs(client, peek=True)
        assert [line.get("level") for line in shown["logs"]] == [*levels, None]
        assert {line["source"] for line in shown["logs"]} == {"protocol", "stderr"}
        assert {line.get("logger") for line in shown["logs"]} == {"plain", None}
        for index, level in enumerate(levels):
            found = await logs(client, peek=True, level=level)
            assert [line["level"] for line in found["logs"]] == list(levels[index:])
        assert await lines(client, peek=True, sources=["stderr"]) == ["on stderr"]
        assert await lines(client, peek=True, exclude_sources=["protocol"]) == ["on stderr"]
        assert await lines(client, peek=True, sources=["stdout"]) == []
        assert len(await lines(client, peek=True, exclude_sources=["stderr"])) == 8
        both = {"sources": ["stderr"], "exclude_sources": ["stderr"]}
        assert await lines(client, peek=True, **both) == []
        assert await lines(client, peek=True, pattern="ON STD") == ["on stderr"]
        assert await lines(client, peek=True, pattern="nothing like it") == []
        assert len(await lines(client, peek=True, server="s")) == 9
        # Reading takes what was shown and leaves the rest.
        assert await lines(client, pattern="stderr$") == ["on stderr"]
        assert await lines(client, level="alert", limit=1) == ['{"line":0}']
        rest = await logs(client)
        assert [line["level"] for line in rest["logs"]] == list(levels[:-1])
        assert await lines(client) == []


async def test_the_newest_lines_come_first_out_and_nothing_is_lost_by_a_limit(
    tmp_path: Path,
) -> None:
    async with proxy(setting(tmp_path, "a", "b", log_lines=20)) as client:
        await client.connected("a", "b")
        for number in range(12):
            name = "ab"[number % 2]
            await client.execute("stderr", name, args={"text": f"{name}{number}"})
            while f"{name}{number}" not in await lines(client, peek=True):
                pass
        said = [f"{'ab'[number % 2]}{number}" for number in range(12)]
        peeked = await logs(client, peek=True, limit=5)
        assert [line["text"] for line in peeked["logs"]] == said[-5:]
        assert peeked["remaining"] == 7
        seen: list[str] = []
        while page := (await logs(client, limit=5))["logs"]:
            texts = [line["text"] for line in page]
            assert texts == sorted(texts, key=said.index)
            seen = texts + seen
        assert seen == said
        await client.execute("stderr", "a", args={"text": "many", "n": 50})
        while (kept := await logs(client, peek=True, server="a"))["overwritten"] < 30:
            pass
        assert (len(kept["logs"]), kept["remaining"]) == (20, 0)
        assert (await logs(client, limit=1))["overwritten"] == 30
        assert (await logs(client))["overwritten"] == 0


async def test_a_flood_of_long_lines_is_stored_not_lost(tmp_path: Path) -> None:
    made = setting(tmp_path)
    made.limits = {"result_bytes": 40_000}
    async with proxy(made) as client:
        await client.connected()
        await client.execute("stderr", args={"text": "z" * 1_000, "n": 90})
        while (await logs(client, peek=True, limit=1))["remaining"] < 89:
            pass
        answer = await client.call("get_logs")
        assert len(answer.text) < 41_000
        stored = answer.json["stored_result"]
        read = await client.call(
            "read_resource", server="emceepee", uri=stored["uri"], pattern="z{1000}", limit=200
        )
        assert len(read.json["hits"]) == 90
        assert await lines(client) == []


async def test_the_last_lines_of_a_server_that_is_gone_can_be_read(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.execute("stderr", args={"text": "farewell"})
        while not await lines(client, peek=True):
            pass
        await client.call("remove_server", name="s")
        assert await lines(client, server="s") == ["farewell"]
        unknown = await client.call("get_logs", server="t")
        assert "[server_not_found]" in unknown.text
