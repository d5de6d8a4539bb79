"""Tools for calls that became tasks, and for waiting until something happens."""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import replace

from emceepee_stdio.config.settings import FixedValues
from emceepee_stdio.errors import CallFailed
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.session.client_calls import Call, shown_task
from emceepee_stdio.session.rendering import (
    lease_events,
    pending_client,
    shown_elicitations,
    task_of,
)
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.event_log import Lease
from emceepee_stdio.state.event_types import Event, EventType
from emceepee_stdio.state.machine import IllegalMove
from emceepee_stdio.state.tasks import TaskStatus
from emceepee_stdio.tools.diverted_results import SelectProgram, selected
from emceepee_stdio.tools.listing import Cursor, Limit, page_for
from emceepee_stdio.tools.registry import (
    Params,
    WaitMs,
    always_loaded,
    destructive,
    pages,
    read_only,
    tool,
)

_SHOWN_ID_CHARS = 100  # an id of ours has 26; what else a client sends is shown in part


class AwaitActivity(Params):
    timeout_ms: Annotated[
        WaitMs | UnsetType,
        Meta(
            description="Wait at most this long.",
            extra_json_schema={"default": round(FixedValues().await_s * 1000)},
        ),
    ] = UNSET
    last_event_id: Annotated[
        str | UnsetType, Meta(description="Get everything after this event, even if told before.")
    ] = UNSET


