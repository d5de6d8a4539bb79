"""A line of the log as people read it: coloured and cut to the width at a terminal, else plain.

The styles are rich's and are turned into codes once: a hundred thousand lines are then put together
from strings. Whatever a server said is made harmless before it is measured, cut or coloured.
"""

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from zlib import crc32

from emceepee_stdio.cli.log_lines import REQUEST_ENDED, Story, plain_text, story_of
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.journal.reader import Line
from emceepee_stdio.journal.records import Record
from emceepee_stdio.visible_text import on_one_line

__all__ = ["STYLES", "LogView"]

# Each can be read on black and on white: their luminance is in the middle between the two.
STYLES = {
    "time": "color(243)",
    "debug": "color(243)",
    "info": "color(28)",
    "warning": "bold color(130)",
    "error": "bold color(160)",
    "server 0": "color(30)",
    "server 1": "color(63)",
    "server 2": "color(163)",
    "server 3": "color(64)",
    "server 4": "color(98)",
    "server 5": "color(131)",
}
_SERVERS = 6
_WIDE_COLUMNS = 100  # from here on there is room for the word of the level
_SERVER_COLUMNS = 10
_SESSION_CHARS = 4  # of the end of an id, where two differ
_MOST_LINES = 20  # below one; the file has the rest
_FLOAT_ERROR = 0.01  # of a millisecond: .789 is .78899999 as a float
_LOUD = ("warning", "error")
_FAILED = ("tool_error", "error")

_Span = tuple[str, str]


class LogView:
    """Shows line by line; `sessions` are those seen so far, and several make a column."""

    def __init__(self, terminal: Terminal, clock: Clock, *, wraps: bool) -> None:
        self.sessions: set[str] = set()
        self._clock = clock
        self._on_terminal = terminal.columns is not None
        self._wraps = wraps
        self._codes = {name: terminal.codes(style) for name, style in STYLES.items()}
        self._second = (-1, "")
        self._columns = 0  # of the terminal, which may change its size at any time

    def show(self, line: Line) -> str:
        """The line, and at a terminal those below it that belong to it."""
        self._columns = shutil.get_terminal_size().columns if self._on_terminal else 0
        record = line.record
        if record is None:
            return self._painted([(on_one_line(plain_text(line)), "time")])
        self.sessions.add(record.session)
        if not self._on_terminal:
            return "".join(text for text, _ in self._front(line.at, record)) + on_one_line(
                plain_text(line)
            )
        story = story_of(record)
        front = list(self._front(line.at, record))
        shown = self._painted([*front, *_body(record, story)])
        if story.more and record.level in _LOUD:  # what is only news was told by a louder line
            indent = " " * sum(len(text) for text, _ in front)
            below = self._below(story.more)
            return "\n".join([shown, *(self._painted([(indent, ""), *row]) for row in below)])
        return shown

    def _front(self, at: float, record: Record) -> Iterator[_Span]:
        server = on_one_line(record.server or "-")
        yield self._time(at), "time"
        if len(self.sessions) > 1:
            session = on_one_line(record.session)[-_SESSION_CHARS:]
            yield f" {session:<{_SESSION_CHARS}}", _colour(record.session)
        if 0 < self._columns < _WIDE_COLUMNS:
            yield f" {record.level[:1].upper():<1}", record.level
        else:
            yield f" {record.level:<8}", record.level
        yield f" {server:<{_SERVER_COLUMNS}} ", _colour(server)

    def _below(self, lines: tuple[str, ...]) -> Iterator[list[_Span]]:
        for text in lines[:_MOST_LINES]:
            yield [("│ ", "time"), (on_one_line(text), "")]
        if len(lines) > _MOST_LINES:
            yield [(f"… {len(lines) - _MOST_LINES} lines more: --json has them", "time")]

    def _painted(self, spans: list[_Span]) -> str:
        if self._on_terminal and not self._wraps:
            spans = _cut(spans, self._columns)
        painted = ""
        for text, style in spans:
            before, after = self._codes.get(style, ("", ""))
            painted += before + text + after
        return painted

    def _time(self, at: float) -> str:
        """Local; a line of another day has its date before it. Most lines share their second."""
        second = int(at)
        if second != self._second[0]:
            moment = _local(second)
            today = _local(self._clock.epoch(self._clock.now())).date()
            text = moment.strftime("%H:%M:%S")
            text = text if moment.date() == today else f"{moment:%Y-%m-%d} {text}"
            self._second = second, text
        return f"{self._second[1]}.{int((at - second) * 1000 + _FLOAT_ERROR):03}"


def _body(record: Record, story: Story) -> list[_Span]:
    failed = record.event == REQUEST_ENDED and record.data.get("outcome") in _FAILED
    style = record.level if record.level in _LOUD else "warning" if failed else ""
    head = (on_one_line(story.head), style)
    return [head, (on_one_line(f" {story.fields}"), "time")] if story.fields else [head]


def _colour(name: str) -> str:
    return f"server {crc32(name.encode(errors='replace')) % _SERVERS}"


def _cut(spans: list[_Span], columns: int) -> list[_Span]:
    """As much as fits, and a mark where it was cut. Only what is not ASCII has to be measured."""
    kept: list[_Span] = []
    for index, (text, style) in enumerate(spans):
        width = _width(text)
        is_last = index == len(spans) - 1
        if width < columns or (is_last and width == columns):
            kept.append((text, style))
            columns -= width
            continue
        kept += [(_head(text, columns - 1), style), ("…", "time")]
        break
    return kept


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 - only for a terminal

    return cell_len(text)


def _head(text: str, columns: int) -> str:
    text = text[: max(columns, 0)]
    if text.isascii():
        return text
    from rich.cells import set_cell_size  # noqa: PLC0415 - only for a terminal

    return set_cell_size(text, min(columns, _width(text)))


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=UTC).astimezone()
