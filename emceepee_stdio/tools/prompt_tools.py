"""Tools for prompts, and for completing their arguments."""

import math
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.lists import Kind
from emceepee_stdio.errors import CallFailed, InvalidArguments, PromptNotFound, ProxyError
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply, attributed, mended, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.listing import (
    ALL,
    QUICK_LIST_TIMEOUT_S,
    Cursor,
    Limit,
    ServerPattern,
    list_items,
    say_starting,
)
from emceepee_stdio.tools.registry import Params, pages, read_only, tool
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS
from emceepee_stdio.wire.codec import to_json

Server = Annotated[str, Meta(description="The server.")]


class ListPrompts(Params):
    server: ServerPattern = ALL
    pattern: Annotated[str, Meta(description="Regex of names and descriptions.")] = ALL
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class GetPrompt(Params):
    server: Server
    name: Annotated[str, Meta(description="The prompt's name.")]
    arguments: Annotated[dict[str, str], Meta(description="Its arguments, all strings.")] = (
        msgspec.field(default_factory=dict)
    )


class CompleteArgument(Params):
    server: Server
    argument: Annotated[str, Meta(description="The argument's name.")]
    value: Annotated[str, Meta(description="What is typed so far.")] = ""
    prompt: Annotated[str | UnsetType, Meta(description="The prompt's name.")] = UNSET
    template: Annotated[str | UnsetType, Meta(description="Or: the URI template.")] = UNSET
    context: Annotated[dict[str, str], Meta(description="Arguments already chosen.")] = (
        msgspec.field(default_factory=dict)
    )


class _Message(msgspec.Struct):
    role: str
    content: Raw


class _Completed(msgspec.Struct):
    completion: dict[str, Raw]


class _Prompt(msgspec.Struct):
    messages: list[_Message]
    description: str | None = None


@tool(read_only, meta=pages)
async def list_prompts(runtime: Runtime, p: ListPrompts, call: Call) -> Reply:
    """List prompts of all servers, with their arguments."""
    return await list_items(runtime, p, call, Kind.PROMPTS, ("name", "title", "description"))


@tool(read_only, meta=pages)
async def get_prompt(runtime: Runtime, p: GetPrompt, call: Call) -> Reply:
    """Use a prompt of a server, filled in: who says what, then the messages, for you to go by."""
    backend = runtime.servers.get(p.server)
    await runtime.session.begin_in_turn(
        call,
        server=backend.name,
        tool=f"get_prompt {p.name}"[:SHOWN_NAME_CHARS],
        within=min(runtime.settings.timeouts.call_ms / 1000, call.ceiling),
    )
    say_starting(backend, call)
    try:
        result = await backend.get_prompt(p.name, p.arguments, within=math.inf, call=call)
    except CallFailed as error:
        refused = error
    else:
        return _messages(result, server=backend.name)
    await _check_prompt_exists(backend, p.name, refused)
    raise refused


@tool(read_only)
async def complete_argument(runtime: Runtime, p: CompleteArgument, call: Call) -> Reply:
    """Suggest values for an argument of a prompt or of a URI template."""
    backend = runtime.servers.get(p.server)
    if (p.prompt is UNSET) == (p.template is UNSET):
        raise InvalidArguments("Give either prompt or template: what the argument belongs to.")
    ref: dict[str, object] = (
        {"type": "ref/prompt", "name": p.prompt}
        if p.prompt is not UNSET
        else {"type": "ref/resource", "uri": p.template}
    )
    result = await backend.complete(
        ref,
        {"name": p.argument, "value": p.value},
        p.context or None,
        call=call,
        within=min(call.ceiling, runtime.settings.timeouts.request_ms / 1000),
    )
    completed = decoded(result, _Completed)
    if completed is None:
        raise CallFailed(f"{backend.name} gave a completion that cannot be read.")
    return Reply.json({"completion": completed.completion})


def _messages(result: Raw, *, server: str) -> Reply:
    """Who says each block, in one block; then every message's content as it came."""
    try:
        prompt = msgspec.json.decode(result, type=_Prompt)
        said = [(m.role, block) for m in prompt.messages for block in _blocks(m.content)]
    except (msgspec.MsgspecError, RecursionError):
        raise CallFailed(f"{server} gave a prompt without readable messages.") from None
    head = {"description": prompt.description, "roles": [role for role, _ in said]}
    blocks = [text_block(to_json(head).decode())]
    if said:
        blocks.append(attributed(b",".join(block for _, block in said)))
    return Reply(content=b",".join(blocks))


def _blocks(content: Raw) -> list[bytes]:
    """The content of a message: one block, several, or just words."""
    first = bytes(memoryview(content)[:1])
    if first == b'"':
        return [text_block(msgspec.json.decode(content, type=str))]
    blocks = msgspec.json.decode(content, type=list[Raw]) if first == b"[" else [content]
    return [mended(b"[%b]" % bytes(block)) for block in blocks]


async def _check_prompt_exists(backend: Backend, name: str, error: ProxyError) -> None:
    try:
        prompts = await backend.list_all("prompts", within=QUICK_LIST_TIMEOUT_S)
    except ProxyError:
        return
    names = [str(prompt.get("name")) for prompt in prompts]
    if name not in names:
        shown = ", ".join(names[:LISTED_NAMES]) or "none"
        raise PromptNotFound(
            f"{backend.name} has no prompt {name[:SHOWN_NAME_CHARS]!r}; it has: {shown}."
        ) from error
