"""A client on two pipes, as thin as it can be: the same for a server, a relay and a proxy.

Calls are bytes made beforehand, of which only the id differs; every answer is checked, so that a
refusal is never counted as a call.
"""

import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

WAIT_S = 120.0
_CHUNK = 1 << 16
_SMALL = 1 << 16

Message = dict[str, Any]


class Failed(Exception):
    """The other side hung up, was silent, or refused."""


class Call:
    """A tools/call whose id is put in when it is sent."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        line = {"jsonrpc": "2.0", "id": 0, "method": "tools/call", "params": params}
        before, after = json.dumps(line).split('"id": 0', 1)
        self._before = f'{before}"id": '.encode()
        self._after = f"{after}\n".encode()

    def line(self, number: int) -> bytes:
        return b"%b%d%b" % (self._before, number, self._after)


def call(name: str, **arguments: Any) -> Call:
    return Call({"name": name, "arguments": arguments})


class Client:
    """One process and the conversation with it."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.started = time.perf_counter()
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self.process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            bufsize=0,
            env=dict(env),
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise Failed("no pipes")
        self._to = self.process.stdin.fileno()
        self._from = self.process.stdout.fileno()
        self._poll = select.poll()
        self._poll.register(self._from, select.POLLIN)
        self._lines: list[bytes] = []
        self._tail: list[bytes] = []
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> bytes:
        """Shake hands; the answer to tools/list as it came."""
        about: Message = {"protocolVersion": "2025-11-25", "capabilities": {}}
        self.ask("initialize", {**about, "clientInfo": {"name": "bench", "version": "0"}})
        self._write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        return self.ask("tools/list", {})

    def close(self) -> None:
        streams = (self.process.stdin, self.process.stdout)
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._said.close()
        for stream in streams:
            if stream is not None:
                stream.close()

    def ask(self, method: str, params: Mapping[str, Any]) -> bytes:
        """One request, and the line that answers it."""
        self._number += 1
        line = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        self._write(json.dumps(line).encode() + b"\n")
        return self._answer()[1]

    def result(self, made: Call) -> Message:
        """The decoded result of one call."""
        return json.loads(self.answered(made))["result"]

    def answered(self, made: Call) -> bytes:
        """The line that answers one call."""
        self.send(made)
        return self._answer()[1]

    def send(self, made: Call) -> int:
        self._number += 1
        self._write(made.line(self._number))
        return self._number

    def once(self, made: Call) -> float:
        """How long one call took, in seconds."""
        start = time.perf_counter()
        self.send(made)
        self._answer()
        return time.perf_counter() - start

    def loaded(self, made: Call, count: int, in_flight: int) -> tuple[list[float], float]:
        """How long each call took with so many at a time, and all of them together."""
        sent: dict[int, float] = {}
        took: list[float] = []
        begin = time.perf_counter()
        for _ in range(min(in_flight, count)):
            start = time.perf_counter()
            sent[self.send(made)] = start
        while sent:
            number, _ = self._answer()
            now = time.perf_counter()
            took.append(now - sent.pop(number))
            if len(took) + len(sent) < count:
                start = time.perf_counter()
                sent[self.send(made)] = start
        return took, time.perf_counter() - begin

    def beside(
        self, slow: Call, made: Call, lines: list[bytes], *, may_fail: bool = False
    ) -> tuple[list[float], float]:
        """One call after the other, as long as a slow one takes: each of them, and the slow one.

        `may_fail`: the slow one may end with an error.
        """
        took: list[float] = []
        begin = ended = time.perf_counter()
        until = self.send(slow)
        while until:
            start = time.perf_counter()
            sent = self.send(made)
            number = 0
            while number != sent:
                number, line = self._answer(may_fail=until if may_fail else 0)
                lines.append(line)
                if number == until:
                    until = 0
                    ended = time.perf_counter()
            took.append(time.perf_counter() - start)
        return took, ended - begin

    def _answer(self, *, may_fail: int = 0) -> tuple[int, bytes]:
        """The next answer; what is told between is passed over. `may_fail` is a call."""
        while True:
            line = self._line()
            if may_fail and line.startswith(b'{"jsonrpc":"2.0","id":%d,' % may_fail):
                return may_fail, line
            if len(line) > _SMALL:
                # Only a result is so long, and only one large call is made at a time.
                if b'"result"' not in line[:200] and b'"result"' not in line[-200:]:
                    raise Failed(f"no result in {line[:200]!r}")
                return self._number, line
            message = json.loads(line)
            if "result" in message:
                if message["result"].get("isError"):
                    raise Failed(f"the call failed: {line[:500]!r}")
                return message["id"], line
            if "error" in message:
                raise Failed(f"refused: {line[:500]!r}")

    def _line(self) -> bytes:
        while not self._lines:
            self._read()
        return self._lines.pop()

    def _read(self) -> None:
        if not self._poll.poll(WAIT_S * 1000):
            raise Failed(f"nothing came for {WAIT_S:.0f} s")
        chunk = os.read(self._from, _CHUNK)
        if not chunk:
            raise self._hung_up()
        first, newline, rest = chunk.partition(b"\n")
        self._tail.append(first)
        if newline:
            line = b"".join(self._tail)
            *more, tail = rest.split(b"\n")
            self._tail = [tail]
            self._lines = [line, *more][::-1]

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._to, data) :]
        except BrokenPipeError:
            raise self._hung_up() from None

    def _hung_up(self) -> Failed:
        self._said.seek(0)
        words = self._said.read()[-2_000:].decode(errors="replace").strip()
        return Failed(f"the other side hung up; its last words: {words or 'none'}")
