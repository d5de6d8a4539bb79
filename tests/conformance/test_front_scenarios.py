"""The official suite against the HTTP front: its transport, its sessions, and what is its own."""

from pathlib import Path

import pytest

from tests.conformance.suite import LEGACY, MODERN, run_servers
from tests.e2e.front_harness import running_front

pytestmark = pytest.mark.slow

OLDER = "2025-06-18"
_HANDSHAKE = {
    "ping",
    "resources-list",
    "server-initialize",
    "server-session-lifecycle",
    "tools-list",
}
REQUIRED = {
    OLDER: _HANDSHAKE,
    LEGACY: _HANDSHAKE | {"dns-rebinding-protection", "server-sse-multiple-streams"},
    MODERN: {
        "caching",
        "dns-rebinding-protection",
        "http-header-validation",
        "input-required-result-unsupported-methods",
        "resources-list",
        "sep-2164-resource-not-found",
        "server-sse-multiple-streams",
        "server-stateless",
        "tools-list",
    },
}
# Checks that want something of the server which is not for a proxy to have.
EXCUSED = (
    "Not testable: server does not list the diagnostic tool",
    "Mutated the",  # by a diagnostic tool again: nothing was changed
)


@pytest.mark.parametrize("version", REQUIRED)
def test_the_front_passes_what_is_about_a_transport(version: str, tmp_path: Path) -> None:
    with running_front(tmp_path, "--no-token", "--max-sessions", "64") as front:
        found = run_servers(version, front.url, tmp_path / "suite")
        front.look()
    failed = {
        name: [line for line in found[name].failed if not any(excuse in line for excuse in EXCUSED)]
        for name in REQUIRED[version]
    }
    assert {name: lines for name, lines in failed.items() if lines} == {}
    assert all(found[name].passed for name in REQUIRED[version])
