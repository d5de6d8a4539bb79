"""emceepee with the lowest versions of its dependencies that `pyproject.toml` allows."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from scripts import peers
from tests.e2e.front_harness import running_front, session
from tests.peers import peer_python

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.slow


def ran(tmp_path: Path, *arguments: str) -> str:
    python = peer_python(peers.LOWEST)
    done = subprocess.run(
        [python, "-m", "emceepee_stdio", *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--version"], "emceepee "),
        (["--help"], "doctor"),
        (["demo"], "All of this happened"),
        (["doctor"], "Nothing failed."),
        (["config", "add", "web", "https://example.com/mcp"], "Added"),
        (["status", "--json"], "schema_version"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_it_runs(tmp_path: Path, arguments: list[str], said: str) -> None:
    assert said in ran(tmp_path, *arguments)


async def test_the_http_front_serves(tmp_path: Path) -> None:
    python = [str(peer_python(peers.LOWEST)), "-m", "emceepee_stdio"]
    with running_front(tmp_path, python=python) as front:
        async with session(front) as client:
            listed = await client.call("list_servers")
            assert json.loads(listed["content"][0]["text"]) == {"servers": []}
