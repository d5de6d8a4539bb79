"""await_activity: waits until something happens."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.config import FixedValues
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.session.client_calls import Call, shown_task
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.response_context import lease_events, pending_client
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import Event, EventType, Lease
from emceepee_stdio.tools.registry import Params

_SHOWN_ID_CHARS = 100  # an id of ours has 26; what else a client sends is shown in part


class AwaitActivity(Params):
    """How long, and from where on."""

    timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=900_000,
                description="Wait at most this long.",
                extra_json_schema={"default": round(FixedValues().await_s * 1000)},
            ),
        ]
        | UnsetType
    ) = UNSET
    last_event_id: (
        Annotated[str, Meta(description="Get everything after this event, even if told before.")]
        | UnsetType
    ) = UNSET


async def await_activity(runtime: Runtime, p: AwaitActivity, call: Call) -> Reply:
    session = runtime.session
    wanted = runtime.settings.fixed.await_s if p.timeout_ms is UNSET else p.timeout_ms / 1000
    triggers: list[Mapping[str, object]] = [{"type": "immediate"}]
    woken_by: list[Event] = []
    is_lost = _is_lost(runtime, p)
    lease = _take(runtime, p)
    if not lease.events:
        session.events.release(lease)
        before = session.events.latest
        await session.until(
            lambda: session.events.latest > before, within=min(wanted, call.ceiling)
        )
        woken_by = session.events.since(before)
        triggers = _triggers(woken_by)
        lease = _take(runtime, p)
    told_elsewhere = _told_elsewhere(runtime, woken_by, lease)
    lease, events = lease_events(session, lease, call.budget)
    call.lease = lease
    body: dict[str, object] = {
        "triggers": triggers,
        "events": _by_server(events),
        "pending_server": _working(runtime),
        "pending_client": pending_client(session, call.budget),
    }
    if lease.remaining:
        body["events_remaining"] = lease.remaining
    if told_elsewhere:
        body["told_elsewhere"] = told_elsewhere
    if is_lost:
        body["cursor_not_found"] = True
    if events:
        body["last_event_id"] = events[-1]["id"]
    return Reply.json(body, whole=True)


def _is_lost(runtime: Runtime, p: AwaitActivity) -> bool:
    """Whether the client goes on from an event that is not kept; then it gets all that are."""
    if p.last_event_id is UNSET or runtime.session.events.keeps(p.last_event_id):
        return False
    runtime.journal.record(
        JournalEvent.EVENT_CURSOR_NOT_FOUND, last_event_id=p.last_event_id[:_SHOWN_ID_CHARS]
    )
    return True


def _told_elsewhere(runtime: Runtime, woken_by: list[Event], lease: Lease) -> int:
    """How many of the events that ended the wait are in another answer."""
    here = {event.seq for event in lease.events} | runtime.session.events.undelivered.keys()
    return sum(event.seq not in here for event in woken_by)


def _take(runtime: Runtime, p: AwaitActivity) -> Lease:
    limit = runtime.settings.fixed.response_events
    if p.last_event_id is UNSET:
        return runtime.session.events.take(limit=limit)
    return runtime.session.events.take_after(p.last_event_id, limit=limit)


def _triggers(events: list[Event]) -> list[Mapping[str, object]]:
    """Why the wait ended, one for each kind and server, whoever got the events themselves."""
    triggers: dict[tuple[EventType, str | None], dict[str, object]] = {}
    for event in events:
        lost = event.type is EventType.SERVER_DISCONNECTED
        trigger: dict[str, object] = {"type": "server_disconnected" if lost else "event"}
        if event.server is not None:
            trigger["server"] = event.server
        if not lost:
            trigger["event_type"] = event.type.value
        triggers[event.type, event.server] = trigger
    return list(triggers.values()) or [{"type": "timeout"}]


def _by_server(events: list[dict[str, object]]) -> list[dict[str, object]]:
    """In the order of events, one group for each server."""
    groups: dict[object, list[dict[str, object]]] = {}
    for event in events:
        groups.setdefault(event["server"], []).append(event)
    return [{"server": server, "events": group} for server, group in groups.items()]


def _working(runtime: Runtime) -> list[dict[str, object]]:
    groups: dict[str, list[dict[str, object]]] = {}
    for task in runtime.session.tasks.working():
        groups.setdefault(task.server, []).append(shown_task(task, runtime.clock))
    return [{"server": server, "working_tasks": tasks} for server, tasks in groups.items()]
