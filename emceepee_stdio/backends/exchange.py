"""One request of the session until its result is complete: retries, and questions inside results.

Most results are complete when they come, and then nothing here waits. A server that needs an answer
of the client first says so in its result (modern era) or in an error that names URLs (2025-11-25):
only then a task makes the round trips. All of it happens on the connection that the request went
out on, or not at all.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeGuard, TypeVar

import anyio
import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.structs import replace

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import (
    EXCERPT_BYTES,
    Cancel,
    Emit,
    Era,
    NotTaken,
    OnResult,
    Question,
    RemoteError,
    Withdrawn,
    small_object,
)
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, CallTimeout, NotSupported, ProxyError
from emceepee_stdio.foreign_json import decoded, opened
from emceepee_stdio.trace.request import Leg, current_request
from emceepee_stdio.versions import HEADER_MISMATCH
from emceepee_stdio.wire.codec import RpcError, to_json
from emceepee_stdio.wire.peer import OutgoingRequest

# What kind of result came: a complete one, one that asks first, or one that we do not know.
#
# What is not known is an error that says what came: read as a complete result it would be an empty
# success, and whatever the server did would be lost.


T = TypeVar("T")
COMPLETE = "complete"
_COMPLETE = (Raw(b'"complete"'), Raw(b"null"))
INPUT_REQUIRED = "input_required"
_TASK = "task"
_SHOWN_CHARS = 300


class _Typed(msgspec.Struct, rename="camel"):
    result_type: Raw = Raw(b"null")


class _Handle(msgspec.Struct, rename="camel"):
    task_id: Raw = Raw(b"null")
    status: Raw = Raw(b"null")


def result_type(result: Raw) -> object:
    """What a result of the modern era says that it is; without a word it is complete."""
    said = opened(result, _Typed)  # None: no object, or beyond what can be read; others judge it
    return (
        COMPLETE
        if said is None or said.result_type in _COMPLETE
        else decoded(said.result_type, object)
    )


def type_refused(server: str, said: object, result: Raw) -> ProxyError:
    """The error for a result of a type that we cannot take."""
    if said == _TASK:
        return task_refused(server, result)
    shown = bytes(memoryview(result)[:_SHOWN_CHARS]).decode(errors="replace")
    named = to_json(said)[:_SHOWN_CHARS].decode(errors="replace")
    return CallFailed(
        f"{server} answered with the unknown result type {named}: {shown}",
        hint="The server may have carried it out: check before you call again.",
    )


def task_refused(server: str, handle: Raw) -> NotSupported:
    """The error for a task of the protocol that came in place of a result."""
    task = opened(handle, _Handle) or _Handle()
    named = to_json({"id": task.task_id, "status": task.status})[:_SHOWN_CHARS]
    return NotSupported(
        f"{server} answered with a task of its own in place of a result, which emceepee cannot "
        f"follow: {named.decode(errors='replace')}",
        hint="The server may go on with it: check before you call again.",
    )


# Questions inside an answer: the modern era's rounds, and the URLs that 2025-11-25 may require.
#
# A server that needs something answers the call with its questions; the call is made again with the
# answers. Here those questions become the same as the ones that a handshake server pushes, tied to
# the call that raised them, until the call has its real result.
#
# One round: every question is emitted, with a `deliver` that puts its answer aside; the round is
# over when all are answered, one is refused, the call's time is up, or the connection is gone. What
# is still open then is withdrawn, but for a lost connection, which has taken its questions along.


_URL_REQUIRED = -32042
_VISITS = 3  # a server that still wants a visit after so many is not going to be content
_VISIT_S = 60.0  # for a server that does not say when the person is done at its URL
# A server that only wants to be called again is given a moment, longer each time.
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 1.0
_NULL = Raw(b"null")
_KNOWN = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


class _InputRequest(msgspec.Struct):
    method: str
    params: Raw | UnsetType = UNSET


class _InputRequired(msgspec.Struct, rename="camel"):
    input_requests: dict[str, _InputRequest] | None = None
    request_state: Raw | UnsetType = UNSET


class _Urls(msgspec.Struct):
    elicitations: list[Raw]


_read_input_required = msgspec.json.Decoder(_InputRequired).decode


class _Round:
    """The questions of one answer, and what was said to them so far."""

    def __init__(self, requests: Mapping[str, _InputRequest], connection: Connection) -> None:
        self._requests = requests
        self._connection = connection
        self._is_open = True
        self.outcomes: dict[str, bytes | RpcError] = {}

    def questions(self, call: object) -> list[Question]:
        return [
            Question(
                method=request.method,
                params=request.params if _is_there(request.params) else None,
                key=(self, key),
                deliver=partial(self._take, key),
                call=call,
            )
            for key, request in self._requests.items()
        ]

    def _take(self, key: str, outcome: bytes | RpcError) -> bool:
        if self._is_open:
            self.outcomes[key] = outcome
            self._connection.wakeup.wake()
        return self._is_open

    @property
    def refusal(self) -> tuple[str, RpcError] | None:
        """The first question that got no answer, and why."""
        for key, outcome in self.outcomes.items():
            if isinstance(outcome, RpcError):
                return self._requests[key].method, outcome
        return None

    @property
    def is_decided(self) -> bool:
        answered = len(self.outcomes) == len(self._requests)
        return answered or self.refusal is not None or self._connection.loss is not None

    def close(self) -> list[object]:
        """No answer counts from now on; the keys of those that are missing."""
        self._is_open = False
        return [(self, key) for key in self._requests if key not in self.outcomes]

    def answers(self) -> dict[str, bytes]:
        return {k: said for k, said in self.outcomes.items() if not isinstance(said, RpcError)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What all exchanges with one server share.

    `max_rounds` bounds how often it may ask; `list_tools` learns anew how its tools are called;
    `refusal` says why a request must not be sent.
    """

    server: str
    supervisor: Supervisor
    emit: Emit
    clock: Clock
    max_rounds: int
    list_tools: Callable[[], Awaitable[None]]
    refusal: Callable[[OutgoingRequest], ProxyError | None]

    async def connected(
        self, work: Callable[[Connection, float], Awaitable[T]], *, within: float
    ) -> T:
        """Work on a living connection; once more if the server has not seen what was asked."""
        supervisor, deadline = self.supervisor, self.clock.now() + within

        async def attempt(left: float) -> T:
            connection = supervisor.current or await supervisor.connection(within=left)
            return await work(connection, deadline - self.clock.now())

        try:
            return await attempt(within)
        except NotTaken:
            return await attempt(deadline - self.clock.now())


