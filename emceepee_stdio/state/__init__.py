"""The state of a session: pure, synchronous, without a clock.

Every change takes `now`; every class with deadlines has `next_deadline()` and `expire(now=…)`; what
happened comes back as a value. Nothing here waits, writes or knows who is listening.
"""

from emceepee_stdio.state.diagrams import Diagram, diagrams
from emceepee_stdio.state.event_log import EventLog, Lease
from emceepee_stdio.state.event_types import Event, EventData, EventType, Excerpt, fold_key
from emceepee_stdio.state.machine import IllegalMove
from emceepee_stdio.state.patterns import Pattern
from emceepee_stdio.state.pending_requests import (
    AutomaticAnswers,
    ClosedBy,
    PendingRequest,
    Recipient,
    RequestKind,
    Requests,
    RequestStatus,
)
from emceepee_stdio.state.phases import PHASES, Phase, RestartPolicy, Restarts
from emceepee_stdio.state.results import Results
from emceepee_stdio.state.ring import Reading, Ring, Rings
from emceepee_stdio.state.session_state import SessionState
from emceepee_stdio.state.tasks import Slot, Task, Tasks, TaskStatus
from emceepee_stdio.state.timers import Timer, Timers, TimerStatus

__all__ = [
    "PHASES",
    "AutomaticAnswers",
    "ClosedBy",
    "Diagram",
    "Event",
    "EventData",
    "EventLog",
    "EventType",
    "Excerpt",
    "IllegalMove",
    "Lease",
    "Pattern",
    "PendingRequest",
    "Phase",
    "Reading",
    "Recipient",
    "RequestKind",
    "RequestStatus",
    "Requests",
    "RestartPolicy",
    "Restarts",
    "Results",
    "Ring",
    "Rings",
    "SessionState",
    "Slot",
    "Task",
    "TaskStatus",
    "Tasks",
    "Timer",
    "TimerStatus",
    "Timers",
    "diagrams",
    "fold_key",
]
