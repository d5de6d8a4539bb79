"""The cheapest MCP server there can be: one loop, no checks. What remains is the proxy's cost.

Usage: raw_backend.py [--tools N] [--delay SECONDS]

`t` answers with `bytes` letters, `burst` with as much after sending `count` notifications (or, by
`kind`, log messages or lines of stderr) with `size` letters each, and `never` not at all.
`--tools` adds tools that are only listed; `--delay` is a wait before the first answer.
"""

import argparse
import json
import os
import sys
import time
from typing import IO, Any

NUMBER = {"type": "integer", "minimum": 0}


def listed(more: int) -> bytes:
    """The answer to tools/list."""
    properties = {
        "t": {"bytes": NUMBER},
        "burst": dict.fromkeys(("bytes", "count", "size"), NUMBER),
        "never": {},
    }
    properties |= {f"tool_{number}": {"bytes": NUMBER} for number in range(more)}
    tools: list[dict[str, Any]] = [
        {
            "name": name,
            "description": f"What {name} does, in a sentence of the usual length.",
            "inputSchema": {"type": "object", "properties": fields},
        }
        for name, fields in properties.items()
    ]
    return json.dumps({"tools": tools}).encode()


def send(out: IO[bytes], kind: str, number: int, size: int) -> None:
    """One message of a burst."""
    letters = b"x" * size
    if kind == "stderr":
        sys.stderr.buffer.write(b"%d %b\n" % (number, letters))
    elif kind == "log":
        params = b'{"level":"info","data":{"n":%d,"x":"%b"}}' % (number, letters)
        out.write(b'{"jsonrpc":"2.0","method":"notifications/message","params":%b}\n' % params)
    else:
        more = b',"x":"%b"' % letters if size else b""
        params = b'{"n":%d%b}' % (number, more)
        out.write(b'{"jsonrpc":"2.0","method":"notifications/bench","params":%b}\n' % params)


def hello(message: dict[str, Any]) -> bytes:
    version = message["params"]["protocolVersion"]
    info = {"name": "raw", "version": "1"}
    capabilities: dict[str, Any] = {"tools": {}}
    about = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
    return json.dumps(about).encode()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=int, default=0)
    parser.add_argument("--delay", type=float, default=0.0)
    options = parser.parse_args()
    time.sleep(options.delay)
    tools = listed(options.tools)
    out = sys.stdout.buffer
    texts: dict[int, bytes] = {}
    notified = 0
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        method = message["method"]
        part = b"result"
        if method == "tools/call":
            name, arguments = message["params"]["name"], message["params"]["arguments"]
            if name == "never":
                continue
            for _ in range(arguments.get("count", 0)):
                notified += 1
                send(out, arguments.get("kind", ""), notified, arguments.get("size", 0))
            size = arguments.get("bytes", 2)
            text = texts.setdefault(size, b"x" * size)
            body = b'{"content":[{"type":"text","text":"%b"}]}' % text
        elif method == "initialize":
            body = hello(message)
        elif method == "tools/list":
            body = tools
        elif method == "ping":
            body = b"{}"
        else:
            part, body = b"error", b'{"code":-32601,"message":"Method not found"}'
        given = json.dumps(message["id"]).encode()
        out.write(b'{"jsonrpc":"2.0","id":%b,"%b":%b}\n' % (given, part, body))
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
