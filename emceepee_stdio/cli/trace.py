"""`emceepee trace`: the recorded requests as a waterfall, with durations, legs and outcomes."""

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from anyio.abc import Listener, SocketStream
from rich.cells import cell_len, set_cell_size

from emceepee_stdio.auth.browser import open_browser
from emceepee_stdio.cli import log_reading, shared_options
from emceepee_stdio.cli.command_line import flag, option
from emceepee_stdio.cli.terminal import ExitCode, duration_text, interrupts, terminal, versioned
from emceepee_stdio.clock import Clock
from emceepee_stdio.storage.private_file import write_whole
from emceepee_stdio.trace import trace_page, trace_reader
from emceepee_stdio.trace.request import DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_page import PageFeed, exported_page
from emceepee_stdio.visible_text import harmless_json, on_one_line
from emceepee_stdio.wire.loopback_http import loopback_listener

_DEFAULT_REQUESTS = 30  # with headings these fit on a screen
_MAX_REQUESTS = 100_000  # in memory at once; what is older is left out, and that is said
_HEADINGS = ("STARTED", "TOOK", "OUTCOME", "SERVER", "WHAT", "LEGS")
_BESIDE_ROWS = 3  # lines of a screen: the legend, the summary, and where the cursor is


class ExportFormat(StrEnum):
    JSON = "json"
    CHROME = "chrome"


def trace(  # noqa: PLR0913 - one for each option
    *,
    lines: Annotated[
        int | None,
        option(
            "N",
            "-n",
            "--lines",
            min=1,
            show_default=f"{_DEFAULT_REQUESTS}; all with --since, --json or --export",
        ),
    ] = None,
    follow: Annotated[bool, flag("--follow/--no-follow", "-f")] = False,
    session: Annotated[
        str | None,
        option(
            "ID",
            show_default="the last one; all with --since",
            autocompletion=shared_options.complete_sessions,
        ),
    ] = None,
    server: shared_options.ServersOption = None,
    slow: Annotated[str | None, option("TIME")] = None,
    failed: Annotated[bool, flag("--failed")] = False,
    grep: log_reading.GrepOption = None,
    since: shared_options.SinceOption = None,
    as_json: Annotated[bool, flag("--json")] = False,
    export: Annotated[Path | None, option("FILE")] = None,
    export_format: Annotated[ExportFormat, option("FORMAT", "--format")] = ExportFormat.JSON,
    payloads: Annotated[bool, flag("--payloads")] = False,
    web: Annotated[bool, flag("--web")] = False,
    browser: Annotated[bool, flag("--browser/--no-browser")] = True,
    port: Annotated[
        int | None, option("PORT", min=1, max=65535, show_default="that of the last page, or any")
    ] = None,
    log_dir: shared_options.LogDirectoryOption = None,
) -> None:
    """Show requests: how long each took and how it ended.

    Shows also what it waited for.

    Takes:
      lines: How many of the last requests to show.
      follow: Go on with those to come.
      session: The session whose id begins with this; `all` for every session.
      slow: Only requests that took at least this long: 500ms, 2s, 1m.
      failed: Only what failed.
      as_json: One JSON object; with --follow, one for each request.
      export: Write the requests into a new file: .json, or .html for the page.
      export_format: Of --json and --export: json, or chrome for Perfetto and chrome://tracing.
      payloads: With arguments and results, where they were recorded.
      web: Show them as a page in the browser, and follow.
      browser: With --web: open it, or print its address.
      port: With --web: where it is on this machine.

    Example: emceepee trace --since 8h --slow 1s

    Example: emceepee trace --failed --session all

    Example: emceepee trace --web
    """
    directory = log_dir or log_reading.log_directory(os.environ)
    pattern = log_reading.pattern_of(grep)
    start = log_reading.start_of(since)
    is_all = session == "all" or (session is None and (web or since is not None))
    chosen = "" if is_all else session or _last_session(directory)
    wanted = trace_reader.RequestFilter(
        servers=frozenset(server or ()),
        session=chosen.upper(),
        slow_ms=0.0 if slow is None else _span_ms(slow),
        failed=failed,
        matches=None if pattern is None else pattern.matches,
    )
    if export is not None:
        _check_export(export, export_format, web=web)
    if web:
        feed = PageFeed(directory, wanted=wanted, since=start)
        _show_page(feed, port=port, opens_browser=browser)
        return
    takes_all = since is not None or as_json or export is not None
    count = _MAX_REQUESTS if lines is None and takes_all else lines or _DEFAULT_REQUESTS
    cannot = "cannot be read or written"
    with (
        log_reading.ending_quietly(directory, cannot),
        closing(trace_reader.RequestReader(directory)) as reader,
    ):
        if not reader.has_files:
            terminal.note(
                f"No request has been recorded in {directory} yet. Requests of clients are "
                "recorded, calls by `emceepee call` are not."
            )
        view = _View(reader, wanted, payloads=payloads)
        view.rewind(count, since=start)
        if not (view.records or follow) and (problem := view.unknown_name(session or "")):
            raise problem
        if export is not None:
            _write_file(export, view, export_format, directory)
        elif as_json or export_format is not ExportFormat.JSON:
            _show_json(view, export_format, follow=follow)
        elif terminal.columns is None:
            _show_plain(view, follow=follow)
        else:
            _show_waterfall(view, count, follow=follow)


