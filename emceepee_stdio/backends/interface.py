"""What backends take and report: requests with their errors, and events through one `emit`.

What can be sent a request is a `Sender`: a connection, the supervisor that makes one first, and the
backend that sees a request through to its result. A channel and its supervisor emit events in the
order of things; the backend looks at what concerns it, and the session takes the rest.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, Protocol, get_args

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.errors import CallFailed, ProxyError, ServerDisconnected, with_stderr
from emceepee_stdio.foreign_json import decoded, opened
from emceepee_stdio.json_values import mapping
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import RpcError, to_json
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
        return with_stderr(self.fact, self.tail)


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


# What a backend reports: values only.


Item = Mapping[str, object]


class Kind(StrEnum):
    """What a server can list."""

    TOOLS = "tools"
    RESOURCES = "resources"
    TEMPLATES = "resource_templates"
    PROMPTS = "prompts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a server has just listed. `first` when it is the first since the server started."""

    kind: Kind
    items: Sequence[Item]
    hello: Hello | None
    at: str
    cut: bool = False
    first: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChange:
    """A backend went from one phase to another. `url` is where it is, if it has an address."""

    previous: Phase | None
    phase: Phase
    hello: Hello | None = None
    loss: Loss | None = None
    error: ProxyError | None = None
    attempt: int = 0
    attempts: int | None = None
    retry_in: float | None = None
    was_connected_before: bool = False
    url: str | None = None

    def masked(self, mask: Callable[[str], str]) -> "PhaseChange":
        """The same, with nothing in it that must not be shown."""
        return replace(
            self,
            loss=self.loss and self.loss.masked(mask),
            error=self.error and self.error.masked(mask),
        )


@dataclass(frozen=True, slots=True)
class SignInWanted:
    """Somebody waits for a server that a person has to sign in to."""

    needed: SignInNeeded


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """One more attempt to reconnect came to nothing; the next one follows, unless that is None."""

    error: ProxyError
    attempt: int
    retry_in: float | None = None


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """A child process runs."""

    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnded:
    """A child process is gone; `expected` when it is we who stopped it."""

    loss: Loss
    expected: bool


@dataclass(frozen=True, slots=True)
class ServerNotification:
    """The server told something that is for the client."""

    method: str
    params: Raw | None


@dataclass(slots=True, eq=False, kw_only=True)
class Question:
    """The server asks the client; whoever answers first, answers.

    `key` names it among the open questions of its connection; `call` raised it, if that is known.
    `deliver` takes the answer to the server; False when nobody there waits for it.
    """

    method: str
    params: Raw | None
    key: object
    deliver: Callable[[bytes | RpcError], bool]
    call: object = None
    is_open: bool = True

    def __repr__(self) -> str:
        return f"<Question {self.method} {self.key!r} {'open' if self.is_open else 'closed'}>"

    def respond(self, outcome: bytes | RpcError) -> bool:
        """Answer or refuse it; False when that comes too late."""
        was_open, self.is_open = self.is_open, False
        return was_open and self.deliver(outcome)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The server no longer waits for the answer to the question of this key."""

    key: object


@dataclass(frozen=True, slots=True)
class ListsDiffer:
    """After a reconnect these lists are no longer what they were."""

    kinds: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """The server stopped answering the health check, or answers again."""

    degraded: bool
    misses: int


StateEvent = (
    PhaseChange
    | AttemptFailed
    | ProcessStarted
    | ProcessEnded
    | ServerNotification
    | Question
    | Withdrawn
    | ListsDiffer
    | HealthChange
)
BackendEvent = StateEvent | LogLine | SignInWanted | Seen
Emit = Callable[[BackendEvent], None]


# Notifications of a server, in the words of neither era.
#
# Pure, and never raises: one that cannot be read is passed on as it came.


LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
Mark = int | str

LOG_LEVELS = get_args(LogLevel)  # the least severe first

_STREAM_BYTES = SUBSCRIPTION_ID.encode()
_READ_BYTES = 1 << 20  # what is read as a whole: as values it takes 25 times the memory


class _Stamped(msgspec.Struct):
    meta: Raw = msgspec.field(name="_meta")


class _Meta(msgspec.Struct):
    stream: int | str = msgspec.field(name=SUBSCRIPTION_ID)


class _LogMessage(msgspec.Struct):
    data: Raw | UnsetType = UNSET
    level: Raw | UnsetType = UNSET
    logger: Raw | UnsetType = UNSET


def log_line(params: Raw | None) -> LogLine:
    """A log message as a line; what is no string is shown as its JSON."""
    message = _LogMessage()
    if params is not None:
        message = opened(params, _LogMessage) or _LogMessage(data=params)
    return LogLine(
        source=LogSource.PROTOCOL,
        text=_text(message.data),
        level=None if message.level is UNSET else decoded(message.level, str),
        logger=None if message.logger is UNSET else decoded(message.logger, str),
    )


def without_stream(params: Raw | None) -> tuple[Raw | None, Mark | None]:
    """The params without the mark of the stream that they came on, and that mark, if any.

    Large ones keep it: nobody is shown all of them.
    """
    if params is None or _STREAM_BYTES not in bytes(params):
        return params, None
    stamped = opened(params, _Stamped)
    found = stamped and opened(stamped.meta, _Meta)
    if found is None or len(memoryview(params)) > _READ_BYTES:
        return params, found and found.stream
    fields = opened(params, dict[str, Raw]) or {}
    meta = opened(fields.pop("_meta"), dict[str, Raw]) or {}
    del meta[SUBSCRIPTION_ID]
    if meta:
        fields["_meta"] = Raw(to_json(meta))
    return Raw(to_json(fields)) if fields else None, found.stream


def small_object(raw: Raw | None) -> Mapping[str, object]:
    """What it holds; nothing where it is no object, cannot be read, or is too large for that."""
    if raw is None or len(memoryview(raw)) > _READ_BYTES:
        return {}
    return mapping(decoded(raw, object))


def _text(data: Raw | UnsetType) -> str:
    if data is UNSET:
        return ""
    text = decoded(data, str)
    return bytes(data).decode(errors="replace") if text is None else text
