"""Notifications of a server, in the words of neither era.

Pure, and never raises: one that cannot be read is passed on as it came.
"""

from typing import Literal, get_args

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.backends.backend_events import LogLine, LogSource
from emceepee_stdio.foreign_json import decode_value, envelope_decoder
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import to_json

__all__ = ["LOG_LEVELS", "LogLevel", "Mark", "decoded", "log_line", "without_stream"]

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


def decoded(raw: Raw | None) -> object:
    """The value, or None where it cannot be read, or is too large for that."""
    if raw is None or len(memoryview(raw)) > _READ_BYTES:
        return None
    try:
        return decode_value(raw)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _text(data: Raw | UnsetType) -> str:
    if data is UNSET:
        return ""
    try:
        return msgspec.json.decode(data, type=str)
    except (msgspec.MsgspecError, RecursionError):
        return bytes(data).decode(errors="replace")
