"""A server that nobody here wrote, tried by the suite directly, and through our tools alone."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.suite import LEGACY, MODERN, run_servers
from tests.e2e.clients.raw import ROOT, until
from tests.e2e.harness import free_port
from tests.peers import sdk_source

pytestmark = pytest.mark.slow

_TRANSPORT = "it tests the HTTP transport, which is the bridge's own"
_ROUNDS = "the keys and the state of a round stay between emceepee and the server"
_CAPABILITIES = "emceepee declares what it can do itself, whatever its client can"
INAPPLICABLE = {
    LEGACY: {
        "dns-rebinding-protection": _TRANSPORT,
        "ping": _TRANSPORT,
        "server-initialize": _TRANSPORT,
        "server-session-lifecycle": _TRANSPORT,
        "server-sse-multiple-streams": _TRANSPORT,
        "server-sse-polling": _TRANSPORT,
    },
    MODERN: {
        "caching": _TRANSPORT,
        "dns-rebinding-protection": _TRANSPORT,
        "http-custom-header-server-validation": _TRANSPORT,
        "http-header-validation": _TRANSPORT,
        "input-required-result-basic-elicitation": _ROUNDS,
        "input-required-result-basic-list-roots": _ROUNDS,
        "input-required-result-basic-sampling": _ROUNDS,
        "input-required-result-capability-check": _CAPABILITIES,
        "input-required-result-ignore-extra-params": _ROUNDS,
        "input-required-result-missing-input-response": _ROUNDS,
        "input-required-result-multi-round": _ROUNDS,
        "input-required-result-multiple-input-requests": _ROUNDS,
        "input-required-result-non-tool-request": _ROUNDS,
        "input-required-result-request-state": _ROUNDS,
        "input-required-result-result-type": _ROUNDS,
        "input-required-result-tampered-state": _ROUNDS,
        "input-required-result-unsupported-methods": _TRANSPORT,
        "input-required-result-validate-input": _ROUNDS,
        "sep-2164-resource-not-found": "an error of a tool is text, so its `data` is not",
        "server-sse-multiple-streams": _TRANSPORT,
        "server-stateless": _TRANSPORT,
    },
}


@pytest.mark.parametrize("version", [LEGACY, MODERN])
def test_what_passes_directly_passes_through_our_tools(version: str, tmp_path: Path) -> None:
    era = "legacy" if version == LEGACY else "modern"
    with _everything_server(tmp_path) as direct:
        plain = run_servers(version, direct, tmp_path / "direct")
        with _listening("tests.conformance.bridge", direct, era, place=tmp_path) as bridged:
            through_us = run_servers(version, bridged, tmp_path / "bridged")
    applicable = {name for name, verdict in plain.items() if verdict} - INAPPLICABLE[version].keys()
    failed = {name: through_us[name].failed for name in applicable if not through_us[name]}
    assert not failed
    # Whatever cannot apply is there to be left out, and what passes is not left out in silence.
    assert INAPPLICABLE[version].keys() <= plain.keys()
    assert len(applicable) >= 18


@contextmanager
def _everything_server(place: Path) -> Iterator[str]:
    example = sdk_source() / "examples" / "servers" / "everything-server"
    with _listening("mcp_everything_server", place=place, path=example, option="--port") as url:
        yield url


@contextmanager
def _listening(
    module: str, *arguments: str, place: Path, path: Path = ROOT, option: str | None = None
) -> Iterator[str]:
    """A server of this module on a free port, until the test is done with it."""
    port = str(free_port())
    given = [option, port] if option else [port]
    with (
        (place / f"{module}.log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", module, *given, *arguments],
            env={**os.environ, "PYTHONPATH": f"{path}{os.pathsep}{ROOT}"},
            stdout=log,
            stderr=log,
        ) as process,
    ):
        try:
            until(lambda: process.poll() is not None or _is_open(int(port)), f"{module} to listen")
            assert process.poll() is None, (place / f"{module}.log").read_text()
            yield f"http://localhost:{port}/mcp"
        finally:
            process.terminate()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
