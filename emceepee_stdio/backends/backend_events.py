"""Backend events: the values that a backend reports to the session through one `emit`.

Values only. A channel and its supervisor emit them in the order of things; the backend looks at
what concerns it, and the session takes the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.auth.orders import SignInNeeded
from emceepee_stdio.backends.base import Hello, Loss
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.foreign_json import decoded, envelope_decoder
from emceepee_stdio.json_values import mapping
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import RpcError, to_json


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
    `deliver` takes the answer to the server; False when nobody there waits for it. `is_ours`: we
    ask about the server, in our own words, and nobody but the person may answer.
    """

    method: str
    params: Raw | None
    key: object
    deliver: Callable[[bytes | RpcError], bool]
    call: object = None
    is_open: bool = True
    is_ours: bool = False

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
BackendEvent = StateEvent | LogLine | SignInWanted
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
    level: object = None
    logger: object = None


_read_stamped = msgspec.json.Decoder(_Stamped).decode
_read_meta = msgspec.json.Decoder(_Meta).decode
_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_log_message = envelope_decoder(_LogMessage)


def log_line(params: Raw | None) -> LogLine:
    """A log message as a line; what is no string is shown as its JSON."""
    message = _LogMessage()
    if params is not None:
        try:
            message = _read_log_message(params)
        except (msgspec.MsgspecError, RecursionError):
            message = _LogMessage(data=params)
    return LogLine(
        source=LogSource.PROTOCOL,
        text=_text(message.data),
        level=message.level if isinstance(message.level, str) else None,
        logger=message.logger if isinstance(message.logger, str) else None,
    )


def without_stream(params: Raw | None) -> tuple[Raw | None, Mark | None]:
    """The params without the mark of the stream that they came on, and that mark, if any.

    Large ones keep it: nobody is shown all of them.
    """
    if params is None or _STREAM_BYTES not in bytes(params):
        return params, None
    try:
        stream = _read_meta(_read_stamped(params).meta).stream
        if len(memoryview(params)) > _READ_BYTES:
            return params, stream
        fields = _read_fields(params)
        meta = _read_fields(fields.pop("_meta"))
        del meta[SUBSCRIPTION_ID]
    except (msgspec.MsgspecError, RecursionError):
        return params, None
    if meta:
        fields["_meta"] = Raw(to_json(meta))
    return Raw(to_json(fields)) if fields else None, stream


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
