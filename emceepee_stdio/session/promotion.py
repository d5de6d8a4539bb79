"""What a client reads of a call that has become a task: why, with what, how far, how to go on.

Nothing is claimed beyond what is known: that a call waits for the answer to a question is said only
where it is known to have asked it.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decode_value, number
from emceepee_stdio.journal import redact
from emceepee_stdio.session.params import fields_of
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.state import PendingRequest, Recipient, RequestKind, Task
from emceepee_stdio.wire.codec import to_json

__all__ = ["progress_text", "promoted", "shown_arguments", "shown_task", "why_promoted"]

_SHOWN_BYTES = 500  # of the arguments: enough to tell two tasks of one tool apart
_READ_BYTES = 100_000  # larger arguments are not worth the time to look for secrets in them
_MESSAGE_CHARS = 200
_ANSWERING = {
    RequestKind.ELICITATION: "respond_to_elicitation",
    RequestKind.SAMPLING: "respond_to_sampling",
}


class _Progress(msgspec.Struct):
    progress: Raw | UnsetType = UNSET
    total: Raw | UnsetType = UNSET
    message: str | None = None


def shown_arguments(args: Raw | None, *, mask: Callable[[str], str]) -> object:
    """The arguments of a call without their secrets; a text that is cut where they are long."""
    size = 0 if args is None else len(memoryview(args))
    if size > _READ_BYTES:
        return f"{size} bytes"
    fields = fields_of(args)
    if not fields:
        return None
    text = mask(to_json(redact(fields)).decode())
    if len(text) > _SHOWN_BYTES:
        return f"{text[:_SHOWN_BYTES]} … (cut from {len(text)} characters)"
    try:
        return decode_value(text)
    except msgspec.MsgspecError:
        return text


def progress_text(params: Raw) -> str | None:
    """What a progress notification says, in one line; None where it cannot be read."""
    try:
        said = msgspec.json.decode(params, type=_Progress)
        progress, total = number(said.progress), number(said.total)
    except (msgspec.MsgspecError, RecursionError):
        return None
    message = (said.message or "")[:_MESSAGE_CHARS]
    if progress is None:
        return message or None
    far = f"{progress:.15g}" + ("" if total is None else f" of {total:.15g}")
    return f"{message} ({far})" if message else far


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
    if task.args is not None:
        shown["tool_args"] = task.args
    if task.status_message is not None:
        shown["status_message"] = task.status_message
    if task.error is not None:
        shown["error"] = task.error
    return shown


def why_promoted(task: Task, open_questions: Sequence[PendingRequest], call: object) -> str:
    """Why a call became a task, with what its server asks at the moment."""
    at_tools = [asked for asked in open_questions if asked.recipient is Recipient.TOOLS]
    raisers = [question_of(asked).call for asked in at_tools]
    tools = " and ".join(sorted({_ANSWERING[asked.kind] for asked in at_tools}))
    if call in raisers:
        return (
            f"{task.server} asks a question before it goes on with {task.tool}: answer it with "
            f"{tools}, "
        )
    if raisers:
        return (
            f"{task.tool} on {task.server} is still running; {task.server} has a question open: "
            f"answer it with {tools}, "
        )
    if open_questions:
        return (
            f"{task.tool} on {task.server} is still running; the user is being asked a question of "
            f"{task.server}: go on with other things, "
        )
    return f"{task.tool} on {task.server} is still running: go on with other things, "


def promoted(
    task: Task,
    reason: str,
    *,
    why: str,
    note: str | None,
    working: Iterable[Task],
    questions: Iterable[PendingRequest],
    word: str,
    clock: Clock,
) -> Reply:
    """The answer in the place of a result; `working` and `questions` are its server's.

    The task is named once, and its questions by their ids: the context of the answer shows them.
    """
    shown = shown_task(task, clock)
    del shown["last_updated_at"]  # it has just been made
    return Reply.sentence(
        f"{why}then call await_activity, or get_task_result with its task_id."
        + (f" {note}" if note else ""),
        {
            "proxy_task": shown,
            "reason": reason,
            "pending_on_server": {
                "tasks": [shown_task(other, clock) for other in working if other.id != task.id],
                "elicitations_for_server": [
                    asked.id for asked in questions if asked.kind is RequestKind.ELICITATION
                ],
            },
            "word": word,
        },
    )
