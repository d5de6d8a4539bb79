"""One object of the file against the fields of a struct: which key means which, and does it fit.

The only place that meets the validator's complaints; they come out as our own sentences, which name
the key, what was given and what is expected, and never quote a string.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, NamedTuple, TypeGuard, TypeVar, get_args, get_origin

import msgspec
from msgspec import Struct, inspect

from emceepee_stdio.config.server import label
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["Given", "fit", "given_fields", "hints_of", "is_list", "is_object", "nearest"]

T = TypeVar("T")

_HUMP = re.compile(r"(?<=[a-z0-9])[A-Z]")
# Clients whose files have no comments made people write them as keys; `$schema` is for editors.
_REMARKS = ("_", "$", "/", "#")


class Given(NamedTuple):
    """A value, and the key that the person wrote for it."""

    key: str
    value: object


def is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


@cache
def hints_of(struct: type[Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def given_fields(
    members: Mapping[str, object],
    *,
    known: Collection[str],
    spellings: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
    former: Mapping[str, str] | None = None,
    path: str,
    warnings: list[str] | None,
) -> dict[str, Given]:
    """What is given for each known field; our own spelling wins over another one.

    `former` has keys that are known no more, and what holds instead. Without `warnings` a key that
    is not known raises.
    """
    spellings, former = spellings or {}, former or {}
    found: dict[str, Given] = {}
    for key, value in members.items():
        field = spellings.get(key) or _snake(key)
        if field in known:
            if key == field or field not in found:
                found[field] = Given(key, value)
        elif field in former:
            _complain(f"{path}.{label(key)} is no longer a setting: {former[field]}.", warnings)
        elif key not in ignored and not key.startswith(_REMARKS):
            near = nearest(key, [*known, *spellings])
            advice = f"; did you mean '{near}'?" if near else "."
            fate = " and is ignored" if warnings is not None else ""
            _complain(f"{path}.{label(key)} is not a known key{fate}{advice}", warnings)
    return found


def _complain(complaint: str, warnings: list[str] | None) -> None:
    if warnings is None:
        raise ConfigInvalid(complaint)
    warnings.append(complaint)


def _snake(key: str) -> str:
    return _HUMP.sub(lambda hump: "_" + hump[0].lower(), key)


def nearest(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    by_fold = {candidate.casefold(): candidate for candidate in known}
    close = get_close_matches(word[:100].casefold(), by_fold, n=1, cutoff=cutoff)
    return by_fold[close[0]] if close else None


def fit(value: object, hint: type[T], *, path: str) -> T:
    """The value as the hint wants it, or ConfigInvalid, which names the part that does not fit."""
    try:
        return msgspec.convert(value, hint)
    except msgspec.ValidationError:
        step, part, wanted = _blame(value, hint)
    expected = inspect.type_info(wanted)
    # A number can only be out of bounds where numbers are due, and there it is no secret.
    shown = label(str(part)) if _is_number(part) and _takes_numbers(expected) else _kind(part)
    raise ConfigInvalid(f"{path}{step}: expected {_phrase(expected)}, got {shown}.")


def _fits(value: object, hint: Any) -> bool:
    try:
        msgspec.convert(value, hint)
    except msgspec.ValidationError:
        return False
    return True


def _blame(value: object, hint: Any) -> tuple[str, object, Any]:
    """Where inside the value the mistake is, the part, and what the part should have been."""
    bare = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    parts: Iterable[tuple[str, object]] = ()
    if is_object(value) and get_origin(bare) is dict:
        parts = ((f".{label(key)}", part) for key, part in value.items())
    elif is_list(value) and get_origin(bare) is tuple:
        parts = ((f"[{index}]", part) for index, part in enumerate(value))
    for step, part in parts:
        expected = get_args(bare)[1 if is_object(value) else 0]
        if not _fits(part, expected):
            return step, part, expected
    return "", value, hint


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _takes_numbers(kind: inspect.Type) -> bool:
    match kind:
        case inspect.Metadata(type=inner):
            return _takes_numbers(inner)
        case inspect.UnionType(types=types):
            return any(map(_takes_numbers, types))
        case _:
            return isinstance(kind, inspect.IntType | inspect.FloatType)


def _phrase(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(
            type=inspect.StrType(pattern=str()), extra_json_schema={"description": str(what)}
        ):
            return what[:1].lower() + what[1:].rstrip(".")
        case inspect.Metadata(type=inner):
            return _phrase(inner)
        case inspect.UnionType(types=types):
            return " or ".join(sorted(map(_phrase, types), key="null".__eq__))
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(str, values))
        case inspect.IntType(ge=low, le=high) | inspect.FloatType(ge=low, le=high):
            return f"{_KINDS[type(kind)]} from {low} to {high}"
        case _:
            return _KINDS[type(kind)]


def _kind(value: object) -> str:
    return _KINDS[type(inspect.type_info(dict if is_object(value) else type(value)))]


_KINDS: dict[type[inspect.Type], str] = {
    inspect.BoolType: "true or false",
    inspect.IntType: "an integer",
    inspect.FloatType: "a number",
    inspect.StrType: "a string",
    inspect.NoneType: "null",
    inspect.DictType: "an object",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
}
