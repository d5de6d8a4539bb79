"""Which peers are measured, and how ours compares with the fastest of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.comparison import against_fastest
from bench.peers import installed_peers
from scripts import peers

PEERS = ["slow", "quick"]


def sections() -> dict[str, Any]:
    starts = {"5 backends": 30.0, "30 backends": 5.0, "slow, 5": 300.0, "quick, 1": 60.0}
    p50 = {"direct": 0.01, "ours": 0.2, "slow": 0.4, "quick": 0.1}
    at_16 = {"direct": 90_000.0, "ours": 9_000.0, "slow": 3_000.0, "quick": 2_000.0}
    return {
        "startup": {name: {"median_ms": value} for name, value in starts.items()},
        "calls": {name: {"p50_ms": value} for name, value in p50.items()},
        "load": {"16": {name: {"calls_per_s": value} for name, value in at_16.items()}},
    }


def test_each_figure_is_held_against_the_peer_that_is_best_at_it() -> None:
    compared = against_fastest(sections(), "ours", PEERS)
    assert [comparison.cells() for comparison in compared] == [
        ("start to tools/list", "30.0 ms", "quick 60.0 ms", "2.00 × as fast"),
        ("p50 of a call", "0.200 ms", "quick 0.100 ms", "0.50 × as fast"),
        ("calls/s at 16 in flight", "9,000", "slow 3,000", "3.00 × as fast"),
    ]


def test_what_was_not_measured_is_not_compared() -> None:
    found = {"calls": sections()["calls"]}
    assert [each.what for each in against_fastest(found, "ours", PEERS)] == ["p50 of a call"]
    assert against_fastest(sections(), "ours", []) == []


def test_without_installed_peers_the_command_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "CACHE", tmp_path)
    assert installed_peers() == []
    assert "scripts/peers.py bench" in capsys.readouterr().err


def test_installed_peers_are_measured_without_being_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "is_installed", lambda peer: peer == peers.BENCH)
    found = {peer.name: peer for peer in installed_peers()}
    assert sorted(found) == ["lazy-mcp", "mcp-compressor"]
    server = {"raw": ["backend", "--tools", "3"]}
    for peer in found.values():
        assert "backend" in json.dumps(peer.config(server, home="/home"))
