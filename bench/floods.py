"""One server floods, or says JSON that is slow to read, while calls to another go on."""

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.client import Call
from bench.figures import Check, Section, Table, at_most, percentiles
from bench.ways import BACKEND, HERE, OURS, Way, ready

MESSAGE_BYTES = 4 << 20
HOSTILE_BYTES = 1 << 20  # of the value in the place of one member of each message
HOSTILE = [sys.executable, str(HERE.parent / "tests" / "fuzz" / "hostile.py")]
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
        kinds["hostile JSON"] = made
        columns["hostile JSON"] = _hostile(made, rounds=5 if quick else 40)
    alone = columns["quiet"]["p50_ms"]
    checks: list[Check] = [
        at_most(f"longest delay of a call: {kind}", columns[kind]["longest_ms"] - alone, 50, "ms")
        for kind in kinds
    ]
    table = Table(title="One server floods (calls to another server)", columns=columns)
    return Section(tables=[table], checks=checks, data=columns)


def _hostile(made: Call, *, rounds: int) -> dict[str, float]:
    """Calls while all that a server says and answers has a costly value in it, at random."""
    asked = {
        "execute_tool": [{"tool": "attack", "args": {"count": 3}}, {"tool": "odd"}],
        "list_tools": [{}],
        "list_prompts": [{}],
        "list_resources": [{}],
        "get_prompt": [{"name": "odd"}],
        "read_resource": [{"uri": "x://y"}],
        "complete_argument": [{"prompt": "odd", "argument": "a", "value": "x"}],
    }
    took: list[float] = []
    lasted = 0.0
    servers = {"raw": BACKEND, "hostile": [*HOSTILE, "--size", str(HOSTILE_BYTES)]}
    with OURS.start(servers) as client:
        client.open()
        ready(client, made)
        for _ in range(rounds):
            for tool, given in asked.items():
                for more in given:
                    slow = Call({"name": tool, "arguments": {"server": "hostile", **more}})
                    calls, this = client.beside(slow, made, [], may_fail=True)
                    took += calls
                    lasted += this
    return _figures(took, lasted)


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
