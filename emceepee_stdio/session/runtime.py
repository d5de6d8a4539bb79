"""The session at work: builds its parts, and runs their async tasks."""

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from emceepee_stdio.backends.backend_events import BackendEvent
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Config
from emceepee_stdio.config.load import Source
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.admission import AdmissionControl
from emceepee_stdio.session.backend_handler import BackendHandler
from emceepee_stdio.session.catalogue import Catalogue, CatalogueStore
from emceepee_stdio.session.configured import Configured, Stamp
from emceepee_stdio.session.native_surface import GreetingWriter, NativeSurface
from emceepee_stdio.session.pin_checks import PinChecks
from emceepee_stdio.session.server_registry import (
    Environment,
    ListedTools,
    Origin,
    RegisteredServer,
    Servers,
)
from emceepee_stdio.session.session import Session
from emceepee_stdio.session.sign_ins import SignIns
from emceepee_stdio.session.status_writer import StatusWriter
from emceepee_stdio.session.tool_permissions import ToolPermissions
from emceepee_stdio.state import AutomaticAnswers, EventType, Phase
from emceepee_stdio.trace.request_log import RequestLog
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.wire.environment import DEPTH
from emceepee_stdio.wire.orphans import leftovers
from emceepee_stdio.wire.own_process import proxies_above
from emceepee_stdio.wire.process import StopTimes

_DEPTH_DIGITS = 9  # no real depth is longer; converting endless digits is slow
_DEFAULT_STOP = StopTimes(term=0.0, kill=0.25)  # where nobody said how to stop: at once
_GREETING_S = 0.25  # a small file on a disk that works; whoever ends us waits for our servers
_MAX_DEPTH = 2  # one inside another is a setup that people have; deeper is a loop


