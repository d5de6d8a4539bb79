"""`emceepee demo`, as a newcomer runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from emceepee_stdio.cli import demo


def test_the_demo_comes_true_and_leaves_no_trace(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("own")
    theirs = {"mcpServers": {"mine": {"command": "touch", "args": [str(own / "started")]}}}
    (own / "config.json").write_text(json.dumps(theirs))
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env = {**os.environ, **places, "EMCEEPEE_CONFIG": str(own / "config.json"), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "emceepee_stdio", "demo"],
        capture_output=True,
        text=True,
        env=env,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Everything came true" in done.stdout
    assert all(f"\n{step}. " in "\n" + done.stdout for step in range(1, 7))
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert list(tmp_path.iterdir()) == []
    assert not (own / "started").exists(), "the servers of the person have no part in it"


def test_the_demo_notices_what_does_not_come_true() -> None:
    with pytest.raises(demo._Broken, match="espresso"):
        demo._expect(["tea"], "espresso")
    with pytest.raises(demo._Broken):
        demo._fact(["{}", "no JSON"], "proxy_task", "task_id")


def test_a_demo_that_does_not_come_true_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_SERVER", Path("/nowhere/server.py"))
    with pytest.raises(typer.Exit) as ended:
        demo.demo()
    assert ended.value.exit_code == 1


def test_a_demo_whose_proxy_ends_badly_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = demo._leave

    def kill(process: "subprocess.Popen[bytes]") -> None:
        process.kill()
        leave(process)

    monkeypatch.setattr(demo, "_leave", kill)
    with pytest.raises(typer.Exit) as ended:
        demo.demo()
    assert ended.value.exit_code == 1
