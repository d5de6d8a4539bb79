"""The lists of one server (tools, resources, prompts): fetched to the last page and cached.

What was known last can always be looked at without asking; it may be old, and says so by being
called `known`. What is known from before the server was started is `remembered`, until it is listed
anew. A list without measure costs its own server: it is cut, and that is known, too.
"""

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import anyio
import anyio.lowlevel
import msgspec
from msgspec import Raw, Struct

from emceepee_stdio.backends.interface import Hello, Item, Kind, RemoteError, Seen
from emceepee_stdio.clock import DAY_S, Clock
from emceepee_stdio.errors import CallFailed, CallTimeout
from emceepee_stdio.foreign_json import MAX_VALUES, decoded, opened, values_in
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.wire.codec import METHOD_NOT_FOUND

_MAX_PAGES = 1_000  # a server whose cursors never end would be read for ever
MAX_ITEMS = 5_000  # no model reads so many, and to read more would keep others waiting
_TURN_VALUES = 4_000  # read at a time: about a millisecond of work
MAX_LIST_BYTES = 64 << 20  # of memory for all lists of a server: ten times what 5,000 tools take
_VALUE_BYTES = 64  # of memory for each value, however short it was on the wire
_PAGE_VALUES = 1_000_000  # of one page: more cannot even be counted without much memory
_CURSOR_CHARS = 10_000  # a place in a list; longer ones would only fill our memory
_MAX_TTL_S = DAY_S  # a list that never expires would hide a change that was not told


@dataclass(frozen=True, slots=True, kw_only=True)
class _Terms:
    method: str
    key: str
    capability: str


KINDS = {
    Kind.TOOLS: _Terms(method="tools/list", key="tools", capability="tools"),
    Kind.RESOURCES: _Terms(method="resources/list", key="resources", capability="resources"),
    Kind.TEMPLATES: _Terms(
        method="resources/templates/list", key="resourceTemplates", capability="resources"
    ),
    Kind.PROMPTS: _Terms(method="prompts/list", key="prompts", capability="prompts"),
}

LIST_CHANGED = {
    "notifications/tools/list_changed": (Kind.TOOLS,),
    "notifications/resources/list_changed": (Kind.RESOURCES, Kind.TEMPLATES),
    "notifications/prompts/list_changed": (Kind.PROMPTS,),
}

_NULL = Raw(b"null")


class _Page(msgspec.Struct, rename="camel"):
    tools: Raw = _NULL
    resources: Raw = _NULL
    resource_templates: Raw = _NULL
    prompts: Raw = _NULL
    next_cursor: Raw = _NULL
    ttl_ms: Raw = _NULL


Accept = Callable[[tuple[Item, ...]], tuple[Item, ...]]
Fetch = Callable[[Mapping[str, object] | None], Awaitable[Raw]]


@dataclass(frozen=True, slots=True)
class _Kept:
    items: tuple[Item, ...]
    fresh_until: float | None


@dataclass(slots=True)
class _Fetching:
    """A fetch under way. `changes` is how often the list had changed when it began."""

    changes: int
    done: anyio.Event = field(default_factory=anyio.Event)
    outcome: tuple[Item, ...] | CallFailed | None = None


