"""Ten thousand notifications from one server, while calls to another go on."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from bench.client import Client, call
from bench.figures import Check, Figures, Section, Table, at_most, percentiles
from bench.processes import cpu_seconds, resident_mb
from bench.ways import BACKEND, OURS, Way, ready

NOTIFICATIONS = 10_000
_DRAIN = call("list_timers")


def burst(_ways: Sequence[Way], *, quick: bool) -> Section:
    rounds: list[dict[str, Figures]] = []
    with OURS.start({"raw": BACKEND, "noisy": BACKEND}) as client:
        client.open()
        for server in ("raw", "noisy"):
            ready(client, OURS.call(server=server, bytes=2))
        for _ in range(2 if quick else 7):
            _drain(client)
            rounds.append(_round(client))
    columns: dict[str, dict[str, float]] = {}
    for kind in ("quiet", "burst"):
        found = [each[kind] for each in rounds]
        columns[kind] = {key: statistics.median(f[key] for f in found) for key in found[0]}
        columns[kind]["longest_of_all_ms"] = max(f["longest_ms"] for f in found)
    memory = [each["burst"]["memory_mb"] for each in rounds]
    delay = columns["burst"]["longest_of_all_ms"] - columns["quiet"]["p50_ms"]
    told = [round(each["burst"]["told"] + each["burst"]["dropped"]) for each in rounds]
    grown = memory[-1] - memory[0]
    checks = [
        at_most("longest delay of a call in a burst", delay, 50, "ms"),
        Check(
            what="notifications told or counted as dropped",
            target=f"{NOTIFICATIONS:,} of each burst",
            figure=" ".join(f"{count:,}" for count in told),
            met=all(count == NOTIFICATIONS for count in told),
        ),
        at_most(f"growth of memory from burst 1 to burst {len(memory)}", grown, 2, "MB"),
    ]
    title = f"{NOTIFICATIONS:,} notifications at once (calls to another server)"
    return Section(
        tables=[Table(title=title, columns=columns)],
        checks=checks,
        data={**columns, "memory_mb": memory},
    )


def _round(client: Client) -> dict[str, Figures]:
    pid = client.process.pid
    made = OURS.call(bytes=2)
    quiet = [client.once(made) for _ in range(300)]
    before = resident_mb(pid)
    lines: list[bytes] = []
    spent = cpu_seconds(pid)
    took, between = client.beside(
        OURS.call("burst", server="noisy", bytes=2, count=NOTIFICATIONS), made, lines
    )
    spent = cpu_seconds(pid) - spent
    after = resident_mb(pid)
    lines += _drain(client)
    told, dropped = _counted(lines)
    return {
        "quiet": {**percentiles(quiet), "longest_ms": max(quiet) * 1000, "memory_mb": before},
        "burst": {
            **percentiles(took),
            "longest_ms": max(took) * 1000,
            "memory_mb": after,
            "burst_took_ms": between * 1000,
            "calls_in_it": len(took),
            "cpu_per_notification_us": spent / NOTIFICATIONS * 1e6,
            "told": told,
            "dropped": dropped,
        },
    }


def _drain(client: Client) -> list[bytes]:
    """The answers that tell all the events that wait."""
    lines: list[bytes] = []
    while True:
        line = client.answered(_DRAIN)
        lines.append(line)
        if b"events_remaining" not in line:
            return lines


def _counted(lines: Sequence[bytes]) -> tuple[int, int]:
    """How many notifications were told, and how many are said to have been dropped."""
    told = dropped = 0
    for line in lines:
        for block in json.loads(line)["result"]["content"]:
            text: str = block["text"]
            if not text.startswith('{"events_since_last_response"'):
                continue
            events: list[dict[str, Any]] = json.loads(text)["events_since_last_response"]
            for event in events:
                if event["type"] == "notification":
                    told += event.get("count", 1)
                elif event["type"] == "events_dropped":
                    dropped += event["data"]["count"]
    return told, dropped
