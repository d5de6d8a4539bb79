"""emceepee signs in at the suite's authorization servers, of every version that it has them for."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.suite import LEGACY, MODERN, run_client
from tests.peers import suite

pytestmark = pytest.mark.slow

OLD = "2025-03-26"
BOTH = (
    "metadata-default",
    "metadata-var1",
    "metadata-var2",
    "metadata-var3",
    "basic-cimd",
    "pre-registration",
    "scope-from-www-authenticate",
    "scope-from-scopes-supported",
    "scope-omitted-when-undefined",
    "scope-step-up",
    "scope-retry-limit",
    "token-endpoint-auth-basic",
    "token-endpoint-auth-post",
    "token-endpoint-auth-none",
)
OF_VERSION = {
    LEGACY: BOTH,
    MODERN: (
        *BOTH,
        "resource-mismatch",
        "offline-access-scope",
        "offline-access-not-supported",
        "authorization-server-migration",
        "iss-supported",
        "iss-not-advertised",
        "iss-supported-missing",
        "iss-wrong-issuer",
        "iss-unexpected",
        "iss-normalized",
        "metadata-issuer-mismatch",
    ),
    OLD: ("2025-03-26-oauth-metadata-backcompat", "2025-03-26-oauth-endpoint-fallback"),
}
RUNS = [
    pytest.param(version, name, id=f"{version}-{name}")
    for version, names in OF_VERSION.items()
    for name in names
]


@pytest.mark.parametrize(("version", "scenario"), RUNS)
def test_every_check_of_the_sign_in_passes(version: str, scenario: str, tmp_path: Path) -> None:
    front = "modern" if version == MODERN else "legacy"
    command = shlex.join([sys.executable, "-m", "tests.conformance.sign_in_client", front])
    verdict = run_client(f"auth/{scenario}", version, command, tmp_path)
    assert verdict, (verdict.failed, verdict.output[-4000:])


@pytest.mark.parametrize("version", OF_VERSION)
def test_no_sign_in_of_the_suite_is_forgotten(version: str) -> None:
    listed = subprocess.run(
        [*suite(), "list", "--client", "--spec-version", version],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    names = [line.split()[1] for line in listed.splitlines() if line.startswith("  - auth/")]
    assert {name.removeprefix("auth/") for name in names} == set(OF_VERSION[version])
