"""The servers of the configuration file: started, and kept in step with edits of the file.

The file is looked at again and again. A change is applied as its difference: what was not touched
goes on undisturbed. An edit that cannot be read changes nothing, and is told.
"""

from collections.abc import Callable
from functools import partial

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from msgspec import Struct

from emceepee_stdio.config.load import Source
from emceepee_stdio.config.server import BrokenServer, ServerConfig
from emceepee_stdio.config.settings import Config
from emceepee_stdio.errors import ConfigInvalid, ProxyError
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.native_surface import GreetingWriter
from emceepee_stdio.session.server_registry import Admission, Origin, RegisteredServer, Servers
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.storage.private_file import Stamp


class Configured(Struct, eq=False, dict=True):
    """What the configuration says, and what of it runs.

    `stamp` is that of the file it is from; `on_config` hears of another one.
    """

    config: Config
    source: Source | None
    on_config: Callable[[Config], None]
    servers: Servers
    session: Session
    journal: Journal
    stamp: Stamp | None = None
    greeting: GreetingWriter | None = None

    def __post_init__(self) -> None:
        self._doubtful: Stamp | None = ()
        self._known = anyio.Event()
        self.is_known = False  # whether every server is known by its name, connected or not
        self.servers.broken = {broken.name: broken for broken in self.config.disabled}
        self.servers.configured_names |= self.config.names

    async def start(self, tasks: TaskGroup) -> None:
        """Start every server in the background; one that hangs delays nobody."""
        try:
            self._warn(self.config)
            if self.config.problem is not None:
                self._reject(self.config.problem, kept="No server of the configuration runs.")
            # Those with a URL last: the first of them waits until the HTTP client is loaded.
            for server in sorted(self.config.servers, key=lambda server: server.url is not None):
                self.session.state.starting.add(server.name)
                await self._add(server, tasks)
            await checkpoint()  # each has begun to connect
        finally:
            self._become_known()

    def skip(self, reason: str) -> None:
        """Start nothing, and say why."""
        self.source = None
        self.journal.record(JournalEvent.CONFIG_WARNING, warning=reason)
        self._become_known()

    def _become_known(self) -> None:
        self.is_known = True
        self._known.set()

    async def known(self) -> None:
        if not self._known.is_set():
            await self._known.wait()

    async def watch(self, tasks: TaskGroup, *, every: float) -> None:
        """Look at the file for as long as the session lasts."""
        await self.keep_greeting()
        while self.source is not None:
            await anyio.sleep(every)
            try:
                await self._look(self.source, tasks)
                await self.keep_greeting()
            except Exception as error:  # noqa: BLE001 - a bug here must not end the session
                self.journal.record(JournalEvent.UNEXPECTED_ERROR, error=repr(error))

    async def keep_greeting(self) -> None:
        """Leave the next run what is known now, where this one goes by the file."""
        if self.source is not None and self.greeting is not None and self.stamp is not None:
            await self.greeting.keep(self.config, self.stamp[:3])  # the mode does not matter

    async def _look(self, source: Source, tasks: TaskGroup) -> None:
        stamp = await anyio.to_thread.run_sync(source.stamp, abandon_on_cancel=True)
        if stamp == self.stamp:
            return
        try:
            config = await anyio.to_thread.run_sync(
                partial(_read, source, stamp), abandon_on_cancel=True
            )
        except ConfigInvalid as error:
            # An editor may be half-way through writing: only what stays so is worth a word.
            if stamp == self._doubtful:
                self.stamp = stamp
                self.config = msgspec.structs.replace(self.config, problem=str(error))
                self._reject(str(error), kept="The configuration of before stays in use.")
            self._doubtful = stamp
            return
        self.stamp = stamp
        await self.apply(config, tasks)

    async def apply(self, config: Config, tasks: TaskGroup) -> None:
        """Make the session what the configuration says now, touching only what differs."""
        before, self.config = self.config, config
        self.servers.configured_names |= config.names
        self.on_config(config)  # at once: what became stricter holds for the next call
        if config.warnings != before.warnings or config.disabled != before.disabled:
            self._warn(config)
        if config.settings != before.settings:
            self._say_settings(before, config)
        wanted = {server.name: server for server in config.servers}
        broken = {broken.name: broken for broken in config.disabled}
        gone = [
            name
            for name in self.servers.names()
            if self._ours(name) and name not in wanted and not _is_mistaken(broken.get(name))
        ]
        async with anyio.create_task_group() as removals:
            for name in gone:
                removals.start_soon(self._remove, name)
        self.servers.broken = broken
        for server in wanted.values():
            present = self.servers.members.get(server.name)
            if present is None or not present.config.is_same_but_rules(server):
                await self._add(server, tasks, tell=True)

    async def _add(self, server: ServerConfig, tasks: TaskGroup, *, tell: bool = False) -> None:
        """In the place of what the configuration said before; what the client put there stays."""
        try:
            backend = await self.servers.add(
                Admission.configured(server), tasks, replacing=self._ours(server.name)
            )
        except ProxyError as error:
            self.session.state.starting.discard(server.name)
            self.servers.broken[server.name] = BrokenServer(
                name=server.name, reason=error.fact.rstrip(".")
            )
            self.journal.record(JournalEvent.SERVER_NOT_ADDED, server=server.name, error=str(error))
            return
        if tell:
            by, target = Origin.CONFIGURATION.value, backend.snapshot().target
            self.session.tell_added(server.name, by=by, target=target)

    async def _remove(self, name: str) -> None:
        by = Origin.CONFIGURATION
        await self.servers.remove(name, by=by)
        self.session.tell(EventType.SERVER_REMOVED, server=name, data={"by": by.value})

    def _ours(self, name: str) -> RegisteredServer | None:
        member = self.servers.members.get(name)
        return member if member is not None and member.origin is Origin.CONFIGURATION else None

    def _warn(self, config: Config) -> None:
        for warning in config.warnings:
            self.journal.record(JournalEvent.CONFIG_WARNING, warning=warning)
        for broken in config.disabled:
            if not broken.switched_off:
                self.journal.record(
                    JournalEvent.CONFIG_BROKEN, server=broken.name, reason=broken.reason
                )

    def _reject(self, problem: str, *, kept: str) -> None:
        self.journal.record(JournalEvent.CONFIG_INVALID, error=problem)
        self.session.tell(EventType.CONFIG_REJECTED, data={"error": problem, "kept": kept})

    def _say_settings(self, before: Config, after: Config) -> None:
        """Limits and times are built into what runs: they count from the next start on."""
        old, new = (msgspec.to_builtins(config.settings) for config in (before, after))
        changed = [f"emceepee.{key}" for key in new if new[key] != old[key] and key != "policy"]
        if changed:
            warning = f"{', '.join(changed)} changed: that counts from the proxy's next start on."
            self.journal.record(JournalEvent.CONFIG_WARNING, warning=warning)


def _is_mistaken(broken: BrokenServer | None) -> bool:
    """A mistake in an entry does not stop the server that ran before it was made."""
    return broken is not None and not broken.switched_off


def _read(source: Source, stamp: Stamp | None) -> Config:
    if stamp is None:
        raise ConfigInvalid(
            "The configuration file is gone.", hint="Put it back, or restart the proxy without it."
        )
    return source.read()
