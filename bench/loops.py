"""Whether uvloop is faster than asyncio, for the proxy: both in turn, and uvloop twice.

Usage: python -m bench.loops [--rounds N] [--starts N]

Each round measures a short block of calls with every proxy, in random order, and compares them
within the round: what else the machine does falls on all of them. The second uvloop is the control;
a difference that it shows as well is noise. The interval holds 95 % of the resampled medians.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.client import Client
from bench.processes import cpu_seconds, resident_mb
from bench.ways import BACKEND, OURS, Proxy, raw_servers, ready

UVLOOP, ASYNCIO, CONTROL = "uvloop", "asyncio", "uvloop again"

_MAIN = 'sys.argv = ["emceepee", "serve"]; from emceepee_stdio.__main__ import main; main()'
_HIDDEN = 'sys.modules["uvloop"] = None'
_CALLS = {1: 200, 16: 400}
_RESAMPLES = 1_000

Samples = dict[str, dict[str, list[float]]]


def proxies() -> dict[str, Proxy]:
    def started_with(*lines: str) -> Proxy:
        return OURS.started_by([sys.executable, "-c", "; ".join(["import sys", *lines, _MAIN])])

    return {UVLOOP: started_with(), ASYNCIO: started_with(_HIDDEN), CONTROL: started_with()}


def sampled(rounds: int, starts: int) -> Samples:
    """Every figure, by name and by proxy; the places in the lists are the rounds."""
    found: Samples = {}
    ways = proxies()
    with ExitStack() as stack:
        clients = {name: _running(way, stack) for name, way in ways.items()}
        for _ in range(rounds):
            for name in _shuffled(ways):
                _add(found, name, _block(clients[name]))
        for name, client in clients.items():
            _add(found, name, {"memory, MB": resident_mb(client.process.pid)})
    for _ in range(starts):
        for name in _shuffled(ways):
            _add(found, name, _start(ways[name]))
    return found


def _running(way: Proxy, stack: ExitStack) -> Client:
    client: Client = stack.enter_context(way.start({"raw": BACKEND}))
    client.open()
    ready(client, OURS.call(bytes=2))
    client.loaded(OURS.call(bytes=2), 1_000, 4)
    return client


def _shuffled(ways: dict[str, Proxy]) -> list[str]:
    return random.sample(list(ways), len(ways))


def _block(client: Client) -> dict[str, float]:
    figures: dict[str, float] = {}
    for in_flight, count in _CALLS.items():
        before = cpu_seconds(client.process.pid)
        took, all_of_it = client.loaded(OURS.call(bytes=2), count, in_flight)
        spent = cpu_seconds(client.process.pid) - before
        figures[f"p50 at {in_flight}, ms"] = statistics.median(took) * 1000
        figures[f"calls/s at {in_flight}"] = count / all_of_it
        figures[f"cpu of a call at {in_flight}, µs"] = spent / count * 1e6
    return figures


def _start(way: Proxy) -> dict[str, float]:
    with way.start(raw_servers(5)) as client:
        client.open()
        listed = time.perf_counter() - client.started
        ready(client, OURS.call(bytes=2))
        called = time.perf_counter() - client.started
    return {"start to tools/list, ms": listed * 1000, "start to the first call, ms": called * 1000}


def _add(found: Samples, name: str, figures: dict[str, float]) -> None:
    for figure, value in figures.items():
        found.setdefault(figure, {}).setdefault(name, []).append(value)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios within each round, and the interval that it is in."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    again = (statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES))
    resampled = sorted(again)
    low, high = resampled[_RESAMPLES // 40], resampled[-_RESAMPLES // 40]
    return statistics.median(ratios), low, high


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.loops", description=__doc__)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--starts", type=int, default=15)
    given = parser.parse_args()
    print(f"{'':28}  {'uvloop':>10}  {'asyncio':>10}  {'asyncio / uvloop':>20}  {'control':>20}")
    for figure, by_way in sampled(given.rounds, given.starts).items():
        plain = [statistics.median(by_way[name]) for name in (UVLOOP, ASYNCIO)]
        cells = [f"{value:10,.3f}" if value < 1_000 else f"{value:10,.0f}" for value in plain]
        for name in (ASYNCIO, CONTROL):
            middle, low, high = ratio(by_way[name], by_way[UVLOOP])
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})".rjust(20))
        print(f"{figure:28}  {'  '.join(cells)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
