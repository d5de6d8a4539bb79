import json
import os
import re
import struct
import subprocess
import sys
from io import StringIO

import pytest

from emceepee_stdio.cli.terminal import Terminal

if os.name == "posix":
    import fcntl
    import pty
    import termios

posix = pytest.mark.posix_only("terminals of POSIX")
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(r"\x1b\[(?:\d+;)*3\d")
ROWS = [
    ("[bold]time", "ok", "uvx " + "a-long-argument " * 12 + "q" * 90),
    ("ü\tx", "bad", "first\nsecond"),
]
COMMAND = "emceepee [bold]" + " --a-long-option value" * 8
SCRIPT = """
from emceepee_stdio.cli.terminal import Terminal
terminal = Terminal()
terminal.table(("NAME", "STATE", "HOW"), ROWS, styles={"ok": "green", "bad": "red"})
terminal.rule("A title")
terminal.paragraph("[red]two lines " + "of words " * 20 + "and `a command in backticks`.")
terminal.paragraph("  " + "w" * 90)
terminal.command(COMMAND)
terminal.diff("--- a\\n+++ b\\n@@ -1 +1 @@\\n-[x]\\n+y\\n z\\n")
with terminal.waiting("wait"):
    terminal.line("plain")
"""


class Screen(StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(columns: int = 80, **environ: str) -> str:
    """What the script shows on a real terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SCRIPT.replace("ROWS", repr(ROWS)).replace("COMMAND", repr(COMMAND)),
        ],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environ},
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:
        pass  # Linux ends the reading of a closed terminal with an error
    os.close(ours)
    assert process.wait(timeout=30) == 0
    return shown.decode()


@posix
def test_on_a_terminal_there_are_colours_and_nothing_is_wider_than_it():
    shown = on_a_terminal()
    assert COLOUR.search(shown)
    lines = [ESCAPE.sub("", line) for line in re.split(r"[\r\n]+", shown)]
    assert lines.count(COMMAND) == 1, "a command is whole, and on a line of its own"
    assert max(len(line) for line in lines if line != COMMAND) <= 80
    assert any("`a command in backticks`." in line for line in lines)
    assert "".join(lines).count("w" * 9) >= 9
    assert "[bold]time" in "".join(lines)
    assert "[red]two" in "".join(lines)
    assert "".join(lines).count("q") == 90
    assert "…" not in shown
    assert "plain" in lines


@posix
def test_no_color_is_honoured():
    shown = on_a_terminal(NO_COLOR="1")
    assert not COLOUR.search(shown)
    assert "[bold]time" in shown


def test_in_a_pipe_everything_is_plain_and_stable(capsys: pytest.CaptureFixture[str]):
    terminal = Terminal()
    terminal.table(("NAME", "STATE", "HOW"), ROWS, styles={"ok": "green"})
    terminal.rule("A title")
    terminal.paragraph("two lines " * 20)
    terminal.command(COMMAND)
    terminal.rule()
    terminal.diff("--- a\n+++ b\n")
    with terminal.waiting("wait"):
        terminal.note("beside")
    terminal.data({"ü": 1})
    how = " ".join(ROWS[0][2].split())
    out, err = capsys.readouterr()
    assert out == (
        f"NAME\tSTATE\tHOW\n[bold]time\tok\t{how}\nü x\tbad\tfirst second\n"
        f"A title\n  {'two lines ' * 19}two lines\n    {COMMAND}\n"
        '--- a\n+++ b\n{\n  "ü": 1\n}\n'
    )
    assert err == "beside\n"


def test_a_diff_on_a_terminal_keeps_its_lines(monkeypatch: pytest.MonkeyPatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setattr(sys, "stderr", Screen())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.delenv("NO_COLOR", raising=False)
    long = "+" + "x" * 90
    terminal = Terminal()
    terminal.diff(f"--- a\n+++ b\n@@ -1 +1 @@\n-[a]\n{long}\n")
    with terminal.waiting("wait"):
        terminal.table(("A",), [("b",)])
        terminal.rule("t")
    shown = ESCAPE.sub("", screen.getvalue())
    assert shown.startswith(f"--- a\n+++ b\n@@ -1 +1 @@\n-[a]\n{long}\n")
    assert "\x1b[32m" in screen.getvalue()
    terminal.data({"a": 1})
    assert json.loads(ESCAPE.sub("", screen.getvalue()).removeprefix(shown)) == {"a": 1}


def test_a_name_that_would_steer_the_terminal_is_shown_not_obeyed(
    capsys: pytest.CaptureFixture[str],
):
    Terminal().table(("NAME",), [("b\x1b]0;pwn\x07",)])
    assert capsys.readouterr().out == "NAME\nb\\x1b]0;pwn\\x07\n"
