"""The record of a request as a JSON line of the trace file; see docs/tracing.md.

A record is made of what `open_request` gathered, off the loop where the lines are written. What a
client or a server said is bounded in it, and searched for secrets.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.ids import ulid_of
from emceepee_stdio.redaction.redact import redact, redact_text
from emceepee_stdio.trace.open_request import Leg, OpenRequest
from emceepee_stdio.visible_text import cut

_MAX_NAME_CHARS = 200  # as in the journal: more than this is no name
_MARGIN_CHARS = 1_000  # searched for secrets beyond the cut: half a secret is not recognised
_MAX_ID_BITS = 63  # of a number; JSON of other languages reads no more
_PAYLOAD_CHARS = (
    16 * 1024
)  # of arguments and of a result each; as much as of one text in the journal
MAX_PAYLOAD_BYTES = 4 * (_PAYLOAD_CHARS + _MARGIN_CHARS)  # kept until it is written
_LATEST_MS = 125_000_000_000_000  # twice that is in the year 9892: an end is a date, too
_LEG_NAMES = tuple(leg.name.lower() for leg in Leg)


_Milliseconds = Annotated[float, Meta(ge=0, le=_LATEST_MS)]


class RequestRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One request that has ended. The order of the fields is their order in the file."""

    id: str
    session: str
    kind: Literal["request", "task"]
    method: str
    start_ms: _Milliseconds
    duration_ms: _Milliseconds
    legs: list[tuple[str, _Milliseconds]]
    outcome: str
    request_id: str | int | None = None
    tool: str | None = None
    server: str | None = None
    server_tool: str | None = None
    parent: str | None = None
    task_id: str | None = None
    error_code: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    progress: int = 0
    questions: int = 0
    traceparent: str | None = None
    begins_trace: bool = False
    arguments: str | None = None
    result: str | None = None

    @property
    def end_ms(self) -> float:
        return self.start_ms + self.duration_ms

    @property
    def failed(self) -> bool:
        return self.outcome in ("tool_error", "error")


class DroppedRecords(msgspec.Struct, frozen=True, kw_only=True):
    """Stands where `count` records are missing, because they came faster than they were written."""

    kind: Literal["dropped"]
    session: str
    count: Annotated[int, Meta(gt=0)]
    start_ms: _Milliseconds

    @property
    def end_ms(self) -> float:
        return self.start_ms


class RecordMaker:
    """Makes the records of one session. `mask` hides what is known to be a secret."""

    def __init__(
        self, session: str, clock: Clock, *, salt: int, mask: Callable[[str], str] = str
    ) -> None:
        self.mask = mask
        self._session = session
        self._clock = clock
        self._salt = salt
        self._names = _Names(self._shown)

    def records(self, requests: Iterable[OpenRequest]) -> list[RequestRecord]:
        """Names come again and again: each is looked at once, not to miss new secrets."""
        self._names = _Names(self._shown)
        anchor = self._clock.epoch(0.0)
        return [self._record(request, anchor) for request in requests]

    def _record(self, request: OpenRequest, anchor: float) -> RequestRecord:
        """By position: with so many names Python would make a dict of them for each record."""
        names = self._names
        start_ms = _ms(anchor + request.started_at)
        if request.id is None:
            request.id = ulid_of(int(start_ms), self._salt + request.number)
        return RequestRecord(
            request.id,
            self._session,
            "task" if request.is_task else "request",
            names[request.method],
            start_ms,
            int((request.ended_at - request.started_at) * 1e6 + 0.5) / 1000,
            [(_LEG_NAMES[leg], int(seconds * 1e6 + 0.5) / 1000) for leg, seconds in request.legs],
            request.outcome or "",
            None if request.is_task else self._request_id(request.request_id),
            request.tool and names[request.tool],
            request.server and names[request.server],
            request.server_tool and names[request.server_tool],
            request.parent and self._parent(request, request.parent, anchor),
            request.task_id,
            request.error_code,
            request.bytes_in,
            request.bytes_out,
            request.progress,
            request.questions,
            request.traceparent,
            request.begins_trace,
            None if request.arguments is None else self._payload(request.arguments),
            None if request.result is None else self._payload(request.result),
        )

    def dropped(self, count: int) -> DroppedRecords:
        now_ms = _ms(self._clock.epoch(self._clock.now()))
        return DroppedRecords(kind="dropped", session=self._session, count=count, start_ms=now_ms)

    def _parent(self, request: OpenRequest, parent: OpenRequest | str, anchor: float) -> str:
        """By its id from now on, so that no chain of requests is kept."""
        if isinstance(parent, OpenRequest):
            parent = request.parent = self._record(parent, anchor).id
        return parent

    def _request_id(self, given: str | int) -> str | int:
        if isinstance(given, str):
            return self._shown(given)
        return given if given.bit_length() <= _MAX_ID_BITS else "a number of over 63 bits"

    def _shown(self, text: str, max_chars: int = _MAX_NAME_CHARS) -> str:
        head = text[: max_chars + _MARGIN_CHARS]
        return cut(redact_text(self.mask(head)), max_chars)

    def _payload(self, payload: bytes) -> str:
        """Secrets have names in JSON; what was cut, and is none any more, is searched as text."""
        text = payload.decode("utf-8", "replace")
        with suppress(msgspec.MsgspecError, RecursionError):
            value = redact(decode_value(payload), max_chars=_PAYLOAD_CHARS)
            text = msgspec.json.encode(value).decode()
        return self._shown(text, _PAYLOAD_CHARS)


class _Names(dict[str, str]):
    """Names as they are shown, each looked at once."""

    def __init__(self, shown: Callable[[str], str]) -> None:
        self._shown = shown

    def __missing__(self, name: str) -> str:
        shown = self[name] = self._shown(name)
        return shown


def _ms(seconds: float) -> float:
    """Milliseconds to the microsecond."""
    return int(seconds * 1e6 + 0.5) / 1000