class Lists(Struct, eq=False, dict=True):
    """What one server has listed, and until when that holds."""

    """`room` says how many bytes of memory its lists may take now, up to a bound."""

    server: str
    clock: Clock
    room: Callable[[], int] | None = None
    on_known: Callable[[Kind], None] = lambda _kind: None

    def __post_init__(self) -> None:
        self._room = self.room or (lambda: MAX_LIST_BYTES)
        self._bytes = dict.fromkeys(Kind, 0)
        self._kept: dict[Kind, _Kept] = {}
        self._known: dict[Kind, tuple[Item, ...]] = {}
        self._known_at = dict.fromkeys(Kind, 0)
        self.tools: dict[str, Item] | None = None  # by name, as seen last; None before the first
        self._changes = dict.fromkeys(Kind, 0)
        self._fetching: dict[Kind, _Fetching] = {}
        self.cut: set[Kind] = set()  # lists of which only the beginning was read
        self.remembered: set[Kind] = set()  # lists that the server has not confirmed yet
        self.remembered_at = ""  # when it gave them
        self._former_tools: frozenset[str] = frozenset()

    def __repr__(self) -> str:
        return f"<Lists {self.server} {self.counts()}>"

    @property
    def bytes(self) -> int:
        """What the lists take of memory, about."""
        return sum(self._bytes.values())

    def counts(self) -> dict[str, int]:
        return {kind.value: len(items) for kind, items in self._known.items()}

    def known(self, kind: Kind) -> tuple[Item, ...] | None:
        """The last list that was seen, however old; None before the first."""
        return self._known.get(kind)

    def tool(self, name: str) -> Item | None:
        """The tool of that name as it was seen last, whatever the number of tools."""
        return None if self.tools is None else self.tools.get(name)

    def lists_tool(self, name: str) -> bool:
        """Whether the server itself has listed a tool of that name, since it was started."""
        return self.tool(name) is not None and Kind.TOOLS not in self.remembered

    def all_known(self) -> dict[Kind, tuple[Item, ...]]:
        return dict(self._known)

    def remember(
        self,
        lists: Mapping[Kind, tuple[Item, ...]],
        *,
        at: str,
        sizes: Mapping[Kind, int],
        cut: Iterable[Kind] = (),
    ) -> None:
        """What the server listed when it ran, at that time; it does not run now."""
        for kind, items in lists.items():
            self._set_known(kind, items)
        self.remembered, self.remembered_at = set(lists), at
        self._bytes |= sizes
        self.cut |= set(cut)
        self._former_tools = frozenset(self.tools or ())

    def remember_known(self, *, at: str) -> None:
        """The server stops: what it has listed is what it is known by."""
        self.remember(self._known, at=at, sizes=self._bytes)

    def had_until(self, tool: str) -> str | None:
        """When a tool was there, that the server had before it was started and has no more."""
        gone = tool in self._former_tools and Kind.TOOLS not in self.remembered
        return self.remembered_at if gone and self.tool(tool) is None else None

    def changes(self, kind: Kind) -> int:
        """How often the server said that this list changed."""
        return self._changes[kind]

    def drop(self, kind: Kind) -> None:
        """The server says that this list has changed."""
        self._changes[kind] += 1
        self._kept.pop(kind, None)

    def drop_all(self) -> None:
        for kind in Kind:
            self.drop(kind)

    def nothing(self, kind: Kind) -> tuple[Item, ...]:
        """The server has no such list."""
        self._know(kind, (), self._changes[kind])
        return ()

    async def get(
        self,
        kind: Kind,
        fetch: Fetch,
        *,
        told_of_changes: bool,
        within: float,
        accept: Accept = tuple,
    ) -> tuple[Item, ...]:
        """The list as it is now, of what is accepted. Callers at the same time share one fetch."""
        with anyio.move_on_after(within):
            while True:
                kept = self._kept.get(kind)
                if kept is not None and (
                    kept.fresh_until is None or self.clock.now() < kept.fresh_until
                ):
                    return kept.items
                shared = self._fetching.get(kind)
                if shared is None or shared.changes != self._changes[kind]:
                    return await self._fetch(kind, fetch, accept, told_of_changes=told_of_changes)
                with on_leg(Leg.SERVER, self.server):
                    await shared.done.wait()
                # Another's deadline or cancellation is not ours: then look again.
                if isinstance(shared.outcome, CallFailed):
                    raise shared.outcome
                if shared.outcome is not None:
                    return shared.outcome
        raise CallTimeout(
            f"{self.server} did not answer {KINDS[kind].method} within {round(within, 2):g} s."
        )

    async def _fetch(
        self, kind: Kind, fetch: Fetch, accept: Accept, *, told_of_changes: bool
    ) -> tuple[Item, ...]:
        mine = self._fetching[kind] = _Fetching(self._changes[kind])
        before, self._bytes[kind] = self._bytes[kind], 0
        try:
            listed, ttl = await self._fetch_all(kind, fetch)
            items = accept(listed)
            self._know(kind, items, mine.changes)
            if mine.changes == self._changes[kind]:
                self._keep(kind, items, ttl, told_of_changes=told_of_changes)
            mine.outcome = items
        except CallFailed as error:
            mine.outcome = error
            raise
        finally:
            if mine.outcome is None or isinstance(mine.outcome, CallFailed):
                self._bytes[kind] = before
            if self._fetching.get(kind) is mine:
                del self._fetching[kind]
            mine.done.set()
        return items

    def _know(self, kind: Kind, items: tuple[Item, ...], changes: int) -> None:
        """A fetch that began before a change must not hide one that began after it."""
        if changes >= self._known_at[kind]:
            self._known_at[kind] = changes
            self._set_known(kind, items)
            self.remembered.discard(kind)
            self.on_known(kind)

    def _set_known(self, kind: Kind, items: tuple[Item, ...]) -> None:
        self._known[kind] = items
        if kind is Kind.TOOLS:
            self.tools = {name: item for item in items if isinstance(name := item.get("name"), str)}

    def _keep(
        self, kind: Kind, items: tuple[Item, ...], ttl: float, *, told_of_changes: bool
    ) -> None:
        if ttl > 0:
            self._kept[kind] = _Kept(items, self.clock.now() + ttl)
        elif told_of_changes:
            self._kept[kind] = _Kept(items, None)

    async def _fetch_all(self, kind: Kind, fetch: Fetch) -> tuple[tuple[Item, ...], float]:
        """Every page, and the shortest time to live that one of them named, in seconds."""
        terms = KINDS[kind]
        items: list[Item] = []
        lives: list[float] = []
        cursors: set[str] = set()
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            try:
                page = await fetch(None if cursor is None else {"cursor": cursor})
            except RemoteError as error:
                if cursor is None and error.error.code == METHOD_NOT_FOUND:
                    return (), 0.0
                raise
            found, ttl, cursor = self._read_page(kind, page)
            count = MAX_ITEMS - len(items)
            was_room = await self._read_items(kind, found[:count], items)
            lives.append(ttl)
            is_full = len(found) == count and cursor is not None
            is_cut = not was_room or len(found) > count or is_full
            if cursor is None or is_cut:
                (self.cut.add if is_cut else self.cut.discard)(kind)
                return tuple(items), min(lives)
            if cursor in cursors:
                break
            cursors.add(cursor)
        raise CallFailed(
            f"{self.server} does not come to an end of {terms.method}: {len(items)} items so far."
        )

    async def _read_items(self, kind: Kind, found: Sequence[Raw], items: list[Item]) -> bool:
        """Add those that are objects, a few at a time; False where not all can be read."""
        all_read, turn, room = True, _TURN_VALUES, 0
        for raw in found:
            if turn >= _TURN_VALUES:
                await anyio.lowlevel.checkpoint()
                turn, room = 0, self._room() - self.bytes
            values = values_in(bytes(raw))
            size = len(memoryview(raw)) + _VALUE_BYTES * values
            if size > room:
                return False
            room -= size
            turn += values + 10  # what each costs by itself
            self._bytes[kind] += size
            item = decoded(raw, object)
            if isinstance(item, dict):
                items.append(cast("Item", item))
            elif values > MAX_VALUES:
                all_read = False
        return all_read

    def _read_page(self, kind: Kind, page: Raw) -> tuple[Sequence[Raw], float, str | None]:
        terms = KINDS[kind]
        fields = opened(page, _Page) or _Page()
        listed: Raw = getattr(fields, kind.value)
        if values_in(bytes(listed)) > _PAGE_VALUES:
            size = len(memoryview(page))
            raise CallFailed(f"{self.server} answered {terms.method} with {size} bytes.")
        if (found := opened(listed, list[Raw])) is None:
            raise CallFailed(f"{self.server} answered {terms.method} without {terms.key}.")
        cursor = decoded(fields.next_cursor, str)
        if cursor is not None and len(cursor) > _CURSOR_CHARS:
            fact = f"{self.server} named a cursor of {len(cursor)} characters to {terms.method}."
            raise CallFailed(fact)
        ttl = _life(decoded(fields.ttl_ms, object))
        return found, ttl, cursor


