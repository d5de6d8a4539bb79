"""Lists of exposed servers as bytes, beside our own tools. Pure.

A definition is as its server gave it but for its name, and for what a call through us cannot keep:
`outputSchema`, because a task in the place of a result would not satisfy it, and `execution`, which
offers tasks of the protocol. A client refuses a whole list of which one item is malformed, so a
malformed one is left out, and so is what is too large: a server costs only itself.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import translate
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.backends.interface import Item, Kind
from emceepee_stdio.backends.lists import KINDS
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.tool_rules import rules_of
from emceepee_stdio.json_values import mapping
from emceepee_stdio.wire.codec import to_json

# Under which names exposed tools and prompts are listed: SERVER__TOOL, as every host takes them.
#
# Hosts put `mcp__emceepee__` before a name and stop at 64 characters of a small alphabet. A name
# says what it is where it can. Where two would be equal, each gets a hash of its server and its own
# name, and so does one that had to be cut: no name depends on which of two came first. What begins
# like the names of a server means that server, whether it is listed now or not.


MAX_NAME_CHARS = 46  # 64 of a host, less `mcp__emceepee__` and a little for longer prefixes
_HASH_CHARS = 8
_CUT_CHARS = MAX_NAME_CHARS - _HASH_CHARS - 1  # what is left of a name before its hash
_FOREIGN = re.compile(r"[^A-Za-z0-9_-]")

ItemKey = tuple[str, str]  # a server, and what an item is called there


def claimants(name: str, servers: Iterable[str]) -> list[str]:
    """The servers of which something may be listed under a name that begins like this one."""
    plain = _FOREIGN.sub("_", name)
    return [server for server in servers if plain.startswith(_beginning(server))]


def exposed_names(items: Iterable[ItemKey], servers: Iterable[str] = ()) -> dict[ItemKey, str]:
    """The name of each; of those that even a hash does not tell apart, the first has it alone.

    `servers` are all that there may be: no plain name is one that another of them may have.
    """
    plain = {item: _FOREIGN.sub("_", "__".join(item)) for item in items}
    taken = Counter(plain.values())
    rivals = {name: _rivals(name, servers) for name in {server for server, _ in plain}}
    names = {
        item: name
        if taken[name] == 1 and len(name) <= MAX_NAME_CHARS and not name.startswith(rivals[item[0]])
        else _hashed(item, name)
        for item, name in plain.items()
    }
    owners = {name: item for item, name in reversed(names.items())}
    return {item: name for item, name in names.items() if owners[name] == item}


def _hashed(item: ItemKey, name: str) -> str:
    digest = hashlib.sha256("\0".join(item).encode(errors="surrogatepass")).hexdigest()
    return f"{name[:_CUT_CHARS]}_{digest[:_HASH_CHARS]}"


def _beginning(server: str) -> str:
    """Of every name under which something of a server is listed."""
    return _FOREIGN.sub("_", f"{server}__")[:_CUT_CHARS]


def _rivals(server: str, servers: Iterable[str]) -> tuple[str, ...]:
    """How names begin that are more likely those of another server."""
    own = _beginning(server)
    others = (_beginning(other) for other in servers if other != server)
    return tuple(other for other in others if other.startswith(own))


_MOST_ITEMS = 1_000  # of one kind of a server: no client uses more, and to list more delays calls
_ITEM_BYTES = 64 << 10  # of one definition; schemas that a model can use are far smaller
_SERVER_BYTES = 512 << 10  # of one server: hundreds of tools with long descriptions
_TOTAL_BYTES = 4 << 20  # of all: half of the longest line that a client is sent
_URI_CHARS = 2_000  # as much as clients take for an address
_URI = re.compile(r"(?!emceepee:)[a-z][a-z0-9+.-]*:\S+", re.IGNORECASE)
_LEFT_OUT = frozenset(("outputSchema", "execution"))
# Hosts put a long answer of an unmarked tool into a file and show its first 2 KB; ours are cut to
# what the host shows before.
LONG_RESULTS: Mapping[str, int] = {"anthropic/maxResultSizeChars": 500_000}  # the most it may be


class _Object(msgspec.Struct):
    """Any object."""


class _Icon(msgspec.Struct, rename="camel"):
    src: str
    mime_type: str | UnsetType = UNSET
    sizes: list[str] | UnsetType = UNSET


class _Listed(msgspec.Struct, kw_only=True, rename="camel"):
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    icons: list[_Icon] | UnsetType = UNSET
    meta: _Object | UnsetType = msgspec.field(name="_meta", default=UNSET)


class _Schema(msgspec.Struct):
    type: Literal["object"]
    properties: dict[str, _Object] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class _Hints(msgspec.Struct, rename="camel"):
    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class _Tool(_Listed, kw_only=True):
    input_schema: _Schema
    annotations: _Hints | UnsetType = UNSET


class _Argument(msgspec.Struct):
    name: str
    description: str | UnsetType = UNSET
    required: bool | UnsetType = UNSET


class _Prompt(_Listed, kw_only=True):
    arguments: list[_Argument] | UnsetType = UNSET


class _Annotations(msgspec.Struct, rename="camel"):
    audience: list[str] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: str | UnsetType = UNSET


class _Content(_Listed, kw_only=True):
    mime_type: str | UnsetType = UNSET
    annotations: _Annotations | UnsetType = UNSET


class _Resource(_Content, kw_only=True):
    uri: str
    size: float | UnsetType = UNSET


class _Template(_Content, kw_only=True):
    uri_template: str


_FORMS: Mapping[Kind, type[_Listed]] = {
    Kind.TOOLS: _Tool,
    Kind.PROMPTS: _Prompt,
    Kind.RESOURCES: _Resource,
    Kind.TEMPLATES: _Template,
}
_IDENTITY = {Kind.RESOURCES: "uri", Kind.TEMPLATES: "uriTemplate"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedServer:
    """A server and what of its lists a person exposes.

    `hidden` are tools that are not shown, `unpinned` those that are not what they were.
    """

    name: str
    items: Mapping[Kind, Sequence[Item]]
    hidden: frozenset[str] = frozenset()
    unpinned: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedItem:
    """Whose it is, and what it is called there; `page` is the resource that shows its results.

    A hidden one is not `listed`, but known: a call of it is told why it does not run.
    """

    server: str
    own: str
    shown: str
    listed: bool
    page: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedLists:
    """By the key of each list the inside of its array, and where each item is from.

    `tools` and `prompts` are known by the names under which they are listed, `own_tools` by their
    own names, where only one server has such a tool.
    """

    arrays: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    tools: Mapping[str, ExposedItem] = field(default_factory=dict[str, ExposedItem])
    own_tools: Mapping[str, ExposedItem] = field(default_factory=dict[str, ExposedItem])
    prompts: Mapping[str, ExposedItem] = field(default_factory=dict[str, ExposedItem])
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])

    def listed_names(self) -> dict[ItemKey, str]:
        """Under which names the tools are listed, without the hidden ones."""
        return {(one.server, one.own): one.shown for one in self.tools.values() if one.listed}


def identity_of(kind: Kind, item: Item) -> str | None:
    """What an item is called at its server."""
    own = item.get(_IDENTITY.get(kind, "name"))
    return own if isinstance(own, str) and own else None


def list_exposed(
    servers: Sequence[ExposedServer], known: Collection[str] = (), *, total: int = _TOTAL_BYTES
) -> ExposedLists:
    """The lists of these servers, in their order; within one, by name, whatever its own order.

    `known` are the names of all servers of which something may be listed at some time.
    """
    room = dict.fromkeys(
        (server.name for server in servers), min(_SERVER_BYTES, total // max(len(servers), 1))
    )
    left_out: Counter[str] = Counter()
    found = {kind: list(_items(kind, servers, known, room, left_out)) for kind in Kind}
    tools = [item for item, _ in found[Kind.TOOLS]]
    owners = Counter(item.own for item in tools)
    return ExposedLists(
        arrays={
            KINDS[kind].key: b",".join(definition for item, definition in items if item.listed)
            for kind, items in found.items()
        },
        tools={item.shown: item for item in tools},
        own_tools={item.own: item for item in tools if owners[item.own] == 1},
        prompts={item.shown: item for item, _ in found[Kind.PROMPTS]},
        left_out=+left_out,
    )


def _items(
    kind: Kind,
    servers: Sequence[ExposedServer],
    known: Collection[str],
    room: dict[str, int],
    left_out: Counter[str],
) -> Iterator[tuple[ExposedItem, bytes]]:
    """The items of one kind with their definitions, each server's within its room."""
    given: dict[ItemKey, tuple[ExposedServer, Item]] = {}
    for server in servers:
        items = sorted(_by_identity(kind, server.items.get(kind, ())).items())
        given |= {(server.name, own): (server, item) for own, item in items[:_MOST_ITEMS]}
        left_out[server.name] += max(len(items) - _MOST_ITEMS, 0)
    names = {key: key[1] for key in given} if kind in _IDENTITY else exposed_names(given, known)
    seen: set[str] = set()
    for (name, own), (server, item) in given.items():
        shown = names.get((name, own), "")
        is_unpinned = kind is Kind.TOOLS and own in server.unpinned
        definition = _definition(kind, _without_hints(item) if is_unpinned else item, shown)
        is_hidden = kind is Kind.TOOLS and own in server.hidden
        # A URI that two servers have is listed once.
        listed = not is_hidden and shown not in seen
        size = len(definition or b"") + 1  # and a comma
        if definition is None or (listed and size > min(_ITEM_BYTES, room[name])):
            left_out[name] += 1
            continue
        if listed:
            seen.add(shown)
            room[name] -= size
        yield (
            ExposedItem(server=name, own=own, shown=shown, listed=listed, page=_page(item)),
            definition,
        )


