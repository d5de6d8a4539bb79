"""`emceepee tail-logs`: follows the journals of the running proxies.

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
from textwrap import fill
from typing import Annotated
from zlib import crc32

import msgspec
import typer
from rich.cells import cell_len, set_cell_size

from emceepee_stdio.cli.log_reading import (
    POLL_S,
    abandon_stdout,
    instant_of,
    log_directory,
    not_on_record,
    pattern_of,
    reader_leaves_within,
    write_line,
)
from emceepee_stdio.cli.shared_options import (
    LogDirectoryOption,
    ServersOption,
    SinceOption,
    complete_events,
    complete_sessions,
)
from emceepee_stdio.cli.terminal import FAILED, Terminal, duration_text, versioned
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.journal_reader import Line, MergedReader
from emceepee_stdio.journal.writer import Record
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.trace.request_records import DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_reader import RequestLine
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
_PLAIN_WORD = re.compile(r"[^\s\"'=\\]+")
_SENTENCES = ("reason", "error", "warning", "text")  # what happened, in words: they come first

_encode = msgspec.json.encode


class LogReader(MergedReader[Line]):
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
    if record.event == _OUTPUT:
        return _story_of_output(dict(record.data))
    sentence, left = _sentence(record)
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
    said = f"stderr={_word(list(story.more))}" if story.more else ""
    return " ".join(part for part in (story.head, story.fields, said) if part)


def _line_of(raw: bytes, otherwise: float) -> Line:
    if not raw.startswith(_RECORD_STARTS):
        return Line.of(raw, otherwise)
    found = RequestLine.of(raw, otherwise)
    if found.record is None:
        return Line(raw, found.at, None)
    if isinstance(found.record, DroppedRecords):
        record = _record_of_dropped(found.record, found.at)
    else:
        record = _record_of_request(found.record, found.at)
    return Line(_encode(record), found.at, record)


def _record_of_request(request: RequestRecord, at: float) -> Record:
    tool = request.server_tool or request.tool
    data: dict[str, object] = {
        **({"tool": tool} if tool else {"method": request.method}),
        "outcome": request.outcome,
        "duration_ms": request.duration_ms,
        "kind": request.kind,
        "id": request.id,
    }
    data |= {"error_code": request.error_code} if request.error_code else {}
    data |= {"task_id": request.task_id} if request.task_id else {}
    data |= {"questions": request.questions} if request.questions else {}
    return Record(
        timestamp=_iso(at),
        level=Level.INFO,
        event=REQUEST_ENDED,
        session=request.session,
        server=request.server,
        request_id=request.request_id,
        data=data,
    )


def _record_of_dropped(dropped: DroppedRecords, at: float) -> Record:
    return Record(
        timestamp=_iso(at),
        level=Level.WARNING,
        event=REQUESTS_DROPPED,
        session=dropped.session,
        data={"count": dropped.count},
    )


def _story_of_request(data: Mapping[str, object]) -> Story:
    """The tool, how it went and how long it took; who wants more asks `emceepee trace`."""
    what = f"task {data.get('tool')}" if data.get("kind") == "task" else f"call {data.get('tool')}"
    what = what if "tool" in data else str(data.get("method"))
    taken = data.get("duration_ms")
    span = duration_text(taken) if isinstance(taken, int | float) else ""
    known = {name: data[name] for name in ("error_code", "task_id", "questions") if name in data}
    return Story(f"{what} {data.get('outcome')} {span}", _fields(known, None))


def _story_of_output(left: dict[str, object]) -> Story:
    """What a server said is the story; where it said so comes first."""
    return Story(f"{left.pop('source', '')}: {left.pop('text', '')}", _fields(left, None))


def _sentence(record: Record) -> tuple[str, dict[str, object]]:
    left = dict(record.data)
    if record.event == _CLIENT:
        return f"{left.pop('name', '')} {left.pop('version', '')}".strip(), left
    for name in _SENTENCES:
        if isinstance(left.get(name), str):
            return str(left.pop(name)), left
    return "", left


def _fields(data: Mapping[str, object], request_id: str | int | None) -> str:
    words = [f"{name}={_word(value)}" for name, value in data.items()]
    if request_id is not None:
        words.append(f"request_id={_word(request_id)}")
    return " ".join(words)


def _word(value: object) -> str:
    if isinstance(value, str) and _PLAIN_WORD.fullmatch(value):
        return value
    return _encode(value).decode()


def _iso(at: float) -> str:
    moment = datetime.fromtimestamp(at, tz=UTC).isoformat(timespec="milliseconds")
    return moment.replace("+00:00", "Z")


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
    return len(text) if text.isascii() else cell_len(text)


def _head(text: str, columns: int) -> str:
    text = text[: max(columns, 0)]
    if text.isascii():
        return text
    return set_cell_size(text, min(columns, _width(text)))


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, tz=UTC).astimezone()


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
    server: ServersOption = None,
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
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Only this event; may be repeated.", autocompletion=complete_events
        ),
    ] = None,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only lines in which this is found.")
    ] = None,
    since: SinceOption = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Only sessions whose id begins or ends so.",
            autocompletion=complete_sessions,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object for each line.")] = False,
    wrap: Annotated[
        bool, typer.Option("--wrap", help="Show long lines whole, instead of cut to the terminal.")
    ] = False,
    log_dir: LogDirectoryOption = None,
) -> None:
    """Follow the logs of all running proxies.

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
    view = None if as_json else LogView(Terminal(), clock, wraps=wrap)
    try:
        _tail(directory, count, wanted, view, since=start, follow=follow)
    except (KeyboardInterrupt, BrokenPipeError):
        abandon_stdout()
    except OSError as error:
        why = error.strerror or type(error).__name__
        Terminal().failure(
            f"The journals in {directory} cannot be read: {why}.",
            "Say where they are with --log-dir, or fix the directory's permissions.",
            code="system",
        )
        raise typer.Exit(FAILED) from None


