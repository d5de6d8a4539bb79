"""What the loss and the return of a backend mean for everything that depended on it.

A lost connection invalidates what was in flight on it, at once and once: working tasks fail,
pending questions are rejected, each with its event. Finished results stay. One outage is told once,
however many attempts it takes to end it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from emceepee_stdio.backends.base import Loss, PhaseChange
from emceepee_stdio.clock import Clock
from emceepee_stdio.state import (
    Asked,
    ClosedBy,
    EventLog,
    EventType,
    Phase,
    RequestKind,
    Requests,
    Tasks,
)

__all__ = ["Invalidated", "Reconciler"]

_EXPIRED = {
    RequestKind.ELICITATION: EventType.ELICITATION_EXPIRED,
    RequestKind.SAMPLING: EventType.SAMPLING_EXPIRED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Invalidated:
    """The ids of what a loss took with it."""

    tasks: tuple[str, ...]
    requests: tuple[str, ...]


class Reconciler:
    """Turns what happens to backends into events and state."""

    def __init__(self, *, events: EventLog, tasks: Tasks, requests: Requests, clock: Clock) -> None:
        self._events = events
        self._tasks = tasks
        self._requests = requests
        self._clock = clock

    def phase_changed(self, server: str, change: PhaseChange) -> Invalidated:
        """Tell the outage or its end, and invalidate what the lost connection held."""
        if change.previous is Phase.CONNECTED:
            return self._lost(server, change)
        if change.phase is Phase.CONNECTED:
            again = change.previous is Phase.RECONNECTING and change.was_connected_before
            kind = EventType.SERVER_RECONNECTED if again else EventType.SERVER_CONNECTED
            self._tell(kind, server, _introduction(change))
        elif change.phase is Phase.RECONNECTING:
            self._tell(EventType.SERVER_RECONNECTING, server, _prospects(change))
        elif change.phase is Phase.FAILED:
            self._tell(EventType.SERVER_RESTART_FAILED, server, _prospects(change))
        return Invalidated(tasks=(), requests=())

    def process_started(self, server: str, pid: int) -> None:
        self._tell(EventType.PROCESS_STARTED, server, {"pid": pid})

    def process_ended(self, server: str, loss: Loss, *, expected: bool) -> None:
        kind = EventType.PROCESS_STOPPED if expected else EventType.PROCESS_CRASHED
        data: dict[str, object] = {"reason": loss.fact, "exit_code": loss.exit_code}
        if not expected:
            data["stderr"] = list(loss.tail)
        self._tell(kind, server, data)

    def asked_expired(self, asked: Asked) -> None:
        """A question ended without an answer: tell it with its reason."""
        reason = asked.closed_by.value if asked.closed_by else asked.status.value
        self._tell(_EXPIRED[asked.kind], asked.server, {"request_id": asked.id, "reason": reason})

    def _lost(self, server: str, change: PhaseChange) -> Invalidated:
        removed = change.phase is Phase.DISCONNECTED
        reason = ClosedBy.REMOVED if removed else ClosedBy.DISCONNECTED
        fact = change.loss.fact if change.loss else f"The connection to {server} was closed."
        self._tell(EventType.SERVER_DISCONNECTED, server, {"reason": fact})
        invalidated = self._invalidate(server, fact, str(change.loss or fact), reason)
        if change.phase is Phase.RECONNECTING:
            self._tell(EventType.SERVER_RECONNECTING, server, _prospects(change))
        elif change.phase is Phase.FAILED:
            self._tell(EventType.SERVER_RESTART_FAILED, server, _prospects(change))
        return invalidated

    def _invalidate(
        self, server: str, fact: str, post_mortem: str, reason: ClosedBy
    ) -> Invalidated:
        """Each task keeps the whole story; its event tells the fact."""
        now = self._clock.now()
        failed = self._tasks.fail_server(server, post_mortem, now=now)
        for task in failed:
            data = {"task_id": task.id, "tool": task.tool, "error": fact}
            self._tell(EventType.TASK_FAILED, server, data)
        rejected = self._requests.reject_server(server, reason, now=now)
        for asked in rejected:
            self.asked_expired(asked)
        return Invalidated(
            tasks=tuple(task.id for task in failed), requests=tuple(asked.id for asked in rejected)
        )

    def _tell(self, kind: EventType, server: str, data: Mapping[str, object]) -> None:
        self._events.add(kind, server=server, data=data, now=self._clock.now())


def _introduction(change: PhaseChange) -> dict[str, object]:
    if change.hello is None:
        return {}
    return {
        "era": change.hello.era.value,
        "protocol_version": change.hello.protocol_version,
        "server_info": change.hello.server_info,
    }


def _prospects(change: PhaseChange) -> dict[str, object]:
    data: dict[str, object] = {"attempt": change.attempt, "attempts": change.attempts}
    if change.retry_in is not None:
        data["retry_in_ms"] = round(change.retry_in * 1000)
    if change.error is not None:
        data["error"] = str(change.error)
    return data
