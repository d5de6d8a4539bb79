"""What a call costs, way by way: one at a time, many at a time, and with large results.

The ways take turns, block by block, so that a busy moment of the machine falls on all of them.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.client import Call, Client, Failed
from bench.figures import Check, Figures, Section, Table, at_most, medians, percentiles
from bench.processes import cpu_seconds, tree_mb
from bench.ways import BACKEND, OURS, Proxy, Way, ready

LOADS = (1, 2, 4, 8, 16, 32, 64)
LARGE = {"1 MB": 1_000_000, "8 MB": 8_000_000}  # of what one line to a client may hold

Blocks = dict[str, list[Figures]]


class _Side:
    """One way with a running process."""

    def __init__(self, way: Way, stack: ExitStack) -> None:
        self.name = way.name
        self.way = way
        self.client: Client = stack.enter_context(way.start({"raw": BACKEND}))
        try:
            self.listed = len(self.client.open())
            ready(self.client, way.call(bytes=2))
            self.client.loaded(way.call(bytes=2), 500, 4)
        except Failed as failed:
            raise Failed(f"{way.name}: {failed}") from failed


def _block(side: _Side, count: int, depth: int) -> Figures:
    """So many calls, so many at a time."""
    before = cpu_seconds(side.client.process.pid)
    took, all_of_it = side.client.loaded(side.way.call(bytes=2), count, depth)
    spent = cpu_seconds(side.client.process.pid) - before
    figures = percentiles(took)
    figures["calls_per_s"] = count / all_of_it
    figures["cpu_us"] = spent / count * 1e6
    return figures


def _column(blocks: Sequence[Figures]) -> Figures:
    """The medians, but the CPU of the least disturbed block."""
    return {**medians(blocks), "cpu_us": min(block["cpu_us"] for block in blocks)}


def calls(ways: Sequence[Way], *, quick: bool) -> Section:
    """One call at a time."""
    blocks: Blocks = {way.name: [] for way in ways}
    with ExitStack() as stack:
        sides = [_Side(way, stack) for way in ways]
        for _ in range(5 if quick else 21):
            for side in sides:
                blocks[side.name].append(_block(side, 300 if quick else 1_000, 1))
        columns = {name: _column(found) for name, found in blocks.items()}
        for side in sides:
            if isinstance(side.way, Proxy):
                columns[side.name]["memory_mb"] = tree_mb(side.client.process.pid)
                columns[side.name]["tools/list_bytes"] = side.listed
    ratio = columns[OURS.name]["p50_ms"] / columns["direct"]["p50_ms"]
    checks = [at_most("p50 of a call against direct", ratio, 3.5, "×")]
    title = "One call at a time (cpu: of the first process on the way)"
    return Section(
        tables=[Table(title=title, columns=columns, floor="direct")], checks=checks, data=columns
    )


def load(ways: Sequence[Way], *, quick: bool) -> Section:
    """Calls in flight from 1 to 64."""
    loads = (1, 16, 64) if quick else LOADS
    found: dict[int, Blocks] = {depth: {way.name: [] for way in ways} for depth in loads}
    with ExitStack() as stack:
        sides = [_Side(way, stack) for way in ways]
        for _ in range(3 if quick else 9):
            for depth in loads:
                for side in sides:
                    count = 600 if quick else 1_000 + 20 * depth
                    found[depth][side.name].append(_block(side, count, depth))
    columns = {
        depth: {name: _column(blocks) for name, blocks in by_way.items()}
        for depth, by_way in found.items()
    }
    tables = [
        Table(title=f"{depth} in flight", columns=by_way, floor="direct")
        for depth, by_way in columns.items()
    ]
    rate = columns[16][OURS.name]["calls_per_s"]
    check = Check(
        what="calls/s at 16 in flight",
        target="≥ 10,000",
        figure=f"{rate:,.0f}",
        met=rate >= 10_000,
    )
    data = {str(depth): by_way for depth, by_way in columns.items()}
    return Section(tables=tables, checks=[check], data=data)


def large(ways: Sequence[Way], *, quick: bool) -> Section:
    """Results that fill the pipe many times over."""
    blocks: Blocks = {way.name: [] for way in ways}
    with ExitStack() as stack:
        sides = [_Side(way, stack) for way in ways]
        for _ in range(2 if quick else 9):
            for side in sides:
                figures: dict[str, float] = {}
                for name, size in LARGE.items():
                    made = side.way.call(bytes=size)
                    took = sorted(_checked(side.client, made, size) for _ in range(3))
                    figures[f"{name}_ms"] = took[1]
                blocks[side.name].append(figures)
    columns = {name: medians(found) for name, found in blocks.items()}
    ratio = columns[OURS.name]["8 MB_ms"] / columns["direct"]["8 MB_ms"]
    return Section(
        tables=[Table(title="Large results", columns=columns, floor="direct")],
        checks=[at_most("8 MB result against direct", ratio, 3.5, "×")],
        data=columns,
    )


def _checked(client: Client, made: Call, size: int) -> float:
    start = time.perf_counter()
    line = client.answered(made)
    took = (time.perf_counter() - start) * 1000
    if len(line) < size:
        raise RuntimeError(f"a result of {size} bytes came as {len(line)}")
    return took
