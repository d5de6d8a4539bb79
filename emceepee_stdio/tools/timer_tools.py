"""Timers of the client."""

from typing import Annotated

from msgspec import Meta

from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import IllegalMove, Timer, TimerStatus
from emceepee_stdio.tools.registry import Params

__all__ = [
    "DeleteTimer",
    "GetTimer",
    "ListTimers",
    "SetTimer",
    "delete_timer",
    "get_timer",
    "list_timers",
    "set_timer",
]

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
