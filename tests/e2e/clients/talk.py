"""One conversation with the proxy, for every Python SDK; `talk.mjs` is the same for TypeScript.

A script gives it an SDK's client as plain functions and prints the report as JSON. Only the
standard library is used, because each SDK has an interpreter of its own.
"""

import json
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

Answer = dict[str, Any]


class Talker(Protocol):
    """An SDK's client. Results are the dictionaries of the wire."""

    async def tools(self) -> list[Answer]: ...
    async def resources(self) -> list[Answer]: ...
    async def read(self, uri: str) -> list[Answer]: ...
    async def call(
        self, name: str, arguments: Answer, on_progress: Callable[..., Awaitable[None]]
    ) -> Answer: ...


class Listener(logging.Handler):
    """Every complaint of the SDK."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.received: list[str] = []
        logging.getLogger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.received.append(record.getMessage())


def plan() -> Answer:
    """What the test wants: how to start the proxy, the `server` to add, and the `mode`."""
    return json.loads(sys.argv[1])


def report(answer: Answer) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


async def talk(client: Talker, server: Answer) -> Answer:
    """List, add, call, wait for a task, answer a question, read; the facts of each."""
    steps: list[Any] = []

    async def no_progress(*_: object) -> None:
        pass

    async def count_progress(progress: float, total: float | None, *_: object) -> None:
        steps.append([progress, total])

    async def call(tool: str, /, **arguments: Any) -> Answer:
        return await client.call(tool, arguments, no_progress)

    async def execute(tool: str, args: Answer, **more: Any) -> Answer:
        return await call("execute_tool", server="plain", tool=tool, args=args, **more)

    facts: Answer = {"tools": await client.tools(), "resources": await client.resources()}
    facts["added"] = await call("add_server", name="plain", **server)
    facts["echo"] = await execute("echo", {"message": "hello"})
    facts["image"] = await execute("image", {})
    facts["failed"] = await execute("fail", {})
    facts["unknown"] = await call("execute_tool", server="nobody", tool="x")
    facts["progress"] = await client.call(
        "execute_tool",
        {"server": "plain", "tool": "progress", "args": {"steps": 3}},
        count_progress,
    )
    facts["steps"] = steps
    facts["slow"] = await execute("slow", {"seconds": 0.2}, timeout_ms=0)
    task = found(facts["slow"], "proxy_task")["task_id"]
    facts["slow_result"] = await call("get_task_result", task_id=task)
    facts["asked"] = await execute("ask", {})
    task = found(facts["asked"], "proxy_task")["task_id"]
    question = found(facts["asked"], "pending_client_action")["elicitations"][0]["request_id"]
    content = {"name": "Ada", "age": 36}
    facts["answered"] = await call(
        "respond_to_elicitation", request_id=question, action="accept", content=content
    )
    facts["ask_result"] = await call("get_task_result", task_id=task)
    facts["status"] = await client.read("emceepee://status")
    facts["diagrams"] = await client.read("emceepee://diagrams")
    return facts


def found(result: Answer, key: str) -> Any:
    """What one of the JSON blocks of an answer says under this key."""
    for block in result["content"]:
        if block["type"] == "text" and block["text"].startswith("{"):
            value = json.loads(block["text"])
            if key in value:
                return value[key]
    raise KeyError(key, result)
