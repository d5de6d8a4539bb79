"""The flat schemas of elicitation: whether an answer answers the question.

Only what the protocol allows in a form is known: strings, numbers, booleans, choices, and lists of
choices. Every mistake is named, so that the answer can be mended in one go.
"""

import re
from collections.abc import Iterator, Mapping
from typing import cast

from emceepee_stdio.json_values import mapping

__all__ = ["choices_of", "form_problems", "with_defaults"]

Schema = Mapping[str, object]

_FORMATS = {
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "date-time": re.compile(
        r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})?"
    ),
}


def form_problems(content: Mapping[str, object], schema: Schema) -> list[str]:
    """What is wrong with an answer, one sentence each; nothing when it fits."""
    properties = mapping(schema.get("properties"))
    required = _list(schema.get("required"))
    problems = [f"{name} is missing" for name in required if name not in content]
    for name, value in content.items():
        if name in properties:
            problems += [f"{name} {what}" for what in _field(value, mapping(properties[name]))]
        elif properties:
            problems.append(f"{name} was not asked for; known are {', '.join(properties)}")
    return problems


def with_defaults(content: Mapping[str, object], schema: Schema) -> dict[str, object]:
    """The answer, and the schema's own default for every field that it leaves out."""
    fields = {name: mapping(field) for name, field in mapping(schema.get("properties")).items()}
    defaults = {
        name: field["default"]
        for name, field in fields.items()
        if "default" in field and not any(_field(field["default"], field))
    }
    return {**defaults, **content}


def _field(value: object, schema: Schema) -> Iterator[str]:
    choices = choices_of(schema)
    if choices:
        if value not in choices:
            yield f"must be one of {', '.join(map(repr, choices))}"
        return
    match schema.get("type"):
        case "string":
            yield from _string(value, schema)
        case "integer" | "number" as kind:
            yield from _number(value, schema, whole=kind == "integer")
        case "boolean":
            if not isinstance(value, bool):
                yield "must be true or false"
        case "array":
            yield from _array(value, schema)
        case _:
            pass


def _string(value: object, schema: Schema) -> Iterator[str]:
    if not isinstance(value, str):
        yield "must be a string"
        return
    shortest, longest = schema.get("minLength"), schema.get("maxLength")
    if isinstance(shortest, int) and len(value) < shortest:
        yield f"must have at least {shortest} characters"
    if isinstance(longest, int) and len(value) > longest:
        yield f"must have at most {longest} characters"
    expected = _FORMATS.get(str(schema.get("format")))
    if expected is not None and not expected.fullmatch(value):
        yield f"must be a valid {schema['format']}"


def _number(value: object, schema: Schema, *, whole: bool) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield "must be a whole number" if whole else "must be a number"
        return
    if whole and isinstance(value, float) and not value.is_integer():
        yield "must be a whole number"
    low, high = schema.get("minimum"), schema.get("maximum")
    if isinstance(low, int | float) and value < low:
        yield f"must be at least {low}"
    if isinstance(high, int | float) and value > high:
        yield f"must be at most {high}"


def _array(value: object, schema: Schema) -> Iterator[str]:
    if not isinstance(value, list):
        yield "must be a list"
        return
    items = cast("list[object]", value)
    fewest, most = schema.get("minItems"), schema.get("maxItems")
    if isinstance(fewest, int) and len(items) < fewest:
        yield f"must have at least {fewest} items"
    if isinstance(most, int) and len(items) > most:
        yield f"must have at most {most} items"
    choices = choices_of(mapping(schema.get("items")))
    for item in items:
        if choices and item not in choices:
            yield f"holds {item!r}, which is not one of {', '.join(map(repr, choices))}"


def choices_of(schema: Schema) -> list[object]:
    titled = _list(schema.get("oneOf")) or _list(schema.get("anyOf"))
    return _list(schema.get("enum")) or [mapping(choice).get("const") for choice in titled]


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []
