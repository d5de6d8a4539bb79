"""A backend as the session uses it: requests, lists, subscriptions and roots of one server.

A backend stands between the supervisor, whose connections it uses, and the session, which hears of
both eras in the same words. Whatever the server tells comes through `_take`: what concerns the
lists, the subscriptions and the roots is seen to here, the rest is passed on. Nothing that was
begun on one connection is carried over to the next.
"""

import re
import shlex
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.backend_events import (
    LOG_LEVELS,
    BackendEvent,
    Emit,
    HealthChange,
    ListsDiffer,
    PhaseChange,
    Question,
    ServerNotification,
    log_line,
    small_object,
    without_stream,
)
from emceepee_stdio.backends.base import (
    Cancel,
    CarriesMeta,
    NotTaken,
    OnResult,
    Params,
    RemoteError,
    Sender,
    Snapshot,
    with_meta,
)
from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.backends.exchange import Exchange, ExchangeContext
from emceepee_stdio.backends.health import Health, HealthPolicy, IdleStop
from emceepee_stdio.backends.lists import (
    KINDS,
    LIST_CHANGED,
    Item,
    Kind,
    Lists,
    Remembered,
    Seen,
    differ,
)
from emceepee_stdio.backends.subscriptions import ACKNOWLEDGED, Subscriptions
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.tool_rules import ToolRules
from emceepee_stdio.errors import (
    InvalidArguments,
    NeedsApproval,
    NotSupported,
    PolicyDenied,
    ProxyError,
    ResourceNotFound,
    ServerDisconnected,
    ToolNotFound,
)
from emceepee_stdio.state.phases import Phase, RestartPolicy, Restarts
from emceepee_stdio.wire.codec import INVALID_PARAMS, METHOD_NOT_FOUND, RESOURCE_NOT_FOUND, to_json
from emceepee_stdio.wire.peer import OutgoingRequest

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
    on_listed: Callable[[Seen], None] | None = None
    request: float = 60.0
    rounds: int = 10
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    list_room: Callable[[], int] | None = None
    on_tools: Callable[[tuple[Item, ...]], None] | None = None


# The requests of the protocol by their names, in the same words for both eras.


class FeatureRequests(Sender):
    """What can be asked of a server, by whoever can ask it anything."""

    name: str

    @abstractmethod
    async def ask(
        self, method: str, params: Params, *, within: float, call: object = None
    ) -> Raw: ...

    async def call_tool(
        self, tool: str, arguments: Raw | Params, *, within: float, call: object = None
    ) -> Raw:
        params = {"name": tool, "arguments": arguments}
        return await self.ask("tools/call", params, within=within, call=call)

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


def _is_missing_resource(error: RemoteError) -> bool:
    if error.error.code == RESOURCE_NOT_FOUND:
        return True
    return error.error.code == INVALID_PARAMS and "uri" in small_object(error.error.data)


# What is done anew on each new connection: subscriptions, the log level, the lists.
#
# What cannot be restored is worth a line in the log; the rest is restored all the same.


@dataclass(frozen=True, slots=True, kw_only=True)
class Restoration:
    """Of one connection. `known` are the lists of before, `kinds` those that are to be fetched."""

    connection: Connection
    subscriptions: Subscriptions
    log_level: str | None
    known: Mapping[Kind, tuple[Item, ...]]
    kinds: tuple[Kind, ...]
    fetch: Callable[[Connection, Kind, float], Awaitable[tuple[Item, ...]]]
    within: float
    emit: Emit

    async def run(self) -> None:
        connection = self.connection
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(self.subscriptions.restore, connection, within=self.within)
        ]
        if self.log_level is not None and not connection.is_modern:
            level = {"level": self.log_level}
            steps.append(partial(connection.ask, "logging/setLevel", level, self.within))
        steps.append(self._compare)
        for step in steps:
            try:
                await step()
            except ServerDisconnected:
                return
            except ProxyError as error:
                connection.note(f"not everything could be restored after connecting: {error.fact}")

    async def _compare(self) -> None:
        """Fetch anew what was known before, and say what is no longer the same."""
        changed: list[str] = []
        try:
            for kind in self.kinds:
                now = await self.fetch(self.connection, kind, self.within)
                name, before = KINDS[kind].capability, self.known.get(kind)
                if before is not None and differ(before, now) and name not in changed:
                    changed.append(name)
        finally:
            if changed:
                self.emit(ListsDiffer(changed))


