from itertools import accumulate
from pathlib import Path
from typing import Any

import anyio

from tests.e2e.client import WAIT_S, Client, Message, Setting, both_eras, proxy, server

STORM = 2_000


def setting(tmp_path: Path, **more: Any) -> Setting:
    return Setting(home=tmp_path / "home", servers={"s": server()}, **more)


async def waiting(client: Client, count: int) -> None:
    """Until so many events wait: our own resource tells it without telling any of them."""
    with anyio.fail_after(WAIT_S):
        while (await client.status())["events"]["waiting"] < count:
            pass


def numbers(events: list[Message]) -> list[int]:
    """What the fixture's notifications carry, in the order of telling."""
    return [
        event["data"]["params"]["n"]
        for event in events
        if event["type"] == "notification" and "n" in event["data"].get("params", {})
    ]


@both_eras
async def test_in_a_storm_every_event_is_told_once_to_whoever_asks(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, fixed={"events": 10_000, "response_events": 40})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        await client.drain()
        client.events.clear()

        async def wait_on() -> None:
            while len(numbers(client.events)) < STORM:
                answer = await client.call("await_activity", timeout_ms=200)
                assert answer.json["events"] == [] or answer.told
                told = numbers(answer.told)
                assert told == sorted(told)

        async def cancel_often() -> None:
            while len(numbers(client.events)) < STORM:
                one, message = client.calling("await_activity", timeout_ms=200)
                await client.send(message, client.cancelling(one))
                two = await client.begin_call("await_activity", timeout_ms=200)
                await client.call("list_timers")
                await client.send(client.cancelling(two, in_time=False))

        async def call_on() -> None:
            while len(numbers(client.events)) < STORM:
                answer = await client.execute("echo", args={"message": "x"})
                assert answer.text == "x"

        async with anyio.create_task_group() as tasks:
            with anyio.fail_after(WAIT_S):
                tasks.start_soon(wait_on)
                tasks.start_soon(wait_on)
                tasks.start_soon(call_on)
                tasks.start_soon(cancel_often)
                sent = await client.execute("notify", args={"n": STORM}, timeout_ms=40_000)
        assert sent.text == f"{STORM} sent"
        assert sorted(numbers(client.events)) == list(range(STORM))
        await client.quiet()
        assert {event["type"] for event in client.events} == {"notification"}


