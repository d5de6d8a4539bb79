"""A real task on each of the servers that people use most."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.client import Setting, command, proxy
from tests.peers import filesystem, git, memory, time


def setting(tmp_path: Path, **servers: dict[str, Any]) -> Setting:
    return Setting(home=tmp_path / "home", servers=servers)


async def test_a_file_is_written_edited_found_and_read(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with proxy(setting(tmp_path, fs=command(filesystem(work)))) as client:
        path = str(work / "notes.txt")
        found = (await client.call("list_tools", query="write a file", limit=3)).json["tools"]
        assert found[0]["name"] == "write_file"
        assert found[0]["inputSchema"]["required"] == ["path", "content"]
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