def memory_of(raw: Raw) -> int:
    """What an item, or a list of them, takes once it is read, about."""
    return len(memoryview(raw)) + _VALUE_BYTES * values_in(bytes(raw))


def differ(before: Sequence[Item], now: Sequence[Item]) -> bool:
    """Whether two lists hold other items; their order is the server's whim."""
    return sorted(before, key=_identity) != sorted(now, key=_identity)


def _identity(item: Item) -> str:
    return str(item.get("uriTemplate") or item.get("uri") or item.get("name"))


def _life(ttl_ms: object) -> float:
    """Seconds; none where the server names none."""
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int | float):
        return 0.0
    return min(max(ttl_ms, 0), _MAX_TTL_S * 1000) / 1000


# What is remembered of a server while it does not run: its hello, and what it listed last.
#
# Pure: no file, no clock. A record is added to, never written over: several proxies see the same
# server, and each has listed only some of what it has. How often its tools were others after a
# start than before it is remembered, too: what changes at each start cannot be told beforehand.


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


def listed_in(record: CatalogueRecord) -> dict[Kind, tuple[Item, ...]]:
    """The lists that the server gave last, as many of them as can be read."""
    found = {kind: record.lists[kind.value].items for kind in Kind if kind.value in record.lists}
    lists = {kind: opened(raw, tuple[dict[str, object], ...]) for kind, raw in found.items()}
    return {kind: items for kind, items in lists.items() if items is not None}


def recalled(record: CatalogueRecord) -> Remembered | None:
    """What can be said of the server without it; None where that is not all, or not to be said."""
    lists = listed_in(record)
    if record.hello is None or not record.is_steady or len(lists) < len(Kind):
        return None
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
