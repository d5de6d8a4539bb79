"""The one reader of JSON as people write it; it knows where each value stands.

A BOM, comments and trailing commas become spaces, so that every position stays what it was. What
is left is plain JSON for the decoder of the standard library, which also tells where values end.
Whatever else is wrong is named with its place.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple, cast

__all__ = [
    "BLANK",
    "COMMENT",
    "JsoncMember",
    "Node",
    "Repeated",
    "Unreadable",
    "end_of",
    "overridden",
    "parse",
    "plain",
]

_MAX_DEPTH = 100  # the parser is recursive: stay far from Python's limit of 1000

BLANK = re.compile(r"[ \t]*+")
COMMENT = re.compile(r"//[^\n]*+|/\*(?s:.*?)\*/")
_SPACE = re.compile(r"[ \t\r\n]*+")
_STRING = r'"(?:[^"\\]++|\\.)*+"?+'
# Past all that the decoder sees to, up to the next bracket or comment.
_MARK = re.compile(
    rf"(?:[^\"/\[\]{{}}]++|{_STRING})*+"
    rf"(?:(?P<open>[\[{{])|(?P<close>[\]}}])|(?P<comment>{COMMENT.pattern})|(?P<wrong>.)|\Z)",
    re.DOTALL,
)
_COMMA_AT_END = re.compile(r",[ \t\r\n]*+[\]}]")
# A comma without a value before it is no trailing one; it is left for the decoder to refuse.
_COMMA = re.compile(
    rf"{_STRING}|[\[{{,:][ \t\r\n]*+,|(?P<trailing>,)(?=[ \t\r\n]*+[\]}}])", re.DOTALL
)


class Repeated(dict[str, object]):
    """An object with a name that is used again: the last one counts, all are in `pairs`."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def overridden(value: Mapping[str, object]) -> list[tuple[str, object]]:
    """The members that do not count, because their name is used again further down."""
    pairs = value.pairs if isinstance(value, Repeated) else []
    last = {name: place for place, (name, _) in enumerate(pairs)}
    return [pair for place, pair in enumerate(pairs) if last[pair[0]] != place]


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else Repeated(pairs)


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


class Unreadable(ValueError):
    """A text that is not what it should be, and exactly where."""

    def __init__(self, reason: str, *, line: int, column: int) -> None:
        super().__init__(f"line {line}, column {column}: {reason}")
        self.reason = reason
        self.line = line
        self.column = column

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> "Unreadable":
        start = text.rfind("\n", 0, position) + 1
        column = position - start + 1 - text.startswith("\ufeff", start)
        return cls(reason, line=text.count("\n", 0, position) + 1, column=column)


class Plain(NamedTuple):
    """A text without comments, and without trailing commas too, up to the first mistake seen."""

    with_commas: str
    text: str
    mistake: tuple[int, str] | None


@dataclass(frozen=True, kw_only=True)
class Node:
    """A value, and where it stands."""

    start: int
    end: int
    value: object
    plain: Plain

    def __repr__(self) -> str:
        return f"<Node {self.start}:{self.end} {type(self.value).__name__}>"

    @cached_property
    def members(self) -> "tuple[JsoncMember, ...]":
        """Every member of an object, also those whose name is used again, or item of a list."""
        return tuple(self._walk()) if self.plain.text[self.start] in "[{" else ()

    def _walk(self) -> Iterator["JsoncMember"]:
        with_commas, text, _ = self.plain
        is_object = text[self.start] == "{"
        start = end_of(_SPACE, text, self.start + 1)
        for index in count():
            if start == self.end - 1:
                return
            key, position = index, start
            if is_object:
                key, colon = _decode(text, start)
                position = end_of(_SPACE, text, end_of(_SPACE, text, colon) + 1)
            value, end = _decode(text, position)
            after = end_of(_SPACE, with_commas, end)
            member = JsoncMember(
                key=cast("str | int", key),
                start=start,
                node=Node(start=position, end=end, value=value, plain=self.plain),
                comma=after if with_commas[after] == "," else None,
            )
            yield member
            start = end_of(_SPACE, text, member.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class JsoncMember:
    """One member of an object or one item of a list, with the comma that follows it."""

    key: str | int
    start: int
    node: Node
    comma: int | None

    @property
    def end(self) -> int:
        return self.node.end if self.comma is None else self.comma + 1


def parse(text: str) -> Node | None:
    """What a text holds, None for nothing but space and comments; raises `Unreadable`."""
    found = plain(text)
    mistake = found.mistake
    start, end = end_of(_SPACE, found.text, 0), len(found.text.rstrip(" \t\r\n"))
    value: object = None
    try:
        if start < end:
            value = _DECODER.decode(found.text)
    except json.JSONDecodeError as error:
        if mistake is None or error.pos < mistake[0]:
            reason = error.msg[:1].lower() + error.msg[1:]
            mistake = error.pos, reason.removesuffix(" at").removesuffix(" starting")
    except ValueError:
        # The limit of Python can be set, but not to less than 640 digits.
        digits = re.search(r"\d{641}", found.text)
        mistake = digits.start() if digits else 0, "this number has too many digits"
    if mistake is not None:
        raise Unreadable.at(text, *mistake)
    return Node(start=start, end=end, value=value, plain=found) if start < end else None


def plain(text: str) -> Plain:
    """The text with spaces in the place of what plain JSON does not have."""
    with_commas, mistake = _without_comments(text)
    if not _COMMA_AT_END.search(with_commas):
        return Plain(with_commas, with_commas, mistake)
    strict = _COMMA.sub(lambda comma: " " if comma["trailing"] else comma[0], with_commas)
    return Plain(with_commas, strict, mistake)


def _without_comments(text: str) -> tuple[str, tuple[int, str] | None]:
    parts: list[str] = []
    done = depth = 0
    if text.startswith("\ufeff"):
        parts, done = [" "], 1
    for mark in _MARK.finditer(text, done):
        kind, position = mark.lastgroup, mark.start(mark.lastgroup or 0)
        depth += (kind == "open") - (kind == "close")
        if kind == "wrong" or depth > _MAX_DEPTH:
            parts.append(text[done:position])
            return "".join(parts), (position, _mistake(text, position))
        if kind == "comment":
            parts += text[done:position], re.sub(r"[^\n]", " ", mark[kind])
            done = mark.end()
    return "".join((*parts, text[done:])), None


def _mistake(text: str, position: int) -> str:
    if text[position] in "[{":
        return "this is nested too deeply"
    is_comment = text.startswith("/*", position)
    return "this comment is not closed" if is_comment else "expecting value"


def _decode(text: str, position: int) -> tuple[object, int]:
    return cast("tuple[object, int]", _DECODER.raw_decode(text, position))


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()
