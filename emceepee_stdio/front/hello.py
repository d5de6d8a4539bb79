"""Reads stdin and writes the first answers, which `protocol` makes, before the rest is loaded.

Reads stdin as it is, blocking, and answers what needs no session. It hands over as soon as the
client has shown that it stays and has nothing more to ask right now, or asks for more than this.
"""

import json
import os
import select
from typing import NamedTuple, cast

from emceepee_stdio.front.protocol import ACKNOWLEDGED, LEAVES_OPEN, LISTEN, Protocol, Refused
from emceepee_stdio.greeting import Greeting
from emceepee_stdio.json_values import mapping

_CHUNK_BYTES = 65_536  # what a pipe holds
_MAX_GREETING_BYTES = 1 << 20  # no greeting is as long; the full reader takes over
_MORE_WAIT_S = 0.02  # clients send their next request within a few milliseconds


class Handover(NamedTuple):
    """What the greeting leaves to the rest: the client, and bytes that were not answered.

    `stays` once the client has shown that it does; `ended` when it has left.
    """

    protocol: Protocol
    unread: bytes
    stays: bool
    ended: bool


def take_over() -> tuple[int, int]:
    """Keep stdin and stdout for the wire: a stray print or read of any library cannot reach it."""
    _open_the_closed()
    wire_in, wire_out = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return wire_in, wire_out


def _open_the_closed() -> None:
    """Started without one of the three, the wire itself must not take its number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def hello(wire_in: int, wire_out: int, greeting: Greeting | None = None) -> Handover:
    protocol = Protocol(greeting)
    unread = b""
    stays = False
    while not stays or _has_more(wire_in):
        data = _read_some(wire_in)
        if not data:
            return Handover(protocol, unread.strip(), stays, ended=True)
        unread += data
        if len(unread) > _MAX_GREETING_BYTES and b"\n" not in unread:
            return Handover(protocol, unread, stays, ended=False)
        while (end := unread.find(b"\n")) >= 0:
            answer = _answer(protocol, unread[:end])
            if answer is None:
                return Handover(protocol, unread, stays, ended=False)
            line, stays_now = answer
            unread = unread[end + 1 :]
            stays = stays or stays_now
            if not _write(wire_out, line):
                return Handover(protocol, b"", stays, ended=True)
    return Handover(protocol, unread, stays, ended=False)


def _answer(protocol: Protocol, line: bytes) -> tuple[bytes, bool] | None:
    """What to write, and whether the client stays; None for what is not for us to answer."""
    if not line.strip():
        return b"", False
    message = _read(line)
    if message is None:
        return None
    method = message["method"]
    if "id" not in message:
        return (b"", True) if method == "notifications/initialized" else None
    request_id = cast("int | str", message["id"])
    if request_id in protocol.streams:
        return None
    params = mapping(message.get("params"))
    result = protocol.answer(str(method), params)
    if result is None and method == LISTEN:  # some clients do before they list anything
        note = protocol.listen(request_id, params)
        return b'{"jsonrpc":"2.0","method":"%b","params":%b}\n' % (ACKNOWLEDGED, note), True
    return None if result is None else (_framed(request_id, result), method not in LEAVES_OPEN)


def _read(line: bytes) -> dict[str, object] | None:
    """A well-formed request or notification; whatever else is left to those who judge it."""
    if b"\\ud" in line.lower():  # half a character, perhaps
        return None
    try:
        message = json.loads(line.decode(), parse_float=_finite)  # of bytes it reads halves, too
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict):
        return None
    fields = cast("dict[str, object]", message)
    request_id = fields.get("id", 0)
    if isinstance(request_id, bool) or not isinstance(request_id, int | str):
        return None
    is_ours = fields.get("jsonrpc") == "2.0" and isinstance(fields.get("method"), str)
    return fields if is_ours and isinstance(fields.get("params", {}), dict) else None


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise ValueError("beyond what a number can be")
    return number


def _framed(request_id: int | str, result: bytes | Refused) -> bytes:
    head = b'{"jsonrpc":"2.0","id":%b,' % json.dumps(request_id).encode()
    if isinstance(result, bytes):
        return head + b'"result":%b}\n' % result
    error: dict[str, object] = {"code": result.code, "message": result.message}
    if result.data is not None:
        error["data"] = result.data
    return head + b'"error":%b}\n' % json.dumps(error, separators=(",", ":")).encode()


def _has_more(fd: int) -> bool:
    """Whether the client goes on right now. Where that cannot be asked, the rest takes over."""
    try:
        return bool(select.select([fd], [], [], _MORE_WAIT_S)[0])
    except (OSError, ValueError):
        return False


def _read_some(fd: int) -> bytes:
    """What has come; nothing when the client is gone, however it went."""
    while True:
        try:
            return os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:  # whoever started us shares it with others that do not block
            select.select([fd], [], [])
        except OSError:
            return b""


def _write(fd: int, data: bytes) -> bool:
    """Write all of it; False when nobody reads any more."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except OSError:
            return False
    return True
