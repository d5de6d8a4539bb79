"""A tool or a prompt shown as a function: name, parameters, types and defaults.

For a person on one line, in the words of JSON, as they are typed in a shell; for a model as Python,
with what is said of the parameters. Everything in it was worded by a server: it is bounded,
harmless at a terminal, and cannot leave its place.
"""

import json
import keyword
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.visible_text import cut, on_one_line, spelled_out

# What a tool or a prompt takes: its parameters by name, read from what its server listed.
#
# Only the top level of a schema is understood, with references inside the same document followed.
# The schema is somebody else's: whatever is odd in it counts as "anything goes", never as an error.


Schema = Mapping[str, object]

_MAX_REFERENCES = 8  # from one to the next; more is a circle
_MAX_ALTERNATIVES = 64  # of one schema: nobody reads more
_COMPOSED = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "patternProperties", "if")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument that may be given. `schema` has no reference at its top."""

    name: str
    schema: Schema
    is_required: bool

    @property
    def description(self) -> str:
        return str(self.schema.get("description") or self.schema.get("title") or "")


def parameters(schema: Schema) -> list[Parameter]:
    """Those of a tool, the required ones first, else in the order of its schema."""
    required = elements(schema.get("required"))
    found = [
        Parameter(name=name, schema=_resolved(mapping(about), schema), is_required=name in required)
        for name, about in mapping(schema.get("properties")).items()
    ]
    return sorted(found, key=lambda one: not one.is_required)


def refuses_others(schema: Schema) -> bool:
    """Whether a name that it does not list is a mistake.

    JSON Schema lets other names through unless it says otherwise, but a tool that lists what it
    takes and says nothing of more does not look at more.
    """
    if any(key in schema for key in _COMPOSED) or "properties" not in schema:
        return False
    return not schema.get("additionalProperties")


def alternatives(schema: Schema, root: Schema) -> list[Schema]:
    """The schemas of which a value has to fit one; the schema itself where it names none."""
    named = elements(schema.get("anyOf")) or elements(schema.get("oneOf"))
    if named:
        return [_resolved(mapping(one), root) for one in named[:_MAX_ALTERNATIVES]]
    kinds = elements(schema.get("type"))
    return [{**schema, "type": kind} for kind in kinds[:_MAX_ALTERNATIVES]] or [schema]


def choices(schema: Schema) -> list[object]:
    """The only values that it allows, where it lists them."""
    return [schema["const"]] if "const" in schema else elements(schema.get("enum"))


def fits(value: object, schema: Schema, root: Schema) -> bool:
    """Whether a value is of a type, or one of the values, that the schema names."""
    return any(_fits_one(value, option) for option in alternatives(schema, root))


def _fits_one(value: object, schema: Schema) -> bool:
    if allowed := choices(schema):
        return any(value == one and type(value) is type(one) for one in allowed)
    kinds = _TYPES.get(str(schema.get("type")))
    if kinds is None or any(key in schema for key in ("allOf", "anyOf", "oneOf", "$ref")):
        return True
    if isinstance(value, bool):
        return kinds == (bool,)
    is_whole = kinds == (int,) and isinstance(value, float) and value.is_integer()
    return is_whole or isinstance(value, kinds)


def _resolved(schema: Schema, root: Schema) -> Schema:
    """What it refers to in the same document, with its own words kept over those there."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        found: object = root
        for step in reference.removeprefix("#/").split("/"):
            found = mapping(found).get(step.replace("~1", "/").replace("~0", "~"))
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**mapping(found), **beside}
    return schema


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
        self.name = cut(on_one_line(name), _MAX_NAME_CHARS)
        left = len(takes) - _MAX_PARAMETERS
        self.takes = [*takes[:_MAX_PARAMETERS], *([f"… {left} more"] if left > 0 else [])]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(self.takes)})"

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
    return cut(" | ".join([*shown, *more]), _MAX_TYPE_CHARS)


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
    return cut(on_one_line(str(name)), _MAX_NAME_CHARS)


def _value(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return "…"
    shown = on_one_line(text)
    end = '"' if isinstance(value, str) and len(shown) > _MAX_VALUE_CHARS else ""
    return cut(shown, _MAX_VALUE_CHARS - len(end)) + end


# The same as Python, for a model that is about to call the tool.
#
# With `def` before it and a body behind, it is a function that Python reads, whatever the server
# lists: names are identifiers, values are literals, and a comment ends with its line. A name that
# is no identifier gets another one, and the comment says the real one. What is left out is an
# ellipsis.


_COMMENT_CHARS = 1_000  # of what is said of one parameter
_MAX_PYTHON_TYPE_CHARS = 600  # a longer one is shown with less of its inside
_MAX_PYTHON_DEPTH = 4
_MAX_PARTS = 400  # of one type, which could refer to itself many times over
_MAX_PYTHON_FIELDS = 24  # of an object; also choices, and alternatives
_MAX_PYTHON_VALUE_CHARS = 80
_PYTHON_NAMES = {**_NAMES, "array": "list", "object": "dict", "null": "None"}


def python_signature(tool: Mapping[str, Any]) -> str:
    """`name(…)`, with a comment for each parameter of which something is said."""
    schema, output = mapping(tool.get("inputSchema")), mapping(tool.get("outputSchema"))
    taken = parameters(schema)
    names = _identifiers([*(one.name for one in taken), "more"])
    shown = list(zip(taken[:_MAX_PARAMETERS], names, strict=False))
    lines = [(_python_parameter(one, name, schema), _said(one, name)) for one, name in shown]
    if len(taken) > len(shown):
        lines.append((f"**{names[-1]}: Any", f"{len(taken) - len(shown)} more"))
    elif schema.get("additionalProperties") or any(key in schema for key in _COMPOSED):
        lines.append((f"**{names[-1]}: Any", ""))
    returned = _python_type(output, output) if output else "Any"
    [name] = _identifiers([str(tool.get("name", ""))])
    end = "" if returned in ("Any", "dict") else f" -> {returned}"
    return f"{name}({''.join(_laid_out(lines))}){end}"


def _laid_out(lines: Sequence[tuple[str, str]]) -> Iterator[str]:
    """A parameter with a comment ends its line, others go on."""
    for number, (text, said) in enumerate(lines, start=1):
        more = number < len(lines)
        yield f"{text}," if more else text
        yield f" # {said}\n" if said else " " * more


def _python_parameter(one: Parameter, name: str, root: Schema) -> str:
    text = f"{name}: {_python_type(one.schema, root)}"
    if one.is_required:
        return text
    default = _literal(one.schema["default"]) if "default" in one.schema else "..."
    return f"{text} = {default}"


def _said(one: Parameter, name: str) -> str:
    """What its server says of a parameter, on one line, and its real name."""
    real = "" if name == one.name else f"named {cut(repr(one.name), _MAX_NAME_CHARS)}"
    text = " ".join(one.description.split())
    if _letters(text) == _letters(one.name):  # a title that libraries make from the name
        text = ""
    return "; ".join(filter(None, (real, cut(on_one_line(text), _COMMENT_CHARS))))


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).casefold()


