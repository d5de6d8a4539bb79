"""The parts of a session's state, each within the bounds that the settings give it."""

from emceepee_stdio.config import Settings
from emceepee_stdio.ids import Ids
from emceepee_stdio.session.server_output import event_bytes
from emceepee_stdio.state import EventLog, Requests, Tasks

__all__ = ["bounded_events", "bounded_requests", "bounded_tasks"]


def bounded_events(settings: Settings, ids: Ids) -> EventLog:
    capacity, max_bytes = settings.fixed.events, event_bytes(settings.limits)
    return EventLog(new_id=ids, capacity=capacity, max_bytes=max_bytes)


def bounded_tasks(settings: Settings, ids: Ids, *, began: str) -> Tasks:
    limits, fixed = settings.limits, settings.fixed
    return Tasks(
        new_id=ids,
        limit=limits.tasks,
        ttl=min(settings.timeouts.task_ttl_ms / 1000, fixed.task_ttl_max_s),
        max_ttl=fixed.task_ttl_max_s,
        retention=fixed.result_retention_s,
        max_finished=fixed.finished_tasks,
        max_bytes=limits.stored_bytes,
        began=began,
    )


def bounded_requests(settings: Settings, ids: Ids) -> Requests:
    timeout = settings.timeouts.client_request_ms / 1000
    return Requests(new_id=ids, timeout=timeout, limit=settings.fixed.pending_requests)
