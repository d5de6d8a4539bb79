"""The configuration file of a running proxy: what an edit changes, and all that it leaves alone.

That something does not happen is seen by what happens after it: the file is edited once more, and
the effect of that edit is waited for.
"""

import ctypes
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    WAIT_S,
    Client,
    Setting,
    command,
    http_server,
    proxy,
    received_by_server,
    server,
    until,
)
from tests.e2e.harness import alive
from tests.peers import plain, rude

POLL_S = 0.02
# Long enough to write a file between two looks at it, on any machine.
SLOW_POLL_S = 2.5


def setting(tmp_path: Path, **servers: Any) -> Setting:
    return Setting(home=tmp_path / "home", servers=servers, fixed={"config_poll_s": POLL_S})


def edit(made: Setting, **servers: Any) -> None:
    """Write the file anew and put it in its place, with these servers."""
    ours = {"timeouts": made.timeouts, "limits": made.limits, **made.more}
    replace(made, json.dumps({"mcpServers": servers, "emceepee": ours}))


def replace(made: Setting, text: str) -> None:
    new = made.home / "config.json.new"
    new.write_text(text)
    new.replace(made.config)


async def listed(client: Client) -> dict[str, Any]:
    servers = (await client.call("list_servers")).json["servers"]
    return {found["name"]: found for found in servers}


async def pids(client: Client) -> dict[str, int]:
    """Of the servers that run; one may go while they are looked at."""
    looked = [await client.call("list_servers", name=name) for name in await listed(client)]
    shown = [
        server for answer in looked if not answer.is_error for server in answer.json["servers"]
    ]
    return {server["name"]: server["pid"] for server in shown if "pid" in server}


async def settled(client: Client, made: Setting, **servers: Any) -> None:
    """Edit the file once more; all that an earlier edit brought about is over when this shows."""
    mark = f"mark-{len(client.events)}"
    edit(made, **servers, **{mark: server()})
    with anyio.fail_after(WAIT_S):
        while mark not in await listed(client):
            await client.call("await_activity", timeout_ms=100)


def told(client: Client, kind: str) -> list[Any]:
    return [event for event in client.events if event["type"] == kind]


async def shown(client: Client, name: str, variable: str) -> Any:
    answer = await client.execute("env", name, args={"show": [variable]})
    return json.loads(answer.text)["values"][variable]


async def test_a_server_that_is_added_to_the_file_appears_and_works(tmp_path: Path):
    made = setting(tmp_path, old=server())
    async with proxy(made) as client, http_server() as url:
        await client.connected("old")
        before = await pids(client)
        edit(made, old=server(), new=server(env={"MARK": "7"}), web={"url": url})
        await client.until_event("server_added", by="configuration")
        await client.connected("old", "new", "web")
        assert await shown(client, "new", "MARK") == "7"
        assert (await client.execute("echo", "web", args={"message": "hi"})).text == "hi"
        assert (await pids(client))["old"] == before["old"]
        added = [event["server"] for event in told(client, "server_added")]
        assert sorted(added) == ["new", "web"]


async def test_a_server_that_is_taken_out_of_the_file_is_gone_with_its_process(tmp_path: Path):
    made = setting(tmp_path, stays=server(), goes=server())
    async with proxy(made) as client:
        await client.connected("stays", "goes")
        before = await pids(client)
        edit(made, stays=server())
        event = await client.until_event("server_removed", by="configuration")
        assert event["server"] == "goes"
        assert not alive(before["goes"])
        assert await pids(client) == {"stays": before["stays"]}
        answer = await client.execute("echo", "goes", args={"message": "hi"})
        assert answer.is_error
        assert "server_not_found" in answer.text
        await settled(client, made, stays=server())
        assert [event["server"] for event in told(client, "server_removed")] == ["goes"]


async def test_a_server_that_is_changed_is_started_anew_with_what_it_says_now(tmp_path: Path):
    made = setting(tmp_path, stays=server(), turns=server(env={"MARK": "old"}))
    async with proxy(made) as client:
        await client.connected("stays", "turns")
        before = await pids(client)
        assert await shown(client, "turns", "MARK") == "old"
        edit(made, turns=server(env={"MARK": "new"}), stays=server())
        await client.until_event("server_added", by="configuration")
        await client.connected("stays", "turns")
        assert await shown(client, "turns", "MARK") == "new"
        after = await pids(client)
        assert after["stays"] == before["stays"]
        assert after["turns"] != before["turns"]
        assert not alive(before["turns"])