class Runtime:
    """What the tools are given. Made by the composition root; `run` owns the task group."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        ids: Ids,
        journal: Journal,
        environment: Environment,
        trace: RequestLog | None = None,
        source: Source | None = None,
        stamp: Stamp = None,
    ) -> None:
        self.settings = config.settings
        self.clock = clock
        self.ids = ids
        self.journal = journal
        self.environment = environment
        self.automatic_answers = AutomaticAnswers(within=config.settings.fixed.automatic_answer_s)
        self._follows_files = source is not None
        self.started_at = clock.now()
        self.session = Session(config.settings, clock=clock, ids=ids, journal=journal)
        if trace is not None:
            self.session.trace = trace
            trace.hide(self.session.secrets.mask)
        self.sign_ins = SignIns(
            self.session,
            directory=environment.tokens or environment.trust / "tokens",
            environ=environment.environ,
            answers=self.automatic_answers,
            is_connected=self._is_connected,
            group=self.group,
        )
        self._handler = BackendHandler(
            self.session, target_of=self._target_of, on_sign_in_wanted=self.sign_ins.want
        )
        self.servers = Servers(
            config.settings,
            emit=self._take,
            clock=clock,
            ids=ids,
            environment=environment,
            secrets=self.session.secrets,
            bearers=self.sign_ins.context,
            on_unguarded=lambda why: journal.record(JournalEvent.WATCHDOG_UNAVAILABLE, reason=why),
        )
        writer = None if source is None else self._greeting(source)
        self.configured = Configured(
            config,
            source,
            stamp=stamp,
            greeting=writer,
            servers=self.servers,
            session=self.session,
            journal=journal,
        )
        self.trust = TrustStore(environment.trust)
        self.admission = AdmissionControl(
            self.trust,
            config=lambda: self.configured.config,
            environment=environment,
            clock=clock,
            journal=journal,
        )
        self.pins = PinChecks(
            self.trust,
            mode=lambda: self.configured.config.settings.policy.pin,
            tell=self._tell_tools,
            clock=clock,
            journal=journal,
        )
        self.servers.is_held = self._is_held
        self.catalogue = self.servers.catalogue = self._catalogue(environment)
        environment.roots.on_change = self._tell_roots
        self.permissions = ToolPermissions(self.trust, self.servers, clock=clock, journal=journal)
        self.permissions.apply(config)
        self.surface = NativeSurface(
            config,
            servers=self.servers,
            pins=self.pins,
            journal=journal,
            group=self.group,
            is_known=lambda: self.configured.is_known,
        )
        if writer is not None:
            writer.exposed = lambda: self.surface.remembered
        self.configured.on_config = self._apply
        self.servers.on_tools = self._tools_listed
        self.servers.on_change = self._server_changed
        self.status = None if source is None else self._status(source)
        self.tasks: TaskGroup | None = None
        self._stop = anyio.Event()
        self._ended = anyio.Event()
        self._times = _DEFAULT_STOP
        self._reason = ""

    def _greeting(self, source: Source) -> GreetingWriter:
        environ, mask = self.environment.environ, self.session.secrets.mask
        return GreetingWriter(source, self.servers, environ=environ, mask=mask)

    def _status(self, source: Source) -> StatusWriter:
        return StatusWriter(
            self.session,
            self.servers,
            source=source,
            environment=self.environment,
            clock=self.clock,
            journal=self.journal,
            trust=self.trust,
        )

    def _catalogue(self, environment: Environment) -> Catalogue | None:
        if environment.catalogue is None:
            return None
        return Catalogue(
            CatalogueStore(environment.catalogue),
            self.trust,
            pin_mode=lambda: self.configured.config.settings.policy.pin,
            journal=self.journal,
        )

    def _is_held(self, server: str) -> bool:
        """Whether anything of the session is open at this server."""
        session = self.session
        return bool(
            session.waiting_on(server)
            or session.state.tasks.working(server=server)
            or session.state.requests.pending(server=server)
        )

    def group(self) -> TaskGroup:
        if self.tasks is None:
            raise RuntimeError("the session does not run")
        return self.tasks

    async def _report_leftovers(self) -> None:
        """An earlier proxy that was killed together with its watchdog may have left children."""
        home = self.environment.environ.get("HOME")
        found = await anyio.to_thread.run_sync(leftovers, home, abandon_on_cancel=True)
        if found:
            processes = [f"{left.pid} {left.name}" for left in found]
            self.journal.record(JournalEvent.LEFTOVERS, processes=processes)

    async def _watch_approvals(self) -> None:
        """What was let in on a person's word goes when they take it back."""
        stamp = None
        while True:
            await anyio.sleep(self.settings.fixed.config_poll_s)
            now = await anyio.to_thread.run_sync(self.trust.stamp, abandon_on_cancel=True)
            if now == stamp:
                continue
            stamp = now
            self.surface.look_again()
            members = list(self.servers.members.values())
            for member in await anyio.to_thread.run_sync(self.admission.taken_back, members):
                name = member.config.name
                if self.servers.members.get(name) is member:
                    await self.servers.remove(name)
                    data = {"by": "a person, who took the agreement back"}
                    self.session.tell(EventType.SERVER_REMOVED, server=name, data=data)

    def _tell_roots(self) -> None:
        for backend in self.servers:
            backend.roots.changed()

    def _tell_tools(self, server: str, data: Mapping[str, object]) -> None:
        if shown := self.permissions.shown_changes(server, data):
            fold = (server, "tools_changed")
            self.session.tell(EventType.TOOLS_CHANGED, server=server, data=shown, fold=fold)

    def _apply(self, config: Config) -> None:
        self.permissions.apply(config)
        self.surface.apply(config)

    def _take(self, server: str, event: BackendEvent) -> None:
        self._handler.take(server, event)
        self.surface.take(server, event)

    def _tools_listed(self, listed: ListedTools, start: Callable[..., object]) -> None:
        self.pins.seen(listed, start)
        self.surface.tools_listed(listed.config.name)

    def _server_changed(self, kind: JournalEvent, member: RegisteredServer, by: Origin) -> None:
        self.permissions.bind(member)
        self.surface.touch()
        target = self.session.secrets.mask(member.backend.snapshot().target)
        self.journal.record(kind, server=member.config.name, by=by.value, target=target)

    def _is_connected(self, name: str) -> bool:
        member = self.servers.members.get(name)
        return member is not None and member.backend.phase is Phase.CONNECTED

    def _target_of(self, name: str) -> str | None:
        """The command line or address of a server, without its secrets."""
        found = [backend for backend in self.servers if backend.name == name]
        return self.session.secrets.mask(found[0].snapshot().target) if found else None

    async def stop(self, times: StopTimes, *, reason: str = "") -> None:
        """End the session, with so much patience for the servers; nothing of them is left."""
        self._times = times
        self._reason = reason
        self._stop.set()
        await self._ended.wait()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until told to stop; then stop every server and leave nothing behind."""
        async with anyio.create_task_group() as tasks:
            self.tasks = tasks
            tasks.start_soon(self.session.ticker.run)
            tasks.start_soon(self.servers.guard.run)
            if self.status is not None:
                tasks.start_soon(self.status.run)
            tasks.start_soon(self.surface.run)
            if self.catalogue is not None:
                tasks.start_soon(self.catalogue.run)
            task_status.started()
            try:
                await self._stop.wait()
            finally:
                self.journal.record(
                    JournalEvent.REGISTRY_SHUTDOWN_START,
                    reason=self._reason,
                    servers=self.servers.names(),
                )
                with anyio.CancelScope(shield=True):
                    async with AsyncExitStack() as ends:
                        ends.push_async_callback(self._stop_servers)
                        await self._leave_greeting()
                if self.status is not None:
                    self.status.close()
                self.journal.record(JournalEvent.REGISTRY_SHUTDOWN_COMPLETE)
                self._ended.set()
            tasks.cancel_scope.cancel()

    async def _stop_servers(self) -> None:
        await self.servers.stop_all(self._times)
        await self.sign_ins.stop()
        if self.catalogue is not None:
            await self.catalogue.flush()

    async def _leave_greeting(self) -> None:
        """What changed last is for the next run."""
        self.surface.make_current()
        with anyio.move_on_after(_GREETING_S):
            await self.configured.keep_greeting()

    async def connect_configured(self) -> None:
        """Start what the configuration names, and keep it as the file says from then on."""
        if self._follows_files:
            self.group().start_soon(self._watch_approvals)
        told = self.environment.environ.get(DEPTH, "0")
        depth = max(int(told[:_DEPTH_DIGITS]) if told.isdecimal() else 0, proxies_above())
        if depth >= _MAX_DEPTH:
            self.configured.skip(
                f"This is an emceepee inside {depth} others: nothing configured is connected."
            )
            self.surface.touch()
            return
        await self.configured.start(self.group())
        self.surface.touch()
        await self._report_leftovers()
        await self.configured.watch(self.group(), every=self.settings.fixed.config_poll_s)
