"""`emceepee trace`: the recorded requests, with durations, legs and outcomes."""

import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import msgspec
import typer

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
    complete_sessions,
)
from emceepee_stdio.cli.terminal import FAILED, Terminal, versioned
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.trace.request_records import DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_reader import (
    RequestFilter,
    RequestLine,
    RequestReader,
    as_chrome,
    as_json,
    without_payloads,
)
from emceepee_stdio.visible_text import harmless_json

_DEFAULT_REQUESTS = 30  # with headings these fit on a screen
_MAX_REQUESTS = 100_000  # in memory at once; what is older is left out, and that is said
_HEADINGS = ("STARTED", "TOOK", "OUTCOME", "SERVER", "WHAT", "LEGS")
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)", re.ASCII)
_MS_PER_UNIT = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_BESIDE_ROWS = 3  # lines of a screen: the legend, the summary, and where the cursor is


class ExportFormat(StrEnum):
    """What programs read."""

    JSON = "json"
    CHROME = "chrome"


_EXPORTS: dict[str, Callable[..., object]] = {"json": as_json, "chrome": as_chrome}


def trace(  # noqa: PLR0913 - one for each option
    *,
    lines: Annotated[
        int | None,
        typer.Option(
            "-n",
            "--lines",
            metavar="N",
            min=1,
            help="How many of the last requests to show.",
            show_default=f"{_DEFAULT_REQUESTS}; all with --since, --json or --export",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", "-f", help="Go on with those to come.")
    ] = False,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="The session whose id begins with this; `all` for every session.",
            show_default="the last one; all with --since",
            autocompletion=complete_sessions,
        ),
    ] = None,
    server: ServersOption = None,
    slow: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Only requests that took at least this long: 500ms, 2s, 1m."
        ),
    ] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only what failed.")] = False,
    grep: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only records in which this is found.")
    ] = None,
    since: SinceOption = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object; with --follow, one for each request."),
    ] = False,
    export: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the requests into a new file: .json, or .html for the page.",
        ),
    ] = None,
    export_format: Annotated[
        ExportFormat,
        typer.Option(
            "--format",
            metavar="FORMAT",
            help="Of --json and --export: json, or chrome for Perfetto and chrome://tracing.",
        ),
    ] = ExportFormat.JSON,
    payloads: Annotated[
        bool,
        typer.Option("--payloads", help="With arguments and results, where they were recorded."),
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Show them as a page in the browser, and follow.")
    ] = False,
    browser: Annotated[
        bool,
        typer.Option("--browser/--no-browser", help="With --web: open it, or print its address."),
    ] = True,
    port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=1,
            max=65_535,
            help="With --web: where it is on this machine.",
            show_default="that of the last page, or any",
        ),
    ] = None,
    log_dir: LogDirectoryOption = None,
) -> None:
    """Show requests: how long each took and how it ended.

    Shows also what it waited for.

    Example: emceepee trace --since 8h --slow 1s

    Example: emceepee trace --failed --session all

    Example: emceepee trace --web
    """
    directory = log_dir or log_directory(os.environ)
    pattern = pattern_of(grep)
    is_all = session == "all" or (session is None and (web or since is not None))
    chosen = "" if is_all else session or _last_session(directory)
    view = _View(
        wanted=RequestFilter(
            servers=frozenset(server or ()),
            session=chosen.upper(),
            slow_ms=0.0 if slow is None else _span_ms(slow),
            failed=failed,
            matches=None if pattern is None else pattern.matches,
        ),
        payloads=payloads,
    )
    if export is not None:
        _check_export(export, export_format, web=web)
    if web:
        _show_page(directory, view, since=since, port=port, browser=browser)
        return
    takes_all = since is not None or as_json or export is not None
    count = _MAX_REQUESTS if lines is None and takes_all else lines or _DEFAULT_REQUESTS
    try:
        with closing(_rewound(directory, view, count, since=since)) as reader:
            view.records = _by_beginning(view.new(reader))
            if not (view.records or follow):
                _check_names(
                    directory, servers=server or (), session="" if is_all else session or ""
                )
            if export is not None:
                _write_file(export, view, export_format, directory)
            elif as_json or export_format is not ExportFormat.JSON:
                _show_json(reader, view, export_format, follow=follow)
            elif Terminal().columns is None:
                _show_plain(reader, view, follow=follow)
            else:
                _show_waterfall(reader, view, count, follow=follow)
    except (KeyboardInterrupt, BrokenPipeError):
        abandon_stdout()
    except OSError as error:
        why = error.strerror or type(error).__name__
        place = error.filename or directory
        fact = f"{place} cannot be read or written: {why}."
        Terminal().failure(fact, "Check its permissions.", code="system")
        raise typer.Exit(FAILED) from None


