"""All that people read: results on stdout, everything else on stderr.

Nothing else in the package writes to either while a command runs. Colour, boxes and spinners are
for a terminal only; what goes into a pipe is plain, and looks the same tomorrow.
"""

import json
import shutil
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TextIO

from emceepee_stdio.visible_text import harmless, harmless_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status
    from rich.text import Text

__all__ = ["Terminal"]

_MARK = "x"  # stands where text goes between two codes
_DIFF_STYLES = {"+++": "bold", "---": "bold", "@@": "cyan", "+": "green", "-": "red"}


class Terminal:
    """The two streams of a command."""

    def __init__(self) -> None:
        self._status: Status | None = None

    @property
    def columns(self) -> int | None:
        """How wide the result may be; None in a pipe, where nothing is cut."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else None

    def line(self, text: str = "", *, style: str = "") -> None:
        """One line of the result; a style is for a terminal only."""
        if style and sys.stdout.isatty():
            from rich.text import Text  # noqa: PLC0415 - costs start-up, only for a terminal

            _console(sys.stdout).print(Text(text, style), soft_wrap=True)
        else:
            sys.stdout.write(f"{text}\n")

    def spans(self, spans: Sequence[tuple[str, str]]) -> None:
        """One line of the result in parts, each with its style; only for a terminal."""
        _console(sys.stdout).print(_text(spans), soft_wrap=True)

    @contextmanager
    def live(self) -> Generator[Callable[[Sequence[Sequence[tuple[str, str]]]], None]]:
        """Lines that are drawn again and again in the same place; only for a terminal."""
        from rich.live import Live  # noqa: PLC0415 - costs start-up, only for a terminal
        from rich.text import Text  # noqa: PLC0415 - see above

        console = _console(sys.stdout)
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:

            def draw(lines: Sequence[Sequence[tuple[str, str]]]) -> None:
                text = Text("\n", no_wrap=True, overflow="crop").join(map(_text, lines))
                live.update(text, refresh=True)

            yield draw

    @property
    def is_utf8(self) -> bool:
        return sys.stdout.encoding.lower().replace("-", "") == "utf8"

    def flush(self) -> None:
        """Let whoever reads the result have it now."""
        sys.stdout.flush()

    def codes(self, style: str) -> tuple[str, str]:
        """What switches a style on and off at this terminal; nothing where there are no colours."""
        if not sys.stdout.isatty():
            return "", ""
        from rich.text import Text  # noqa: PLC0415 - costs start-up, only for a terminal

        console = _console(sys.stdout)
        if console.no_color or console.color_system is None:
            return "", ""
        with console.capture() as captured:
            console.print(Text(_MARK, style), end="")
        before, _, after = captured.get().partition(_MARK)
        return before, after

    def data(self, value: object) -> None:
        """A result for programs: JSON, indented."""
        self.line(harmless_json(json.dumps(value, indent=2, ensure_ascii=False)))

    def said(self, text: str) -> None:
        """What somebody else worded: to the letter in a pipe, harmless on a terminal."""
        self.line(harmless(text) if sys.stdout.isatty() else text)

    def note(self, text: str) -> None:
        """A word beside the result: a warning, an error, a sign of life."""
        self._settle()
        sys.stderr.write(f"{harmless(text)}\n")

    def ask(self, question: str) -> None:
        """A question to the person, who answers on the same line."""
        self._settle()
        sys.stderr.write(f"{harmless(question)} ")
        sys.stderr.flush()

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        styles: Mapping[str, str] | None = None,
    ) -> None:
        """Rows under headings; in a pipe one line for each, its cells parted by tabs.

        `styles` colours those cells that are one of its words.
        """
        rows = [[harmless(cell) for cell in row] for row in rows]
        if not sys.stdout.isatty():
            for row in (columns, *rows):
                self.line("\t".join(" ".join(cell.split()) for cell in row))
            return
        from rich import box  # noqa: PLC0415 - costs start-up, only for a terminal
        from rich.table import Table  # noqa: PLC0415 - see above
        from rich.text import Text  # noqa: PLC0415 - see above

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell, (styles or {}).get(cell, "")) for cell in row))
        _console(sys.stdout).print(table)

    def panel(self, title: str, text: str) -> None:
        """A few lines that belong together; in a pipe, the title and the lines under it."""
        title, text = harmless(title), harmless(text)
        if not sys.stdout.isatty():
            self.line(title)
            for line in text.split("\n"):
                self.line(f"  {line}".rstrip())
            return
        from rich.panel import Panel  # noqa: PLC0415 - costs start-up, only for a terminal
        from rich.text import Text  # noqa: PLC0415 - see above

        panel = Panel(Text(text), title=Text(title), title_align="left")
        _console(sys.stdout).print(panel)

    def diff(self, text: str) -> None:
        """A unified diff: to the letter in a pipe, harmless and coloured on a terminal."""
        if not sys.stdout.isatty():
            sys.stdout.write(text)
            return
        from rich.text import Text  # noqa: PLC0415 - costs start-up, only for a terminal

        console = _console(sys.stdout)
        for line in harmless(text).removesuffix("\n").split("\n"):
            style = next((s for mark, s in _DIFF_STYLES.items() if line.startswith(mark)), "")
            console.print(Text(line, style), soft_wrap=True)

    def _settle(self) -> None:
        """A spinner would write over it."""
        if self._status is not None:
            self._status.stop()

    @contextmanager
    def waiting(self, text: str) -> Generator[None]:
        """A spinner while something takes its time; in a pipe, silence."""
        if not sys.stderr.isatty():
            yield
            return
        with _console(sys.stderr).status(harmless(text)) as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None


def _text(spans: Sequence[tuple[str, str]]) -> "Text":
    from rich.text import Text  # noqa: PLC0415 - costs start-up, only for a terminal

    return Text.assemble(*spans)


def _console(stream: TextIO) -> "Console":
    """A console: rich reads NO_COLOR, TERM and the width by itself."""
    from rich.console import Console  # noqa: PLC0415 - costs start-up, only for a terminal

    return Console(file=stream, highlight=False, markup=False, emoji=False)
