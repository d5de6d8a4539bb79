"""A client over HTTP, as thin as it can be: the same for a server and for the proxies before it.

Each call in flight has a connection of its own, which is kept. Every answer is checked, so that a
refusal is never counted as a call.
"""

import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

from bench.client import WAIT_S, Call, Failed

_CHUNK = 1 << 16
_LAST_CHUNK = b"0\r\n\r\n"
_END_OF_HEAD = b"\r\n\r\n"
_SESSION = b"mcp-session-id"

Message = dict[str, Any]


class HttpClient:
    """One session at one address."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.hostname is None or parts.port is None:
            raise Failed(f"no address: {url}")
        self._address = (parts.hostname, parts.port)
        lines = {
            "Host": parts.netloc,
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            **headers,
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        self._head = f"POST {parts.path} HTTP/1.1\r\n{text}".encode()
        self._number = 0

    def open(self) -> None:
        """Shake hands."""
        about: Message = {"protocolVersion": "2025-11-25", "capabilities": {}}
        params = {**about, "clientInfo": {"name": "bench", "version": "0"}}
        with _Connection(self._address) as connection:
            head, _ = connection.ask(self._request(_body("initialize", params, id=0)))
            session = _headers(head).get(_SESSION)
            if session is not None:
                self._head += b"Mcp-Session-Id: %b\r\n" % session
            self._head += b"Mcp-Protocol-Version: 2025-11-25\r\n"
            connection.ask(self._request(_body("notifications/initialized", {})))

    def once(self, made: Call) -> None:
        self.loaded(made, 1, 1)

    def loaded(self, made: Call, count: int, in_flight: int) -> tuple[list[float], float]:
        """How long each call took with so many at a time, and all of them together."""
        connections = [_Connection(self._address) for _ in range(min(in_flight, count))]
        try:
            return self._run(made, count, {c.fileno(): c for c in connections})
        finally:
            for connection in connections:
                connection.close()

    def _run(
        self, made: Call, count: int, connections: "Mapping[int, _Connection]"
    ) -> tuple[list[float], float]:
        poll = select.poll()
        sent: dict[int, float] = {}
        took: list[float] = []
        begin = time.perf_counter()
        for number, connection in connections.items():
            poll.register(number, select.POLLIN)
            sent[number] = time.perf_counter()
            connection.send(self._next(made))
        while sent:
            found = poll.poll(WAIT_S * 1000)
            if not found:
                raise Failed(f"nothing came for {WAIT_S:.0f} s")
            for number, _ in found:
                if (answer := connections[number].answer()) is None:
                    continue
                _check(answer[1])
                took.append(time.perf_counter() - sent.pop(number))
                if len(took) + len(sent) < count:
                    sent[number] = time.perf_counter()
                    connections[number].send(self._next(made))
        return took, time.perf_counter() - begin

    def _next(self, made: Call) -> bytes:
        self._number += 1
        return self._request(made.line(self._number))

    def _request(self, body: bytes) -> bytes:
        return b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)


class _Connection:
    """One socket, with what has come of an answer."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, timeout=WAIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._come = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: bytes) -> None:
        self._socket.sendall(request)

    def ask(self, request: bytes) -> tuple[bytes, bytes]:
        self.send(request)
        while (answer := self.answer()) is None:
            pass
        return answer

    def answer(self) -> tuple[bytes, bytes] | None:
        """Read once; the head and the body when all of it is there."""
        data = self._socket.recv(_CHUNK)
        if not data:
            raise Failed(f"the other side hung up after {self._come[-500:]!r}")
        self._come += data
        head, found, body = self._come.partition(_END_OF_HEAD)
        if not found:
            return None
        length = _headers(head).get(b"content-length")
        whole = body.endswith(_LAST_CHUNK) if length is None else len(body) >= int(length)
        if not whole:
            return None
        self._come = b""
        if head.split(b" ", 2)[1] not in (b"200", b"202"):
            raise Failed(f"refused: {head[:200]!r} {body[:500]!r}")
        return head, body


def _headers(head: bytes) -> dict[bytes, bytes]:
    pairs = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return {name.lower(): value.strip() for name, _, value in pairs}


def _body(method: str, params: Mapping[str, Any], **more: int) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()


def _check(body: bytes) -> None:
    """Refuse what is no result: JSON as it is, or the last event of a stream."""
    text = body.rpartition(b"data: ")[2].partition(b"\n")[0] if b"data: " in body else body
    message = json.loads(text)
    if "result" not in message or message["result"].get("isError"):
        raise Failed(f"the call failed: {body[:500]!r}")