async def test_an_edit_that_changes_nothing_touches_nothing(tmp_path: Path):
    made = setting(tmp_path, a=server(), b=server())
    async with proxy(made) as client:
        await client.connected("a", "b")
        before = await pids(client)
        await client.drain()
        received = len(client.events)
        text = json.dumps({"servers": [], "mcpServers": {"b": server(), "a": server()}}, indent=4)
        replace(made, text)
        await settled(client, made, b=server(), a=server())
        after = await pids(client)
        assert {name: after[name] for name in before} == before
        news = [event for event in client.events[received:] if event["server"] in ("a", "b")]
        assert news == []


async def test_a_server_that_is_switched_off_and_on(tmp_path: Path):
    made = setting(tmp_path, it=server())
    async with proxy(made) as client:
        await client.connected("it")
        before = await pids(client)
        edit(made, it=server(disabled=True))
        await client.until_event("server_removed", by="configuration")
        assert not alive(before["it"])
        assert (await listed(client))["it"]["phase"] == "disabled"
        said = (await client.execute("echo", "it", args={})).text
        assert "it is disabled in the configuration." in said
        assert "`emceepee config enable it`" in said
        answer = await client.execute("echo", "it", args={"message": "hi"})
        assert answer.is_error
        edit(made, it=server())
        await client.until_event("server_added", by="configuration")
        await client.connected("it")
        assert (await client.execute("echo", "it", args={"message": "hi"})).text == "hi"


async def test_a_file_that_cannot_be_read_at_the_start_is_told_until_it_is_mended(tmp_path: Path):
    made = setting(tmp_path)
    made.text = '{"mcpServers": {'
    async with proxy(made) as client:
        event = await client.until_event("config_rejected")
        assert "is not valid JSON at line 1" in event["data"]["error"]
        assert event["data"]["kept"] == "No server of the configuration runs."
        listed = (await client.call("list_servers")).json
        assert listed == {"servers": [], "configuration_error": event["data"]["error"]}
        edit(made, it=server())
        await client.connected("it")
        assert "configuration_error" not in (await client.call("list_servers")).json
    assert len(told(client, "config_rejected")) == 1


@pytest.mark.parametrize("text", ["{", "", "[]", '{"mcpServers": 7}', "\ufeff{nope"], ids=range(5))
async def test_a_broken_edit_keeps_everything_is_told_once_and_mended_later(
    tmp_path: Path, text: str
):
    made = setting(tmp_path, it=server())
    async with proxy(made) as client:
        await client.connected("it")
        before = await pids(client)
        replace(made, text)
        event = await client.until_event("config_rejected")
        assert "[config_invalid]" in event["data"]["error"]
        assert event["data"]["kept"] == "The configuration of before stays in use."
        assert await pids(client) == before
        assert (await client.execute("echo", "it", args={"message": "hi"})).text == "hi"
        # Time for many a look at the same broken file.
        await client.call("await_activity", timeout_ms=round(20_000 * POLL_S))
        await settled(client, made, it=server())
        assert (await pids(client))["it"] == before["it"]
        assert len(told(client, "config_rejected")) == 1
    rejected = [line for line in made.journal() if line["event"] == "config_invalid"]
    assert [line["level"] for line in rejected] == ["error"]
    assert client.stderr.count(b"error: config_invalid") == 1


async def test_a_file_that_is_whole_at_the_next_look_is_not_complained_about(tmp_path: Path):
    made = setting(tmp_path, it=server())
    made.fixed["config_poll_s"] = SLOW_POLL_S
    async with proxy(made) as client:
        await client.connected("it")
        before = await pids(client)
        whole = json.dumps({"mcpServers": {"it": server(), "new": server()}})
        with readers(made.config) as have_read:
            made.config.write_text(whole[:100])
            await until(have_read)
            made.config.write_text(whole)
        await client.until_event("server_added", by="configuration")
        await client.connected("it", "new")
        assert (await pids(client))["it"] == before["it"]
        assert told(client, "config_rejected") == []
    assert [line for line in made.journal() if line["event"] == "config_invalid"] == []


