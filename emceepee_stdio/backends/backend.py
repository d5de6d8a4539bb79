"""A backend as the session uses it: requests, lists, subscriptions and roots of one server.

A backend stands between the supervisor, whose connections it uses, and the session, which hears of
both eras in the same words. Whatever the server tells comes through `_take`: what concerns the
lists, the subscriptions and the roots is seen to here, the rest is passed on. Nothing that was
begun on one connection is carried over to the next.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.backends.exchange import Exchange, ExchangeContext, Recheck
from emceepee_stdio.backends.interface import (
    LOG_LEVELS,
    BackendEvent,
    Cancel,
    CarriesMeta,
    Emit,
    HealthChange,
    Item,
    Kind,
    ListsDiffer,
    OnResult,
    Params,
    PhaseChange,
    Question,
    RemoteError,
    Seen,
    Sender,
    ServerNotification,
    Snapshot,
    log_line,
    small_object,
    with_meta,
    without_stream,
)
from emceepee_stdio.backends.lists import KINDS, LIST_CHANGED, Lists, Remembered, differ
from emceepee_stdio.backends.subscriptions import ACKNOWLEDGED, Subscriptions
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import (
    InvalidArguments,
    NotSupported,
    ProxyError,
    ResourceNotFound,
    ServerDisconnected,
)
from emceepee_stdio.state.phases import Phase, RestartPolicy, Restarts
from emceepee_stdio.wire.codec import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, to_json
from emceepee_stdio.wire.peer import OutgoingRequest

# The health of a server: a ping from time to time.
#
# Missing it a few times is worth a warning, never a reconnect: a server that is busy is not dead,
# and one that is dead is noticed by its channel.


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthPolicy:
    """How often, how long to wait, and how many misses make a warning."""

    interval: float = 120.0
    jitter: float = 0.1
    within: float = 60.0
    misses: int = 3


class Health(Struct, eq=False, dict=True):
    """The health of one server; a turn for the worse or the better is emitted."""

    policy: HealthPolicy
    uniform: Callable[[float, float], float]
    emit: Emit

    def __post_init__(self) -> None:
        self._misses = 0
        self.degraded = False

    def __repr__(self) -> str:
        return f"<Health {'degraded' if self.degraded else 'well'} misses={self._misses}>"

    async def watch(self, look: Callable[[float], Awaitable[object]]) -> None:
        """Look for as long as the connection lives; the caller ends it with the connection."""
        p = self.policy
        while True:
            await anyio.sleep(p.interval * self.uniform(1 - p.jitter, 1 + p.jitter))
            try:
                await look(p.within)
            except RemoteError:  # it refuses, so it lives
                self.well()
            except ProxyError:
                self._missed()
            else:
                self.well()

    def well(self) -> None:
        """It answered, or it is new."""
        misses, self._misses = self._misses, 0
        if self.degraded:
            self.degraded = False
            self.emit(HealthChange(degraded=False, misses=misses))

    def _missed(self) -> None:
        self._misses += 1
        if self._misses >= self.policy.misses and not self.degraded:
            self.degraded = True
            self.emit(HealthChange(degraded=True, misses=self._misses))


# How one backend is treated, whatever its channel.


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """How this backend is treated. Times are seconds.

    `remembered` is what is known of it before it was started. It is stopped when it was not used
    for `idle_stop`, unless it `is_held` by something that is open. With `learns`, all of its lists
    are fetched as soon as it is connected.
    """

    lazy: bool = False
    learns: bool = False
    remembered: Remembered | None = None
    idle_stop: float | None = None
    is_held: Callable[[], bool] = lambda: False
    request: float = 60.0
    rounds: int = 10
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_room: Callable[[], int] | None = None


_ROOTS_CHANGED = "notifications/roots/list_changed"

# Tells the roots to whom it is given, now or later.
RootSource = Callable[[Callable[[Sequence[Mapping[str, str]]], None]], None]


_IDLE_LOOKS = 10  # in the time after which it is stopped: it may take a tenth longer
_MIN_IDLE_PAUSE_S = 0.01  # between two looks, however short that time is

T = TypeVar("T")


class Backend(Sender):
    """A backend. Make it, start `run` in a task group, and use it from anywhere."""

    def __init__(
        self,
        name: str,
        make_channel: Callable[[Emit], Channel],
        *,
        emit: Emit,
        clock: Clock,
        uniform: Callable[[float, float], float],
        tasks: TaskGroup,
        roots: RootSource = lambda tell: tell(()),
        options: BackendOptions | None = None,
    ) -> None:
        options = options or BackendOptions()
        self.name = name
        self.rules: ToolRules | None = None  # of its tools
        self._emit = emit
        self._clock = clock
        self._roots = roots
        self._asked_roots_on: Connection | None = None
        self._options = options
        self._log_level: str | None = None
        self._uses = 0  # requests of the session, but for what the backend does by itself
        self._at_work = 0  # of them, those that are more than one request
        self._is_new = False  # whether its tools were not listed yet since it started
        self._hello = None if options.remembered is None else options.remembered.hello
        self.lists = Lists(name, clock, room=options.list_room, on_known=self._listed)
        if (remembered := options.remembered) is not None:
            self.lists.remember(
                remembered.lists,
                at=remembered.at,
                sizes=remembered.sizes,
                cut=remembered.cut,
            )
        self.subscriptions = Subscriptions(name, on_gap=self.lists.drop_all, note=self._note)
        self._health = Health(options.health, uniform=uniform, emit=emit)
        self.channel = make_channel(self._take)
        self._supervisor = Supervisor(
            name,
            self.channel,
            emit=self._take,
            clock=clock,
            restarts=Restarts(options.restarts, uniform=uniform),
            tasks=tasks,
            lazy=options.lazy,
        )
        self._exchange = ExchangeContext(
            server=name,
            supervisor=self._supervisor,
            emit=self._take,
            clock=clock,
            max_rounds=options.rounds,
            list_tools=self._list_tools_anew,
            refusal=self._refusal,
        )

    def __repr__(self) -> str:
        return f"<Backend {self._supervisor!r}>"

    @property
    def phase(self) -> Phase | None:
        return self._supervisor.phase

    def snapshot(self) -> Snapshot:
        snapshot, is_remembered = self._supervisor.snapshot(), bool(self.lists.remembered)
        return replace(
            snapshot,
            hello=snapshot.hello or (self._hello if is_remembered else None),
            counts=self.lists.counts(),
            degraded=self._health.degraded,
            remembered_at=self.lists.remembered_at if is_remembered else None,
        )

    # Its life

    async def run(self) -> None:
        """Own the backend until it is stopped."""
        await self._supervisor.run()

    async def stop(self, why: str = "was removed") -> None:
        """Returns when nothing of the backend is left."""
        await self._supervisor.stop(why)

    async def connect(self, *, within: float) -> Connection:
        """The living connection, made first if need be."""
        return await self._supervisor.connection(within=within)

    async def reconnect(self, *, within: float) -> None:
        await self._supervisor.reconnect(within=within)

    async def ping(self, *, within: float) -> None:
        """The lightest request that there is, answered."""
        await self._connected_within(within, lambda c, left: c.ask(_light_request(c), None, left))

    async def _connected_within(
        self, within: float, work: Callable[[Connection, float], Awaitable[T]]
    ) -> T:
        self._uses += 1
        self._at_work += 1
        try:
            return await self._exchange.connected(work, within=within)
        finally:
            self._at_work -= 1

    def obey(self, rules: ToolRules | None) -> None:
        """These are the rules of its tools from now on."""
        self.rules = rules

    # What the server tells

    def _take(self, event: BackendEvent) -> None:
        match event:
            case PhaseChange(phase=Phase.CONNECTED):
                self._connected(event)
                return
            case Question(method="roots/list"):
                self._asked_roots_on = self._supervisor.current
                self._roots(lambda roots: _respond(event, roots))
                return
            case ServerNotification():
                taken = self._taken_in(event)
                if taken is None:
                    return
                event = taken
            case _:
                pass
        self._emit(event)

    def _connected(self, change: PhaseChange) -> None:
        known = self.lists.all_known()
        self.lists.drop_all()
        connection = self._supervisor.current
        if connection is not None:
            self._hello, self._is_new = connection.hello, True
            connection.log_level = self._log_level
            connection.services.append(partial(self._serve, connection, known))
            self.subscriptions.begin(connection)
        self._emit(change)
        if connection is not None:
            self._health.well()

    def _taken_in(self, event: ServerNotification) -> BackendEvent | None:
        """What a notification means to the session; None when it is for us alone."""
        method, params = event.method, event.params
        if method == "notifications/message":
            return log_line(params)
        if method == ACKNOWLEDGED:
            self.subscriptions.acknowledged(params)
            return None
        connection = self._supervisor.current
        if connection is not None and connection.is_modern:
            params, stream = without_stream(params)
            if stream is not None and not self.subscriptions.takes(stream):
                return None
        for kind in LIST_CHANGED.get(method, ()):
            self.lists.drop(kind)
        return ServerNotification(method, params)

    def roots_changed(self) -> None:
        """Tell a server that has asked for them; in the modern era every call asks anew."""
        connection = self._supervisor.current
        if connection and connection is self._asked_roots_on and not connection.is_modern:
            connection.notify(_ROOTS_CHANGED)

    def _note(self, text: str) -> None:
        if self._supervisor.current is not None:
            self._supervisor.current.note(text)

    # While a connection lives

    async def _serve(self, connection: Connection, known: Mapping[Kind, tuple[Item, ...]]) -> None:
        """Restore what was wanted, listen, watch its health."""
        look = partial(connection.ask, _light_request(connection), None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.subscriptions.listen)
            tasks.start_soon(self._restore, connection, known)
            tasks.start_soon(self._health.watch, look)
            if self._options.idle_stop is not None:
                tasks.start_soon(self._stop_when_idle, self._options.idle_stop)

    async def _restore(
        self, connection: Connection, known: Mapping[Kind, tuple[Item, ...]]
    ) -> None:
        """Subscriptions, the log level and the lists; what fails is a line in the log."""
        within = self._options.request
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(self.subscriptions.restore, connection, within=within)
        ]
        if self._log_level is not None and not connection.is_modern:
            level = {"level": self._log_level}
            steps.append(partial(connection.ask, "logging/setLevel", level, within))
        steps.append(partial(self._compare, connection, known))
        for step in steps:
            try:
                await step()
            except ServerDisconnected:
                return
            except ProxyError as error:
                connection.note(
                    f"not everything could be restored after connecting: {error.whole_fact}"
                )

    async def _compare(
        self, connection: Connection, known: Mapping[Kind, tuple[Item, ...]]
    ) -> None:
        """Fetch anew what was known before, and say what is no longer the same."""
        changed: list[str] = []
        try:
            for kind in tuple(Kind if self._options.learns else known):
                now = await self._list(connection, kind, self._options.request)
                name, before = KINDS[kind].capability, known.get(kind)
                if before is not None and differ(before, now) and name not in changed:
                    changed.append(name)
        finally:
            if changed:
                self._emit(ListsDiffer(changed))

    async def _stop_when_idle(self, after: float) -> None:
        """Polled: so a use costs a call no more than a count."""
        uses, since = self._uses, self._clock.now()
        while True:
            await anyio.sleep(max(after / _IDLE_LOOKS, _MIN_IDLE_PAUSE_S))
            now = self._clock.now()
            if self._is_held() or self._uses != uses:
                uses, since = self._uses, now
            elif now - since >= after:
                self._deactivate()
                return

    def _is_held(self) -> bool:
        """Whether somebody waits for something of it, or it was asked to tell something."""
        connection = self._supervisor.current
        return (
            bool(self._at_work or self.subscriptions.uris)
            or (connection is not None and connection.is_busy())
            or self._options.is_held()
        )

    def _deactivate(self) -> None:
        """Stop it; what it has listed is what it is known by from now on."""
        self.lists.remember_known(at=self._clock.iso(self._clock.now()))
        self._supervisor.deactivate()

    # What the session asks

    def send(
        self, request: OutgoingRequest, on_done: OnResult, recheck: Recheck | None = None
    ) -> Cancel:
        """Until the result is complete, connecting first if need be."""
        self._uses += 1
        if self.rules is not None and (refused := self._refusal(request)) is not None:
            on_done(refused)
            return lambda: None
        return Exchange(self._exchange, request, on_done, recheck).cancel

    def _refusal(self, request: OutgoingRequest) -> ProxyError | None:
        """Why the rules forbid this request, at the moment in which it is sent."""
        if request.method != "tools/call":
            return None
        params = request.params or {}
        return self.refusal(params.get("name"), permitted=request.is_agreed)

    def refusal(self, tool: object, *, permitted: bool = True) -> ProxyError | None:
        """Why a tool does not run; before a call is sent, the person may still be asked."""
        if self.rules is None:
            return None
        listed = {} if Kind.TOOLS in self.lists.remembered else self.lists.tools or {}
        return self.rules.refusal(tool, server=self.name, listed=listed, permitted=permitted)

    async def list_ruled(self, tool: str, *, within: float) -> None:
        """Have the tools listed where the rules have to know them."""
        rule = "off" if self.rules is None else self.rules.rule(tool)
        if rule == "ask" or (rule == "allow" and not self.lists.lists_tool(tool)):
            await self.list_all(Kind.TOOLS, within=within)

    async def ask(self, method: str, params: Params, *, within: float, call: object = None) -> Raw:
        deadline = self._clock.now() + within
        return await self.request(
            OutgoingRequest(
                method=method, params=params, within=within, deadline=deadline, call=call
            )
        )

    async def call_tool(
        self,
        tool: str,
        arguments: Raw | Params,
        *,
        within: float,
        call: object = None,
        is_agreed: bool = False,
    ) -> Raw:
        return await self.request(
            OutgoingRequest(
                method="tools/call",
                params={"name": tool, "arguments": arguments},
                within=within,
                deadline=self._clock.now() + within,
                call=call,
                is_agreed=is_agreed,
            )
        )

    async def read_resource(
        self, uri: str, *, within: float, call: CarriesMeta | None = None
    ) -> Raw:
        params = with_meta({"uri": uri}, call)
        try:
            return await self.ask("resources/read", params, within=within, call=call)
        except RemoteError as error:
            if _is_missing_resource(error):
                raise ResourceNotFound(f"{self.name} has no resource {uri!r}.") from None
            raise self.unsupported(error, "resources") from None

    async def get_prompt(
        self, prompt: str, arguments: Params, *, within: float, call: CarriesMeta | None = None
    ) -> Raw:
        params = with_meta({"name": prompt, "arguments": arguments}, call)
        try:
            return await self.ask("prompts/get", params, within=within, call=call)
        except RemoteError as error:
            raise self.unsupported(error, "prompts") from None

    async def complete(
        self,
        ref: Params,
        argument: Params,
        context: Params | None,
        *,
        within: float,
        call: CarriesMeta | None = None,
    ) -> Raw:
        params: dict[str, object] = {"ref": ref, "argument": argument}
        if context:
            params["context"] = {"arguments": context}
        try:
            return await self.ask("completion/complete", with_meta(params, call), within=within)
        except RemoteError as error:
            raise self.unsupported(error, "completion") from None

    def unsupported(self, error: RemoteError, what: str) -> ProxyError:
        """What a refused request means where the server does not know its method."""
        if error.error.code == METHOD_NOT_FOUND:
            return NotSupported(f"{self.name} does not support {what}.")
        return error

    async def list_all(self, kind: str, *, within: float) -> tuple[Item, ...]:
        """The whole list; empty where the server has nothing of the kind."""
        wanted = Kind(kind)
        return await self._connected_within(within, lambda c, left: self._list(c, wanted, left))

    async def subscribe(self, uri: str, *, within: float) -> None:
        add = self.subscriptions.add
        await self._connected_within(within, lambda c, left: add(uri, c, within=left))

    async def unsubscribe(self, uri: str, *, within: float) -> None:
        self.subscriptions.forget(uri)
        remove = self.subscriptions.remove
        await self._connected_within(within, lambda c, left: remove(uri, c, within=left))

    async def set_log_level(self, level: str, *, within: float) -> None:
        """At once on a handshake connection; on a modern one each later request asks for it."""
        if level not in LOG_LEVELS:
            raise InvalidArguments(f"{level!r} is no log level: {', '.join(LOG_LEVELS)}.")

        async def set_on(connection: Connection, left: float) -> None:
            if not connection.is_modern:
                await connection.ask("logging/setLevel", {"level": level}, left)
            self._log_level = connection.log_level = level

        try:
            await self._connected_within(within, set_on)
        except RemoteError as error:
            raise self.unsupported(error, "log levels") from None

    async def _list_tools_anew(self) -> None:
        self.lists.drop(Kind.TOOLS)
        await self.list_all(Kind.TOOLS, within=self._options.request)

    async def _list(self, connection: Connection, kind: Kind, within: float) -> tuple[Item, ...]:
        terms = KINDS[kind]
        if kind is not Kind.TOOLS and not connection.declares(terms.capability):
            return self.lists.nothing(kind)
        deadline = self._clock.now() + within

        async def fetch(params: Params | None) -> Raw:
            return await connection.request(
                OutgoingRequest(
                    method=terms.method, params=params, within=within, deadline=deadline
                )
            )

        return await self.lists.get(
            kind,
            fetch,
            told_of_changes=self.subscriptions.tells_changes(kind),
            within=within,
            accept=connection.take_tools if kind is Kind.TOOLS else tuple,
        )

    def _listed(self, kind: Kind) -> None:
        """The server has told what it has of this kind."""
        first, self._is_new = self._is_new, self._is_new and kind is not Kind.TOOLS
        self._emit(
            Seen(
                kind=kind,
                items=self.lists.known(kind) or (),
                hello=self._hello,
                at=self._clock.iso(self._clock.now()),
                cut=kind in self.lists.cut,
                first=first and kind is Kind.TOOLS,
            )
        )


def _is_missing_resource(error: RemoteError) -> bool:
    if error.error.code == RESOURCE_NOT_FOUND:
        return True
    return error.error.code == INVALID_PARAMS and "uri" in small_object(error.error.data)


def _respond(question: Question, roots: Sequence[Mapping[str, str]]) -> None:
    question.respond(to_json({"roots": list(roots)}))


def _light_request(connection: Connection) -> str:
    return "server/discover" if connection.is_modern else "ping"
