"""A request under way with the legs of its time, and its record once it has ended.

A request is on one leg at any time, so the legs add up to its wall time whatever happens. Several
things may be waited for at once (four servers list their tools) and one inside another (a request
to a server makes the connection first): each wait is counted on its leg, and the request is on the
highest leg that has one. With nothing to wait for, emceepee itself is at work: `RENDERING`.

What waits on behalf of a request need not be given it: it stands in `current_request`, which async
tasks inherit from the one that starts them. What is marked on a request that has ended changes
nothing.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.ids import ulid_of
from emceepee_stdio.redaction.redact import redact, redact_text
from emceepee_stdio.visible_text import cut

# `traceparent`, by the W3C's recommendation on trace context, as it stands in `_meta`.


_FORM = re.compile(rb'"([0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})"')
_TRACE_ID_BYTES, _SPAN_ID_BYTES = 16, 8


def traceparent_in(value: Raw | UnsetType) -> str | None:
    """What a client said, where it has the form; whatever else it is, is passed on unread."""
    found = None if value is UNSET else _FORM.fullmatch(memoryview(value))
    return None if found is None else found[1].decode()


def new_traceparent() -> str:
    """Of a trace that begins here, and is recorded."""
    return f"00-{secrets.token_hex(_TRACE_ID_BYTES)}-{secrets.token_hex(_SPAN_ID_BYTES)}-01"


MAX_LEGS = 32  # enough to tell a story; a server that asks a thousand times needs no more lines


class Leg(IntEnum):
    """What a request waits for. Where it waits for several, the highest counts."""

    RENDERING = 0
    WAITING = 1
    QUEUED = 2
    SERVER = 3
    CONNECTING = 4
    MODEL = 5  # that answers what a server asked
    PERSON = 6


_FREE_LEGS = MAX_LEGS - len(Leg)  # what comes after these is added up, one entry for each leg

# How many waits there are on each leg, in one number: it is counted twice in every call.
_BITS = 16  # for each leg; nobody waits for 65,536 things at once
_ONE = (0, *(1 << _BITS * index for index in range(len(Leg) - 1)))
_LEGS = tuple(Leg)


class OpenRequest(msgspec.Struct, eq=False, kw_only=True, gc=False):
    """One request of the client, or what goes on of it after it became a task."""

    now: Callable[[], float]
    number: int = 0
    id: str | None = None  # made with the first record that names it
    is_task: bool = False
    method: str = ""
    request_id: str | int = ""
    tool: str | None = None
    server: str | None = None
    server_tool: str | None = None
    names_none: bool = False  # of the servers, because there were several
    parent: "OpenRequest | str | None" = None
    task_id: str | None = None
    outcome: str | None = None
    error_code: str | None = None
    bytes_in: int = 0
    bytes_out: int = 0
    progress: int = 0
    questions: int = 0
    traceparent: str | None = None
    begins_trace: bool = False
    arguments: bytes | None = None
    result: bytes | None = None
    legs: list[tuple[Leg, float]] = []
    leg: Leg = Leg.RENDERING
    waits: int = 0
    started_at: float
    since: float  # when this leg began; the first begins with the request
    ended_at: float = 0.0

    def __repr__(self) -> str:
        state = self.outcome or self.leg.name.lower()
        return f"<OpenRequest {self.method} {self.tool or '-'} {state}>"

    @property
    def meta(self) -> Mapping[str, msgspec.Raw]:
        """What a server is told of it that is no call: the trace that it is part of."""
        if self.traceparent is None:
            return {}
        return {"traceparent": msgspec.Raw(b'"%b"' % self.traceparent.encode())}

    def enter(self, leg: Leg) -> None:
        """One more wait on this leg."""
        self.waits += _ONE[leg]
        if leg > self.leg:
            self._move_to(leg)

    def leave(self, leg: Leg) -> None:
        """One wait less."""
        waits = self.waits = self.waits - _ONE[leg]
        if waits < _ONE[self.leg]:  # it was the last one on the highest leg
            self._move_to(_LEGS[(waits.bit_length() + _BITS - 1) // _BITS])

    def at(self, server: str) -> None:
        """It waits on this server; one that waits on several names none."""
        if self.server is None and not self.names_none:
            self.server = server
        elif self.server != server and self.server_tool is None:
            self.server, self.names_none = None, True

    def ask(self) -> None:
        """Something is asked of a person, on behalf of this request."""
        self.questions += 1
        self.enter(Leg.PERSON)

    def answered(self, leg: Leg = Leg.PERSON) -> None:
        self.leave(leg)

    def was_asked(self, asked_at: float) -> None:
        """It brings an answer of the person, who has been asked since then."""
        self.legs = [(Leg.PERSON, self.started_at - asked_at)]
        self.started_at = asked_at

    def end(self, outcome: str) -> None:
        self._move_to(self.leg)
        self.ended_at = self.since
        self.outcome = outcome

    def end_but_go_on(self, outcome: str) -> "OpenRequest":
        """Its end, at this moment, as another value; this one goes on, and is of another then."""
        self._move_to(self.leg)
        ended = copy(self)
        ended.ended_at, ended.outcome = self.since, outcome
        self.parent, self.id = ended, None
        self.outcome = self.error_code = self.result = None
        self.legs = []
        self.progress = self.questions = self.bytes_in = self.bytes_out = 0
        return ended

    def become_task(self, number: int) -> None:
        """What follows is the task's own: it begins now, and waits where the call waits now."""
        self.number, self.is_task = number, True
        self.started_at = self.since

    def become(self, request: "OpenRequest") -> None:
        """The client has made the request again: from its arrival on, this is that one."""
        self.number, self.request_id, self.bytes_in = (
            request.number,
            request.request_id,
            request.bytes_in,
        )
        self.traceparent, self.arguments = request.traceparent, request.arguments
        self.legs = [*request.legs]
        self.started_at, self.since = request.started_at, request.since

    def _move_to(self, leg: Leg) -> None:
        now = self.now()
        legs = self.legs
        if self.outcome is None:
            if len(legs) < _FREE_LEGS:
                legs.append((self.leg, now - self.since))
            else:
                self._add_up(self.leg, now - self.since)
        self.leg = leg
        self.since = now

    def _add_up(self, leg: Leg, seconds: float) -> None:
        legs = self.legs
        for index in range(_FREE_LEGS, len(legs)):
            if legs[index][0] is leg:
                legs[index] = leg, legs[index][1] + seconds
                return
        legs.append((leg, seconds))


