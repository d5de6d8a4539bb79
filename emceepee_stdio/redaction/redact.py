"""Redacts data, text, URLs, arguments and environments before they are shown.

Pure, and total: any value comes out as plain JSON data that can be encoded, in bounded time, with
nothing of an unknown object but the name of its type.
"""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import PurePath
from typing import cast
from urllib.parse import unquote

from emceepee_stdio.redaction.secret_patterns import (
    MARKER,
    is_plain_value,
    is_secret_name,
    redact_text,
)

TOO_DEEP = "[too deep]"
CUT = "[cut]"

_MAX_DEPTH = 64  # the copy is recursive: stay far from Python's limit of 1000
# Values that share their parts can be exponentially larger than they look.
_MAX_ITEMS = 100_000
_MAX_NUMBER_BITS = 1024  # Python raises when it prints an integer of over 4300 digits
# A string is cut only after it was searched, and this much beyond the cut is searched with it and
# thrown away: half a secret is not recognised.
_MARGIN_CHARS = 4096
_ITEM_COST_CHARS = 4  # quotes, colon and comma, so that empty items count as well

_NAME = re.compile(r"[\w.$-]{1,80}")
_PAIR_ITEMS = 2  # a name and its value
_PAIR_NAMES = ("name", "key", "header")

# `--env=TOKEN=…` and `--header=X-Api-Key: …` hold a name after a name.
_MAX_NAMES_IN_ARGUMENT = 4
_NAMED_ARGUMENT = re.compile(r"([\w.$-]++)(?:=|:[ \t]*+)")

# What a shell or a session manager sets, and what looks secret only by its name.
_HARMLESS_VARIABLES = frozenset({"OLDPWD", "PWD", "XDG_SESSION_ID"})

_SHORT_NAMES = frozenset({"key", "pass"})

_ADDRESS = re.compile(r"(?:https?|wss?)://.*", re.IGNORECASE | re.DOTALL)
_WEB = ("http://", "https://", "ws://", "wss://")
_RANDOM_LOOKING = re.compile(
    r"(?<![A-Za-z0-9])(?:(?=[A-Za-z]*+\d)(?=\d*+[A-Za-z])[A-Za-z0-9]{16,}+"
    r"|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12})"
)
_RANDOM_CHARS = 16
# As base64 for addresses looks; or behind a name that says what it is: `/token/quiet-river-71`.
_MIXED = re.compile(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d)[\w~.-]{20,}+", re.DOTALL)
_NAMED_SEGMENT = re.compile(r"(?=.*\d).{6,}|.{20,}", re.DOTALL)


def redact(value: object, *, max_chars: int | None = None, max_total: int | None = None) -> object:
    """A copy of the value without its secrets.

    `max_chars` bounds each string, and `max_total` roughly the whole.
    """
    try:
        return _Walk(max_chars, max_total).copy(value, 0)
    except Exception:  # noqa: BLE001 - a foreign object may raise anything when looked at
        return _type_name(value)


def redact_url(url: str) -> str:
    """An address without user, password, secret parameters, and parts that look like a key."""
    url = redact_text(url)
    if not url.lower().startswith(_WEB):
        return url
    place, mark, rest = url.partition("?")
    scheme, slashes, path = place.partition("://")
    host, *segments = path.split("/")
    hidden = _secret_positions(segments)
    shown = [MARKER if at in hidden else segment for at, segment in enumerate(segments)]
    return "/".join([scheme + slashes + host, *shown]) + mark + rest


def secret_segments(path: str) -> list[str]:
    """The parts of an address's path that look like a key."""
    segments = path.split("/")
    return [segments[at] for at in sorted(_secret_positions(segments))]


def _secret_positions(segments: Sequence[str]) -> set[int]:
    return {
        at
        for at, segment in enumerate(segments)
        if _is_key(segment) or (at and _is_named_key(segments[at - 1], segment))
    }


def _is_key(segment: str) -> bool:
    if len(segment) < _RANDOM_CHARS:
        return False
    text = unquote(segment)
    return bool(
        _RANDOM_LOOKING.search(text) or _MIXED.fullmatch(text) or MARKER in redact_text(text)
    )


def _is_named_key(name: str, segment: str) -> bool:
    return _names_a_secret(unquote(name)) and bool(_NAMED_SEGMENT.fullmatch(unquote(segment)))


def redact_argv(argv: Iterable[str]) -> list[str]:
    """The arguments of a command, hiding the one that follows `--token` as well."""
    shown: list[str] = []
    previous = ""
    for argument in argv:
        shown.append(MARKER if _follows_a_flag(previous, argument) else _argument(argument))
        previous = argument
    return shown


def redact_env(env: Mapping[str, str]) -> dict[str, str]:
    """An environment with all its names, and those values that are no secret."""
    return {
        name: MARKER
        if value and _names_a_secret(name) and name not in _HARMLESS_VARIABLES
        else redact_url(value)
        for name, value in env.items()
    }


