"""Progress of calls, told to the client under its own token: the server's, and signs of life.

What a server tells after its call became a task is noted with the task.
"""

from collections.abc import Callable
from functools import partial

import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import number
from emceepee_stdio.front.heartbeats import Heartbeats, Progress
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.session import Session
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.peer import Peer

__all__ = ["CallProgress"]

_UNREAD_BYTES = 1 << 20  # that wait for the client; thousands of progress messages
_MAX_INTEGER = 2**63 - 1  # no client reads more digits
_MAX_FLOAT = 1e300  # a heartbeat can still add to it
_MESSAGE_CHARS = 2_000  # of one message: a line for a person to read


class _Received(msgspec.Struct):
    """The params of a server's progress notification."""

    progress: Raw
    total: Raw | UnsetType = UNSET
    message: str | None = None


class _Told(msgspec.Struct, omit_defaults=True):
    """The params of one for the client."""

    token: int | str = msgspec.field(name="progressToken")
    progress: float
    total: float | None = None
    message: str | None = None


_read = msgspec.json.Decoder(_Received).decode


class CallProgress:
    """For one client. `unread` says how many bytes it has not read yet."""

    def __init__(
        self,
        session: Session,
        peer: Peer,
        clock: Clock,
        *,
        every: float,
        tasks: TaskGroup,
        unread: Callable[[], int],
    ) -> None:
        self._session = session
        self._peer = peer
        self._tasks = tasks
        self._unread = unread
        self._heartbeats = Heartbeats(clock, every=every, beat=self._beat)
        self._is_running = False

    def __repr__(self) -> str:
        return f"<CallProgress {self._heartbeats!r}>"

    def begin(self, call: Call, token: int | str) -> None:
        """The client waits for this call and wants to hear of it."""
        call.token = token
        call.on_progress = partial(self._forward, call)
        call.on_status = partial(self._tell, call)
        self._heartbeats.begin(call)
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._heartbeats.run)

    def end(self, call: Call) -> None:
        self._heartbeats.end(call)

    def _forward(self, call: Call, params: Raw) -> None:
        call.trace.progress += 1
        if call.answered:
            self._session.note_progress(call, params)
            return
        try:
            received = _read(params)
            progress, total = _number(received.progress), _number(received.total)
        except (msgspec.MsgspecError, RecursionError):
            return  # the client would not understand it either
        if progress is None or call.token is None or self._unread() > _UNREAD_BYTES:
            return  # the client does not keep up; later progress says more than this
        message = received.message
        if message is not None and len(message) > _MESSAGE_CHARS:
            message = f"{message[:_MESSAGE_CHARS]} … (cut from {len(message)} characters)"
        told = _Told(
            token=call.token,
            progress=self._heartbeats.told(call, Progress(progress, total)).value,
            total=total,
            message=message,
        )
        self._peer.notify("notifications/progress", to_json(told))

    def _tell(self, call: Call, message: str) -> None:
        """What we do for the call before its server can tell anything."""
        if not call.answered:
            self._beat(call, self._heartbeats.ours(call), message)

    def _beat(self, call: Call, progress: Progress, message: str | None = None) -> None:
        if call.token is None or self._unread() > _UNREAD_BYTES:
            return
        told = _Told(
            token=call.token, progress=progress.value, total=progress.total, message=message
        )
        self._peer.notify("notifications/progress", to_json(told))


def _number(raw: Raw | UnsetType) -> float | None:
    value = number(raw)
    if value is not None and abs(value) > (_MAX_INTEGER if isinstance(value, int) else _MAX_FLOAT):
        raise msgspec.ValidationError("Number out of range")
    return value
