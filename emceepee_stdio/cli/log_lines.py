"""The lines that `tail-logs` shows: those of the journals, and one for every request that ended.

Requests are recorded in files of their own, and their records become lines like the journal's, so
that the same filters hold for both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from emceepee_stdio.cli.duration_text import duration_text
from emceepee_stdio.journal import JournalEvent, Level
from emceepee_stdio.journal.merged_reader import MergedReader
from emceepee_stdio.journal.reader import Line
from emceepee_stdio.journal.records import Record
from emceepee_stdio.trace.request_reader import RequestLine
from emceepee_stdio.trace.request_records import DroppedRecords, RequestRecord

__all__ = ["REQUEST_ENDED", "LogReader", "Story", "event_names", "plain_text", "story_of"]

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