@dataclass(slots=True, kw_only=True)
class _View:
    """The records to show, by their beginning, and how many are missing among them."""

    wanted: RequestFilter
    payloads: bool
    records: list[RequestRecord] = field(default_factory=list[RequestRecord])
    dropped: int = 0

    def takes(self, line: RequestLine) -> bool:
        return isinstance(line.record, RequestRecord) and self.wanted(line.record)

    def new(self, reader: RequestReader) -> list[RequestRecord]:
        """What has come since the last call, in the order of ends; none of it is kept here."""
        new: list[RequestRecord] = []
        for line in reader.read():
            if isinstance(line.record, DroppedRecords):
                if line.record.session.startswith(self.wanted.session):
                    self.dropped += line.record.count
            elif line.record is not None and self.wanted(line.record):
                new.append(line.record if self.payloads else without_payloads(line.record))
        return new

    def summary(self) -> str:
        outcomes = [record.outcome for record in self.records]
        failed = sum(record.failed for record in self.records)
        words = [f"{len(outcomes)} request{'' if len(outcomes) == 1 else 's'}"]
        words += [f"{failed} failed"] if failed else []
        if promoted := outcomes.count("promoted"):
            words.append("1 became a task" if promoted == 1 else f"{promoted} became tasks")
        if cancelled := outcomes.count("cancelled"):
            words.append(f"{cancelled} cancelled")
        words += [f"{self.dropped} not recorded"] if self.dropped else []
        return ", ".join(words) + "."


