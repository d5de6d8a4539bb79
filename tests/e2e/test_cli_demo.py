"""`emceepee demo`, as a newcomer runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from emceepee_stdio.cli import demo


def shown(*options: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "emceepee_stdio", "demo", *options],
        capture_output=True,
        text=True,
        env=env,
        stdin=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_comes_true_and_leaves_no_trace(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    own = tmp_path_factory.mktemp("own")
    theirs = {"mcpServers": {"mine": {"command": "touch", "args": [str(own / "started")]}}}
    (own / "config.json").write_text(json.dumps(theirs))
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    env = {**os.environ, **places, "EMCEEPEE_CONFIG": str(own / "config.json"), "NO_COLOR": "1"}
    story = shown(env=env)
    told = " ".join(story.split())
    assert "All of this happened" in told
    for sentence in (
        "ran it: espresso, flat white, filter.",
        "not lost: Roasted for 2 s: dark brown.",
        "The bar asks back, in the middle of the call: With milk? And how many lumps of sugar?",
        "One flat white, with milk, 2 lumps of sugar.",
        "told why: bar exited with code 70. The last lines of its stderr: boiler: pressure lost",
        "just works: espresso, flat white, filter.",
    ):
        assert sentence in told
    assert all(len(line) <= 80 for line in story.splitlines())
    assert "{" not in story, "a newcomer reads sentences"
    assert list(tmp_path.iterdir()) == []
    assert not (own / "started").exists(), "the servers of the person have no part in it"


def test_the_demo_shows_its_calls_whole_to_who_asks(tmp_path: Path) -> None:
    story = shown("--verbose", env={**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1"})
    assert '→ execute_tool(server="bar", tool="spill")' in story
    (line,) = (line for line in story.splitlines() if '"answered"' in line)
    assert json.loads(line)["action"] == "accept"


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
