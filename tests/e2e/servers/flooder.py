"""A legacy server that sends a great many large messages, of a kind that the caller names.

Its tools:
  echo {message}               answers with the message
  flood {kind, count, bytes}   sends `count` messages of `bytes` each, then answers with "sent";
                               its description has 5 MB

Kinds: `notification`, `log`, `progress` (of the call), `ping` (it answers when all pongs came),
`long-id-ping` (the bytes are in the id), `deaf-ping` (the same, and it never reads again),
`sampling` and `elicitation` (it waits for no answer), `nothings` (its result is a list of so many
bytes of zeros). With FIXTURE_LOG set, `sent` is recorded for every tenth message.
"""

import json
import sys
import threading
from typing import Any

import rpc
from rpc import Message, text

HELLO: Message = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "flooder", "version": "1.0"},
}
TOOLS = [
    {"name": "echo", "inputSchema": {"type": "object"}},
    {"name": "flood", "inputSchema": {"type": "object"}, "description": "d" * (5 << 20)},
]
FACE = "\N{GRINNING FACE}"  # one character, four bytes
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def message_of(kind: str, number: int, filler: str, token: Any) -> Message:
    tag = f"{number} {filler}"
    if kind == "notification":
        return {"method": "notifications/custom", "params": {"n": number, "filler": filler}}
    if kind == "log":
        return {"method": "notifications/message", "params": {"level": "info", "data": tag}}
    if kind == "progress":
        params = {"progressToken": token, "progress": number, "message": tag}
        return {"method": "notifications/progress", "params": params}
    if kind == "sampling":
        said = {"role": "user", "content": {"type": "text", "text": tag}}
        params = {"messages": [said], "maxTokens": 10}
        return {"id": f"q{number}", "method": "sampling/createMessage", "params": params}
    if kind == "elicitation":
        params = {"message": tag, "requestedSchema": FORM}
        return {"id": f"q{number}", "method": "elicitation/create", "params": params}
    is_plain = kind == "ping"
    ping_id = number if is_plain else f"{number} {filler.replace('xxxx', FACE)}"
    return {"id": ping_id, "method": "ping", "params": {"filler": filler if is_plain else ""}}


class Flooder:
    """Reads on while it floods, unless it is deaf."""

    def __init__(self) -> None:
        self.pongs = threading.Semaphore(0)

    def run(self) -> None:
        for line in sys.stdin.buffer:
            message = json.loads(line)
            if "method" not in message:
                self.pongs.release()
            elif "id" in message:
                self.answer(message)

    def answer(self, message: Message) -> None:
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            rpc.send({"id": message["id"], "result": HELLO})
        elif method == "tools/list":
            rpc.send({"id": message["id"], "result": {"tools": TOOLS}})
        elif method == "tools/call" and params["name"] == "flood":
            arguments = params["arguments"]
            if arguments["kind"] == "deaf-ping":
                self.flood(message, **arguments)
            else:
                threading.Thread(target=self.flood, args=(message,), kwargs=arguments).start()
        elif method == "tools/call":
            said = params.get("arguments", {}).get("message", "")
            rpc.send({"id": message["id"], "result": text(said)})
        else:
            rpc.send({"id": message["id"], "result": {}})

    def flood(self, call: Message, *, kind: str, count: int, bytes: int) -> None:  # noqa: A002 - an argument of the tool
        if kind == "nothings":
            rpc.send({"id": call["id"], "result": {"content": [0] * (bytes // 2)}})
            return
        filler = "x" * bytes
        token = call["params"].get("_meta", {}).get("progressToken")
        for number in range(count):
            if number % 10 == 0:
                rpc.record("sent", number=number)
            rpc.write(rpc.frame(message_of(kind, number, filler, token)))
        if kind == "ping":
            for _ in range(count):
                self.pongs.acquire()
        rpc.send({"id": call["id"], "result": text("sent")})


if __name__ == "__main__":
    Flooder().run()
    rpc.leave(0)
