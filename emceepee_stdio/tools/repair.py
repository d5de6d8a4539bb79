"""Repairs arguments of models: objects in strings, misplaced fields, quoted numbers.

Only what cannot be meant otherwise is put right, and what was is told.
"""

import re
from collections.abc import Mapping

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping
from emceepee_stdio.wire.codec import to_json

Schema = Mapping[str, object]

_BRACE = ord("{")

_HOLDS_A_STRING = re.compile(rb':\s*+"|^"')
# A string that may stand for a number or a boolean; an escape may hide one.
_CONVERTIBLE = re.compile(rb':\s*+"\s*+(?:[-\d\\\x80-\xff]|true|false)')
_KINDS: Mapping[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}


def repaired(
    args: Raw | None, extra: Mapping[str, Raw], schema: Schema, *, tool: str
) -> tuple[Raw, list[str]]:
    """The arguments to send, and what was put right to get them."""
    repairs: list[str] = []
    properties = _properties(schema)
    if args is None and extra:
        _refuse_strangers(extra, properties, tool)
        args = Raw(to_json(dict(extra)))
        repairs.append("arguments beside `tool` were taken as args")
    elif extra:
        names = ", ".join(sorted(extra))
        raise InvalidArguments(
            f"execute_tool has no argument {names}.", hint="Put the tool's own arguments in args."
        )
    if args is None or bytes(args) == b"null":
        return Raw(b"{}"), repairs
    if bytes(memoryview(args)[:1]) == b'"':
        args = _opened(args, tool)
        repairs.append("args was a string that holds an object")
    if bytes(memoryview(args)[:1]) != b"{":
        raise InvalidArguments(f"The args of {tool} must be an object.")
    return _converted(args, properties, repairs), repairs


def is_plain(args: Raw | None, extra: Mapping[str, Raw]) -> bool:
    """Whether nothing about these arguments could be put right, whatever the schema."""
    if extra or args is None:
        return not extra
    return memoryview(args)[0] == _BRACE and not _CONVERTIBLE.search(args)


def depends_on_schema(args: Raw | None, extra: Mapping[str, Raw]) -> bool:
    """Whether the tool's schema may change how these arguments are read."""
    if extra:
        return True
    if args is None or not _HOLDS_A_STRING.search(args):
        return False
    try:
        if bytes(memoryview(args)[:1]) == b'"':
            args = Raw(msgspec.json.decode(args, type=str).encode())
        fields = msgspec.json.decode(args, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return any(_unquoted(value, kind) for value in fields.values() for kind in _KINDS)


def _opened(args: Raw, tool: str) -> Raw:
    text = msgspec.json.decode(args, type=str)
    try:
        opened = msgspec.json.decode(text, type=dict[str, Raw])
    except (msgspec.MsgspecError, RecursionError):
        raise InvalidArguments(f"The args of {tool} are a string that is no JSON object.") from None
    return Raw(to_json(opened))


def _refuse_strangers(extra: Mapping[str, Raw], properties: Schema, tool: str) -> None:
    strangers = sorted(set(extra) - set(properties))
    if strangers:
        raise InvalidArguments(
            f"execute_tool has no argument {', '.join(strangers)}, and neither has {tool}.",
            hint="Put the tool's own arguments in args.",
        )


def _converted(args: Raw, properties: Schema, repairs: list[str]) -> Raw:
    """Numbers and booleans that came as strings, where the tool's schema wants the real thing."""
    wanting = {
        name: kind
        for name, schema in properties.items()
        if (kind := mapping(schema).get("type")) in list(_KINDS)
    }
    if not wanting or b'"' not in bytes(args):
        return args
    fields = msgspec.json.decode(args, type=dict[str, Raw])
    changed = False
    for name, kind in wanting.items():
        value = fields.get(name)
        if value is not None and (better := _unquoted(value, str(kind))) is not None:
            fields[name] = better
            repairs.append(f"{name} was a string and is a {kind}")
            changed = True
    return Raw(to_json(fields)) if changed else args


def _unquoted(value: Raw, kind: str) -> Raw | None:
    if bytes(memoryview(value)[:1]) != b'"':
        return None
    text = msgspec.json.decode(value, type=str).strip()
    try:
        is_it = type(decode_value(text)) in _KINDS[kind]
    except (msgspec.MsgspecError, RecursionError):
        return None
    return Raw(text.encode()) if is_it else None


def _properties(schema: Schema) -> Schema:
    return mapping(schema.get("properties"))
