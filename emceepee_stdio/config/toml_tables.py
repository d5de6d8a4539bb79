"""TOML, read by the standard library, and edited by whole tables.

A table is put in or taken out as text, with everything else left as it was; the result is read
again, and one that does not say what was meant is never returned.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import cast

from emceepee_stdio.config.fields import is_object
from emceepee_stdio.config.jsonc import CannotEdit, Steps, Unreadable

__all__ = ["put", "read", "remove"]

_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
_HEADER = re.compile(r"[ \t]*\[(?!\[)[^\n]*\]\s*(?:#.*)?")
_ANY_HEADER = re.compile(r"[ \t]*\[")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_REMARK = re.compile(r"\s*(?:#.*)?")


def read(text: str) -> object:
    """The document as plain data."""
    try:
        return tomllib.loads(text.removeprefix("\ufeff").replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        raise _unreadable(text, str(error)) from None
    except RecursionError:
        raise Unreadable("this is nested too deeply", line=1, column=1) from None


def put(text: str, path: Steps, value: object) -> str:
    """The text with this table at the path, in its old place or at the end."""
    document = cast("dict[str, object]", read(text))
    keys = _names(path)
    if _at(document, keys) == value:
        return text
    wanted = _with(document, keys, value)
    lines = _LINE.findall(text)
    ranges = _ranges(lines, keys)
    line_break = "\r\n" if "\r\n" in text else "\n"
    block = [line + line_break for line in _block(keys, cast("Mapping[str, object]", value))]
    if not ranges:
        return _checked(_append(text, block, line_break), wanted)
    place = ranges[0][0]
    for start, end in reversed(ranges):
        del lines[start:end]
    leads_on = place < len(lines) and lines[place].strip()
    lines[place:place] = [*block, line_break] if leads_on else block
    return _checked("".join(lines), wanted)


def remove(text: str, path: Steps) -> str:
    """The text without this table; a text that has none stays as it is."""
    document = cast("dict[str, object]", read(text))
    keys = _names(path)
    if _at(document, keys) is None:
        return text
    lines = _LINE.findall(text)
    for start, end in reversed(_ranges(lines, keys)):
        del lines[start:end]
        at_end = start == len(lines) or not lines[start].strip()
        if start and at_end and not lines[start - 1].strip():
            del lines[start - 1]
    wanted = deepcopy(document)
    inner = wanted
    for key in keys[:-1]:
        inner = cast("dict[str, object]", inner[key])
    del inner[keys[-1]]
    return _checked("".join(lines), wanted)


def _names(path: Steps) -> tuple[str, ...]:
    return tuple(map(str, path))


def _unreadable(text: str, message: str) -> Unreadable:
    place = _PLACE.search(message)
    reason = message[: place.start()] if place else message
    reason = reason[:1].lower() + reason[1:]
    if place and place[1]:
        return Unreadable(reason, line=int(place[1]), column=int(place[2]))
    return Unreadable.at(text, len(text), reason)


def _at(document: object, keys: tuple[str, ...]) -> object:
    for key in keys:
        document = document.get(key) if is_object(document) else None
    return document


def _with(document: dict[str, object], keys: tuple[str, ...], value: object) -> object:
    changed = deepcopy(document)
    inner: object = changed
    for depth, key in enumerate(keys[:-1]):
        if is_object(inner):
            inner = inner.setdefault(key, {})
        if not is_object(inner):
            raise CannotEdit(f"{'.'.join(keys[: depth + 1])} is not a table")
    inner[keys[-1]] = value
    return changed


def _checked(text: str, wanted: object) -> str:
    try:
        fits = _plain(read(text)) == _plain(wanted)
    except Unreadable:
        fits = False
    if not fits:
        raise CannotEdit("it is written in a way that cannot be changed safely")
    return text


def _plain(document: object) -> object:
    """The document without tables that are empty: a header alone says nothing."""
    if not is_object(document):
        return document
    plain = {key: _plain(value) for key, value in document.items()}
    return {key: value for key, value in plain.items() if value != {}}


def _ranges(lines: list[str], keys: tuple[str, ...]) -> list[tuple[int, int]]:
    """The lines of the table and of those below it, together where only blank lines part them."""
    merged: list[tuple[int, int]] = []
    for start, end in _tables(lines, keys):
        joined = merged and not "".join(lines[merged[-1][1] : start]).strip()
        merged.append((merged.pop()[0] if joined else start, end))
    return merged


def _tables(lines: list[str], keys: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """The lines of each table, without what leads to the next one."""
    start: int | None = None
    for index, line in enumerate(lines):
        if not _ANY_HEADER.match(line) or not _is_outside("".join(lines[:index])):
            continue
        if start is not None:
            yield start, _trimmed(lines, start, index)
        start = index if _header(line)[: len(keys)] == keys else None
    if start is not None:
        yield start, _trimmed(lines, start, len(lines))


def _trimmed(lines: list[str], start: int, end: int) -> int:
    """Blank lines and remarks before a header belong to what it begins."""
    while end > start + 1 and _REMARK.fullmatch(lines[end - 1].rstrip("\r\n")):
        end -= 1
    return end


def _is_outside(text: str) -> bool:
    """Whether the text stops between two statements, not within a string or a list."""
    try:
        read(text)
    except Unreadable:
        return False
    return True


def _header(line: str) -> tuple[str, ...]:
    """The keys of a header; none for anything else."""
    if not _HEADER.fullmatch(line.rstrip("\r\n")):
        return ()
    keys: list[str] = []
    inner = read(line)
    while is_object(inner) and inner:
        key, inner = next(iter(inner.items()))
        keys.append(key)
    return tuple(keys)


def _append(text: str, block: list[str], line_break: str) -> str:
    if text.removeprefix("\ufeff").strip():
        text += "" if text.endswith("\n") else line_break
        text += line_break
    return text + "".join(block)


def _block(keys: tuple[str, ...], value: Mapping[str, object]) -> Iterator[str]:
    yield f"[{'.'.join(map(_key, keys))}]"
    tables = {key: item for key, item in value.items() if is_object(item)}
    for key, item in value.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(item)}"
    for key, item in tables.items():
        yield ""
        yield from _block((*keys, key), item)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: object) -> str:
    # A JSON string, number, boolean or list of these is also one of TOML, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
