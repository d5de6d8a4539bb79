"""Runs the official suite and reads what it found."""

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers import suite

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
HANG_S = 100.0  # far more than any scenario takes; a run that hangs fails


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The checks of one scenario that count, by their names, and all that was printed."""

    failed: tuple[str, ...]
    passed: tuple[str, ...]
    output: str

    def __bool__(self) -> bool:
        return bool(self.passed) and not self.failed


def run_client(scenario: str, version: str, command: str, place: Path) -> Verdict:
    """Let the suite start our client against its mock server."""
    options = ["--command", command, "--timeout", "90000"]
    return _run("client", scenario, version, options, place)


def run_server(scenario: str, version: str, url: str, place: Path) -> Verdict:
    """Let the suite's own client try the server at this address."""
    return _run("server", scenario, version, ["--url", url], place)


def scenarios(role: str, version: str) -> list[str]:
    """What the suite has for a client or a server of this version, without signing in."""
    listed = subprocess.run(
        [*suite(), "list", f"--{role}", "--spec-version", version],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[1] for line in listed.splitlines() if line.startswith("  - ")]
    return [name for name in names if not name.startswith("auth/")]


def _run(role: str, scenario: str, version: str, options: list[str], place: Path) -> Verdict:
    done = subprocess.run(
        [*suite(), role, "--scenario", scenario, "--spec-version", version, *options, "-o", place],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    found: list[dict[str, Any]] = []
    for path in place.rglob("checks.json"):
        found += json.loads(path.read_text())
    return Verdict(
        failed=tuple(_line(c) for c in found if c["status"] in ("FAILURE", "WARNING")),
        passed=tuple(c["name"] for c in found if c["status"] == "SUCCESS"),
        output=done.stdout + done.stderr,
    )


def _line(check: dict[str, Any]) -> str:
    return f"{check['name']}: {check.get('errorMessage') or check['description']}"
