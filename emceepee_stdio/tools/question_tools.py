"""Tools to see and answer what servers ask: of the user, and of the model."""

from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from emceepee_stdio.errors import InvalidArguments, PolicyDenied, ProxyError, RequestNotFound
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.content_blocks import sampled_problem
from emceepee_stdio.session.large_results import kept_whole, page_chars
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.response_context import (
    room_beside_context,
    shown_elicitation,
    shown_sampling,
)
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state import PendingRequest, Recipient, RequestKind, RequestStatus
from emceepee_stdio.tools.forms import form_problems, with_defaults
from emceepee_stdio.tools.listing import Cursor, Limit, page
from emceepee_stdio.tools.registry import Params
from emceepee_stdio.wire.codec import to_json

__all__ = [
    "GetElicitations",
    "GetSamplingRequests",
    "RespondToElicitation",
    "RespondToSampling",
    "get_elicitations",
    "get_sampling_requests",
    "respond_to_elicitation",
    "respond_to_sampling",
]

RequestId = Annotated[str, Meta(description="The question's request_id.")]


class GetElicitations(Params):
    """Which to show."""

    server: Annotated[str, Meta(description="Only of this server.")] | UnsetType = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class RespondToElicitation(Params):
    """The user's answer."""

    request_id: RequestId
    action: Annotated[
        Literal["accept", "decline", "cancel"],
        Meta(description="What the user decided."),
    ]
    content: (
        Annotated[
            dict[str, Any],
            Meta(description="With accept in form mode: the fields of the schema."),
        ]
        | UnsetType
    ) = UNSET


class GetSamplingRequests(Params):
    """Which to show."""

    server: Annotated[str, Meta(description="Only of this server.")] | UnsetType = UNSET


class RespondToSampling(Params):
    """The model's answer."""

    request_id: RequestId
    content: (
        Annotated[
            Raw,
            Meta(
                description="What you say: a string, a content block, or a list of blocks.",
                extra_json_schema={"type": ["string", "object", "array"]},
            ),
        ]
        | UnsetType
    ) = UNSET
    model: Annotated[str, Meta(description="Who says it.")] = "unknown"
    role: Annotated[Literal["assistant", "user"], Meta(description="As whom.")] = "assistant"
    stop_reason: Annotated[str, Meta(description="Why it ends.")] = "endTurn"
    action: Annotated[Literal["accept", "decline"], Meta(description="decline: no answer.")] = (
        "accept"
    )


async def get_elicitations(runtime: Runtime, p: GetElicitations, call: Call) -> Reply:
    server = None if p.server is UNSET else p.server
    pending = runtime.session.requests.pending(kind=RequestKind.ELICITATION, server=server)
    show = partial(shown_elicitation, runtime.session)
    entries, rest = page(
        pending,
        show,
        limit=p.limit,
        cursor=p.cursor,
        room=room_beside_context(runtime.session, call.budget),
    )
    return Reply.json({"elicitations": entries, **rest})


async def get_sampling_requests(runtime: Runtime, p: GetSamplingRequests, call: Call) -> Reply:
    """Whole, as many as one answer holds; of the others a preview, and where the whole is."""
    session = runtime.session
    server = None if p.server is UNSET else p.server
    room = call.budget or page_chars(runtime.settings)
    shown: list[dict[str, object]] = []
    for asked in session.requests.pending(kind=RequestKind.SAMPLING, server=server):
        entry = shown_sampling(session, asked, whole=True)
        size = len(to_json(entry))
        if size > room:
            whole = to_json(asked.params).decode()
            entry = shown_sampling(session, asked, whole=False)
            entry |= {"request_bytes": size, **kept_whole(session, whole, under=asked.id)}
        else:
            room -= size
        shown.append(entry)
    return Reply.json({"sampling_requests": shown})


async def respond_to_elicitation(runtime: Runtime, p: RespondToElicitation, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    session, now = runtime.session, runtime.clock.now()
    asked = session.requests.get(p.request_id, kind=RequestKind.ELICITATION, now=now)
    if asked.recipient is Recipient.PERSON:
        raise PolicyDenied(
            f"The user is being asked this question of {asked.server}, and answers it themselves.",
            hint="Wait with await_activity or get_task_result, or do something else meanwhile.",
        )
    is_form = p.action == "accept" and asked.params.get("mode", "form") == "form"
    content = _checked_form(asked, p) if is_form else None
    if not session.routing.answer(asked, p.action, content):
        raise _gone(asked)
    return Reply.json({"answered": asked.id, "server": asked.server, "action": p.action})


async def respond_to_sampling(runtime: Runtime, p: RespondToSampling, call: Call) -> Reply:  # noqa: ARG001 - the way of a tool
    session, now = runtime.session, runtime.clock.now()
    asked = session.requests.get(p.request_id, kind=RequestKind.SAMPLING, now=now)
    if p.action == "decline":
        session.routing.close(asked, RequestStatus.DECLINED)
        session.questions.refuse(asked, "The user declined the sampling request.")
        return Reply.json({"answered": asked.id, "server": asked.server, "action": "decline"})
    result = {
        "role": p.role,
        "content": _blocks(p.content),
        "model": p.model,
        "stopReason": p.stop_reason,
    }
    session.routing.close(asked, RequestStatus.COMPLETED)
    if not session.questions.answer(asked, to_json(result)):
        raise _gone(asked)
    return Reply.json({"answered": asked.id, "server": asked.server, "action": "accept"})


def _checked_form(asked: PendingRequest, p: RespondToElicitation) -> dict[str, object]:
    """The content, if it fits; otherwise the question stays open and the error says why."""
    known = mapping(asked.params.get("requestedSchema"))
    content = with_defaults({} if p.content is UNSET else p.content, known)
    problems = form_problems(content, known)
    if problems:
        raise InvalidArguments(
            f"The content does not fit what {asked.server} asked for: {'; '.join(problems)}.",
            hint="The question still waits: correct the content and answer again.",
        )
    return content


def _blocks(content: Raw | UnsetType) -> object:
    """A string becomes a text block; a block or a list of them goes as it is, if it is one."""
    if content is UNSET:
        raise InvalidArguments("content is missing: say something, or decline.")
    if bytes(memoryview(content)[:1]) == b'"':
        return {"type": "text", "text": msgspec.json.decode(content, type=str)}
    if bytes(memoryview(content)[:1]) not in (b"{", b"["):
        raise InvalidArguments("content must be a string, a content block or a list of blocks.")
    if problem := sampled_problem(content):
        raise InvalidArguments(
            f"content holds something that is no block of a model's answer: {problem}.",
            hint="The question still waits. Blocks are text, image, audio, tool_use and "
            "tool_result; plain words may be given as a string.",
        )
    return content


def _gone(asked: PendingRequest) -> ProxyError:
    return RequestNotFound(f"{asked.server} no longer waits for the answer to {asked.id}.")
