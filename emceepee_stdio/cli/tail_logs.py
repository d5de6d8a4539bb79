"""`emceepee tail-logs`: what the running proxies do, line by line.

Whoever ends it, by Ctrl-C or by closing the pipe, ends it quietly and well.
"""

import os
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from emceepee_stdio.cli.completions import complete_events, complete_sessions
from emceepee_stdio.cli.exit_codes import FAILED
from emceepee_stdio.cli.log_lines import LogReader, event_names, plain_text
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
from emceepee_stdio.cli.log_view import LogView
from emceepee_stdio.cli.shared_options import LogDirectoryOption, ServersOption, SinceOption
from emceepee_stdio.cli.terminal import Terminal, versioned
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.reader import Line
from emceepee_stdio.journal.records import Record
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.visible_text import harmless_json

__all__ = ["tail_logs"]

_DEFAULT_LINES = 20  # fits on one screen
_RANKS = {level.value: rank for rank, level in enumerate(Level)}
_OUTPUT = str(JournalEvent.SERVER_OUTPUT)
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
    """Follow what the running proxies write down: the journals of all of them, as one.

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
