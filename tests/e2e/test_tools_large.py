"""Results that are too large: kept whole, answered with both ends, paged and searched."""

import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Answer, Client, Setting, both_backends, both_eras, command, proxy
from tests.e2e.servers.novel import LAST, novel
from tests.peers import SERVERS

TEN_MILLION = 10_000_000
# Where a text may not be cut: before an accent, a joiner, what is joined, or half of a flag.
TORN = re.compile("[\u0301\u200d]|👩|👧|👦|🇹")


@asynccontextmanager
async def ready(
    tmp_path: Path,
    era: str = "legacy",
    *,
    modern: bool = False,
    fixed: dict[str, float] | None = None,
    **limits: int,
) -> AsyncIterator[Client]:
    argv = [sys.executable, str(SERVERS / "large.py"), "--era", era]
    entry = command(argv, era=era)
    setting = Setting(
        home=tmp_path / "home",
        servers={"s": entry},
        limits={"result_bytes": 40_000} | limits,
        fixed=fixed or {},
    )
    async with proxy(setting, modern=modern) as client:
        await client.connected()
        await client.drain()
        yield client


def where(answer: Answer) -> dict[str, Any]:
    return json.loads(
        next(b["text"] for b in answer.blocks if b.get("text", "").startswith('{"stored_result"'))
    )["stored_result"]


async def pages(client: Client, uri: str, **arguments: Any) -> AsyncIterator[str]:
    offset = 0
    while True:
        answer = await client.call(
            "read_resource", server="emceepee", uri=uri, offset=offset, **arguments
        )
        text, facts = answer.blocks[0]["text"], answer.json
        assert facts["offset"] == offset
        yield text
        if "next_offset" not in facts:
            return
        assert facts["next_offset"] == offset + len(text) > offset
        offset = facts["next_offset"]


