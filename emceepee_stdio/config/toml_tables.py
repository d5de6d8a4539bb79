"""TOML edited by whole tables; every other byte of the file stays.

The standard library reads, because it names the exact place of a mistake, and tomlkit writes our
table. The text itself is cut before each header, because tomlkit cannot edit a file of other people
safely: it removes the comment above the next table together with a table, inserts a table between
a comment and what the comment is about, and moves arrays of tables that stand between two tables
of one name. The result of an edit is read again, and returned only if it says what was meant.
"""

import re
import tomllib
from functools import reduce

from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import CannotEdit, Steps, Unreadable

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
# A header, or a list inside a list of several lines, or text inside a string.
_BEFORE_BRACKET = re.compile(r"(?:^|(?<=\A\ufeff))(?=[ \t]*\[)", re.MULTILINE)
_REMARKS_AT_END = re.compile(r"(?:^[ \t]*(?:#.*)?\r?(?:\n|\Z))*\Z", re.MULTILINE)
_BLANK_LINE_AT_START = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_BLANK_LINE_AT_END = re.compile(r"^[ \t]*\r?\n\Z", re.MULTILINE)


def read(text: str) -> dict[str, object]:
    """The document as plain data."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(text, str(error)) from None
    except RecursionError:
        raise Unreadable("this is nested too deeply", line=1, column=1) from None


def put(text: str, path: Steps, value: object) -> str:
    """The text with this table at the path, in its old place or at the end."""
    keys, others = _names(path), read(text)
    if _take(others, keys) == value:
        return text
    line_break = "\r\n" if "\r\n" in text else "\n"
    block = _rendered(keys, value).replace("\n", line_break)
    before, *rest = _around(text, keys)
    after = "".join(rest)
    if not rest:
        before = _ended(before, line_break)
    elif not _BLANK_LINE_AT_START.match(after):
        block += line_break
    return _checked(before + block + after, keys, value, others)


def remove(text: str, path: Steps) -> str:
    """The text without this table; a text that has none stays as it is."""
    keys, others = _names(path), read(text)
    if _take(others, keys) is None:
        return text
    return _checked(reduce(_closed_up, _around(text, keys)), keys, None, others)


def _names(path: Steps) -> tuple[str, ...]:
    return tuple(map(str, path))


def _unreadable(text: str, message: str) -> Unreadable:
    place = _PLACE.search(message)
    reason = message[: place.start()] if place else message
    reason = reason[:1].lower() + reason[1:]
    if place and place[1]:
        return Unreadable(reason, line=int(place[1]), column=int(place[2]))
    return Unreadable.at(text, len(text), reason)


def _take(table: object, keys: tuple[str, ...]) -> object:
    """Take what is at the path out of the data, and the tables that are empty without it."""
    if not is_object(table) or keys[0] not in table:
        return None
    if len(keys) == 1:
        return table.pop(keys[0])
    found = _take(table[keys[0]], keys[1:])
    if table[keys[0]] == {}:
        del table[keys[0]]
    return found


def _checked(text: str, keys: tuple[str, ...], value: object, others: object) -> str:
    """The text, if it has this value at the path, and beside it what was there before."""
    try:
        document = read(text)
    except Unreadable:
        document = {}
    if _take(document, keys) != value or document != others:
        raise CannotEdit(f"{'.'.join(keys)} is written in a way that cannot be changed safely")
    return text


def _around(text: str, keys: tuple[str, ...]) -> list[str]:
    """The text before, between and after the tables at the path and below it."""
    head, *tables = _sections(text)
    parts = [head]
    for table in tables:
        header = table.partition("\n")[0] + "\n"
        if _take(read(header), keys) is None:
            parts[-1] += table
            continue
        if len(parts) == 1 or parts[-1].strip():
            parts.append("")
        # Comments and blank lines before a header belong to what it begins.
        parts[-1] = _REMARKS_AT_END.findall(table)[0]
    return parts


def _sections(text: str) -> list[str]:
    """The text before the first header, and from each header to the next."""
    sections: list[str] = []
    for piece in _BEFORE_BRACKET.split(text):
        if sections and not _is_whole(sections[-1]):
            sections[-1] += piece
        else:
            sections.append(piece)
    return sections


def _is_whole(section: str) -> bool:
    """Whether it ends between two statements, not within a string or a list."""
    try:
        read(section)
    except Unreadable:
        return False
    return True


def _rendered(keys: tuple[str, ...], value: object) -> str:
    import tomlkit  # noqa: PLC0415 - slow to load, and only needed to write

    for key in reversed(keys[1:]):
        value = {key: value}
    return tomlkit.dumps({keys[0]: value})


def _ended(text: str, line_break: str) -> str:
    """The text with a blank line at its end, if there is anything to part from a table."""
    if not text.removeprefix("\ufeff").strip():
        return text
    return text + ("" if text.endswith("\n") else line_break) + line_break


def _closed_up(before: str, after: str) -> str:
    """Both parts, without the blank line that parted the table from the text before it."""
    if _BLANK_LINE_AT_START.match(after):
        before = _BLANK_LINE_AT_END.sub("", before)
    return before + after
