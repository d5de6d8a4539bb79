"""The native surface: what exposed servers list in the client, kept up to date.

Only servers of the configuration, only what their entry exposes, without the tools that a rule
hides or that a person has to see first. What a server lists is known from itself, from the
catalogue where it is started on its first use, else from the greeting that the last run left. The
lists are made anew when something changed, at most every so often: a server that changes its mind
all the time must not keep its client busy. The next run is left what the configuration exposes,
whatever a model did to its servers in this one.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from emceepee_stdio.backends.backend_events import (
    BackendEvent,
    ListsDiffer,
    PhaseChange,
    ServerNotification,
)
from emceepee_stdio.backends.lists import KINDS, LIST_CHANGED, Item, Kind
from emceepee_stdio.config import Config, ServerConfig
from emceepee_stdio.config.edit import write_whole
from emceepee_stdio.config.load import Source
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.foreign_json import decoder
from emceepee_stdio.greeting import (
    MAX_BYTES,
    Greeted,
    Greeting,
    Stamp,
    config_file,
    greeting_file,
    read_greeting,
    written_greeting,
)
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.exposed_lists import (
    ExposedItem,
    ExposedLists,
    ExposedServer,
    exposed_server,
    list_exposed,
    remembered_part,
)
from emceepee_stdio.session.pin_checks import PinChecks
from emceepee_stdio.session.server_registry import Origin, RegisteredServer, Servers
from emceepee_stdio.state import Phase
from emceepee_stdio.storage.private_file import make_private, read_regular
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.timing import Wakeup

# Keeps the greeting file true: the configured servers, what each is for, and what is exposed.
#
# The next run reads it before anything else is loaded. Where it cannot be written, the next
# greeting names no servers; nothing else depends on it.


class GreetingWriter:
    """`mask` hides the secrets that servers were given."""

    def __init__(
        self,
        source: Source,
        servers: Servers,
        *,
        environ: Mapping[str, str],
        mask: Callable[[str], str],
    ) -> None:
        self._source = source
        self._servers = servers
        self._environ = environ
        self._mask = mask
        self._kept: tuple[Stamp, tuple[Greeted, ...], ExposedLists] | None = None
        self.exposed: Callable[[], ExposedLists] = ExposedLists

    async def keep(self, config: Config, stamp: Stamp) -> None:
        """Write the file where it would say something else. `stamp` is of the file read last."""
        greeted = tuple(map(self._greeted, config.servers))
        exposed = self.exposed()
        kept = self._kept
        if kept is None or kept[:2] != (stamp, greeted) or kept[2] is not exposed:
            self._kept = (stamp, greeted, exposed)
            write = partial(self._write, stamp, greeted, exposed)
            await anyio.to_thread.run_sync(write, abandon_on_cancel=True)

    def _greeted(self, server: ServerConfig) -> Greeted:
        """Its line is what a person wrote of it, else its own title."""
        if server.description:
            return Greeted(server.name, server.description)
        member = self._servers.members.get(server.name)
        if member is not None and member.origin is not Origin.CONFIGURATION:
            member = None  # a model put another one there
        hello = None if member is None else member.backend.snapshot().hello
        about = mapping(None if hello is None else hello.server_info)
        title = about.get("title") or about.get("name")
        return Greeted(
            server.name, self._mask(title) if isinstance(title, str) else "", own_words=True
        )

    def _write(self, stamp: Stamp, greeted: tuple[Greeted, ...], exposed: ExposedLists) -> None:
        named = self._source.named
        asked = None if named is None else config_file(named, self._environ)
        if named is None or asked is None:
            return
        with suppress(OSError, ValueError, RuntimeError, ProxyError):
            before = {one.name: one for one in read_greeting(named, self._environ).servers}
            # One that is not connected yet keeps what it was known by.
            servers = [one if one.line else before.get(one.name, one) for one in greeted]
            file = str(self._source.path().absolute())
            greeting = Greeting(servers, exposed.arrays, to_json(exposed.owners))
            held = written_greeting(asked=asked, file=file, stamp=stamp, greeting=greeting)
            path = Path(greeting_file(self._environ))
            if len(held) <= MAX_BYTES and held != _present(path):
                make_private(path.parent)
                write_whole(path, held.decode())


def _present(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except OSError:
        return None


_Definitions = dict[tuple[str, Kind], Sequence[Item]]


class NativeSurface:
    """The exposed lists of all servers. `on_lists` is told when they were made anew."""

    def __init__(
        self,
        config: Config,
        *,
        servers: Servers,
        pins: PinChecks,
        journal: Journal,
        group: Callable[[], TaskGroup],
        is_known: Callable[[], bool],
    ) -> None:
        self._servers = servers
        self._pins = pins
        self._journal = journal
        self._group = group
        self._is_known = is_known
        self._entries: dict[str, ServerConfig] = {}
        self._greeted: _Definitions = {}
        self._live: _Definitions = {}
        self._unpinned: dict[str, frozenset[str]] = {}  # tools that are not what they were
        self._looking: dict[str, bool] = {}  # servers being looked at; whether once more
        self._left_out: Mapping[str, int] = {}
        self._is_stale = False
        self._news = Wakeup()
        self._settle_s = config.settings.fixed.exposed_settle_s
        self._pace_s = config.settings.fixed.exposed_pace_s
        self._within = config.settings.timeouts.request_ms / 1000
        self.on_lists: Callable[[Mapping[str, bytes]], None] = lambda _lists: None
        self._enter(config)
        self.lists = ExposedLists()
        self.remembered = ExposedLists()  # what the next run begins with

    # What is asked of it

    def tool(self, name: str) -> ExposedItem | None:
        """By the name under which it is listed, or by its own where only one server has it.

        An own name that begins like the names of another server is meant for that one.
        """
        if item := self.lists.tools.get(name):
            return item
        item = self.lists.own_tools.get(name)
        return None if item is None or self._servers.claiming(name, but=item.server) else item

    def shows(self, server: str) -> bool:
        """Whether this is a server of the configuration that is exposed, now.

        Till all of them are registered, the configuration is all that is known.
        """
        if server not in self._servers.members and not self._is_known():
            return server in self._entries
        return self._member(server) is not None

    def exposes_all(self, server: str) -> bool:
        """Whether the client is listed its prompts and resources as well."""
        entry = self._entries.get(server)
        return entry is not None and entry.expose is True and self.shows(server)

    def greeted(self, server: str, kind: Kind) -> Sequence[Item] | None:
        """What a server that is exposed as a whole listed in the last run, if that is known."""
        if not self.exposes_all(server) or all((server, one) not in self._greeted for one in Kind):
            return None
        return self._greeted.get((server, kind), ())

    # What changes it

    def recall(self, greeting: Greeting) -> None:
        """What the last run knew, before any server is up."""
        self._greeted = _greeted(greeting)
        self._make()

    def apply(self, config: Config) -> None:
        """The configuration is another one."""
        self._enter(config)
        for name in self._entries:
            self._look_at(name)
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
                self._group().start_soon(self._settle, server)
            case ServerNotification(method=method) if method in LIST_CHANGED:
                self._look_at(server)
            case _:
                pass

    def tools_listed(self, server: str) -> None:
        """Somebody has read its tools anew."""
        if server in self._entries and server not in self._looking:
            self._group().start_soon(self._settle, server)

    def look_again(self) -> None:
        """What a person has agreed to is different now."""
        for name in self._entries:
            self._look_at(name)

    def make_current(self) -> None:
        """See that no change is missing in the lists."""
        if self._is_stale:
            self._make()

    def _make(self) -> None:
        """Make the lists anew: of the servers that are there now, and of all for the next run."""
        self._is_stale = False
        every = [self._exposed(entry) for entry in self._entries.values()]
        shown = [server for server in every if self.shows(server.name)]
        known = self._servers.configured_names
        self.lists = list_exposed(shown, known)
        whole = self.lists if len(shown) == len(every) else list_exposed(every, known)
        self.remembered = remembered_part(whole, every, known)

    async def run(self) -> None:
        """Keep the lists as they should be."""
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
                for kind in Kind:
                    self._live.pop((name, kind), None)
                    self._greeted.pop((name, kind), None)

    def _member(self, server: str) -> RegisteredServer | None:
        """The server that the configuration means, never another one of its name."""
        member, entry = self._servers.members.get(server), self._entries.get(server)
        if member is None or entry is None or member.origin is not Origin.CONFIGURATION:
            return None
        return member if member.config.is_same_but_rules(entry) else None

    # Reading the lists

    def _look_at(self, server: str) -> None:
        if server in self._looking:
            self._looking[server] = True
        else:
            self._looking[server] = False
            self._group().start_soon(self._look, server)

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
        tools = member.backend.lists.known(Kind.TOOLS)
        if tools is not None:
            listed = self._servers.listed(server, tools)
            unpinned = frozenset[str]() if listed is None else await self._pins.unpinned(listed)
            if self._member(server) is not member:
                return
            self._unpinned[server] = unpinned
            self._live[server, Kind.TOOLS] = tools
        for kind in (Kind.PROMPTS, Kind.RESOURCES, Kind.TEMPLATES):
            if (items := member.backend.lists.known(kind)) is not None:
                self._live[server, kind] = items
        self.touch()

    # Making them

    def _definitions(self, server: str, kind: Kind) -> Sequence[Item]:
        """What a server lists: as it was read last, else as the last run knew it."""
        live = self._live.get((server, kind))
        return self._greeted.get((server, kind), ()) if live is None else live

    def _exposed(self, entry: ServerConfig) -> ExposedServer:
        unpinned = self._unpinned.get(entry.name, frozenset())
        listed = partial(self._definitions, entry.name)
        unseen = unpinned if self._pins.enforced else frozenset[str]()
        return exposed_server(entry, listed, unseen=unseen, unpinned=unpinned)

    def _say_left_out(self) -> None:
        if (left_out := self.lists.left_out) != self._left_out:
            self._left_out = left_out
            for server, count in left_out.items():
                self._journal.record(JournalEvent.EXPOSED_LEFT_OUT, server=server, count=count)


_decode_items = decoder(list[dict[str, object]])


def _greeted(greeting: Greeting) -> _Definitions:
    """What the last run knew; its file is checked by whoever read it, its items are judged here."""
    found: dict[tuple[str, Kind], list[Item]] = {}
    if not greeting.owners:
        return {}
    try:
        owners = msgspec.json.decode(greeting.owners, type=dict[str, list[tuple[str, str]]])
        for kind in Kind:
            key = KINDS[kind].key
            items = _decode_items(b"[%b]" % greeting.exposed.get(key, b""))
            for (server, own), item in zip(owners.get(key, ()), items, strict=True):
                named = {"name": own} if kind in (Kind.TOOLS, Kind.PROMPTS) else {}
                found.setdefault((server, kind), []).append({**item, **named})
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {}
    return dict(found)
