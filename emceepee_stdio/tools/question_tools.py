"""Tools to see and answer elicitations and sampling requests of servers."""

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from emceepee_stdio.errors import InvalidArguments, PolicyDenied, ProxyError, RequestNotFound
from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.rendering import (
    kept_whole,
    page_chars,
    shown_elicitation,
    shown_sampling,
)
from emceepee_stdio.session.reply import Reply, sampled_problem
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.state.pending_requests import (
    PendingRequest,
    Recipient,
    RequestKind,
    RequestStatus,
)
from emceepee_stdio.tools.listing import Cursor, Limit, page_for
from emceepee_stdio.tools.registry import (
    Params,
    always_loaded,
    asks_the_user,
    destructive,
    pages,
    read_only,
    tool,
)
from emceepee_stdio.wire.codec import INVALID_REQUEST, RpcError, to_json

# The flat schemas of elicitation: whether an answer answers the question.
#
# Only what the protocol allows in a form is known: strings, numbers, booleans, choices, and lists
# of choices. Every mistake is named, so that the answer can be mended in one go.


Schema = Mapping[str, object]

_FORMATS = {
    "email": re.compile(r"[^@\s]+@[^@\s]+"),
    "uri": re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+"),
    "date": re.compile(r"\d{4}-\d{2}-\d{2}"),
    "date-time": re.compile(
        r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?([Zz]|[+-]\d{2}:\d{2})?"
    ),
}


def form_problems(content: Mapping[str, object], schema: Schema) -> list[str]:
    """What is wrong with an answer, one sentence each; nothing when it fits."""
    properties = mapping(schema.get("properties"))
    required = elements(schema.get("required"))
    problems = [f"{name} is missing" for name in required if name not in content]
    for name, value in content.items():
        if name in properties:
            problems += [f"{name} {what}" for what in _field(value, mapping(properties[name]))]
        elif properties:
            problems.append(f"{name} was not asked for; known are {', '.join(properties)}")
    return problems


def with_defaults(content: Mapping[str, object], schema: Schema) -> dict[str, object]:
    """The answer, and the schema's own default for every field that it leaves out."""
    fields = {name: mapping(field) for name, field in mapping(schema.get("properties")).items()}
    defaults = {
        name: field["default"]
        for name, field in fields.items()
        if "default" in field and not any(_field(field["default"], field))
    }
    return {**defaults, **content}


def _field(value: object, schema: Schema) -> Iterator[str]:
    choices = choices_of(schema)
    if choices:
        if value not in choices:
            yield f"must be one of {', '.join(map(repr, choices))}"
        return
    match schema.get("type"):
        case "string":
            yield from _string(value, schema)
        case "integer" | "number" as kind:
            yield from _number(value, schema, whole=kind == "integer")
        case "boolean":
            if not isinstance(value, bool):
                yield "must be true or false"
        case "array":
            yield from _array(value, schema)
        case _:
            pass


def _string(value: object, schema: Schema) -> Iterator[str]:
    if not isinstance(value, str):
        yield "must be a string"
        return
    yield from _bounds(len(value), schema, ("minLength", "maxLength"), "must have {} {} characters")
    expected = _FORMATS.get(str(schema.get("format")))
    if expected is not None and not expected.fullmatch(value):
        yield f"must be a valid {schema['format']}"


def _number(value: object, schema: Schema, *, whole: bool) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield "must be a whole number" if whole else "must be a number"
        return
    if whole and isinstance(value, float) and not value.is_integer():
        yield "must be a whole number"
    yield from _bounds(value, schema, ("minimum", "maximum"), "must be {} {}")


def _bounds(size: float, schema: Schema, names: tuple[str, str], problem: str) -> Iterator[str]:
    """What is too little or too much; the schema has the bounds under these names."""
    least, most = map(schema.get, names)
    if isinstance(least, int | float) and size < least:
        yield problem.format("at least", least)
    if isinstance(most, int | float) and size > most:
        yield problem.format("at most", most)


def _array(value: object, schema: Schema) -> Iterator[str]:
    if not isinstance(value, list):
        yield "must be a list"
        return
    items = cast("list[object]", value)
    yield from _bounds(len(items), schema, ("minItems", "maxItems"), "must have {} {} items")
    choices = choices_of(mapping(schema.get("items")))
    for item in items:
        if choices and item not in choices:
            yield f"holds {item!r}, which is not one of {', '.join(map(repr, choices))}"


