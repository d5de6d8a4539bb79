"""One connection to a server over any channel: its requests, and its loss, which fails them all.

What is sent goes out by `_transmit`, which each channel has in its own way; what comes back is
matched by the peer. Nothing that belongs to a connection outlives it.

A loss is known in one place and one moment. `lose` writes down why, lets the supervisor decide what
follows (`own`), and only then ends what is in flight: whoever is told of the loss, and whoever
is woken by it, finds the state already changed.
"""

import math
from abc import abstractmethod
from collections import deque
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
from msgspec import Raw

from emceepee_stdio.backends.eras import stamp
from emceepee_stdio.backends.interface import (
    Cancel,
    Emit,
    Era,
    Hello,
    LogLine,
    LogSource,
    Loss,
    NotTaken,
    OnResult,
    Params,
    Question,
    RemoteError,
    Sender,
    ServerNotification,
    SessionIds,
    Withdrawn,
    small_object,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallTimeout, ProxyError, ResultTooLarge, ServerDisconnected
from emceepee_stdio.json_values import mapping
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    encode_request,
    to_json,
)
from emceepee_stdio.wire.framing import PartialMessages
from emceepee_stdio.wire.peer import (
    Closed,
    Outcome,
    OutgoingRequest,
    Overdue,
    Peer,
    TooLarge,
    method_not_found,
)
from emceepee_stdio.wire.timing import Ticker, Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    OnLost = Callable[["Connection", Loss], str]


_QUESTIONS = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})
_OWN_REQUESTS = frozenset({"ping", "server/discover", "subscriptions/listen"})
_VISITED = "notifications/elicitation/complete"
_REMEMBERED_VISITS = 100  # a server tells of those that it asked for; more are not waited for
_ID_CHARS = 1_000  # of a request or an elicitation; longer ones would only fill our memory
_NOT_CANCELLABLE = frozenset({"initialize", "server/discover"})


def _nothing_to_cancel() -> None:
    return None


