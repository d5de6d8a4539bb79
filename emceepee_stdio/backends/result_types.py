"""What kind of result came: a complete one, one that asks first, or one that we do not know.

What is not known is an error that says what came: read as a complete result it would be an empty
success, and whatever the server did would be lost.
"""

import msgspec
from msgspec import Raw

from emceepee_stdio.errors import CallFailed, NotSupported, ProxyError
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.wire.codec import to_json

__all__ = ["COMPLETE", "INPUT_REQUIRED", "result_type", "task_refused", "type_refused"]

COMPLETE = "complete"
INPUT_REQUIRED = "input_required"
_TASK = "task"
_SHOWN_CHARS = 300


class _Typed(msgspec.Struct, rename="camel"):
    result_type: object = None


class _Handle(msgspec.Struct, rename="camel"):
    task_id: object = None
    status: object = None


_read_typed = envelope_decoder(_Typed)
_read_handle = envelope_decoder(_Handle)


def result_type(result: Raw) -> object:
    """What a result of the modern era says that it is; without a word it is complete."""
    try:
        said = _read_typed(result).result_type
    except (msgspec.MsgspecError, RecursionError):
        return COMPLETE  # no object, or beyond what can be read: for others to judge
    return COMPLETE if said is None else said


def type_refused(server: str, said: object, result: Raw) -> ProxyError:
    """The error for a result of a type that we cannot take."""
    if said == _TASK:
        return task_refused(server, result)
    shown = bytes(memoryview(result)[:_SHOWN_CHARS]).decode(errors="replace")
    named = to_json(said)[:_SHOWN_CHARS].decode(errors="replace")
    return CallFailed(
        f"{server} answered with the unknown result type {named}: {shown}",
        hint="The server may have carried it out: check before you call again.",
    )


def task_refused(server: str, handle: Raw) -> NotSupported:
    """The error for a task of the protocol that came in place of a result."""
    try:
        task = _read_handle(handle)
    except (msgspec.MsgspecError, RecursionError):
        task = _Handle()
    named = to_json({"id": task.task_id, "status": task.status})[:_SHOWN_CHARS]
    return NotSupported(
        f"{server} answered with a task of its own in place of a result, which emceepee cannot "
        f"follow: {named.decode(errors='replace')}",
        hint="The server may go on with it: check before you call again.",
    )
