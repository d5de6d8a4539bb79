"""Params that a server sent, looked into without trusting their shape or their depth."""

import re
from collections.abc import Hashable

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.foreign_json import decode_object
from emceepee_stdio.state import fold_key
from emceepee_stdio.state.event_types import short_key

__all__ = ["fields_of", "fold_of", "fold_of_large", "is_too_deep"]

_MAX_DEPTH = 64  # what is nested deeper than this could be read, but perhaps not written again
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?+', re.DOTALL)
_BRACKETS = re.compile(rb"[\[\]{}]")


class _Key(msgspec.Struct):
    """What names the subject of a notification, wherever it stands in its params."""

    token: Raw | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    uri: Raw | UnsetType = UNSET


_read_key = msgspec.json.Decoder(_Key).decode


def fields_of(params: Raw | None) -> dict[str, object]:
    """What params hold; nothing where they cannot be read, or are nested beyond all use."""
    if params is None or is_too_deep(params):
        return {}
    try:
        return decode_object(params)
    except (msgspec.MsgspecError, RecursionError):
        return {}


def is_too_deep(params: Raw) -> bool:
    """Whether it is nested so deeply that writing it again may fail where reading it did not."""
    data = bytes(params)
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
    try:
        read = _read_key(params)
    except (msgspec.MsgspecError, RecursionError):
        read = _Key()
    if method == "notifications/progress":
        key = read.token
    elif method == "notifications/resources/updated":
        key = read.uri
    elif method.endswith("/list_changed"):
        return server, method
    return server, method, short_key(bytes(params if key is UNSET else key))