def _by_identity(kind: Kind, items: Sequence[Item]) -> dict[str, Item]:
    """Of several with one name the first, as a call means it."""
    found: dict[str, Item] = {}
    for item in items:
        if own := identity_of(kind, item):
            found.setdefault(own, item)
    return found


def _definition(kind: Kind, item: Item, shown: str) -> bytes | None:
    """None for what has no name, or what a client might refuse the whole list for."""
    if not shown:
        return None
    fields = {k: v for k, v in item.items() if v is not None and k not in _LEFT_OUT}
    if kind in _IDENTITY:
        if len(shown) > _URI_CHARS or not shown.isprintable() or not _URI.fullmatch(shown):
            return None
    else:
        fields["name"] = shown
    try:
        msgspec.convert(fields, _FORMS[kind])
        if kind is Kind.TOOLS:
            fields["_meta"] = {**mapping(fields.get("_meta")), **LONG_RESULTS}
        return to_json(fields)
    except (msgspec.MsgspecError, RecursionError, ValueError):
        return None


def _without_hints(tool: Item) -> Item:
    """Hosts run a tool that only reads without asking: no server makes it one later."""
    hints = mapping(tool.get("annotations"))
    if not hints:
        return tool
    title = {key: value for key, value in hints.items() if key == "title"}
    return {**tool, "annotations": {**title, "readOnlyHint": False}}


