"""Hold the four conversations of a page of the reference with a real proxy, and write them down.

Run it as `python -m scripts.record_conversations` after an answer has changed its shape. The words
around the conversations are the page's own and stay as they are.
"""

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio

from emceepee_stdio.cli import demo_server
from tests.e2e.client import Answer, Client, Setting, proxy

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "conversations.md"

_ID = re.compile(r"\b[0-9A-HJKMNP-TV-Z]{22}([0-9A-HJKMNP-TV-Z]{4})\b")
_LEFT_OUT = {"created_at", "last_updated_at", "expires_at", "due_at", "word"}


class Conversation:
    """Calls, each followed by the blocks of its answer, as the page shows them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._parts: list[str] = []

    async def call(self, tool: str, /, **arguments: Any) -> Answer:
        answer = await self._client.call(tool, **arguments)
        lines = [f"→ {tool} {json.dumps(arguments, ensure_ascii=False)}"]
        lines += [f"← {shown(block['text'])}" for block in answer.result["content"]]
        self._parts.append(_ID.sub(r"…\1", "\n".join(lines)))
        return answer

    def __str__(self) -> str:
        return "\n\n".join(self._parts)


def shown(text: str) -> str:
    """A block without the times and the word of the session."""
    if not text.startswith("{"):
        return text
    return json.dumps(_without(json.loads(text)), ensure_ascii=False, separators=(",", ":"))


def _without(value: Any) -> Any:
    if isinstance(value, list):
        return [_without(item) for item in value]
    if isinstance(value, dict):
        return {key: _without(item) for key, item in value.items() if key not in _LEFT_OUT}
    return value


async def slow_call(call: Any) -> None:
    run = {"server": "bar", "tool": "roast", "args": {"seconds": 2}}
    task = (await call("execute_tool", **run, timeout_ms=500)).task
    await call("await_activity")
    await call("get_task_result", task_id=task)


async def question(call: Any) -> None:
    asked = await call("execute_tool", server="bar", tool="order", args={"drink": "flat white"})
    (request_id,) = asked.questions
    for content in ({"milk": True, "sugar": "two"}, {"milk": True, "sugar": 2}):
        await call(
            "respond_to_elicitation", request_id=request_id, action="accept", content=content
        )
    await call("get_task_result", task_id=asked.task)


async def waiting(call: Any) -> None:
    await call("set_timer", duration_ms=1000, message="look at the roaster")
    await call("await_activity", timeout_ms=10_000)
    await call("await_activity", timeout_ms=200)


async def crash(call: Any) -> None:
    await call("execute_tool", server="bar", tool="spill")
    await call("execute_tool", server="bar", tool="menu")


CONVERSATIONS = {
    "A slow call": slow_call,
    "A question": question,
    "Waiting": waiting,
    "A crash": crash,
}


async def record() -> dict[str, str]:
    """Each conversation by the heading that it stands under."""
    recorded: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        bar = {"command": sys.executable, "args": [demo_server.__file__]}
        async with proxy(Setting(home=Path(folder) / "home", servers={"bar": bar})) as client:
            await client.connected("bar")
            for heading, hold in CONVERSATIONS.items():
                await client.drain()
                conversation = Conversation(client)
                await hold(conversation.call)
                recorded[heading] = str(conversation)
    return recorded


def rewritten(page: str, recorded: dict[str, str]) -> str:
    for heading, conversation in recorded.items():
        before, found, rest = page.partition(f"## {heading}\n")
        words, fence, block = rest.partition("\n```\n")
        _, end, after = block.partition("\n```\n")
        if not (found and fence and end):
            raise SystemExit(f"{PAGE.name} has no conversation under {heading!r}")
        page = f"{before}{found}{words}{fence}{conversation}{end}{after}"
    return page


def main() -> None:
    page = rewritten(PAGE.read_text(encoding="utf-8"), anyio.run(record))
    PAGE.write_text(page, encoding="utf-8")
    print(f"{len(CONVERSATIONS)} conversations written to {PAGE.name}")


if __name__ == "__main__":
    main()
