"""The native surface: what exposed servers list in the client, kept up to date.

Only servers of the configuration, only what their entry exposes, without the tools that a rule
hides or that a person has to see first. What a server lists is known from itself, else from the
catalogue. The lists are made anew when something changed, at most every so often: a server that
changes its mind all the time must not keep its client busy. The next run is greeted with what the
configuration exposes, whatever a model did to its servers in this one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup
from msgspec import Struct

from emceepee_stdio.backends.interface import (
    BackendEvent,
    Hello,
    Item,
    Kind,
    ListsDiffer,
    PhaseChange,
    Seen,
    ServerNotification,
)
from emceepee_stdio.backends.lists import LIST_CHANGED, listed_in
from emceepee_stdio.config.load import Source
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.greeting import (
    MAX_BYTES,
    Greeted,
    Greeting,
    config_file,
    greeting_file,
    written_greeting,
)
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.catalogue import Catalogue, CatalogueStore
from emceepee_stdio.session.exposed_lists import (
    ExposedItem,
    ExposedLists,
    ExposedServer,
    claimants,
    exposed_server,
    list_exposed,
)
from emceepee_stdio.session.server_registry import Origin, RegisteredServer, Servers
from emceepee_stdio.session.tool_permissions import PinChecks
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.storage.private_file import Stamp
from emceepee_stdio.wire.timing import Wakeup

_GREETED_BYTES = 960 << 10  # of all lists in a greeting of 1 MiB, beside the names of the servers


class GreetingWriter(Struct, eq=False, dict=True):
    """Renders the greeting of the next run from the configuration and the catalogue.

    Where it cannot be written, the next greeting names the servers of the file; nothing else
    depends on it. `mask` hides the secrets that servers were given.
    """

    source: Source
    catalogue: Catalogue
    surface_changes: Callable[[], int]
    environ: Mapping[str, str]
    mask: Callable[[str], str]

    def __post_init__(self) -> None:
        self._kept: object = None

    async def keep(self, config: Config, stamp: Stamp) -> None:
        """Write the file where it may say something else. `stamp` is of the file read last."""
        state = (stamp, self.catalogue.changes, self.surface_changes())
        if state != self._kept:
            self._kept = state
            write = partial(self._write, config, stamp)
            await anyio.to_thread.run_sync(write, abandon_on_cancel=True)

    def _write(self, config: Config, stamp: Stamp) -> None:
        named = self.source.named
        asked = None if named is None else config_file(named, self.environ)
        if asked is None:
            return
        with suppress(OSError, ValueError, RuntimeError, ProxyError):
            file = str(self.source.path().absolute())
            greeting = self._render(config)
            held = written_greeting(config=asked, file=file, stamp=stamp, greeting=greeting)
            path = Path(greeting_file(asked, self.environ))
            if len(held) <= MAX_BYTES:
                CatalogueStore(path.parent).put_greeting(path, held)

    def _render(self, config: Config) -> Greeting:
        greeted: list[Greeted] = []
        exposed: list[ExposedServer] = []
        records: dict[str, str] = {}
        for entry in config.servers:
            record = self.catalogue.record(entry)
            greeted.append(self._greeted(entry, None if record is None else record.hello))
            if entry.expose and record is not None:
                records[entry.name] = self.catalogue.identity(entry)
                unpinned = self.catalogue.unpinned(entry, record)
                enforced = self.catalogue.pin_mode() == "enforce"
                lists = listed_in(record)
                exposed.append(exposed_server(entry, lists, unpinned=unpinned, enforced=enforced))
        lists = list_exposed(exposed, config.names)
        if sum(map(len, lists.arrays.values())) > _GREETED_BYTES:
            lists = list_exposed(exposed, config.names, total=_GREETED_BYTES)
        return Greeting(greeted, lists.arrays, records)

    def _greeted(self, entry: ServerConfig, hello: Hello | None) -> Greeted:
        """Its line is what a person wrote of it, else its own title."""
        about = mapping(None if hello is None else hello.server_info)
        title = about.get("title") or about.get("name")
        if entry.description or not isinstance(title, str):
            return Greeted(entry.name, entry.description)
        return Greeted(entry.name, self.mask(title), own_words=True)


_Lists = dict[Kind, Sequence[Item]]


class NativeSurface(Struct, eq=False, dict=True):
    """The exposed lists of all servers. `on_lists` hears when they were made anew."""

    config: Config
    servers: Servers
    pins: PinChecks
    journal: Journal
    catalogue: Catalogue | None
    group: Callable[[], TaskGroup]
    is_known: Callable[[], bool]
    on_lists: Callable[[Mapping[str, bytes]], None]

    def __post_init__(self) -> None:
        self._entries: dict[str, ServerConfig] = {}
        self._listed: dict[str, _Lists] = {}  # as it was read last, in this run or an earlier one
        self._listing = set[str]()  # servers whose tools are in `lists`
        self._unjudged: dict[str, Callable[[], frozenset[str]]] = {}  # recalled, not compared yet
        self._unpinned: dict[str, frozenset[str]] = {}  # tools that are not what they were
        self._looking: dict[str, bool] = {}  # servers being looked at; whether once more
        self._left_out: Mapping[str, int] = {}
        self._is_stale = False
        self._news = Wakeup()
        self._settle_s = self.config.settings.fixed.exposed_settle_s
        self._pace_s = self.config.settings.fixed.exposed_pace_s
        self._within = self.config.settings.timeouts.request_ms / 1000
        self._enter(self.config)
        self.lists = ExposedLists()
        self.changes = 0  # how often the lists were made anew

    # What is asked of it

    def tool(self, name: str) -> ExposedItem | None:
        """By the name under which it is listed, or by its own where only one server has it.

        An own name that begins like the names of another server is meant for that one.
        """
        if item := self.lists.tools.get(name):
            return item
        item = self.lists.own_tools.get(name)
        return None if item is None or self.servers.claiming(name, but=item.server) else item

    def awaited(self, name: str) -> list[str]:
        """Servers that may have a tool of this name, and have not listed their tools yet."""
        missing = self._entries.keys() - self._listing
        return [server for server in claimants(name, sorted(missing)) if self.shows(server)]

    async def learn(self, server: str, *, within: float) -> None:
        """Have its tools listed now, for a call that waits for one of them."""
        await self.servers.get(server).list_all(Kind.TOOLS, within=within)
        await self._settle(server)
        self._make()
        self.touch()  # the client is told of what is new in its own time

    def shows(self, server: str) -> bool:
        """Whether this is a server of the configuration that is exposed, now.

        Till all of them are registered, the configuration is all that is known.
        """
        if server not in self.servers.members and not self.is_known():
            return server in self._entries
        return self._member(server) is not None

    def exposes_all(self, server: str) -> bool:
        """Whether the client is listed its prompts and resources as well."""
        entry = self._entries.get(server)
        return entry is not None and entry.expose is True and self.shows(server)

    def listed(self, server: str, kind: Kind) -> Sequence[Item] | None:
        """What a server that is exposed as a whole listed last, if that is known."""
        return self._listed.get(server, {}).get(kind) if self.exposes_all(server) else None

    # What changes it

    def recall(self, greeted: Mapping[str, str]) -> None:
        """What servers listed in earlier runs, before any of them is up.

        `greeted` are the records that the client was greeted with: they are of use where a server
        is started in another way now, for example with another token.
        """
        for name, entry in self._entries.items():
            if self.catalogue is None:
                break
            record = self.catalogue.record(entry) or self.catalogue.known(greeted.get(name, ""))
            if record is not None:
                self._listed[name] = {**listed_in(record)}
                self._unjudged[name] = partial(self.catalogue.unpinned, entry, record)
        self._make()

    def apply(self, config: Config) -> None:
        """The configuration is another one."""
        self._enter(config)
        self.look_again()
        self.touch()

    def touch(self) -> None:
        """Something may be different now."""
        self._is_stale = True
        self._news.wake()

    def take(self, server: str, event: BackendEvent) -> None:
        """What a backend tells: a connection or a change means that its lists are read again."""
        if server not in self._entries:
            return
        match event:
            case PhaseChange(phase=Phase.CONNECTED) | ListsDiffer():
                self._look_at(server)
            case PhaseChange(phase=Phase.IDLE):  # it is listed from what is remembered of it
                self.group().start_soon(self._settle, server)
            case ServerNotification(method=method) if method in LIST_CHANGED:
                self._look_at(server)
            case Seen(kind=Kind.TOOLS) if server not in self._looking:
                self.group().start_soon(self._settle, server)
            case _:
                pass

    def look_again(self) -> None:
        """What a person has agreed to is different now."""
        for name in self._entries:
            self._look_at(name)

    def _make(self) -> None:
        self._is_stale = False
        self.changes += 1
        shown = [
            exposed_server(
                entry,
                self._listed.get(name, {}),
                unpinned=self._unpinned.get(name, frozenset()),
                enforced=self.pins.enforced,
            )
            for name, entry in self._entries.items()
            if self.shows(name)
        ]
        self._listing = {name for name, known in self._listed.items() if Kind.TOOLS in known}
        self.lists = list_exposed(shown, self.servers.configured_names)

    async def run(self) -> None:
        """Keep the lists as they should be."""
        while self._unjudged:  # before what was recalled is listed anew
            name, unpinned = self._unjudged.popitem()
            self._unpinned.setdefault(name, await anyio.to_thread.run_sync(unpinned))
        while True:
            await self._news.wait_for(lambda: self._is_stale)
            await anyio.sleep(self._settle_s)
            self._make()
            self._say_left_out()
            self.on_lists(self.lists.arrays)
            await anyio.sleep(self._pace_s)

    def _enter(self, config: Config) -> None:
        before = self._entries
        self._entries = {entry.name: entry for entry in config.servers if entry.expose}
        for name, entry in before.items():
            now = self._entries.get(name)
            if now is None or not now.is_same_but_rules(entry):  # what it lists is not known yet
                self._listed.pop(name, None)

    def _member(self, server: str) -> RegisteredServer | None:
        """The server that the configuration means, never another one of its name."""
        member, entry = self.servers.members.get(server), self._entries.get(server)
        if member is None or entry is None or member.origin is not Origin.CONFIGURATION:
            return None
        return member if member.config.is_same_but_rules(entry) else None

    # Reading the lists

    def _look_at(self, server: str) -> None:
        if server in self._looking:
            self._looking[server] = True
        else:
            self._looking[server] = False
            self.group().start_soon(self._look, server)

    async def _look(self, server: str) -> None:
        """Read what is exposed of a server that is up, till nothing changed meanwhile."""
        try:
            while True:
                await anyio.sleep(self._settle_s)
                self._looking[server] = False
                await self._read(server)
                await self._settle(server)
                if not self._looking[server]:
                    return
        finally:
            del self._looking[server]

    async def _read(self, server: str) -> None:
        member = self._member(server)
        if member is None or member.backend.phase is not Phase.CONNECTED:
            return
        for kind in Kind if self._entries[server].expose is True else (Kind.TOOLS,):
            try:
                await member.backend.list_all(kind, within=self._within)
            except ProxyError:  # what was known of it stays
                continue

    async def _settle(self, server: str) -> None:
        """Take what was read, without what a person has to see first."""
        member = self._member(server)
        if member is None:
            return
        known = member.backend.lists.all_known()
        if (tools := known.get(Kind.TOOLS)) is not None:
            listed = self.servers.listed(server, tools)
            unpinned = frozenset[str]() if listed is None else await self.pins.unpinned(listed)
            if self._member(server) is not member:
                return
            self._unpinned[server] = unpinned
        self._listed.setdefault(server, {}).update(known)
        self.touch()

    def _say_left_out(self) -> None:
        if (left_out := self.lists.left_out) != self._left_out:
            self._left_out = left_out
            for server, count in left_out.items():
                self.journal.record(JournalEvent.EXPOSED_LEFT_OUT, server=server, count=count)
