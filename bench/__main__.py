"""`make bench`: print the figures as tables beside their targets, and write them down as JSON.

Only the ratios within one run mean something: machines are noisy.
"""

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import wire
from bench.burst import burst
from bench.calls import calls, large, load
from bench.client import Failed
from bench.comparison import Comparison, against_fastest
from bench.figures import Check, Section, Table
from bench.floods import floods
from bench.growth import growth
from bench.http_calls import http_calls
from bench.idle_sessions import idle
from bench.memory import memory
from bench.peers import installed_peers
from bench.recording import recording
from bench.startup import startup
from bench.surface import surface
from bench.ways import OURS, Direct, Proxy, Relay, Way

RESULTS = Path(__file__).with_name("results")
ROOT = Path(__file__).resolve().parent.parent


def of_wire(_ways: Sequence[Way], *, quick: bool) -> Section:
    del quick
    columns = wire.run()
    table = Table(title="The wire against a bare pipe", columns=columns, floor="bare pipe")
    return Section(tables=[table], data=columns)


SECTIONS: dict[str, Callable[..., Section]] = {
    "calls": calls,
    "load": load,
    "large": large,
    "burst": burst,
    "floods": floods,
    "startup": startup,
    "memory": memory,
    "surface": surface,
    "idle": idle,
    "growth": growth,
    "wire": of_wire,
    "recording": recording,
    "http": http_calls,
}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "uvloop": importlib.util.find_spec("uvloop") is not None,
        "commit": _commit(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
    }


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [git, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip()

    changed = said("status", "--porcelain", "--", "emceepee_stdio")
    return (said("rev-parse", "--short", "HEAD") or "unknown") + (" changed" if changed else "")


def load_now() -> float:
    return round(os.getloadavg()[0], 2)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: a rough look")
    parser.add_argument(
        "--only", action="append", choices=SECTIONS, metavar="NAME", help=", ".join(SECTIONS)
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "figures.json", metavar="FILE")
    parser.add_argument(
        "--compare",
        action="append",
        default=[],
        metavar="COMMAND",
        help="another stdio proxy, measured beside ours; needs --profile",
    )
    parser.add_argument(
        "--profile",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="how that proxy is configured and called, see bench/profiles",
    )
    parser.add_argument("--no-peers", action="store_true", help="leave out the installed peers")
    given = parser.parse_args()
    if len(given.compare) != len(given.profile):
        parser.error("every --compare needs a --profile")
    return given


def main() -> int:
    given = options()
    try:
        return _measure(given, _others(given))
    except Failed as failed:
        print(f"bench: {failed}", file=sys.stderr)
        return 1


def _others(given: argparse.Namespace) -> list[Proxy]:
    """The peers that were named, and those that are installed."""
    named = [
        Proxy.read(shlex.split(command), profile)
        for command, profile in zip(given.compare, given.profile, strict=True)
    ]
    names = {proxy.name for proxy in named}
    installed = [] if given.no_peers else installed_peers()
    return [*named, *(peer for peer in installed if peer.name not in names)]


def _measure(given: argparse.Namespace, others: Sequence[Proxy]) -> int:
    about = machine()
    relays = [Relay("blocking"), *([Relay("uvloop")] if about["uvloop"] else [])]
    ways: list[Way] = [Direct(), *relays, OURS, *others]
    checks: list[Check] = []
    found: dict[str, Any] = {}
    for name in given.only or SECTIONS:
        before = load_now()
        section = SECTIONS[name](ways, quick=given.quick)
        for table in section.tables:
            print(f"\n{table.title}", *table.lines(), sep="\n", flush=True)
        checks += section.checks
        found[name] = {**section.data, "load_average": [before, load_now()]}
    _print_checks(checks)
    compared = against_fastest(found, OURS.name, [other.name for other in others])
    _print_compared(compared)
    written = {
        "machine": about,
        "quick": given.quick,
        "sections": found,
        "checks": [
            {"what": check.what, "target": check.target, "figure": check.figure, "met": check.met}
            for check in checks
        ],
        "against_fastest_peer": [
            {**asdict(comparison), "times_as_fast": comparison.times_as_fast}
            for comparison in compared
        ],
    }
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")
    loads = [load for section in found.values() for load in section["load_average"]]
    print(f"\n{', '.join(f'{key} {value}' for key, value in about.items())}")
    print(f"load average {min(loads)} to {max(loads)}; written to {given.json.name}")
    return 0


def _print_checks(checks: Sequence[Check]) -> None:
    if not checks:
        return
    rows = [("target", "", "measured", "")]
    rows += [(c.what, c.target, c.figure, "met" if c.met else "NOT MET") for c in checks]
    _print_rows(rows)


def _print_compared(compared: Sequence[Comparison]) -> None:
    if not compared:
        return
    header = ("against the fastest peer", OURS.name, "peer", "")
    _print_rows([header, *(comparison.cells() for comparison in compared)])


def _print_rows(rows: Sequence[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(4)]
    print()
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(f"  {'  '.join(cells)}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