def _identifiers(names: Iterable[str]) -> list[str]:
    """Names that Python takes, each once; those that it takes as they are stay."""
    names = list(names)
    used = {name for name in names if _is_identifier(name)}
    made: list[str] = []
    for name in names:
        if name in used and name not in made:
            made.append(name)
            continue
        base = re.sub(r"\W", "_", name[:_MAX_NAME_CHARS], flags=re.ASCII)
        base = base if _is_identifier(base) else f"_{base}"
        free, number = base, 1
        while free in used:
            number += 1
            free = f"{base}_{number}"
        used.add(free)
        made.append(free)
    return made


def _is_identifier(name: str) -> bool:
    return (
        name.isidentifier()
        and unicodedata.normalize("NFKC", name) == spelled_out(name) == name
        and not keyword.iskeyword(name)
        and name != "__debug__"
        and len(name) <= _MAX_NAME_CHARS
    )


def _python_type(schema: Schema, root: Schema) -> str:
    depths = range(_MAX_PYTHON_DEPTH, -1, -1)
    texts = (_PythonType(root).text(schema, depth) for depth in depths)
    return next((text for text in texts if len(text) <= _MAX_PYTHON_TYPE_CHARS), "Any")


class _PythonType:
    """The type of values of one schema; deeper than `depth` it says only what kind they are."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._parts_left = _MAX_PARTS

    def text(self, schema: Schema, depth: int) -> str:
        options = alternatives(_united(schema, self._root), self._root)
        allowed = [value for option in options for value in choices(option)]
        kinds = [self._one(option, depth) for option in options if not choices(option)]
        if allowed:
            values = [_literal(one) for one in allowed[:_MAX_PYTHON_FIELDS]]
            more = ["..."] if len(allowed) > len(values) else []
            kinds.insert(0, f"Literal[{', '.join([*values, *more])}]")
        return " | ".join(dict.fromkeys(kinds))

    def _one(self, schema: Schema, depth: int) -> str:
        self._parts_left -= 1
        if self._parts_left < 0:
            return "Any"
        if depth and any(key in schema for key in ("anyOf", "oneOf", "allOf")):
            return self.text(schema, depth - 1)
        kind = schema.get("type")
        if kind == "array" and depth and (items := mapping(schema.get("items"))):
            return f"list[{self.text(_resolved(items, self._root), depth - 1)}]"
        if depth and (kind == "object" or "properties" in schema):
            return self._object(schema, depth)
        return _PYTHON_NAMES.get(kind, "Any") if isinstance(kind, str) else "Any"

    def _object(self, schema: Schema, depth: int) -> str:
        fields = {name: mapping(one) for name, one in mapping(schema.get("properties")).items()}
        others = mapping(schema.get("additionalProperties"))
        if not fields:
            if not others:
                return "dict"
            return f"dict[str, {self.text(_resolved(others, self._root), depth - 1)}]"
        required = elements(schema.get("required"))
        shown = [
            f"{_literal(name if name in required else f'{name}?')}: "
            + self.text(_resolved(one, self._root), depth - 1)
            for name, one in list(fields.items())[:_MAX_PYTHON_FIELDS]
        ]
        more = ["'...': ..."] if len(fields) > len(shown) else []
        return f"{{{', '.join([*shown, *more])}}}"


def _united(schema: Schema, root: Schema) -> Schema:
    """What all of the schemas say together that a value has to fit, where they are objects."""
    for one in elements(schema.get("allOf"))[:_MAX_ALTERNATIVES]:
        part = _resolved(mapping(one), root)
        properties = {**mapping(schema.get("properties")), **mapping(part.get("properties"))}
        required = [*elements(schema.get("required")), *elements(part.get("required"))]
        schema = {**part, **schema}
        if properties:
            schema |= {"properties": properties, "required": required}
    return {key: value for key, value in schema.items() if key != "allOf"}


def _literal(value: object) -> str:
    """A value of JSON as Python writes it; an ellipsis for one that is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of many digits, or deep
        return "..."
    if len(text) <= _MAX_PYTHON_VALUE_CHARS:
        return text
    return repr(cut(value, _MAX_PYTHON_VALUE_CHARS // 2)) if isinstance(value, str) else "..."
