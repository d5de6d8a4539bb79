"""From the start of the process to the answer of tools/list, whatever is configured."""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.client import Client, Failed
from bench.figures import Section, Table, at_most
from bench.ways import BACKEND, OURS, Direct, Proxy, Way, raw_servers

_SLOW = [*BACKEND, "--delay", "600"]
_EXPOSING = OURS.with_fields(expose=True)
_GREETED_SERVERS = raw_servers(30, "--tools", "7")  # ten tools each, with the three that run
_GREETED_TOOLS = 300
_LEARN_S = 120.0  # far more than 30 servers take to be known


def startup(ways: Sequence[Way], *, quick: bool) -> Section:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        _learn(home)
        return _startup(ways, home, quick=quick)


def _startup(ways: Sequence[Way], greeted: str, *, quick: bool) -> Section:
    slow = {**raw_servers(5), "raw1": _SLOW, "raw2": _SLOW}
    kinds: dict[str, Callable[[], float]] = {
        "python alone": _alone,
        "direct": partial(_started, Direct(), raw_servers(1)),
        "0 backends": partial(_started, OURS, raw_servers(0)),
        "5 backends": partial(_started, OURS, raw_servers(5)),
        "30 backends": partial(_started, OURS, raw_servers(30)),
        "30, 300 tools exposed": partial(_greeted, greeted),
        "5, two never answer": partial(_started, OURS, slow),
    }
    for way in ways:
        if isinstance(way, Proxy) and way is not OURS:
            count = 5 if way.takes_many else 1
            kinds[f"{way.name}, {count}"] = partial(_started, way, raw_servers(count))
    starts: dict[str, list[float]] = {name: [] for name in kinds}
    for number in range(4 if quick else 19):
        # Each time in another order: what one leaves to be cleaned up falls on the next.
        names = list(kinds)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            took = kinds[name]()
            if number:  # the first start fills the caches of the disk
                starts[name].append(took)
    columns = {
        name: {"median_ms": statistics.median(took), "longest_ms": max(took)}
        for name, took in starts.items()
    }
    five = columns["5 backends"]["median_ms"]
    spread = columns["30 backends"]["median_ms"] / columns["0 backends"]["median_ms"]
    exposed = columns["30, 300 tools exposed"]["median_ms"] / columns["30 backends"]["median_ms"]
    slowed = columns["5, two never answer"]["median_ms"] / five
    checks = [
        at_most("start to tools/list, 5 backends", five / 1000, 0.15, "s"),
        at_most("start with 30 backends against none", spread, 1.25, "×"),
        at_most("start with a greeting of 30 servers and 300 tools", exposed, 1.25, "×"),
        at_most("start with backends that never answer", slowed, 1.25, "×"),
    ]
    return Section(
        tables=[Table(title="Start to tools/list", columns=columns)], checks=checks, data=columns
    )


def _started(way: Way, servers: dict[str, list[str]]) -> float:
    with way.start(servers) as client:
        client.open()
        return (time.perf_counter() - client.started) * 1000


def _learn(home: str) -> None:
    """Let real runs leave the greeting: the next one lists all that is exposed at once."""
    end = time.monotonic() + _LEARN_S
    while time.monotonic() < end:
        with _EXPOSING.start_in(home, _GREETED_SERVERS) as client:
            if _exposed(client.open()) == _GREETED_TOOLS:
                return
            while time.monotonic() < end and _exposed(_listed(client)) < _GREETED_TOOLS:
                time.sleep(0.1)
    raise Failed(f"no greeting with {_GREETED_TOOLS} tools came to be")


def _greeted(home: str) -> float:
    with _EXPOSING.start_in(home, _GREETED_SERVERS) as client:
        answer = client.open()
        took = (time.perf_counter() - client.started) * 1000
    if _exposed(answer) != _GREETED_TOOLS:
        raise Failed("the greeting was not taken")
    return took


def _listed(client: Client) -> bytes:
    return client.ask("tools/list", {})


def _exposed(answer: bytes) -> int:
    return sum("__" in tool["name"] for tool in json.loads(answer)["result"]["tools"])


def _alone() -> float:
    """What the interpreter itself takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return (time.perf_counter() - begin) * 1000
