"""A server that says what a test wants, to the letter: `scripted.py legacy|modern`.

Its tool `say` writes `lines` as they are, where `<id>` is the id of the call as JSON and `<token>`
its progress token; nothing else answers the call. Its tool `echo` is well. With FIXTURE_LOG set it
writes down what it hears (see `rpc`).
"""

import json
import sys

import rpc
from rpc import Message, text

MODERN = sys.argv[1] == "modern"
TOOLS = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "echo")]
HELLO: Message = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "resources": {"subscribe": True}},
    "serverInfo": {"name": "scripted", "version": "1"},
}
DISCOVERED: Message = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}


def say(message: Message) -> None:
    params = message["params"]
    call_id, token = message["id"], params.get("_meta", {}).get("progressToken")
    for line in params["arguments"]["lines"]:
        said = line.replace("<id>", json.dumps(call_id)).replace("<token>", json.dumps(token))
        rpc.write(said.encode() + b"\n")


def result_of(message: Message) -> Message | None:
    """What a well-behaved server answers; None where it does not know the method."""
    match message["method"]:
        case "initialize":
            return None if MODERN else HELLO
        case "server/discover":
            return DISCOVERED if MODERN else None
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return text(message["params"]["arguments"].get("message", ""))
        case "ping":
            return {}
        case _:
            return None


def answer(message: Message) -> None:
    result = result_of(message)
    if result is None:
        code = -32022 if message["method"] == "initialize" else -32601
        rpc.send({"id": message["id"], "error": {"code": code, "message": "not here"}})
        return
    cached = {"ttlMs": 0, "cacheScope": "private"} if message["method"] != "tools/call" else {}
    rpc.send(
        {
            "id": message["id"],
            "result": {**result, "resultType": "complete", **cached} if MODERN else result,
        }
    )


def main() -> None:
    for message in rpc.messages():
        if message.get("method") == "tools/call" and message["params"]["name"] == "say":
            say(message)
        elif "method" in message and "id" in message:
            answer(message)


if __name__ == "__main__":
    main()
