"""The command line in a home of its own: in this process, where it is quick, or as a real one."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from emceepee_stdio.cli import app

__all__ = ["Cli", "Ran"]

VARIABLES = (
    "APPDATA",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "EMCEEPEE_CONFIG",
    "GEMINI_CLI_HOME",
    "LOCALAPPDATA",
    "NO_COLOR",
    "XDG_CONFIG_HOME",
)


class Ran(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    def said(self, *words: str) -> "Ran":
        """The same, if it failed as a failure should: with words, a remedy and no traceback."""
        assert self.code != 0
        assert "Traceback" not in self.err
        for word in words:
            assert word in " ".join(self.err.split()), self.err
        return self

    def well(self) -> "Ran":
        assert self.code == 0, self.err
        return self


@dataclass
class Cli:
    """Runs commands with a home that holds nothing yet."""

    home: Path
    monkeypatch: pytest.MonkeyPatch
    capture: pytest.CaptureFixture[str]

    def __post_init__(self) -> None:
        for name in VARIABLES:
            self.monkeypatch.delenv(name, raising=False)
        self.monkeypatch.setenv("HOME", str(self.home))
        self.monkeypatch.setenv("PATH", "/usr/bin:/bin:/usr/bin:relative:")
        self.monkeypatch.setattr(sys, "platform", "linux")

    @property
    def config(self) -> Path:
        return self.home / ".config" / "emceepee" / "config.json"

    def run(self, *arguments: str, script: Path | None = None) -> Ran:
        script = script or Path(app.__file__).parents[1] / "__main__.py"
        self.monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        self.capture.readouterr()
        try:
            code = app.run()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        return Ran(code, *self.capture.readouterr())

    def process(self, *arguments: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-m", "emceepee_stdio", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(os.environ),
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def files(self) -> dict[str, bytes]:
        """Every file in the home."""
        found = (path for path in self.home.rglob("*") if path.is_file())
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}
