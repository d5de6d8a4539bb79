"""One server floods, with messages of 4 MB and more, while calls to another go on."""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.client import Call
from bench.figures import Check, Section, Table, at_most, percentiles
from bench.ways import BACKEND, HERE, OURS, Way, ready

MESSAGE_BYTES = 4 << 20
LARGER_BYTES = 32 << 20  # over what the target is about: it costs others one pass over its bytes
_QUIET_CALLS = 300


def floods(_ways: Sequence[Way], *, quick: bool) -> Section:
    count = 10 if quick else 50
    made = OURS.call(bytes=2)
    large: dict[str, Any] = {"server": "noisy", "bytes": 2, "count": count, "size": MESSAGE_BYTES}
    kinds = {
        "notifications of 4 MB": OURS.call("burst", **large),
        "log messages of 4 MB": OURS.call("burst", kind="log", **large),
        "lines of stderr of 4 MB": OURS.call("burst", kind="stderr", **large),
        "tiny notifications": OURS.call("burst", server="noisy", bytes=2, count=400 * count),
        "empty lines in an event stream": OURS.call("flood", server="stream", bytes=MESSAGE_BYTES),
    }
    columns: dict[str, dict[str, float]] = {}
    with OURS.start({"raw": BACKEND, "noisy": BACKEND}) as client, _stream() as url:
        client.open()
        client.answered(Call({"name": "add_server", "arguments": {"name": "stream", "url": url}}))
        for server in ("raw", "noisy"):
            ready(client, OURS.call(server=server, bytes=2))
        ready(client, OURS.call("flood", server="stream", bytes=0))
        quiet = [client.once(made) for _ in range(_QUIET_CALLS)]
        columns["quiet"] = _figures(quiet, 0.0)
        for kind, flood in kinds.items():
            columns[kind] = _figures(*client.beside(flood, made, []))
        larger = OURS.call("burst", server="noisy", bytes=2, count=3, size=LARGER_BYTES)
        columns["notifications of 32 MB"] = _figures(*client.beside(larger, made, []))
    alone = columns["quiet"]["p50_ms"]
    checks: list[Check] = [
        at_most(f"longest delay of a call: {kind}", columns[kind]["longest_ms"] - alone, 50, "ms")
        for kind in kinds
    ]
    table = Table(title="One server floods (calls to another server)", columns=columns)
    return Section(tables=[table], checks=checks, data=columns)


def _figures(took: Sequence[float], lasted: float) -> dict[str, float]:
    return {
        **percentiles(took),
        "longest_ms": max(took) * 1000,
        "calls_in_it": len(took),
        "lasted_ms": lasted * 1000,
    }


@contextmanager
def _stream() -> Generator[str]:
    """The address of the server behind a URL."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "stream_backend.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            port = process.stdout.readline().strip() if process.stdout else ""
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()