@tool(read_only, meta=always_loaded)
async def await_activity(runtime: Runtime, p: AwaitActivity, call: Call) -> Reply:
    """Wait for something to happen: a slow call or task ends, a question comes, a notification,
    a timer. Answers at once when something is new already.
    """
    session = runtime.session
    wanted = runtime.settings.fixed.await_s if p.timeout_ms is UNSET else p.timeout_ms / 1000
    triggers: list[Mapping[str, object]] = [{"type": "immediate"}]
    woken_by: list[Event] = []
    is_lost = _is_lost(runtime, p)
    lease = _take(runtime, p)
    if not lease.events:
        session.state.events.release(lease)
        before = session.state.events.latest
        await session.until(
            lambda: session.state.events.latest > before, within=min(wanted, call.client.ceiling)
        )
        woken_by = session.state.events.since(before)
        triggers = _triggers(woken_by)
        lease = _take(runtime, p)
    told_elsewhere = _told_elsewhere(runtime, woken_by, lease)
    lease, events = lease_events(session, lease, call.client.budget)
    session.report_in(call, lease)
    body: dict[str, object] = {
        "triggers": triggers,
        "events": _by_server(events),
        "pending_server": _working(runtime),
        "pending_client": pending_client(session, call.client.budget),
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
    if p.last_event_id is UNSET or runtime.session.state.events.keeps(p.last_event_id):
        return False
    runtime.journal.record(
        JournalEvent.EVENT_CURSOR_NOT_FOUND, last_event_id=p.last_event_id[:_SHOWN_ID_CHARS]
    )
    return True


def _told_elsewhere(runtime: Runtime, woken_by: list[Event], lease: Lease) -> int:
    """How many of the events that ended the wait are in another answer."""
    here = {event.seq for event in lease.events} | runtime.session.state.events.undelivered.keys()
    return sum(event.seq not in here for event in woken_by)


def _take(runtime: Runtime, p: AwaitActivity) -> Lease:
    limit = runtime.settings.fixed.response_events
    if p.last_event_id is UNSET:
        return runtime.session.state.events.take(limit=limit)
    return runtime.session.state.events.take_after(p.last_event_id, limit=limit)


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
    for task in runtime.session.state.tasks.working():
        groups.setdefault(task.server, []).append(shown_task(task, runtime.clock))
    return [{"server": server, "working_tasks": tasks} for server, tasks in groups.items()]


TaskId = Annotated[str, Meta(description="As the call or list_tasks gave it.")]


class ListTasks(Params):
    server: Annotated[str | UnsetType, Meta(description="Only of this server.")] = UNSET
    status: Annotated[
        Literal["working", "completed", "failed", "cancelled", "expired"] | UnsetType,
        Meta(description="Only these."),
    ] = UNSET
    include_completed: Annotated[bool, Meta(description="Also those that have ended.")] = False
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class OneTask(Params):
    task_id: TaskId


class GetTaskResult(Params):
    task_id: TaskId
    timeout_ms: Annotated[
        WaitMs | UnsetType,
        Meta(description="Longest wait for its end; else as long as this client waits."),
    ] = UNSET
    select: SelectProgram | UnsetType = UNSET


@tool(read_only, meta=pages)
async def list_tasks(runtime: Runtime, p: ListTasks, call: Call) -> Reply:
    """List background tasks: slow calls that are still running, or have ended."""
    session = runtime.session
    with_ended = p.include_completed or p.status not in (UNSET, TaskStatus.WORKING)
    tasks = [
        task
        for task in session.state.tasks.all()
        if (with_ended or task.status is TaskStatus.WORKING)
        and p.server in (UNSET, task.server)
        and p.status in (UNSET, task.status.value)
    ]
    show = partial(shown_task, clock=runtime.clock)
    entries, rest = page_for(runtime, p, call, tasks, show)
    return Reply.json({"tasks": entries, **rest})


@tool(read_only)
async def get_task(runtime: Runtime, p: OneTask, _call: Call) -> Reply:
    """Status of a background task, and the questions that its server has open."""
    session = runtime.session
    task = session.state.tasks.get(p.task_id, now=runtime.clock.now())
    return Reply.json(
        {
            "task": shown_task(task, runtime.clock),
            "pending_elicitations_for_server": shown_elicitations(session, task.server),
        }
    )


@tool(read_only, meta=always_loaded | pages)
async def get_task_result(runtime: Runtime, p: GetTaskResult, call: Call) -> Reply:
    """Get the result of a background task; waits for it.

    Returns early when its server asks a question.
    """
    # A question or sign-in that the client has not seen ends the wait, too.
    session, now = runtime.session, runtime.clock.now
    task, sign_in = session.state.tasks.get(p.task_id, now=now()), runtime.sign_ins.pending
    told = (None, sign_in(task.server))

    def is_time() -> bool:
        current = session.state.tasks.get(p.task_id, now=now())
        asks = runtime.settings.promote_on_input and session.state.requests.has_news(
            server=task.server
        )
        return current.status is not TaskStatus.WORKING or asks or sign_in(task.server) not in told

    wanted = call.client.ceiling if p.timeout_ms is UNSET else p.timeout_ms / 1000
    await session.until(is_time, within=min(wanted, call.client.ceiling))
    task = session.fetch(p.task_id)
    if isinstance(task.result, Reply):
        return await selected(runtime, call, replace(task.result, key=task.id), p.select)
    if task.status is TaskStatus.WORKING:
        asked = session.state.requests.pending(server=task.server)
        waits = session.state.requests.at_tools(server=task.server)
        reason = "it is still working"
        if step := sign_in(task.server):
            reason = f"{task.server} wants a person to sign in first: {step}"
        elif asked and not waits:
            reason = f"{reason}; the user is being asked a question of {task.server}"
        elif task.id in map(task_of, waits):
            reason = "it waits for the answer to a question"
        elif waits:
            reason = f"{reason}; {task.server} has a question open"
        return Reply.sentence(
            f"No result yet: {reason}.",
            {
                "task": shown_task(task, runtime.clock),
                "pending_elicitations_for_server": shown_elicitations(session, task.server),
            },
        )
    if task.status is TaskStatus.FAILED and task.error:
        return Reply.text(task.error, is_error=True)
    raise CallFailed(
        f"Task {task.id} has no result: it was {task.status.value}"
        f"{f' ({task.error})' if task.error else ''}.",
        hint="Run the tool again if the result is still wanted.",
    )


@tool(destructive)
async def cancel_task(runtime: Runtime, p: OneTask, call: Call) -> Reply:
    """Stop a background task that is still running: cancel a slow call. Its server is told."""
    try:
        task = runtime.session.cancel_task(p.task_id, by=call)
    except IllegalMove as refused:
        message = f"It had already ended: {refused.source.value}."
        return Reply.json({"success": False, "message": message})
    return Reply.json(
        {"success": True, "message": f"{task.tool} on {task.server} was told to stop."}
    )
