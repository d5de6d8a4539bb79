"""What the journal says of servers, as marks beside the requests of the same time."""

from collections.abc import Mapping

import msgspec

from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.reader import Line
from emceepee_stdio.journal.records import Record

__all__ = ["Mark", "mark_of"]

_MAX_TEXT_CHARS = 1_000  # a log line in a list; the journal has the rest

_KINDS: Mapping[str, str] = {
    JournalEvent.SERVER_CONNECTED: "start",
    JournalEvent.SERVER_FAILED: "crash",
    JournalEvent.ELICITATION_RECEIVED: "question",
    JournalEvent.TOOL_EXECUTION_TIMEOUT: "promotion",
    JournalEvent.SERVER_OUTPUT: "log",
}
_DISCONNECTED = str(JournalEvent.SERVER_DISCONNECTED)
_OUTPUT = str(JournalEvent.SERVER_OUTPUT)
# The records say it already.
_CALLS = frozenset((JournalEvent.TOOL_EXECUTION_START, JournalEvent.TOOL_EXECUTION_COMPLETE))


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened at a server, or at emceepee itself where it has none."""

    kind: str
    at_ms: float
    session: str
    level: str
    event: str
    text: str
    server: str | None = None


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
    words = [f"{name}={_word(value)}" for name, value in record.data.items()]
    return " ".join([record.event, *words])


def _word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
