"""await_activity beside other answers, and after what it was told before."""

from pathlib import Path

from tests.e2e.client import Setting, proxy, server


def setting(tmp_path: Path) -> Setting:
    return Setting(home=tmp_path / "home", servers={"s": server(log=tmp_path / "log")})


async def test_a_waiter_whose_events_another_answer_told_says_so(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        waits = [await client.begin_call("await_activity", timeout_ms=40_000) for _ in range(3)]
        await client.execute("notify", args={"n": 1})
        answers = [await one.answer() for one in waits]
        told = [answer for answer in answers if answer.told]
        others = [answer for answer in answers if not answer.told]
        assert len(told) <= 1
        assert all("told_elsewhere" not in answer.json for answer in told)
        for other in others:
            assert other.json["triggers"][0]["event_type"] == "notification"
            assert other.json["told_elsewhere"] == 1
        quiet = await client.call("await_activity", timeout_ms=0)
        assert "told_elsewhere" not in quiet.json


async def test_a_cursor_that_is_not_known_is_told_and_journaled(tmp_path: Path) -> None:
    made = setting(tmp_path)
    async with proxy(made) as client:
        client.told_twice_is_fine = True
        await client.connected()
        await client.drain()
        await client.call("set_timer", duration_ms=1, message="x")
        event = await client.until_event("timer_expired")
        known = await client.call("await_activity", timeout_ms=0, last_event_id=event["id"])
        assert "cursor_not_found" not in known.json
        lost = await client.call("await_activity", last_event_id="01ARZ3NDEKTSV4RRFFQ69G5FAV")
        assert lost.json["cursor_not_found"] is True
        assert event["id"] in [e["id"] for e in lost.told], "all that is kept"
    [line] = [line for line in made.journal() if line["event"] == "event_cursor_not_found"]
    assert line["level"] == "warning"
    assert line["data"]["last_event_id"] == "01ARZ3NDEKTSV4RRFFQ69G5FAV"
