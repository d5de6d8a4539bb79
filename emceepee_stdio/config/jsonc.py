"""JSON with comments, trailing commas and a BOM: read, and edited in place.

An edit changes one member of one object and leaves every other byte of the text as it was; it is
checked by reading the result, and a result that does not say what was meant is never returned.

Theory of operation. The reader gives the value together with the place of every member in the
text. To set a member is to replace the text of its value, or to write a new member behind the last
one, with the indentation and the line ends that its neighbours have, and the comma that was
missing. To remove one is to cut its text with its comma and the comment on its own line, but not a
comment above it, which may speak of what follows. Because guessing a person's layout can go wrong,
the result is read again and compared with the value that was meant: where they differ, the edit is
refused and the file stays.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import NamedTuple, cast

from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.json_values import elements, mapping

# The one reader of JSON as people write it; it knows where each value stands.
#
# A BOM, comments and trailing commas become spaces, so that every position stays what it was. What
# is left is plain JSON for the decoder of the standard library, which also tells where values end.
# Whatever else is wrong is named with its place.


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


# From the top of the document to a value: names of members and places in lists.
Steps = Sequence[str | int]

_DEFAULT_INDENT = "  "
_LINE_END = re.compile(r"\r?\n")


class CannotEdit(ValueError):
    """A text that can be read, but not changed in the way that is asked."""


def read(text: str) -> object:
    """The value that the text holds; None where it holds nothing."""
    root = parse(text)
    return None if root is None else root.value


def strict_problem(text: str) -> str | None:
    """What in a readable text plain JSON would refuse, and where."""
    text = text.removeprefix("\ufeff")
    both = zip(text, plain(text).text, strict=True)
    position = next((place for place, (own, strict) in enumerate(both) if own != strict), None)
    if position is None:
        return None
    what = "a trailing comma" if text[position] == "," else "a comment"
    return f"{what} in line {text.count(chr(10), 0, position) + 1}"


def put(text: str, path: Steps, value: object) -> str:
    """The text with this value at the path; objects that are missing on the way are made."""
    root = parse(text)
    if root is None:
        return _checked(_begin(text, _nested(path, value)), _nested(path, value))
    if _at(root.value, path) == [value]:
        return text
    wanted = _with(root.value, path, value)
    node = root
    for depth, key in enumerate(path):
        member = _find(node, key)
        if member is None:
            changed = _insert(text, root, node, key, _nested(path[depth + 1 :], value))
            return _checked(changed, wanted)
        node = member.node
        if depth < len(path) - 1 and node.value is None:
            return _checked(_replace(text, node, _nested(path[depth + 1 :], value)), wanted)
    return _checked(_replace(text, node, value), wanted)


def remove(text: str, path: Steps) -> str:
    """The text without the member or item at the path; a text that has none stays as it is."""
    root = parse(text)
    value = None if root is None else root.value
    while root is not None and _at(root.value, path):
        node = root
        for key in path[:-1]:
            node = cast("JsoncMember", _find(node, key)).node
        text = _cut(text, node, cast("JsoncMember", _find(node, path[-1])))
        root = parse(text)
        if isinstance(path[-1], int):
            break
    return _checked(text, _without(value, path))


def _find(node: Node, key: str | int) -> JsoncMember | None:
    """The member that counts: of those with the same name it is the last."""
    return next((member for member in reversed(node.members) if member.key == key), None)


def _at(value: object, path: Steps) -> list[object]:
    """What stands at the path: one value in a list, or none."""
    for key in path:
        members = {**mapping(value), **dict(enumerate(elements(value)))}
        if key not in members:
            return []
        value = members[key]
    return [value]


def _nested(path: Steps, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def _with(root: object, path: Steps, value: object, depth: int = 0) -> object:
    """What the document is to say."""
    if depth == len(path):
        return value
    key = path[depth]
    if is_object(root) and isinstance(key, str):
        inner: object = mapping(None) if root.get(key) is None else root[key]
        return {**root, key: _with(inner, path, value, depth + 1)}
    if is_list(root) and isinstance(key, int) and 0 <= key < len(root):
        return [*root[:key], _with(root[key], path, value, depth + 1), *root[key + 1 :]]
    where = ".".join(map(str, path[:depth]))
    raise CannotEdit(f"{where} is not an object" if where else "it does not hold an object")


def _without(root: object, path: Steps) -> object:
    """The same for what is removed."""
    key, *rest = path
    if not _at(root, path):
        return root
    if is_object(root):
        left = {name: one for name, one in root.items() if name != key}
        return {**left, str(key): _without(root[str(key)], rest)} if rest else left
    items = list(enumerate(elements(root)))
    return [_without(one, rest) if at == key else one for at, one in items if rest or at != key]


def _checked(text: str, wanted: object) -> str:
    """The last line of defence: nothing is written that reads otherwise than it was meant."""
    if read(text) != wanted:
        raise CannotEdit("it is written in a way that cannot be changed safely")
    return text


def _line_break(text: str) -> str:
    found = _LINE_END.search(text)
    return "\n" if found is None else found[0]


def _line_indent(text: str, position: int) -> str:
    start = text.rfind("\n", 0, position) + 1
    start += text.startswith("\ufeff", start)
    return text[start : end_of(BLANK, text, start)]


def _begins_line(text: str, position: int) -> bool:
    start = text.rfind("\n", 0, position) + 1
    return start > 0 and end_of(BLANK, text, start) == position


def _indents(text: str, node: Node) -> Iterator[str]:
    """Each step of indentation that the text takes, from the outside in."""
    outer = _line_indent(text, node.start)
    for member in node.members:
        indent = _line_indent(text, member.start)
        if _begins_line(text, member.start) and indent != outer and indent.startswith(outer):
            yield indent[len(outer) :]
        yield from _indents(text, member.node)


def _dump(text: str, root: Node, value: object, indent: str) -> str:
    """The value on lines of its own, in the style of the text."""
    step = next(_indents(text, root), _DEFAULT_INDENT)
    lines = json.dumps(value, indent=step, ensure_ascii=False).split("\n")
    return (_line_break(text) + indent).join(lines)


def _dump_inline(text: str, node: Node, value: object) -> str:
    """The value on one line, as tight as its neighbours."""
    first = next(iter(node.members), None)
    tight = first is not None and text[first.node.start - 1] == ":"
    separators = (",", ":") if tight else (", ", ": ")
    return json.dumps(value, separators=separators, ensure_ascii=False)


def _begin(text: str, value: object) -> str:
    line_break = _line_break(text)
    if text.removeprefix("\ufeff") and not text.endswith("\n"):
        text += line_break
    lines = json.dumps(value, indent=_DEFAULT_INDENT, ensure_ascii=False).split("\n")
    return text + line_break.join([*lines, ""])


def _insert(text: str, root: Node, node: Node, key: str | int, value: object) -> str:
    if not node.members:
        return _insert_first(text, root, node, key, value)
    last = node.members[-1]
    comma = "" if last.comma is None else ","
    if not _begins_line(text, last.start):
        pair = _dump_inline(text, node, {key: value})[1:-1]
        gap = "" if _dump_inline(text, node, [0, 0]) == "[0,0]" else " "
        if last.comma is None:
            return f"{text[: last.end]},{gap}{pair}{text[last.end :]}"
        return f"{text[: last.end]}{gap}{pair},{text[last.end :]}"
    indent = _line_indent(text, last.start)
    pair = _pair(text, root, key, value, indent)
    after = _rest_of_line(text, last.end) or last.end
    added = "" if last.comma is not None else ","
    head = text[: last.end] + added + text[last.end : after]
    return f"{head}{_line_break(text)}{indent}{pair}{comma}{text[after:]}"


def _insert_first(text: str, root: Node, node: Node, key: str | int, value: object) -> str:
    inside = text[node.start + 1 : node.end - 1]
    if root.members and "\n" not in text[root.start : root.end]:
        pair = _dump_inline(text, root, {key: value})[1:-1]
        return f"{text[: node.start + 1]}{inside.rstrip()}{pair}{text[node.end - 1 :]}"
    outer = _line_indent(text, node.start)
    indent = outer + next(_indents(text, root), _DEFAULT_INDENT)
    kept = inside.rstrip()
    line_break = _line_break(text)
    space = inside[len(kept) :] if "\n" in inside[len(kept) :] else line_break + outer
    pair = _pair(text, root, key, value, indent)
    return f"{text[: node.start + 1]}{kept}{line_break}{indent}{pair}{space}{text[node.end - 1 :]}"


def _pair(text: str, root: Node, key: str | int, value: object, indent: str) -> str:
    return f"{json.dumps(key, ensure_ascii=False)}: {_dump(text, root, value, indent)}"


def _replace(text: str, node: Node, value: object) -> str:
    root = cast("Node", parse(text))
    if "\n" in text[root.start : root.end]:
        new = _dump(text, root, value, _line_indent(text, node.start))
    else:
        new = _dump_inline(text, root, value)
    return text[: node.start] + new + text[node.end :]


def _rest_of_line(text: str, position: int) -> int | None:
    """Where the line ends, if only space and comments come before that."""
    while True:
        position = end_of(BLANK, text, position)
        if _LINE_END.match(text, position):
            return position
        comment = COMMENT.match(text, position)
        if comment is None or "\n" in comment[0]:
            return None
        position = comment.end() - comment[0].endswith("\r")


def _cut(text: str, node: Node, member: JsoncMember) -> str:
    index = node.members.index(member)
    start, end = member.start, member.end
    line_end = _rest_of_line(text, end)
    if _begins_line(text, start):
        if line_end is not None:
            start, end = text.rfind("\n", 0, start), line_end
            start -= text.startswith("\r", start - 1)
    elif index == len(node.members) - 1:
        start = len(text[:start].rstrip(" \t"))
    else:
        end = end_of(BLANK, text, end)
    before = text[:start]
    if index == len(node.members) - 1 > 0 and member.comma is None:
        comma = cast("int", node.members[index - 1].comma)
        before = text[:comma] + text[comma + 1 : start]
    after = text[end:]
    left = before[node.start + 1 :] + text[end : node.end - 1]
    if len(node.members) == 1 and not left.strip():
        return text[: node.start + 1] + text[node.end - 1 :]
    return before + after
