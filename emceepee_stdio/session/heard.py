"""What servers said without being asked, as it is kept until somebody reads it."""

from collections.abc import Hashable
from dataclasses import dataclass

import msgspec
from msgspec import Raw

from emceepee_stdio.backends.base import LogLine
from emceepee_stdio.state import fold_key

__all__ = ["Logged", "Notified", "fields_of", "fold_of"]


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
    """What params hold; nothing where they cannot be read."""
    if params is None:
        return {}
    try:
        return msgspec.json.decode(params, type=dict[str, object])
    except (msgspec.MsgspecError, RecursionError):
        return {}


def fold_of(server: str, method: str, fields: dict[str, object]) -> Hashable:
    """What makes two notifications say the same; what cannot be compared stands for itself."""
    try:
        return fold_key(server, method, fields)
    except (TypeError, ValueError, RecursionError):
        return None
