"""How a host talks to its model: what a request shows to the model, and how a reply is written.

Three dialects: the Messages API, as Claude Code uses it, the Responses API, as Codex does, and chat
completions, as opencode and Qwen Code do. Only what these need is here. A reply goes as a stream of
server-sent events.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

Message = dict[str, Any]
NAMESPACE = "mcp__emceepee"  # what both hosts put before the names of our tools


@dataclass(frozen=True, slots=True)
class Call:
    """The model calls a tool of emceepee."""

    tool: str
    arguments: Message


@dataclass(frozen=True, slots=True)
class Search:
    """The model searches the tools that it was not shown."""

    query: str


@dataclass(frozen=True, slots=True)
class Script:
    """The model runs JavaScript that calls tools: what newer models have in Codex."""

    code: str


Reply = Call | Search | Script | str


@dataclass(frozen=True, slots=True)
class Turn:
    """One request, as the model sees it.

    `tools` are those of emceepee whose schemas it has; `results` has for each call so far the
    texts of its result; `text` is every string of the request.
    """

    tools: Mapping[str, Message]
    results: tuple[tuple[str, ...], ...]
    text: str

    @property
    def result(self) -> str:
        """The newest result."""
        return "\n".join(self.results[-1])


class Dialect(Protocol):
    """What one API looks like."""

    path: str

    def is_turn(self, body: Message) -> bool: ...
    def read(self, body: Message) -> Turn: ...
    def write(self, number: int, reply: Reply, body: Message) -> list[Message]: ...


class Messages:
    """Claude Code's: a result is a block of the next message, a tool is called by its full name."""

    path = "/v1/messages"

    def is_turn(self, body: Message) -> bool:
        """Side jobs, such as naming the conversation, are given no tools."""
        return bool(body.get("tools"))

    def read(self, body: Message) -> Turn:
        loaded = {
            block.get("tool_name") or block.get("name")
            for block in _objects(body)
            if block.get("type") == "tool_reference"
        }
        tools = [
            tool
            for tool in body["tools"]
            if not tool.get("defer_loading") or tool["name"] in loaded
        ]
        results = (block for block in _objects(body) if block.get("type") == "tool_result")
        return Turn(
            {_short(tool["name"]): tool for tool in tools if tool["name"].startswith(NAMESPACE)},
            tuple(tuple(_texts(block.get("content", ""))) for block in results),
            "\n".join(_strings(body)),
        )

    def write(self, number: int, reply: Reply, body: Message) -> list[Message]:
        stop, block, delta = self._reply(number, reply)
        begun = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 1, "output_tokens": 1},
        }
        ended = {"stop_reason": stop, "stop_sequence": None}
        return [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]

    def _reply(self, number: int, reply: Reply) -> tuple[str, Message, Message]:
        """Why it stops, and its one block, begun and filled."""
        match reply:
            case str():
                delta = {"type": "text_delta", "text": reply}
                return "end_turn", {"type": "text", "text": ""}, delta
            case Search(query):
                name, arguments = "ToolSearch", {"query": query}
            case Call(tool, arguments):
                name = f"{NAMESPACE}__{tool}"
            case Script():
                raise TypeError(reply)
        block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
        return "tool_use", block, delta


class Responses:
    """Codex's: a result is an item of the input, and a tool is called within its namespace."""

    path = "/v1/responses"

    def is_turn(self, body: Message) -> bool:
        return bool(body["input"])

    def read(self, body: Message) -> Turn:
        spaces = (one for one in _objects(body) if one.get("type") == "namespace")
        ours = [space["tools"] for space in spaces if space["name"] == NAMESPACE]
        ends = ("function_call_output", "custom_tool_call_output", "tool_search_output")
        results = [item for item in body["input"] if item.get("type") in ends]
        return Turn(
            {tool["name"]: tool for tools in ours for tool in tools},
            tuple(tuple(_texts(item.get("output") or item.get("tools"))) for item in results),
            "\n".join(_strings(body)),
        )

    def write(self, number: int, reply: Reply, body: Message) -> list[Message]:
        item = {"id": f"item_{number}", "call_id": f"call_{number}", "status": "completed"}
        item |= self._item(reply)
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        done = {"id": f"resp_{number}", "status": "completed", "output": [item], "usage": usage}
        return [
            {"type": "response.created", "response": {"id": done["id"]}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": done},
        ]

    def _item(self, reply: Reply) -> Message:
        match reply:
            case str():
                said = {"type": "output_text", "text": reply, "annotations": []}
                return {"type": "message", "role": "assistant", "content": [said]}
            case Search(query):
                arguments = {"query": query}
                return {"type": "tool_search_call", "execution": "client", "arguments": arguments}
            case Script(code):
                return {"type": "custom_tool_call", "name": "exec", "input": code}
            case Call(tool, arguments):
                given = {"namespace": NAMESPACE, "arguments": json.dumps(arguments)}
                return {"type": "function_call", "name": tool, **given}


class Completions:
    """Those of opencode and Qwen Code: `prefix` stands before the names of our tools."""

    path = "/v1/chat/completions"

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def is_turn(self, body: Message) -> bool:
        return bool(body.get("tools"))

    def read(self, body: Message) -> Turn:
        tools = [tool["function"] for tool in body["tools"]]
        results = [m for m in body["messages"] if m["role"] == "tool"]
        return Turn(
            {
                tool["name"].removeprefix(self._prefix): tool
                for tool in tools
                if tool["name"].startswith(self._prefix)
            },
            tuple(tuple(_texts(message["content"])) for message in results),
            "\n".join(_strings(body)),
        )

    def write(self, number: int, reply: Reply, body: Message) -> list[Message]:
        delta: Message = {"role": "assistant"}
        match reply:
            case str():
                delta["content"] = reply
            case Call(tool, arguments):
                name = f"{self._prefix}{tool}"
                function = {"name": name, "arguments": json.dumps(arguments)}
                call = {"index": 0, "id": f"call_{number}", "type": "function"}
                delta["tool_calls"] = [{**call, "function": function}]
            case _:
                raise TypeError(reply)
        head = {"id": f"chat_{number}", "object": "chat.completion.chunk", "created": 0}
        head["model"] = body["model"]
        stop = "stop" if isinstance(reply, str) else "tool_calls"
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return [
            {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": stop}], "usage": usage},
        ]


def events(messages: Iterable[Message]) -> bytes:
    """As a stream of server-sent events; those of chat completions have no type, and an end."""
    lines: list[str] = []
    for message in messages:
        named = [f"event: {message['type']}"] if "type" in message else []
        lines += [*named, f"data: {json.dumps(message)}", ""]
    end = [] if lines[0].startswith("event") else ["data: [DONE]", ""]
    return "\n".join((*lines, *end, "")).encode()


def _short(name: str) -> str:
    return name.removeprefix(f"{NAMESPACE}__")


def _texts(content: Any) -> Iterator[str]:
    """What a result says; a tool that a search found says its name."""
    if isinstance(content, str):
        yield content
        return
    for block in content:
        if "tool_name" in block:
            yield _short(block["tool_name"])
        elif block.get("type") == "namespace":
            yield from (tool["name"] for tool in block["tools"])
        elif "text" in block:
            yield block["text"]


def _objects(value: Any) -> Iterator[Message]:
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _objects(one)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)
