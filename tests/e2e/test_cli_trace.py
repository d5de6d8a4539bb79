"""`emceepee trace` as a person and a program use it, beside a real proxy."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.client import Setting, proxy, server


@pytest.fixture
async def home(tmp_path: Path) -> Home:
    """One session is over; its requests are on record."""
    made = Setting(
        home=tmp_path / "home",
        servers={"s": server()},
        more={"logging": {"payloads": True}},
    )
    async with proxy(made) as client:
        await client.connected()
        await client.execute("echo", args={"message": "a secret of the model"})
        await client.execute("slow", args={"seconds": 1.8})
        await client.execute("fail")
        await client.call("execute_tool", tool="nobody_has_it")
        begun = await client.execute("slow", args={"seconds": 0.1}, timeout_ms=0)
        await client.call("get_task_result", task_id=begun.task)
    return Home(made.home)


async def test_a_program_gets_the_last_session_as_one_object(home: Home) -> None:
    found = json.loads((await home.run("trace", "--json")).well().out)
    assert found["schema_version"] == 1
    tools = [record.get("server_tool") for record in found["requests"]]
    assert [tool for tool in tools if tool] == [
        "echo", "slow", "fail", "nobody_has_it", "slow", "slow",
    ]  # fmt: skip
    assert "a secret of the model" not in json.dumps(found)
    whole = (await home.run("trace", "--json", "--payloads", "--grep", "secret of")).well().out
    assert len(json.loads(whole)["requests"]) == 1


async def test_what_was_slow_or_failed_is_found_with_its_server_and_its_leg(home: Home) -> None:
    slow = (await home.run("trace", "--slow", "1700ms")).well()
    [_, row] = slow.out.splitlines()
    _started, took, outcome, name, what, legs = row.split("\t")
    assert (outcome, name, what) == ("ok", "s", "slow")
    assert took.endswith((" ms", " s"))
    assert legs.startswith("server ")
    failed = (await home.run("trace", "--failed", "--since", "1h", "--server", "s")).well()
    assert [line.split("\t")[2:5] for line in failed.out.splitlines()[1:]] == [
        ["tool_error", "s", "fail"],
        ["error server_not_found", "s", "nobody_has_it"],
    ]
    assert failed.err == "2 requests, 2 failed.\n"


@pytest.mark.parametrize("columns", [80, 160])
async def test_a_person_sees_a_waterfall_that_fits_the_terminal(home: Home, columns: int) -> None:
    with home.screen("trace", columns=columns) as screen:
        assert screen.wait() == 0
    assert max(map(len, screen.text.split("\n"))) <= columns
    assert "↳ s/slow" in screen.text
    assert "█" in screen.text
    assert "2 failed, 1 became a task" in screen.words


async def test_colours_are_left_out_where_nobody_wants_them(home: Home) -> None:
    with home.screen("trace", color=False) as screen:
        assert screen.wait() == 0
    assert "\x1b[3" not in screen.raw
    assert "tool_error" in screen.text


async def test_new_requests_are_shown_as_they_end(home: Home, tmp_path: Path) -> None:
    more = Setting(home=home.path, servers={"s": server()})
    logs = str(home.path / "logs")
    watching = Home(tmp_path / "elsewhere")
    with watching.screen("trace", "--follow", "--session", "all", "--log-dir", logs) as screen:
        screen.until_said("requests")
        async with proxy(more) as client:
            await client.connected()
            await client.execute("echo", args={"message": "x"})
            screen.until(lambda: "s/echo" in screen.text, "the call")
        screen.type("\x03")
        assert screen.wait() == 0


async def test_an_export_is_a_private_file_that_other_programs_read(home: Home) -> None:
    path = home.path / "out.json"
    await home.run("trace", "--export", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["requests"]
    (await home.run("trace", "--export", str(path))).said("out.json is there already.")
    other = home.path / "chrome.json"
    await home.run("trace", "--export", str(other), "--format", "chrome")
    events: list[dict[str, Any]] = json.loads(other.read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "b", "e"}


async def test_mistakes_in_options_are_named(home: Home) -> None:
    (await home.run("trace", "--slow", "soon")).said("'soon' is no span like 500ms")
    empty = ("--log-dir", str(home.path / "nowhere"))
    ran = (await home.run("trace", "--export", "x.pdf", *empty)).said(
        "must end with .json or .html"
    )
    assert "No request has been recorded" not in ran.err
    (await home.run("trace", "--web", "--export", "x.html")).said("leave one of them out")
    unknown = await home.run("trace", "--server", "t")
    unknown.said("no request of server 't' is on record. Last seen: s.")
    (await home.run("trace", "--session", "abc")).said("no request of session 'abc'")
    assert "0 requests." in (await home.run("trace", "--server", "s", "--slow", "1h")).well().err
    none = await home.run("trace", "--log-dir", str(home.path / "nowhere"))
    assert "No request has been recorded" in none.well().err