@both_eras
async def test_two_who_wait_are_both_woken_and_one_of_them_gets_the_event(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        both = [await client.begin_call("await_activity", timeout_ms=30_000) for _ in range(2)]
        await client.call("set_timer", duration_ms=20, message="wake up")
        answers = [await one.answer() for one in both]
        for answer in answers:
            assert answer.json["triggers"] == [{"type": "event", "event_type": "timer_expired"}]
        assert sorted(len(answer.told) for answer in answers) == [0, 1]
        assert [a.json["events"] for a in answers if not a.told] == [[]]
        await client.quiet()


@both_eras
async def test_a_wait_that_is_cancelled_before_it_began_keeps_no_event(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        for _ in range(5):
            await client.call("set_timer", duration_ms=1, message="once")
            await waiting(client, 1)
            lost, message = client.calling("await_activity")
            lost_too, listing = client.calling("list_timers")
            await client.send(
                message, client.cancelling(lost), listing, client.cancelling(lost_too)
            )
            told = await client.call("await_activity", timeout_ms=5_000)
            assert told.json["triggers"] == [{"type": "immediate"}]
            assert told.kinds == ["timer_expired"]
        never, message = client.calling("set_timer", duration_ms=60_000, message="never")
        await client.send(message, client.cancelling(never))
        assert (await client.call("list_timers")).json == {"timers": []}
        await client.quiet()


@both_eras
async def test_more_events_than_fit_come_later_in_their_order(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        await client.drain()
        await client.execute("notify", args={"n": 90})
        await waiting(client, 90 - len(numbers(client.events)))
        while len(numbers(client.events)) < 90:
            left = 90 - len(numbers(client.events))
            tool = "list_tasks" if left % 40 else "await_activity"
            answer = await client.call(tool)
            shown = len(answer.told)
            assert 0 < shown <= 20
            body = answer.json if tool == "await_activity" else {}
            remaining = body.get("events_remaining", answer.remaining)
            assert remaining == left - shown
        assert numbers(client.events) == list(range(90))
        assert not (await client.call("list_tasks")).events


async def test_an_answer_holds_so_many_bytes_of_events_and_no_more(tmp_path: Path) -> None:
    made = setting(tmp_path, fixed={"response_event_bytes": 400, "event_data_bytes": 128})
    async with proxy(made) as client:
        await client.connected()
        await client.drain()
        long = "notifications/" + "x" * 180
        await client.execute("notify", args={"n": 5, "method": long})
        with anyio.fail_after(WAIT_S):
            while sum(e.get("truncated", False) for e in client.events) < 5:
                answer = await client.call("list_tasks")
                assert len(answer.events) <= 1
        for event in client.events:
            if event.get("truncated"):
                assert len(event["data"]) == 128
                assert event["data_bytes"] > 180
                assert event["data"].startswith('{"method":"notifications/xxx')


@both_eras
async def test_what_had_to_be_dropped_is_counted(tmp_path: Path, *, modern: bool) -> None:
    made = setting(tmp_path, fixed={"events": 50, "response_events": 10})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        await client.drain()
        client.events.clear()
        task = (await client.execute("notify", args={"n": 400}, timeout_ms=0)).task
        with anyio.fail_after(WAIT_S):
            while (await client.status())["working_tasks"]:
                pass
        await client.drain()
        dropped = [e for e in client.events if e["type"] == "events_dropped"]
        assert dropped
        lost = sum(event["data"]["count"] for event in dropped)
        assert lost + len(client.events) - len(dropped) == 400 + 1
        assert client.events[0]["type"] == "events_dropped"
        assert client.events[-1]["data"]["task_id"] == task
        told = numbers(client.events)
        assert told == sorted(told)
        assert told[-1] == 399
        await client.quiet()


async def test_notifications_that_say_the_same_are_folded_and_counted(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        client.events.clear()
        changed = "notifications/tools/list_changed"
        first = await client.execute("notify", args={"n": 50, "method": changed}, timeout_ms=0)
        assert not [e for e in first.events if e["type"] != "notification"]
        with anyio.fail_after(WAIT_S):
            while (await client.status())["working_tasks"]:
                pass
        await client.drain()
        told = [e for e in client.events if e["data"].get("method") == changed]
        assert sum(event.get("count", 1) for event in told) == 50
        assert len(told) <= 2
        # What was told already is not changed by what comes after.
        await client.execute("notify", args={"n": 1, "method": changed})
        await client.drain()
        again = [e for e in client.events if e["data"].get("method") == changed]
        assert len(again) == len(told) + 1
        assert "count" not in again[-1]


@both_eras
async def test_everything_after_an_event_can_be_had_again(tmp_path: Path, *, modern: bool) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        client.told_twice_is_fine = True
        ids: list[str] = []
        for n in range(4):
            await client.call("set_timer", duration_ms=1, message=f"{n}")
            answer = await client.call("await_activity", timeout_ms=10_000)
            assert answer.json["last_event_id"] == answer.told[-1]["id"]
            ids.append(answer.json["last_event_id"])
        after = await client.call("await_activity", last_event_id=ids[1])
        assert [e["id"] for e in after.told] == ids[2:]
        everything = await client.call("await_activity", last_event_id="gone")
        assert [e["id"] for e in everything.told] == ids
        nothing = await client.call("await_activity", last_event_id=ids[-1], timeout_ms=20)
        assert nothing.json["triggers"] == [{"type": "timeout"}]
        assert nothing.json["events"] == []
        wait = await client.begin_call("await_activity", last_event_id=ids[-1], timeout_ms=30_000)
        await client.call("set_timer", duration_ms=1, message="last")
        assert [e["data"]["message"] for e in (await wait.answer()).told] == ["last"]
        await client.quiet()


@both_eras
async def test_a_timer_fires_once_and_an_interval_until_it_is_deleted(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        once = (await client.call("set_timer", duration_ms=5, message="once")).json["timer"]
        assert (await client.until_event("timer_expired"))["data"] == {
            "timer_id": once["timer_id"],
            "message": "once",
        }
        again = await client.call("set_timer", duration_ms=10, message="again", interval=True)
        timer = again.json["timer"]["timer_id"]

        def firings() -> list[Message]:
            return [e for e in client.events if e["data"]["timer_id"] == timer]

        with anyio.fail_after(WAIT_S):
            while len(firings()) < 3:
                await client.call("await_activity", timeout_ms=5_000)
        assert {event["data"]["message"] for event in firings()} == {"again"}
        gone = await client.call("delete_timer", timer_id=timer)
        assert gone.json["timer"]["status"] == "deleted"
        await client.drain()
        told = len(client.events)
        assert not (await client.call("await_activity", timeout_ms=100)).told
        assert len(client.events) == told
        assert (await client.call("list_timers")).json == {"timers": []}
        inactive = await client.call("list_timers", include_inactive=True)
        statuses = {t["message"]: t["status"] for t in inactive.json["timers"]}
        assert statuses == {"once": "expired", "again": "deleted"}
        twice = await client.call("delete_timer", timer_id=timer)
        assert twice.json["success"] is False
        shown = await client.call("get_timer", timer_id=once["timer_id"])
        assert shown.json["timer"]["fired"] == 1
        # One that nobody had been told gave way to the next, which counts it.
        counted = accumulate(event.get("count", 1) for event in firings())
        assert [event["data"]["fired"] for event in firings()] == list(counted)


@both_eras
async def test_a_hundred_timers_fire_once_each_and_one_more_is_too_many(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(Setting(home=tmp_path / "home"), modern=modern) as client:
        pending = [
            await client.begin_call("set_timer", duration_ms=30_000 + n, message=f"{n}")
            for n in range(100)
        ]
        ids = [(await one.answer()).json["timer"]["timer_id"] for one in pending]
        full = await client.call("set_timer", duration_ms=1, message="x")
        assert "[timer_limit]" in full.text
        for timer in ids:
            assert (await client.call("delete_timer", timer_id=timer)).json["success"]
        pending = [
            await client.begin_call("set_timer", duration_ms=1 + n % 7, message=f"{n}")
            for n in range(100)
        ]
        for one in pending:
            await one.answer()
        with anyio.fail_after(WAIT_S):
            while len(client.events) < 100:
                await client.call("await_activity", timeout_ms=1_000)
        messages = sorted(int(e["data"]["message"]) for e in client.events)
        assert messages == list(range(100))
        await client.quiet()
