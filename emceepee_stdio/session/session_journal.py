"""What the journal says of calls, tasks, and the event log: one line for each beginning and end."""

from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Settings
from emceepee_stdio.journal import Journal, JournalEvent, Level
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.rate_limit import RateLimits
from emceepee_stdio.state import Event, EventLog, EventType, Excerpt, Task
from emceepee_stdio.state.event_log import Added

__all__ = ["SessionJournal"]

# Events that no other line of the journal tells of, and what each matters.
_TOLD_BY_NOBODY_ELSE = {
    EventType.NOTIFICATION: Level.INFO,
    EventType.ELICITATION_EXPIRED: Level.INFO,
    EventType.SAMPLING_EXPIRED: Level.INFO,
    EventType.TASK_CANCELLED: Level.INFO,
    EventType.TASK_EXPIRED: Level.WARNING,
    EventType.TIMER_EXPIRED: Level.INFO,
    EventType.SERVER_HEALTH_DEGRADED: Level.WARNING,
    EventType.SERVER_HEALTH_RESTORED: Level.INFO,
}
_NAMES = ("method", "uri", "tool", "task_id", "timer_id", "request_id", "reason", "missed")


class SessionJournal:
    """Writes them down. Whoever tells of single calls asks first whether `debugs` is on."""

    def __init__(self, journal: Journal, clock: Clock, settings: Settings) -> None:
        self._journal = journal
        self._clock = clock
        self._flows = RateLimits(settings.fixed.output_lines, servers=settings.limits.servers)

    def __repr__(self) -> str:
        return f"<SessionJournal {self._journal!r}>"

    def call_began(self, call: Call) -> None:
        self._journal.debug(JournalEvent.TOOL_EXECUTION_START, server=call.server, tool=call.tool)

    def call_ended(self, call: Call, outcome: str, **more: str | int) -> None:
        self._journal.debug(
            JournalEvent.TOOL_EXECUTION_COMPLETE,
            server=call.server,
            tool=call.tool,
            outcome=outcome,
            duration_ms=round((self._clock.now() - call.began_at) * 1000),
            **more,
        )

    def promoted(self, task: Task, reason: str) -> None:
        self._journal.record(
            JournalEvent.TOOL_EXECUTION_TIMEOUT,
            server=task.server,
            tool=task.tool,
            task_id=task.id,
            reason=reason,
        )

    def completed(self, task: Task) -> None:
        self._journal.record(
            JournalEvent.TASK_COMPLETED, server=task.server, task_id=task.id, tool=task.tool
        )

    def failed(self, task: Task, error: str) -> None:
        self._journal.record(
            JournalEvent.TASK_FAILED,
            server=task.server,
            task_id=task.id,
            tool=task.tool,
            error=error,
        )

    def event_added(self, events: EventLog, added: Added) -> None:
        """One that the client is going to be told; and that the log runs full, or events are lost.

        What is folded into an event that waits is told with it, and needs no line.
        """
        level = _TOLD_BY_NOBODY_ELSE.get(added.event.type)
        if level is not None and added.event.count == 1:
            self._tell(level, added.event)
        if added.nearly_full:
            capacity = events.statistics().capacity
            self._journal.record(
                JournalEvent.EVENT_STORE_APPROACHING_LIMIT,
                waiting=events.waiting,
                capacity=capacity,
                percent_full=100 * events.waiting // capacity,
            )
        if added.dropped:
            self._journal.record(
                JournalEvent.EVENT_STORE_EVICTION,
                waiting=events.waiting,
                evicted=added.evicted,
                dropped=added.dropped,
            )

    def _tell(self, level: Level, event: Event) -> None:
        """Names, and nothing of what a server or a model said; a flood is counted."""
        passed, over = self._flows.takes(event.server or "", self._clock.now())
        if over:
            self._journal.record(
                JournalEvent.SERVER_OUTPUT_DROPPED, server=event.server, count=over
            )
        if passed:
            self._journal.write(
                level,
                JournalEvent.EVENT_ADDED,
                server=event.server,
                type=event.type.value,
                **_named(event),
            )


def _named(event: Event) -> dict[str, str | int]:
    if isinstance(event.data, Excerpt):
        return {"bytes": event.data.size}
    data = {**event.data, "uri": mapping(event.data.get("params")).get("uri")}
    found = {name: data.get(name) for name in _NAMES}
    return {name: value for name, value in found.items() if isinstance(value, str | int)}
