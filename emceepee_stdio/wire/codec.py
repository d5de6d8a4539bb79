"""The codec of JSON-RPC messages: a line in, messages or noise out, and back.

Results and params stay the bytes that they were until somebody needs to look. Nothing here raises
on what arrives: a line becomes messages, or `Noise`. What is slightly off is repaired (invalid
UTF-8, lone surrogates, NaN); what is broken beyond that but carries an id still ends its call.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.wire.framing import HEAD_BYTES, TAIL_BYTES

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
RESOURCE_NOT_FOUND = -32002  # of MCP, in the legacy era

RequestId = int | str

_SHOWN_BYTES = 2_000  # of a line that is no message: enough to see what the server prints
_EXCERPT_CHARS = 200  # of the same within an error text, which has more to say
_ERROR_SHOWN_BYTES = 500  # an error object is mostly its message
# What the fast reader refuses is read once more by a slow one, for which this takes 30 ms.
_CARE_BYTES = 1 << 20
_CARE_VALUES = 50_000
_BATCH_BYTES = 32 << 10  # of requests and notifications: handling them takes up to 30 ms
_BATCH_COMMAS = 200_000  # more may be as many messages, which take 60 bytes each to be counted
_BATCH_MESSAGES = 1_000  # ten times as many as there are calls under way
# A string that never ends is one token, too: looked into, each quote in it would be tried anew.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\]:,]|[^\s{}\[\]:,"]+')
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"?')  # as above
_LAST_ID = re.compile(rb'[{,]\s*"id"\s*:\s*(-?\d+|"(?:[^"\\]|\\.)*+")\s*\}\s*$')
_TELLING = frozenset({b'"method"', b'"result"', b'"error"'})


class Request(msgspec.Struct, frozen=True, gc=False):
    """Somebody asks; `id` names the answer."""

    id: RequestId
    method: str
    params: Raw | None = None


class Notification(msgspec.Struct, frozen=True, gc=False):
    """Somebody tells; nobody answers."""

    method: str
    params: Raw | None = None


@dataclass(frozen=True, slots=True)
class RpcError:
    """The error object of a response."""

    code: int
    message: str
    data: Raw | None = None


class Response(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request: a result, or an error."""

    id: RequestId
    outcome: Raw | RpcError


@dataclass(frozen=True, slots=True)
class Malformed:
    """Meant as JSON-RPC, but not valid; `id` where it can be answered, `code` what to answer."""

    id: RequestId | None
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Noise:
    """A line that is no message: a banner, a stray print, a broken frame."""

    text: str


Message = Request | Notification | Response | Malformed | Noise


class _Envelope(msgspec.Struct, gc=False):
    id: int | str | UnsetType = UNSET
    method: str | None = None
    params: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: Raw | UnsetType = UNSET
    jsonrpc: Raw | UnsetType = UNSET


class _ErrorObject(msgspec.Struct, gc=False):
    code: int
    message: str
    data: Raw | UnsetType = UNSET


_decode_envelope = envelope_decoder(_Envelope)
_decode_error = msgspec.json.Decoder(_ErrorObject).decode
_decode_parts = msgspec.json.Decoder(list[Raw]).decode
_encoder = msgspec.json.Encoder()
_NULL = Raw(b"null")
_VERSION = Raw(b'"2.0"')
_BOM = b"\xef\xbb\xbf"


def decode(line: bytes, *, strict: bool = False) -> list[Message]:
    """The messages of one line: one, several for a batch, none for a blank line.

    Strictly, a request or notification must say which JSON-RPC it speaks; an answer never need.
    """
    if not line.isascii():
        line = _as_utf8(line)
    try:
        return [_classify(_decode_envelope(line), strict=strict)]
    except (msgspec.MsgspecError, RecursionError):
        bare = line.strip(b" \t\r\n\0")
        return (
            _decode_with_care(bare, strict=strict) if bare == line else decode(bare, strict=strict)
        )


def _as_utf8(line: bytes) -> bytes:
    try:
        line.decode()
    except UnicodeDecodeError:
        return line.decode(errors="replace").encode()
    return line


