"""The servers of the session by name: added, looked up, removed, stopped."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct

from emceepee_stdio.auth.bearer import BearerContext
from emceepee_stdio.backends.backend import Backend, BackendOptions, HealthPolicy
from emceepee_stdio.backends.channels.stdio_channel import ChildContext, Haste
from emceepee_stdio.backends.interface import BackendEvent, Hello, LogLine, LogSource
from emceepee_stdio.backends.lists import MAX_LIST_BYTES, Remembered
from emceepee_stdio.config.server import BrokenServer, ServerConfig, StartMode, marked_names
from emceepee_stdio.errors import (
    InvalidArguments,
    ServerExists,
    ServerFailed,
    ServerNotFound,
    ServerUnavailable,
)
from emceepee_stdio.journal import MOST_GIVEN, JournalEvent, given_secrets
from emceepee_stdio.session.channel_maker import (
    Admission,
    ChannelMaker,
    ListedTools,
    Origin,
    RegisteredServer,
    ServerChanged,
)
from emceepee_stdio.session.client_link import Root, TellRoots
from emceepee_stdio.session.exposed_lists import claimants
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.phases import RestartPolicy
from emceepee_stdio.trace.request import current_request
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS, close_names, shell_word
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.orphans import owner_mark
from emceepee_stdio.wire.process import StopTimes
from emceepee_stdio.wire.process_guard import ProcessGuard

if TYPE_CHECKING:
    from emceepee_stdio.session.catalogue import Catalogue


# What the loss of a connection cost, until there is another one.


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """What the loss of a connection took with it, and what is known of its cause."""

    hello: Hello | None = None
    restarted: bool = False
    tasks: int = 0
    elicitations: int = 0
    sampling_requests: int = 0

    def kind(self, hello: Hello | None) -> str:
        """A restart where that is known, or the server is not what it was."""
        is_other = self.hello is not None and self.hello != hello
        return "restart" if self.restarted or is_other else "network_blip"

    def counts(self) -> dict[str, int]:
        return {
            "invalidated_tasks": self.tasks,
            "invalidated_elicitations": self.elicitations,
            "invalidated_sampling_requests": self.sampling_requests,
        }


OWN_NAME = "emceepee"
_MOST_ADDED_NAMES = 10_000  # a model may add and remove servers without end
_LISTS_FACTOR = 8  # times limits.memory_bytes for the lists of all servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What of the outside world the servers get to see."""

    environ: Mapping[str, str]
    cwd: Path
    home: Path
    uniform: Callable[[float, float], float]
    trust: Path
    roots: Sequence[Root] = ()  # where the client has none
    tokens: Path | None = None
    catalogue: Path | None = None
    guard: type[ProcessGuard] = ProcessGuard


