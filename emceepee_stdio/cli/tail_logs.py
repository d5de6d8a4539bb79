"""`emceepee tail-logs`: follows the journals of the running proxies.

Whoever ends it, by Ctrl-C or by closing the pipe, ends it quietly and well.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import fill
from typing import Annotated
from zlib import crc32

import msgspec
import typer
from rich.cells import cell_len, set_cell_size

from emceepee_stdio.cli import log_reading, shared_options
from emceepee_stdio.cli.command_line import flag, option
from emceepee_stdio.cli.terminal import duration_text, terminal, versioned
from emceepee_stdio.clock import Clock, iso_time
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.journal_reader import DatedLine, Line, MergedReader, journal_line
from emceepee_stdio.journal.writer import Record, plain_word
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.trace.request import DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_reader import request_line
from emceepee_stdio.visible_text import harmless_json, on_one_line

# The lines that `tail-logs` shows: those of the journals, and one for every request that ended.
#
# Requests are recorded in files of their own, and their records become lines like the journal's, so
# that the same filters hold for both.


REQUEST_ENDED = "request_ended"
REQUESTS_DROPPED = "requests_dropped"

_NAME = re.compile(r"((?:emceepee|requests)-.+\.jsonl)(?:\.\d+)?", re.ASCII)
_RECORD_STARTS = (b'{"id":', b'{"kind":"dropped"')  # a line of the journal begins with its time
_OUTPUT = str(JournalEvent.SERVER_OUTPUT)
_CLIENT = str(JournalEvent.CLIENT_CONNECTED)
_MORE = ("error_code", "task_id", "questions")  # that a request may have
_SENTENCES = ("reason", "error", "warning", "text")  # what happened, in words: they come first


class LogReader(MergedReader[Record]):
    """Begins at the end of every file; `rewind` goes back, `read` goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _NAME, _line_of)


@dataclass(frozen=True, slots=True)
class Story:
    """A line in parts: what happened, what else is known of it, and what was said at length."""

    head: str
    fields: str
    more: tuple[str, ...] = ()


def event_names() -> list[str]:
    """All that a line can be about."""
    return [*map(str, JournalEvent), REQUEST_ENDED, REQUESTS_DROPPED]


def story_of(record: Record) -> Story:
    if record.event == REQUEST_ENDED:
        return _story_of_request(record.data)
    left = dict(record.data)
    if record.event == _OUTPUT:  # what a server said is the story; where it said so comes first
        head = f"{left.pop('source', '')}: {left.pop('text', '')}"
        return Story(head, _fields(left, None))
    sentence = _sentence(record, left)
    said = left.pop("stderr", None)
    first, *more = sentence.split("\n")
    head = f"{record.event}: {first}" if first else record.event
    if isinstance(said, list):
        more += [str(line) for line in said]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return Story(head, _fields(left, record.request_id), tuple(more))


def plain_text(line: Line) -> str:
    """All of it on one line: what a pipe gets, and `--grep` looks at."""
    record = line.record
    if record is None:
        return line.raw.decode(errors="backslashreplace")
    story = story_of(record)
    said = f"stderr={plain_word(list(story.more))}" if story.more else ""
    return " ".join(part for part in (story.head, story.fields, said) if part)


def _line_of(raw: bytes, otherwise: float) -> Line:
    if not raw.startswith(_RECORD_STARTS):
        return journal_line(raw, otherwise)
    found = request_line(raw, otherwise)
    if found.record is None:
        return DatedLine(raw, found.at, None)
    record = _as_record(found.record, iso_time(found.at))
    return DatedLine(msgspec.json.encode(record), found.at, record)


def _as_record(request: RequestRecord | DroppedRecords, timestamp: str) -> Record:
    if isinstance(request, DroppedRecords):
        return Record(
            timestamp=timestamp,
            level=Level.WARNING,
            event=REQUESTS_DROPPED,
            session=request.session,
            data={"count": request.count},
        )
    tool = request.server_tool or request.tool
    data: dict[str, object] = {
        **({"tool": tool} if tool else {"method": request.method}),
        "outcome": request.outcome,
        "duration_ms": request.duration_ms,
        "kind": request.kind,
        "id": request.id,
    }
    data |= {name: value for name in _MORE if (value := getattr(request, name))}
    return Record(
        timestamp=timestamp,
        level=Level.INFO,
        event=REQUEST_ENDED,
        session=request.session,
        server=request.server,
        request_id=request.request_id,
        data=data,
    )


