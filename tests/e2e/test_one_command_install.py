"""From nothing to a registered emceepee: by `uvx` in one command, and by the bundle.

uv is the real one and fetches our dependencies from the index, as on a person's machine.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests import peers

ROOT = Path(__file__).resolve().parent.parent.parent
WAIT_S = 300
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A fresh home, in which only uv is installed."""
    home = tmp_path / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("SSL_", "UV_"))}
    path = os.pathsep.join([str(peers.uv().parent), os.defpath])
    return {**kept, "HOME": str(home), "PATH": path, "UV_PYTHON": sys.executable}


def ran(command: Sequence[object], environ: Mapping[str, str], said: str = "") -> str:
    done = subprocess.run(
        [str(part) for part in command],
        env=environ,
        input=said,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def tools_of(command: Sequence[object], environ: Mapping[str, str]) -> list[str]:
    """The tools that a client which starts this command is shown."""
    messages = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    )
    said = ran(command, environ, "".join(f"{json.dumps(message)}\n" for message in messages))
    answers = [json.loads(line) for line in said.splitlines()]
    (listed,) = (answer["result"]["tools"] for answer in answers if answer.get("id") == 2)
    return [tool["name"] for tool in listed]


def test_a_registration_by_uvx_outlives_its_cache(tmp_path: Path, environ: dict[str, str]) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    home = Path(environ["HOME"])
    (home / ".config" / "Claude").mkdir(parents=True)
    install = ["uvx", "--from", wheel, "emceepee", "install", "claude-desktop"]

    plan = ran([*install, "--dry-run"], environ)
    assert str(home / ".local" / "bin" / "emceepee") in plan
    assert not (home / ".local" / "bin").exists()

    ran(install, environ)
    shutil.rmtree(home / ".cache")
    wheel.unlink()
    file = home / ".config" / "Claude" / "claude_desktop_config.json"
    entry = json.loads(file.read_text())["mcpServers"]["emceepee"]
    assert str(home / ".cache") not in json.dumps(entry)
    assert "execute_tool" in tools_of([entry["command"], *entry["args"]], environ | entry["env"])


def test_the_bundle_starts_as_its_manifest_says(tmp_path: Path, environ: dict[str, str]) -> None:
    bundle = tmp_path / "emceepee.mcpb"
    pack = [sys.executable, str(ROOT / "scripts" / "bundle.py"), str(bundle)]
    subprocess.run(pack, cwd=ROOT, check=True, capture_output=True)
    place = tmp_path / "unpacked"
    with zipfile.ZipFile(bundle) as packed:
        packed.extractall(place)
    manifest = json.loads((place / "manifest.json").read_text())
    start = manifest["server"]["mcp_config"]
    args = [part.replace("${__dirname}", str(place)) for part in start["args"]]

    shown = tools_of([start["command"], *args], environ)

    assert shown == [tool["name"] for tool in manifest["tools"]]