@both_eras
@both_backends
@pytest.mark.slow
async def test_ten_million_characters_are_stored_paged_and_searched_to_the_last(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    whole = novel(TEN_MILLION)
    async with ready(tmp_path, era, modern=modern) as client:
        answer = await client.execute("tell", args={"chars": TEN_MILLION})
        head, left_out, tail, said, _ = (block["text"] for block in answer.blocks)
        assert whole.startswith(head)
        assert whole.endswith(tail)
        assert 39_000 < len(head.encode()) + len(tail.encode()) < 40_000
        count = int(re.sub(r"\D", "", left_out))
        assert len(head) + count + len(tail) == TEN_MILLION
        assert str(TEN_MILLION) in said
        stored = where(answer)
        assert stored["chars"] == TEN_MILLION
        assert stored["uri"] in stored["read"]
        got = [page async for page in pages(client, stored["uri"], limit=1_000_000)]
        assert "".join(got) == whole
        assert {len(page.encode()) // 1_000 for page in got[:-1]} <= {38, 39}
        search = {"server": "emceepee", "uri": stored["uri"]}
        found = (await client.call("read_resource", **search, pattern="VERY last word$")).json
        assert [hit["offset"] for hit in found["hits"]] == [TEN_MILLION - len(LAST) + 4]
        assert found["hits"][0]["excerpt"].endswith(LAST)
        assert "next_offset" not in found
        numbers: list[int] = []
        offset = 0
        while offset is not None:
            look = await client.call(
                "read_resource", **search, pattern=r"line \d{3}4321:", offset=offset, limit=3
            )
            numbers += [hit["offset"] for hit in look.json["hits"]]
            offset = look.json.get("next_offset")
        assert numbers == [m.start() for m in re.finditer(r"line \d{3}4321:", whole)]


async def test_no_page_tears_what_belongs_together(tmp_path: Path) -> None:
    whole = novel(50_000)
    async with ready(tmp_path) as client:
        answer = await client.execute("tell", args={"chars": 50_000})
        head, _, tail, *_ = (block["text"] for block in answer.blocks)
        assert not TORN.match(whole[len(head) :])
        assert not TORN.match(tail)
        for limit in (997, 1_000, 1_001, 1_009):
            got = [page async for page in pages(client, where(answer)["uri"], limit=limit)]
            assert "".join(got) == whole
            assert not [page for page in got if TORN.match(page)]
            assert max(map(len, got)) <= limit
        # Even the smallest page gets on.
        first = await client.call(
            "read_resource", server="emceepee", uri=where(answer)["uri"], limit=1, offset=25
        )
        assert first.blocks[0]["text"] in ("👨‍👩‍👧‍👦", whole[25])


@both_backends
async def test_it_is_so_for_tasks_resources_prompts_and_structured_content(
    tmp_path: Path, era: str
) -> None:
    whole = novel(60_000)
    async with ready(tmp_path, era) as client:
        begun = await client.execute("tell", timeout_ms=0, args={"chars": 60_000})
        answers = {
            "task": await client.call("get_task_result", task_id=begun.task),
            "resource": await client.call("read_resource", server="s", uri="large://x/60000"),
        }
        for what, answer in answers.items():
            got = [page async for page in pages(client, where(answer)["uri"])]
            assert "".join(got) == whole, what
        prompt = await client.call(
            "get_prompt", server="s", name="novel", arguments={"chars": "60000"}
        )
        got = [page async for page in pages(client, where(prompt)["uri"])]
        assert "".join(got).endswith("\n" + whole)
        assert '"roles":["user"]' in got[0]
        structured = await client.execute("structured", args={"chars": 60_000})
        got = [page async for page in pages(client, where(structured)["uri"])]
        assert json.loads("".join(got)) == {"novel": whole}


async def test_pictures_and_links_stay_in_their_order(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        small = await client.execute("show", args={"chars": 100})
        kinds = [block["type"] for block in small.blocks]
        assert kinds == ["image", "text", "resource_link", "text", "image"]
        large = await client.execute("show", args={"chars": 100_000})
        assert [block["type"] for block in large.blocks] == [
            "image",
            *["text"] * 3,
            "resource_link",
            "image",
            *["text"] * 2,
        ]
        assert large.blocks[0] == small.blocks[0]
        assert large.blocks[4:6] == [small.blocks[2], small.blocks[4]]
        assert large.result["_meta"]["large/key"] == 1
        got = [page async for page in pages(client, where(large)["uri"])]
        assert "".join(got) == novel(100_000) + "\nand more"
        # A picture is no text: it is not measured.
        picture = await client.execute("show", args={"chars": 100, "size": 2_000_000})
        assert len(picture.blocks[-1]["data"]) == 2_000_000
        error = await client.execute("tell", args={"chars": 100_000, "error": True})
        assert error.is_error


async def test_the_limit_is_exact_in_bytes_and_can_be_small(tmp_path: Path) -> None:
    limit = len(novel(1_000).encode())
    async with ready(tmp_path, result_bytes=limit) as client:
        fits = await client.execute("tell", args={"chars": 1_000})
        assert fits.text == novel(1_000)
        over = await client.execute("tell", args={"chars": 1_001})
        head, left_out, tail, *_ = (block["text"] for block in over.blocks)
        count = int(re.sub(r"\D", "", left_out))
        assert len(head) + count + len(tail) == 1_001
        assert count >= 1
        assert len(head.encode()) + len(tail.encode()) <= limit


async def test_storing_can_be_switched_off(tmp_path: Path) -> None:
    async with ready(tmp_path, result_bytes=0) as client:
        whole = await client.execute("tell", args={"chars": 500_000})
        assert [block["text"] for block in whole.blocks] == [novel(500_000)]


@pytest.mark.parametrize("result_bytes", [0, 40_000])
async def test_what_does_not_fit_into_one_line_is_stored_in_any_case(
    tmp_path: Path, result_bytes: int
) -> None:
    fixed: dict[str, float] = {"client_line_bytes": 100_000}
    async with ready(tmp_path, fixed=fixed, result_bytes=result_bytes) as client:
        shown = await client.execute("show", args={"chars": 10, "size": 200_000})
        assert len(json.dumps(shown.result)) < 100_000
        got = [page async for page in pages(client, where(shown)["uri"], limit=1_000_000)]
        assert max(map(len, got)) <= 100_000 // 8
        content = json.loads("".join(got))
        assert [block["type"] for block in content][-1] == "image"
        assert len(content[-1]["data"]) == 200_000
        if not result_bytes:
            error = await client.execute("tell", args={"chars": 300_000, "error": True})
            assert error.is_error
            got = [page async for page in pages(client, where(error)["uri"])]
            assert json.loads("".join(got))[0]["text"] == novel(300_000)


async def test_the_oldest_goes_when_room_is_needed_and_that_is_said(tmp_path: Path) -> None:
    async with ready(tmp_path, stored_bytes=1_000_000) as client:
        first = where(await client.execute("tell", args={"chars": 100_000}))
        second = where(await client.execute("tell", args={"chars": 100_000}))
        third = where(await client.execute("tell", args={"chars": 100_000}))
        gone = await client.call("read_resource", server="emceepee", uri=first["uri"])
        assert "[result_expired]" in gone.text
        assert "room was needed" in gone.text
        searched = await client.call(
            "read_resource", server="emceepee", uri=first["uri"], pattern="x"
        )
        assert "[result_expired]" in searched.text
        for kept in (second, third):
            read = await client.call("read_resource", server="emceepee", uri=kept["uri"], limit=4)
            assert read.blocks[0]["text"] == "line"
        too_large = await client.execute("tell", args={"chars": 600_000})
        assert "Only both ends are left" in too_large.text
        assert "[result_too_large]" in too_large.text
        assert too_large.blocks[2]["text"].endswith(LAST)
        for kept in (second, third):
            read = await client.call("read_resource", server="emceepee", uri=kept["uri"], limit=4)
            assert not read.is_error
        unknown = await client.call(
            "read_resource", server="emceepee", uri="emceepee://results/01ARZ3NDEKTSV4RRFFQ69G5FAV"
        )
        assert "[resource_not_found]" in unknown.text


@both_eras
async def test_a_stored_result_is_a_native_resource_too(tmp_path: Path, *, modern: bool) -> None:
    async with ready(tmp_path, modern=modern) as client:
        templates = await client.request("resources/templates/list")
        (template,) = templates["resourceTemplates"]
        assert template["uriTemplate"] == "emceepee://results/{id}"
        stored = where(await client.execute("tell", args={"chars": 60_000}))
        assert stored["uri"].startswith("emceepee://results/")
        (content,) = (await client.request("resources/read", {"uri": stored["uri"]}))["contents"]
        assert content["uri"] == stored["uri"]
        assert content["text"] == novel(60_000)
        huge = where(await client.execute("tell", args={"chars": 2_000_000}))
        (content,) = (await client.request("resources/read", {"uri": huge["uri"]}))["contents"]
        shown, _, note = content["text"].rpartition("\n… ")
        assert novel(2_000_000).startswith(shown)
        assert f"{2_000_000 - len(shown)} characters left out" in note
        rest = [f"offset={len(shown)}" in note, huge["uri"] in note]
        assert all(rest)
        error = await client.refused("resources/read", {"uri": "emceepee://results/none"})
        assert error["code"] == (-32602 if modern else -32002)
        assert error["data"] == {"uri": "emceepee://results/none"}


async def test_a_search_of_a_large_result_holds_up_nobody(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        stored = where(await client.execute("tell", args={"chars": TEN_MILLION}))
        about = {"server": "emceepee", "uri": stored["uri"]}
        for pattern in ("(?R)", "((?1)|.)*", "(", "x" * 501, "(" * 400):
            slow = await client.begin_call("read_resource", **about, pattern=pattern)
            assert (await client.call("list_timers")).json == {"timers": []}
            assert "[invalid_pattern]" in (await slow.answer()).text, pattern
        never = await client.begin_call("read_resource", **about, pattern="nowhere to be found")
        assert (await client.call("list_timers")).json == {"timers": []}
        assert (await never.answer()).json == {"hits": []}
        empty = await client.call("read_resource", **about, pattern="", limit=2)
        assert [hit["offset"] for hit in empty.json["hits"]] == [0, 1]
        beyond = await client.call("read_resource", **about, offset=TEN_MILLION + 5)
        assert beyond.blocks[0]["text"] == ""
        assert "next_offset" not in beyond.json