def _story_of_request(data: Mapping[str, object]) -> Story:
    """The tool, how it went and how long it took; who wants more asks `emceepee trace`."""
    what = f"task {data.get('tool')}" if data.get("kind") == "task" else f"call {data.get('tool')}"
    what = what if "tool" in data else str(data.get("method"))
    taken = data.get("duration_ms")
    span = duration_text(taken) if isinstance(taken, int | float) else ""
    known = {name: data[name] for name in _MORE if name in data}
    return Story(f"{what} {data.get('outcome')} {span}", _fields(known, None))


def _sentence(record: Record, left: dict[str, object]) -> str:
    """What happened, in words; it is taken out of what is left to say."""
    if record.event == _CLIENT:
        return f"{left.pop('name', '')} {left.pop('version', '')}".strip()
    name = next((name for name in _SENTENCES if isinstance(left.get(name), str)), "")
    return str(left.pop(name, ""))


def _fields(data: Mapping[str, object], request_id: str | int | None) -> str:
    words = [f"{name}={plain_word(value)}" for name, value in data.items()]
    if request_id is not None:
        words.append(f"request_id={plain_word(request_id)}")
    return " ".join(words)


# A line of the log as people read it: coloured and cut to the width at a terminal, else plain.
#
# The styles are rich's and are turned into codes once: a hundred thousand lines are then put
# together from strings. Whatever a server said is made harmless before it is measured, cut or
# coloured.


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

    def __init__(self, clock: Clock, *, wraps: bool) -> None:
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
        front = list(self._front(line.at, record))
        if not self._on_terminal:
            return "".join(text for text, _ in front) + on_one_line(plain_text(line))
        story = story_of(record)
        shown = self._painted([*front, *_body(record, story)])
        if story.more and record.level in _LOUD:  # what is only news was told by a louder line
            indent = " " * sum(len(text) for text, _ in front)
            below: list[list[_Span]] = [
                [("│ ", "time"), (on_one_line(text), "")] for text in story.more[:_MOST_LINES]
            ]
            if (left := len(story.more) - _MOST_LINES) > 0:
                below.append([(f"… {left} lines more: --json has them", "time")])
            return "\n".join([shown, *(self._painted([(indent, ""), *row]) for row in below)])
        return shown

    def _front(self, at: float, record: Record) -> Iterator[_Span]:
        server = on_one_line(record.server or "-")
        yield self._time(at), "time"
        if len(self.sessions) > 1:
            session = on_one_line(record.session)[-_SESSION_CHARS:]
            yield f" {session:<{_SESSION_CHARS}}", _colour(record.session)
        is_narrow = 0 < self._columns < _WIDE_COLUMNS
        level = f"{record.level[:1].upper():<1}" if is_narrow else f"{record.level:<8}"
        yield f" {level}", record.level
        yield f" {server:<{_SERVER_COLUMNS}} ", _colour(server)

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
            moment = log_reading.local_time(second)
            today = log_reading.local_time(self._clock.epoch(self._clock.now())).date()
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
    return len(text) if text.isascii() else cell_len(text)


def _head(text: str, columns: int) -> str:
    text = text[: max(columns, 0)]
    return text if text.isascii() else set_cell_size(text, min(columns, _width(text)))


_DEFAULT_LINES = 20  # fits on one screen
_RANKS = {level.value: rank for rank, level in enumerate(Level)}
_NAMES_WIDTH = 79  # columns that every terminal has
_FLUSH_LINES = 100  # written at a time, where many are there at once


class OutputSource(StrEnum):
    """Where a server's output came from."""

    PROTOCOL = "protocol"
    STDERR = "stderr"
    STDOUT = "stdout"


