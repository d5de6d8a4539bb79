"""Tools for resources: find, read, and be told when they change."""

import math
from typing import Annotated

import anyio.lowlevel
from msgspec import UNSET, Meta, UnsetType

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.session.client_calls import Call
from emceepee_stdio.session.content_blocks import text_block
from emceepee_stdio.session.large_results import (
    CLUSTER_CHARS,
    RESULTS,
    head_within,
    page_chars,
    whole_characters,
)
from emceepee_stdio.session.own_resources import OWN, read_own
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.response_context import room_beside_context
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_text import attributed_text
from emceepee_stdio.tools.listing import (
    ALL,
    Cursor,
    Limit,
    ServerPattern,
    gather,
    having,
    matching,
    of_server,
    page,
    pattern,
    say_starting,
)
from emceepee_stdio.tools.registry import Params

__all__ = [
    "ListResourceTemplates",
    "ListResources",
    "ReadResource",
    "SubscribeResource",
    "UnsubscribeResource",
    "list_resource_templates",
    "list_resources",
    "read_resource",
    "subscribe_resource",
    "unsubscribe_resource",
]

_PAGE_CHARS = 20_000  # 5000 tokens of 4 characters; the strictest client cuts at 10,000
_HITS = 20  # with their excerpts about 5000 characters
_MAX_HITS = 200  # with their excerpts about 50,000 characters, which some clients cut off

Uri = Annotated[str, Meta(description="The resource's URI.")]
Server = Annotated[str, Meta(description="The server.")]
Filter = Annotated[str, Meta(description="Regex of URIs, names and descriptions.")]


class ListResources(Params):
    """Which to show."""

    server: ServerPattern = ALL
    pattern: Filter = ALL
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class ListResourceTemplates(Params):
    """Which to show."""

    server: ServerPattern = ALL
    pattern: Filter = ALL
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class ReadResource(Params):
    """Which resource of whom, and which part of a stored result."""

    server: Annotated[str, Meta(description=f"The server; {OWN} for the proxy's own.")]
    uri: Uri
    offset: Annotated[int, Meta(ge=0, description="Stored results: first character.")] = 0
    limit: (
        Annotated[int, Meta(ge=1, le=1_000_000, description="Stored results: characters or hits.")]
        | UnsetType
    ) = UNSET
    pattern: (
        Annotated[str, Meta(description="Stored results: regex to search for.")] | UnsetType
    ) = UNSET


class SubscribeResource(Params):
    """Which resource of whom."""

    server: Server
    uri: Uri


class UnsubscribeResource(Params):
    """Which resource of whom."""

    server: Server
    uri: Uri


async def list_resources(runtime: Runtime, p: ListResources, call: Call) -> Reply:
    found = await gather(runtime, "resources", p.server, call)
    texts = having("uri", "name", "title", "description")
    items = await matching(runtime, found.items, pattern(runtime, p.pattern), texts)
    entries, rest = page(
        items,
        lambda item: of_server(*item),
        limit=p.limit,
        cursor=p.cursor,
        room=room_beside_context(runtime.session, call.budget),
    )
    return Reply.json({"resources": entries, **rest, **found.failures()})


async def list_resource_templates(runtime: Runtime, p: ListResourceTemplates, call: Call) -> Reply:
    found = await gather(runtime, "resource_templates", p.server, call)
    texts = having("uriTemplate", "name", "title", "description")
    items = await matching(runtime, found.items, pattern(runtime, p.pattern), texts)
    entries, rest = page(
        items,
        lambda item: of_server(*item),
        limit=p.limit,
        cursor=p.cursor,
        room=room_beside_context(runtime.session, call.budget),
    )
    return Reply.json({"resource_templates": entries, **rest, **found.failures()})


async def read_resource(runtime: Runtime, p: ReadResource, call: Call) -> Reply:
    if p.server == OWN:
        if p.uri.startswith(RESULTS):
            return await _read_stored(runtime, p, call)
        return Reply(content=text_block(read_own(runtime, p.uri)))
    if p.offset or p.limit is not UNSET or p.pattern is not UNSET:
        raise InvalidArguments(
            f"offset, limit and pattern are for stored results of {OWN}.",
            hint="Read the resource without them; what is too large is stored and can be paged.",
        )
    backend = runtime.servers.get(p.server)
    times = runtime.settings.timeouts
    within = min(times.call_ms / 1000, call.ceiling)
    await runtime.session.begin_in_turn(
        call, server=backend.name, tool="read_resource", within=within
    )
    say_starting(backend, call)
    result = await backend.read_resource(p.uri, within=math.inf, call=call)
    return Reply.contents(result, server=backend.name)


async def subscribe_resource(runtime: Runtime, p: SubscribeResource, call: Call) -> Reply:
    backend = runtime.servers.get(p.server)
    within = min(call.ceiling, runtime.settings.timeouts.request_ms / 1000)
    await backend.subscribe(p.uri, within=within)
    return Reply.json({"subscribed": p.uri, "server": backend.name})


async def unsubscribe_resource(runtime: Runtime, p: UnsubscribeResource, call: Call) -> Reply:
    backend = runtime.servers.get(p.server)
    within = min(call.ceiling, runtime.settings.timeouts.request_ms / 1000)
    await backend.unsubscribe(p.uri, within=within)
    return Reply.json({"unsubscribed": p.uri, "server": backend.name})


async def _read_stored(runtime: Runtime, p: ReadResource, call: Call) -> Reply:
    """A page of a stored result that the client shows whole, or where a pattern is found in it."""
    results, now = runtime.session.results, runtime.clock.now()
    result_id = p.uri.removeprefix(RESULTS)
    if p.pattern is UNSET:
        limit = min(_PAGE_CHARS if p.limit is UNSET else p.limit, page_chars(runtime.settings))
        found = results.page(result_id, offset=p.offset, limit=limit + CLUSTER_CHARS, now=now)
        text = whole_characters(found.text, limit)
        if call.budget:
            text = head_within(text, room_beside_context(runtime.session, call.budget))
        facts: dict[str, object] = {"offset": found.offset, "total_chars": found.total}
        if found.offset + len(text) < found.total:
            facts["next_offset"] = found.offset + len(text)
        blocks = [text_block(attributed_text(text)), Reply.json(facts).content]
        ordered = reversed(blocks) if call.context_first else blocks
        return Reply(content=b",".join(ordered), paged=True)
    return await _search_stored(runtime, p, result_id)


async def _search_stored(runtime: Runtime, p: ReadResource, result_id: str) -> Reply:
    """Window by window, so that no other call has to wait for the whole."""
    results, now = runtime.session.results, runtime.clock.now()
    wanted = pattern(runtime, "" if p.pattern is UNSET else p.pattern)
    limit = min(_HITS if p.limit is UNSET else p.limit, _MAX_HITS)
    shown: list[dict[str, object]] = []
    offset: int | None = p.offset
    while offset is not None and len(shown) < limit:
        hits = results.search(result_id, wanted, now=now, offset=offset, limit=limit - len(shown))
        shown.extend(
            {"offset": hit.offset, "length": hit.length, "excerpt": hit.excerpt}
            for hit in hits.hits
        )
        offset = hits.next_offset
        await anyio.lowlevel.checkpoint()
    facts: dict[str, object] = {"hits": shown}
    if offset is not None:
        facts["next_offset"] = offset
    return Reply.json(facts)
