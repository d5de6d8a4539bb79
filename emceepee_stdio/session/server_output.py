"""What servers said without being asked, as it is kept until somebody reads it."""

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import Raw

from emceepee_stdio.backends.backend_events import LogLine
from emceepee_stdio.state import Ring, fold_key

__all__ = ["Flow", "Flows", "Logged", "Notified", "fields_of", "fold_of", "is_too_deep", "ring_of"]

T = TypeVar("T")

_MINUTE = 60.0
_DEEPEST = 64
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")
# Beside those of the servers there are: what a server that is gone has said is still of interest.
_OF_THE_GONE = 50


class Flow:
    """So many in a minute, and a count of those over it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._began = -math.inf
        self._count = 0
        self._over = 0

    def __repr__(self) -> str:
        return f"<Flow {self._count}/{self._limit} over={self._over}>"

    def takes(self, now: float) -> bool:
        if now - self._began >= _MINUTE:
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


class Flows:
    """The flow of each server; those that were silent for long are forgotten."""

    def __init__(self, limit: int, *, servers: int) -> None:
        self._limit = limit
        self._most = servers + _OF_THE_GONE
        self._flows: dict[str, Flow] = {}

    def __repr__(self) -> str:
        return f"<Flows of {len(self._flows)} servers>"

    def takes(self, server: str, now: float) -> tuple[bool, int]:
        """Whether one more passes, and if so how many did not since the last that did."""
        flow = self._flows.pop(server, None) or Flow(self._limit)
        self._flows[server] = flow
        if len(self._flows) > self._most:
            del self._flows[next(iter(self._flows))]
        return (True, flow.take_over()) if flow.takes(now) else (False, 0)


def ring_of(rings: dict[str, Ring[T]], server: str, *, capacity: int, servers: int) -> Ring[T]:
    """The ring of a server, made if need be; those that nothing was added to for long make room."""
    ring = rings.pop(server, None)
    if ring is None:
        ring = Ring[T](capacity)
    rings[server] = ring
    if len(rings) > servers + _OF_THE_GONE:
        del rings[next(iter(rings))]
    return ring


@dataclass(frozen=True, slots=True, kw_only=True)
class Notified:
    """A notification as it was received."""

    server: str
    method: str
    params: Raw | None
    received_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A log line and when it came."""

    server: str
    line: LogLine
    received_at: float


def fields_of(params: Raw | None) -> dict[str, object]:
    """What params hold; nothing where they cannot be read, or are nested beyond all use."""
    if params is None or is_too_deep(params):
        return {}
    try:
        return msgspec.json.decode(params, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def is_too_deep(params: Raw) -> bool:
    """Whether it is nested so deeply that writing it again may fail where reading it did not."""
    data = bytes(params)
    if data.count(b"{") + data.count(b"[") <= _DEEPEST:
        return False
    depth = deepest = 0
    for bracket in _BRACKETS.findall(_STRINGS.sub(b"", data)):
        depth += 1 if bracket in b"{[" else -1
        deepest = max(deepest, depth)
    return deepest > _DEEPEST


def fold_of(server: str, method: str, fields: dict[str, object]) -> Hashable:
    """What makes two notifications say the same; what cannot be compared stands for itself."""
    try:
        return fold_key(server, method, fields)
    except (TypeError, ValueError, RecursionError):
        return None