def tail_logs(  # noqa: PLR0913 - one for each option
    *,
    lines: Annotated[
        int | None,
        option("N", "-n", "--lines", min=0, show_default=f"{_DEFAULT_LINES}; with --since all"),
    ] = None,
    follow: Annotated[bool, flag("--follow/--no-follow")] = True,
    server: shared_options.ServersOption = None,
    level: Annotated[Level, option("LEVEL", case_sensitive=False)] = Level.DEBUG,
    source: Annotated[OutputSource | None, option("SOURCE", case_sensitive=False)] = None,
    event: Annotated[
        list[str] | None, option("NAME", autocompletion=shared_options.complete_events)
    ] = None,
    grep: log_reading.GrepOption = None,
    since: shared_options.SinceOption = None,
    session: Annotated[
        str | None, option("ID", autocompletion=shared_options.complete_sessions)
    ] = None,
    as_json: Annotated[bool, flag("--json")] = False,
    wrap: Annotated[bool, flag("--wrap")] = False,
    log_dir: shared_options.LogDirectoryOption = None,
) -> None:
    """Follow the logs of all running proxies.

    Takes:
      lines: How many of the past lines to show first.
      follow: Go on with the lines to come.
      level: The least important to show: debug, info, warning or error.
      source: Only what servers said there: protocol, stderr or stdout.
      event: Only this event; may be repeated.
      session: Only sessions whose id begins or ends so.
      as_json: One JSON object for each line.
      wrap: Show long lines whole, instead of cut to the terminal.

    Example: emceepee tail-logs --server git --level warning --since 10m

    Example: emceepee tail-logs --json --event task_failed | jq .data
    """
    clock = Clock()
    known = event_names()
    for name in event or ():
        if name not in known:
            near = nearest(name, known)
            names = fill(", ".join(known), width=_NAMES_WIDTH, break_on_hyphens=False)
            hint = f"did you mean {near}?" if near else f"there are:\n{names}"
            terminal.note(f"There is no event {name}; {hint}")
    wanted = _Wanted(
        servers=frozenset(server or ()),
        events=frozenset(event or ()),
        rank=_RANKS[level],
        source=source,
        session=(session or "").lower(),
        pattern=log_reading.pattern_of(grep),
        only_records=as_json,
    )
    start = log_reading.start_of(since)
    count = _DEFAULT_LINES if lines is None and since is None else lines
    directory = log_dir or log_reading.log_directory(os.environ)
    view = None if as_json else LogView(clock, wraps=wrap)
    with log_reading.ending_quietly(directory), closing(LogReader(directory)) as reader:
        if not reader.has_files:
            later = "waiting for a proxy to start" if follow else "nothing has been written yet"
            terminal.note(f"No journal in {directory}: {later}.")
        _tail(reader, count, wanted, view, since=start, follow=follow)


def _tail(
    reader: LogReader,
    count: int | None,
    wanted: "_Wanted",
    view: LogView | None,
    *,
    since: float,
    follow: bool,
) -> None:
    is_found = False
    sessions: set[str] = set() if view is None else view.sessions

    def is_ahead(line: Line) -> bool:
        """Whose lines are going to be shown is known before the first one is."""
        nonlocal is_found
        fits = wanted(line)
        is_found = is_found or fits
        if fits and line.record is not None:
            sessions.add(line.record.session)
        return fits

    reader.rewind(count, is_ahead, since=since)
    if not is_found and (problem := wanted.unknown_name(reader)):
        if not follow:
            raise problem
        terminal.note(f"{problem.param_hint}: {problem.message}")
    while True:
        for number, line in enumerate(filter(wanted, reader.read()), 1):
            text = versioned(harmless_json(line.raw.decode())) if view is None else view.show(line)
            log_reading.write_line(text, flush=False)
            if number % _FLUSH_LINES == 0:
                terminal.flush()
        terminal.flush()
        if not follow or log_reading.reader_leaves_within(log_reading.POLL_S):
            return


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
        if line.record is None:
            asked = self.servers or self.events or self.rank or self.source or self.session
            fits = not (asked or self.only_records)
        else:
            fits = self._takes(line.record)
        return fits and (self.pattern is None or self.pattern.matches(plain_text(line)))

    def _takes(self, record: Record) -> bool:
        return (
            _RANKS.get(record.level, len(_RANKS)) >= self.rank
            and (not self.servers or record.server in self.servers)
            and (not self.events or record.event in self.events)
            and self.is_of_session(record.session)
            and (
                self.source is None
                or (record.event == _OUTPUT and record.data.get("source") == self.source)
            )
        )

    def is_of_session(self, session: str) -> bool:
        """By the beginning of its id, or by the end, which is what a line shows."""
        session = session.lower()
        return session.startswith(self.session) or session.endswith(self.session)

    def unknown_name(self, reader: LogReader) -> typer.BadParameter | None:
        records = (line.record for line in reader.backward())
        seen = ((record.session, record.server) for record in records if record is not None)
        return log_reading.unknown_name(
            "line", seen, self.servers, self.session, self.is_of_session
        )
