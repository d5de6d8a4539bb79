"""Count how often a query in plain words finds its tool first, and among the first three.

Run it as `python -m scripts.measure_tool_search`. Every query is a real `list_tools` call to a real
proxy, or, for the catalogue of 1,200 tools, a call of its ranking.
"""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from tests.e2e.client import Client, Setting, command, proxy
from tests.e2e.servers.catalogue import servers
from tests.e2e.tool_searches import HELD_OUT, HELD_OUT_REAL, QUERIES, QUERIES_REAL, rank
from tests.peers import everything, filesystem, git, memory, plain, time

Table = Mapping[str, tuple[str, str]]


class Score(NamedTuple):
    """How many queries found their tool, of how many."""

    first: int
    top_three: int
    queries: int


def in_catalogue(table: Table) -> Score:
    tools = [(server, tool) for server, listed in servers().items() for tool in listed]
    found = {
        query: [(server, str(tool["name"])) for server, tool in rank(query, tools)[:3]]
        for query in table
    }
    return _score(table, found)


async def in_servers(client: Client, table: Table) -> Score:
    found: dict[str, list[tuple[str, str]]] = {}
    for query in table:
        answer = await client.call("list_tools", query=query, limit=3)
        found[query] = [(tool["server"], tool["name"]) for tool in answer.json["tools"]]
    return _score(table, found)


def real_servers(folder: Path) -> Setting:
    """Five servers that others wrote, and the fixture server."""
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    entries: dict[str, Any] = {
        "everything": command(everything()),
        "filesystem": command(filesystem(folder)),
        "memory": command(memory(), env={"MEMORY_FILE_PATH": str(folder / "memory.jsonl")}),
        "time": command(time()),
        "git": command(git(folder)),
        "plain": command(plain()),
    }
    return Setting(home=folder / "home", servers=entries)


def _score(table: Table, found: Mapping[str, list[tuple[str, str]]]) -> Score:
    return Score(
        first=sum(found[query][:1] == [wanted] for query, wanted in table.items()),
        top_three=sum(wanted in found[query] for query, wanted in table.items()),
        queries=len(table),
    )


async def main() -> None:
    scores = {"QUERIES": in_catalogue(QUERIES), "HELD_OUT": in_catalogue(HELD_OUT)}
    with tempfile.TemporaryDirectory() as folder:
        setting = real_servers(Path(folder))
        async with proxy(setting) as client:
            await client.connected(*setting.servers)
            scores["QUERIES_REAL"] = await in_servers(client, QUERIES_REAL)
            scores["HELD_OUT_REAL"] = await in_servers(client, HELD_OUT_REAL)
    for name, score in scores.items():
        print(f"{name:14} first {score.first}, top three {score.top_three}, of {score.queries}")


if __name__ == "__main__":
    anyio.run(main)