def _classify(e: _Envelope, *, strict: bool) -> Message:
    if e.method is not None:
        if strict and e.jsonrpc != _VERSION:
            message_id = None if e.id is UNSET else e.id
            return Malformed(message_id, INVALID_REQUEST, 'jsonrpc must be "2.0"')
        params = None if e.params is UNSET or e.params == _NULL else e.params
        return Notification(e.method, params) if e.id is UNSET else Request(e.id, e.method, params)
    if e.id is UNSET:
        return Malformed(None, INVALID_REQUEST, "neither a method nor an id")
    if e.error is not UNSET and e.error != _NULL:
        return Response(e.id, _read_error(e.error))
    if e.result is not UNSET:
        return Response(e.id, e.result)
    return Response(e.id, RpcError(INVALID_REQUEST, "the answer has no result and no error"))


def _read_error(raw: Raw) -> RpcError:
    try:
        error = _decode_error(raw)
    except msgspec.MsgspecError:
        shown = bytes(raw)[:_ERROR_SHOWN_BYTES].decode(errors="replace")
        return RpcError(INTERNAL_ERROR, f"an error of unknown shape: {shown}")
    data = None if error.data is UNSET or error.data == _NULL else error.data
    return RpcError(error.code, error.message, data)


def _decode_with_care(line: bytes, *, strict: bool) -> list[Message]:
    """What the fast path refused: a batch, a slightly broken message, or noise."""
    if line.startswith(_BOM):
        return decode(line.decode().lstrip("\ufeff \t\r\n\0").encode(), strict=strict)
    if line.startswith(b"["):
        return _decode_batch(line, strict=strict)
    if not line.startswith(b"{"):
        return [Noise(_shown(line))] if line else []
    try:
        fields = _loads(line) if _is_short(line) else None
    except (ValueError, RecursionError):
        fields = None
    if fields is None:
        return [_salvage(line)]
    return [_rebuild(cast("dict[str, object]", fields), strict=strict)]


def _decode_batch(line: bytes, *, strict: bool) -> list[Message]:
    if line.count(b",") > _BATCH_COMMAS:
        return [Noise(f"a batch of {len(line)} bytes was dropped: {_shown(line)[:200]}")]
    try:
        parts = _decode_parts(line)
    except (msgspec.MsgspecError, RecursionError):
        try:
            parts = _decode_parts(to_json(_loads(line) if _is_short(line) else None))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return [Noise(_shown(line))]
    if not parts:
        return [Malformed(None, INVALID_REQUEST, "a batch holds no message")]
    if len(parts) > _BATCH_MESSAGES:
        return [Noise(f"a batch of {len(parts)} messages was dropped: {_shown(line)[:200]}")]
    messages = [message for part in parts for message in _decode_part(part, strict=strict)]
    return messages if len(line) <= _BATCH_BYTES else _answers_in(messages, len(line))


def _answers_in(messages: list[Message], size: int) -> list[Message]:
    """Of a large batch, what somebody waits for: to handle the rest would keep others waiting."""
    answers: list[Message] = [one for one in messages if isinstance(one, Response)]
    if dropped := len(messages) - len(answers):
        answers.append(Noise(f"{dropped} messages of a batch of {size} bytes were dropped"))
    return answers


def _decode_part(part: Raw, *, strict: bool) -> list[Message]:
    line = bytes(part)
    if line.startswith(b"{"):
        return decode(line, strict=strict)
    return [Malformed(None, INVALID_REQUEST, "a batch holds something that is no object")]


def _is_short(line: bytes) -> bool:
    """Whether the slow reader may read it: in bytes, and in values, which cost it most."""
    values = line.count(b",") + line.count(b"[") + line.count(b"{")
    return len(line) <= _CARE_BYTES and values <= _CARE_VALUES


def _loads(line: bytes) -> object:
    """What only the standard json reads: control characters in strings, and NaN, as None."""
    return json.loads(line, parse_constant=lambda _name: None, strict=False)


