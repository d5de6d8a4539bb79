"""What a tool is: a function with `@tool`.

Its name is the function's, its description the docstring, and its schema comes from the struct that
the function takes as `p`. A mistake in the arguments is named by field, what was given and what is
expected.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, ClassVar, TypeVar, cast, get_type_hints

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.foreign_json import decoded, envelope_decoder
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.exposed_lists import LONG_RESULTS
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.codec import to_json

_WHERE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<where>.*)`)?", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]*)`")

additive: Mapping[str, bool] = {"destructiveHint": False, "openWorldHint": False}
read_only: Mapping[str, bool] = {"readOnlyHint": True, "openWorldHint": False}
destructive: Mapping[str, bool] = {"destructiveHint": True, "openWorldHint": False}
open_world: Mapping[str, bool] = {"destructiveHint": True, "openWorldHint": True}

# For hosts that put tools behind a search, ask for each call, or put an answer of many tokens into
# a file and show its first 2 KB: `pages` is on every tool whose answer may be long.
always_loaded: dict[str, bool | int] = {"anthropic/alwaysLoad": True}
asks_the_user: dict[str, bool | int] = {"anthropic/requiresUserInteraction": True}
pages: dict[str, bool | int] = {**LONG_RESULTS}


WaitMs = Annotated[int, msgspec.Meta(ge=0, le=900_000)]  # longer than any client waits


class Params(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The arguments of a tool; the base of each of them."""


Result = Reply | Coroutine[object, object, Reply | None] | None
Run = Callable[..., Result]
F = TypeVar("F", bound=Run)


@cache
def _decoder(params: type[Params]) -> Callable[[bytes | Raw], Params]:
    return envelope_decoder(params)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A `forgiving` one is also given the arguments that it does not know."""

    native: ClassVar[bool] = False  # answered as a server gave it
    whole: ClassVar[bool] = False

    name: str
    params: type[Params]
    run: Run
    description: str
    forgiving: bool = False
    meta: Mapping[str, bool | int] = field(default_factory=dict[str, bool | int])
    annotations: Mapping[str, bool] = field(default_factory=lambda: additive)

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"

    def decode(self, arguments: Raw | None) -> Params:
        """The arguments as the struct; the error says what to change."""
        try:
            return _decoder(self.params)(arguments or b"{}")
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{self.name}: {self._explain(str(error))}") from None
        except (msgspec.MsgspecError, RecursionError):
            raise InvalidArguments(f"{self.name}: the arguments must be a JSON object.") from None

    def call(self, runtime: Runtime, arguments: Raw | None, call: Call) -> Result:
        """Read the arguments and run."""
        try:
            params = _decoder(self.params)(arguments or b"{}")
        except (msgspec.MsgspecError, RecursionError):
            server = _server_in(arguments)
            if server is not None and server in runtime.servers.marked_names():
                call.trace.server = server
            given = decoded(arguments, dict[str, Raw]) if self.forgiving and arguments else None
            if given is not None:
                known = self.params.__struct_encode_fields__
                mine = to_json({key: given[key] for key in known if key in given})
                extra = {key: value for key, value in given.items() if key not in known}
                return self.run(runtime, self.decode(Raw(mine)), call, extra)
            params = self.decode(arguments)
        return self.run(runtime, params, call)

    def listed(self) -> dict[str, object]:
        """The tool as tools/list shows it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self._schema(),
            "annotations": dict(self.annotations),
            **({"_meta": dict(self.meta)} if self.meta else {}),
        }

    def _schema(self) -> dict[str, object]:
        """Closed, flat and small: no references, no titles, no empty defaults."""
        (_, definitions) = msgspec.json.schema_components([self.params])
        schema = cast("dict[str, object]", definitions[self.params.__name__])
        flat = _flattened(schema, cast("dict[str, object]", definitions))
        if self.forgiving:
            cast("dict[str, object]", flat).pop("additionalProperties", None)
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


_tools: defaultdict[str, list[Tool]] = defaultdict(list)  # by the module that defines them


def tool(
    annotations: Mapping[str, bool] = additive,
    *,
    meta: Mapping[str, bool | int] | None = None,
    forgiving: bool = False,
) -> Callable[[F], F]:
    """Make a function a tool."""

    def add(run: F) -> F:
        made = Tool(
            name=run.__name__,
            params=get_type_hints(run)["p"],
            run=run,
            description=" ".join((run.__doc__ or "").split()),
            forgiving=forgiving,
            meta=meta or {},
            annotations=annotations,
        )
        _tools[run.__module__].append(made)
        return run

    return add


def tools_of(module: str) -> Sequence[Tool]:
    return _tools[module]


class _NamesServer(msgspec.Struct):
    server: str | None = None


def _server_in(arguments: Raw | None) -> str | None:
    """The server that arguments name which are otherwise wrong."""
    named = decoded(arguments or b"{}", _NamesServer)
    return None if named is None else named.server


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
