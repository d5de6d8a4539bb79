"""JSON as people write it: read with comments, trailing commas and a BOM, and edited in place.

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
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import cast

from emceepee_stdio.config.fields import is_list, is_object
from emceepee_stdio.config.jsonc_tree import (
    BLANK,
    COMMENT,
    JsoncMember,
    Node,
    Unreadable,
    end_of,
    parse,
    plain,
)

__all__ = ["CannotEdit", "Steps", "Unreadable", "put", "read", "remove", "strict_problem"]

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
        members: dict[str | int, object] = {}
        if is_object(value):
            members |= value
        elif is_list(value):
            members |= enumerate(value)
        if key not in members:
            return []
        value = members[key]
    return [value]


def _nested(path: Steps, value: object) -> object:
    for key in reversed(path):
        value = {key: value}
    return value


def _with(root: object, path: Steps, value: object) -> object:
    root = deepcopy(root)
    inner = root
    for depth, key in enumerate(path):
        last = depth == len(path) - 1
        if is_object(inner) and isinstance(key, str):
            if last or inner.get(key) is None:
                inner[key] = _nested(path[depth + 1 :], value)
                return root
            inner = inner[key]
        elif is_list(inner) and isinstance(key, int) and 0 <= key < len(inner):
            if last:
                inner[key] = value
            else:
                inner = inner[key]
        else:
            raise CannotEdit(_not_an_object(path[:depth]))
    return root


def _without(root: object, path: Steps) -> object:
    root = deepcopy(root)
    found = _at(root, path[:-1])
    key = path[-1]
    if found and is_object(found[0]) and isinstance(key, str):
        found[0].pop(key, None)
    elif found and is_list(found[0]) and isinstance(key, int) and 0 <= key < len(found[0]):
        del found[0][key]
    return root


def _not_an_object(path: Steps) -> str:
    where = ".".join(map(str, path))
    return f"{where} is not an object" if where else "it does not hold an object"


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
