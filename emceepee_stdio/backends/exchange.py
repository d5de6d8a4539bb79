"""One request of the session on its way: sent, answered, and where need be sent again.

Most results are complete when they come, and then nothing here waits. A server that needs an answer
of the client first says so in its result (modern era) or in an error that names URLs (2025-11-25):
only then a task makes the round trips. All of it happens on the connection that the request went
out on, or not at all.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from msgspec import Raw

from emceepee_stdio.backends.backend_events import Emit
from emceepee_stdio.backends.base import EXCERPT_BYTES, Cancel, Era, OnResult, RemoteError
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.input_required import MultiRoundTrip, required_urls
from emceepee_stdio.backends.result_types import COMPLETE, result_type
from emceepee_stdio.backends.supervisor import Supervisor
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.trace.open_request import Leg, current_request
from emceepee_stdio.versions import HEADER_MISMATCH
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["Exchange", "ExchangeContext"]

_BRACE = ord("{")
_SERVER = Leg.SERVER  # looked up once: members of an enum are slow to find
# What the SDK says of a tool whose questions belong to the other era: worth a hint, no more.
_SAID_IN_MODERN = "back-channel"
_SAID_IN_LEGACY = "returned an invalid result"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeContext:
    """What all exchanges with one server share.

    `max_rounds` bounds how often it may ask; `list_tools` learns anew how its tools are called.
    """

    server: str
    supervisor: Supervisor
    emit: Emit
    clock: Clock
    max_rounds: int
    list_tools: Callable[[], Awaitable[None]]


class Exchange:
    """Sends when made. `cancel` gives it up, whatever it is doing."""

    __slots__ = ("_cancel", "_context", "_on_done", "_request", "_trace")

    def __init__(
        self, context: ExchangeContext, request: OutgoingRequest, on_done: OnResult
    ) -> None:
        self._context = context
        self._request = request
        self._on_done = on_done
        self._cancel: Cancel | None = None
        self._trace = current_request.get()
        if self._trace is not None:
            self._trace.at(context.server)
            self._trace.enter(_SERVER)
        cancel = (context.supervisor.current or context.supervisor).send(request, self._answered)
        if self._cancel is None:
            self._cancel = cancel

    def __repr__(self) -> str:
        return f"<Exchange {self._context.server} {self._request!r}>"

    def cancel(self) -> None:
        self._leave()
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
        elif connection is None or not _needs_input(connection, outcome):
            self._end(self._judged(outcome, connection))
        else:
            work = partial(self._complete, connection, outcome)
            self._cancel = self._context.supervisor.in_task(work, self._end)

    def _end(self, outcome: Raw | ProxyError) -> None:
        self._leave()
        self._on_done(outcome)

    def _leave(self) -> None:
        """It is no longer at the server, for the record of the request that it is part of."""
        if self._trace is not None:
            self._trace.leave(_SERVER)
            self._trace = None

    async def _complete(self, connection: Connection, outcome: Raw | ProxyError) -> Raw:
        """Ask the client what the server needs to know, until there is a result."""
        context = self._context
        round_trips = MultiRoundTrip(
            context.server,
            connection,
            self._request,
            emit=context.emit,
            clock=context.clock,
            limit=context.max_rounds,
        )
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
