"""`emceepee tail-logs`: what the running proxies do, line by line.

Whoever ends it, by Ctrl-C or by closing the pipe, ends it quietly and well.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Annotated
from unicodedata import category, east_asian_width
from zlib import crc32

import msgspec
import typer

from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.log_reading import (
    POLL_S,
    abandon_stdout,
    instant_of,
    log_directory,
    pattern_of,
    reader_leaves_within,
    write_line,
)
from emceepee_stdio.cli.terminal import Terminal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.reader import JournalReader, Line
from emceepee_stdio.journal.records import Record
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.visible_text import harmless_json, on_one_line

__all__ = ["tail_logs"]

_DEFAULT_LINES = 20  # fits on one screen
_STDOUT_FD = 1
_RANKS = {level.value: rank for rank, level in enumerate(Level)}
_EVENTS = frozenset(str(event) for event in JournalEvent)
_OUTPUT = str(JournalEvent.SERVER_OUTPUT)
_PLAIN_WORD = re.compile(r"[^\s\"'=\\]+")

_DIM = "2"
_LEVEL_STYLES = {"debug": _DIM, "info": "32", "warning": "33", "error": "1;31"}
_SERVER_STYLES = ("36", "35", "34", "96", "95", "94")

_Span = tuple[str, str]


class OutputSource(StrEnum):
    """Where a server's output came from."""

    PROTOCOL = "protocol"
    STDERR = "stderr"
    STDOUT = "stdout"


def tail_logs(  # noqa: PLR0913 - one for each option
    *,
    lines: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--lines",
            metavar="N",
            min=0,
            help="How many of the past lines to show first.",
            show_default=f"{_DEFAULT_LINES}; with --since all",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Go on with the lines to come.")
    ] = True,
    server: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this server; may be repeated.")
    ] = None,
    level: Annotated[
        Level,
        typer.Option(
            metavar="LEVEL",
            case_sensitive=False,
            help="The least important to show: debug, info, warning or error.",
        ),
    ] = Level.DEBUG,
    source: Annotated[
        OutputSource | None,
        typer.Option(
            metavar="SOURCE",
            case_sensitive=False,
            help="Only what servers said there: protocol, stderr or stdout.",
        ),
    ] = None,
    event: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this event; may be repeated.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="From then on: 30s, 10m, 2h, 1d or ISO 8601.")
    ] = None,
    session: Annotated[
        str | None, typer.Option(metavar="ID", help="Only sessions whose id begins so.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The lines as they are, one JSON object each.")
    ] = False,
    wrap: Annotated[
        bool, typer.Option("--wrap", help="Show long lines whole, instead of cut to the terminal.")
    ] = False,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Another directory than the configured one."),
    ] = None,
) -> None:
    """Follow what the running proxies write down: the journals of all of them, as one.

    Example: emceepee tail-logs --server git --level warning --since 10m

    Example: emceepee tail-logs --json --event task_failed | jq .data
    """
    clock = Clock()
    for name in event or ():
        if name not in _EVENTS:
            near = nearest(name, list(_EVENTS))
            hint = f"did you mean {near}?" if near else "docs/journal.md has the names."
            Terminal().note(f"There is no event {name}; {hint}")
    wanted = _Wanted(
        servers=frozenset(server or ()),
        events=frozenset(event or ()),
        rank=_RANKS[level],
        source=source,
        session=(session or "").lower(),
        pattern=pattern_of(grep),
        only_records=as_json,
    )
    start = -inf if since is None else instant_of(since, clock)
    count = _DEFAULT_LINES if lines is None and since is None else lines
    directory = log_dir or log_directory(os.environ)
    view = None if as_json else _View(clock, os.environ, wraps=wrap)
    try:
        _tail(directory, count, wanted, view, since=start, follow=follow)
    except (KeyboardInterrupt, BrokenPipeError):
        abandon_stdout()
    except OSError as error:
        why = error.strerror or type(error).__name__
        Terminal().note(f"emceepee: The journals in {directory} cannot be read: {why}.")
        Terminal().note("Say where they are with --log-dir, or mend the directory's permissions.")
        raise typer.Exit(FAILED) from None


