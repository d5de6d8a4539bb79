"""Tools for timers: set, list, look at and delete them."""

from typing import Annotated

from msgspec import Meta

from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.machine import IllegalMove
from emceepee_stdio.state.timers import MAX_DURATION_S, Timer, TimerStatus
from emceepee_stdio.tools.registry import Params, read_only, tool

_MAX_MS = int(MAX_DURATION_S * 1000)

TimerId = Annotated[str, Meta(description="As set_timer gave it.")]


class SetTimer(Params):
    duration_ms: Annotated[int, Meta(ge=1, le=_MAX_MS, description="From now on.")]
    message: Annotated[
        str, Meta(min_length=1, max_length=500, description="What the event will say.")
    ]
    interval: Annotated[bool, Meta(description="Again and again until deleted.")] = False


class ListTimers(Params):
    include_inactive: Annotated[bool, Meta(description="Also those that have ended.")] = False


class OneTimer(Params):
    timer_id: TimerId


@tool()
async def set_timer(runtime: Runtime, p: SetTimer, _call: Call) -> Reply:
    """Set a timer or reminder: be told something later, once or at an interval, as a
    timer_expired event.
    """
    timer = runtime.session.state.timers.set(
        duration=p.duration_ms / 1000,
        message=p.message,
        repeats=p.interval,
        now=runtime.clock.now(),
    )
    runtime.session.ticker.look(timer.due_at)
    return Reply.json({"timer": _shown(runtime, timer)})


@tool(read_only)
async def list_timers(runtime: Runtime, p: ListTimers, _call: Call) -> Reply:
    """List your timers."""
    timers = runtime.session.state.timers.all(include_inactive=p.include_inactive)
    return Reply.json({"timers": [_shown(runtime, timer) for timer in timers]})


@tool(read_only)
async def get_timer(runtime: Runtime, p: OneTimer, _call: Call) -> Reply:
    """Show one timer."""
    return Reply.json({"timer": _shown(runtime, runtime.session.state.timers.get(p.timer_id))})


@tool()
async def delete_timer(runtime: Runtime, p: OneTimer, _call: Call) -> Reply:
    """Stop a timer."""
    try:
        timer = runtime.session.state.timers.delete(p.timer_id)
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