# One server and the roots: it is told them when it asks, and of a change when it has asked.


_CHANGED = "notifications/roots/list_changed"

# Tells the roots to whom it is given, now or later.
RootSource = Callable[[Callable[[Sequence[Mapping[str, str]]], None]], None]


class RootListing:
    """Answers one server. `current` is its living connection."""

    def __init__(self, source: RootSource, *, current: Callable[[], Connection | None]) -> None:
        self._source = source
        self._current = current
        self._asked_on: Connection | None = None

    def __repr__(self) -> str:
        return f"<RootListing {'asked' if self._asked_on else 'not asked'}>"

    def answer(self, question: Question) -> None:
        self._asked_on = self._current()
        self._source(lambda roots: _respond(question, roots))

    def changed(self) -> None:
        """Others count now. The modern era has no message for it: there every call asks anew."""
        connection = self._current()
        if connection is not None and connection is self._asked_on and not connection.is_modern:
            connection.notify(_CHANGED)


def _respond(question: Question, roots: Sequence[Mapping[str, str]]) -> None:
    question.respond(to_json({"roots": list(roots)}))


# Why a call of a tool is not sent: the rules of its server.
#
# Looked at where every request of a server passes, at the moment in which it is sent: no road leads
# around it, and a rule that became stricter meanwhile holds.


_SHOWN_NAME_CHARS = 100  # names are shorter
# A server chooses the name, and a person may paste it into a shell, where it is also a pattern.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]*", re.ASCII)


class Ruled(Protocol):
    """A server and the rules of its tools."""

    name: str
    lists: Lists
    rules: ToolRules | None


def tool_refusal(server: Ruled, request: OutgoingRequest) -> ProxyError | None:
    """Why this request must not be sent; None for all that are no calls of tools."""
    if request.method != "tools/call":
        return None
    params = request.params or {}
    tool = params.get("name")
    refused = name_refusal(server, tool)
    # What a person agrees to is kept with the client's call: those very arguments.
    permit = getattr(request.call, "permit", None)
    permitted = permit is not None and permit is params.get("arguments")
    if refused is None and not permitted and _rule(server, tool) == "ask":
        return NeedsApproval(
            f"By a rule of the configuration a person is asked before {_shown(tool)} of "
            f"{server.name} runs, and was not.",
            hint="Call it again with execute_tool: then they are asked.",
        )
    return refused


def name_refusal(server: Ruled, tool: object) -> ProxyError | None:
    """Why a tool does not run, whatever its arguments are and whoever agrees."""
    if server.rules is None:
        return None
    if _rule(server, tool) == "off":
        entry = server.rules.entry(tool) or server.name
        command = f"emceepee config rules {shlex.quote(entry)}"
        return PolicyDenied(
            f"{_shown(tool)} of {server.name} is off by a rule of the configuration.",
            hint=f"Do without it. A person can change it with `{command}`.",
            command=f"{command} {tool} allow" if _PLAIN_NAME.fullmatch(str(tool)) else command,
        )
    if not isinstance(tool, str) or not server.lists.lists_tool(tool):
        return ToolNotFound(
            f"{server.name} does not list a tool {_shown(tool)}.",
            hint="It has rules for its tools: only what list_tools shows runs, by its exact name.",
        )
    return None


def _rule(server: Ruled, tool: object) -> str:
    return "allow" if server.rules is None else server.rules.rule(tool)


def _shown(tool: object) -> str:
    return repr(str(tool)[:_SHOWN_NAME_CHARS])


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