def _tail(
    directory: Path,
    count: int | None,
    wanted: "_Wanted",
    view: "_View | None",
    *,
    since: float,
    follow: bool,
) -> None:
    reader = JournalReader(directory)
    if not reader.has_files:
        later = "waiting for a proxy to start" if follow else "nothing has been written yet"
        Terminal().note(f"No journal in {directory}: {later}.")
    reader.rewind(count, wanted, since=since)
    while True:
        for line in reader.read():
            if wanted(line):
                write_line(harmless_json(line.raw.decode()) if view is None else view.show(line))
        if not follow or reader_leaves_within(POLL_S):
            break
    reader.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which lines to show. One that is not ours fits only where nothing is asked of it."""

    servers: frozenset[str]
    events: frozenset[str]
    rank: int
    source: OutputSource | None
    session: str
    pattern: Pattern | None
    only_records: bool

    def __call__(self, line: Line) -> bool:
        fits = self._takes_foreign() if line.record is None else self._takes(line.record)
        return fits and (self.pattern is None or self.pattern.matches(_text(line)))

    def _takes(self, record: Record) -> bool:
        return (
            _RANKS.get(record.level, len(_RANKS)) >= self.rank
            and (not self.servers or record.server in self.servers)
            and (not self.events or record.event in self.events)
            and record.session.lower().startswith(self.session)
            and (self.source is None or self._is_from_source(record))
        )

    def _is_from_source(self, record: Record) -> bool:
        return record.event == _OUTPUT and record.data.get("source") == self.source

    def _takes_foreign(self) -> bool:
        asked = self.servers or self.events or self.rank or self.source or self.session
        return not (asked or self.only_records)


class _View:
    """A line as people read it: coloured and cut to the width on a terminal, else plain and whole.

    The time is local; a line of another day has its date before it.
    """

    def __init__(self, clock: Clock, environ: Mapping[str, str], *, wraps: bool) -> None:
        self._clock = clock
        self._on_terminal = os.isatty(_STDOUT_FD)
        self._wraps = wraps
        self._coloured = (
            self._on_terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        )

    def show(self, line: Line) -> str:
        spans = [(on_one_line(text), style) for text, style in self._spans(line)]
        if self._on_terminal and not self._wraps:
            spans = list(_cut(spans, shutil.get_terminal_size().columns))
        if not self._coloured:
            return "".join(text for text, _ in spans)
        return "".join(f"\x1b[{style}m{text}\x1b[0m" if style else text for text, style in spans)

    def _spans(self, line: Line) -> Iterator[_Span]:
        record = line.record
        if record is None:
            yield _text(line), _DIM
            return
        server = record.server or "-"
        yield self._time(line.at), _DIM
        yield f" {record.level:<8}", _LEVEL_STYLES.get(record.level, "")
        yield f" {server:<10}", _SERVER_STYLES[crc32(server.encode()) % len(_SERVER_STYLES)]
        yield f" {_text(line)}", ""

    def _time(self, at: float) -> str:
        moment = _local(at)
        today = _local(self._clock.epoch(self._clock.now())).date()
        text = moment.isoformat(" ", "milliseconds")
        return text[11:23] if moment.date() == today else text[:23]


def _text(line: Line) -> str:
    """What happened: the event and its data. A line that is not ours, as it is."""
    record = line.record
    if record is None:
        return line.raw.decode(errors="backslashreplace")
    asked_by = {} if record.request_id is None else {"request_id": record.request_id}
    fields = {**asked_by, **record.data}
    return " ".join([record.event, *(f"{name}={_word(value)}" for name, value in fields.items())])


def _word(value: object) -> str:
    if isinstance(value, str) and _PLAIN_WORD.fullmatch(value):
        return value
    return msgspec.json.encode(value).decode()


def _cut(spans: list[_Span], columns: int) -> Iterator[_Span]:
    if sum(_columns(text) for text, _ in spans) <= columns:
        yield from spans
        return
    room = columns - 1
    for text, style in spans:
        fitting = _fitting(text, room)
        yield fitting, style
        room -= _columns(fitting)
        if fitting != text:
            break
    yield "…", _DIM


def _fitting(text: str, columns: int) -> str:
    if text.isascii():
        return text[:columns]
    used = 0
    for index, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return text[:index]
    return text


def _columns(text: str) -> int:
    """How wide a terminal shows it: East Asian characters take two columns, accents none."""
    if text.isascii():
        return len(text)
    wide = sum(east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(category(character) in ("Mn", "Me") for character in text)


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=UTC).astimezone()
