"""A tool or a prompt as a function: its name, what it takes, of which types, and its defaults.

Everything in it was worded by a server: it is bounded, on one line, and harmless at a terminal.
"""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from emceepee_stdio.cli.input_schema import (
    Parameter,
    Schema,
    alternatives,
    choices,
    parameters,
)
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import on_one_line

__all__ = ["Signature", "first_sentence", "prompt_signature", "tool_signature", "type_text"]

_MAX_PARAMETERS = 40  # of one tool: more is no longer read
_MAX_NAME_CHARS = 100  # of a tool or a parameter; the protocol advises 128 at most
_MAX_TYPE_CHARS = 72  # of a parameter: a line of a terminal
_MAX_VALUE_CHARS = 32  # of a default or a choice
_MAX_CHOICES = 4
_MAX_FIELDS = 4  # of an object inside a parameter
_MAX_DEPTH = 2  # a list of objects shows their fields, and no deeper
_PARAGRAPH_CHARS = 2_000  # of a description, in which its first sentence is looked for
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}


class Signature:
    """The name and the parameters, laid out for the place that there is."""

    def __init__(self, name: str, takes: Sequence[str]) -> None:
        self.name = _cut(on_one_line(name), _MAX_NAME_CHARS)
        left = len(takes) - _MAX_PARAMETERS
        self.takes = [*takes[:_MAX_PARAMETERS], *([f"… {left} more"] if left > 0 else [])]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.takes)})"

    def __repr__(self) -> str:
        return f"<Signature {self}>"

    def lines(self, width: int | None) -> list[str]:
        """On one line where it fits, else a line for each parameter."""
        whole = str(self)
        if width is None or len(whole) <= width or not self.takes:
            return [whole]
        inside = [
            line
            for one in self.takes
            for line in textwrap.wrap(
                f"{one},", max(width - 4, 20), subsequent_indent="    ", break_on_hyphens=False
            )
        ]
        return [f"{self.name}(", *(f"    {line}" for line in inside), ")"]


def tool_signature(tool: Mapping[str, Any]) -> Signature:
    schema = mapping(tool.get("inputSchema"))
    return Signature(str(tool.get("name", "")), [_taken(one, schema) for one in parameters(schema)])


def prompt_signature(prompt: Mapping[str, Any]) -> Signature:
    """Prompts take texts, and say of each only whether it is needed."""
    found = map(mapping, elements(prompt.get("arguments")))
    takes = [f"{_name(one.get('name'))}{'' if one.get('required') else '?'}: str" for one in found]
    return Signature(str(prompt.get("name", "")), takes)


def type_text(schema: Schema, root: Schema, depth: int = 0) -> str:
    """The type of a value, in a few words."""
    options = alternatives(schema, root)
    kinds = dict.fromkeys(_one_type(option, root, depth) for option in options[: _MAX_CHOICES + 1])
    shown = list(kinds)[:_MAX_CHOICES]
    more = [] if len(kinds) <= _MAX_CHOICES else ["…"]
    return _cut(" | ".join([*shown, *more]), _MAX_TYPE_CHARS)


def first_sentence(text: str, width: int | None) -> str:
    """The first sentence of the first paragraph, cut between words; None cuts nothing."""
    paragraph = text.strip()[:_PARAGRAPH_CHARS].partition("\n\n")[0]
    line = " ".join(paragraph.split())
    ends = [line.find(f"{mark} ") + 1 for mark in ".!?" if f"{mark} " in line]
    sentence = on_one_line(line[: min(ends, default=len(line))])
    if width is None or len(sentence) <= width:
        return sentence
    head = sentence[: width - 1]
    return f"{head.rpartition(' ')[0] or head}…"


def _taken(parameter: Parameter, root: Schema) -> str:
    """One parameter: `name: type`, `name: type = default`, or `name?: type`."""
    name, schema = _name(parameter.name), parameter.schema
    if parameter.is_required:
        return f"{name}: {type_text(schema, root)}"
    default = schema.get("default")
    kinds = [one for one in alternatives(schema, root) if one.get("type") != "null"]
    type_ = type_text({"anyOf": kinds} if kinds else schema, root)
    if default is None:
        return f"{name}?: {type_}"
    return f"{name}: {type_} = {_value(default)}"


def _one_type(schema: Schema, root: Schema, depth: int) -> str:
    if allowed := choices(schema):
        shown = [_value(one) for one in allowed[:_MAX_CHOICES]]
        left = len(allowed) - len(shown)
        return " | ".join([*shown, *([f"… {left} more"] if left else [])])
    match schema.get("type"):
        case "array":
            items = mapping(schema.get("items"))
            inner = type_text(items, root, depth + 1) if items and depth < _MAX_DEPTH else ""
            return f"list[{inner}]" if inner else "list"
        case "object":
            return _object(schema, depth)
        case str() as kind:
            return _NAMES.get(kind, _name(kind))
        case _:
            return _object(schema, depth) if "properties" in schema else "any"


def _object(schema: Schema, depth: int) -> str:
    fields = parameters(schema)
    if not fields or depth >= _MAX_DEPTH:
        return "object"
    shown = [f"{_name(one.name)}{'' if one.is_required else '?'}" for one in fields[:_MAX_FIELDS]]
    return f"{{{', '.join([*shown, *(['…'] if len(fields) > _MAX_FIELDS else [])])}}}"


def _name(name: object) -> str:
    return _cut(on_one_line(str(name)), _MAX_NAME_CHARS)


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "…"
    shown = on_one_line(text)
    end = '"' if isinstance(value, str) and len(shown) > _MAX_VALUE_CHARS else ""
    return _cut(shown, _MAX_VALUE_CHARS - len(end)) + end


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: room - 1]}…"
