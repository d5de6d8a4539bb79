"""Progress notifications to the client: those of the server, and heartbeats.

What a server tells after its call became a task is noted with the task.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import number
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.session import Session
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.peer import Peer
from emceepee_stdio.wire.timing import Ticker

# Signs of life for calls that take long: progress under the client's token, in its silence.
#
# A client that hears nothing of a call gives it up. Progress has to grow: a heartbeat adds so
# little to what was told last that the server's own next step is larger; where it is not, because a
# server begins with nothing, that step is told as a hair more.


_STEP = 1e-6  # far below the first step of a server
_RELATIVE_STEP = 1e-9  # for large numbers; a double still tells it apart


class Progress(NamedTuple):
    """How far a call is; `is_ours` when nobody but us has said so."""

    value: float
    total: float | None = None
    is_ours: bool = False


class Heartbeats:
    """The calls that a client waits for, by how long nothing was told of them.

    All wait equally long, so that they are due in the order in which they were put here. `beat`
    sends the progress of a call.
    """

    def __init__(
        self, clock: Clock, *, every: float, beat: Callable[[Call, Progress], None]
    ) -> None:
        self._clock = clock
        self._every = every
        self._beat = beat
        self._silent_since: dict[Call, float] = {}
        self._told: dict[Call, Progress] = {}
        self._ticker = Ticker(clock, [self.next_deadline], self.expire, on_bug=_ignored)
        self.run = self._ticker.run

    def __repr__(self) -> str:
        return f"<Heartbeats {len(self._silent_since)} calls>"

    def begin(self, call: Call) -> None:
        now = self._silent_since[call] = self._clock.now()
        self._ticker.look(now + self._every)

    def end(self, call: Call) -> None:
        if self._silent_since.pop(call, None) is not None:
            self._told.pop(call, None)

    def told(self, call: Call, progress: Progress) -> Progress:
        """The server says how far it is: what the client is told, so that it grows."""
        if self._silent_since.pop(call, None) is None:
            return progress
        before = self._told.get(call)
        if before is not None and before.is_ours and progress.value <= before.value:
            progress = progress._replace(value=_a_hair_more(before.value), is_ours=True)
        self._told[call] = progress
        self._silent_since[call] = self._clock.now()
        return progress

    def ours(self, call: Call) -> Progress:
        """What is told in place of the server: hardly more than was told last."""
        before = self._told.get(call)
        value = 0.0 if before is None else _a_hair_more(before.value)
        progress = Progress(value, None if before is None else before.total, is_ours=True)
        self._told[call] = progress
        return progress

    def next_deadline(self) -> float | None:
        since = next(iter(self._silent_since.values()), None)
        return None if since is None else since + self._every

    def expire(self, now: float) -> None:
        while (due := self.next_deadline()) is not None and due <= now:
            call = next(iter(self._silent_since))
            del self._silent_since[call]
            if call.answered:
                self._told.pop(call, None)
                continue
            self._silent_since[call] = now
            self._beat(call, self.ours(call))


def _a_hair_more(value: float) -> float:
    return value + max(_STEP, abs(value) * _RELATIVE_STEP)


def _ignored(_error: Exception) -> None:
    """A heartbeat writes one line; the pipe tells by itself when it is broken."""


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

    def begin(self, call: Call) -> None:
        """The client waits for this call and wants to hear of it."""
        self._heartbeats.begin(call)
        if not self._is_running:
            self._is_running = True
            self._tasks.start_soon(self._heartbeats.run)

    def end(self, call: Call) -> None:
        self._heartbeats.end(call)

    def forward(self, call: Call, params: Raw) -> None:
        call.trace.progress += 1
        if call.answered:
            self._session.note_progress(call, params)
            return
        try:
            received = _read(params)
            progress, total = _number(received.progress), _number(received.total)
        except (msgspec.MsgspecError, RecursionError):
            return  # the client would not understand it either
        if progress is None or call.is_paused or self._unread() > _UNREAD_BYTES:
            return  # the client does not keep up; later progress says more than this
        message = received.message
        if message is not None and len(message) > _MESSAGE_CHARS:
            message = f"{message[:_MESSAGE_CHARS]} … (cut from {len(message)} characters)"
        self._beat(call, self._heartbeats.told(call, Progress(progress, total)), message)

    def status(self, call: Call, message: str) -> None:
        """What we do for the call before its server can tell anything."""
        if not call.answered:
            self._beat(call, self._heartbeats.ours(call), message)

    def _beat(self, call: Call, progress: Progress, message: str | None = None) -> None:
        token = call.request.token
        if token is None or call.is_paused or self._unread() > _UNREAD_BYTES:
            return
        told = _Told(token=token, progress=progress.value, total=progress.total, message=message)
        self._peer.notify("notifications/progress", to_json(told))


def _number(raw: Raw | UnsetType) -> float | None:
    value = number(raw)
    if value is not None and abs(value) > (_MAX_INTEGER if isinstance(value, int) else _MAX_FLOAT):
        raise msgspec.ValidationError("Number out of range")
    return value
