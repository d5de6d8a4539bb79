"""The lives of what a client started: each proxy and each server once, in order, and then gone."""

import json
from pathlib import Path

from tests.e2e.clients.raw import until
from tests.e2e.harness import alive, json_lines

# Writes down the pid of every proxy that a client starts; the file comes first.
COUNTED = ("sh", "-c", 'echo $$ >> "$1"; shift; exec "$@"', "sh")


def check_lives(tmp_path: Path, *servers: str, proxies: int = 1) -> None:
    """One proxy did the work and ended in order; each server was started once and is gone."""
    (journal,) = (tmp_path / "journal").glob("emceepee-*.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines[-1]["event"] == "registry_shutdown_complete"
    for server in servers:
        assert len(_started(tmp_path, server)) == 1
    check_gone(tmp_path, *servers, proxies=proxies)


def check_gone(tmp_path: Path, *servers: str, proxies: int = 1) -> None:
    """Nothing is left, whether or not a server was started in the short life of the proxy."""
    pids = [int(word) for word in (tmp_path / "proxies").read_text().split()]
    assert len(pids) == proxies
    for server in servers:
        pids += _started(tmp_path, server)
    until(lambda: not any(alive(pid) for pid in pids), "the end of the proxy and its servers")


def _started(tmp_path: Path, server: str) -> list[int]:
    received = tmp_path / f"received-{server}.jsonl"
    return [line["pid"] for line in json_lines(received) if line["event"] == "start"]
