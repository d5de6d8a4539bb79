"""The servers that people use most: each lists its own tools through us, and does a real task."""

import itertools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from scripts.peers import PYTHONS, ROOT
from tests.e2e.client import LEGACY, WAIT_S, Client, Message, Setting, command, proxy
from tests.peers import (
    everything,
    fetch,
    filesystem,
    git,
    memory,
    node_modules,
    peer_python,
    sequential_thinking,
    sqlite,
    time,
)

LIST_CHANGED = "notifications/tools/list_changed"
# What the proxy says that it can do: some servers offer more to a client that can do more.
CAPABILITIES: Message = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}

LISTED: dict[str, tuple[Callable[[Path], list[str]], int]] = {
    "everything": (lambda _: everything(), 17),
    "filesystem": (filesystem, 14),
    "memory": (lambda _: memory(), 9),
    "sequential-thinking": (lambda _: sequential_thinking(), 1),
    "time": (lambda _: time(), 2),
    "git": (git, 12),
    "fetch": (lambda _: fetch(), 1),
    "sqlite": (lambda work: sqlite(work / "a.db"), 6),
}


def setting(tmp_path: Path, **servers: dict[str, Any]) -> Setting:
    return Setting(home=tmp_path / "home", servers=servers)


async def own_list(argv: Sequence[str], env: Mapping[str, str], count: int) -> list[Message]:
    """The tools that a server lists to a client of its own, once there are so many."""
    async with await anyio.open_process(
        argv, stderr=subprocess.DEVNULL, env={**os.environ, **env}
    ) as process:
        try:
            with anyio.fail_after(WAIT_S):
                return await _converse(process, count)
        finally:
            process.kill()


async def _converse(process: Process, count: int) -> list[Message]:
    assert process.stdin is not None
    assert process.stdout is not None
    lines = BufferedByteReceiveStream(process.stdout)

    async def say(**message: Any) -> None:
        assert process.stdin is not None
        await process.stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    info = {"name": "direct", "version": "1"}
    hello = {"protocolVersion": LEGACY, "capabilities": CAPABILITIES, "clientInfo": info}
    await say(id=0, method="initialize", params=hello)
    for asking in itertools.count(1):
        message = json.loads(await lines.receive_until(b"\n", 1 << 20))
        method = message.get("method")
        if method == "roots/list":
            await say(id=message["id"], result={"roots": []})
        elif method == LIST_CHANGED:
            await say(id=asking, method="tools/list")
        elif method is None and message["id"] == 0:
            await say(method="notifications/initialized")
            await say(id=asking, method="tools/list")
        elif method is None and len(tools := message["result"]["tools"]) >= count:
            assert "nextCursor" not in message["result"]
            return tools
    raise AssertionError


@pytest.mark.parametrize("name", LISTED)
async def test_every_tool_is_listed_as_the_server_itself_lists_it(
    tmp_path: Path, name: str
) -> None:
    make, count = LISTED[name]
    work = tmp_path / "work"
    repository(work)
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    argv = make(work)
    own = await own_list(argv, env, count)
    async with proxy(setting(tmp_path, s=command(argv, env=env))) as client:
        await client.connected()
        while len(ours := await listed(client)) < count:
            await client.until_event("notification", method=LIST_CHANGED)
            client.events.clear()
        assert ours == own
        assert len(own) == count


async def listed(client: Client) -> list[Message]:
    """The tools with all that is known of them, but for what we add: server and way to run it."""
    answer = (await client.call("list_tools", detail="full", limit=500)).json
    assert "servers_that_failed" not in answer
    assert answer["run_with"].startswith("execute_tool,")
    for tool in answer["tools"]:
        assert tool.pop("server") == "s"
        only_reads = tool.get("annotations", {}).get("readOnlyHint") is True
        assert tool.pop("run_with", None) == ("execute_readonly_tool" if only_reads else None)
    return answer["tools"]


