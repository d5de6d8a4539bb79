"""Notifications and log lines of servers, kept in rings and rate-limited.

What is larger than anybody reads at once is kept cut, with its size. Nothing kept holds on to the
line that it came in.
"""

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass
from sys import getsizeof

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.backends.interface import LogLine
from emceepee_stdio.clock import MINUTE_S
from emceepee_stdio.foreign_json import MAX_VALUES, decoded, values_in
from emceepee_stdio.state.event_types import EventData, Excerpt, fold_key, short_key
from emceepee_stdio.wire.codec import to_json

# How much of what a server prints goes into the journal: so many lines in a minute.


_FORMER_SERVERS = 50  # beside those there are now: one that comes back goes on where it was


class RateLimit:
    """So many in a minute, and a count of those over it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._began = -math.inf
        self._count = 0
        self._over = 0

    def __repr__(self) -> str:
        return f"<RateLimit {self._count}/{self._limit} over={self._over}>"

    def takes(self, now: float) -> bool:
        if now - self._began >= MINUTE_S:
            self._began = now
            self._count = 0
        self._count += 1
        if self._count > self._limit:
            self._over += 1
            return False
        return True

    def take_over(self) -> int:
        """How many did not pass since this was asked last."""
        over, self._over = self._over, 0
        return over


class RateLimits:
    """The flow of each server; those that were silent for long are forgotten."""

    def __init__(self, limit: int, *, servers: int) -> None:
        self._limit = limit
        self._most = servers + _FORMER_SERVERS
        self._flows: dict[str, RateLimit] = {}

    def takes(self, server: str, now: float) -> tuple[bool, int]:
        """Whether one more passes, and if so how many did not since the last that did."""
        flow = self._flows.pop(server, None) or RateLimit(self._limit)
        self._flows[server] = flow
        if len(self._flows) > self._most:
            del self._flows[next(iter(self._flows))]
        return (True, flow.take_over()) if flow.takes(now) else (False, 0)


# Params that a server sent, looked into without trusting their shape or their depth.


_MAX_DEPTH = 64  # what is nested deeper than this could be read, but perhaps not written again
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


class _Key(msgspec.Struct):
    """What names the subject of a notification, wherever it stands in its params."""

    token: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    uri: Raw | UnsetType = UNSET


def fields_of(params: Raw | None) -> dict[str, object]:
    """What params hold; nothing where they cannot be read, or are beyond all use."""
    if params is None or is_too_much(params):
        return {}
    return decoded(params, dict[str, object]) or {}


def is_too_much(params: Raw) -> bool:
    """Whether it has very many values, or is nested so deeply that writing it again may fail."""
    data = bytes(params)
    if values_in(data) > MAX_VALUES:
        return True
    if data.count(b"{") + data.count(b"[") <= _MAX_DEPTH:
        return False
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"{[" else -1
        deepest = max(deepest, depth)
    return deepest > _MAX_DEPTH


def fold_of(server: str, method: str, fields: dict[str, object]) -> Hashable:
    """What makes two notifications say the same; what cannot be compared stands for itself."""
    try:
        return fold_key(server, method, fields)
    except (TypeError, ValueError, RecursionError):
        return None


def fold_of_large(server: str, method: str, params: Raw) -> Hashable:
    """The same for params that are too large to be looked into: by the bytes that they are."""
    key: Raw | UnsetType = UNSET
    read = decoded(params, _Key) or _Key()
    if method == "notifications/progress":
        key = read.token
    elif method == "notifications/resources/updated":
        key = read.uri
    elif method.endswith("/list_changed"):
        return server, method
    return server, method, short_key(bytes(params if key is UNSET else key))


_KEPT_BYTES = 64 << 10  # of one notification or log line: more than a client shows of an answer
_NAME_CHARS = 200  # of a method, level or logger, which are single words
_OBJECT_BYTES = 400  # what is kept beside texts and params


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """A notification as it was received."""

    server: str
    method: str
    params: Raw | Excerpt | None
    created_at: float

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        params = self.params
        held = getsizeof(params.text) if isinstance(params, Excerpt) else len(params or b"")
        return _OBJECT_BYTES + getsizeof(self.method) + held


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log line and when it came."""

    server: str
    line: LogLine
    created_at: float

    @property
    def size(self) -> int:
        """Bytes of memory, about."""
        return _OBJECT_BYTES + getsizeof(self.line.text)


def kept_data(data: EventData, limit: int) -> tuple[EventData, int]:
    """No more of an event's data than is ever shown, and how many bytes that takes."""
    if isinstance(data, Excerpt):
        return data, len(data.text)
    encoded = to_json(data)
    if len(encoded) <= limit:
        return data, len(encoded)
    return Excerpt(encoded[:limit].decode(errors="ignore"), len(encoded)), limit


def kept_params(params: Raw | None) -> Raw | Excerpt | None:
    """The params on their own, or the beginning of them."""
    if params is None:
        return None
    if len(memoryview(params)) <= _KEPT_BYTES:
        return params.copy()
    return excerpt_of(params, _KEPT_BYTES)


def excerpt_of(params: Raw, limit: int) -> Excerpt:
    view = memoryview(params)
    return Excerpt(bytes(view[:limit]).decode(errors="ignore"), len(view))


def cut_name(name: str) -> str:
    if len(name) <= _NAME_CHARS:
        return name
    return f"{name[:_NAME_CHARS]} … (cut from {len(name)} characters)"
