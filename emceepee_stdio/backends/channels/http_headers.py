"""The headers of a request over HTTP: what the modern era wants said twice, for those on the way.

Method, name and the arguments that a tool's schema marks with `x-mcp-header` are mirrored from the
body into headers; a server refuses a request whose two copies differ.
"""

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import msgspec
from msgspec import Raw

from emceepee_stdio.foreign_json import decode_value
from emceepee_stdio.json_values import mapping
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["HeaderMap", "HeaderMaps", "custom_headers", "header_map", "modern_headers"]

HeaderMap = Mapping[tuple[str, ...], str]

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_WRAPPED = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MARK = "x-mcp-header"
_MIRRORED_TYPES = ("string", "integer", "boolean")
_INNER = (
    *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
)
_INNER_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_INNER_MAPS = ("patternProperties", "dependentSchemas", "$defs", "definitions")


class HeaderMaps:
    """Which arguments of which tools are mirrored, as the lists of one server tell it."""

    def __init__(self) -> None:
        self._maps: dict[str, HeaderMap] = {}
        self.learned = False

    def __repr__(self) -> str:
        return f"<HeaderMaps {sorted(self._maps)}>"

    def learn(self, tools: Sequence[Mapping[str, object]]) -> list[str]:
        """Take in what the server has listed; the names of tools that cannot be called so."""
        self.learned = True
        maps = {
            name: header_map(tool.get("inputSchema"))
            for tool in tools
            if isinstance(name := tool.get("name"), str)
        }
        self._maps = {name: found for name, found in maps.items() if found}
        return [name for name, found in maps.items() if found is None]

    def headers(self, request: OutgoingRequest) -> dict[str, str]:
        return modern_headers(request, self._maps)


def custom_headers(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The headers of the configuration, fit to be sent; and the first one that is not."""
    headers = {name.strip(): value.strip() for name, value in given.items()}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _PLAIN.fullmatch(value):
            return headers, name
    return headers, None


def modern_headers(request: OutgoingRequest, maps: Mapping[str, HeaderMap]) -> dict[str, str]:
    """The mirrored headers of one request; `maps` holds the marked arguments by tool."""
    headers = {"mcp-method": _encoded(request.method)}
    params = request.params or {}
    name = params.get(_NAMED_BY.get(request.method, ""))
    if not isinstance(name, str):
        return headers
    headers["mcp-name"] = _encoded(name)
    marked = maps.get(name) if request.method == "tools/call" else None
    for path, token in (marked or {}).items():
        value = _rendered(_value_at(params.get("arguments"), path))
        if value is not None:
            headers[f"mcp-param-{token}"] = _encoded(value)
    return headers


def header_map(schema: object) -> dict[tuple[str, ...], str] | None:
    """Which properties of an input schema are to be mirrored, and under which name.

    None where a mark is out of place: such a tool is not to be listed.
    """
    found: dict[tuple[str, ...], str] = {}
    for path, fields in _schemas(schema):
        if _MARK not in fields:
            continue
        token, kind = fields[_MARK], fields.get("type")
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return None
        if kind not in _MIRRORED_TYPES or token.lower() in map(str.lower, found.values()):
            return None
        found[path] = token
    return found


def _schemas(root: object) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, object]]]:
    """Every schema inside a schema, with its path where only properties lead to it."""
    waiting: list[tuple[tuple[str, ...] | None, object]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        fields = mapping(schema)
        yield path, fields
        for key, inner in fields.items():
            if key == "properties":
                for name, property_ in mapping(inner).items():
                    waiting.append((None if path is None else (*path, name), property_))
            elif key in _INNER:
                waiting.append((None, inner))
            elif key in _INNER_LISTS and isinstance(inner, list):
                waiting += [(None, each) for each in cast("list[object]", inner)]
            elif key in _INNER_MAPS:
                waiting += [(None, each) for each in mapping(inner).values()]


def _value_at(value: object, path: tuple[str, ...]) -> object:
    """Opened one level at a time: what else is in it may be beyond what can be read."""
    try:
        for key in path:
            value = msgspec.json.decode(to_json(value), type=dict[str, Raw]).get(key)
        return decode_value(to_json(value))
    except (msgspec.MsgspecError, RecursionError):
        return None


def _rendered(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value) if isinstance(value, str | int | float) else None
    except ValueError:  # an integer with more digits than Python writes
        return None


def _encoded(value: str) -> str:
    """As it is where a header can carry it, else wrapped."""
    if _PLAIN.fullmatch(value) and not _WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="
