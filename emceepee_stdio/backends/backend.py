"""A backend as the session sees it: what every server can do, whatever the channel and the era.

A backend stands between the supervisor, whose connections it uses, and the session, which hears of
both eras in the same words. Whatever the server tells comes through `_take`: what concerns the
lists, the subscriptions and the roots is seen to here, the rest is passed on. Nothing that was
begun on one connection is carried over to the next.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.backend_events import (
    BackendEvent,
    Emit,
    HealthChange,
    PhaseChange,
    Question,
    ServerNotification,
)
from emceepee_stdio.backends.backend_options import BackendOptions
from emceepee_stdio.backends.base import (
    Cancel,
    NotTaken,
    OnResult,
    Params,
    RemoteError,
    Snapshot,
)
from emceepee_stdio.backends.catalogue_record import Seen
from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.backends.exchange import Exchange, ExchangeContext
from emceepee_stdio.backends.feature_requests import FeatureRequests
from emceepee_stdio.backends.health import Health
from emceepee_stdio.backends.idle_stop import IdleStop
from emceepee_stdio.backends.lists import KINDS, LIST_CHANGED, Item, Kind, Lists
from emceepee_stdio.backends.notifications import LOG_LEVELS, log_line, without_stream
from emceepee_stdio.backends.restoration import Restoration
from emceepee_stdio.backends.root_listing import RootListing, RootSource
from emceepee_stdio.backends.subscription_stream import ACKNOWLEDGED
from emceepee_stdio.backends.subscriptions import Subscriptions
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.backends.tool_refusals import tool_refusal
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import (
    InvalidArguments,
)
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.state.restarts import Restarts
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["Backend"]

T = TypeVar("T")


class Backend(FeatureRequests):
    """A backend. Make it, start `run` in a task group, and use it from anywhere."""

    rules: ToolRules | None = None  # of its tools; the session sets them at any time

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
        self._emit = emit
        self._clock = clock
        self.roots = RootListing(roots, current=lambda: self._supervisor.current)
        self._options = options
        self._log_level: str | None = None
        self._seen_tools: tuple[Item, ...] | None = None
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
        self._health = Health(
            options.health,
            uniform=uniform,
            on_degraded=lambda n: emit(HealthChange(degraded=True, misses=n)),
            on_restored=lambda n: emit(HealthChange(degraded=False, misses=n)),
        )
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
        """Work on a living connection; once more where the server has not seen the request."""
        deadline = self._clock.now() + within
        self._uses += 1
        self._at_work += 1
        try:
            connection = self._supervisor.current or await self.connect(within=within)
            return await work(connection, deadline - self._clock.now())
        except NotTaken:
            connection = await self.connect(within=deadline - self._clock.now())
            return await work(connection, deadline - self._clock.now())
        finally:
            self._at_work -= 1

    # What the server tells

    def _take(self, event: BackendEvent) -> None:
        match event:
            case PhaseChange(phase=Phase.CONNECTED):
                self._connected(event)
                return
            case Question(method="roots/list"):
                self.roots.answer(event)
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

    def _note(self, text: str) -> None:
        if self._supervisor.current is not None:
            self._supervisor.current.note(text)

    # While a connection lives

    async def _serve(self, connection: Connection, known: Mapping[Kind, tuple[Item, ...]]) -> None:
        """Restore what was wanted, listen, watch its health."""
        look = partial(connection.ask, _light_request(connection), None)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.subscriptions.listen)
            tasks.start_soon(self._restoration(connection, known).run)
            tasks.start_soon(self._health.watch, look)
            if self._options.idle_stop is not None:
                tasks.start_soon(self._idle_stop(self._options.idle_stop).watch)

    def _restoration(
        self, connection: Connection, known: Mapping[Kind, tuple[Item, ...]]
    ) -> Restoration:
        return Restoration(
            connection=connection,
            subscriptions=self.subscriptions,
            log_level=self._log_level,
            known=known,
            kinds=tuple(Kind if self._options.learns else known),
            fetch=self._list,
            within=self._options.request,
            emit=self._emit,
        )

    def _idle_stop(self, after: float) -> IdleStop:
        return IdleStop(
            after=after,
            clock=self._clock,
            uses=lambda: self._uses,
            is_held=self._is_held,
            stop=self._deactivate,
        )

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

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        """Until the result is complete, connecting first if need be."""
        self._uses += 1
        if self.rules is not None and (refused := tool_refusal(self, request)) is not None:
            on_done(refused)
            return lambda: None
        return Exchange(self._exchange, request, on_done).cancel

    async def ask(self, method: str, params: Params, *, within: float, call: object = None) -> Raw:
        deadline = self._clock.now() + within
        request = OutgoingRequest(
            method=method, params=params, within=within, deadline=deadline, call=call
        )
        try:
            return await self.request(request)
        except NotTaken:
            return await self.request(request)

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

        items = await self.lists.get(
            kind,
            fetch,
            told_of_changes=self.subscriptions.tells_changes(kind),
            within=within,
            accept=connection.take_tools if kind is Kind.TOOLS else tuple,
        )
        if kind is Kind.TOOLS and items is not self._seen_tools:
            self._seen_tools = items
            if self._options.on_tools is not None:
                self._options.on_tools(items)
        return items

    def _listed(self, kind: Kind) -> None:
        """The server has told what it has of this kind."""
        first, self._is_new = self._is_new, self._is_new and kind is not Kind.TOOLS
        if self._options.on_listed is not None:
            self._options.on_listed(
                Seen(
                    kind=kind,
                    items=self.lists.known(kind) or (),
                    hello=self._hello,
                    at=self._clock.iso(self._clock.now()),
                    cut=kind in self.lists.cut,
                    first=first and kind is Kind.TOOLS,
                )
            )


def _light_request(connection: Connection) -> str:
    return "server/discover" if connection.is_modern else "ping"
