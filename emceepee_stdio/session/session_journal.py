"""What the journal says of calls, tasks, and the event log: one line for each beginning and end."""

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.state import EventLog, Task
from emceepee_stdio.state.event_log import Added

__all__ = ["SessionJournal"]


class SessionJournal:
    """Writes them down. Whoever tells of single calls asks first whether `debugs` is on."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

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
        """Worth a line only where the log runs full, or events are lost."""
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
