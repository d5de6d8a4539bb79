"""What a client reads when its call has become a task: why, and how to go on."""

from collections.abc import Iterable, Sequence

from emceepee_stdio.clock import Clock
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.state import Task

__all__ = ["promoted", "shown_task"]


def shown_task(task: Task, clock: Clock) -> dict[str, object]:
    """A task as the client sees it."""
    shown: dict[str, object] = {
        "task_id": task.id,
        "status": task.status.value,
        "created_at": clock.iso(task.created_at),
        "last_updated_at": clock.iso(task.updated_at),
        "expires_at": clock.iso(task.expires_at),
        "server": task.server,
        "tool": task.tool,
    }
    if task.error is not None:
        shown["error"] = task.error
    return shown


def promoted(
    task: Task,
    reason: str,
    *,
    note: str | None,
    working: Iterable[Task],
    asked: Sequence[str],
    clock: Clock,
) -> Reply:
    """The answer in the place of a result; `working` and `asked` are what its server has open."""
    why = (
        f"{task.server} asks a question before it goes on with {task.tool}: answer it, "
        if reason == "input_required"
        else f"{task.tool} on {task.server} is still running: go on with other things, "
    )
    return Reply.sentence(
        f"{why}then call await_activity or get_task_result with task_id {task.id}."
        + (f" {note}" if note else ""),
        {
            "proxy_task": shown_task(task, clock),
            "reason": reason,
            "pending_on_server": {
                "tasks": [shown_task(other, clock) for other in working],
                "elicitations_for_server": asked,
            },
        },
    )
