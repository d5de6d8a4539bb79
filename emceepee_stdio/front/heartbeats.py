"""Signs of life for calls that take long: progress under the client's token, in its silence.

A client that hears nothing of a call gives it up. Progress has to grow: a heartbeat adds so little
to what was told last that the server's own next step is larger; where it is not, because a server
begins with nothing, that step is told as a hair more.
"""

from collections.abc import Callable
from typing import NamedTuple

from emceepee_stdio.clock import Clock
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.wire.ticker import Ticker

__all__ = ["Heartbeats", "Progress"]

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
