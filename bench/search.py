"""Judge the ranking of tools on public sets: `make bench-search`.

How often is the tool that a query asks for the first one, and among the first three? Nothing is
tuned on these sets. BFCL comes from PyPI; the others are judged where they lie in ../shared/data.
Beside ours stands what FastMCP's search by BM25 is described to do, written anew.
"""

import csv
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

from emceepee_stdio.tools.tool_ranking import ToolIndex, ToolQuery

_ROOT = Path(__file__).resolve().parent.parent
_CACHE = _ROOT / ".cache" / "bench-search"
_SHARED = _ROOT.parent / "shared" / "data"
_BFCL = "bfcl-eval==2026.3.23"
_BFCL_PARTS = ("multiple", "live_multiple", "parallel_multiple", "live_parallel_multiple")
_METATOOL_QUERIES, _SEED = 2_000, 42

Tool = Mapping[str, Any]
Item = tuple[str, Tool]
Find = Callable[[str], Sequence[Tool]]  # the tools for a query, best first


class Task(NamedTuple):
    """A query, and the tools that are right, by name and description."""

    query: str
    right: frozenset[tuple[str, str]]


class Set(NamedTuple):
    """A public set: tools with their servers, and tasks."""

    name: str
    items: Sequence[Item]
    tasks: Sequence[Task]


def ours(items: Sequence[Item]) -> Find:
    """The ranking of list_tools."""
    by_server: dict[str, list[Tool]] = {}
    for server, tool in items:
        by_server.setdefault(server, []).append(tool)
    indexes = [ToolIndex(server, tools) for server, tools in by_server.items()]
    for index in indexes:
        for _ in index.build():
            pass

    def find(query: str) -> list[Tool]:
        asked = ToolQuery(query, indexes)
        for _ in asked.run():
            pass
        return [tool for _, tool in asked.best]

    return find


def plain_bm25(items: Sequence[Item]) -> Find:
    """BM25 over the names and descriptions of tools and their arguments, lower case, unstemmed."""
    k1, b = 1.5, 0.75
    texts = [_terms(_whole_text(tool)) for _, tool in items]
    usual = sum(map(len, texts)) / len(texts)
    places: dict[str, list[tuple[int, int]]] = {}
    for number, text in enumerate(texts):
        for term, count in Counter(text).items():
            places.setdefault(term, []).append((number, count))

    def find(query: str) -> list[Tool]:
        scores: dict[int, float] = {}
        for term in _terms(query):
            found = places.get(term, [])
            rarity = math.log(1 + (len(texts) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                often = count + k1 * (1 - b + b * len(texts[number]) / usual)
                score = rarity * count * (k1 + 1) / often
                scores[number] = scores.get(number, 0.0) + score
        best_first = sorted(scores, key=scores.__getitem__, reverse=True)
        return [items[number][1] for number in best_first]

    return find


def _terms(text: str) -> list[str]:
    return [term for term in re.split(r"[^a-z0-9]+", text.lower()) if len(term) > 1]


def _whole_text(tool: Tool) -> str:
    properties = tool.get("inputSchema", {}).get("properties", {})
    about = [f"{name} {value.get('description', '')}" for name, value in properties.items()]
    return " ".join([tool["name"], tool.get("description") or "", *about])


def bfcl() -> Set:
    """The functions of all its parts with several functions a question, as one pool.

    Right is what answers the question among the functions that were offered with it: another one of
    the same name in the pool is not.
    """
    pool: dict[tuple[str, str], Tool] = {}
    tasks: list[Task] = []
    for part in _BFCL_PARTS:
        answers = {
            one["id"]: {name for call in one["ground_truth"] for name in call}
            for one in _json_lines(_bfcl_file(f"possible_answer/BFCL_v4_{part}.json"))
        }
        for one in _json_lines(_bfcl_file(f"BFCL_v4_{part}.json")):
            offered = [{**tool, "inputSchema": tool["parameters"]} for tool in one["function"]]
            for tool in offered:
                pool.setdefault(_key(tool), tool)
            right = [_key(tool) for tool in offered if tool["name"] in answers[one["id"]]]
            turns = one["question"][0]
            said = " ".join(turn["content"] for turn in turns if turn["role"] == "user")
            tasks.append(Task(said, frozenset(right)))
    items = [("functions", tool) for tool in pool.values()]
    return Set("BFCL v4, several functions", items, tasks)


def golden() -> Set:
    """The graded set of mcpproxy-go; every graded tool is right."""
    tools = {
        tool["tool_id"]: (
            tool["server"],
            {**tool, "name": tool["tool"], "inputSchema": tool["schema"]},
        )
        for tool in json.loads((_SHARED / "golden_tools.json").read_text())["tools"]
    }
    asked = json.loads((_SHARED / "golden_queries.json").read_text())["queries"]
    tasks = [
        Task(one["query"], frozenset(_key(tools[label["tool_id"]][1]) for label in one["labels"]))
        for one in asked
    ]
    return Set("mcpproxy-go golden", list(tools.values()), tasks)


def metatool() -> Set:
    """MetaTool: 2,000 of its queries, at random."""
    tools = json.loads((_SHARED / "metatool_tools.json").read_text())
    items: list[Item] = [("", {"name": name, "description": text}) for name, text in tools.items()]
    with (_SHARED / "metatool_queries.csv").open(newline="") as file:
        asked = [(row["Query"], row["Tool"]) for row in csv.DictReader(file)]
    tasks = [Task(query, frozenset({(name, tools[name])})) for query, name in asked]
    return Set("MetaTool", items, random.Random(_SEED).sample(tasks, _METATOOL_QUERIES))


def _key(tool: Tool) -> tuple[str, str]:
    return tool["name"], tool.get("description") or ""


def _bfcl_file(name: str) -> Path:
    """A data file of the package, which is downloaded once and never imported."""
    path = _CACHE / "bfcl_eval" / "data" / name
    if not path.exists():
        with tempfile.TemporaryDirectory() as folder:
            wheel = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "-d",
                folder,
                _BFCL,
            ]
            subprocess.run(wheel, check=True)
            (found,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(found) as archive:
                for member in archive.namelist():
                    if member.endswith("multiple.json"):
                        archive.extract(member, _CACHE)
    return path


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Score(NamedTuple):
    """Shares of the queries, and the time of one of them."""

    first: float
    top_three: float
    p50_ms: float
    p99_ms: float


def judged(tasks: Sequence[Task], find: Find) -> Score:
    first = top_three = 0
    times: list[float] = []
    for query, right in tasks:
        before = process_time()
        best = [_key(tool) for tool in find(query)[:3]]
        times.append((process_time() - before) * 1000)
        first += bool(right & set(best[:1]))
        top_three += bool(right & set(best))
    times.sort()
    count = len(tasks)
    return Score(first / count, top_three / count, times[count // 2], times[count * 99 // 100])


def sets() -> Iterator[Set]:
    yield bfcl()
    if _SHARED.is_dir():
        yield golden()
        yield metatool()


def main() -> None:
    print(
        "| set | tools | queries | ours: first / top 3 | BM25: first / top 3 | ours: p50 / p99 ms |"
    )
    print("|---|---|---|---|---|---|")
    for public in sets():
        our, other = (judged(public.tasks, way(public.items)) for way in (ours, plain_bm25))
        print(
            f"| {public.name} | {len(public.items):,} | {len(public.tasks):,} "
            f"| {our.first:.3f} / {our.top_three:.3f} | {other.first:.3f} / {other.top_three:.3f} "
            f"| {our.p50_ms:.1f} / {our.p99_ms:.1f} |"
        )


if __name__ == "__main__":
    main()
