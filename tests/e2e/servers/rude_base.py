"""The well-behaved part of the rude server, for the handshake era, and its odd answers."""

import json
from collections.abc import Callable

import rpc
from rpc import Message, frame, text

Answer = Callable[[Message], None]

HELLO: Message = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}, "logging": {}},
    "serverInfo": {"name": "rude", "version": "1.0"},
}
TOOLS = [
    {"name": name, "inputSchema": {"type": "object", "properties": {"message": {"type": "string"}}}}
    for name in ("echo", "misbehave", "die")
]


def answer(message: Message, result: object = None) -> None:
    rpc.send({"id": message["id"], "result": text("answered") if result is None else result})


class Rude:
    """The well-behaved part; a mode replaces one of its attributes."""

    def __init__(self) -> None:
        self.before_frame: Callable[[], None] = lambda: None
        self.initialize: Answer = lambda message: answer(message, HELLO)
        self.misbehave: Answer = answer
        self.unknown: Answer = lambda message: rpc.send(
            {"id": message["id"], "error": {"code": -32601, "message": "Method not found"}}
        )
        self.replied: Answer = lambda _: None
        self.ended: Callable[[], None] = lambda: None
        self.only_initialize = False
        self.dies_unless_greeted = False

    def run(self) -> None:
        for message in rpc.messages():
            if self.dies_unless_greeted and message.get("method") != "initialize":
                rpc.leave(1)
            self.dies_unless_greeted = False
            if "method" not in message:
                self.replied(message)
            elif "id" in message:
                self.before_frame()
                self.answer(message)

    def answer(self, message: Message) -> None:
        method = message["method"]
        if method == "initialize":
            self.initialize(message)
        elif self.only_initialize:
            return
        elif method == "ping":
            answer(message, {})
        elif method == "tools/list":
            answer(message, {"tools": TOOLS})
        elif method == "tools/call":
            self.call(message)
        else:
            self.unknown(message)

    def call(self, message: Message) -> None:
        if message["params"]["name"] == "echo":
            answer(message, text(message["params"].get("arguments", {}).get("message", "")))
        else:
            self.misbehave(message)


def _deep(message: Message) -> bytes:
    nested = b"[" * 100_000 + b"]" * 100_000
    return b'{"jsonrpc":"2.0","id":%d,"result":{"content":%s}}\n' % (message["id"], nested)


def _twice(message: Message) -> bytes:
    once = frame({"id": message["id"], "result": text("answered")})
    return once + once + frame({"id": 987654321, "result": text("never asked")})


def _two_results(message: Message) -> bytes:
    first, second = json.dumps(text("first")), json.dumps(text("second"))
    return f'{{"jsonrpc":"2.0","id":{message["id"]},"result":{first},"result":{second}}}\n'.encode()


def _both(message: Message) -> bytes:
    error = {"code": -32000, "message": "and an error"}
    return frame({"id": message["id"], "result": text("a result"), "error": error})


def framed(result: object) -> Callable[[Message], bytes]:
    return lambda message: frame({"id": message["id"], "result": result})


ANSWERS: dict[str, Callable[[Message], bytes]] = {
    "duplicate-answers": _twice,
    "string-id-answers": lambda m: frame({"id": str(m["id"]), "result": text("answered")}),
    "float-id": lambda m: frame({"id": float(m["id"]), "result": text("answered")}),
    "no-jsonrpc": lambda m: (
        json.dumps({"id": m["id"], "result": text("answered")}).encode() + b"\n"
    ),
    "result-and-error": _both,
    "result-null": framed(None),
    "batch": lambda m: b"[" + framed(text("answered"))(m).rstrip() + b"]\n",
    "deep": _deep,
    "dup-keys": _two_results,
    "lone-surrogate": framed(text("half \ud800 pair")),
    "nan": framed(text("answered", structuredContent={"n": float("nan"), "i": float("inf")})),
}
