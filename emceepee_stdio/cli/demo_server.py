"""The example backend of `emceepee demo`: a small coffee bar that speaks MCP on stdio.

It stands alone, on the standard library, and shows in a hundred lines what a server can do: a quick
tool, a slow one, one that asks a question, and one that crashes.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, cast

Message = dict[str, Any]


def _tool(name: str, description: str, **takes: Message) -> Message:
    schema: Message = {"type": "object", "properties": takes, "required": list(takes)}
    return {"name": name, "description": description, "inputSchema": schema}


_TOOLS = [
    _tool("menu", "What the bar has today.") | {"annotations": {"readOnlyHint": True}},
    _tool(
        "roast",
        "Roast beans. Takes as many seconds as you say.",
        seconds={"type": "number", "description": "How long."},
    ),
    _tool(
        "order",
        "Order a coffee. The bar asks how you like it.",
        drink={"type": "string", "description": "From the menu."},
    ),
    _tool("spill", "Spill it all: the bar goes up in steam."),
]
_QUESTION: Message = {
    "message": "With milk? And how many lumps of sugar?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "milk": {"type": "boolean", "description": "With milk"},
            "sugar": {"type": "integer", "minimum": 0, "maximum": 5, "description": "Lumps"},
        },
        "required": ["milk"],
    },
}

_lock = threading.Lock()
_answers: dict[str, Callable[[Message], None]] = {}


def _object(message: Message, key: str) -> Message:
    value = message.get(key)
    return cast("Message", value) if isinstance(value, dict) else Message()


def _send(message: Message) -> None:
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with _lock:
        os.write(1, line.encode())


def _say(request_id: object, text: str) -> None:
    _send({"id": request_id, "result": {"content": [{"type": "text", "text": text}]}})


def _roast(request_id: object, seconds: float) -> None:
    done = threading.Timer(seconds, _say, (request_id, f"Roasted for {seconds:g} s: dark brown."))
    done.daemon = True
    done.start()


def _order(request_id: object, drink: str) -> None:
    """Ask first; the answer of the client is the answer to the order."""

    def served(answer: Message) -> None:
        reply = _object(answer, "result")
        if reply.get("action") != "accept":
            _say(request_id, "No coffee, then.")
            return
        content = _object(reply, "content")
        milk = "with milk" if content.get("milk") else "black"
        _say(request_id, f"One {drink}, {milk}, {content.get('sugar', 0)} lumps of sugar.")

    question = f"question-{request_id}"
    _answers[question] = served
    _send({"id": question, "method": "elicitation/create", "params": _QUESTION})


def _call(request_id: object, params: Message) -> None:
    arguments = _object(params, "arguments")
    match params.get("name"):
        case "menu":
            _say(request_id, "espresso, flat white, filter")
        case "roast":
            _roast(request_id, float(arguments.get("seconds", 1)))
        case "order":
            _order(request_id, str(arguments.get("drink", "coffee")))
        case "spill":
            os.write(2, b"boiler: pressure lost\n")
            os._exit(70)
        case other:
            error = {"code": -32602, "message": f"Unknown tool: {other}"}
            _send({"id": request_id, "error": error})


def _hear(message: Message) -> None:
    method, request_id = message.get("method"), message.get("id")
    if method is None and request_id in _answers:
        _answers.pop(str(request_id))(message)
    elif method == "initialize":
        hello: Message = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "coffee-bar", "version": "1.0"},
            "instructions": "A coffee bar, to try things with.",
        }
        _send({"id": request_id, "result": hello})
    elif method == "tools/list":
        _send({"id": request_id, "result": {"tools": _TOOLS}})
    elif method == "tools/call":
        _call(request_id, _object(message, "params"))
    elif method == "ping":
        _send({"id": request_id, "result": {}})
    elif method is not None and request_id is not None:
        error = {"code": -32601, "message": f"Method not found: {method}"}
        _send({"id": request_id, "error": error})


def main() -> None:
    for line in sys.stdin.buffer:
        _hear(json.loads(line))
    os._exit(0)


if __name__ == "__main__":
    main()
