"""What is remembered of a server while it does not run: its hello, and what it listed last.

Pure: no file, no clock. A record is added to, never written over: several proxies see the same
server, and each has listed only some of what it has. How often its tools were others after a start
than before it is remembered, too: what changes at each start cannot be told beforehand.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw, Struct

from emceepee_stdio.backends.base import Hello
from emceepee_stdio.backends.lists import Item, Kind, memory_of
from emceepee_stdio.foreign_json import decoder

__all__ = ["CatalogueRecord", "ListRecord", "Remembered", "Seen", "added_to", "recalled"]

_REMEMBERED_STARTS = 5  # an update of the server is one; it is outlived by a few good starts
_MOST_CHANGES = 3  # of those starts; the server is no longer believed then
_SAME, _OTHER = "=", "!"


class ListRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One list as JSON, and when the server gave it; `cut` where only its beginning was read."""

    items: Raw
    at: str
    cut: bool = False


class CatalogueRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server. `starts` has a letter for each start: whether its first tools were the same.

    `first_tools` stands for those; some servers always add others a moment later. `known_as` stands
    for what it listed when this entry was first started.
    """

    identity: str
    hello: Hello | None = None
    lists: dict[str, ListRecord] = {}
    starts: str = ""
    first_tools: str = ""
    known_as: str = ""

    @property
    def is_steady(self) -> bool:
        """Whether the server lists after a start what it listed before it, mostly."""
        return self.starts.count(_OTHER) < _MOST_CHANGES


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a server has just listed. `first` when it is the first since the server started."""

    kind: Kind
    items: Sequence[Item]
    hello: Hello | None
    at: str
    cut: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered:
    """What a server that does not run is known by, and since when nobody has looked.

    `sizes` is what the lists take of memory, about; `unchanged` since this entry was first started.
    """

    hello: Hello
    at: str
    lists: Mapping[Kind, tuple[Item, ...]] = field(default_factory=dict[Kind, tuple[Item, ...]])
    sizes: Mapping[Kind, int] = field(default_factory=dict[Kind, int])
    cut: frozenset[Kind] = frozenset()
    unchanged: bool = False

    @property
    def tools(self) -> tuple[Item, ...]:
        return self.lists.get(Kind.TOOLS, ())


def added_to(record: CatalogueRecord, seen: Seen) -> CatalogueRecord:
    """The record with what was seen in it, and everything else as it was."""
    starts, first_tools, known_as = record.starts, record.first_tools, record.known_as
    if seen.first and seen.kind is Kind.TOOLS:
        first_tools = _digest(seen.items)
        same = first_tools == record.first_tools or not record.first_tools
        starts = (starts + (_SAME if same else _OTHER))[-_REMEMBERED_STARTS:]
    hello = seen.hello or record.hello
    if seen.kind is Kind.TOOLS and len(starts) <= 1:
        known_as = _introduced(seen.items, hello)
    now = ListRecord(items=Raw(msgspec.json.encode(seen.items)), at=seen.at, cut=seen.cut)
    return msgspec.structs.replace(
        record,
        hello=hello,
        lists={**record.lists, seen.kind.value: now},
        starts=starts,
        first_tools=first_tools,
        known_as=known_as,
    )


def recalled(record: CatalogueRecord) -> Remembered | None:
    """What can be said of the server without it; None where that is not all, or not to be said."""
    if record.hello is None or not record.is_steady:
        return None
    lists: dict[Kind, tuple[Item, ...]] = {}
    for kind in Kind:
        kept = record.lists.get(kind.value)
        items = None if kept is None else _items(kept.items)
        if items is None:
            return None
        lists[kind] = items
    return Remembered(
        hello=record.hello,
        at=min(one.at for one in record.lists.values()),
        lists=lists,
        sizes={kind: memory_of(record.lists[kind.value].items) for kind in Kind},
        cut=frozenset(kind for kind in Kind if record.lists[kind.value].cut),
        unchanged=record.known_as == _introduced(lists[Kind.TOOLS], record.hello),
    )


def _digest(items: Sequence[Item]) -> str:
    """The same for the same items; their order is the server's whim."""
    lines = sorted(msgspec.json.encode(item, order="deterministic") for item in items)
    return hashlib.sha256(b"\n".join(lines)).hexdigest()


def _introduced(tools: Sequence[Item], hello: Hello | None) -> str:
    """What a model is told of it: its tools and its instructions."""
    said = "" if hello is None else hello.instructions or ""
    text = f"{_digest(tools)}{said}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


_decode_items = decoder(tuple[dict[str, object], ...])


def _items(raw: Raw) -> tuple[Item, ...] | None:
    """The list; None where it is none."""
    try:
        return _decode_items(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None
