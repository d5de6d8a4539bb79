"""What every connection can do, whatever the channel and the era.

A link is the backend that the session sees: it stands between the supervisor, whose connections it
uses, and the session's sink, which hears of both eras in the same words. Nothing that was begun on
one connection is carried over to the next.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

import anyio
import anyio.abc
from msgspec import Raw

from emceepee_stdio.backends.asking import Asking, Errand
from emceepee_stdio.backends.base import (
    Channel,
    Connection,
    OnProgress,
    Params,
    RemoteError,
    Settled,
    Sink,
    Snapshot,
    Underway,
)
from emceepee_stdio.backends.ear import Ear, Roots
from emceepee_stdio.backends.health import Health, HealthPolicy
from emceepee_stdio.backends.listening import Ask
from emceepee_stdio.backends.lists import KINDS, Item, Kind, Lists, differ
from emceepee_stdio.backends.notices import decoded, mapping
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.backends.term import Term
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    InvalidArguments,
    NotSupported,
    PromptNotFound,
    ProxyError,
    ResourceNotFound,
    ServerDisconnected,
)
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.state.restarts import RestartPolicy, Restarts
from emceepee_stdio.wire.codec import INVALID_PARAMS, METHOD_NOT_FOUND
from emceepee_stdio.wire.peer import Outcome

__all__ = ["Link", "LinkOptions"]

_RESOURCE_NOT_FOUND = -32002
_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How this backend is treated. Times are seconds."""

    lazy: bool = False
    request: float = 60.0
    rounds: int = 10
    post_mortem: float = 0.2
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    health: HealthPolicy = field(default_factory=HealthPolicy)
    on_tools: Callable[[tuple[Item, ...]], None] | None = None


