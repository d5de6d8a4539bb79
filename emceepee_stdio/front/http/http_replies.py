"""Whole answers and refusals of the HTTP front, and the values of its limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from emceepee_stdio.wire.codec import INVALID_REQUEST, RequestId, RpcError, encode_error

Headers = Sequence[tuple[str, str]]

RETRY: Headers = (("retry-after", "10"),)  # by then a session has ended, or a body has arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Everything is per front unless it says otherwise."""

    sessions: int = 16  # each is a process of about 40 MB
    streams: int = 128  # and calls of one session; its process says itself that 100 are enough
    connections: int = 512  # sockets; one client of many calls at once has dozens
    exchanges: int = 384  # of one token at a time, so that others find a place
    body_bytes: int = 4 << 20  # of one request, as the SDKs have it
    held_bytes: int = 64 << 20  # of one token: bodies that arrive, modern answers not yet written
    body_s: float = 30.0  # for a request to arrive whole
    quiet_s: float = 20.0  # for a connection on which nothing is asked
    stuck_s: float = 120.0  # for a connection that takes nothing of what is written (Linux)
    idle_s: float = 1800.0  # without request, stream, task or timer: then a session ends
    unused_s: float = 60.0  # of a session whose client never comes back after the handshake
    sweep_s: float = 5.0  # between two looks at all of these
    finish_s: float = 5.0  # for calls under way when the front ends
    session_events: int = 1_000
    session_bytes: int = 64 << 20  # eight of the longest answers
    events: int = 10_000  # of all sessions together
    bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A whole answer; JSON unless its headers say otherwise."""

    status: int
    body: bytes = b""
    headers: Headers = ()


class HttpRefusal(Exception):
    """A request that is not served; the application answers with `reply`."""

    def __init__(self, reply: HttpReply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def rpc_refusal(
    status: int, error: RpcError, request_id: RequestId | None = None, headers: Headers = ()
) -> HttpRefusal:
    return HttpRefusal(HttpReply(status, encode_error(request_id, error).strip(), headers))


def refusal(status: int, reason: str, headers: Headers = ()) -> HttpRefusal:
    return rpc_refusal(status, RpcError(INVALID_REQUEST, reason, None), headers=headers)