class _View:
    """The records to show, by their beginning, and how many are missing among them."""

    def __init__(
        self,
        reader: trace_reader.RequestReader,
        wanted: trace_reader.RequestFilter,
        *,
        payloads: bool,
    ) -> None:
        self._reader = reader
        self._wanted = wanted
        self._payloads = payloads
        self.records: list[RequestRecord] = []
        self.dropped = 0

    def rewind(self, count: int, *, since: float) -> None:
        def takes(line: trace_reader.RequestLine) -> bool:
            return isinstance(line.record, RequestRecord) and self._wanted(line.record)

        self._reader.rewind(count, takes, since=since)
        self.records = _by_beginning(self.new())

    def new(self) -> list[RequestRecord]:
        """What has come since the last call, in the order of ends; none of it is kept here."""
        new: list[RequestRecord] = []
        for line in self._reader.read():
            if isinstance(line.record, DroppedRecords):
                if line.record.session.startswith(self._wanted.session):
                    self.dropped += line.record.count
            elif line.record is not None and self._wanted(line.record):
                new.append(
                    line.record if self._payloads else trace_reader.without_payloads(line.record)
                )
        return new

    def unknown_name(self, session: str) -> typer.BadParameter | None:
        records = (line.record for line in self._reader.backward())
        seen = ((one.session, one.server) for one in records if isinstance(one, RequestRecord))
        wanted = self._wanted
        return log_reading.unknown_name(
            "request", seen, wanted.servers, session, lambda one: one.startswith(wanted.session)
        )

    def summary(self) -> str:
        outcomes = [record.outcome for record in self.records]
        promoted = outcomes.count("promoted")
        more = {
            "failed": sum(record.failed for record in self.records),
            "became a task" if promoted == 1 else "became tasks": promoted,
            "cancelled": outcomes.count("cancelled"),
            "not recorded": self.dropped,
        }
        counted = [f"{count} {what}" for what, count in more.items() if count]
        requests = f"{len(outcomes)} request{'' if len(outcomes) == 1 else 's'}"
        return f"{', '.join([requests, *counted])}."