def _rebuild(fields: dict[str, object], *, strict: bool) -> Message:
    """A message that only the standard json reads: cleaned, then read as if it had come so."""
    message_id = fields.get("id", UNSET)
    if isinstance(message_id, float) and message_id.is_integer():
        fields["id"] = message_id = int(message_id)
    if isinstance(message_id, bool) or not isinstance(message_id, int | str | UnsetType):
        return Malformed(None, INVALID_REQUEST, "the id must be a string or an integer")
    readable = None if message_id is UNSET else message_id
    try:
        return _classify(_decode_envelope(to_json(fields)), strict=strict)
    except msgspec.ValidationError as error:
        return Malformed(readable, INVALID_REQUEST, str(error))
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        if readable is None or "method" in fields:
            return Malformed(readable, INVALID_REQUEST, f"it cannot be read: {error}")
        return Response(readable, RpcError(PARSE_ERROR, f"the answer cannot be read: {error}"))


def _salvage(line: bytes) -> Message:
    """Not JSON, but perhaps the answer or the question of somebody who waits."""
    message_id, asks = salvage_id(line)
    if message_id is None:
        return Noise(_shown(line))
    reason = f"not valid JSON: {_shown(line)[:_EXCERPT_CHARS]}"
    if asks:
        return Malformed(message_id, PARSE_ERROR, reason)
    return Response(message_id, RpcError(PARSE_ERROR, f"the answer is {reason}"))


def salvage_id(line: bytes, tail: bytes = b"") -> tuple[RequestId | None, bool]:
    """The id at the top level of a broken object, and whether it asks rather than answers.

    `tail` is the end of a line of which only the beginning was kept. An id deeper down is somebody
    else's, so in doubt there is none: better that a call waits than that another one ends.
    """
    depth = 0
    found: RequestId | None = None
    key = telling = previous = b""
    for match in _TOKEN.finditer(line, 0, HEAD_BYTES):
        token = match.group()
        if depth == 1 and token == b":":
            key = previous
            telling = telling or (key if key in _TELLING else b"")
        elif depth == 1 and token in (b",", b"}"):
            found = _read_id(previous) if found is None and key == b'"id"' else found
            key = b""
        depth += (token in (b"{", b"[")) - (token in (b"}", b"]"))
        if depth <= 0 and token in (b"}", b"]"):
            break
        previous = token
    else:
        if found is None and (tail or (len(line) > HEAD_BYTES and _is_balanced(line))):
            found = _last_id(tail or line)
    return found, telling == b'"method"'


def _last_id(line: bytes) -> RequestId | None:
    last = _LAST_ID.search(line, max(0, len(line) - TAIL_BYTES))
    return _read_id(last[1]) if last else None


def _is_balanced(line: bytes) -> bool:
    """Whether its last bracket closes its first."""
    bare = _STRING.sub(b"", line)
    return bare.count(b"{") == bare.count(b"}") and bare.count(b"[") == bare.count(b"]")


def _read_id(token: bytes) -> RequestId | None:
    try:
        return msgspec.json.decode(token, type=int | str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _shown(line: bytes) -> str:
    return line[:_SHOWN_BYTES].decode(errors="replace")


def to_json(value: object) -> bytes:
    """JSON that every client can read: lone surrogates become U+FFFD, NaN null."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return _encoder.encode(_without_surrogates(value))


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        paired = value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        return _SURROGATE.sub("\ufffd", paired)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return {_without_surrogates(key): _without_surrogates(item) for key, item in items}
    if isinstance(value, list):
        return [_without_surrogates(item) for item in cast("list[object]", value)]
    return value


def encode_request(
    message_id: RequestId, method: str, params: Mapping[str, object] | Raw | None
) -> bytes:
    fields: dict[str, object] = {"jsonrpc": "2.0", "id": message_id, "method": method}
    if params is not None:
        fields["params"] = params
    return to_json(fields) + b"\n"


def encode_notification(method: str, params: bytes | Raw | None) -> bytes:
    head = b'{"jsonrpc":"2.0","method":%b' % to_json(method)
    return b"%b}\n" % head if params is None else b'%b,"params":%b}\n' % (head, bytes(params))


def encode_result(message_id: RequestId, result: bytes | Raw) -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (to_json(message_id), bytes(result))


def encode_error(message_id: RequestId | None, error: RpcError) -> bytes:
    fields: dict[str, object] = {"code": error.code, "message": error.message}
    if error.data is not None:
        fields["data"] = error.data
    body = to_json(fields)
    if message_id is None:
        return b'{"jsonrpc":"2.0","error":%b}\n' % body
    return b'{"jsonrpc":"2.0","id":%b,"error":%b}\n' % (to_json(message_id), body)
