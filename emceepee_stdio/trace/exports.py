"""Records of requests for other programs: as one JSON object, and as Chrome's trace events.

Both are documented in docs/tracing.md. Payloads go out only where the person asks for them.
"""

from collections.abc import Iterable, Sequence

import msgspec

from emceepee_stdio.trace.request_records import RequestRecord

__all__ = ["as_chrome", "as_json", "label_of", "without_payloads"]

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
