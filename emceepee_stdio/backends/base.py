"""What the layers around backends promise each other.

A `Channel` opens connections to one server. A `Connection` is one of them, until it is lost. A
`Backend` is what the session may ask. A `Sink` is what a backend tells, implemented by the session.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from msgspec import Raw

from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.wire.codec import RpcError
from emceepee_stdio.wire.peer import Outcome

__all__ = [
    "Backend",
    "Channel",
    "Connection",
    "Era",
    "Exchange",
    "Hello",
    "LogLine",
    "LogSource",
    "Loss",
    "PhaseChange",
    "Question",
    "RemoteError",
    "SessionIds",
    "Settled",
    "Sink",
    "Snapshot",
    "Underway",
]

Params = Mapping[str, object]
OnProgress = Callable[[Raw], None]


class Era(StrEnum):
    """The two ways to speak MCP: with a handshake, or with every request on its own."""

    LEGACY = "legacy"
    MODERN = "modern"


class LogSource(StrEnum):
    """Where a log line came from."""

    PROTOCOL = "protocol"
    STDERR = "stderr"
    STDOUT = "stdout"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line of a server's log; `level` and `logger` only where the protocol tells them."""

    source: LogSource
    text: str
    level: str | None = None
    logger: str | None = None


class RemoteError(CallFailed):
    """The server answered with a JSON-RPC error."""

    def __init__(self, server: str, error: RpcError) -> None:
        super().__init__(f"{server} answered with error {error.code}: {error.message}")
        self.error = error


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
    """Why a connection ended: the fact, and the last words on stderr."""

    fact: str
    tail: Sequence[str] = ()
    exit_code: int | None = None

    def masked(self, mask: Callable[[str], str]) -> "Loss":
        """The same, with nothing in it that must not be shown."""
        return replace(self, fact=mask(self.fact), tail=tuple(map(mask, self.tail)))

    def __str__(self) -> str:
        if not self.tail:
            return self.fact
        return f"{self.fact} Its last words on stderr:\n" + "\n".join(self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """A backend went from one phase to another."""

    previous: Phase | None
    phase: Phase
    hello: Hello | None = None
    loss: Loss | None = None
    error: ProxyError | None = None
    attempt: int = 0
    attempts: int | None = None
    retry_in: float | None = None
    was_connected_before: bool = False

    def masked(self, mask: Callable[[str], str]) -> "PhaseChange":
        """The same, with nothing in it that must not be shown."""
        return replace(
            self,
            loss=self.loss and self.loss.masked(mask),
            error=self.error and self.error.masked(mask),
        )


class Question(Protocol):
    """A server asks the client; whoever answers first, answers. `call` raised it, if known."""

    @property
    def call(self) -> object: ...
    @property
    def method(self) -> str: ...
    @property
    def params(self) -> Raw | None: ...
    def answer(self, result: bytes) -> bool: ...
    def refuse(self, error: RpcError) -> bool: ...


class Sink(Protocol):
    """What a backend tells the session. Called in the order of things; must not block or raise."""

    def phase_changed(self, server: str, change: PhaseChange) -> None: ...
    def attempt_failed(self, server: str, error: ProxyError) -> None: ...
    def process_started(self, server: str, pid: int) -> None: ...
    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None: ...
    def notification(self, server: str, method: str, params: Raw | None) -> None: ...
    def log(self, server: str, line: LogLine) -> None: ...
    def asked(self, server: str, question: Question) -> None: ...
    def withdrawn(self, server: str, question: Question) -> None: ...
    def lists_differ(self, server: str, kinds: Sequence[str]) -> None: ...
    def health_changed(self, server: str, *, degraded: bool, misses: int) -> None: ...


class Exchange(Protocol):
    """Requests and notifications to a server."""

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw: ...

    def notify(self, method: str, params: Params | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionIds:
    """Our name for a connection, beside the name that the server gave it."""

    proxy_id: str
    upstream_id: str | None = None


class Underway(Protocol):
    """A request that was begun without waiting for it. `cancel` gives it up, and tells nobody."""

    def cancel(self) -> None: ...


class Settled(NamedTuple):
    """What came of a request that was begun, and the connection that it was begun on."""

    connection: "Connection"
    outcome: Outcome


class Connection(Exchange, Protocol):
    """One living connection. `lost()` returns when it is over, and says why.

    `begin` is a request without a task to wait in: its outcome is told to `on_done`. None where the
    channel needs a task for it.
    """

    def begin(
        self,
        method: str,
        params: Params,
        *,
        within: float,
        on_done: Callable[[Outcome], None],
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Underway | None: ...
    def failure(self, outcome: Outcome, method: str, within: float) -> ProxyError: ...

    @property
    def hello(self) -> Hello: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def session(self) -> SessionIds: ...
    async def lost(self) -> Loss: ...


class Channel(Protocol):
    """The way to one server. Entered and left by the backend's owner task only."""

    @property
    def transport(self) -> str: ...
    @property
    def target(self) -> str: ...
    def connect(self) -> AbstractAsyncContextManager[Connection]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """How a backend is doing, for people and models to read."""

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


class Backend(Protocol):
    """What the session may ask of a server, in any phase: it connects first if it has to."""

    @property
    def name(self) -> str: ...
    def snapshot(self) -> Snapshot: ...
    async def call_tool(
        self,
        tool: str,
        arguments: Raw | Params,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
    ) -> Raw: ...
    async def list_all(self, kind: str, *, within: float) -> Sequence[Params]: ...
    async def read_resource(self, uri: str, *, within: float, call: object = None) -> Raw: ...
    async def get_prompt(
        self, prompt: str, arguments: Params, *, within: float, call: object = None
    ) -> Raw: ...
    async def complete(
        self, ref: Params, argument: Params, context: Params | None, *, within: float
    ) -> Raw: ...
    async def subscribe(self, uri: str, *, within: float) -> None: ...
    async def unsubscribe(self, uri: str, *, within: float) -> None: ...
    async def set_log_level(self, level: str, *, within: float) -> None: ...
    async def reconnect(self, *, within: float) -> None: ...
    async def stop(self) -> None: ...
