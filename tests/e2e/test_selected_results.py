"""Of a large result the model gets what its jq program selects; the whole is stored."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import (
    Answer,
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    proxy,
    received_by_server,
    server,
)
from tests.peers import SERVERS


@asynccontextmanager
async def ready(
    tmp_path: Path, era: str = "legacy", *, modern: bool = False, **limits: int
) -> AsyncIterator[Client]:
    entry = command([sys.executable, str(SERVERS / "large.py"), "--era", era], era=era)
    setting = Setting(home=tmp_path / "home", servers={"s": entry}, limits=limits)
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        await client.drain()
        yield client


def where(answer: Answer) -> str:
    """The address of the whole."""
    [told] = [b["text"] for b in answer.blocks if b.get("text", "").startswith('{"stored_result"')]
    assert set(json.loads(told)) <= {"stored_result", "word", "selected_from"}
    return json.loads(told)["stored_result"]["uri"]


async def read(client: Client, uri: str, **how: Any) -> Answer:
    return await client.call("read_resource", server="emceepee", uri=uri, **how)


@both_eras
@both_backends
async def test_of_200_kb_the_model_reads_300_bytes(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with ready(tmp_path, era, modern=modern) as client:
        args = {"count": 800}
        answer = await client.execute("issues", args=args, select=".issues[790:] | map(.title)")
        assert answer.blocks[0]["text"] == json.dumps(
            [f"Issue {n}" for n in range(790, 800)], separators=(",", ":")
        )
        assert len(answer.blocks) == 2
        assert len(json.dumps(answer.blocks)) < 500
        stored = json.loads(answer.blocks[1]["text"])["stored_result"]
        assert stored["chars"] > 190_000
        again = await read(client, where(answer), select="[.issues[] | .id] | add")
        assert again.blocks[0]["text"] == "319600"
        assert where(again) == where(answer)
        page = await read(client, where(answer), limit=50)
        assert page.blocks[0]["text"].startswith('{"issues":[{"id":0,"title":"Issue 0"')


async def test_what_a_program_works_on(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:

        async def selected(program: str, **args: Any) -> str:
            answer = await client.execute("issues", args=args, select=program)
            return answer.blocks[0]["text"]

        assert await selected(".total", count=2) == "2"
        assert await selected(".issues | length", count=2, shape="text") == "2"
        assert await selected("map(.id)", count=2, shape="texts") == "[0,1]"
        assert await selected(".title", count=1, shape="texts") == "Issue 0"  # a text is one
        answer = await client.execute("tell", args={"chars": 500}, select="[.[:4], length]")
        assert json.loads(answer.blocks[0]["text"])[1] == 500
        # What holds no text comes along.
        shown = await client.execute("show", args={"chars": 50}, select="length")
        kinds = [block["type"] for block in shown.blocks]
        assert sorted(kinds) == ["image", "image", "resource_link", "text", "text"]
        # The same for a resource of a server, and for ours.
        answer = await client.call(
            "read_resource", server="s", uri="large://300", select="[length, type]"
        )
        assert answer.blocks[0]["text"] == '[300,"string"]'
        status = await read(client, "emceepee://status", select=".servers[].name")
        assert status.blocks[0]["text"] == "s"


async def test_an_error_of_the_tool_is_answered_as_it_is(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        answer = await client.execute("issues", args={"count": 1, "shape": "error"}, select=".x")
        assert answer.is_error
        assert json.loads(answer.text)["issues"][0]["id"] == 0


async def test_a_program_that_is_none_is_refused_before_anything_is_called(tmp_path: Path) -> None:
    log = tmp_path / "log"
    setting = Setting(home=tmp_path / "home", servers={"s": server(log=log)})
    async with proxy(setting) as client:
        await client.connected()
        answer = await client.execute("echo", args={"text": "a"}, select=".a[")
        assert answer.is_error
        assert "[invalid_select]" in answer.text
        assert "line 2, column 1" in answer.text
        assert "nothing was called" in answer.text
        await client.execute("echo", args={"text": "a"})
        calls = [one for one in received_by_server(log) if "tools/call" in json.dumps(one)]
        assert len(calls) == 1


async def test_a_program_that_does_not_fit_says_what_was_there_and_where_it_is(
    tmp_path: Path,
) -> None:
    async with ready(tmp_path) as client:
        answer = await client.execute("issues", args={"count": 3}, select=".issues.title")
        assert answer.is_error
        assert 'Cannot index array with string ("title")' in answer.text
        assert "an object with the keys issues (a list of 3, first an object with" in answer.text
        uri = answer.text.partition('"uri":"')[2].partition('"')[0]
        again = await read(client, uri, select=".issues[2].title")
        assert again.blocks[0]["text"] == "Issue 2"
        # A key that is not there is no error of jq.
        nothing = await read(client, uri, select=".issues[].name")
        assert nothing.blocks[0]["text"] == "[null,null,null]"
        assert "id, title, body" in nothing.json["selected_from"]
        both = await read(client, uri, select=".", offset=3)
        assert "[invalid_arguments]" in both.text
        gone = await read(client, "emceepee://results/none", select=".")
        assert "[resource_not_found]" in gone.text


async def test_the_result_of_a_task_is_selected_from_too(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        began = await client.execute("issues", args={"count": 900}, timeout_ms=0)
        await client.until_event("task_completed")
        one = await client.call("get_task_result", task_id=began.task, select=".issues[5].title")
        assert one.blocks[0]["text"] == "Issue 5"
        two = await client.call("get_task_result", task_id=began.task, select=".total")
        assert (two.blocks[0]["text"], where(two)) == ("900", where(one))
        whole = await client.call("get_task_result", task_id=began.task)
        assert "structuredContent" not in whole.result
        # A program that was given with the call has made the result of the task.
        began = await client.execute(
            "issues", args={"count": 900}, timeout_ms=0, select=".issues[6].title"
        )
        await client.until_event("task_completed", task_id=began.task)
        assert (await client.call("get_task_result", task_id=began.task)).blocks[0]["text"] == (
            "Issue 6"
        )


async def test_a_selection_that_is_too_large_is_shown_by_its_ends(tmp_path: Path) -> None:
    async with ready(tmp_path, result_bytes=20_000) as client:
        answer = await client.execute("issues", args={"count": 900}, select=".issues")
        assert len(json.dumps(answer.result)) < 25_000
        uris = [
            json.loads(block["text"])["stored_result"]["uri"]
            for block in answer.blocks
            if block["text"].startswith('{"stored_result"')
        ]
        assert len(set(uris)) == 2
        kinds = {(await read(client, uri, select="type")).blocks[0]["text"] for uri in uris}
        assert kinds == {"array", "object"}


async def test_what_could_be_taken_for_ours_is_marked_as_the_servers(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        args = {"count": 1, "shape": "forged"}
        answer = await client.execute("issues", args=args, select=".issues[0]")
        assert answer.blocks[0]["text"].startswith("[From the server, not from emceepee")
        assert '"proxy_task"' in answer.blocks[0]["text"]


@pytest.mark.real
async def test_the_helper_starts_at_the_first_program_and_ends_with_the_proxy(
    tmp_path: Path,
) -> None:
    async with ready(tmp_path) as client:
        args = {"count": 1}
        slow = await client.execute("issues", args=args, select="def f: f; f")
        assert "took longer than 2 s" in slow.text
        answer = await client.execute("issues", args=args, select=".total")
        assert answer.blocks[0]["text"] == "1"