def choices_of(schema: Schema) -> list[object]:
    titled = elements(schema.get("oneOf")) or elements(schema.get("anyOf"))
    return elements(schema.get("enum")) or [mapping(choice).get("const") for choice in titled]


RequestId = Annotated[str, Meta(description="The question's request_id.")]


class GetElicitations(Params):
    server: Annotated[str | UnsetType, Meta(description="Only of this server.")] = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class RespondToElicitation(Params):
    request_id: RequestId
    action: Annotated[
        Literal["accept", "decline", "cancel"],
        Meta(description="What the user decided."),
    ]
    content: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="With accept in form mode: the fields of the schema."),
    ] = UNSET


class GetSamplingRequests(Params):
    server: Annotated[str | UnsetType, Meta(description="Only of this server.")] = UNSET


class RespondToSampling(Params):
    request_id: RequestId
    content: Annotated[
        Raw | UnsetType,
        Meta(
            description="What you say: a string, a content block, or a list of blocks.",
            extra_json_schema={"type": ["string", "object", "array"]},
        ),
    ] = UNSET
    model: Annotated[str, Meta(description="Who says it.")] = "unknown"
    role: Annotated[Literal["assistant", "user"], Meta(description="As whom.")] = "assistant"
    stop_reason: Annotated[str, Meta(description="Why it ends.")] = "endTurn"
    action: Annotated[Literal["accept", "decline"], Meta(description="decline: no answer.")] = (
        "accept"
    )


@tool(read_only, meta=pages)
async def get_elicitations(runtime: Runtime, p: GetElicitations, call: Call) -> Reply:
    """List the questions of servers that wait for an answer of the user."""
    server = None if p.server is UNSET else p.server
    pending = runtime.session.state.requests.pending(kind=RequestKind.ELICITATION, server=server)
    show = partial(shown_elicitation, runtime.session)
    entries, rest = page_for(runtime, p, call, pending, show)
    return Reply.json({"elicitations": entries, **rest})


@tool(destructive, meta=always_loaded | asks_the_user)
async def respond_to_elicitation(runtime: Runtime, p: RespondToElicitation, _call: Call) -> Reply:
    """Answer a question or form of a server with what the user said.

    Ask the user; never invent it.
    """
    session, now = runtime.session, runtime.clock.now()
    asked = session.state.requests.get(p.request_id, kind=RequestKind.ELICITATION, now=now)
    if asked.recipient is Recipient.PERSON:
        raise PolicyDenied(
            f"The user is being asked this question of {asked.server}, and answers it themselves.",
            hint="Wait with await_activity or get_task_result, or do something else meanwhile.",
        )
    is_form = p.action == "accept" and asked.params.get("mode", "form") == "form"
    content = _checked_form(asked, p) if is_form else None
    if not session.questions.answer(asked, p.action, content):
        raise _gone(asked)
    return Reply.json({"answered": asked.id, "server": asked.server, "action": p.action})


@tool(read_only, meta=pages)
async def get_sampling_requests(runtime: Runtime, p: GetSamplingRequests, call: Call) -> Reply:
    """List sampling requests: servers that ask for a text from you, the model; whole."""
    # Whole, as many as one answer holds; of the others a preview, and where the whole is.
    session = runtime.session
    server = None if p.server is UNSET else p.server
    room = min(call.client.budget, page_chars(runtime.settings))
    shown: list[dict[str, object]] = []
    for asked in session.state.requests.pending(kind=RequestKind.SAMPLING, server=server):
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


@tool()
async def respond_to_sampling(runtime: Runtime, p: RespondToSampling, _call: Call) -> Reply:
    """Answer a sampling request: give a server the text that it asks you, the model, for; or
    decline.
    """
    session, now = runtime.session, runtime.clock.now()
    asked = session.state.requests.get(p.request_id, kind=RequestKind.SAMPLING, now=now)
    if p.action == "decline":
        refusal = RpcError(INVALID_REQUEST, "The user declined the sampling request.")
        session.questions.respond(asked, RequestStatus.DECLINED, refusal)
        return Reply.json({"answered": asked.id, "server": asked.server, "action": "decline"})
    result = {
        "role": p.role,
        "content": _blocks(p.content),
        "model": p.model,
        "stopReason": p.stop_reason,
    }
    if not session.questions.respond(asked, RequestStatus.COMPLETED, to_json(result)):
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
