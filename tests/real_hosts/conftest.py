"""A missing host skips its tests with the command that installs it."""

import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import anyio_backend, pytest_runtest_call
from tests.peers import SERVERS
from tests.real_hosts.headless import ClaudeCode, Codex, Headless, OpenCode, QwenCode

__all__ = ["anyio_backend", "pytest_runtest_call"]

LIBRARY = {
    "command": sys.executable,
    "args": [str(SERVERS / "library.py")],
    "description": "Long texts, and notes",
}


@pytest.fixture
def claude_code(tmp_path: Path) -> ClaudeCode:
    return ClaudeCode(tmp_path, {"library": LIBRARY})


@pytest.fixture
def codex(tmp_path: Path) -> Codex:
    return Codex(tmp_path, {"library": LIBRARY})


@pytest.fixture(params=[OpenCode, QwenCode], ids=["opencode", "qwen"])
def cutting_host(request: pytest.FixtureRequest, tmp_path: Path) -> Headless:
    """One that shows little of a long answer, and cannot ask its person for a server."""
    return request.param(tmp_path, {"library": LIBRARY})


@pytest.fixture(params=["claude_code", "codex"])
def host(request: pytest.FixtureRequest) -> Headless:
    return request.getfixturevalue(request.param)
