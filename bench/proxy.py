"""The proxy against its own backend: the same driver, the same server, directly and through us."""

import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BACKEND = [sys.executable, str(Path(__file__).with_name("raw_backend.py"))]
PROXY = [sys.executable, "-m", "emceepee_stdio", "serve"]
LARGE = 10_000_000

Figures = dict[str, float]


class Driver:
    """A client on a pipe: one line out, one line back."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=env
        )
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("no pipes")
        self._to = self.process.stdin
        self._from = io.BufferedReader(io.FileIO(self.process.stdout.fileno(), closefd=False))
        self._id = 0

    def send(
        self, method: str, params: dict[str, Any] | None = None, *, answered: bool = True
    ) -> None:
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method}
        if answered:
            self._id += 1
            message["id"] = self._id
        if params is not None:
            message["params"] = params
        self._to.write(json.dumps(message).encode() + b"\n")

    def receive(self) -> bytes:
        line = self._from.readline()
        if not line:
            raise RuntimeError("the other side hung up")
        return line

    def open(self) -> None:
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}}
        self.send("initialize", {**hello, "clientInfo": {"name": "bench", "version": "0"}})
        self.receive()
        self.send("notifications/initialized", answered=False)
        self.send("tools/list", {})
        self.receive()

    def close(self) -> None:
        self._to.close()
        self.process.wait(10)
        self._from.close()
        if self.process.stdout is not None:
            self.process.stdout.close()


def call_params(size: int, *, direct: bool) -> dict[str, Any]:
    inner = {"bytes": size}
    if direct:
        return {"name": "t", "arguments": inner}
    return {"name": "execute_tool", "arguments": {"server": "raw", "tool": "t", "args": inner}}


def measure(driver: Driver, *, direct: bool) -> Figures:
    def once(size: int) -> float:
        start = time.perf_counter()
        driver.send("tools/call", call_params(size, direct=direct))
        driver.receive()
        return time.perf_counter() - start

    for _ in range(300):
        once(2)
    small = sorted(once(2) for _ in range(2_000))
    large = [once(LARGE) for _ in range(7)]
    figures = {
        "p50_ms": small[len(small) // 2] * 1000,
        "p95_ms": small[int(len(small) * 0.95)] * 1000,
        "p99_ms": small[int(len(small) * 0.99)] * 1000,
        "large_ms": statistics.median(large) * 1000,
    }
    for depth in (1, 16, 64):
        figures[f"calls_per_s_at_{depth}"] = _throughput(driver, depth, direct=direct)
    return figures


def _throughput(driver: Driver, depth: int, *, direct: bool) -> float:
    count = 8_000 if depth > 1 else 2_000
    params = call_params(2, direct=direct)
    start = time.perf_counter()
    for _ in range(depth):
        driver.send("tools/call", params)
    for received in range(count):
        driver.receive()
        if received < count - depth:
            driver.send("tools/call", params)
    return count / (time.perf_counter() - start)


@contextmanager
def _home() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "config.json"
        settings = {"limits": {"result_chars": 0, "client_line_bytes": 64 << 20}}
        servers = {"raw": {"command": BACKEND[0], "args": BACKEND[1:]}}
        config.write_text(json.dumps({"mcpServers": servers, "emceepee": settings}))
        yield {
            **os.environ,
            "EMCEEPEE_CONFIG": str(config),
            "EMCEEPEE_LOG_DIR": str(Path(directory) / "logs"),
            "EMCEEPEE_STATE_DIR": str(Path(directory) / "state"),
        }


def run() -> dict[str, Figures]:
    figures: dict[str, Figures] = {}
    direct = Driver(BACKEND, dict(os.environ))
    direct.open()
    figures["direct"] = measure(direct, direct=True)
    direct.close()
    with _home() as env:
        start = time.perf_counter()
        proxied = Driver(PROXY, env)
        proxied.open()
        started = time.perf_counter() - start
        figures["proxy"] = measure(proxied, direct=False)
        figures["proxy"]["start_ms"] = started * 1000
        figures["proxy"]["memory_mb"] = _memory_mb(proxied.process.pid)
        proxied.close()
    return figures


def _memory_mb(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return float("nan")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
