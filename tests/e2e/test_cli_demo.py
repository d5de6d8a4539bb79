"""`emceepee demo`, as a newcomer runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from emceepee_stdio.cli import demo


def test_the_demo_comes_true_and_leaves_no_trace(tmp_path: Path) -> None:
    env = {**os.environ, "HOME": str(tmp_path), "TMPDIR": str(tmp_path), "NO_COLOR": "1"}
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


def test_the_demo_notices_what_does_not_come_true() -> None:
    with pytest.raises(demo._Broken, match="espresso"):
        demo._expect(["tea"], "espresso")
    with pytest.raises(demo._Broken):
        demo._fact(["{}", "no JSON"], "proxy_task", "task_id")
