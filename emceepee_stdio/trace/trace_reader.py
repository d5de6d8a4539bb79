"""Reads trace files back: filters, exports, and the marks of what servers did."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path

import msgspec

from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.journal_reader import DatedLine, JournalReader, Line, MergedReader
from emceepee_stdio.journal.writer import Record
from emceepee_stdio.trace.request import DroppedRecords, RequestRecord

# The records of requests of all processes in one directory, read as one, by when each ended.


_NAME = re.compile(r"(requests-.+\.jsonl)(?:\.\d+)?", re.ASCII)

_decode_record = msgspec.json.Decoder(RequestRecord).decode
_decode_dropped = msgspec.json.Decoder(DroppedRecords).decode


RequestLine = DatedLine[RequestRecord | DroppedRecords]


def request_line(raw: bytes, otherwise: float) -> RequestLine:
    """A line without a time of its own has that of its neighbour."""
    for decode in (_decode_record, _decode_dropped):
        with suppress(msgspec.MsgspecError, ValueError, RecursionError):
            record = decode(raw)
            return DatedLine(raw, record.end_ms / 1000, record)
    return DatedLine(raw, otherwise, None)


class RequestReader(MergedReader[RequestRecord | DroppedRecords]):
    """Begins at the end of every file; `rewind` goes back, `read` goes on."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, _NAME, request_line)


# Which records of requests a person wants to see.


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """All that is set must hold.

    `session` begins an id; `slow_ms` is the shortest duration, without the time in which a tool
    waits because that is what it does; `matches` is given all of a record.
    """

    servers: frozenset[str] = frozenset()
    session: str = ""
    slow_ms: float = 0.0
    failed: bool = False
    matches: Callable[[str], object] | None = None

    def __call__(self, record: RequestRecord) -> bool:
        waited_ms = sum(ms for leg, ms in record.legs if leg == "waiting")
        return (
            (not self.servers or record.server in self.servers)
            and record.session.startswith(self.session)
            and (not self.slow_ms or record.duration_ms - waited_ms >= self.slow_ms)
            and (record.failed or not self.failed)
            and (self.matches is None or bool(self.matches(msgspec.json.encode(record).decode())))
        )


# Records of requests for other programs: as one JSON object, and as Chrome's trace events.
#
# docs/reference/tracing.md documents both. Payloads go out only where the person asks for them.


SCHEMA_VERSION = 1

_OWN = "emceepee"  # the lane of what no server was asked for


def without_payloads(record: RequestRecord) -> RequestRecord:
    if record.arguments is None and record.result is None:
        return record
    return msgspec.structs.replace(record, arguments=None, result=None)


def label_of(record: RequestRecord) -> str:
    """What was done, in a word or two: the server's tool, a tool of ours, or the method."""
    return record.server_tool or record.tool or record.method


def as_json(records: Sequence[RequestRecord], *, dropped: int) -> object:
    return {"schema_version": SCHEMA_VERSION, "dropped": dropped, "requests": records}


def as_chrome(records: Sequence[RequestRecord], *, dropped: int) -> object:
    """One process for each session, one thread for each server.

    Requests overlap, so they are asynchronous events: each has its own line, its legs below it.
    """
    sessions = _numbered(record.session for record in records)
    servers = _numbered(record.server or _OWN for record in records)
    events: list[dict[str, object]] = []
    for session, pid in sessions.items():
        events.append(_named("process_name", f"emceepee {session}", pid=pid))
        events += [
            _named("thread_name", server, pid=pid, tid=tid) for server, tid in servers.items()
        ]
    for record in records:
        place = {"pid": sessions[record.session], "tid": servers[record.server or _OWN]}
        events += _spans(record, place)
    other = {"schema_version": SCHEMA_VERSION, "dropped": dropped}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _spans(record: RequestRecord, place: dict[str, int]) -> list[dict[str, object]]:
    facts = msgspec.to_builtins(record)
    request = {"cat": record.kind, "id": record.id, **place}
    begin_us, at_us = record.start_ms * 1000, record.start_ms * 1000
    spans: list[dict[str, object]] = [
        {"ph": "b", "name": label_of(record), "ts": begin_us, "args": facts, **request}
    ]
    for name, ms in record.legs:
        spans.append({"ph": "b", "name": name, "ts": at_us, **request})
        at_us += ms * 1000
        spans.append({"ph": "e", "name": name, "ts": at_us, **request})
    end_us = begin_us + record.duration_ms * 1000
    spans.append({"ph": "e", "name": label_of(record), "ts": end_us, **request})
    return spans


def _named(what: str, name: str, **place: int) -> dict[str, object]:
    return {"ph": "M", "name": what, "args": {"name": name}, **place}


def _numbered(names: Iterable[str]) -> dict[str, int]:
    return {name: number for number, name in enumerate(dict.fromkeys(names), 1)}


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