def _page(item: Item) -> str | None:
    """The page of an MCP App, in the words of today and of before.

    Any other address may be that of a resource of another server.
    """
    meta = mapping(item.get("_meta"))
    uri = mapping(meta.get("ui")).get("resourceUri") or meta.get("ui/resourceUri")
    return uri if isinstance(uri, str) and uri.startswith("ui://") else None


# What of a server's lists its entry exposes: the tools that its patterns name, or all of it. Pure.
#
# A tool that a rule hides is not shown; it stays known, so that a call of it is told why.


def exposed_server(
    entry: ServerConfig,
    listed: Mapping[Kind, Sequence[Item]],
    *,
    unpinned: frozenset[str] = frozenset(),
    enforced: bool = False,
) -> ExposedServer:
    """The part of what is `listed`.

    `unpinned` are tools that are not what they were; a person has to see them first, if `enforced`.
    """
    tools = listed.get(Kind.TOOLS, ())
    if not isinstance(entry.expose, bool):
        fits = re.compile("|".join(map(translate, entry.expose)) or "(?!)").match
        tools = [tool for tool in tools if fits(str(tool.get("name")))]
    rules = rules_of({entry.name: entry.tools})
    names = [str(tool.get("name")) for tool in tools]
    hidden = frozenset(name for name in names if rules is not None and rules.hides(name))
    return ExposedServer(
        name=entry.name,
        items={**(listed if entry.expose is True else {}), Kind.TOOLS: tools},
        hidden=hidden | unpinned if enforced else hidden,
        unpinned=unpinned,
    )


def exposed_as(
    entry: ServerConfig, tools: Sequence[Item], configured: Collection[str]
) -> dict[str, str]:
    """Under which names a client is listed these tools; `configured` are all servers by name."""
    if not entry.expose:
        return {}
    names = list_exposed([exposed_server(entry, {Kind.TOOLS: tools})], configured).listed_names()
    return {own: shown for (_, own), shown in names.items()}


def idle_patterns(entry: ServerConfig, tools: Sequence[Item]) -> list[str]:
    """Patterns that match no tool: perhaps a slip of the pen."""
    if isinstance(entry.expose, bool):
        return []
    names = [str(tool.get("name")) for tool in tools]
    return [one for one in entry.expose if not any(map(re.compile(translate(one)).match, names))]
