"""Tools for tasks (list, look, fetch the result, cancel) and for timers."""

from dataclasses import replace
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.session.client_calls import Call, shown_task
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.response_context import room_beside_context, shown_elicitations, task_of
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import IllegalMove, TaskStatus, Timer, TimerStatus
from emceepee_stdio.tools.listing import Cursor, Limit, page
from emceepee_stdio.tools.registry import Params

TaskId = Annotated[str, Meta(description="As the call or list_tasks gave it.")]


class ListTasks(Params):
    """Which to show."""

    server: Annotated[str, Meta(description="Only of this server.")] | UnsetType = UNSET
    status: (
        Annotated[
            Literal["working", "completed", "failed", "cancelled", "expired"],
            Meta(description="Only these."),
        ]
        | UnsetType
    ) = UNSET
    include_completed: Annotated[bool, Meta(description="Also those that have ended.")] = False
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class GetTask(Params):
    """Which."""

    task_id: TaskId


class GetTaskResult(Params):
    """Which, and how long to wait for it."""

    task_id: TaskId
    timeout_ms: (
        Annotated[
            int,
            Meta(
                ge=0,
                le=900_000,
                description="Longest wait for its end; else as long as this client waits.",
            ),
        ]
        | UnsetType
    ) = UNSET


class CancelTask(Params):
    """Which."""

    task_id: TaskId


async def list_tasks(runtime: Runtime, p: ListTasks, call: Call) -> Reply:
    session = runtime.session
    with_ended = p.include_completed or p.status not in (UNSET, TaskStatus.WORKING)
    tasks = [
        task
        for task in session.tasks.all()
        if (with_ended or task.status is TaskStatus.WORKING)
        and p.server in (UNSET, task.server)
        and p.status in (UNSET, task.status.value)
    ]
    entries, rest = page(
        tasks,
        lambda task: shown_task(task, runtime.clock),
        limit=p.limit,
        cursor=p.cursor,
        room=room_beside_context(runtime.session, call.budget),
    )
    return Reply.json({"tasks": entries, **rest})


async def get_task(runtime: Runtime, p: GetTask, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    session = runtime.session
    task = session.tasks.get(p.task_id, now=runtime.clock.now())
    return Reply.json(
        {
            "task": shown_task(task, runtime.clock),
            "pending_elicitations_for_server": shown_elicitations(session, task.server),
        }
    )


async def get_task_result(runtime: Runtime, p: GetTaskResult, call: Call) -> Reply:
    """Wait for the end; a question or sign-in that the client was not told of ends the wait."""
    session, now = runtime.session, runtime.clock.now
    task, sign_in = session.tasks.get(p.task_id, now=now()), runtime.sign_ins.pending
    told = (None, sign_in(task.server))

    def is_time() -> bool:
        current = session.tasks.get(p.task_id, now=now())
        asks = runtime.settings.promote_on_input and session.requests.has_news(server=task.server)
        return current.status is not TaskStatus.WORKING or asks or sign_in(task.server) not in told

    wanted = call.ceiling if p.timeout_ms is UNSET else p.timeout_ms / 1000
    await session.until(is_time, within=min(wanted, call.ceiling))
    task = session.fetch(p.task_id)
    if isinstance(task.result, Reply):
        return replace(task.result, key=task.id)
    if task.status is TaskStatus.WORKING:
        asked = session.requests.pending(server=task.server)
        waits = session.requests.at_tools(server=task.server)
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


async def cancel_task(runtime: Runtime, p: CancelTask, call: Call) -> Reply:
    try:
        task = runtime.session.cancel_task(p.task_id, by=call)
    except IllegalMove as refused:
        message = f"It had already ended: {refused.source.value}."
        return Reply.json({"success": False, "message": message})
    return Reply.json(
        {"success": True, "message": f"{task.tool} on {task.server} was told to stop."}
    )


# Timers of the client.


TimerId = Annotated[str, Meta(description="As set_timer gave it.")]


class SetTimer(Params):
    """When, and what to be told."""

    duration_ms: Annotated[int, Meta(ge=1, le=86_400_000, description="From now on.")]
    message: Annotated[
        str, Meta(min_length=1, max_length=500, description="What the event will say.")
    ]
    interval: Annotated[bool, Meta(description="Again and again until deleted.")] = False


class ListTimers(Params):
    """Which to show."""

    include_inactive: Annotated[bool, Meta(description="Also those that have ended.")] = False


class GetTimer(Params):
    """Which."""

    timer_id: TimerId


class DeleteTimer(Params):
    """Which."""

    timer_id: TimerId


async def set_timer(runtime: Runtime, p: SetTimer, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    timer = runtime.session.timers.set(
        duration=p.duration_ms / 1000,
        message=p.message,
        repeats=p.interval,
        now=runtime.clock.now(),
    )
    runtime.session.ticker.look(timer.due_at)
    return Reply.json({"timer": _shown(runtime, timer)})


async def list_timers(runtime: Runtime, p: ListTimers, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    timers = runtime.session.timers.all(include_inactive=p.include_inactive)
    return Reply.json({"timers": [_shown(runtime, timer) for timer in timers]})


async def get_timer(runtime: Runtime, p: GetTimer, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    return Reply.json({"timer": _shown(runtime, runtime.session.timers.get(p.timer_id))})


async def delete_timer(runtime: Runtime, p: DeleteTimer, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    try:
        timer = runtime.session.timers.delete(p.timer_id)
    except IllegalMove as refused:
        message = f"It had already ended: {refused.source.value}."
        return Reply.json({"success": False, "message": message})
    return Reply.json({"success": True, "timer": _shown(runtime, timer)})


def _shown(runtime: Runtime, timer: Timer) -> dict[str, object]:
    shown: dict[str, object] = {
        "timer_id": timer.id,
        "status": timer.status.value,
        "message": timer.message,
        "duration_ms": round(timer.duration * 1000),
        "interval": timer.repeats,
        "created_at": runtime.clock.iso(timer.created_at),
        "fired": timer.fired,
    }
    if timer.status is TimerStatus.ACTIVE:
        left = max(timer.due_at - runtime.clock.now(), 0.0)
        shown |= {"due_at": runtime.clock.iso(timer.due_at), "due_in_ms": round(left * 1000)}
    return shown