class MultiRoundTrip(Struct, eq=False, dict=True):
    """Makes a call again until its result is complete."""

    context: ExchangeContext
    connection: Connection
    request: OutgoingRequest

    def __post_init__(self) -> None:
        self._server = self.context.server
        self._emit = self.context.emit
        self._clock = self.context.clock
        self._limit = self.context.max_rounds

    async def run(self, result: Raw) -> Raw:
        """The modern way: each answer that asks is followed by the call with our answers."""
        asked = 0
        pause = _FIRST_PAUSE_S
        while interim := self._interim(result):
            if interim.input_requests:
                asked += 1
                self._check_limit(asked, self._limit)
            else:
                await self._pause(pause)
                pause = min(pause * 2, _MAX_PAUSE_S)
            params = {**(self.request.params or {}), **await self._answers(interim)}
            result = await self.connection.request(replace(self.request, params=params))
        return result

    async def consent(self, refusal: RemoteError) -> Raw:
        """The way of 2025-11-25: the call is made again once the person has been at its URLs."""
        asked = 0
        while urls := required_urls(refusal):
            asked += 1
            self._check_limit(asked, min(self._limit, _VISITS))
            requests = {
                str(n): _InputRequest("elicitation/create", url) for n, url in enumerate(urls)
            }
            outcomes = await self._put(requests)
            if any(_action(outcome) != "accept" for outcome in outcomes.values()):
                break
            await self._visits(urls)
            try:
                return await self.connection.request(self.request)
            except RemoteError as error:
                refusal = error
        raise refusal

    async def _visits(self, urls: Sequence[Raw]) -> None:
        """Until the server says that the person is done at every URL, or long enough."""
        connection = self.connection
        awaited = {small_object(url).get("elicitationId") for url in urls}
        left = self.request.deadline - self._clock.now()
        with anyio.move_on_after(min(_VISIT_S, left)):
            await connection.wakeup.wait_for(
                lambda: connection.loss is not None or awaited.issubset(connection.visited)
            )
        for visited in awaited.intersection(connection.visited):
            connection.visited.remove(visited)  # a URL that is required again is a visit of its own

    async def _pause(self, pause: float) -> None:
        """Wait, if there is so much time left."""
        left = self.request.deadline - self._clock.now()
        await anyio.sleep(max(min(pause, left), 0.0))
        if left <= pause:
            raise CallTimeout(f"{self._server} came to no result until the call's time was up.")

    def _check_limit(self, asked: int, limit: int) -> None:
        if asked > limit:
            raise CallFailed(
                f"{self._server} asked {asked} times in a row without coming to a result."
            )

    def _interim(self, result: Raw) -> _InputRequired | None:
        """The questions in a result, or None when it is a result."""
        if (said := result_type(result)) == COMPLETE:
            return None
        if said != INPUT_REQUIRED:
            raise type_refused(self._server, said, result)
        try:
            interim = _read_input_required(result)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise CallFailed(
                f"{self._server} asks for input in a way that cannot be read: {error}"
            ) from None
        if not interim.input_requests and not _is_there(interim.request_state):
            raise CallFailed(f"{self._server} asks for input, but not for what.")
        for request in (interim.input_requests or {}).values():
            if request.method not in _KNOWN:
                raise CallFailed(f"{self._server} asks the unknown question {request.method}.")
        return interim

    async def _answers(self, interim: _InputRequired) -> dict[str, object]:
        """What the repeated call carries: this round's answers, and the newest state."""
        extra: dict[str, object] = {}
        if interim.input_requests:
            outcomes = await self._put(interim.input_requests)
            extra["inputResponses"] = {key: Raw(value) for key, value in outcomes.items()}
        if _is_there(interim.request_state):
            extra["requestState"] = interim.request_state
        return extra

    async def _put(self, requests: Mapping[str, _InputRequest]) -> dict[str, bytes]:
        """Show all questions, wait for all answers; a refusal ends the call."""
        if self.connection.loss is not None:
            raise self.connection.lost_error()
        asked = _Round(requests, self.connection)
        try:
            for question in asked.questions(self.request.call):
                self._emit(question)
            with anyio.move_on_after(self.request.deadline - self._clock.now()):
                await self.connection.wakeup.wait_for(lambda: asked.is_decided)
        finally:
            missing = asked.close()
            if self.connection.loss is None:
                for key in missing:
                    self._emit(Withdrawn(key))
        if self.connection.loss is not None:
            raise self.connection.lost_error()
        if asked.refusal is not None:
            method, error = asked.refusal
            raise CallFailed(
                f"{self._server} asked {method}, and got no answer: {error.message}",
                hint="Call again and answer its question in time.",
            )
        if missing:
            raise CallTimeout(f"{self._server} waited for an answer until the call's time was up.")
        return asked.answers()


