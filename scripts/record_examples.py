"""Make one real call of every tool, and write down what was answered, for the page of tools.

Run it as `python -m scripts.record_examples TOOL …` after the answer of a tool has changed its
shape, or for a new tool: only the examples of these tools change. Without a name all of them do,
because every run has other ids and times.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import anyio

from tests.e2e.client import Answer, Client, Setting, proxy
from tests.peers import SERVERS, plain

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "reference" / "examples.json"


class Recorder:
    """Calls tools and keeps each call with its answer."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.kept: list[dict[str, Any]] = []

    async def call(self, tool: str, /, *, keep: bool = True, **arguments: Any) -> Answer:
        answer = await self.client.call(tool, **arguments)
        if answer.is_error:
            raise RuntimeError(f"{tool}: {answer.text}")
        if keep:
            blocks = [block.get("text", block) for block in answer.blocks]
            self.kept.append({"tool": tool, "arguments": arguments, "answer": blocks})
        return answer


async def servers_and_tools(call: Any) -> None:
    await call("add_server", name="demo", command="demo-server")
    await call("list_servers")
    await call("list_tools", query="weather forecast", limit=1)
    await call(
        "execute_tool", server="weather", tool="get_forecast", args={"location": "Riga", "days": 2}
    )
    await call("execute_readonly_tool", server="coffee", tool="echo", args={"message": "hello"})
    await call("reconnect_server", name="weather")


async def resources_and_prompts(call: Any) -> None:
    await call("list_resources", server="demo", limit=1)
    await call("list_resource_templates", server="demo")
    await call("read_resource", server="demo", uri="fixture://item/7")
    await call("subscribe_resource", server="demo", uri="fixture://one")
    await call("unsubscribe_resource", server="demo", uri="fixture://one")
    await call("list_prompts", server="demo", pattern="greet")
    await call("get_prompt", server="demo", name="greet", arguments={"name": "Ada"})
    await call("complete_argument", server="demo", prompt="greet", argument="name", value="al")


async def what_servers_say(call: Any) -> None:
    await call("set_log_level", server="demo", level="info")
    run = {"server": "demo", "keep": False}
    await call("execute_tool", **run, tool="log", args={"level": "info"})
    await call("execute_tool", **run, tool="notify", args={"n": 1})
    await call("get_logs", server="demo")
    await call("await_activity", timeout_ms=5000)
    await call("get_notifications", server="demo")


async def questions_and_tasks(call: Any) -> None:
    run = {"server": "demo", "keep": False}
    asked = await call("execute_tool", **run, tool="ask")
    await call("get_elicitations")
    (question,) = asked.questions
    answer = {"action": "accept", "content": {"name": "Ada"}}
    await call("get_task", task_id=asked.task)
    await call("respond_to_elicitation", request_id=question, **answer)
    await call("get_task_result", task_id=asked.task)
    asked = await call("execute_tool", **run, tool="sample")
    await call("get_sampling_requests")
    (question,) = asked.questions
    await call("respond_to_sampling", request_id=question, content="Something.", model="claude")
    slow = await call("execute_tool", **run, tool="slow", args={"seconds": 60}, timeout_ms=0)
    await call("list_tasks")
    await call("cancel_task", task_id=slow.task)


async def timers(call: Any) -> None:
    timer = (await call("set_timer", duration_ms=600_000, message="look at the build")).json
    named = {"timer_id": timer["timer_id"] if "timer_id" in timer else timer["timer"]["timer_id"]}
    await call("list_timers")
    await call("get_timer", **named)
    await call("delete_timer", **named)


def programs(folder: Path) -> None:
    """The example servers under short names, so that no path of this machine is written down."""
    folder.mkdir()
    weather = [sys.executable, str(SERVERS / "many.py"), "weather"]
    for name, argv in {"demo-server": plain(), "weather-server": weather}.items():
        (folder / name).write_text(f"#!/bin/sh\nexec {' '.join(argv)}\n")
        (folder / name).chmod(0o755)


async def record() -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        programs(home / "bin")
        os.environ["PATH"] = f"{home / 'bin'}:{os.environ['PATH']}"
        servers = {"weather": {"command": "weather-server"}, "coffee": {"command": "demo-server"}}
        setting = Setting(home=home / "home", servers=servers, more={"policy": {"mode": "allow"}})
        async with proxy(setting) as client:
            await client.connected("weather", "coffee")
            await client.drain()
            recorder = Recorder(client)
            for part in (
                servers_and_tools,
                resources_and_prompts,
                what_servers_say,
                questions_and_tasks,
                timers,
            ):
                await part(recorder.call)
                await client.drain()
            await recorder.call("remove_server", name="demo")
            return recorder.kept


def merged(
    recorded: list[dict[str, Any]], before: list[dict[str, Any]], wanted: Collection[str]
) -> list[dict[str, Any]]:
    """The new examples of the wanted tools among the former ones of the others, in one order."""
    unknown = sorted(set(wanted) - {example["tool"] for example in recorded})
    if unknown:
        raise SystemExit(
            f"no call of {', '.join(unknown)} is recorded here: add one to this script"
        )
    former = {example["tool"]: example for example in before}
    return [
        example if example["tool"] in wanted else former[example["tool"]]
        for example in recorded
        if example["tool"] in wanted or example["tool"] in former
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tools", nargs="*", metavar="TOOL", help="only these; without one, all")
    wanted: list[str] = parser.parse_args().tools
    recorded = anyio.run(record)
    kept = recorded
    if wanted:
        kept = merged(recorded, json.loads(EXAMPLES.read_text(encoding="utf-8")), wanted)
    EXAMPLES.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    count = len(set(wanted)) or len(kept)
    print(f"{count} of {len(kept)} examples written to {EXAMPLES.name}; now run `make docs`")


if __name__ == "__main__":
    main()
