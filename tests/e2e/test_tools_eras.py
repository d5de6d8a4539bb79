"""Everything that a server can do, behind a server of either era."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client import Client, Setting, both_backends, proxy, server

PNG = b"\x89PNG"
UPDATED = "notifications/resources/updated"


@asynccontextmanager
async def ready(tmp_path: Path, era: str, **more: Any) -> AsyncIterator[Client]:
    # The client speaks the era that the server does not.
    setting = Setting(home=tmp_path / "home", servers={"s": server(era=era)}, more=more)
    async with proxy(setting, modern=era == "legacy") as client:
        await client.connected()
        (shown,) = (await client.call("list_servers", name="s")).json["servers"]
        assert shown["era"] == era
        yield client


@both_backends
async def test_tools_are_found_and_run(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era) as client:
        (best, *_) = (await client.call("list_tools", query="add numbers", limit=2)).json["tools"]
        assert (best["server"], best["name"]) == ("s", "add")
        assert best["signature"] == "add(a: float, b: float)"
        assert (await client.execute("add", args={"a": 1, "b": 2})).text == "3"
        assert (await client.execute("fail")).is_error
        image = await client.execute("image")
        assert base64.b64decode(image.blocks[1]["data"]).startswith(PNG)
        assert image.blocks[1]["annotations"] == {"audience": ["user"], "priority": 0.5}
        assert image.result["_meta"]["fixture/key"] == 1
        for say in (True, False):
            structured = await client.execute("structured", args={"say": say})
            (block,) = structured.blocks
            assert json.loads(block["text"]) == {"n": 1}
        pending = await client.begin_call(
            "execute_tool", token=7, server="s", tool="progress", args={"steps": 3}
        )
        assert (await pending.answer()).text == "3 steps"
        assert [p["progress"] for p in pending.progress] == [1, 2, 3]


@both_backends
async def test_resources_prompts_and_completions(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era) as client:
        resources = (await client.call("list_resources")).json["resources"]
        assert [r["uri"] for r in resources] == ["fixture://one", "fixture://two"]
        (template,) = (await client.call("list_resource_templates")).json["resource_templates"]
        uri = template["uriTemplate"].replace("{id}", "9")
        read = await client.call("read_resource", server="s", uri=uri)
        assert read.text == f"text of {uri}"
        blob = await client.call("read_resource", server="s", uri="fixture://two")
        assert base64.b64decode(blob.blocks[0]["resource"]["blob"]).startswith(PNG)
        missing = await client.call("read_resource", server="s", uri="fixture://none")
        assert "[resource_not_found]" in missing.text
        prompts = (await client.call("list_prompts", pattern="^greet$")).json["prompts"]
        assert prompts[0]["arguments"] == [{"name": "name", "required": True}]
        got = await client.call("get_prompt", server="s", name="greet", arguments={"name": "Al"})
        assert got.blocks[1]["text"] == "Say hello to Al."
        unknown = await client.call("get_prompt", server="s", name="greeting")
        assert "[prompt_not_found]" in unknown.text
        done = await client.call(
            "complete_argument", server="s", prompt="greet", argument="name", value="al"
        )
        assert done.json["completion"]["values"] == ["alice", "albert"]


@both_backends
async def test_changes_are_told(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era) as client:
        for uri in ("fixture://one", "fixture://item/3"):
            await client.call("subscribe_resource", server="s", uri=uri)
        await client.execute("touch", args={"uri": "fixture://item/3"})
        event = await client.until_event("notification", method=UPDATED)
        assert event["data"]["params"] == {"uri": "fixture://item/3"}
        await client.call("unsubscribe_resource", server="s", uri="fixture://item/3")
        before = (await client.call("list_tools", detail="names")).json["total"]
        name = (await client.execute("grow")).text
        await client.until_event("notification", method="notifications/tools/list_changed")
        found = (await client.call("list_tools", tool=f"^{name}$")).json
        assert [tool["name"] for tool in found["tools"]] == [name]
        assert (await client.call("list_tools", detail="names")).json["total"] == before + 1
        assert (await client.execute(name)).text == "grown"
        client.events.clear()
        await client.execute("touch", args={"uri": "fixture://item/3"})
        await client.execute("touch", args={"uri": "fixture://one"})
        event = await client.until_event("notification", method=UPDATED)
        assert event["data"]["params"] == {"uri": "fixture://one"}


@both_backends
async def test_the_log_level_is_obeyed(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era) as client:
        await client.call("set_log_level", server="s", level="warning")
        await client.execute("log", args={"level": "info"})
        await client.execute("log", args={"level": "error", "n": 2})
        lines = (await client.call("get_logs", sources=["protocol"])).json["logs"]
        assert [(line["level"], line["logger"]) for line in lines] == [("error", "plain")] * 2


@both_backends
async def test_roots_come_from_the_configuration(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era, roots=[str(tmp_path)]) as client:
        told = json.loads((await client.execute("roots")).text)
        assert [root["uri"] for root in told["roots"]] == [tmp_path.as_uri()]


@both_backends
@pytest.mark.parametrize("mode", ["form", "url"])
async def test_a_question_is_answered(tmp_path: Path, era: str, mode: str) -> None:
    async with ready(tmp_path, era) as client:
        begun = await client.execute("ask", args={"mode": mode})
        (question,) = begun.pending["elicitations"]
        assert question["mode"] == mode
        content = {"content": {"name": "Ada"}} if mode == "form" else {}
        await client.call(
            "respond_to_elicitation",
            request_id=question["request_id"],
            action="accept",
            **content,
        )
        result = await client.call("get_task_result", task_id=begun.task)
        assert json.loads(result.text) == {"action": "accept", **content}


@both_backends
async def test_the_model_is_asked(tmp_path: Path, era: str) -> None:
    async with ready(tmp_path, era) as client:
        begun = await client.execute("sample")
        (question,) = begun.questions
        await client.call("respond_to_sampling", request_id=question, content="hi", model="m")
        result = json.loads((await client.call("get_task_result", task_id=begun.task)).text)
        assert result["content"] == {"type": "text", "text": "hi"}
