"""The cost of a call against how much there is: backends, tools, events that wait, tasks at work.

All sizes run at the same time and take turns, block by block.
"""

import statistics
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from bench.client import Client, call
from bench.figures import Check, Figures, Section, Table, flat, medians, percentiles
from bench.processes import at_rest, cpu_seconds
from bench.ways import BACKEND, OURS, Way, raw_servers, ready

_IN_AN_ANSWER = 20


def growth(_ways: Sequence[Way], *, quick: bool) -> Section:
    by_count = {
        "backends": _side_by_side((1, 10, 30), _with_backends, quick=quick),
        "tools": _side_by_side((3, 43, 1_003), _with_tools, quick=quick),
        "tasks at work": _side_by_side((0, 10, 90), _with_tasks, quick=quick),
        "waiting events": _with_events((20, 100, 980), quick=quick),
    }
    tables: list[Table] = []
    checks: list[Check] = []
    for what, columns in by_count.items():
        tables.append(Table(title=f"A call, by number of {what}", columns=columns))
        checks.append(flat(f"cost of a call against {what}", columns, "cpu_us"))
    return Section(tables=tables, checks=checks, data=by_count)


def _with_backends(count: int, stack: ExitStack) -> Client:
    servers = raw_servers(count)
    client = stack.enter_context(OURS.start(servers))
    client.open()
    for server in servers:
        ready(client, OURS.call(server=server, bytes=2))
    return client


def _with_tools(count: int, stack: ExitStack) -> Client:
    """The list is known to the proxy, so each call looks its tool up."""
    client = stack.enter_context(OURS.start(raw_servers(1, "--tools", str(count - 3))))
    client.open()
    ready(client, OURS.call(bytes=2))
    client.once(call("list_tools", detail="names", limit=500))
    return client


def _with_tasks(count: int, stack: ExitStack) -> Client:
    client = stack.enter_context(OURS.start({"raw": BACKEND, "busy": BACKEND}))
    client.open()
    for server in ("raw", "busy"):
        ready(client, OURS.call(server=server, bytes=2))
    never = call("execute_tool", server="busy", tool="never", args={}, timeout_ms=0)
    for _ in range(count):
        client.once(never)
    return client


def _side_by_side(
    counts: Sequence[int], started: Callable[[int, ExitStack], Client], *, quick: bool
) -> dict[str, Figures]:
    made = OURS.call(bytes=2)
    blocks: dict[str, list[Figures]] = {str(count): [] for count in counts}
    with ExitStack() as stack:
        clients = {count: started(count, stack) for count in counts}
        for client in clients.values():
            client.loaded(made, 1_000, 4)
        for _ in range(5 if quick else 15):
            for count, client in clients.items():
                calls = 200 if quick else 600
                before = cpu_seconds(client.process.pid)
                took, _ = client.loaded(made, calls, 1)
                spent = cpu_seconds(client.process.pid) - before
                blocks[str(count)].append({**percentiles(took), "cpu_us": spent / calls * 1e6})
    return {
        count: {**medians(found), "cpu_us": min(block["cpu_us"] for block in found)}
        for count, found in blocks.items()
    }


def _with_events(counts: Sequence[int], *, quick: bool) -> dict[str, Figures]:
    """A call whose answer tells twenty events, of so many that wait."""
    made = OURS.call(bytes=2)
    with OURS.start({"raw": BACKEND, "noisy": BACKEND}) as client:
        client.open()
        for server in ("raw", "noisy"):
            ready(client, OURS.call(server=server, bytes=2))
        _drain(client)
        took: dict[int, list[float]] = {count: [] for count in counts}
        spent: dict[int, list[float]] = {count: [] for count in counts}
        for _ in range(8 if quick else 40):
            for count in counts:
                more = count + _IN_AN_ANSWER  # the answer to the burst tells the first
                client.once(OURS.call("burst", server="noisy", bytes=2, count=more))
                at_rest(client.process.pid)
                before = cpu_seconds(client.process.pid)
                took[count].append(client.once(made))
                spent[count].append(cpu_seconds(client.process.pid) - before)
                _drain(client)
    return {
        str(count): {**percentiles(took[count]), "cpu_us": statistics.median(spent[count]) * 1e6}
        for count in counts
    }


def _drain(client: Client) -> None:
    while b"events_remaining" in client.answered(call("list_timers")):
        pass