class Connection(Sender):
    """The base of what each channel yields. `services` run for as long as it lives.

    `log_level` is what a modern server is asked to log with each request.
    """

    hello: Hello
    pid: int | None = None

    def __init__(
        self,
        name: str,
        *,
        emit: Emit,
        clock: Clock,
        proxy_id: str,
        max_line: int,
        partial: PartialMessages | None = None,
    ) -> None:
        self._name = name
        self._emit = emit
        self._clock = clock
        self._proxy_id = proxy_id
        self._peer = Peer(handler=self, write=self._write, max_line=max_line, partial=partial)
        self._ticker = Ticker(
            clock, [self._peer.next_deadline], self._peer.expire, on_bug=self._on_bug
        )
        self.era = Era.LEGACY
        self.log_level: str | None = None
        self.loss: Loss | None = None
        self.is_left = False  # it is we who ended it
        self.services: list[Callable[[], Coroutine[object, object, None]]] = []
        self.wakeup = Wakeup()
        self.visited: deque[object] = deque(maxlen=_REMEMBERED_VISITS)  # ids of URL elicitations
        self._on_lost: OnLost | None = None
        self._next_step: str | None = None
        self._ended = anyio.Event()
        self._untaken: set[RequestId] = set()  # refused unseen, whatever becomes of the others

    @property
    def session(self) -> SessionIds:
        return SessionIds(proxy_id=self._proxy_id)

    @property
    def is_modern(self) -> bool:
        return self.era is Era.MODERN

    def declares(self, capability: str, feature: str | None = None) -> bool:
        """Whether the server said that it can do this."""
        declared = self.hello.capabilities.get(capability)
        return declared is not None and (feature is None or mapping(declared).get(feature) is True)

    # Requests

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        peer = self._peer
        token = None if request.on_progress is None else peer.next_id
        params = request.params or None
        if token is not None or self.era is Era.MODERN:
            params = stamp(self.era, params, progress_token=token, log_level=self.log_level)
        line = encode_request(peer.next_id, request.method, params)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Closed) and request_id in self._untaken:
                on_done(self.lost_error(NotTaken))
            else:
                on_done(outcome if isinstance(outcome, Raw) else self._failure(outcome, request))

        request_id: RequestId | None = None
        if request.deadline <= self._clock.now():
            done(Overdue())
            return _nothing_to_cancel
        request_id = peer.expect(request, done)
        if request_id is None:
            return _nothing_to_cancel
        if request.deadline != math.inf:
            self._ticker.look(request.deadline)
        self._transmit(line, request_id, request)
        return partial(peer.cancel, request_id)

    async def request(self, request: OutgoingRequest) -> Raw:
        with on_leg(Leg.SERVER, self._name):
            return await super().request(request)

    async def ask(self, method: str, params: Params | None, within: float) -> Raw:
        """A request that is nobody's call, answered within so many seconds."""
        deadline = self._clock.now() + within
        return await self.request(
            OutgoingRequest(method=method, params=params, within=within, deadline=deadline)
        )

    async def greet(self, method: str, params: Params, within: float) -> Raw | ProxyError:
        """A request of the opening, before anybody keeps the deadlines of the connection."""
        request = OutgoingRequest(method=method, params=params, within=within)
        with anyio.move_on_after(within):
            try:
                return await self.request(request)
            except ProxyError as error:
                return error
        return self._failure(Overdue(), request)

    def notify(self, method: str) -> None:
        self._peer.notify(method)

    @abstractmethod
    def _transmit(self, line: bytes, request_id: RequestId, request: OutgoingRequest, /) -> None:
        """Send a request; the answer comes to the peer."""

    @abstractmethod
    def _write(self, data: bytes) -> None:
        """Send what has no answer: a notification, or an answer of ours."""

    def take_tools(self, tools: tuple[Params, ...]) -> tuple[Params, ...]:
        """The tools of this server as it listed them; those that this channel can call."""
        return tools

    def _failure(self, outcome: Outcome, request: OutgoingRequest) -> ProxyError:
        """The boundary: what an outcome that is no result means, in our own words."""
        if isinstance(outcome, ProxyError):
            return outcome
        if isinstance(outcome, RpcError):
            return RemoteError(self._name, outcome)
        if isinstance(outcome, Overdue):
            within = f"{round(request.within, 2):g} s"
            return CallTimeout(f"{self._name} did not answer {request.method} within {within}.")
        if isinstance(outcome, TooLarge):
            return ResultTooLarge(
                f"{self._name} answered {request.method} with {outcome.size} bytes in one message.",
                hint="Ask the tool for less, or raise limits.line_bytes in the configuration.",
            )
        return self.lost_error()

    def lost_error(self, kind: type[ServerDisconnected] = ServerDisconnected) -> ServerDisconnected:
        """The error for requests of this connection once it is gone."""
        loss = self.loss or self._left()
        return kind(loss.fact, stderr=loss.tail, hint=self._next_step, for_person="")

    def is_busy(self) -> bool:
        """Whether an answer is waited for that somebody but the backend itself wants."""
        return self._peer.waits_for_more_than(_OWN_REQUESTS)

    # Its end

    def own(self, on_lost: "OnLost") -> None:
        """It is somebody's from now on, who hears first of its loss and says what follows."""
        self._on_lost = on_lost

    async def serve(self) -> None:
        """Keep the deadlines, and run the services, until the connection is lost."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ticker.run)
            for service in self.services:
                tasks.start_soon(service)
            await self._ended.wait()
            tasks.cancel_scope.cancel()

    def close(self, why: Loss | None = None) -> None:
        """We are going: what is in flight ends now, not when the server does."""
        if self.loss is None:
            self.is_left = True
            self.lose(why or self._left())

    def _left(self) -> Loss:
        return Loss(fact=f"The connection to {self._name} was closed.")

    def lose(self, loss: Loss) -> None:
        """It is over, and this is why; only the first time counts."""
        if self.loss is None:
            self.loss = loss
            self._next_step = self._on_lost and self._on_lost(self, loss)
            self._ended.set()
            self.wakeup.wake()
            self._peer.close(loss.fact)

    # What we hear

    def on_request(self, request: Request, origin: RequestId | None) -> None:
        if isinstance(request.id, str) and len(request.id) > _ID_CHARS:
            self.on_noise(f"a request with an id of {len(request.id)} characters: not answered")
        elif request.method == "ping":
            self._peer.answer(request.id, b"{}")
        elif request.method in _QUESTIONS and self.era is Era.LEGACY:
            self._emit(
                Question(
                    method=request.method,
                    params=request.params,
                    key=(self._proxy_id, request.id),
                    deliver=partial(self._peer.answer, request.id),
                    call=self._peer.call_of(origin),
                )
            )
        else:
            self._peer.answer(request.id, method_not_found(request.method))

    def on_failed(self, request: Request, error: Exception) -> None:
        self._peer.answer(request.id, RpcError(INTERNAL_ERROR, "This could not be handled."))
        self.on_noise(f"a request that cannot be handled: {type(error).__name__}")

    def on_notification(self, notification: Notification) -> None:
        if notification.method == _VISITED:
            self._take_visit(notification.params)
        self._emit(ServerNotification(notification.method, notification.params))

    def _take_visit(self, params: Raw | None) -> None:
        """A person has done at a URL what the server wanted there."""
        visited = small_object(params).get("elicitationId")
        if isinstance(visited, str) and len(visited) <= _ID_CHARS:
            self.visited.append(visited)
            self.wakeup.wake()

    def on_cancelled(self, request_id: RequestId) -> None:
        self._emit(Withdrawn((self._proxy_id, request_id)))

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        if self.loss is None and method not in _NOT_CANCELLABLE:
            params = to_json({"requestId": request_id, "reason": reason})
            self._peer.notify("notifications/cancelled", params)

    def on_malformed(self, message: Malformed) -> None:
        if message.id is not None and len(str(message.id)) <= _ID_CHARS:
            self._peer.complain(message)
        self.on_noise(f"not a valid message: {message.reason}")

    def on_stray(self, request_id: str) -> None:
        self.on_noise(f"an answer that nobody waits for: id {request_id}")

    def on_noise(self, text: str) -> None:
        self._emit(LogLine(source=LogSource.STDOUT, text=text))

    def note(self, text: str) -> None:
        """Something that is worth a line in the log of this server."""
        self._emit(LogLine(source=LogSource.PROTOCOL, text=text, level="warning"))

    def _on_bug(self, error: Exception) -> None:
        self.note(f"an unexpected error while ending overdue requests: {error!r}")


class Channel(Protocol):
    """The way to one server. Entered and left by the backend's owner task only."""

    @property
    def transport(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def needs_tools(self) -> bool:
        """Whether tools have to be listed before one of them is called."""
        ...

    def connect(self) -> AbstractAsyncContextManager[Connection]: ...
