"""All state of the one session, and nothing else; `Session` is the behaviour around it.

Each part is pure and within the bounds that the settings give it. What is still to be told, what is
under way, what waits for an answer: whatever the proxy remembers of its client and servers between
two messages is here.
"""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from emceepee_stdio.config.settings import Settings
from emceepee_stdio.state.event_log import EventLog
from emceepee_stdio.state.machine import Deadlines
from emceepee_stdio.state.pending_requests import Requests
from emceepee_stdio.state.results import Results
from emceepee_stdio.state.ring import Rings
from emceepee_stdio.state.tasks import Tasks
from emceepee_stdio.state.timers import Timers

_EVENTS_DIVISOR = 4  # events are cut to what is shown of them, notifications and logs are not

Notification = TypeVar("Notification")
Line = TypeVar("Line")
InFlight = TypeVar("InFlight", bound=Hashable)


class SessionState(Generic[Notification, Line, InFlight]):
    """Made once, by the session; what it is made of changes, its parts do not."""

    def __init__(
        self,
        settings: Settings,
        *,
        new_id: Callable[[], str],
        began: str,
        on_closed: Callable[[str], object],
    ) -> None:
        limits, fixed = settings.limits, settings.fixed
        events_bytes = limits.memory_bytes // _EVENTS_DIVISOR
        rings_bytes = (limits.memory_bytes - events_bytes) // 2
        # What happened, until the client was told.
        self.events = EventLog(new_id=new_id, capacity=fixed.events, max_bytes=events_bytes)
        # Calls that became tasks, and the places of all calls.
        self.tasks = Tasks(
            new_id=new_id,
            limit=limits.tasks,
            ttl=min(settings.timeouts.task_ttl_ms / 1000, fixed.task_ttl_max_s),
            max_ttl=fixed.task_ttl_max_s,
            retention=fixed.result_retention_s,
            max_finished=fixed.finished_tasks,
            max_bytes=limits.stored_bytes,
            began=began,
        )
        # Questions of servers that wait for an answer.
        self.requests = Requests(
            new_id=new_id,
            timeout=settings.timeouts.client_request_ms / 1000,
            limit=fixed.pending_requests,
            on_closed=on_closed,
        )
        self.timers = Timers(new_id=new_id, limit=fixed.timers)
        # Results that were too large to be shown.
        self.results = Results(new_id=new_id, max_bytes=limits.stored_bytes)
        # What servers said without being asked.
        self.notifications: Rings[Notification] = Rings(
            capacity=fixed.notifications, servers=limits.servers, max_bytes=rings_bytes
        )
        self.logs: Rings[Line] = Rings(
            capacity=fixed.log_lines, servers=limits.servers, max_bytes=rings_bytes
        )
        # When a call that is in flight becomes a task.
        self.promotions: Deadlines[InFlight] = Deadlines()
        # Servers whose start is no news: no answer has named them yet.
        self.starting: set[str] = set()

    def __repr__(self) -> str:
        return f"<SessionState {self.events!r} {self.tasks!r} {self.requests!r}>"