class Servers(Struct, eq=False, dict=True):
    """Makes a backend for each configuration and owns it. `tasks` is where they run."""

    session: Session
    emit: Callable[[str, BackendEvent | ServerChanged], None]
    environment: Environment
    roots: Callable[[TellRoots], None]
    bearers: BearerContext
    catalogue: "Catalogue | None"

    def __post_init__(self) -> None:
        self._settings = self.session.settings
        self._secrets = self.session.secrets
        self._haste = Haste()
        self.guard = self.environment.guard(owner_mark(self.session.ids()), warn=self._on_unguarded)
        around = ChildContext(
            clock=self.session.clock,
            ids=self.session.ids,
            environ=self.environment.environ,
            cwd=self.environment.cwd,
            home=self.environment.home,
            guard=self.guard,
            haste=self._haste,
        )
        self._channels = ChannelMaker(
            self.session.settings, around, self.bearers, on_secrets=self._learn_secrets
        )
        self.members: dict[str, RegisteredServer] = {}
        self.configured_names: set[str] = set()  # of this session, in whatever state they are
        self._added_names: set[str] = set()
        self.broken: dict[str, BrokenServer] = {}

    def __repr__(self) -> str:
        return f"<Servers {', '.join(self.members) or 'none'}>"

    def __iter__(self) -> Iterator[Backend]:
        return iter([member.backend for member in self.members.values()])

    def __len__(self) -> int:
        return len(self.members)

    def names(self) -> list[str]:
        return list(self.members)

    def marked_names(self) -> dict[str, str]:
        """All names as a list of names has them: those that are disabled or broken say so."""
        return marked_names(self.members, self.broken.values())

    def claiming(self, tool: str, *, but: str | None = None) -> list[str]:
        """The servers that a tool means by the beginning of its name, also those that are gone."""
        known = self.configured_names | self._added_names
        return [name for name in claimants(tool, sorted(known)) if name != but]

    def get(self, name: str) -> Backend:
        """The server of that name; the error names the ones that are close.

        It is the server of the request whose work this is, also where there is none of that name.
        """
        if (request := current_request.get()) is not None:
            request.at(name)
        if member := self.members.get(name):
            return member.backend
        if broken := self.broken.get(name):
            raise ServerFailed(broken.fact, hint=_way_back(broken))
        known = self.marked_names()
        close = close_names(name, known)
        shown = ", ".join(known[one] for one in close or sorted(known)[:LISTED_NAMES])
        suffix = f" {'Close' if close else 'There'} are: {shown}." if known else ""
        raise ServerNotFound(f"There is no server {name[:SHOWN_NAME_CHARS]!r}.{suffix}")

    async def add(
        self, admission: Admission, tasks: TaskGroup, *, replacing: RegisteredServer | None = None
    ) -> Backend:
        """Start a backend; the same settings again are the same backend.

        `replacing` is what it may take the place of: that, and nothing that came in meanwhile.
        """
        config = admission.config
        if config.name == OWN_NAME:
            raise InvalidArguments(
                f"The name {OWN_NAME} is the proxy's own.", hint="Choose another."
            )
        given = list(self._given_secrets(config))
        if admission.origin is Origin.CLIENT and len(given) > MOST_GIVEN:
            raise InvalidArguments(
                f"{config.name} is given {len(given)} secret values; {MOST_GIVEN} at most can be "
                "kept out of logs and errors.",
                hint="Give it fewer headers, variables and arguments, or name a file.",
            )
        make_channel = await self._channels.maker(admission)
        remembered = await self._remembered(admission)
        replaced = False
        # In a loop: while one is stopped, somebody else may have added another of the name.
        while present := self.members.get(config.name):
            if present.config.is_same_but_rules(config):
                return present.backend
            if present is not replacing:
                raise ServerExists(f"{config.name} exists already, with other settings.")
            await self._take_out(config.name)
            replaced = True
        if len(self.members) >= self._settings.limits.servers:
            raise InvalidArguments(
                f"There are {len(self.members)} servers, which is the limit.",
                hint="Remove one with remove_server first.",
            )
        if self._haste.times is not None:
            raise ServerUnavailable(f"{config.name} is not started: the proxy is ending.")
        self._secrets.add(given, server=config.name)
        backend = Backend(
            config.name,
            make_channel,
            emit=partial(self.emit, config.name),
            clock=self.session.clock,
            uniform=self.environment.uniform,
            tasks=tasks,
            roots=self.roots,
            options=self._link_options(admission, remembered),
        )
        member = self.members[config.name] = RegisteredServer(admission=admission, backend=backend)
        if len(self._added_names) < _MOST_ADDED_NAMES:
            self._added_names.add(config.name)
        kind = JournalEvent.SERVER_CONFIG_UPDATED if replaced else JournalEvent.SERVER_CONFIG_ADDED
        self.emit(config.name, ServerChanged(kind=kind, member=member, by=admission.origin))
        tasks.start_soon(self._run, backend)
        return backend

    def _on_unguarded(self, why: str) -> None:
        self.session.journal.record(JournalEvent.WATCHDOG_UNAVAILABLE, reason=why)

    def _learn_secrets(self, config: ServerConfig, values: Iterable[str]) -> None:
        """What a server of the configuration is given from the keyring, whatever its names say."""
        given = [*self._given_secrets(config), *given_secrets(values=values)]
        self._secrets.add(given, server=config.name)

    async def _remembered(self, admission: Admission) -> Remembered | None:
        """What is known of a server that is not to be started for that."""
        if self.catalogue is None or self.start_mode(admission) == "eager":
            return None
        return await self.catalogue.recall(admission.config)

    def start_mode(self, admission: Admission) -> StartMode:
        """When a server is started: one that is added in the middle of a session is wanted now."""
        if admission.origin is not Origin.CONFIGURATION:
            return "eager"
        # Over HTTP there are many sessions, and each would start them all.
        usual: StartMode = "auto" if BEHIND_HTTP in self.environment.environ else "eager"
        return admission.config.start_mode(self._settings.start or usual)

    def is_kept(self, admission: Admission) -> bool:
        """Whether what it lists is written down in the catalogue."""
        return self.catalogue is not None and admission.origin is Origin.CONFIGURATION

    def is_too_large(self, admission: Admission) -> bool:
        """Whether it is to start on first use, and lists too much for that."""
        if self.catalogue is None or self.start_mode(admission) == "eager":
            return False
        return self.catalogue.is_too_large(admission.config.name)

    def _given_secrets(self, config: ServerConfig) -> Iterator[str]:
        environ = self.environment.environ
        passed = {name: environ.get(name, "") for name in config.pass_env}
        argv = [config.command or "", *config.args]
        yield from given_secrets(
            argv=argv, env={**passed, **config.env}, headers=config.headers, url=config.url
        )
        # What a `${TOKEN}` stood for is a secret wherever it stood.
        if config.oauth.client_secret:
            yield config.oauth.client_secret
        texts = " ".join([*argv, *config.env.values(), config.url or ""])
        for secret in given_secrets(env=environ):
            if secret in texts:
                yield secret

    async def _run(self, backend: Backend) -> None:
        """A bug in one backend costs that backend, not the proxy."""
        try:
            await backend.run()
        except Exception as error:  # noqa: BLE001 - nothing of one backend may end the others
            line = f"{backend.name} was given up because of an unexpected error: {error!r}"
            self.emit(backend.name, LogLine(source=LogSource.PROTOCOL, text=line, level="error"))

    def listed(self, name: str, tools: Sequence[Mapping[str, object]]) -> ListedTools | None:
        """Tools as those of the server that has this name now; None when there is none."""
        member = self.members.get(name)
        if member is None:
            return None
        hello = member.backend.snapshot().hello
        return ListedTools(
            config=member.config,
            origin=member.origin,
            tools=tools,
            instructions=None if hello is None else hello.instructions,
        )

    async def remove(self, name: str, *, by: Origin = Origin.CLIENT) -> None:
        member = await self._take_out(name)
        kind = JournalEvent.SERVER_CONFIG_REMOVED
        self.emit(name, ServerChanged(kind=kind, member=member, by=by))

    async def _take_out(self, name: str) -> RegisteredServer:
        backend = self.get(name)
        member = self.members.pop(name)
        await backend.stop()
        if name not in self.members:
            self._secrets.retire(name)
        return member

    async def stop_all(self, times: StopTimes) -> None:
        """Every backend at once, in bounded time; nothing of them is left."""
        self._haste.times = times
        async with anyio.create_task_group() as tasks:
            for backend in self:
                tasks.start_soon(backend.stop, "was stopped: the proxy is ending")
        self.members.clear()
        await self.guard.close()

    def _list_room(self, name: str) -> int:
        """Bytes for the lists of one server: its share at least, and what the others leave."""
        limits = self._settings.limits
        total = _LISTS_FACTOR * limits.memory_bytes
        others = sum(backend.lists.bytes for backend in self if backend.name != name)
        return max(total // limits.servers, min(total - others, MAX_LIST_BYTES))

    def _link_options(self, admission: Admission, remembered: Remembered | None) -> BackendOptions:
        config, fixed = admission.config, self._settings.fixed
        mode = self.start_mode(admission)
        restart = self._settings.restart.for_server(config, http_cap_s=fixed.restart_http_cap_s)
        return BackendOptions(
            lazy=mode == "lazy" or remembered is not None,
            learns=self.is_kept(admission) and mode != "eager",
            remembered=remembered,
            idle_stop=config.idle_stop_s(self._settings.idle_stop_ms),
            is_held=partial(self.session.holds, config.name),
            request=self._settings.timeouts.request_ms / 1000,
            rounds=fixed.rounds,
            restarts=RestartPolicy(
                base=restart.base_ms / 1000,
                factor=fixed.restart_factor,
                cap=restart.cap_ms / 1000,
                jitter=fixed.restart_jitter,
                # A URL is tried for ever, unless its own entry says otherwise.
                limit=restart.attempts if config.url is None else config.restart.attempts,
                stable_after=fixed.restart_stable_s,
            ),
            health=HealthPolicy(
                interval=fixed.health_interval_s, within=fixed.health_s, misses=fixed.health_misses
            ),
            list_room=lambda: self._list_room(config.name),
        )


def _way_back(broken: BrokenServer) -> str:
    if broken.switched_off:
        return f"The person can enable it: `emceepee config enable {shell_word(broken.name)}`."
    return "Fix its entry in the configuration; `emceepee config check` shows it."