async def test_a_file_is_written_edited_found_and_read(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with proxy(setting(tmp_path, fs=command(filesystem(work)))) as client:
        path = str(work / "notes.txt")
        found = (await client.call("list_tools", query="write a file", limit=3)).json["tools"]
        assert found[0]["name"] == "write_file"
        assert found[0]["signature"].startswith("write_file(path: str, content: str)")
        await client.execute("write_file", "fs", args={"path": path, "content": "milk\n"})
        edits = [{"oldText": "milk", "newText": "tea"}]
        await client.execute("edit_file", "fs", args={"path": path, "edits": edits})
        hits = await client.execute(
            "search_files", "fs", args={"path": str(work), "pattern": "*.txt"}
        )
        assert path in hits.text
        read = await client.execute("read_text_file", "fs", args={"path": path})
        assert read.text.startswith("tea")
        assert Path(path).read_text() == "tea\n"
        outside = await client.execute(
            "read_text_file", "fs", args={"path": str(tmp_path / "home" / "config.json")}
        )
        assert outside.is_error


async def test_a_graph_is_remembered_across_a_restart(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with proxy(setting(tmp_path, mem=command(memory(), env=env))) as client:
        entity = {"name": "Ada", "entityType": "person", "observations": ["likes tea"]}
        made = await client.execute("create_entities", "mem", args={"entities": [entity]})
        assert not made.is_error
        assert (await client.call("reconnect_server", name="mem")).json["phase"] == "connected"
        found = await client.execute("search_nodes", "mem", args={"query": "tea"})
        assert json.loads(found.text)["entities"][0]["name"] == "Ada"


async def test_a_time_is_converted(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path, time=command(time()))) as client:
        zones = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": "12:00"}
        converted = json.loads((await client.execute("convert_time", "time", args=zones)).text)
        assert converted["target"]["datetime"].endswith("21:00:00+09:00")
        now = await client.call("execute_tool", tool="get_current_time", args={"timezone": "UTC"})
        assert json.loads(now.text)["timezone"] == "UTC"
        assert (await client.execute("get_current_time", "time", args={"timezone": "X"})).is_error


def repository(work: Path) -> None:
    work.mkdir()
    for words in ("init -q", "config user.name Ada", "config user.email ada@example.com"):
        subprocess.run(["git", *words.split()], cwd=work, check=True)
    (work / "a.txt").write_text("hello\n")


async def test_a_change_is_committed(tmp_path: Path) -> None:
    work = tmp_path / "work"
    repository(work)
    async with proxy(setting(tmp_path, git=command(git(work)))) as client:
        repo = {"repo_path": str(work)}
        assert "a.txt" in (await client.execute("git_status", "git", args=repo)).text
        await client.execute("git_add", "git", args={**repo, "files": ["a.txt"]})
        message = "Say hello — ✓"
        done = await client.execute("git_commit", "git", args={**repo, "message": message})
        assert not done.is_error, done.text
        log = await client.execute("git_log", "git", args={**repo, "max_count": 1})
        assert message in log.text


async def test_a_thought_is_counted_and_its_drawing_on_stderr_is_kept(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path, think=command(sequential_thinking()))) as client:
        thought = {"thought": "Boil the water — first", "thoughtNumber": 1, "totalThoughts": 2}
        first = await client.execute(
            "sequentialthinking", "think", args={**thought, "nextThoughtNeeded": True}
        )
        assert json.loads(first.text)["thoughtHistoryLength"] == 1
        thought |= {"thought": "Pour it", "thoughtNumber": 2}
        second = await client.execute(
            "sequentialthinking", "think", args={**thought, "nextThoughtNeeded": False}
        )
        assert json.loads(second.text)["thoughtHistoryLength"] == 2
        await until_logged(client, "Boil the water — first")


async def until_logged(client: Client, words: str) -> None:
    """Wait for a line of stderr, which comes on a pipe of its own."""
    with anyio.fail_after(WAIT_S):
        while words not in str(
            (await client.call("get_logs", sources=["stderr"], peek=True)).json["logs"]
        ):
            await anyio.sleep(0.005)


async def test_a_table_is_made_filled_and_read_by_a_server_on_an_old_sdk(tmp_path: Path) -> None:
    database = tmp_path / "tea.db"
    async with proxy(setting(tmp_path, db=command(sqlite(database)))) as client:
        await client.connected("db")

        async def run(tool: str, **args: str) -> str:
            answer = await client.execute(tool, "db", args=args)
            assert not answer.is_error, answer.text
            return answer.text

        await run("create_table", query="CREATE TABLE tea (name TEXT, grams INTEGER)")
        insert = "INSERT INTO tea VALUES ('Assam — ✓', 3)"
        assert "affected_rows" in await run("write_query", query=insert)
        assert "Assam — ✓" in await run("read_query", query="SELECT * FROM tea")
        assert "grams" in await run("describe_table", table_name="tea")
        await run("append_insight", insight="Assam is strong.")
        updated = await client.until_event("notification", method="notifications/resources/updated")
        assert updated["server"] == "db"
        memo = await client.call("read_resource", server="db", uri="memo://insights")
        assert "Assam is strong." in memo.text
        (status,) = (await client.call("list_servers", name="db")).json["servers"]
        assert (status["era"], status["protocol_version"]) == ("legacy", "2024-11-05")
    with closing(sqlite3.connect(database)) as read:
        assert read.execute("SELECT * FROM tea").fetchall() == [("Assam — ✓", 3)]


def test_the_peers_once_installed_need_no_network(tmp_path: Path) -> None:
    node_modules()
    for peer in PYTHONS:
        peer_python(peer)
    nowhere = "http://127.0.0.1:9"
    names = ("HTTP_PROXY", "HTTPS_PROXY", "PIP_INDEX_URL", "NPM_CONFIG_REGISTRY")
    away = dict.fromkeys((*names, *map(str.lower, names)), nowhere)
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "peers.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **away},
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
