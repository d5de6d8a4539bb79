"""The arguments of a call as a person types them: read, converted by the schema, and checked.

Whatever does not fit is named before anything is called, all of it at once.
"""

import json
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
import typer

from emceepee_stdio.cli.input_schema import (
    Parameter,
    Schema,
    alternatives,
    fits,
    parameters,
    refuses_others,
)
from emceepee_stdio.cli.signatures import type_text
from emceepee_stdio.config.fields import nearest
from emceepee_stdio.json_values import elements, mapping

__all__ = ["fitted", "fitted_to_prompt", "given_arguments"]

_MAX_VALUE_CHARS = 40  # of a value in a sentence about it


def given_arguments(words: Sequence[str]) -> dict[str, object]:
    """What the words of a command line say; a name that comes several times is a list."""
    if len(words) == 1 and words[0].lstrip().startswith("{"):
        try:
            return msgspec.json.decode(words[0], type=dict[str, object])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise typer.BadParameter(f"not a JSON object: {error}", param_hint="ARGS") from None
    values: dict[str, object] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise typer.BadParameter(
                f"{word!r} is neither NAME=VALUE nor a JSON object.", param_hint="ARGS"
            )
        before = values.get(name)
        is_first = name not in values
        values[name] = value if is_first else [*(elements(before) or [before]), value]
    return values


def fitted(given: Mapping[str, object], schema: Schema) -> tuple[dict[str, object], list[str]]:
    """The arguments as a tool with this schema is sent them, and what is wrong with them."""
    known = {one.name: one for one in parameters(schema)}
    values = {
        name: _converted(value, known[name].schema, schema) if name in known else value
        for name, value in given.items()
    }
    return values, _problems(values, known, schema)


def fitted_to_prompt(
    given: Mapping[str, object], arguments: Sequence[Mapping[str, object]]
) -> tuple[dict[str, str], list[str]]:
    """The same for a prompt, which takes texts only."""
    schema: Schema = {
        "properties": {str(one.get("name")): {"type": "string"} for one in arguments},
        "required": [str(one.get("name")) for one in arguments if one.get("required")],
    }
    values, problems = fitted(given, schema)
    return {name: str(value) for name, value in values.items()}, problems


def _problems(
    values: Mapping[str, object], known: Mapping[str, Parameter], root: Schema
) -> list[str]:
    problems = [
        f"{name} is missing"
        for name, one in known.items()
        if one.is_required and name not in values
    ]
    for name, value in values.items():
        if name in known:
            if not fits(value, known[name].schema, root):
                wanted = type_text(known[name].schema, root)
                problems.append(f"{name} must be {wanted}, not {_shown(value)}")
        elif refuses_others(root):
            near = nearest(name, list(known))
            problems.append(f"{name} is unknown{f' (did you mean {near}?)' if near else ''}")
    return problems


def _converted(given: object, schema: Schema, root: Schema) -> object:
    """A text as what is wanted, where it is that; where a list is wanted, its texts as well."""
    lists = [one for one in alternatives(schema, root) if one.get("type") == "array"]
    items = mapping(lists[0].get("items") if lists else None)
    if isinstance(given, str):
        value = _value(given, schema, root)
        return [_value(given, items, root)] if lists and not fits(value, schema, root) else value
    if isinstance(given, list):
        texts = cast("list[object]", given)
        return [_value(one, items, root) if isinstance(one, str) else one for one in texts]
    return given


def _value(text: str, schema: Schema, root: Schema) -> object:
    """The text itself where that is wanted, else what it is as JSON, where that is."""
    if fits(text, schema, root):
        return text
    try:
        value = cast("object", msgspec.json.decode(text))
    except (msgspec.MsgspecError, RecursionError):
        return text
    return value if fits(value, schema, root) else text


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE_CHARS else f"{text[: _MAX_VALUE_CHARS - 1]}…"
