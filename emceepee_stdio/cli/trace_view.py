"""Requests as a waterfall in the terminal, and the page of `emceepee trace --web`.

The page is served until Ctrl-C, and opened where a person sits.

The port and the cookie of the last page are taken again where the port is free, so that a page
which is still open comes back by itself.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.cells import cell_len, set_cell_size

from emceepee_stdio.auth.browser import open_browser
from emceepee_stdio.cli.terminal import FAILED, Terminal, duration_text, interrupts
from emceepee_stdio.clock import Clock
from emceepee_stdio.trace.page_server import LOOPBACK, PageAccess, PageIdentity, identity_file
from emceepee_stdio.trace.request_records import RequestRecord
from emceepee_stdio.trace.trace_reader import label_of
from emceepee_stdio.visible_text import on_one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import Listener, SocketStream

    from emceepee_stdio.trace.page_feed import PageFeed


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
        _local(record.start_ms).isoformat(timespec="milliseconds"),
        duration_text(record.duration_ms),
        how_it_ended(record),
        record.server or "-",
        ("task of " if record.kind == "task" else "") + label_of(record),
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
            yield self._heading(begin, length)
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

    def _heading(self, begin: float, length: float) -> list[Span]:
        dash = "-" if self.ascii_only else "─"
        text = f"{dash * 2} {_local(begin):%Y-%m-%d %H:%M:%S}, {duration_text(length)} "
        return [(text + dash * max(self.columns - len(text), 0), "dim")]

    def _row(self, record: RequestRecord, begin: float, length: float) -> list[Span]:
        name_columns, note_columns = self._widths()
        time = f"{_local(record.start_ms):%H:%M:%S.%f}"[: 12 if self._is_wide else 8]
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
        return (
            (24, 19) if self.columns >= _USUAL_COLUMNS else (self.columns // 4, self.columns // 5)
        )

    def _name(self, record: RequestRecord) -> str:
        arrow = "> " if self.ascii_only else "↳ "
        server = f"{record.server}/" if record.server else ""
        return f"{arrow if record.kind == 'task' else ''}{_named(server + label_of(record))}"

    def _note(self, record: RequestRecord) -> str:
        """How it ended where that was not well; else where the time went."""
        ended = how_it_ended(record)
        sums = leg_sums(record)
        if not self._is_wide:
            longest = sums[0][0] if sums else ""
            return on_one_line(longest if record.outcome == "ok" else record.error_code or ended)
        seen = [leg for leg in sums if leg[1] >= _SEEN_SHARE * record.duration_ms]
        legs = ", ".join(f"{name} {duration_text(ms)}" for name, ms in seen)
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


def _named(text: str) -> str:
    """What a server or a model called it; no part of it looks like a bar."""
    return _LIKE_A_BAR.sub(lambda sign: f"\\u{ord(sign[0]):04x}", on_one_line(text))


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


def _local(ms: float) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC).astimezone()


_STDERR_FD = 2


def show_page(
    directory: Path,
    *,
    wanted: "Callable[[RequestRecord], bool]",
    since: float,
    port: int | None,
    opens_browser: bool,
) -> None:
    """Until Ctrl-C, which is how it ends well."""
    from emceepee_stdio.trace.page_feed import PageFeed  # noqa: PLC0415 - only for the page

    feed = PageFeed(directory, wanted=wanted, since=since)
    opens = opens_browser and os.isatty(_STDERR_FD)
    try:
        with suppress(KeyboardInterrupt):
            interrupts.run(partial(_serve, feed, port, opens=opens))
    finally:
        feed.close()


def whole_page(directory: Path, records: "Sequence[RequestRecord]", *, dropped: int) -> str:
    """The page with these requests in it, and with what the journal says of their time."""
    from emceepee_stdio.trace.page_feed import exported_page  # noqa: PLC0415 - only for the page
    from emceepee_stdio.trace.trace_reader import marks_beside  # noqa: PLC0415 - see above

    clock = Clock()
    return exported_page(
        records,
        marks_beside(directory, records),
        dropped=dropped,
        exported_at=clock.iso(clock.now()),
    )


async def _serve(feed: "PageFeed", port: int | None, *, opens: bool) -> None:
    from emceepee_stdio.trace.page_server import PageServer  # noqa: PLC0415 - only for the page

    clock = Clock()
    listener, identity = await _listener(port, now=clock.epoch(clock.now()))
    identity.save(identity_file(os.environ))
    access = PageAccess(identity)
    terminal = Terminal()
    terminal.line(access.address)
    typer.echo("", nl=False)  # writes nothing, and flushes
    opened = opens and open_browser(access.address, os.environ)
    how = "It opens in your browser" if opened else "Open it in a browser on this machine"
    terminal.note(f"{how}; the address is good for one use. Ctrl-C ends it.")
    await PageServer(access, feed).run(listener)


async def _listener(
    port: int | None, *, now: float
) -> "tuple[Listener[SocketStream], PageIdentity]":
    """Where the last page was, if it can be had; else anywhere."""
    saved = PageIdentity.saved(identity_file(os.environ), now=now)
    if saved is not None and port in (None, saved.port):
        with suppress(OSError):
            return (await _bound(saved.port))[0], saved
    try:
        listener, bound = await _bound(port or 0)
    except OSError as error:
        why = error.strerror or type(error).__name__
        Terminal().note(f"emceepee: Port {port} of this machine cannot be used: {why}.")
        Terminal().note("Choose another one, or leave --port out.")
        raise typer.Exit(FAILED) from None
    return listener, PageIdentity.new(bound, now=now)


async def _bound(port: int) -> "tuple[Listener[SocketStream], int]":
    import anyio  # noqa: PLC0415 - only for the page
    from anyio.abc import SocketAttribute  # noqa: PLC0415 - see above

    made = await anyio.create_tcp_listener(local_host=LOOPBACK, local_port=port)
    listener = made.listeners[0]
    return listener, listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
