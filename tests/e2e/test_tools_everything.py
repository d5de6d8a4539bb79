"""The reference server that has everything: each thing that it offers, through the proxy."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.e2e.client import Answer, Client, Setting, command, proxy
from tests.peers import everything

TOOLS = {
    "echo",
    "get-annotated-message",
    "get-env",
    "get-resource-links",
    "get-resource-reference",
    "get-roots-list",
    "get-structured-content",
    "get-sum",
    "get-tiny-image",
    "gzip-file-as-resource",
    "simulate-research-query",
    "toggle-simulated-logging",
    "toggle-subscriber-updates",
    "trigger-elicitation-request",
    "trigger-long-running-operation",
    "trigger-sampling-request",
    "trigger-url-elicitation",
}
UPDATED = "notifications/resources/updated"


@asynccontextmanager
async def ready(tmp_path: Path, **more: Any) -> AsyncIterator[Client]:
    setting = Setting(home=tmp_path / "home", servers={"s": command(everything())}, more=more)
    async with proxy(setting) as client:
        await client.connected()
        yield client


async def answered(client: Client, answer: Answer, tool: str, **content: Any) -> Answer:
    """Answer the question that the call raised; the result of the call."""
    (question,) = answer.questions
    told = await client.call(tool, request_id=question, **content)
    assert told.json["answered"] == question
    return await client.call("get_task_result", task_id=answer.task)


async def test_every_tool_is_listed_with_its_schema(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        # It adds the tools that need something of the client when it has been greeted.
        while {t["name"] for t in (await listed(client)).json["tools"]} != TOOLS:
            await client.until_event("notification", method="notifications/tools/list_changed")
            client.events.clear()
        full = (await client.call("list_tools", detail="full")).json
        assert full["total"] == len(TOOLS)
        assert all(tool["inputSchema"]["type"] == "object" for tool in full["tools"])
        one = (
            await client.call("list_tools", query="add two numbers", limit=1, detail="full")
        ).json["tools"]
        assert [(t["name"], sorted(t["inputSchema"]["properties"])) for t in one] == [
            ("get-sum", ["a", "b"])
        ]


async def listed(client: Client) -> Answer:
    return await client.call("list_tools", detail="names")


async def test_text_images_links_and_embedded_resources_come_as_they_are(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        assert (await client.execute("echo", args={"message": "hé"})).text == "Echo: hé"
        assert "5" in (await client.execute("get-sum", args={"a": 2, "b": 3})).text
        tiny = await client.execute("get-tiny-image")
        (picture,) = (block for block in tiny.blocks if block["type"] == "image")
        assert base64.b64decode(picture["data"]).startswith(b"\x89PNG")
        noted = await client.execute(
            "get-annotated-message", args={"messageType": "error", "includeImage": True}
        )
        assert [block["type"] for block in noted.blocks] == ["text", "image"]
        assert noted.blocks[0]["annotations"]["priority"] == 1
        links = await client.execute("get-resource-links", args={"count": 4})
        assert [block["type"] for block in links.blocks] == ["text"] + ["resource_link"] * 4
        for block in links.blocks[1:3]:
            read = await client.call("read_resource", server="s", uri=block["uri"])
            assert not read.is_error
        embedded = await client.execute("get-resource-reference", args={"resourceId": 2})
        assert embedded.blocks[1]["type"] == "resource"
        assert embedded.blocks[1]["resource"]["uri"] == "demo://resource/dynamic/text/2"
        assert "PATH" in json.loads((await client.execute("get-env")).text)


async def test_structured_output_is_said_once_in_text(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        answer = await client.execute("get-structured-content", args={"location": "Chicago"})
        (block,) = answer.blocks
        assert set(json.loads(block["text"])) == {"temperature", "conditions", "humidity"}


async def test_a_file_made_by_a_tool_can_be_read_as_a_resource(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        data = "data:text/plain;base64," + base64.b64encode(b"pack me").decode()
        made = await client.execute("gzip-file-as-resource", args={"name": "a.gz", "data": data})
        (link,) = (block for block in made.blocks if block["type"] == "resource_link")
        read = await client.call("read_resource", server="s", uri=link["uri"])
        assert base64.b64decode(read.blocks[0]["resource"]["blob"]).startswith(b"\x1f\x8b")
        found = await client.call("list_resources", pattern=r"a\.gz$")
        assert [resource["uri"] for resource in found.json["resources"]] == [link["uri"]]


async def test_progress_reaches_the_client_that_asked_for_it(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        args = {"duration": 0.4, "steps": 4}
        pending = await client.begin_call(
            "execute_tool", token="t", server="s", tool="trigger-long-running-operation", args=args
        )
        assert "completed" in (await pending.answer()).text
        assert [progress["progress"] for progress in pending.progress] == [1, 2, 3, 4]


async def test_a_long_operation_becomes_a_task_and_its_result_is_kept(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        args = {"duration": 0.5, "steps": 2}
        begun = await client.execute("trigger-long-running-operation", timeout_ms=0, args=args)
        assert begun.json["reason"] == "timeout"
        await client.until_event("task_completed", task_id=begun.task)
        result = await client.call("get_task_result", task_id=begun.task)
        assert "completed" in result.text


async def test_all_its_resources_templates_and_completions(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        resources = (await client.call("list_resources")).json
        assert resources["total"] == 7
        for resource in resources["resources"]:
            read = await client.call("read_resource", server="s", uri=resource["uri"])
            assert read.text.startswith("#")
        templates = (await client.call("list_resource_templates", pattern="blob")).json
        (template,) = templates["resource_templates"]
        uri = template["uriTemplate"].replace("{resourceId}", "3")
        blob = await client.call("read_resource", server="s", uri=uri)
        assert blob.blocks[0]["resource"]["mimeType"] == "text/plain"
        assert b"3" in base64.b64decode(blob.blocks[0]["resource"]["blob"])
        completed = await client.call(
            "complete_argument",
            server="s",
            template=template["uriTemplate"],
            argument="resourceId",
            value="7",
        )
        assert completed.json["completion"]["values"] == ["7"]
        missing = await client.call("read_resource", server="s", uri="demo://nothing")
        assert missing.is_error


async def test_all_its_prompts_and_their_arguments(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        prompts = (await client.call("list_prompts")).json["prompts"]
        assert [prompt["name"] for prompt in prompts] == [
            "simple-prompt",
            "args-prompt",
            "completable-prompt",
            "resource-prompt",
        ]

        async def get(name: str, /, **arguments: str) -> list[dict[str, Any]]:
            answer = await client.call("get_prompt", server="s", name=name, arguments=arguments)
            head, *said = answer.blocks
            assert json.loads(head["text"])["roles"] == ["user"] * len(said)
            return said

        assert len(await get("simple-prompt")) == 1
        (weather,) = await get("args-prompt", city="Riga", state="Latvia")
        assert weather["text"] == "What's weather in Riga, Latvia?"
        _, resource = await get("resource-prompt", resourceType="Text", resourceId="1")
        assert resource["resource"]["uri"] == "demo://resource/dynamic/text/1"
        about = {"server": "s", "prompt": "completable-prompt"}
        first = await client.call("complete_argument", **about, argument="department", value="S")
        assert first.json["completion"]["values"] == ["Sales", "Support"]
        second = await client.call(
            "complete_argument", **about, argument="name", context={"department": "Sales"}
        )
        assert second.json["completion"]["values"] == ["David", "Eve", "Frank"]
        (promote,) = await get("completable-prompt", department="Sales", name="Eve")
        assert "Eve" in promote["text"]
        unknown = await client.call("get_prompt", server="s", name="args")
        assert "[prompt_not_found]" in unknown.text
        assert "args-prompt" in unknown.text


async def test_updates_of_a_subscribed_resource_arrive_as_events(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        uri = "demo://resource/dynamic/text/1"
        assert (await client.call("subscribe_resource", server="s", uri=uri)).json == {
            "subscribed": uri,
            "server": "s",
        }
        await client.execute("toggle-subscriber-updates")
        event = await client.until_event("notification", method=UPDATED)
        assert event["data"]["params"] == {"uri": uri}
        kept = (await client.call("get_notifications", server="s")).json["notifications"]
        assert {"uri": uri} in [notice.get("params") for notice in kept]
        await client.execute("toggle-subscriber-updates")
        await client.call("unsubscribe_resource", server="s", uri=uri)
        await client.drain()
        client.events.clear()
        # It tells at once whoever is subscribed.
        await client.execute("toggle-subscriber-updates")
        await client.execute("echo", args={"message": "after"})
        await client.drain()
        assert not client.events


async def test_the_log_level_decides_what_it_logs(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        uri = "demo://resource/dynamic/text/1"
        await client.call("get_logs")
        assert (await client.call("set_log_level", server="s", level="error")).json["level"] == (
            "error"
        )
        await client.call("subscribe_resource", server="s", uri=uri)
        assert (await client.call("get_logs", sources=["protocol"])).json["logs"] == []
        await client.call("set_log_level", server="s", level="info")
        await client.call("unsubscribe_resource", server="s", uri=uri)
        (line,) = (await client.call("get_logs", sources=["protocol"])).json["logs"]
        assert (line["level"], line["server"]) == ("info", "s")
        assert "Unsubscribe" in line["text"]


async def test_its_simulated_log_is_kept_line_by_line_at_the_level_that_was_set(
    tmp_path: Path,
) -> None:
    async with ready(tmp_path) as client:

        async def simulated(times: int) -> list[tuple[str, str]]:
            """It logs one line of a random level when switched on, and none after it is off."""
            for _ in range(times):
                assert "Started" in (await client.execute("toggle-simulated-logging")).text
                assert "Stopped" in (await client.execute("toggle-simulated-logging")).text
            logs = (await client.call("get_logs", server="s", sources=["protocol"])).json
            assert (logs["overwritten"], logs["remaining"]) == (0, 0)
            return [(line["level"], line["text"]) for line in logs["logs"]]

        await client.call("set_log_level", server="s", level="debug")
        await client.call("get_logs")
        lines = await simulated(10)
        assert len(lines) >= 10
        for level, text in lines:
            assert text.replace(" ", "-").startswith(f"{level.capitalize()}-level-message")
        await client.call("set_log_level", server="s", level="error")
        lines = await simulated(20)
        assert {level for level, _ in lines} <= {"error", "critical", "alert", "emergency"}
        assert not [event for event in client.events if "logging" in str(event)]


async def test_it_is_told_the_configured_roots(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    async with ready(tmp_path, roots=[str(work)]) as client:
        text = (await client.execute("get-roots-list")).text
        assert "(1 total)" in text
        assert work.as_uri() in text


async def test_a_form_is_filled_in_and_its_call_goes_on(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        begun = await client.execute("trigger-elicitation-request")
        assert begun.json["reason"] == "input_required"
        (question,) = begun.pending["elicitations"]
        assert question["mode"] == "form"
        assert "name" in question["schema"]["properties"]
        wrong = await client.call(
            "respond_to_elicitation",
            request_id=question["request_id"],
            action="accept",
            content={"name": "Ada", "integer": 1000},
        )
        assert "[invalid_arguments]" in wrong.text
        content = {"name": "Ada", "integer": 7, "titledSingleSelectEnum": "hero-2"}
        result = await answered(
            client, begun, "respond_to_elicitation", action="accept", content=content
        )
        assert "Ada" in result.text
        declined = await client.execute("trigger-elicitation-request")
        result = await answered(client, declined, "respond_to_elicitation", action="decline")
        assert "declined" in result.text


async def test_a_url_is_put_to_the_user_in_both_of_its_ways(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        url = "https://example.com/sign-in"
        begun = await client.execute("trigger-url-elicitation", args={"url": url})
        (question,) = begun.pending["elicitations"]
        assert (question["mode"], question["url"]) == ("url", url)
        result = await answered(client, begun, "respond_to_elicitation", action="accept")
        assert "completed the URL elicitation" in result.text
        args = {"url": url, "errorPath": True}
        first = await client.execute("trigger-url-elicitation", args=args)
        assert first.pending["elicitations"][0]["url"] == "https://modelcontextprotocol.io"
        # Accepted, the call would be made again a minute later: this server tells no completion.
        refused = await answered(client, first, "respond_to_elicitation", action="decline")
        assert refused.is_error


async def test_the_model_is_asked_for_a_text(tmp_path: Path) -> None:
    async with ready(tmp_path) as client:
        begun = await client.execute("trigger-sampling-request", args={"prompt": "a rhyme"})
        (short,) = begun.pending["sampling_requests"]
        assert "a rhyme" in short["preview"]
        (whole,) = (await client.call("get_sampling_requests")).json["sampling_requests"]
        assert whole["request"]["systemPrompt"] == "You are a helpful test server."
        result = await answered(
            client, begun, "respond_to_sampling", content="Roses are red", model="m"
        )
        assert "Roses are red" in result.text
        declined = await client.execute("trigger-sampling-request", args={"prompt": "no"})
        result = await answered(client, declined, "respond_to_sampling", action="decline")
        assert result.is_error


async def test_a_tool_that_runs_only_as_a_task_of_the_protocol_says_so_itself(
    tmp_path: Path,
) -> None:
    async with ready(tmp_path) as client:
        while "simulate-research-query" not in str((await listed(client)).json):
            await client.until_event("notification", method="notifications/tools/list_changed")
            client.events.clear()
        refused = await client.execute("simulate-research-query", "s", args={"topic": "tea"})
        assert refused.is_error
        assert "task" in refused.text.lower()
        assert (await client.execute("echo", "s", args={"message": "on"})).text == "Echo: on"