def _tail(
    directory: Path,
    count: int | None,
    wanted: "_Wanted",
    view: LogView | None,
    *,
    since: float,
    follow: bool,
) -> None:
    reader, is_found = LogReader(directory), False
    if not reader.has_files:
        later = "waiting for a proxy to start" if follow else "nothing has been written yet"
        Terminal().note(f"No journal in {directory}: {later}.")
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
    if not is_found and (problem := _unknown_name(reader, wanted)):
        option, text = problem
        if not follow:
            raise typer.BadParameter(text, param_hint=option)
        Terminal().note(f"{option}: {text}")
    while True:
        for number, line in enumerate(filter(wanted, reader.read()), 1):
            text = versioned(harmless_json(line.raw.decode())) if view is None else view.show(line)
            write_line(text, flush=False)
            if number % _FLUSH_LINES == 0:
                Terminal().flush()
        Terminal().flush()
        if not follow or reader_leaves_within(POLL_S):
            break
    reader.close()


def _unknown_name(reader: LogReader, wanted: "_Wanted") -> tuple[str, str] | None:
    """Nothing was found: the option whose name is in no line at all, and what to say of it."""
    missing, is_of_session = set(wanted.servers), not wanted.session
    servers: dict[str, None] = {}
    sessions: dict[str, None] = {}
    for record in (line.record for line in reader.backward()):
        if is_of_session and not missing:
            return None
        if record is not None:
            sessions[record.session] = None
            is_of_session = is_of_session or wanted.is_of_session(record.session)
            if record.server is not None:
                servers[record.server] = None
                missing.discard(record.server)
    if sessions and not is_of_session:
        return "--session", not_on_record("line of session", wanted.session, sessions)
    if sessions and missing:
        return "--server", not_on_record("line of server", min(missing), servers)
    return None


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
        return fits and (self.pattern is None or self.pattern.matches(plain_text(line)))

    def _takes(self, record: Record) -> bool:
        return (
            _RANKS.get(record.level, len(_RANKS)) >= self.rank
            and (not self.servers or record.server in self.servers)
            and (not self.events or record.event in self.events)
            and self.is_of_session(record.session)
            and (self.source is None or self._is_from_source(record))
        )

    def is_of_session(self, session: str) -> bool:
        """By the beginning of its id, or by the end, which is what a line shows."""
        session = session.lower()
        return session.startswith(self.session) or session.endswith(self.session)

    def _is_from_source(self, record: Record) -> bool:
        return record.event == _OUTPUT and record.data.get("source") == self.source

    def _takes_foreign(self) -> bool:
        asked = self.servers or self.events or self.rank or self.source or self.session
        return not (asked or self.only_records)
