"""What a tool is: one params struct, one async function, one row. Its schema comes from the struct.

A mistake in the arguments is told by field, what was given and what is expected.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.session.calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime

__all__ = ["Params", "Tool", "open_world", "read_only"]

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")

read_only: Mapping[str, bool] = {"readOnlyHint": True, "openWorldHint": False}
open_world: Mapping[str, bool] = {"destructiveHint": True, "openWorldHint": True}


class Params(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool; the base of each of them."""


Run = Callable[[Runtime, Any, Call], Awaitable[Reply]]


Finish = Callable[[Callable[[], Reply]], None]
Begin = Callable[[Runtime, Raw | None, Call, Finish, Callable[[], object]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One row of the table. `begin` is tried first where there is one: it needs no task."""

    name: str
    params: type[Params]
    run: Run
    description: str
    begin: Begin | None = None
    annotations: Mapping[str, bool] = field(
        default_factory=lambda: {"destructiveHint": False, "openWorldHint": False}
    )

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def decode(self, arguments: Raw | None) -> Params:
        """The arguments as the struct; the error says what to change."""
        try:
            return msgspec.json.decode(arguments or b"{}", type=self.params)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{self.name}: {self._explain(str(error))}") from None
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidArguments(f"{self.name}: the arguments must be a JSON object.") from None

    async def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Reply:
        """Read the arguments and run; unknown ones are noted for the tool that forgives them."""
        params = self.decode(arguments)
        if not self.params.__struct_config__.forbid_unknown_fields and arguments is not None:
            given = msgspec.json.decode(arguments, type=dict[str, Raw])
            if len(given) > len(known := self.params.__struct_encode_fields__) or (
                given.keys() - set(known)
            ):
                call.extra = {k: v for k, v in given.items() if k not in known}
        return await self.run(runtime, params, call)

    def listed(self) -> dict[str, object]:
        """The tool as tools/list shows it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self._schema(),
            "annotations": dict(self.annotations),
        }

    def _schema(self) -> dict[str, object]:
        """Closed, flat and small: no references, no titles, no empty defaults."""
        (_, definitions) = msgspec.json.schema_components([self.params])
        schema = cast("dict[str, object]", definitions[self.params.__name__])
        flat = _flattened(schema, cast("dict[str, object]", definitions))
        return cast("dict[str, object]", flat)

    def _explain(self, message: str) -> str:
        if unknown := _UNKNOWN.fullmatch(message):
            known = ", ".join(info.encode_name for info in msgspec.structs.fields(self.params))
            return f"there is no argument {unknown['name']!r}; known are: {known or 'none'}."
        if missing := _MISSING.fullmatch(message):
            return f"the argument {missing['name']!r} is missing."
        where = _WHERE.fullmatch(message)
        if where is None or not where["where"]:
            return f"{message}."
        what = f"{where['what'][:1].lower()}{where['what'][1:]}"
        return f"{where['where']}: {what}{self._choices(where['where'])}."

    def _choices(self, field: str) -> str:
        """What a field with a fixed set of values may be."""
        properties = cast("dict[str, dict[str, object]]", self._schema()["properties"])
        choices = properties.get(field, {}).get("enum")
        if not isinstance(choices, list):
            return ""
        return f"; expected is one of {', '.join(map(str, cast('list[object]', choices)))}"


def _flattened(schema: object, definitions: Mapping[str, object]) -> object:
    if isinstance(schema, list):
        return [_flattened(item, definitions) for item in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, object]", schema)
    reference = fields.get("$ref")
    if isinstance(reference, str):
        meant = _flattened(definitions[reference.rsplit("/", 1)[-1]], definitions)
        said_here = {key: value for key, value in fields.items() if key != "$ref"}
        return {**said_here, **cast("dict[str, object]", meant)}
    if "properties" in fields:
        properties = cast("dict[str, object]", fields["properties"])
        fields = {
            **fields,
            "properties": {k: _flattened(v, definitions) for k, v in properties.items()},
        }
        if not fields.get("required"):
            fields.pop("required", None)
    if "enum" in fields:
        fields = {"type": "string", **fields}
    dropped = {"title"} | ({"description"} if "properties" in fields else set[str]())
    return {
        key: value if key == "properties" else _flattened(value, definitions)
        for key, value in fields.items()
        if key not in dropped
    }
