"""What the journal says of servers, as marks beside the requests of the same time."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import msgspec

from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.reader import JournalReader, Line
from emceepee_stdio.journal.records import Record
from emceepee_stdio.trace.request_records import RequestRecord

__all__ = ["MARKS_BEFORE_S", "MAX_MARKS", "Mark", "mark_of", "marks_beside"]

MAX_MARKS = 20_000  # read at once; servers that log much would bury the others
MARKS_BEFORE_S = 60.0  # a start or crash just before the first request belongs to it
_MAX_TEXT_CHARS = 1_000  # a log line in a list; the journal has the rest

_KINDS: Mapping[str, str] = {
    JournalEvent.SERVER_CONNECTED: "start",
    JournalEvent.SERVER_FAILED: "crash",
    JournalEvent.ELICITATION_RECEIVED: "question",
    JournalEvent.TOOL_EXECUTION_TIMEOUT: "promotion",
    JournalEvent.SERVER_OUTPUT: "log",
    JournalEvent.CLIENT_CONNECTED: "session",
}
_DISCONNECTED = str(JournalEvent.SERVER_DISCONNECTED)
_CLIENT = str(JournalEvent.CLIENT_CONNECTED)
_OUTPUT = str(JournalEvent.SERVER_OUTPUT)
# The records say it already.
_CALLS = frozenset((JournalEvent.TOOL_EXECUTION_START, JournalEvent.TOOL_EXECUTION_COMPLETE))


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened at a server, or at emceepee itself where it has none.

    One of the kind `session` is the client of the session, by its name.
    """

    kind: str
    at_ms: float
    session: str
    level: str
    event: str
    text: str
    server: str | None = None


def marks_beside(directory: Path, records: Sequence[RequestRecord]) -> list[Mark]:
    """Those of the sessions and the time of these records."""
    since = min((record.start_ms for record in records), default=inf) / 1000 - MARKS_BEFORE_S
    until_ms = max((record.end_ms for record in records), default=-inf) + MARKS_BEFORE_S * 1000
    sessions = {record.session for record in records}
    reader = JournalReader(directory)
    reader.rewind(MAX_MARKS, lambda line: mark_of(line) is not None, since=since)
    marks = [mark for line in reader.read() if (mark := mark_of(line)) is not None]
    reader.close()
    return [mark for mark in marks if mark.session in sessions and mark.at_ms <= until_ms]


def mark_of(line: Line) -> Mark | None:
    """The mark of a line of the journal; None where it adds nothing to the records."""
    record = line.record
    kind = None if record is None else _kind(record)
    if record is None or kind is None:
        return None
    return Mark(
        kind=kind,
        at_ms=line.at * 1000,
        session=record.session,
        level=record.level,
        event=record.event,
        text=_text(record)[:_MAX_TEXT_CHARS],
        server=record.server,
    )


def _kind(record: Record) -> str | None:
    is_warning = record.level in (Level.WARNING, Level.ERROR)
    if record.event in _CALLS:
        return None
    if record.event == _DISCONNECTED and is_warning:
        return "crash"
    if record.event in _KINDS:
        return _KINDS[record.event]
    if is_warning:
        return "warning"
    return None if record.server is None else "log"


def _text(record: Record) -> str:
    if record.event == _OUTPUT:
        return str(record.data.get("text", ""))
    if record.event == _CLIENT:
        return f"{record.data.get('name', '')} {record.data.get('version', '')}".strip()
    words = [f"{name}={_word(value)}" for name, value in record.data.items()]
    return " ".join([record.event, *words])


def _word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
