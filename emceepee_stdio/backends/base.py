"""Shared interfaces of backends: `Sender`, eras, hello, loss and the errors of a server.

Whoever can be sent a request is a `Sender`: a connection, the supervisor that makes one first, and
the backend that sees a request through to its result.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

import anyio
from msgspec import Raw

from emceepee_stdio.auth.orders import SignInNeeded
from emceepee_stdio.errors import CallFailed, ProxyError, ServerDisconnected
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.wire.codec import RpcError
from emceepee_stdio.wire.peer import OutgoingRequest

EXCERPT_BYTES = 200  # shows what came instead of an object, in one line of an error

Params = Mapping[str, object]
OnResult = Callable[[Raw | ProxyError], None]
Cancel = Callable[[], object]


_DATA_BYTES = 1_000  # of an error's data: enough for what is missing, too little to drown in


class Era(StrEnum):
    """The two ways to speak MCP: with a handshake, or with every request on its own."""

    LEGACY = "legacy"
    MODERN = "modern"


class RemoteError(CallFailed):
    """The server answered with a JSON-RPC error."""

    def __init__(self, server: str, error: RpcError) -> None:
        data = b"" if error.data is None else bytes(error.data)
        shown = f" Its data: {data[:_DATA_BYTES].decode(errors='replace')}" if data else ""
        super().__init__(f"{server} answered with error {error.code}: {error.message}{shown}")
        self.error = error


class NotTaken(ServerDisconnected):
    """The connection was lost before the server saw the request: it may be sent once more."""


class CarriesMeta(Protocol):
    """The client's call that a request is made for; `meta` is what it says to the server."""

    @property
    def meta(self) -> Mapping[str, Raw]: ...


def with_meta(params: Params, call: CarriesMeta | None) -> Params:
    return params if call is None or not call.meta else {**params, "_meta": call.meta}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """What a server said of itself when the connection was opened."""

    era: Era
    protocol_version: str
    server_info: Params = field(default_factory=dict[str, object])
    capabilities: Params = field(default_factory=dict[str, object])
    instructions: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Why a connection ended: the fact, and the last lines of stderr.

    `restarted` where it is known that the server itself is gone, and will begin anew; `sign_in`
    where a person has to sign in before there is another.
    """

    fact: str
    tail: Sequence[str] = ()
    exit_code: int | None = None
    restarted: bool = False
    sign_in: SignInNeeded | None = None

    def masked(self, mask: Callable[[str], str]) -> "Loss":
        """The same, with nothing in it that must not be shown."""
        return replace(self, fact=mask(self.fact), tail=tuple(map(mask, self.tail)))

    def __str__(self) -> str:
        if not self.tail:
            return self.fact
        return f"{self.fact} The last lines of its stderr:\n" + "\n".join(self.tail)


class Sender(ABC):
    """Takes requests. Each ends exactly once: with its raw result, or an error that says why not.

    `send` never waits: `on_done` is told, perhaps at once. What it returns gives the request up,
    and then nobody is told.
    """

    @abstractmethod
    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel: ...

    async def request(self, request: OutgoingRequest) -> Raw:
        """Send and wait. Cancelling the wait cancels the request at the server."""
        done = anyio.Event()
        outcomes: list[Raw | ProxyError] = []

        def on_done(outcome: Raw | ProxyError) -> None:
            outcomes.append(outcome)
            done.set()

        cancel = self.send(request, on_done)
        try:
            await done.wait()
        except anyio.get_cancelled_exc_class():
            cancel()
            raise
        (outcome,) = outcomes
        if isinstance(outcome, ProxyError):
            raise outcome
        return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIds:
    """Our name for a connection, beside the name that the server gave it."""

    proxy_id: str
    upstream_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How a backend is doing, for people and models to read.

    With `remembered_at`, the hello and the counts are what was known then.
    """

    name: str
    phase: Phase
    transport: str
    target: str
    pid: int | None
    up_since: float | None
    hello: Hello | None
    starts: int
    attempt: int
    attempts: int | None
    next_retry_at: float | None
    last_error: str | None
    error: ProxyError | None = None
    session: SessionIds | None = None
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    degraded: bool = False
    remembered_at: str | None = None
