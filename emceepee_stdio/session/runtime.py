"""The session at work: builds its parts, and runs their async tasks."""

from collections.abc import Mapping

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from emceepee_stdio.backends.interface import BackendEvent, Kind, Seen
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import Source
from emceepee_stdio.config.settings import Config
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.admission import AdmissionControl
from emceepee_stdio.session.approvals import ApprovalFlow, ApprovalSubject
from emceepee_stdio.session.backend_handler import BackendHandler
from emceepee_stdio.session.catalogue import Catalogue, CatalogueStore
from emceepee_stdio.session.channel_maker import ServerChanged
from emceepee_stdio.session.client_link import ClientLink, ClientRoots
from emceepee_stdio.session.configured import Configured
from emceepee_stdio.session.native_surface import GreetingWriter, NativeSurface
from emceepee_stdio.session.person_page import PersonPage
from emceepee_stdio.session.server_registry import Environment, Servers
from emceepee_stdio.session.session import Session
from emceepee_stdio.session.sign_ins import SignIns
from emceepee_stdio.session.status_writer import StatusWriter
from emceepee_stdio.session.tool_permissions import PinChecks, ToolPermissions
from emceepee_stdio.state.event_types import EventType
from emceepee_stdio.state.pending_requests import AutomaticAnswers
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.storage.private_file import Stamp
from emceepee_stdio.storage.saved_files import SavedFiles
from emceepee_stdio.trace.request_log import RequestLog
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.wire.environment import DEPTH, http_token
from emceepee_stdio.wire.orphans import leftovers
from emceepee_stdio.wire.own_process import proxies_above
from emceepee_stdio.wire.process import StopTimes
from emceepee_stdio.wire.selection import Selection

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
        stamp: Stamp | None = None,
    ) -> None:
        self.settings = config.settings
        self.clock = clock
        self.ids = ids
        self.journal = journal
        self.environment = environment
        self.automatic_answers = AutomaticAnswers(within=config.settings.fixed.automatic_answer_s)
        self._follows_files = source is not None
        self.started_at = clock.now()
        client = ClientLink()
        self.roots = ClientRoots(
            environment.roots,
            are_configured=bool(config.settings.roots),
            ask=client.ask_roots,
            on_change=self._tell_roots,
        )
        self.session = Session(
            config.settings, clock=clock, ids=ids, journal=journal, client=client, trace=trace
        )
        self.sign_ins = SignIns(
            self.session,
            directory=environment.tokens or environment.trust / "tokens",
            environ=environment.environ,
            is_connected=self._is_connected,
            group=self.group,
        )
        self._handler = BackendHandler(
            self.session, target_of=self._target_of, on_sign_in_wanted=self.sign_ins.want
        )
        self.trust = TrustStore(environment.trust)
        self.catalogue = self._catalogue(environment)
        self.servers = Servers(
            self.session,
            emit=self._take,
            environment=environment,
            roots=self.roots.tell,
            bearers=self.sign_ins.context,
            catalogue=self.catalogue,
        )
        self.configured = Configured(
            config,
            source,
            stamp=stamp,
            greeting=self._greeting(source),
            on_config=self._apply,
            servers=self.servers,
            session=self.session,
            journal=journal,
        )
        self.page = PersonPage(
            self.trust,
            session=journal.session,
            environ=environment.environ,
            is_wanted=lambda: source is not None and self.configured.config.settings.policy.page,
            within=config.settings.timeouts.client_request_ms / 1000,
            clock=clock,
            group=self.group,
        )
        self.approvals = ApprovalFlow(
            self.trust,
            clock=clock,
            journal=journal,
            page=self.page,
            tell=self._tell_decided,
            token=http_token(environment.environ),
        )
        self.admission = AdmissionControl(
            self.trust,
            self.approvals,
            config=lambda: self.configured.config,
            environment=environment,
            journal=journal,
        )
        self.pins = PinChecks(
            self.trust,
            self.approvals,
            mode=lambda: self.configured.config.settings.policy.pin,
            tell=self._tell_tools,
            journal=journal,
        )
        self.selection = Selection(environment.environ)
        ours = (environment.trust, environment.tokens, environment.catalogue)
        files = () if source is None else (source.path(),)
        self.saved = SavedFiles([*files, *filter(None, ours)])
        self.permissions = ToolPermissions(self.trust, self.approvals, self.servers, clock=clock)
        self.permissions.apply(config)
        self.surface = NativeSurface(
            config,
            servers=self.servers,
            pins=self.pins,
            journal=journal,
            catalogue=self.catalogue,
            group=self.group,
            is_known=lambda: self.configured.is_known,
            on_lists=client.changed,
        )
        self.status = None if source is None else self._status(source)
        self.tasks: TaskGroup | None = None
        self._stop = anyio.Event()
        self._ended = anyio.Event()
        self._times = _DEFAULT_STOP
        self._reason = ""

    def _greeting(self, source: Source | None) -> GreetingWriter | None:
        if source is None or self.catalogue is None:
            return None
        return GreetingWriter(
            source,
            self.catalogue,
            surface_changes=lambda: self.surface.changes,
            environ=self.environment.environ,
            mask=self.session.secrets.mask,
        )

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
            backend.roots_changed()

    def _tell_decided(self, kind: EventType, subject: ApprovalSubject) -> None:
        granted = kind is EventType.APPROVAL_GRANTED
        next_step = (subject.by_itself or subject.again) if granted else subject.instead
        data = {"what": subject.what, "next_step": next_step.strip()}
        self.session.tell(kind, server=subject.server, data=data)

    def _tell_tools(self, server: str, data: Mapping[str, object]) -> None:
        if shown := self.permissions.shown_changes(server, data):
            fold = (server, "tools_changed")
            self.session.tell(EventType.TOOLS_CHANGED, server=server, data=shown, fold=fold)

    def _apply(self, config: Config) -> None:
        self.permissions.apply(config)
        self.surface.apply(config)

    def _take(self, server: str, event: BackendEvent | ServerChanged) -> None:
        """Whatever happens to a server: the state first, then what is made of it."""
        if isinstance(event, ServerChanged):
            self._server_changed(server, event)
            return
        self._handler.take(server, event)
        if isinstance(event, Seen):
            self._listed(server, event)
        self.surface.take(server, event)

    def _listed(self, server: str, seen: Seen) -> None:
        member = self.servers.members.get(server)
        if member is None:
            return
        if self.catalogue is not None and self.servers.is_kept(member.admission):
            self.catalogue.note(member.config, seen)
        if seen.kind is Kind.TOOLS and (listed := self.servers.listed(server, seen.items)):
            self.pins.seen(listed, self.group().start_soon)

    def _server_changed(self, server: str, change: ServerChanged) -> None:
        self.permissions.bind(change.member)
        self.surface.touch()
        target = self.session.secrets.mask(change.member.backend.snapshot().target)
        self.journal.record(change.kind, server=server, by=change.by.value, target=target)

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
                    await self._stop_servers()
                if self.status is not None:
                    self.status.close()
                self.journal.record(JournalEvent.REGISTRY_SHUTDOWN_COMPLETE)
                self._ended.set()
            tasks.cancel_scope.cancel()

    async def _stop_servers(self) -> None:
        await self.servers.stop_all(self._times)
        await self.sign_ins.stop()
        await self.page.stop()
        await self.selection.stop()
        if self.catalogue is not None:
            await self.catalogue.flush()
        with anyio.move_on_after(_GREETING_S):
            await self.configured.keep_greeting()  # what changed last is for the next run

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