def _by_beginning(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return sorted(records, key=attrgetter("id"))


def _last_session(directory: Path) -> str:
    """Of the request that ended last."""
    with closing(trace_reader.RequestReader(directory)) as reader:
        records = (line.record for line in reader.backward())
        last = next((record for record in records if record is not None), None)
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


def _show_waterfall(view: _View, count: int, *, follow: bool) -> None:
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
                log_reading.reader_leaves_within(log_reading.POLL_S)
                new = view.new()
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
    drawing = Waterfall(columns=(terminal.columns or 80) - 1, ascii_only=not terminal.is_utf8)
    return [*drawing.lines(records), drawing.legend(records), [(view.summary(), "")]]


def _show_plain(view: _View, *, follow: bool) -> None:
    terminal.table(_HEADINGS, [plain_row(record) for record in view.records])
    if not follow:
        terminal.note(view.summary())
        return
    view.records.clear()
    while not log_reading.reader_leaves_within(log_reading.POLL_S):
        for record in view.new():
            log_reading.write_line("\t".join(plain_row(record)))


def _show_json(view: _View, wanted: ExportFormat, *, follow: bool) -> None:
    if not follow:
        terminal.verbatim(harmless_json(_encoded(view, wanted).decode()))
        return
    while True:
        for record in view.records:
            log_reading.write_line(versioned(harmless_json(msgspec.json.encode(record).decode())))
        if log_reading.reader_leaves_within(log_reading.POLL_S):
            return
        view.records = view.new()


def _encoded(view: _View, wanted: ExportFormat) -> bytes:
    export = trace_reader.as_json if wanted is ExportFormat.JSON else trace_reader.as_chrome
    return msgspec.json.format(msgspec.json.encode(export(view.records, dropped=view.dropped)))


def _write_file(path: Path, view: _View, wanted: ExportFormat, directory: Path) -> None:
    data = _encoded(view, wanted)
    if path.suffix == ".html":
        clock = Clock()
        marks = trace_reader.marks_beside(directory, view.records)
        now = clock.iso(clock.now())
        data = exported_page(view.records, marks, dropped=view.dropped, exported_at=now).encode()
    write_whole(path, data)
    terminal.note(f"{view.summary()[:-1]}, in {path}.")


def _span_ms(text: str) -> float:
    if (seconds := log_reading.seconds_of(text)) is not None:
        return seconds * 1_000
    raise typer.BadParameter(f"{text!r} is no span like 500ms, 2s or 1m.", param_hint="--slow")


# Requests as a waterfall: one line each, with a bar that stands where its time was.
#
# Requests that follow each other closely share one axis; after a pause a new one begins, so that an
# hour in which nothing happened takes no room. A leg has a sign of its own as well as a colour, and
# whatever matters stands in words, too: a pipe and a person who sees no colours get the same facts.


Span = tuple[str, str]  # a text and its style

_PAUSE_MS = 2_000  # that a person sees as a new beginning; shorter ones stay on one axis
_WIDE_COLUMNS = 110  # from here on there is room for the names of servers and for all legs
_USUAL_COLUMNS = 76  # with fewer, everything gets narrower
_LEGS = {
    "connecting": ("░", "~", "magenta"),
    "queued": ("┄", ".", "bright_black"),
    "server": ("█", "#", "blue"),
    "person": ("▒", "?", "yellow"),
    "model": ("▚", "m", "cyan"),
    "waiting": ("·", "-", "bright_black"),
    "rendering": ("▪", "+", "green"),
}
_LIKE_A_BAR = re.compile("[\u00b7\u2500-\u25ff\u2800-\u28ff\U0001fb00-\U0001fbff]")
_OTHER_LEG = ("▪", "+", "")  # of a version that knows more
_OUTCOME_STYLES = {"error": "bold red", "tool_error": "red", "cancelled": "yellow"}
_SEEN_SHARE = 0.01  # of the time; what is less explains nothing


def leg_sums(record: RequestRecord) -> list[tuple[str, float]]:
    """How long it was on each leg in all, the longest first."""
    sums: dict[str, float] = {}
    for name, ms in record.legs:
        sums[name] = sums.get(name, 0.0) + ms
    return sorted(sums.items(), key=lambda leg: -leg[1])


def how_it_ended(record: RequestRecord) -> str:
    if record.outcome == "promoted":
        return "became a task"
    return " ".join(filter(None, (record.outcome, record.error_code)))


def plain_row(record: RequestRecord) -> list[str]:
    """All of it in words, for a pipe."""
    legs = ", ".join(f"{name} {duration_text(ms)}" for name, ms in leg_sums(record))
    return [
        log_reading.local_time(record.start_ms / 1000).isoformat(timespec="milliseconds"),
        duration_text(record.duration_ms),
        how_it_ended(record),
        record.server or "-",
        ("task of " if record.kind == "task" else "") + trace_reader.label_of(record),
        legs,
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """How it is drawn: so many columns, with signs that the terminal can show."""

    columns: int
    ascii_only: bool = False

    def lines(self, records: Sequence[RequestRecord]) -> Iterator[list[Span]]:
        """Each as its parts. The records come in the order in which they began."""
        for burst in _bursts(records):
            begin = burst[0].start_ms
            length = max(max(record.end_ms for record in burst) - begin, 1.0)
            dash = "-" if self.ascii_only else "─"
            at = f"{log_reading.local_time(begin / 1000):%Y-%m-%d %H:%M:%S}"
            text = f"{dash * 2} {at}, {duration_text(length)} "
            yield [(text + dash * max(self.columns - len(text), 0), "dim")]
            for record in burst:
                yield self._row(record, begin, length)

    def legend(self, records: Sequence[RequestRecord]) -> list[Span]:
        """The signs that occur."""
        found = {name for record in records for name, _ in record.legs}
        spans: list[Span] = []
        for name in [*(name for name in _LEGS if name in found), *sorted(found - _LEGS.keys())]:
            spans += [(self._sign(name), _style(name)), (f" {on_one_line(name)}  ", "dim")]
        return spans

    @property
    def _is_wide(self) -> bool:
        return self.columns >= _WIDE_COLUMNS

    def _row(self, record: RequestRecord, begin: float, length: float) -> list[Span]:
        name_columns, note_columns = self._widths()
        time = f"{log_reading.local_time(record.start_ms / 1000):%H:%M:%S.%f}"[
            : 12 if self._is_wide else 8
        ]
        took = f"{duration_text(record.duration_ms):>9}"
        bar_columns = max(self.columns - len(time) - name_columns - note_columns - len(took) - 4, 6)
        style = _OUTCOME_STYLES.get(record.outcome, "")
        return [
            (f"{time} ", "dim"),
            (f"{_fitted(self._name(record), name_columns)} ", style),
            *self._bar(record, begin, length, bar_columns),
            (f" {took} ", ""),
            (_cut(self._note(record), note_columns), style or "dim"),
        ]

    def _widths(self) -> tuple[int, int]:
        """Of the name and of the note; a code of ours has up to 19 characters."""
        if self._is_wide:
            return min(40, self.columns // 4), min(44, self.columns * 3 // 10)
        is_narrow = self.columns < _USUAL_COLUMNS
        return (self.columns // 4, self.columns // 5) if is_narrow else (24, 19)

    def _name(self, record: RequestRecord) -> str:
        """What a server or a model called it; no part of it looks like a bar."""
        arrow = ("> " if self.ascii_only else "↳ ") if record.kind == "task" else ""
        name = on_one_line(
            (f"{record.server}/" if record.server else "") + trace_reader.label_of(record)
        )
        return arrow + _LIKE_A_BAR.sub(lambda sign: f"\\u{ord(sign[0]):04x}", name)

    def _note(self, record: RequestRecord) -> str:
        """How it ended where that was not well; else where the time went."""
        ended = how_it_ended(record)
        sums = leg_sums(record)
        if not self._is_wide:
            longest = sums[0][0] if sums else ""
            return on_one_line(longest if record.outcome == "ok" else record.error_code or ended)
        least = _SEEN_SHARE * record.duration_ms
        legs = ", ".join(f"{name} {duration_text(ms)}" for name, ms in sums if ms >= least)
        return on_one_line(legs if record.outcome == "ok" else f"{ended}: {legs}")

    def _bar(self, record: RequestRecord, begin: float, length: float, columns: int) -> list[Span]:
        """Where it stands on the axis; each cell has the sign of the leg in its middle."""
        scale = columns / length
        first = min(int((record.start_ms - begin) * scale), columns - 1)
        last = max(min(int((record.end_ms - begin) * scale), columns - 1), first)
        spans: list[Span] = [(" " * first, "")]
        cell_ms = record.duration_ms / (last - first + 1)
        for cell in range(last - first + 1):
            name = _leg_at(record, (cell + 0.5) * cell_ms)
            spans.append((self._sign(name), _style(name)))
        spans.append((" " * (columns - 1 - last), ""))
        return spans

    def _sign(self, leg: str) -> str:
        return _LEGS.get(leg, _OTHER_LEG)[1 if self.ascii_only else 0]


def _style(leg: str) -> str:
    return _LEGS.get(leg, _OTHER_LEG)[2]


def _leg_at(record: RequestRecord, ms: float) -> str:
    for name, length in record.legs:
        ms -= length
        if ms < 0:
            return name
    return record.legs[-1][0] if record.legs else "rendering"


def _bursts(records: Sequence[RequestRecord]) -> Iterator[list[RequestRecord]]:
    """Those that follow each other without a pause."""
    burst: list[RequestRecord] = []
    end = 0.0
    for record in records:
        if burst and record.start_ms > end + _PAUSE_MS:
            yield burst
            burst = []
        end = max(end, record.end_ms) if burst else record.end_ms
        burst.append(record)
    if burst:
        yield burst


def _fitted(text: str, columns: int) -> str:
    """The beginning names the server, the end the tool: what is too long loses its middle."""
    if cell_len(text) <= columns:
        return set_cell_size(text, columns)
    head = set_cell_size(text, (columns - 1) // 2)
    tail = text[-columns:]
    while cell_len(tail) > columns - 1 - cell_len(head):
        tail = tail[1:]
    return set_cell_size(f"{head}…{tail}", columns)


def _cut(text: str, columns: int) -> str:
    return text if cell_len(text) <= columns else f"{set_cell_size(text, columns - 1)}…"


# The page in a browser.
#
# It is served until Ctrl-C. The port and the cookie of the last page are used again if the port is
# free, so that a page which is still open reconnects.


_STDERR_FD = 2


def _show_page(feed: PageFeed, *, port: int | None, opens_browser: bool) -> None:
    opens = opens_browser and os.isatty(_STDERR_FD)
    with closing(feed), suppress(KeyboardInterrupt):
        interrupts.run(partial(_serve, feed, port, opens=opens))


async def _serve(feed: PageFeed, port: int | None, *, opens: bool) -> None:
    clock = Clock()
    listener, identity = await _listener(port, now=clock.epoch(clock.now()))
    identity.save(trace_page.identity_file(os.environ))
    server = trace_page.PageServer(identity, feed)
    terminal.line(server.address)
    terminal.flush()
    opened = opens and open_browser(server.address, os.environ)
    how = "It opens in your browser" if opened else "Open it in a browser on this machine"
    terminal.note(f"{how}; the address is good for one use. Ctrl-C ends it.")
    await server.run(listener)


async def _listener(
    port: int | None, *, now: float
) -> tuple[Listener[SocketStream], trace_page.PageIdentity]:
    """Where the last page was, if it can be had; else anywhere."""
    saved = trace_page.PageIdentity.saved(trace_page.identity_file(os.environ), now=now)
    if saved is not None and port in (None, saved.port):
        with suppress(OSError):
            return (await loopback_listener(saved.port))[0], saved
    try:
        listener, bound = await loopback_listener(port or 0)
    except OSError as error:
        why = error.strerror or type(error).__name__
        step = "Choose another one, or leave --port out."
        terminal.note(f"emceepee: Port {port} of this machine cannot be used: {why}.\n{step}")
        raise typer.Exit(ExitCode.FAILED) from None
    return listener, trace_page.PageIdentity.new(bound, now=now)