@contextmanager
def readers(path: Path) -> Iterator[Any]:
    """Tells whether somebody has read the file to its end since."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.inotify_init1(os.O_NONBLOCK)
    closed_unwritten = 0x10
    assert libc.inotify_add_watch(fd, os.fsencode(path), closed_unwritten) >= 0

    def have_read() -> bool:
        try:
            return bool(os.read(fd, 4096))
        except BlockingIOError:
            return False

    try:
        yield have_read
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "broken",
    [{"command": 7}, {"args": ["x"]}, {"command": "x", "env": {"A": "${NOT_SET_HERE}"}}],
    ids=["mistake", "nothing", "unset"],
)
async def test_a_broken_entry_keeps_the_server_that_ran_before_it(
    tmp_path: Path, broken: dict[str, Any]
):
    made = setting(tmp_path, it=server(), other=server())
    async with proxy(made) as client:
        await client.connected("it", "other")
        before = await pids(client)
        edit(made, it=broken, other=server(), new=server())
        await client.until_event("server_added", by="configuration")
        await client.connected("it", "other", "new")
        after = await pids(client)
        assert {name: after[name] for name in before} == before
        assert (await client.execute("echo", "it", args={"message": "hi"})).text == "hi"
        await settled(client, made, it=broken, other=server())
        await settled(client, made, it=server(), other=server())
        assert (await pids(client))["it"] == before["it"]
        assert told(client, "config_rejected") == []
    said = [line for line in made.journal() if line["event"] == "config_broken"]
    assert [line["server"] for line in said] == ["it"], "once, however often the rest is edited"


async def test_a_file_that_is_deleted_keeps_everything_and_is_told(tmp_path: Path):
    made = setting(tmp_path, it=server())
    async with proxy(made) as client:
        await client.connected("it")
        before = await pids(client)
        made.config.unlink()
        event = await client.until_event("config_rejected")
        assert "The configuration file is gone." in event["data"]["error"]
        assert await pids(client) == before
        await settled(client, made, it=server())
        assert (await pids(client))["it"] == before["it"]
        assert len(told(client, "config_rejected")) == 1


async def test_a_file_that_is_made_later_is_used(tmp_path: Path):
    made = setting(tmp_path)
    made.home.mkdir()
    (made.home / ".config" / "emceepee").mkdir(parents=True)
    # The place that the platform gives, where nothing is yet.
    environ = made.environ() | {"EMCEEPEE_CONFIG": ""}
    process = await anyio.open_process(
        [sys.executable, "-m", "emceepee_stdio"], env=environ, cwd=made.home, stderr=None
    )
    client = Client(process, made.home, modern=False)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.listen)
        await client.greet()
        assert await listed(client) == {}
        text = json.dumps({"mcpServers": {"it": server()}})
        (made.home / ".config" / "emceepee" / "config.json").write_text(text)
        await client.until_event("server_added", by="configuration")
        await client.connected("it")
        assert process.stdin is not None
        await process.stdin.aclose()
        with anyio.fail_after(WAIT_S):
            assert await process.wait() == 0
    await process.aclose()
    client.check()
    assert made.left_over() == []


async def test_what_the_client_added_survives_every_edit(tmp_path: Path):
    made = setting(tmp_path, it=server())
    made.more["policy"] = {"mode": "allow"}
    argv = plain("--era", "legacy")
    async with proxy(made) as client:
        await client.connected("it")
        answer = await client.call(
            "add_server", name="mine", command=argv[0], args=argv[1:], env={"MARK": "client"}
        )
        assert not answer.is_error, answer.text
        before = await pids(client)
        await settled(client, made, it=server())
        await settled(client, made)
        assert (await pids(client))["mine"] == before["mine"]
        log = tmp_path / "never.jsonl"
        await settled(client, made, mine=server(env={"MARK": "file"}, log=log))
        assert (await pids(client))["mine"] == before["mine"]
        assert await shown(client, "mine", "MARK") == "client"
        assert not log.exists()
        await settled(client, made)
        assert (await pids(client))["mine"] == before["mine"]
        assert "mine" not in [event["server"] for event in told(client, "server_removed")]
    refused = [line for line in made.journal() if line["event"] == "server_not_added"]
    assert {line["server"] for line in refused} == {"mine"}


@pytest.mark.real
async def test_the_servers_of_the_command_line_are_not_touched(tmp_path: Path):
    made = setting(tmp_path, it=server())
    words = " ".join(plain("--era", "legacy"))
    log = tmp_path / "never.jsonl"
    async with proxy(made, arguments=["--server", f"given={words}"]) as client:
        await client.connected("it", "given")
        before = await pids(client)
        await settled(client, made, given=server(log=log))
        assert (await pids(client))["given"] == before["given"]
        await settled(client, made, given=server(log=log, disabled=True))
        assert (await pids(client))["given"] == before["given"]
        await settled(client, made, given={"command": 7})
        replace(made, "{")
        await client.until_event("config_rejected")
        await settled(client, made)
        assert (await pids(client))["given"] == before["given"]
        assert not log.exists()


async def test_what_an_edit_adds_past_the_bound_is_shown_with_the_reason(tmp_path: Path):
    made = setting(tmp_path, it=server(), other=server())
    made.limits["servers"] = 2
    async with proxy(made) as client:
        await client.connected("it", "other")
        before = await pids(client)
        edit(made, it=server(), other=server(), many=server(), more=server())
        with anyio.fail_after(WAIT_S):
            while "more" not in await listed(client):
                await client.call("await_activity", timeout_ms=100)
        for name in ("many", "more"):
            found = (await listed(client))[name]
            assert found["phase"] == "disabled"
            assert "2 servers" in found["last_error"]
            answer = await client.execute("echo", name, args={"message": "hi"})
            assert found["last_error"] in answer.text
        assert await pids(client) == before
        edit(made, it=server(), many=server())
        await client.until_event("server_added", by="configuration")
        await client.connected("it", "many")
        assert (await pids(client))["it"] == before["it"]
        assert [event["server"] for event in told(client, "server_added")] == ["many"]


async def test_what_a_person_wrote_into_the_file_counts_as_agreed_to_as_long_as_it_is_there(
    tmp_path: Path,
):
    made = setting(tmp_path, it=server())
    made.more["policy"] = {"mode": "ask"}
    argv = plain("--era", "legacy", "--ttl", "7")
    proposal: dict[str, Any] = {"command": argv[0], "args": argv[1:]}
    async with proxy(made) as client:
        await client.connected("it")
        answer = await client.call("add_server", name="before", **proposal)
        assert "[needs_approval]" in answer.text
        await settled(client, made, it=server(), written=server("--ttl", "7"))
        assert not (await client.call("add_server", name="while", **proposal)).is_error
        await settled(client, made, it=server())
        answer = await client.call("add_server", name="after", **proposal)
        assert "[needs_approval]" in answer.text


@pytest.mark.real
async def test_an_edit_while_the_proxy_ends_starts_nothing(tmp_path: Path):
    made = setting(tmp_path, stubborn=command(rude("stubborn")), turns=server())
    made.fixed |= {"eof_term_s": 0.1, "eof_kill_s": 5}
    log = tmp_path / "never.jsonl"
    async with proxy(made) as client:
        await client.connected("stubborn", "turns")
        assert client.process.stdin is not None
        await client.process.stdin.aclose()
        await until(lambda: _recorded(made, "registry_shutdown_start"))
        edit(made, new=server(log=log), turns=server(log=log, env={"MARK": "new"}))
        with anyio.fail_after(WAIT_S):
            await client.process.wait()
    assert not log.exists()
    spawned = [line["server"] for line in _recorded(made, "server_spawned")]
    assert sorted(spawned) == ["stubborn", "turns"]
    # It was looked at in time, and refused.
    assert _recorded(made, "server_not_added")
    assert _recorded(made, "unexpected_error") == []


def _recorded(made: Setting, event: str) -> list[Any]:
    return [line for line in made.journal() if line["event"] == event]


async def test_changed_limits_and_times_count_from_the_next_start_on(tmp_path: Path):
    made = setting(tmp_path, it=server())
    async with proxy(made) as client:
        await client.connected("it")
        before = await pids(client)
        made.timeouts["call_ms"] = 77_000
        made.limits["servers"] = 3
        made.more["policy"] = {"mode": "deny"}
        await settled(client, made, it=server())
        assert (await pids(client))["it"] == before["it"]
    (warning,) = _recorded(made, "config_warning")
    assert warning["data"]["warning"] == (
        "emceepee.limits, emceepee.timeouts changed: that counts from the proxy's next start on."
    )


async def test_many_edits_in_a_row_end_with_what_the_last_one_says(tmp_path: Path):
    made = setting(tmp_path, it=server())
    logs = [tmp_path / f"received-{n}.jsonl" for n in range(12)]
    async with proxy(made) as client:
        await client.connected("it")
        for n, log in enumerate(logs):
            edit(made, it=server(), turns=server(env={"MARK": str(n)}, log=log))
        await client.until_event("server_added", by="configuration")
        with anyio.fail_after(WAIT_S):
            while not received_by_server(logs[-1]):
                await client.call("await_activity", timeout_ms=50)
        await client.connected("it", "turns")
        assert await shown(client, "turns", "MARK") == "11"
        started = [line["pid"] for log in logs for line in received_by_server(log, "start")]
        running = set((await pids(client)).values())
        assert [pid for pid in started if alive(pid) and pid not in running] == []
