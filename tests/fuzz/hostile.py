"""Valid JSON that is costly or odd to read, and a server that says it: started as a script.

A value of any size is put in the place of a member of an ordinary message, whichever it is. The
tool `attack` says `count` such messages before it answers; every other request but the greeting is
answered with one of its members replaced. Nothing of the proxy is imported: a server starts fast.
"""

import argparse
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Message = dict[str, Any]
Steps = tuple[str | int, ...]

MODERN = "2026-07-28"
_PLACE = "here comes the value"
_NUMBERS = ("1e308", "5e-324", "1.7976931348623157e308", "-0.0", "12.5", "1e-400", "1" + "0" * 99)
_NOTHINGS = ("[]", "{}", '""', "null", "0", "true", "[[]]", '{"a":{}}')
_TEXTS = (
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\u0000"',
    '"\\"\\\\,[{"',
    '"\\u005f\\u0061"',
    '"\u202e"',
)
_DEPTH = 200  # what the client of these tests can follow; `test_fuzz_depths` has the others


def _list_of(words: tuple[str, ...]) -> Callable[[random.Random, int], str]:
    def made(chance: random.Random, size: int) -> str:
        word = chance.choice(words)
        return f"[{','.join([word] * max(1, size // (len(word) + 1)))}]"

    return made


def _mixed(chance: random.Random, size: int) -> str:
    words = [*_NUMBERS, *_NOTHINGS, *_TEXTS]
    some = [chance.choice(words) for _ in range(50)]
    return f"[{','.join(some * max(1, size // (50 * 8)))}]"