class _Walk:
    """One copy in progress, and what it may still spend."""

    def __init__(self, max_chars: int | None, max_total: int | None) -> None:
        self._max_chars = max_chars
        self._room = max_total
        self._items = _MAX_ITEMS

    def copy(self, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool | float):
            return value
        match value:
            case str() | bytes() | bytearray() | PurePath():
                return self._text(_as_text(value))
            case Enum():
                return self.copy(cast("object", value.value), depth + 1)
            case int():
                return int(value) if value.bit_length() <= _MAX_NUMBER_BITS else "[large number]"
            case Mapping() | list() | tuple() | deque() | set() | frozenset():
                return self._container(cast("Mapping[object, object]", value), depth)
            case _:
                return _type_name(value)

    def _container(
        self, value: Mapping[object, object] | Iterable[object], depth: int
    ) -> dict[str, object] | list[object] | str:
        if depth >= _MAX_DEPTH:
            return TOO_DEEP
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[object, object]", value), depth)
        return self._sequence(list(value), depth)

    def _mapping(self, value: Mapping[object, object], depth: int) -> dict[str, object]:
        names_a_secret = any(_is_secret_word(value.get(name)) for name in _PAIR_NAMES)
        shown: dict[str, object] = {}
        for key, item in value.items():
            if not self._spend(_ITEM_COST_CHARS):
                shown[CUT] = f"{len(value) - len(shown)} more"
                break
            name = _as_text(key)
            secret = is_secret_name(name) or (names_a_secret and name == "value")
            shown[self._text(name)] = (
                MARKER
                if secret and _can_hold_a_secret(name, item)
                else self._item(name, item, depth)
            )
        return shown

    def _item(self, name: str, item: object, depth: int) -> object:
        if isinstance(item, str) and name.lower().endswith("url"):
            return self._text(_as_text(item), redact_url)
        return self.copy(item, depth + 1)

    def _sequence(self, items: list[object], depth: int) -> list[object]:
        if (
            len(items) == _PAIR_ITEMS
            and _is_secret_word(items[0])
            and isinstance(items[1], str | bytes)
        ):
            return [self.copy(items[0], depth + 1), MARKER]
        shown: list[object] = []
        previous = ""
        for item in items:
            if not self._spend(_ITEM_COST_CHARS):
                shown.append(f"{CUT} {len(items) - len(shown)} more")
                break
            if not isinstance(item, str):
                shown.append(self.copy(item, depth + 1))
                previous = ""
                continue
            text = _as_text(item)
            hidden = _follows_a_flag(previous, text)
            shown.append(MARKER if hidden else self._text(text, _argument))
            previous = text
        return shown

    def _text(self, text: str, hide: Callable[[str], str] = redact_text) -> str:
        limit = self._limit()
        if limit is None:
            shown = hide(text)
        else:
            whole = len(text) <= limit + _MARGIN_CHARS
            shown = hide(text if whole else text[: limit + _MARGIN_CHARS])
            if not whole:
                shown = shown[:-_MARGIN_CHARS]
            if not whole or len(shown) > limit:
                shown = f"{shown[:limit]}… {CUT} {len(text)} characters"
        self._spend(len(shown))
        return shown

    def _limit(self) -> int | None:
        if self._room is None:
            return self._max_chars
        room = max(self._room, 0)
        return room if self._max_chars is None else min(self._max_chars, room)

    def _spend(self, cost: int) -> bool:
        self._items -= 1
        if self._room is not None:
            self._room -= cost
        return self._items > 0 and (self._room is None or self._room > 0)


def _as_text(value: object) -> str:
    """Text of a plain value, without anything that UTF-8 cannot carry."""
    match value:
        case str():
            text = str.__str__(value)
        case bytes() | bytearray():
            return value.decode("utf-8", "backslashreplace")
        case PurePath() | None | bool() | int() | float():
            text = str(value)
        case _:
            return _type_name(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _type_name(value: object) -> str:
    return f"[{type(value).__name__}]"


def _can_hold_a_secret(name: str, item: object) -> bool:
    if item is None or isinstance(item, bool):
        return False
    return not is_plain_value(name, str(item)) if isinstance(item, int | float) else bool(item)


def _is_secret_word(value: object) -> bool:
    return isinstance(value, str) and bool(_NAME.fullmatch(value)) and is_secret_name(value)


def _names_a_secret(name: str) -> bool:
    """In a command line or an environment, a key is nothing but a key."""
    return is_secret_name(name) or name.lstrip("-").lower() in _SHORT_NAMES


def _follows_a_flag(previous: str, argument: str) -> bool:
    if not previous.startswith("-") or argument.startswith("--"):
        return False
    return bool(_NAME.fullmatch(previous)) and _names_a_secret(previous)


def _argument(argument: str) -> str:
    """One argument; what a secret name is set to in it is hidden up to its end, spaces and all."""
    start = 0
    for _ in range(_MAX_NAMES_IN_ARGUMENT):
        named = _NAMED_ARGUMENT.match(argument, start)
        if not named:
            break
        start = named.end()
        value = argument[start:]
        if value and _names_a_secret(named[1]) and not is_plain_value(named[1], value):
            return argument[:start] + MARKER
    address = _ADDRESS.search(argument)
    if address is None:
        return redact_text(argument)
    return redact_text(argument[: address.start()]) + redact_url(address[0])
