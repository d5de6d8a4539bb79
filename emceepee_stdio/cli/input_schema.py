"""What a tool or a prompt takes: its parameters by name, read from what its server listed.

Only the top level of a schema is understood, with references inside the same document followed. The
schema is somebody else's: whatever is odd in it counts as "anything goes", never as an error.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from emceepee_stdio.json_values import elements, mapping

__all__ = ["Parameter", "Schema", "alternatives", "choices", "fits", "parameters", "refuses_others"]

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
    options = alternatives(schema, root)
    if options != [schema]:
        return any(_fits_one(value, option) for option in options)
    return _fits_one(value, schema)


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
        for step in _steps(reference):
            found = mapping(found).get(step)
        beside = {key: value for key, value in schema.items() if key != "$ref"}
        schema = {**mapping(found), **beside}
    return schema


def _steps(reference: str) -> Iterator[str]:
    for step in reference.removeprefix("#/").split("/"):
        yield step.replace("~1", "/").replace("~0", "~")