def _members(chance: random.Random, size: int) -> str:
    """An object of many names, or of one name many times."""
    repeated, value = chance.random() < 0.5, chance.choice([*_NUMBERS, *_NOTHINGS])
    count = max(1, size // (len(value) + 10))
    members = (f'"{"a" if repeated else n}":{value}' for n in range(count))
    return "{" + ",".join(members) + "}"


def _deep(chance: random.Random, size: int) -> str:
    start, end = chance.choice((("[", "]"), ('{"a":', "}")))
    nested = start * _DEPTH + chance.choice(_NUMBERS) + end * _DEPTH
    return f"[{','.join([nested] * max(1, size // len(nested)))}]"


def _long(chance: random.Random, size: int) -> str:
    """One string, or one integer, that is as long as all the others."""
    word = chance.choice(("x", '\\"', "\\\\", "\\ud800", "\\u005f", ",[{", "events_"))
    text = word * max(1, size // len(word))
    return chance.choice((f'"{text}"', f"[{'9' * size}]"))


_KINDS: tuple[Callable[[random.Random, int], str], ...] = (
    *(_list_of(_NUMBERS), _list_of(_NUMBERS), _list_of(_NOTHINGS), _list_of(_TEXTS)),
    *(_mixed, _members, _deep, _long),
)


def value(chance: random.Random, size: int) -> bytes:
    """Valid JSON of about so many bytes."""
    return chance.choice(_KINDS)(chance, size).encode()


def places(message: object, steps: Steps = ()) -> Iterator[Steps]:
    """The way to every member at any depth."""
    items: Any = ()
    if isinstance(message, dict):
        items = message.items()
    elif isinstance(message, list):
        items = enumerate(message)
    for key, inner in items:
        yield (*steps, key)
        yield from places(inner, (*steps, key))


def bent(chance: random.Random, message: Message, size: int, *, keep: Sequence[str] = ()) -> bytes:
    """The line of a message, with a value in the place of one member that is not to be kept."""
    made = json.loads(json.dumps(message))
    ways = [steps for steps in places(made) if steps[0] not in keep or len(steps) > 1]
    *way, last = chance.choice(ways)
    inner: Any = made
    for key in way:
        inner = inner[key]
    if isinstance(inner, dict) and chance.random() < 0.2:
        last = "other"  # beside what is known
    inner[last] = _PLACE
    line = json.dumps({"jsonrpc": "2.0", **made}, separators=(",", ":"))
    return line.encode().replace(json.dumps(_PLACE).encode(), value(chance, size)) + b"\n"


_FORM = {
    "type": "object",
    "properties": {"a": {"type": "integer", "default": 1}},
    "required": ["a"],
}
_BLOCK = {"type": "text", "text": "x", "annotations": {"priority": 1}, "_meta": {"a": 1}}
_TOOL = {
    "name": "odd",
    "description": "x",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "number", "maximum": 1}}},
    "annotations": {"readOnlyHint": True},
    "_meta": {"a": 1},
}
# What a server says unasked.
FROM_SERVER: tuple[Message, ...] = (
    {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1, "total": 2}},
    {
        "method": "notifications/message",
        "params": {"level": "info", "logger": "x", "data": {"a": 1}},
    },
    {"method": "notifications/cancelled", "params": {"requestId": 1, "reason": "x"}},
    {"method": "notifications/resources/updated", "params": {"uri": "x://y", "_meta": {"a": 1}}},
    {"method": "notifications/tools/list_changed", "params": {"_meta": {"a": 1}}},
    {"method": "notifications/elicitation/complete", "params": {"elicitationId": "x"}},
    {"method": "notifications/x", "params": {"a": {"b": [1]}}},
    {
        "id": "e",
        "method": "elicitation/create",
        "params": {"message": "x", "requestedSchema": _FORM},
    },
    {
        "id": "u",
        "method": "elicitation/create",
        "params": {"mode": "url", "url": "https://x.example", "elicitationId": "x", "message": "x"},
    },
    {
        "id": "s",
        "method": "sampling/createMessage",
        "params": {"messages": [{"role": "user", "content": _BLOCK}], "maxTokens": 1},
    },
    {"id": "r", "method": "roots/list", "params": {"_meta": {"progressToken": 1}}},
    {"id": "p", "method": "ping", "params": {}},
    {"id": 4_000_000_000, "result": {"content": [_BLOCK]}},
    {"id": 4_000_000_000, "error": {"code": -1, "message": "x", "data": {"a": 1}}},
)
# What a client asks.
FROM_CLIENT: tuple[Message, ...] = (
    {
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"roots": {"listChanged": True}, "elicitation": {"form": {}}},
            "clientInfo": {"name": "x", "version": "1", "icons": [{"src": "x:"}]},
        },
    },
    {"method": "ping", "params": {"_meta": {"progressToken": 1}}},
    {"method": "tools/list", "params": {"cursor": "x", "_meta": {"progressToken": 1}}},
    {"method": "resources/read", "params": {"uri": "emceepee://status", "_meta": {"a": 1}}},
    {"method": "prompts/get", "params": {"name": "x", "arguments": {"a": "b"}, "_meta": {"a": 1}}},
    {"method": "completion/complete", "params": {"ref": {"type": "x"}, "argument": {"name": "a"}}},
    {"method": "x/y", "params": {"a": [1]}},
    *(
        {
            "method": "tools/call",
            "params": {"name": name, "arguments": arguments, "_meta": {"a": 1}},
        }
        for name, arguments in (
            ("list_servers", {"name": "calm"}),
            ("list_tools", {"query": "x", "limit": 1}),
            ("execute_tool", {"server": "calm", "tool": "echo", "args": {"message": "x"}}),
            ("execute_tool", {"server": "calm", "tool": "add", "args": {"a": "1", "b": 2}}),
            (
                "respond_to_elicitation",
                {"request_id": "x", "action": "accept", "content": {"a": 1}},
            ),
            ("respond_to_sampling", {"request_id": "x", "content": "x", "model": "x"}),
            ("await_activity", {"timeout_ms": 0}),
        )
    ),
)
# What a server answers, by the method.
RESULTS: dict[str, Message] = {
    "tools/call": {
        "content": [_BLOCK, {"type": "resource", "resource": {"uri": "x://y", "text": "x"}}],
        "structuredContent": {"a": 1},
        "isError": False,
        "_meta": {"a": 1},
        "resultType": "complete",
    },
    "tools/list": {"tools": [_TOOL], "nextCursor": "x", "ttlMs": 1, "_meta": {"a": 1}},
    "prompts/list": {"prompts": [{"name": "odd", "arguments": [{"name": "a"}]}], "ttlMs": 1},
    "resources/list": {"resources": [{"uri": "x://y", "name": "odd", "size": 1}], "ttlMs": 1},
    "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "x://{y}", "name": "odd"}]},
    "prompts/get": {"messages": [{"role": "user", "content": _BLOCK}], "description": "x"},
    "resources/read": {"contents": [{"uri": "x://y", "text": "x", "_meta": {"a": 1}}]},
    "completion/complete": {"completion": {"values": ["x"], "total": 1, "hasMore": False}},
}
_PLAIN_TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("attack", "odd")]
_HELLO: Message = {
    "protocolVersion": "2025-11-25",
    "serverInfo": {"name": "hostile", "version": "1"},
    "capabilities": {"tools": {}, "prompts": {}, "resources": {}, "completions": {}, "logging": {}},
}


class HostileServer:
    """Greets as others do; all else that it says has something odd in it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.size: int = options.size
        self.chance = random.Random(f"hostile {options.seed}")

    def run(self) -> None:
        buffer = b""
        while data := os.read(0, 1 << 16):
            *lines, buffer = (buffer + data).split(b"\n")
            for message in map(json.loads, lines):
                if "id" in message and "method" in message:
                    self.answer(message)

    def answer(self, message: Message) -> None:
        answer: Message = {"id": message["id"]}
        method, params = message["method"], message.get("params") or {}
        if method == "initialize":
            self.write(answer | {"result": _HELLO})
        elif params.get("name") == "attack":
            count = params["arguments"]["count"]
            for said in self.chance.choices(FROM_SERVER, k=count):
                self.say(bent(self.chance, said, self.size))
            self.write(answer | {"result": {"content": [{"type": "text", "text": "done"}]}})
        elif method == "tools/list" and self.chance.random() < 0.5:
            self.write(answer | {"result": {"tools": _PLAIN_TOOLS}})
        elif method in RESULTS:
            said = answer | {"result": RESULTS[method]}
            self.say(bent(self.chance, said, self.size, keep=("id",)))
        else:
            self.write(answer | {"result": {}})

    def write(self, message: Message) -> None:
        self.say(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def say(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(1, view) :]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="0")
    parser.add_argument("--size", type=int, default=1 << 20)
    HostileServer(parser.parse_args()).run()


if __name__ == "__main__":
    main()
