"""The proxy's own memory: idle, with backends, and over very many calls."""

from collections.abc import Sequence

from bench.client import call
from bench.figures import Check, Section, Table, at_most
from bench.processes import resident_mb
from bench.ways import BACKEND, OURS, Way, raw_servers, ready

_STEPS = 10
# Of memory that does not grow, what the allocator may still move.
_FLAT_MB = 1.0


def memory(_ways: Sequence[Way], *, quick: bool) -> Section:
    with_backends = {f"{count} backends": _with(count) for count in (0, 5, 10)}
    calls = 1_000 if quick else 10_000
    course = _course(calls)
    columns = {name: {"memory_mb": found} for name, found in with_backends.items()}
    over = {f"{calls * step:,}": {"memory_mb": course[step]} for step in (1, 5, _STEPS)}
    growth = course[_STEPS] - course[1]
    checks = [
        at_most("memory, idle", with_backends["0 backends"], 35, "MB"),
        at_most("memory, 5 backends", with_backends["5 backends"], 40, "MB"),
        Check(
            what=f"memory over {calls * _STEPS:,} calls",
            target=f"flat (≤ {_FLAT_MB:g} MB)",
            figure=f"{growth:+.2f} MB from call {calls:,} to call {calls * _STEPS:,}",
            met=growth <= _FLAT_MB,
        ),
    ]
    tables = [
        Table(title="Memory of the proxy (VmRSS)", columns=columns),
        Table(title="Memory after so many calls", columns=over),
    ]
    return Section(tables=tables, checks=checks, data={**columns, "course_mb": course})


def _with(count: int) -> float:
    """After each backend has answered a call and the session has shown its servers."""
    servers = raw_servers(count)
    with OURS.start(servers) as client:
        client.open()
        client.once(call("list_servers"))
        for server in servers:
            ready(client, OURS.call(server=server, bytes=2))
        return resident_mb(client.process.pid)


def _course(calls: int) -> list[float]:
    with OURS.start({"raw": BACKEND}) as client:
        client.open()
        ready(client, OURS.call(bytes=2))
        found = [resident_mb(client.process.pid)]
        for _ in range(_STEPS):
            client.loaded(OURS.call(bytes=2), calls, 16)
            found.append(resident_mb(client.process.pid))
        return found
