"""Calls in flight, and what a client reads of one that became a task: why, and how to go on.

A call belongs to one request of the client. When it has to be answered before its result is there,
it is promoted: the client gets a task, the call goes on, and its reply becomes the task's result.
"""

import math
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence

import anyio
import msgspec
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.backends.interface import Cancel
from emceepee_stdio.clock import Clock
from emceepee_stdio.foreign_json import decoded, number
from emceepee_stdio.journal import redact
from emceepee_stdio.session.person import ClientRequest, Person
from emceepee_stdio.session.questions import question_of
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.server_output import fields_of
from emceepee_stdio.state.event_log import Lease
from emceepee_stdio.state.pending_requests import PendingRequest, Recipient, RequestKind
from emceepee_stdio.state.tasks import Slot, Task
from emceepee_stdio.trace.request import OpenRequest
from emceepee_stdio.wire.codec import to_json

UNLIMITED = sys.maxsize

# What is to be answered: a reply, the wait for one, or nothing yet because a request is under way.
Work = Callable[[], "Reply | Coroutine[object, object, Reply | None] | None"]


class CallEnd:
    """The client's end of its calls. This one drops what it is given: no client waits."""

    def answer(self, call: "Call", reply: Reply) -> None:
        """Send the answer."""

    def proceed(self, call: "Call", work: Work) -> None:
        """Answer with what the work gives."""

    def progress(self, call: "Call", params: Raw) -> None:
        """Pass on a progress notification of its server."""

    def status(self, call: "Call", text: str) -> None:
        """Report what we do for it before its server can report anything."""


class CallingClient(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What calls need to know of their client. It is the same for all calls until it is renamed."""

    ceiling: float  # seconds that it waits at most
    budget: int = UNLIMITED  # bytes of an answer that it shows, see `rendering.answer_budget`
    context_first: bool = False  # it cuts the end of an answer, so what matters comes first
    name: str = ""  # its own, which a person is shown
    person: Person | None = None
    end: CallEnd = CallEnd()


class ServerRun(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What a call runs at a server."""

    server: str
    tool: str
    args: Raw | None = None  # as the client gave them
    ttl: float | None = None  # seconds of the task that it may become
    note: str | None = None  # is added to the answer of a promotion


class Call(msgspec.Struct, eq=False, kw_only=True):
    """One call of the client: what was asked stays as it is, how far it is the session changes."""

    # What was asked
    client: CallingClient
    wants_roots: bool = False  # nothing was done for it yet: it can be made again with them
    request: ClientRequest = ClientRequest()  # another one when a modern client makes it again
    trace: OpenRequest = msgspec.field(
        default_factory=lambda: OpenRequest(now=lambda: 0.0, started_at=0.0, since=0.0)
    )
    # How far it has come
    run: ServerRun | None = None  # from `Session.begin` on
    began_at: float = 0.0
    deadline: float = math.inf  # then it becomes a task
    promote_at: float = math.inf  # then it becomes one if its server waits for an answer
    slot: Slot | None = None  # its place in the limit of calls
    task: str | None = None
    answered: bool = False
    is_paused: bool = False  # its client asks a question first; a reply is kept in `kept`
    kept: Reply | None = None
    own_scope: anyio.CancelScope | None = None
    cancel_request: Cancel | None = None  # gives up the request that it waits for
    # Questions at the tools that it may have raised; those at the person are counted by `trace`.
    questions: frozenset[str] = frozenset()
    leases: tuple[Lease, ...] = ()  # of events that its reply reports

    def __repr__(self) -> str:
        state = self.task or ("answered" if self.answered else "in flight")
        return f"<Call {self.server or '-'}/{self.tool} {state}>"

    @property
    def server(self) -> str | None:
        """Where it runs; None for a call that waits on no server."""
        return None if self.run is None else self.run.server

    @property
    def tool(self) -> str:
        """What it runs: a tool of a server, or one of ours."""
        return self.request.tool if self.run is None else self.run.tool

    @property
    def meta(self) -> Mapping[str, Raw]:
        """What the client says to the server beside the arguments."""
        return self.request.meta

    @property
    def scope(self) -> anyio.CancelScope:
        """Around the task that works on it; most calls need none."""
        if self.own_scope is None:
            self.own_scope = anyio.CancelScope()
        return self.own_scope

    def cancel(self) -> None:
        """Stop the work on it."""
        if self.cancel_request is not None:
            self.cancel_request()
        self.scope.cancel()


# What a client reads of a call that has become a task: why, with what, how far, how to go on.
#
# Nothing is claimed beyond what is known: that a call waits for the answer to a question is said
# only where it is known to have asked it.


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
    value = decoded(text, object)
    return text if value is None else value


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
