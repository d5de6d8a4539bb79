"""list_tools: find the tool that fits, among however many there are."""

from collections.abc import Mapping
from typing import Annotated, Literal, cast

from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.response_context import room_beside_context
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.listing import (
    ALL,
    Cursor,
    Item,
    Limit,
    ServerPattern,
    gather,
    having,
    matching,
    of_server,
    page,
    pattern,
)
from emceepee_stdio.tools.ranking import rank
from emceepee_stdio.tools.read_only_tools import READ_ONLY_ROAD, why_not_read_only
from emceepee_stdio.tools.registry import Params

__all__ = ["ListTools", "list_tools"]

_FULL_DETAIL_TOOLS = 5  # so many schemas are worth their tokens: one of them is called next
_DESCRIPTION_CHARS = 4_000  # as much as is shown of what a server says of itself
_SENTENCE_CHARS = 160  # a line or two in a list
_ARGUMENTS_CHARS = 300  # names of some 20 arguments
_OUR_KEYS = ("rule", "run_with", "exposed_as")  # what only we say of a tool
# Once for all of them: a mark on each tool that is not known to only read would cost a model more.
_RUN_WITH = {"run_with": "execute_tool, unless the tool says otherwise"}


class ListTools(Params):
    """Which tools of which servers, and how much of each."""

    query: Annotated[str, Meta(description="Plain words; best match first.")] | UnsetType = UNSET
    server: ServerPattern = ALL
    tool: Annotated[str, Meta(description="Regex of tool names.")] = ALL
    detail: (
        Annotated[
            Literal["names", "summary", "full"],
            Meta(description="full has the schemas; the default for up to 5."),
        ]
        | UnsetType
    ) = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


async def list_tools(runtime: Runtime, p: ListTools, call: Call) -> Reply:
    found = await gather(runtime, "tools", p.server, call)
    tools = await matching(runtime, found.items, pattern(runtime, p.tool), having("name"))
    if p.query is not UNSET:
        tools = [(entry.server, entry.tool) for entry in rank(p.query, tools)]
    few = min(len(tools), p.limit) <= _FULL_DETAIL_TOOLS
    detail = p.detail if p.detail is not UNSET else "full" if few else "summary"

    exposed = runtime.surface.lists.listed_names()

    def shown(item: Item) -> dict[str, object]:
        name = exposed.get((item[0], str(item[1].get("name"))))
        native = {} if name is None else {"exposed_as": name}
        return _shown(*item, detail) | native | _rule(runtime, *item)

    entries, rest = page(
        tools,
        shown,
        limit=p.limit,
        cursor=p.cursor,
        room=room_beside_context(runtime.session, call.budget),
    )
    head = _RUN_WITH if entries else {}
    return Reply.json({**head, "tools": entries, **rest, **found.failures()})


def _rule(runtime: Runtime, server: str, tool: Mapping[str, object]) -> dict[str, object]:
    """What holds for it, where that is more than that execute_tool runs it."""
    member = runtime.servers.members.get(server)
    rules = None if member is None else member.backend.rules
    rule = "allow" if rules is None else rules.rule(tool.get("name"))
    if rule != "allow":
        return {"rule": rule}
    reads = why_not_read_only(member, tool) is None
    return {"run_with": READ_ONLY_ROAD} if reads else {}


def _shown(server: str, tool: Mapping[str, object], detail: str) -> dict[str, object]:
    head: dict[str, object] = {"server": server, "name": tool.get("name")}
    if detail == "names":
        return head
    if detail == "full":
        own = {key: value for key, value in _bounded(tool).items() if key not in _OUR_KEYS}
        return of_server(server, own)
    head["description"] = _first_sentence(str(tool.get("description") or tool.get("title") or ""))
    head["args"] = _arguments(tool.get("inputSchema"))
    return head


def _bounded(tool: Mapping[str, object]) -> Mapping[str, object]:
    """The tool as it is, but for a description that nobody would read to its end."""
    text = tool.get("description")
    if not isinstance(text, str) or len(text) <= _DESCRIPTION_CHARS:
        return tool
    cut = f"{text[:_DESCRIPTION_CHARS]} … (cut from {len(text)} characters)"
    return {**tool, "description": cut}


def _first_sentence(text: str) -> str:
    line = " ".join(text.split())
    sentence, dot, _ = line.partition(". ")
    short = sentence + ("." if dot else "")
    return _cut(short, _SENTENCE_CHARS)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 2] + " …"


def _arguments(schema: object) -> str:
    """The names of the arguments, the optional ones with a question mark."""
    fields = cast("dict[str, object]", schema) if isinstance(schema, dict) else {}
    properties, required = fields.get("properties"), fields.get("required")
    names = cast("dict[str, object]", properties) if isinstance(properties, dict) else {}
    needed = cast("list[object]", required) if isinstance(required, list) else []
    shown = ", ".join(name if name in needed else f"{name}?" for name in names)
    return _cut(shown, _ARGUMENTS_CHARS)
