"""What must hold of the records of requests, whatever went wrong meanwhile."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from emceepee_stdio.trace.request import MAX_LEGS, DroppedRecords, RequestRecord
from emceepee_stdio.trace.trace_reader import RequestReader

_EXACT_MS = 1.0  # by which the legs may miss the time that they are the parts of


def record_faults(directory: Path, calls_sent: Iterable[int]) -> list[str]:
    """Each call that was sent is recorded once or counted as dropped, and its legs add up."""
    records, dropped = _read(directory)
    faults = [f"recorded twice: {record}" for record in _twice(records)]
    for record in records:
        parts = sum(ms for _, ms in record.legs)
        if parts != pytest.approx(record.duration_ms, abs=_EXACT_MS):
            faults.append(f"the legs add up to {parts} ms: {record}")
        if not 0 < len(record.legs) <= MAX_LEGS or min(ms for _, ms in record.legs) < 0:
            faults.append(f"no sensible legs: {record}")
    recorded = Counter(
        record.request_id
        for record in records
        if record.kind == "request" and record.method == "tools/call"
    )
    sent = Counter[str | int | None](calls_sent)
    missing = sent - recorded
    if missing.total() > dropped:
        faults.append(f"{missing.total()} calls have no record, {dropped} counted: {missing}")
    faults += [f"records of calls that nobody made: {extra}" for extra in recorded - sent]
    return faults + _faults_of_tasks(records)


def _faults_of_tasks(records: list[RequestRecord]) -> list[str]:
    """What goes on after a promotion has one record, which names the request."""
    promoted = {record.id: record for record in records if record.outcome == "promoted"}
    tasks = [record for record in records if record.kind == "task"]
    faults = [f"a task of no request: {task}" for task in tasks if task.parent not in promoted]
    lost = promoted.keys() - {task.parent for task in tasks}
    return faults + [f"a task without a record: {promoted[name]}" for name in lost]


def _twice(records: list[RequestRecord]) -> list[str]:
    return [name for name, times in Counter(record.id for record in records).items() if times > 1]


def _read(directory: Path) -> tuple[list[RequestRecord], int]:
    reader = RequestReader(directory)
    reader.rewind(None, lambda _: True)
    lines = [line.record for line in reader.read()]
    reader.close()
    dropped = sum(line.count for line in lines if isinstance(line, DroppedRecords))
    return [line for line in lines if isinstance(line, RequestRecord)], dropped
