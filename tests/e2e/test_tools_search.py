"""docs/reference/jobs.md: every call that it shows, made in its order through the real process."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.measure_tool_search import in_servers, real_servers
from tests.e2e.client import Answer, Client, Setting, proxy
from tests.e2e.tool_searches import HELD_OUT_REAL, QUERIES_REAL
from tests.peers import everything, filesystem, time

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "jobs.md"
CALL = re.compile(r"^(\w+) (\{.*\})$", re.MULTILINE)
# What the last answer of each job says.
SAID = {
    "Find a tool": '"name":"convert_time"',
    "Run it": "21:00:00+09:00",
    "Add a server": '"get-sum"',
    "Start a slow job and go on": "Long running operation completed",
    "Answer a question of a server": "Ada",
    "Read a file that a server offers": "# ",
    "Watch something": "notifications/resources/updated",
    "Use a prompt": "weather in Riga",
    "See why a server fails": "[server_failed]",
    "Page through a long result": "Call me Ishmael",
}


def jobs() -> dict[str, list[tuple[str, str]]]:
    sections = PAGE.read_text(encoding="utf-8").split("\n## ")[1:]
    return {section.partition("\n")[0]: CALL.findall(section) for section in sections}


def on_path(folder: Path, name: str, argv: list[str], tail: str = "") -> None:
    """A program of that name; what the page starts by `npx` and `uvx` is installed here."""
    folder.mkdir(exist_ok=True)
    words = " ".join(f"'{word}'" for word in argv)
    (folder / name).write_text(f"#!/bin/sh\nexec {words} {tail}\n")
    (folder / name).chmod(0o755)


def setting(tmp_path: Path) -> Setting:
    book = tmp_path / "files" / "book.txt"
    book.parent.mkdir()
    chapter = "Call me Ishmael. I saw a white whale. " + "And the sea was wide. " * 100
    book.write_text("\n".join([chapter] * 60))
    programs = tmp_path / "bin"
    on_path(programs, "npx", everything())
    on_path(programs, "uvx", time())
    on_path(programs, "files-server", filesystem(book.parent))
    crying = 'import sys; sys.exit("notes.db is locked")'
    on_path(programs, "notes-server", [sys.executable, "-c", crying])
    servers: dict[str, Any] = {
        "time": {"command": "uvx", "args": ["mcp-server-time"]},
        "files": {"command": "files-server"},
        "notes": {"command": "notes-server", "restart": {"attempts": 0}},
    }
    return Setting(home=tmp_path / "home", servers=servers)


class Known:
    """What the answers so far have named, for the words in capitals."""

    def __init__(self, tmp_path: Path) -> None:
        self.words = {"BOOK": str(tmp_path / "files" / "book.txt")}

    def filled(self, arguments: str) -> dict[str, Any]:
        for word, value in self.words.items():
            arguments = arguments.replace(word, value)
        return json.loads(arguments)

    def learn(self, answer: Answer) -> None:
        text = json.dumps(answer.result).replace("\\", "")
        for word, pattern in {
            "TASK_ID": r'"proxy_task":\{"task_id":"(\w+)"',
            "REQUEST_ID": r'"request_id":"(\w+)"',
            "RESOURCE_URI": r'"uri":"(demo:[^"]+architecture[^"]*)"',
            "RESULT_URI": r"(emceepee://results/\w+)",
        }.items():
            if found := re.search(pattern, text):
                self.words[word] = found[1]


async def answers(client: Client, calls: list[tuple[str, str]], known: Known) -> list[Answer]:
    made: list[Answer] = []
    for tool, arguments in calls:
        answer = await client.call(tool, **known.filled(arguments))
        known.learn(answer)
        made.append(answer)
    return made


async def test_every_job_on_the_page_comes_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = jobs()
    assert list(page) == list(SAID)
    here = setting(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    async with proxy(here) as client:
        await client.connected("time", "files")
        known = Known(tmp_path)
        for job, calls in page.items():
            assert calls, job
            made = await answers(client, calls, known)
            assert SAID[job] in made[-1].text, (job, made[-1])
            well = made[:-1] if job == "See why a server fails" else made
            assert not [answer for answer in well if answer.is_error], (job, well)
            if job == "See why a server fails":
                assert "notes.db is locked" in made[0].text
                assert "notes.db is locked" in made[1].text
            await client.drain()


async def test_most_queries_find_their_tool_among_those_of_real_servers(tmp_path: Path) -> None:
    here = real_servers(tmp_path)
    async with proxy(here) as client:
        await client.connected(*here.servers)
        tuned = await in_servers(client, QUERIES_REAL)
        held_out = await in_servers(client, HELD_OUT_REAL)
    assert tuned.first >= 19
    assert tuned.top_three >= 24
    assert held_out.first >= 26
    assert held_out.top_three >= 35
