"""The cheapest MCP server there can be: one loop, no checks. What remains is the wire's cost."""

import json
import os
import sys


def main() -> None:
    out = sys.stdout.buffer
    texts: dict[int, bytes] = {}
    hello = {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "raw", "version": "1"},
    }
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if "id" not in message:
            continue
        if message["method"] == "initialize":
            body = json.dumps(hello).encode()
        elif message["method"] == "tools/call":
            size = message["params"]["arguments"].get("bytes", 2)
            text = texts.setdefault(size, b"x" * size)
            body = b'{"content":[{"type":"text","text":"%b"}]}' % text
        else:
            body = b"{}"
        out.write(b'{"jsonrpc":"2.0","id":%d,"result":%b}\n' % (message["id"], body))
        out.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
