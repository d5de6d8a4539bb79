"""list_tools: lists the tools of all servers, or those that `tool_ranking` finds for a query."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.json_values import elements, mapping
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.signatures import python_signature
from emceepee_stdio.tools.execute import READ_ONLY_ROAD, why_not_read_only
from emceepee_stdio.tools.listing import (
    ALL,
    Cursor,
    Item,
    Limit,
    ServerPattern,
    cut_text,
    gather,
    having,
    matching,
    of_server,
    page_for,
    pattern,
)
from emceepee_stdio.tools.registry import Params, always_loaded, pages, read_only, tool
from emceepee_stdio.tools.tool_ranking import ToolRanking
from emceepee_stdio.visible_text import cut

_RANKING = (
    ToolRanking()
)  # of all sessions in this process: an index is of one server of one of them
_SIGNED_TOOLS = 5  # so many signatures are worth their tokens: one of them is called next
_SENTENCE_CHARS = 160  # a line or two in a list
_SHOWN_WORDS, _WORD_CHARS = 10, 40  # of a query that no tool has
_ARGUMENTS_CHARS = 300  # names of some 20 arguments
_OUR_KEYS = ("rule", "run_with", "exposed_as")  # what only we say of a tool
# Once for all of them: a mark on each tool that is not known to only read would cost a model more.
_RUN_WITH = {"run_with": "execute_tool, unless the tool says otherwise"}


class ListTools(Params):
    query: Annotated[str | UnsetType, Meta(description="Plain words; best match first.")] = UNSET
    server: ServerPattern = ALL
    tool: Annotated[str, Meta(description="Regex of tool names.")] = ALL
    detail: Annotated[
        Literal["names", "summary", "signatures", "full"] | UnsetType,
        Meta(description="signatures: the default for up to 5; full: the JSON Schemas."),
    ] = UNSET
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


@tool(read_only, meta=always_loaded | pages)
async def list_tools(runtime: Runtime, p: ListTools, call: Call) -> Reply:
    """Find a tool for a job: what the servers can do for you.

    By plain words, by regex, or all. Up to 5 come with their signatures, so set limit, or detail,
    before a call.
    """
    found = await gather(runtime, "tools", p.server, call)
    tools = await matching(runtime, found.items, pattern(runtime, p.tool), having("name"))
    unmatched: list[str] = []
    if p.query is not UNSET:
        tools, unmatched = await _ranked(runtime, p.query, found.items, among=tools)
    few = min(len(tools), p.limit) <= _SIGNED_TOOLS
    detail = p.detail if p.detail is not UNSET else "signatures" if few else "summary"

    exposed = runtime.surface.lists.listed_names()

    def shown(item: Item) -> dict[str, object]:
        name = exposed.get((item[0], str(item[1].get("name"))))
        native = {} if name is None else {"exposed_as": name}
        return _shown(*item, detail) | native | _rule(runtime, *item)

    entries, rest = page_for(runtime, p, call, tools, shown)
    head: dict[str, object] = dict(_RUN_WITH) if entries else {}
    if unmatched:
        head["no_tool_has"] = [cut(word, _WORD_CHARS) for word in unmatched[:_SHOWN_WORDS]]
    return Reply.json({**head, "tools": entries, **rest, **found.failures()})


async def _ranked(
    runtime: Runtime, query: str, items: Sequence[Item], *, among: Sequence[Item]
) -> tuple[Sequence[Item], list[str]]:
    """Those of some items that fit the query, best first, and the words that no item has.

    A word counts by how rare it is among all items, so that the lists can be indexed once.
    """
    backends = {backend.name: backend for backend in runtime.servers}
    lists = [
        (backends[server], server, [tool for _, tool in of_one])
        for server, of_one in groupby(items, key=lambda item: item[0])
        if server in backends
    ]
    best, unmatched = await _RANKING.rank(query, lists)
    wanted = {id(tool) for _, tool in among}
    return [item for item in best if id(item[1]) in wanted], unmatched


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
        own = {key: value for key, value in tool.items() if key not in _OUR_KEYS}
        if isinstance(text := own.get("description"), str):
            own["description"] = cut_text(text)
        return of_server(server, own)
    about = str(tool.get("description") or tool.get("title") or "")
    if detail == "signatures":
        return head | {"description": cut_text(about), "signature": python_signature(tool)}
    head["description"] = _first_sentence(about)
    head["args"] = _arguments(tool.get("inputSchema"))
    return head


def _first_sentence(text: str) -> str:
    line = " ".join(text.split())
    sentence, dot, _ = line.partition(". ")
    short = sentence + ("." if dot else "")
    return cut(short, _SENTENCE_CHARS)


def _arguments(schema: object) -> str:
    """The names of the arguments, the optional ones with a question mark."""
    names = mapping(mapping(schema).get("properties"))
    needed = elements(mapping(schema).get("required"))
    shown = ", ".join(name if name in needed else f"{name}?" for name in names)
    return cut(shown, _ARGUMENTS_CHARS)
