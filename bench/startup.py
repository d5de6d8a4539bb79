"""From the start of the process to the answer of tools/list, whatever is configured."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.figures import Section, Table, at_most
from bench.ways import BACKEND, OURS, Direct, Proxy, Way, raw_servers

__all__ = ["startup"]

_SLOW = [*BACKEND, "--delay", "600"]


def startup(ways: Sequence[Way], *, quick: bool) -> Section:
    slow = {**raw_servers(5), "raw1": _SLOW, "raw2": _SLOW}
    kinds: dict[str, Callable[[], float]] = {
        "python alone": _alone,
        "direct": partial(_started, Direct(), raw_servers(1)),
        "0 backends": partial(_started, OURS, raw_servers(0)),
        "5 backends": partial(_started, OURS, raw_servers(5)),
        "30 backends": partial(_started, OURS, raw_servers(30)),
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
    slowed = columns["5, two never answer"]["median_ms"] / five
    checks = [
        at_most("start to tools/list, 5 backends", five / 1000, 0.15, "s"),
        at_most("start with 30 backends against none", spread, 1.25, "×"),
        at_most("start with backends that never answer", slowed, 1.25, "×"),
    ]
    return Section(
        tables=[Table(title="Start to tools/list", columns=columns)], checks=checks, data=columns
    )


def _started(way: Way, servers: dict[str, list[str]]) -> float:
    with way.start(servers) as client:
        client.open()
        return (time.perf_counter() - client.started) * 1000


def _alone() -> float:
    """What the interpreter itself takes."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", ""], check=True)
    return (time.perf_counter() - begin) * 1000