def _by_beginning(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return sorted(records, key=attrgetter("id"))


def _last_session(directory: Path) -> str:
    """Of the request that ended last."""
    reader = RequestReader(directory)
    records = (line.record for line in reader.backward())
    last = next((record for record in records if record is not None), None)
    reader.close()
    return "" if last is None else last.session


def _check_export(path: Path, wanted: ExportFormat, *, web: bool) -> None:
    ends = (".json", ".html") if wanted is ExportFormat.JSON else (".json",)
    if path.suffix not in ends:
        problem = f"{path} must end with {' or '.join(ends)}."
    elif web:
        problem = "--web shows the page, --export writes a file: leave one of them out."
    elif os.path.lexists(path):
        problem = f"{path} is there already. Choose another name, or remove it first."
    else:
        return
    raise typer.BadParameter(problem, param_hint="--export")


def _check_names(directory: Path, *, servers: Sequence[str], session: str) -> None:
    """Nothing was found: whether that is because a name is not on record at all."""
    if not (servers or session):
        return
    reader = RequestReader(directory)
    found = [line.record for line in reader.backward() if isinstance(line.record, RequestRecord)]
    reader.close()
    sessions = dict.fromkeys(record.session for record in found)
    if found and not any(one.startswith(session.upper()) for one in sessions):
        raise _not_on_record("session", session, sessions)
    names = dict.fromkeys(record.server for record in found if record.server is not None)
    for name in servers if found else ():
        if name not in names:
            raise _not_on_record("server", name, names)


def _not_on_record(what: str, name: str, known: Iterable[str]) -> typer.BadParameter:
    text = not_on_record(f"request of {what}", name, known)
    return typer.BadParameter(text, param_hint=f"--{what}")


def _start(since: str | None) -> float:
    return -inf if since is None else instant_of(since, Clock())


def _show_page(
    directory: Path, view: _View, *, since: str | None, port: int | None, browser: bool
) -> None:
    from emceepee_stdio.cli.trace_view import show_page  # noqa: PLC0415 - only for the page

    show_page(directory, wanted=view.wanted, since=_start(since), port=port, opens_browser=browser)


def _rewound(directory: Path, view: _View, count: int, *, since: str | None) -> RequestReader:
    start = _start(since)
    reader = RequestReader(directory)
    if not reader.has_files:
        Terminal().note(
            f"No request has been recorded in {directory} yet. Requests of clients are recorded, "
            "calls by `emceepee call` are not."
        )
    reader.rewind(count, view.takes, since=start)
    return reader


def _show_waterfall(reader: RequestReader, view: _View, count: int, *, follow: bool) -> None:
    terminal = Terminal()
    if not follow:
        for line in _drawn(view, view.records[-count:]):
            terminal.spans(line)
        return
    with terminal.live() as draw:
        while True:
            rows = max(shutil.get_terminal_size().lines - _BESIDE_ROWS, 1)
            view.records = view.records[-max(count, rows) :]
            draw(_last_lines(view, rows))
            new: list[RequestRecord] = []
            while not new:
                reader_leaves_within(POLL_S)
                new = view.new(reader)
            view.records = _by_beginning([*view.records, *new])


def _last_lines(view: _View, rows: int) -> Sequence[Sequence[tuple[str, str]]]:
    """As many requests as fit with their headings."""
    shown = view.records[-rows:]
    lines = list(_drawn(view, shown))
    while len(lines) > rows + 2 and shown:
        shown = shown[len(lines) - rows - 2 :]
        lines = list(_drawn(view, shown))
    return lines


def _drawn(view: _View, records: Sequence[RequestRecord]) -> Sequence[Sequence[tuple[str, str]]]:
    from emceepee_stdio.cli.trace_view import Waterfall  # noqa: PLC0415 - loads rich

    terminal = Terminal()
    drawing = Waterfall(columns=(terminal.columns or 80) - 1, ascii_only=not terminal.is_utf8)
    return [*drawing.lines(records), drawing.legend(records), [(view.summary(), "")]]


def _show_plain(reader: RequestReader, view: _View, *, follow: bool) -> None:
    from emceepee_stdio.cli.trace_view import plain_row  # noqa: PLC0415 - loads rich

    terminal = Terminal()
    terminal.table(_HEADINGS, [plain_row(record) for record in view.records])
    if not follow:
        terminal.note(view.summary())
        return
    view.records.clear()
    while not reader_leaves_within(POLL_S):
        for record in view.new(reader):
            write_line("\t".join(plain_row(record)))


def _show_json(reader: RequestReader, view: _View, wanted: ExportFormat, *, follow: bool) -> None:
    if not follow:
        Terminal().verbatim(harmless_json(_encoded(view, wanted).decode()))
        return
    while True:
        for record in view.records:
            write_line(versioned(harmless_json(msgspec.json.encode(record).decode())))
        if reader_leaves_within(POLL_S):
            return
        view.records = view.new(reader)


def _encoded(view: _View, wanted: ExportFormat) -> bytes:
    value = _EXPORTS[wanted](view.records, dropped=view.dropped)
    return msgspec.json.format(msgspec.json.encode(value))


def _write_file(path: Path, view: _View, wanted: ExportFormat, directory: Path) -> None:
    if path.suffix == ".html":
        from emceepee_stdio.cli.trace_view import whole_page  # noqa: PLC0415 - only for the page

        write_whole(path, whole_page(directory, view.records, dropped=view.dropped))
    else:
        write_whole(path, _encoded(view, wanted).decode())
    Terminal().note(f"{view.summary()[:-1]}, in {path}.")


def _span_ms(text: str) -> float:
    if span := _SPAN.fullmatch(text.strip()):
        return float(span[1]) * _MS_PER_UNIT[span[2]]
    raise typer.BadParameter(f"{text!r} is no span like 500ms, 2s or 1m.", param_hint="--slow")