current_request: ContextVar[OpenRequest | None] = ContextVar("current_request", default=None)


class on_leg:  # noqa: N801 - used as a statement: with on_leg(Leg.SERVER)
    """What the block waits for, on behalf of the request whose work this is, if any."""

    __slots__ = ("_request", "leg")

    def __init__(self, leg: Leg, server: str | None = None) -> None:
        self.leg = leg
        self._request = current_request.get()
        if server is not None and self._request is not None:
            self._request.at(server)

    def __enter__(self) -> None:
        if self._request is not None:
            self._request.enter(self.leg)

    def __exit__(self, *_: object) -> None:
        if self._request is not None:
            self._request.leave(self.leg)


# The record of a request as a JSON line of the trace file; see docs/reference/tracing.md.
#
# It is made off the loop, where the lines are written. What a client or a server said is bounded in
# it, and searched for secrets.


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


@dataclass(eq=False)
class RecordMaker:
    """Makes the records of one session. `mask` hides what is known to be a secret."""

    session: str
    clock: Clock
    _: KW_ONLY
    salt: int
    mask: Callable[[str], str] = str

    def __post_init__(self) -> None:
        self._names = _Names(self._shown)

    def records(self, requests: Iterable[OpenRequest]) -> list[RequestRecord]:
        """Names come again and again: each is looked at once, not to miss new secrets."""
        self._names = _Names(self._shown)
        anchor = self.clock.epoch(0.0)
        return [self._record(request, anchor) for request in requests]

    def _record(self, request: OpenRequest, anchor: float) -> RequestRecord:
        """By position: with so many names Python would make a dict of them for each record."""
        names = self._names
        start_ms = _ms(anchor + request.started_at)
        if request.id is None:
            request.id = ulid_of(int(start_ms), self.salt + request.number)
        return RequestRecord(
            request.id,
            self.session,
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
        now_ms = _ms(self.clock.epoch(self.clock.now()))
        return DroppedRecords(kind="dropped", session=self.session, count=count, start_ms=now_ms)

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