def required_urls(error: RemoteError) -> list[Raw] | None:
    """The elicitations that a call needs first, in the way of 2025-11-25."""
    if error.error.code != _URL_REQUIRED or error.error.data is None:
        return None
    found = decoded(error.error.data, _Urls)
    if found is None or not all("url" in small_object(url) for url in found.elicitations):
        return None
    return found.elicitations


def _is_there(raw: Raw | UnsetType) -> TypeGuard[Raw]:
    """Some servers say null where they mean nothing."""
    return raw is not UNSET and raw != _NULL


def _action(outcome: bytes) -> object:
    return small_object(Raw(outcome)).get("action")


_BRACE = ord("{")
_SERVER = Leg.SERVER  # looked up once: members of an enum are slow to find
# What the SDK says of a tool whose questions belong to the other era: worth a hint, no more.
_SAID_IN_MODERN = "back-channel"
_SAID_IN_LEGACY = "returned an invalid result"


Recheck = Callable[[], Awaitable[None]]


class Exchange:
    """Sends when made, and once more if the server has not seen the request.

    `cancel` gives it up, whatever it is doing. `recheck` is awaited before the second time: the
    server that the request meets then may be another one.
    """

    __slots__ = ("_cancel", "_context", "_is_second", "_on_done", "_recheck", "_request", "_trace")

    def __init__(
        self,
        context: ExchangeContext,
        request: OutgoingRequest,
        on_done: OnResult,
        recheck: Recheck | None,
    ) -> None:
        self._context = context
        self._request = request
        self._on_done = on_done
        self._recheck = recheck
        self._is_second = False
        self._trace = current_request.get()
        if self._trace is not None:
            if self._trace.server != context.server:
                self._trace.at(context.server)
            self._trace.enter(_SERVER)
        self._send()

    def _send(self) -> None:
        supervisor = self._context.supervisor
        self._cancel: Cancel | None = None
        cancel = (supervisor.current or supervisor).send(self._request, self._answered)
        if self._cancel is None:  # else it was answered at once
            self._cancel = cancel

    def cancel(self) -> None:
        if self._trace is not None:
            self._trace.leave(_SERVER)
            self._trace = None
        if self._cancel is not None:
            self._cancel()

    def _answered(self, outcome: Raw | ProxyError) -> None:
        connection = self._context.supervisor.current
        if (
            isinstance(outcome, Raw)
            and (connection is None or connection.era is Era.LEGACY)
            and memoryview(outcome)[0] == _BRACE
        ):
            self._end(outcome)
        elif isinstance(outcome, NotTaken) and not self._is_second:
            self._is_second = True
            if self._recheck is None:
                self._send()
            else:
                self._cancel = self._context.supervisor.in_task(self._recheck, self._send_again)
        elif connection is None or not _needs_input(connection, outcome):
            self._end(self._judged(outcome, connection))
        else:
            work = partial(self._complete, connection, outcome)
            self._cancel = self._context.supervisor.in_task(work, self._end)

    def _send_again(self, problem: ProxyError | None) -> None:
        if refused := problem or self._context.refusal(self._request):
            self._end(refused)
        else:
            self._send()

    def _end(self, outcome: Raw | ProxyError) -> None:
        if self._trace is not None:
            self._trace.leave(_SERVER)
            self._trace = None
        self._on_done(outcome)

    async def _complete(self, connection: Connection, outcome: Raw | ProxyError) -> Raw:
        """Ask the client what the server needs to know, until there is a result."""
        round_trips = MultiRoundTrip(self._context, connection, self._request)
        try:
            if isinstance(outcome, RemoteError) and connection.is_modern:
                result = await round_trips.run(await self._with_headers(connection, outcome))
            elif isinstance(outcome, RemoteError):
                result = await round_trips.consent(outcome)
            else:
                result = await round_trips.run(outcome if isinstance(outcome, Raw) else Raw())
        except ProxyError as error:
            raise self._advised(error, connection) from None
        judged = self._judged(result, connection)
        if isinstance(judged, ProxyError):
            raise judged
        return judged

    async def _with_headers(self, connection: Connection, refusal: RemoteError) -> Raw:
        """The call was refused unread for a header that only the list of tools tells of."""
        try:
            await self._context.list_tools()
        except ProxyError:
            raise refusal from None
        return await connection.request(self._request)

    def _judged(self, outcome: Raw | ProxyError, connection: Connection | None) -> Raw | ProxyError:
        if isinstance(outcome, ProxyError):
            return self._advised(outcome, connection)
        if memoryview(outcome)[0] == _BRACE:
            return outcome
        shown = bytes(memoryview(outcome)[:EXCERPT_BYTES]).decode(errors="replace")
        return CallFailed(
            f"{self._context.server} answered {self._request.method} with something that is no "
            f"object: {shown}"
        )

    def _advised(self, error: ProxyError, connection: Connection | None) -> ProxyError:
        """A tool that asks in the way of the other era fails; the switch is worth naming."""
        if connection is not None and isinstance(error, RemoteError):
            said = _SAID_IN_MODERN if connection.is_modern else _SAID_IN_LEGACY
            if said in error.error.message:
                other = "legacy" if connection.is_modern else "modern"
                error.next_step = (
                    f"If this tool asks its questions in the way of the {other} era, call "
                    f"reconnect_server for {self._context.server} with era {other}, then call "
                    "again."
                )
        return error


def _needs_input(connection: Connection, outcome: Raw | ProxyError) -> bool:
    if isinstance(outcome, Raw):
        return connection.is_modern and result_type(outcome) != COMPLETE
    if not isinstance(outcome, RemoteError):
        return False
    if connection.is_modern:
        return outcome.error.code == HEADER_MISMATCH
    return bool(required_urls(outcome))
