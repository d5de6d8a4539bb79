"""A server behind a URL whose `flood` answers with an event stream: first `bytes` of newlines.

It says its port on stdout and ends when stdin does.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PIECE_BYTES = 1 << 16


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._reply(405, "", b"")

    do_DELETE = do_GET  # noqa: N815

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            self._reply(202, "", b"")
            return
        body = json.dumps({"jsonrpc": "2.0", "id": message["id"], **_answer(message)}).encode()
        if message["method"] == "tools/call":
            self._stream(message["params"]["arguments"]["bytes"], body)
        else:
            self._reply(200, "application/json", body)

    def _stream(self, size: int, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for _ in range(size // PIECE_BYTES):
            self.wfile.write(b"\n" * PIECE_BYTES)
        self.wfile.write(b"data: %b\n\n" % body)
        self.close_connection = True

    def _reply(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the figures are on the other side."""


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    method = message["method"]
    if method == "initialize":
        info = {"name": "stream", "version": "1"}
        version = message["params"]["protocolVersion"]
        about: dict[str, Any] = {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": info,
        }
        return {"result": about}
    if method == "tools/list":
        return {"result": {"tools": [{"name": "flood", "inputSchema": {"type": "object"}}]}}
    if method == "tools/call":
        return {"result": {"content": [{"type": "text", "text": "done"}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
