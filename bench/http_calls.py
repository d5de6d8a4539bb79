"""What a call costs over HTTP: directly, through our front, and through another proxy's.

The ways take turns, block by block, as they do on pipes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.client import Failed
from bench.figures import Check, Figures, Section, Table, at_most, medians, percentiles
from bench.http_client import HttpClient
from bench.http_ways import DirectHttp, HttpWay, OurFront, PeerFront
from bench.peers import http_peer
from bench.processes import cpu_seconds, descendants, resident_mb
from bench.ways import OURS, Proxy, Way

LOADS = (1, 16)
_TARGET_PER_S = 3_000
_SESSION_MB = 40


class _Side:
    """One way with a running process and an open session."""

    def __init__(self, way: HttpWay, stack: ExitStack) -> None:
        self.name = way.name
        self.made = way.call()
        try:
            self.served = way.start(stack)
            self.client = HttpClient(self.served.url, self.served.headers)
            self.client.open()
            self.client.loaded(self.made, 200, 4)
        except Failed as failed:
            raise Failed(f"{way.name}: {failed}") from failed

    def measured(self, count: int, in_flight: int) -> Figures:
        before = cpu_seconds(self.served.pid)
        took, all_of_it = self.client.loaded(self.made, count, in_flight)
        spent = cpu_seconds(self.served.pid) - before
        rate = {"calls_per_s": count / all_of_it, "cpu_us": spent / count * 1e6}
        return {**percentiles(took), **rate}


def http_calls(others: Sequence[Way], *, quick: bool) -> Section:
    wants_peers = any(isinstance(way, Proxy) and way is not OURS for way in others)
    peer = http_peer() if wants_peers else None
    ways: list[HttpWay] = [DirectHttp(), OurFront(), *([PeerFront(peer)] if peer else [])]
    found: dict[int, dict[str, list[Figures]]] = {
        depth: {way.name: [] for way in ways} for depth in LOADS
    }
    with ExitStack() as stack:
        sides = [_Side(way, stack) for way in ways]
        for _ in range(3 if quick else 9):
            for depth in LOADS:
                for side in sides:
                    count = 200 if quick else 500
                    found[depth][side.name].append(side.measured(count, depth))
        session_mb = max(map(resident_mb, _sessions(sides[1].served.pid)))
    columns = {
        depth: {name: medians(blocks) for name, blocks in by_way.items()}
        for depth, by_way in found.items()
    }
    tables = [
        Table(title=f"Over HTTP, {depth} in flight (cpu: of what listens)", columns=by_way)
        for depth, by_way in columns.items()
    ]
    data = {str(depth): by_way for depth, by_way in columns.items()}
    return Section(
        tables=tables,
        checks=[*_checks(columns, peer.name if peer else None), _memory(session_mb)],
        data={**data, "session_mb": session_mb},
    )


def _sessions(front: int) -> list[int]:
    """The processes of its sessions."""
    return [pid for pid in descendants(front) if _is_session(pid)]


def _is_session(pid: int) -> bool:
    words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return b"serve" in words and b"emceepee_stdio" in words


def _memory(session_mb: float) -> Check:
    return at_most("memory of a session over HTTP", session_mb, _SESSION_MB, "MB")


def _checks(columns: dict[int, dict[str, dict[str, float]]], peer: str | None) -> list[Check]:
    rate = columns[16][OURS.name]["calls_per_s"]
    checks = [
        Check(
            what="calls/s over HTTP at 16 in flight",
            target=f"≥ {_TARGET_PER_S:,}",
            figure=f"{rate:,.0f}",
            met=rate >= _TARGET_PER_S,
        )
    ]
    if peer is None:
        return checks
    for depth, by_way in columns.items():
        ours, theirs = (by_way[name]["calls_per_s"] for name in (OURS.name, peer))
        checks.append(
            Check(
                what=f"calls/s over HTTP at {depth} against {peer}",
                target="> 1 ×",
                figure=f"{ours / theirs:.2f} ×",
                met=ours > theirs,
            )
        )
    return checks