class Link:
    """A backend. Make it, start `run` in a task group, and use it from anywhere."""

    def __init__(
        self,
        name: str,
        make_channel: Callable[[Sink], Channel],
        *,
        sink: Sink,
        clock: Clock,
        uniform: Callable[[float, float], float],
        roots: Roots = tuple,
        options: LinkOptions | None = None,
    ) -> None:
        options = options or LinkOptions()
        self.name = name
        self._sink = sink
        self._clock = clock
        self._options = options
        self._lists = Lists(name, clock)
        self._ear = Ear(name, sink, lists=self._lists, roots=roots, attend=self._attend)
        self._subscriptions = self._ear.subscriptions
        self._health = Health(
            options.health,
            uniform=uniform,
            on_degraded=lambda n: sink.health_changed(name, degraded=True, misses=n),
            on_restored=lambda n: sink.health_changed(name, degraded=False, misses=n),
        )
        channel = make_channel(self._ear)
        self._pipe = channel.transport == "stdio"
        self._supervisor = Supervisor(
            name,
            channel,
            sink=self._ear,
            clock=clock,
            restarts=Restarts(options.restarts, uniform=uniform),
            lazy=options.lazy,
            verdict=options.post_mortem,
        )
        self._asking = Asking(name, self._supervisor, self._ear, clock=clock, rounds=options.rounds)
        self._seen_tools: tuple[Item, ...] | None = None
        self._tasks: anyio.abc.TaskGroup | None = None
        self._over: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<Link {self._supervisor!r}>"

    @property
    def phase(self) -> Phase | None:
        return self._supervisor.phase

    def snapshot(self) -> Snapshot:
        return replace(
            self._supervisor.snapshot(),
            counts=self._lists.counts(),
            degraded=self._health.degraded,
        )

    # Its life

    async def run(self) -> None:
        """Own the backend until it is stopped."""
        self._over = anyio.Event()
        try:
            async with anyio.create_task_group() as self._tasks:
                await self._supervisor.run()
                self._tasks.cancel_scope.cancel()
        finally:
            self._ear.leave()
            self._over.set()

    async def stop(self) -> None:
        """Returns when nothing of the backend is left, not even a task."""
        await self._supervisor.stop()
        if self._over is not None:
            with anyio.CancelScope(shield=True):
                await self._over.wait()

    async def connect(self, *, within: float) -> Connection:
        """The living connection, made first if need be."""
        return await self._supervisor.connection(within=within)

    async def ping(self, *, within: float) -> None:
        """The lightest request that there is, answered."""
        term, left = await self._asking.reach(within)
        await self._asking.asker(term)(_light_request(term), None, left)

    async def reconnect(self, *, within: float) -> None:
        self._ear.leave()
        await self._supervisor.reconnect(within=within)

    def _attend(self, term: Term) -> None:
        self._health.well()
        if self._tasks is not None:
            self._tasks.start_soon(self._serve, term)

    async def _serve(self, term: Term) -> None:
        """While the connection lives: restore what was wanted, listen, watch its health."""
        ask = self._asking.asker(term)
        with term.scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._subscriptions.listen, ask)
                tasks.start_soon(self._restore, term, ask)
                tasks.start_soon(self._health.watch, partial(ask, _light_request(term), None))

    async def _restore(self, term: Term, ask: Ask) -> None:
        within = self._options.request
        steps: list[Callable[[], Awaitable[object]]] = [
            partial(self._subscriptions.restore, ask, within=within)
        ]
        if self._asking.log_level is not None and not term.modern:
            level = {"level": self._asking.log_level}
            steps.append(partial(ask, "logging/setLevel", level, within))
        steps.append(partial(self._compare, term))
        for step in steps:
            try:
                await step()
            except ServerDisconnected:
                return
            except ProxyError as error:
                self._ear.note(f"not everything could be restored after connecting: {error.fact}")

    async def _compare(self, term: Term) -> None:
        """Fetch anew what was known before, and say what is no longer the same."""
        changed: list[str] = []
        try:
            for kind, before in term.known_before.items():
                now = await self._list(term, kind, within=self._options.request)
                name = KINDS[kind].capability
                if differ(before, now) and name not in changed:
                    changed.append(name)
        finally:
            if changed:
                self._sink.lists_differ(self.name, changed)

    # What the session asks

    async def call_tool(
        self,
        tool: str,
        arguments: Raw | Params,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
        settled: Settled | None = None,
    ) -> Raw:
        """Call it; or, with `settled`, see through what was begun and came to no plain result."""
        return await self._asking.ask(
            "tools/call",
            {"name": tool, "arguments": arguments},
            within=within,
            call=call,
            on_progress=on_progress,
            settled=settled,
        )

    @property
    def is_lean(self) -> bool:
        """Whether an answer of this server can only be a result, and needs no task to wait in."""
        return self._ear.term is not None and not self._ear.term.modern and self._pipe

    def begin_tool(
        self,
        tool: str,
        arguments: Raw | Params,
        *,
        within: float,
        on_done: Callable[[Settled], None],
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Underway | None:
        """The common case, without a task to wait in; None when this is not the common case."""
        connection, term = self._supervisor.current, self._ear.term
        if connection is None or term is None or term.modern:
            return None

        def done(outcome: Outcome) -> None:
            if self._ear.pushed:
                self._ear.call_ended(call)
            on_done(Settled(connection, outcome))

        params = {"name": tool, "arguments": arguments}
        return connection.begin(
            "tools/call", params, within=within, on_done=done, call=call, on_progress=on_progress
        )

    async def list_all(self, kind: str, *, within: float) -> tuple[Item, ...]:
        """The whole list; empty where the server has nothing of the kind."""
        wanted = Kind(kind)
        term, left = await self._asking.reach(within)
        return await self._list(term, wanted, within=left)

    def tool(self, name: str) -> Item | None:
        """A tool as it was listed last, without asking."""
        return self._lists.tool(name)

    def known(self, kind: str) -> tuple[Item, ...] | None:
        """The last list that was seen, without asking."""
        return self._lists.known(Kind(kind))

    async def read_resource(self, uri: str, *, within: float, call: object = None) -> Raw:
        try:
            return await self._asking.ask("resources/read", {"uri": uri}, within=within, call=call)
        except RemoteError as error:
            if _is_missing_resource(error):
                raise ResourceNotFound(f"{self.name} has no resource {uri!r}.") from None
            raise self._unsupported(error, "resources") from None

    async def get_prompt(
        self, prompt: str, arguments: Params, *, within: float, call: object = None
    ) -> Raw:
        deadline = self._clock.now() + within
        params = {"name": prompt, "arguments": arguments}
        try:
            return await self._asking.ask("prompts/get", params, within=within, call=call)
        except RemoteError as error:
            refused = error
        if refused.error.code == INVALID_PARAMS:
            await self._check_prompt(prompt, within=deadline - self._clock.now())
        raise self._unsupported(refused, "prompts")

    async def complete(
        self, ref: Params, argument: Params, context: Params | None, *, within: float
    ) -> Raw:
        params: dict[str, object] = {"ref": ref, "argument": argument}
        if context:
            params["context"] = {"arguments": context}
        try:
            return await self._asking.ask("completion/complete", params, within=within)
        except RemoteError as error:
            raise self._unsupported(error, "completion") from None

    async def subscribe(self, uri: str, *, within: float) -> None:
        term, left = await self._asking.reach(within)
        await self._subscriptions.add(uri, term, self._asking.asker(term), within=left)

    async def unsubscribe(self, uri: str, *, within: float) -> None:
        self._subscriptions.forget(uri)
        term, left = await self._asking.reach(within)
        await self._subscriptions.remove(uri, self._asking.asker(term), within=left)

    async def set_log_level(self, level: str, *, within: float) -> None:
        """At once on a handshake connection; on a modern one each later request asks for it."""
        if level not in _LEVELS:
            raise InvalidArguments(f"{level!r} is no log level: {', '.join(_LEVELS)}.")
        term, left = await self._asking.reach(within)
        if not term.modern:
            try:
                await self._asking.asker(term)("logging/setLevel", {"level": level}, left)
            except RemoteError as error:
                raise self._unsupported(error, "log levels") from None
        self._asking.log_level = level

    async def _list(self, term: Term, kind: Kind, *, within: float) -> tuple[Item, ...]:
        terms = KINDS[kind]
        if kind is not Kind.TOOLS and not term.declares(terms.capability):
            return self._lists.nothing(kind)
        errand = Errand(method=terms.method, within=within, deadline=self._clock.now() + within)
        items = await self._lists.get(
            kind,
            lambda params: self._asking.send(term, errand, params),
            told_of_changes=self._subscriptions.tells_changes(kind),
            within=within,
        )
        if kind is Kind.TOOLS and items is not self._seen_tools:
            self._seen_tools = items
            if self._options.on_tools is not None:
                self._options.on_tools(items)
        return items

    # What went wrong

    async def _check_prompt(self, prompt: str, *, within: float) -> None:
        """Wrong params may mean an unknown prompt: the list can tell."""
        try:
            listed = await self.list_all(Kind.PROMPTS, within=within)
        except ProxyError:
            return
        if all(item.get("name") != prompt for item in listed):
            raise PromptNotFound(f"{self.name} has no prompt {prompt!r}.")

    def _unsupported(self, error: RemoteError, what: str) -> ProxyError:
        if error.error.code == METHOD_NOT_FOUND:
            return NotSupported(f"{self.name} does not support {what}.")
        return error


def _light_request(term: Term) -> str:
    return "server/discover" if term.modern else "ping"


def _is_missing_resource(error: RemoteError) -> bool:
    if error.error.code == _RESOURCE_NOT_FOUND:
        return True
    return error.error.code == INVALID_PARAMS and "uri" in mapping(decoded(error.error.data))
