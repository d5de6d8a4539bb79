"""emceepee as the client of the suite's mock servers: both versions, both fronts, warm and cold."""

import shlex
import sys
from pathlib import Path

import pytest

from tests.conformance.client import SCENARIOS
from tests.conformance.suite import LEGACY, MODERN, run_client, scenarios

pytestmark = pytest.mark.slow

# A server says with which capabilities it works; these want what no request of ours can show.
INAPPLICABLE = {
    "sep-2640-client-no-prefetch": "skills are an extension that emceepee does not speak",
    "sep-2640-client-verify-digest": "skills are an extension that emceepee does not speak",
    "sep-2640-client-verify-frontmatter": "skills are an extension that emceepee does not speak",
    "sep-2640-client-verify-size": "skills are an extension that emceepee does not speak",
}
OF_VERSION = {
    LEGACY: (
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "json-schema-2020-12-preservation",
    ),
    MODERN: (
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ),
}
RUNS = [
    pytest.param(version, name, id=f"{version}-{name}")
    for version, names in OF_VERSION.items()
    for name in names
]


@pytest.mark.parametrize("start", ["warm", "cold"])
@pytest.mark.parametrize("front", ["legacy", "modern"])
@pytest.mark.parametrize(("version", "scenario"), RUNS)
def test_every_check_of_the_scenario_passes(
    version: str, scenario: str, front: str, start: str, tmp_path: Path
) -> None:
    command = shlex.join([sys.executable, "-m", "tests.conformance.client", front, start])
    verdict = run_client(scenario, version, command, tmp_path)
    assert verdict, (verdict.failed, verdict.output[-4000:])


@pytest.mark.parametrize("version", [LEGACY, MODERN])
def test_no_scenario_of_the_suite_is_forgotten(version: str) -> None:
    assert set(scenarios("client", version)) - INAPPLICABLE.keys() == set(OF_VERSION[version])


def test_what_cannot_apply_is_still_in_the_suite_and_not_run() -> None:
    offered = {*scenarios("client", LEGACY), *scenarios("client", MODERN)}
    assert offered - SCENARIOS.keys() <= INAPPLICABLE.keys()
