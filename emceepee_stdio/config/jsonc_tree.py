"""JSON as people write it, read into a tree that knows where each part of it stands.

Comments, trailing commas and a BOM are allowed; whatever else is wrong is named with its place.
"""

import json
import re
from dataclasses import dataclass, field
from typing import cast

__all__ = ["BLANK", "COMMENT", "JsoncMember", "JsoncReader", "Node", "Unreadable", "end_of"]

_MAX_DEPTH = 100

_SPACE = re.compile(r"[ \t\r\n]*+")
BLANK = re.compile(r"[ \t]*+")
COMMENT = re.compile(r"//[^\n]*+|/\*(?s:.*?)\*/")
_STRING = re.compile(r'"[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+"')
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][+-]?\d++)?(?![\w.])", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z]++")


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A value, and where it stands."""

    start: int
    end: int
    value: object
    members: "tuple[JsoncMember, ...]" = ()


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


@dataclass(slots=True)
class JsoncReader:
    """Reads one text from its beginning."""

    text: str
    # The first thing that plain JSON does not have: its place and what it is.
    loose: tuple[int, str] | None = field(default=None)

    def document(self) -> Node | None:
        """The value, or None where there is nothing but space and comments."""
        position = self._skip(1 if self.text.startswith("\ufeff") else 0)
        if position == len(self.text):
            return None
        node = self._value(position, 0)
        rest = self._skip(node.end)
        if rest < len(self.text):
            raise self._error(rest, "expected the end of the file")
        return node

    def _error(self, position: int, reason: str) -> Unreadable:
        return Unreadable.at(self.text, position, reason)

    def _loosen(self, position: int, what: str) -> None:
        if self.loose is None:
            self.loose = (position, what)

    def _skip(self, position: int) -> int:
        """Past space and comments."""
        while True:
            position = end_of(_SPACE, self.text, position)
            if not self.text.startswith("/", position):
                return position
            comment = COMMENT.match(self.text, position)
            if comment is None:
                block = self.text.startswith("/*", position)
                raise self._error(
                    position, "this comment is not closed" if block else "expected a value"
                )
            self._loosen(position, "a comment")
            position = comment.end()

    def _value(self, position: int, depth: int) -> Node:
        if depth > _MAX_DEPTH:
            raise self._error(position, "this is nested too deeply")
        match self.text[position : position + 1]:
            case "{":
                return self._container(position, depth, "}")
            case "[":
                return self._container(position, depth, "]")
            case '"':
                return self._string(position)
            case _:
                return self._scalar(position)

    def _string(self, position: int) -> Node:
        found = _STRING.match(self.text, position)
        if found is None:
            raise self._error(position, "this string is not closed, or holds a control character")
        try:
            value: object = json.loads(found[0])
        except json.JSONDecodeError as error:
            raise self._error(position + error.pos, "this escape is not valid") from None
        return Node(start=position, end=found.end(), value=value)

    def _scalar(self, position: int) -> Node:
        if number := _NUMBER.match(self.text, position):
            try:
                value: object = json.loads(number[0])
            except ValueError:
                raise self._error(position, "this number has too many digits") from None
            return Node(start=position, end=number.end(), value=value)
        word = _WORD.match(self.text, position)
        if word is None or word[0] not in _WORDS:
            raise self._error(position, "expected a value")
        return Node(start=position, end=word.end(), value=_WORDS[word[0]])

    def _container(self, start: int, depth: int, close: str) -> Node:
        members: list[JsoncMember] = []
        position = self._skip(start + 1)
        while not self.text.startswith(close, position):
            if members and members[-1].comma is None:
                raise self._error(position, f"expected ',' or '{close}'")
            member = self._member(position, depth, close, len(members))
            members.append(member)
            position = self._skip(member.end)
        if members and (comma := members[-1].comma) is not None:
            self._loosen(comma, "a trailing comma")
        values = [member.node.value for member in members]
        return Node(
            start=start,
            end=position + 1,
            value=values
            if close == "]"
            else dict(zip((member.key for member in members), values, strict=True)),
            members=tuple(members),
        )

    def _member(self, start: int, depth: int, close: str, index: int) -> JsoncMember:
        key: str | int = index
        position = start
        if close == "}":
            if not self.text.startswith('"', start):
                raise self._error(start, "expected a name in double quotes or '}'")
            name = self._string(start)
            key = cast("str", name.value)
            position = self._skip(name.end)
            if not self.text.startswith(":", position):
                raise self._error(position, "expected ':'")
            position = self._skip(position + 1)
        node = self._value(position, depth + 1)
        after = self._skip(node.end)
        comma = after if self.text.startswith(",", after) else None
        return JsoncMember(key=key, start=start, node=node, comma=comma)


def end_of(pattern: re.Pattern[str], text: str, position: int) -> int:
    found = pattern.match(text, position)
    return position if found is None else found.end()
