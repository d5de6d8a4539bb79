"""The requests of one session: open ones, the last ones, and the trace file.

Each request that begins here ends here once, at the latest when the session does. What has ended is
handed to a thread, which makes the records and writes them some at a time: whoever ends a request
pays for an append, never for a disk. What comes faster than it can be written is dropped and
counted, and the count is written where the records are missing.
"""

from collections import deque
from collections.abc import Mapping
from secrets import randbits

import msgspec

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal.journal_files import JournalFile
from emceepee_stdio.journal.writer import BackgroundWriter
from emceepee_stdio.redaction.known_secrets import Secrets
from emceepee_stdio.trace.request import (
    MAX_PAYLOAD_BYTES,
    OpenRequest,
    RecordMaker,
    RequestRecord,
    new_traceparent,
)
from emceepee_stdio.trace.telemetry import Telemetry

_RECENT = 50  # requests that a model is shown of its own work
_MAX_QUEUED = 20_000  # two seconds of the fastest client; more waits only for a stuck disk
_MAX_QUEUED_BYTES = 16 << 20  # of payloads, where they are recorded
_GATHER_S = 0.1  # nobody sees records sooner; one wake-up of the thread serves all of them
_GATHER_LINES = 1_000  # a client at full speed makes them in 40 ms; they take 1 MB
_BATCH = 100  # records made before the disk is written to, and others get their turn
_DRAIN_S = 1.0  # that ending the process may cost
_SALT_BITS = 79  # of 80, so that counting up never runs over
_RECORD_BYTES = 500  # what waits of a request without payloads

_encode = msgspec.json.Encoder().encode_lines


class RequestLog:
    """`keeps_payloads` is what a person has set; `secrets` are hidden in every record.

    No file is touched before the first record.
    """

    def __init__(
        self,
        file: JournalFile | None,
        *,
        session: str,
        clock: Clock,
        keeps_payloads: bool = False,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._file = file
        self._telemetry = telemetry
        self.is_collected = telemetry is not None
        self._now = clock.now
        self.secrets = Secrets()  # hidden in every record
        self._maker = RecordMaker(session, clock, salt=randbits(_SALT_BITS), mask=self.secrets.mask)
        self._count = 0
        self._open: dict[OpenRequest, None] = {}
        self._recent: deque[OpenRequest] = deque(maxlen=_RECENT)
        self._lost = 0  # by the file, and not yet told in it
        self.keeps_payloads = keeps_payloads
        self._writer: BackgroundWriter[OpenRequest] = BackgroundWriter(
            "emceepee-requests",
            self._carry,
            max_lines=_MAX_QUEUED,
            max_bytes=_MAX_QUEUED_BYTES,
            gather_s=_GATHER_S,
            gather_lines=_GATHER_LINES,
            finish=self._finish,
        )

    @classmethod
    def silent(cls, clock: Clock) -> "RequestLog":
        """One that writes nothing, for a session that lasts as long as one command."""
        return cls(None, session="", clock=clock)

    def __repr__(self) -> str:
        return f"<RequestLog {len(self._open)} open, {self._count} begun>"

    def begin(
        self,
        method: str,
        request_id: str | int,
        *,
        tool: str | None = None,
        bytes_in: int = 0,
    ) -> OpenRequest:
        self._count += 1
        now = self._now()
        request = OpenRequest(
            now=self._now,
            number=self._count,
            method=method,
            request_id=request_id,
            tool=tool,
            bytes_in=bytes_in,
            started_at=now,
            since=now,
        )
        self._open[request] = None
        return request

    def answered(
        self, request: OpenRequest, body: bytes, *, is_error: bool, task_id: str | None = None
    ) -> None:
        """Its client has its answer: the result, an error, or the task that it became."""
        request.bytes_out = len(body)
        if self.keeps_payloads:
            request.result = body[:MAX_PAYLOAD_BYTES]
        if task_id is not None and request in self._open:
            request.task_id = task_id
            self._go_on(request, "promoted")
            self._count += 1
            request.become_task(self._count)
            return
        error = "tool_error" if request.error_code is None else "error"
        self.end(request, error if is_error else "ok")

    def task_ended(self, request: OpenRequest, how: str, more: Mapping[str, str | int]) -> None:
        """What a call came to after it was answered with a task."""
        if how == "completed":
            request.bytes_out = int(more["bytes"])
            outcome = "tool_error" if more["is_error"] else "ok"
        elif how == "expired":
            outcome, request.error_code = "error", "call_timeout"
        elif how == "failed":
            outcome, request.error_code = "error", str(more["error"])
        else:
            outcome = "cancelled"
        self.end(request, outcome)

    def asked_back(self, request: OpenRequest) -> None:
        """Its answer is a question; the client makes it again, and then it goes on."""
        if request in self._open:
            self._go_on(request, "input_required")
            del self._open[request]

    def made_again(self, request: OpenRequest, again: OpenRequest) -> None:
        """`again` has come in, and is the same work."""
        self._open.pop(again, None)
        request.become(again)
        self._open[request] = None

    def end(self, request: OpenRequest, outcome: str) -> None:
        """Whatever ends it first counts."""
        if self._open.pop(request, request) is None:
            request.end(outcome)
            self._keep(request)

    def with_trace(
        self, meta: Mapping[str, msgspec.Raw], request: OpenRequest
    ) -> Mapping[str, msgspec.Raw]:
        """What its server is told: a new trace, where the client named none and it is collected."""
        if self._telemetry is None or "traceparent" in meta:
            return meta
        request.traceparent, request.begins_trace = new_traceparent(), True
        return {**meta, **request.meta}

    def recent(self) -> list[RequestRecord]:
        """Those that ended last, the oldest first."""
        return self._maker.records(self._recent)

    def flush(self, timeout: float = _DRAIN_S) -> bool:
        """Wait until what has ended so far is written; False when the time was up."""
        return self._writer.flush(timeout)

    def close(self) -> None:
        """End what is open, and write what waits, within a second."""
        for request in list(self._open):
            self.end(request, "cancelled")
        self._writer.close(_DRAIN_S)
        if self._telemetry is not None:
            self._telemetry.close()

    @property
    def dropped(self) -> int:
        return self._writer.dropped

    def _go_on(self, request: OpenRequest, outcome: str) -> None:
        self._keep(request.end_but_go_on(outcome))

    def _keep(self, ended: OpenRequest) -> None:
        self._recent.append(ended)
        if self._file is not None:
            self._writer.offer(ended, _size(ended) if self.keeps_payloads else _RECORD_BYTES)

    def _carry(self, ended: list[OpenRequest], dropped: int) -> None:
        self._lost += dropped
        for start in range(0, len(ended), _BATCH):
            batch = ended[start : start + _BATCH]
            records = self._maker.records(batch)
            self._append(_encode(records), len(batch))
            if self._telemetry is not None:
                self._telemetry.take(records)
        if self._lost:
            count, self._lost = self._lost, 0
            self._append(_encode([self._maker.dropped(count)]), count)

    def _append(self, lines: bytes, count: int) -> None:
        """A disk that takes nothing costs these records; they are counted once it does again."""
        if self._file is None:
            return
        written = self._file.lines
        try:
            self._file.append(lines)
        except OSError:
            self._lost += max(count - (self._file.lines - written), 0)

    def _finish(self) -> None:
        if self._file is not None:
            self._file.close()


def _size(request: OpenRequest) -> int:
    return _RECORD_BYTES + len(request.arguments or b"") + len(request.result or b"")
