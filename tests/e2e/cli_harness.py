"""The command line in a home of its own: in this process, where it is quick, or as a real one.

A `Home` runs real commands only, also at a terminal (`Screen`), and knows what they leave behind.
"""

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import pytest

from emceepee_stdio.cli import command_line
from emceepee_stdio.config.edit import edit_lock_file
from tests.e2e.client import Setting
from tests.e2e.clients.raw import until
from tests.e2e.harness import argv_of
from tests.fork_server import own_the_terminal

WAIT_S = 60.0
EMCEEPEE = (sys.executable, "-m", "emceepee_stdio")
# What a terminal obeys: colours, movements, titles.
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")

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
        script = script or Path(command_line.__file__).parents[1] / "__main__.py"
        self.monkeypatch.setattr(sys, "argv", [str(script), *arguments])
        self.capture.readouterr()
        try:
            code = command_line.run()
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
        """Every file in the home but the lock of those who change files, which is empty."""
        lock = edit_lock_file(os.environ)
        found = (path for path in self.home.rglob("*") if path.is_file() and path != lock)
        return {str(path.relative_to(self.home)): path.read_bytes() for path in found}


@dataclass
class Home:
    """Real commands in a home of their own, with a configuration that the test writes."""

    path: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.path / "config.json"

    def write(self, servers: Mapping[str, Any], **ours: Any) -> None:
        """Made anew and put in its place, as an editor does."""
        self.path.mkdir(parents=True, exist_ok=True)
        whole = json.dumps({"mcpServers": dict(servers), "emceepee": ours})
        made = self.path / "config.json.new"
        made.write_text(whole)
        made.replace(self.config)

    def environ(self, **more: str) -> dict[str, str]:
        """What a shell would give; nothing of the machine on which the test runs but its PATH."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.path),
            "EMCEEPEE_CONFIG": str(self.config),
            "EMCEEPEE_LOG_DIR": str(self.path / "logs"),
            "EMCEEPEE_PAGE": "off",
            **self.env,
            **more,
        }

    def start(self, *arguments: str, **more: str) -> "subprocess.Popen[bytes]":
        self.path.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [*EMCEEPEE, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.path,
            env=self.environ(**more),
        )

    async def run(self, *arguments: str, stdin: bytes = b"", **more: str) -> Ran:
        """A command in a pipe, to its end; nothing of it is left."""
        self.path.mkdir(parents=True, exist_ok=True)
        # Not by anyio, which fails if the command ends before it has read its input.
        run = partial(
            subprocess.run,
            [*EMCEEPEE, *arguments],
            input=stdin,
            capture_output=True,
            cwd=self.path,
            env=self.environ(**more),
            timeout=WAIT_S,
            check=False,
        )
        done: subprocess.CompletedProcess[bytes] = await anyio.to_thread.run_sync(run)
        assert await anyio.to_thread.run_sync(self.left_over) == []
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    def run_together(self, *commands: Sequence[str]) -> list[Ran]:
        """Several at the same time."""
        started = [self.start(*words) for words in commands]
        said = [process.communicate(timeout=WAIT_S) for process in started]
        codes = [process.returncode for process in started]
        assert self.left_over() == []
        texts = [(out.decode(), err.decode()) for out, err in said]
        return [Ran(code, out, err) for code, (out, err) in zip(codes, texts, strict=True)]

    def left_over(self) -> list[int]:
        """Whoever lives here; the browser of the person is nobody's to end, and is waited for."""
        if browser := self.env.get("BROWSER"):
            until(lambda: not self._running(browser), "the end of the browser")
        return Setting(home=self.path).left_over()

    def _running(self, command: str) -> list[int]:
        words = os.fsencode("\0".join(shlex.split(command)))
        return [pid for pid in Setting(home=self.path).left_over() if words in argv_of(pid)]

    @contextmanager
    def screen(
        self, *arguments: str, columns: int = 80, color: bool = True, **more: str
    ) -> Iterator["Screen"]:
        """A command at a terminal; nothing of it is left."""
        self.path.mkdir(parents=True, exist_ok=True)
        colours = {"TERM": "xterm-256color"} | ({} if color else {"NO_COLOR": "1"})
        made = Screen(arguments, self.environ(**colours, **more), self.path, columns)
        try:
            yield made
        finally:
            made.clear_away()
        assert self.left_over() == []


class Screen:
    """A terminal with one command on it. What it shows is kept, escape codes and all."""

    def __init__(
        self, arguments: tuple[str, ...], env: Mapping[str, str], cwd: Path, columns: int
    ) -> None:
        self.said = b""
        self.over = False
        self.columns = columns
        self._fd, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.process = subprocess.Popen(
            [*EMCEEPEE, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
            preexec_fn=own_the_terminal,  # noqa: PLW1509 - it only calls the kernel
        )
        os.close(theirs)

    @property
    def raw(self) -> str:
        return self.said.decode(errors="replace").replace("\r\n", "\n")

    @property
    def text(self) -> str:
        """What a person reads: without what the terminal obeys."""
        return ESCAPES.sub("", self.raw)

    @property
    def words(self) -> str:
        """The text on one line, wherever the terminal broke it."""
        return " ".join(re.sub("[│╭╮╰╯─]", " ", self.text).split())

    def fits(self) -> bool:
        """Whether no table and no box is wider than the terminal; sentences it breaks itself."""
        drawn = [line for line in self.text.split("\n") if line.startswith((*" ─│╭╰",))]
        return max(map(len, drawn), default=0) <= self.columns

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert not self.over, f"it ended before {what}: {self.text}"
            left = deadline - time.monotonic()
            assert left > 0, f"waited in vain for {what}: {self.text}"
            self._read(min(left, 0.1))

    def until_said(self, words: str) -> None:
        self.until(lambda: words in self.words, repr(words))

    def until_said_times(self, words: str, count: int) -> None:
        self.until(lambda: self.words.count(words) >= count, f"{words!r} for the {count}th time")

    def hammer(self, key: str) -> int:
        """Press a key again and again until it ends, as the impatient do; its exit code."""

        def is_over() -> bool:
            with suppress(OSError):
                self.type("" if self.over else key)
            return self.over

        self.until(is_over, "its end")
        return self.process.wait(WAIT_S)

    def wait(self) -> int:
        self.until(lambda: self.over, "its end")
        return self.process.wait(WAIT_S)

    def clear_away(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        os.close(self._fd)

    def _read(self, seconds: float) -> None:
        if not select.select([self._fd], [], [], seconds)[0]:
            return
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # how a terminal says that nobody has it open any more
            data = b""
        self.over = not data
        self.said += data
