"""The cheapest MCP server behind a URL that there can be: what remains is the cost of a proxy.

It answers as `raw_backend` does, says its port on stdout and ends when stdin does.
"""

import asyncio
import json
import os
import sys
import threading
from typing import Any

from bench.raw_backend import hello, listed

_END_OF_HEAD = b"\r\n\r\n"
_LENGTH = b"content-length:"
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_ACCEPTED = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n"
_RESULT = b'{"content":[{"type":"text","text":"xx"}]}'
_TOOLS = listed(0)


class Connection(asyncio.Protocol):
    """One request at a time, all of them POST."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(_END_OF_HEAD)
        if not found:
            return
        length = int(head.lower().split(_LENGTH, 1)[1].split(b"\r\n", 1)[0])
        if len(rest) >= length:
            self._buffer = rest[length:]
            self._transport.write(answer(json.loads(rest[:length])))


def answer(message: dict[str, Any]) -> bytes:
    if "id" not in message:
        return _ACCEPTED
    method = message["method"]
    result = _RESULT
    if method == "initialize":
        result = hello(message)
    elif method == "tools/list":
        result = _TOOLS
    body = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(message["id"]).encode(), result)
    return b"%bcontent-length: %d\r\n\r\n%b" % (_JSON, len(body), body)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    await server.serve_forever()


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
