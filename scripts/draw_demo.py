"""Draw `docs/demo.svg`: a real run of `emceepee demo` at a terminal of 80 columns.

Usage: python scripts/draw_demo.py
"""

import os
import pty
import subprocess
import sys
from html import escape
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "demo.svg"

_COLUMNS = 80
_COLOURS = {2: "#7ee787", 6: "#79c0ff"}
_PLAIN, _BACKGROUND, _DIM = "#e6edf3", "#0d1117", "#8b949e"
_SIZE, _LEADING, _ADVANCE, _MARGIN = 14, 19, 8.43, 20


def recorded() -> str:
    """What the demo writes to a terminal."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "COLUMNS": str(_COLUMNS), "TERM": "xterm-256color"}
    environ.pop("NO_COLOR", None)
    with subprocess.Popen(
        [sys.executable, "-m", "emceepee_stdio", "demo"], stdout=theirs, stderr=theirs, env=environ
    ) as process:
        os.close(theirs)
        written = b""
        while chunk := _read(ours):
            written += chunk
    if process.returncode:
        raise SystemExit(f"the demo failed:\n{written.decode()}")
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # the other end was closed
        return b""


def picture(output: str) -> str:
    lines = Text.from_ansi(output.rstrip()).split("\n")
    console = Console(width=_COLUMNS, color_system="truecolor")
    rows: list[str] = []
    for number, line in enumerate(lines):
        spans = [
            f'<tspan fill="{_colour(segment.style)}"{_weight(segment.style)}>'
            f"{escape(segment.text)}</tspan>"
            for segment in line.render(console)
            if segment.text.strip("\n")
        ]
        top = _MARGIN + _SIZE + number * _LEADING
        rows.append(f'<text x="{_MARGIN}" y="{top}" xml:space="preserve">{"".join(spans)}</text>')
    width = round(_COLUMNS * _ADVANCE + 2 * _MARGIN)
    height = len(lines) * _LEADING + 2 * _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
            f'  font-family="ui-monospace, Menlo, Consolas, monospace" font-size="{_SIZE}">',
            "<title>A run of emceepee demo</title>",
            f'<rect width="100%" height="100%" rx="10" fill="{_BACKGROUND}"/>',
            *rows,
            "</svg>",
            "",
        ]
    )


def _colour(style: object) -> str:
    colour = getattr(style, "color", None)
    if getattr(style, "dim", None):
        return _DIM
    return _COLOURS.get(colour.number, _PLAIN) if colour else _PLAIN


def _weight(style: object) -> str:
    return ' font-weight="bold"' if getattr(style, "bold", None) else ""


if __name__ == "__main__":
    PICTURE.write_text(picture(recorded()), encoding="utf-8")
    print(f"wrote {PICTURE.name}")
