"""Progress of calls, told to the client under its own token: the server's, and signs of life.

What a server tells after its call became a task is noted with the task.
"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.clock import Clock
from emceepee_stdio.front.heartbeats import Heartbeats, Progress
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.session import Session
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.peer import Peer

__all__ = ["CallProgress"]

_UNREAD_BYTES = 1 << 20  # that wait for the client; thousands of progress messages
_INT64 = msgspec.Meta(ge=-(2**63), le=2**63 - 1)  # no client reads more digits
_FINITE = msgspec.Meta(ge=-1e300, le=1e300)  # a heartbeat can still add to it
_MESSAGE_CHARS = 2_000  # of one message: a line for a person to read


class _Told(msgspec.Struct, omit_defaults=True):
    """The params of a progress notification."""

    token: int | str = msgspec.field(name="progressToken")
    progress: Annotated[int, _INT64] | Annotated[float, _FINITE]
    total: Annotated[int, _INT64] | Annotated[float, _FINITE] | None = None
    message: str | None = None


_read = msgspec.json.Decoder(_Told).decode


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
            told = _read(params)
        except (msgspec.MsgspecError, RecursionError):
            return  # the client would not understand it either
        if call.token is None or self._unread() > _UNREAD_BYTES:
            return  # the client does not keep up; later progress says more than this
        told.token = call.token
        told.progress = self._heartbeats.told(call, Progress(told.progress, told.total)).value
        if told.message is not None and len(told.message) > _MESSAGE_CHARS:
            cut = f" … (cut from {len(told.message)} characters)"
            told.message = told.message[:_MESSAGE_CHARS] + cut
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
