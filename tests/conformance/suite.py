"""Runs the official suite and reads what it found."""

import json
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers import suite

LEGACY = "2025-11-25"
MODERN = "2026-07-28"
_FOLDER = re.compile(r"server-(.*)-20\d\d-\d\d-.*")  # scenario and time
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
    options = ["--scenario", scenario, "--command", command, "--timeout", "90000"]
    done = _start("client", options, version, place)
    return _verdict([path.parent for path in place.rglob("checks.json")], done)


def run_servers(version: str, url: str, place: Path) -> dict[str, Verdict]:
    """Let the suite's own client try the server at this address with all it has."""
    done = _start("server", ["--suite", "all", "--url", url], version, place)
    folders = [path.parent for path in place.rglob("checks.json")]
    assert folders, done.stdout + done.stderr
    return {_FOLDER.fullmatch(path.name)[1]: _verdict([path], done) for path in folders}


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


def _start(
    role: str, options: list[str], version: str, place: Path
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*suite(), role, *options, "--spec-version", version, "-o", place],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


def _verdict(folders: Iterable[Path], done: subprocess.CompletedProcess[str]) -> Verdict:
    found: list[dict[str, Any]] = []
    for folder in folders:
        found += json.loads((folder / "checks.json").read_text())
    return Verdict(
        failed=tuple(_line(c) for c in found if c["status"] in ("FAILURE", "WARNING")),
        passed=tuple(c["name"] for c in found if c["status"] == "SUCCESS"),
        output=done.stdout + done.stderr,
    )


def _line(check: dict[str, Any]) -> str:
    return f"{check['name']}: {check.get('errorMessage') or check['description']}"
