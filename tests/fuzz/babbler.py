"""A server that answers every call and babbles in between: `python -m tests.fuzz.babbler`.

What it babbles never names a request that waits for its answer, so the proxy has no excuse: each
call must get its own answer. With `--damage` the answers to words that begin with "damage" are
damaged behind their id. The tool `flood` writes notifications and lines on stderr, `count` of each,
and answers when all are written. With `--say` it says what a file holds before every answer to a
call, with `--record` it writes down what it babbled.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import Mutator, load, names_a_number_between

MODERN = "2026-07-28"
INFO = {"name": "babbler", "version": "1"}
SCHEMA = {
    "type": "object",
    "properties": {"message": {"type": "string"}, "count": {"type": "integer"}},
}
TOOLS = [
    {"name": name, "inputSchema": SCHEMA, "server": "calm", "++note": "x"}
    for name in ("echo", "flood")
]
NEVER_MADE = 10**9
REMEMBERED = 50

Message = dict[str, Any]


class Babbler:
    """Reads what there is, then answers it in any order, with noise before, between and after."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.mutator = Mutator(load("server"), seed=f"babbler {options.seed}")
        self.random = self.mutator.random
        self.done: set[int] = set()
        self.all_done = 0
        self.old: list[bytes] = []
        self.to_say = Path(options.say).read_bytes() if options.say else b""
        self.record = options.record and Path(options.record)

    def run(self) -> None:
        buffer = b""
        while data := os.read(0, 1 << 16):
            *lines, buffer = (buffer + data).split(b"\n")
            asked = [m for m in map(json.loads, lines) if "id" in m and "method" in m]
            self.random.shuffle(asked)
            for message in asked:
                self.babble(message)
                self.answer(message)
            self.babble(None)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(1, view) :]

    def send(self, message: Message) -> bytes:
        line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"
        self.write(line)
        return line

    # Noise

    def babble(self, message: Message | None) -> None:
        if self.to_say and message is not None and message["method"] == "tools/call":
            self.write(self.to_say)
        for _ in range(self.random.randint(0, self.options.noise)):
            choice = self.random.random()
            if choice < 0.15 and self.old:
                self.write(self.random.choice(self.old))
            elif choice < 0.2:
                os.write(2, self.mutator.line()[:60_000])
            elif choice < 0.5 and message is not None and self.options.misreport:
                self.misreport(message)
            else:
                self.write_garbage()

    def write_garbage(self) -> None:
        line = self.mutator.line()
        if not names_a_number_between(line, self.all_done + 1, self.all_done + 5_000):
            if self.record:
                with self.record.open("ab") as record:
                    record.write(line)
            self.write(line)

    def misreport(self, message: Message) -> None:
        """Progress of a call that is under way, with things in it that are no progress."""
        token = (message.get("params") or {}).get("_meta", {}).get("progressToken")
        if token is not None:
            odd = self.random.choice((1, 2.5, -1, "half", None, [], {}, True, 1e300))
            more = self.random.choice(({}, {"total": "x"}, {"message": 7}, {"x": {"y": []}}))
            params = {"progressToken": token, "progress": odd, **more}
            self.send({"method": "notifications/progress", "params": params})

    # Answers

    def answer(self, message: Message) -> None:
        modern = self.options.era == "modern"
        extra = {"resultType": "complete"} if modern else {}
        cached = extra | {"ttlMs": 0, "cacheScope": "private"} if modern else {}
        match message["method"]:
            case "initialize" if not modern:
                version = {"protocolVersion": "2025-11-25", "serverInfo": INFO}
                result = version | {"capabilities": {"tools": {"listChanged": True}, "logging": {}}}
            case "server/discover" if modern:
                result = cached | {"supportedVersions": [MODERN], "capabilities": {"tools": {}}}
            case "ping" if not modern:
                result = {}
            case "tools/list":
                result = cached | {"tools": TOOLS}
            case "tools/call":
                self.answer_call(message, extra)
                return
            case _:
                error = {"code": -32601, "message": "Method not found"}
                self.finish(message, self.send({"id": message["id"], "error": error}))
                return
        self.finish(message, self.send({"id": message["id"], "result": result}))

    def answer_call(self, message: Message, extra: Message) -> None:
        arguments = message["params"].get("arguments") or {}
        if message["params"]["name"] == "flood":
            self.flood(arguments["count"])
        words = str(arguments.get("message", "done"))
        result = {"content": [{"type": "text", "text": words}], **extra}
        head = b'{"jsonrpc":"2.0","id":%d,' % message["id"]
        line = head + b'"result":%b}' % json.dumps(result).encode()
        if self.options.damage and self.random.random() < 0.5:
            line = self.mutator.damaged(line, after=len(head))
        self.write(line + b"\n")
        self.finish(message, line + b"\n")

    def finish(self, message: Message, line: bytes) -> None:
        self.done.add(message["id"])
        while self.all_done + 1 in self.done:
            self.all_done += 1
            self.done.remove(self.all_done)
        if message["id"] <= self.all_done:
            self.old = [*self.old[-REMEMBERED:], line]
        if self.random.random() < 0.2:
            result = {"content": [{"type": "text", "text": "an answer to nobody"}]}
            self.send({"id": NEVER_MADE + self.random.randrange(1_000), "result": result})

    def flood(self, count: int) -> None:
        """In large writes, so that the reader is what takes time."""
        kinds = [
            {"method": "notifications/message", "params": {"level": "info", "data": "flood"}},
            {"method": "notifications/flood", "params": {"n": 0}},
            {"method": "notifications/resources/updated", "params": {"uri": "fixture://one"}},
        ]
        frames = [json.dumps({"jsonrpc": "2.0", **kind}).encode() + b"\n" for kind in kinds]
        block = 300
        for _ in range(0, count, block):
            self.write(b"".join(frames) * (block // len(frames)))
            os.write(2, (b"a line on stderr " * 18 + b"\n") * block)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default="0")
    parser.add_argument("--era", choices=("legacy", "modern"), default="legacy")
    parser.add_argument("--noise", type=int, default=6)
    parser.add_argument("--damage", action="store_true")
    parser.add_argument("--misreport", action="store_true")
    parser.add_argument("--record")
    parser.add_argument("--say")
    Babbler(parser.parse_args()).run()


if __name__ == "__main__":
    main()
