"""Tools for resources (list, read, subscribe) and prompts, and completion of arguments."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated

import anyio
import anyio.lowlevel
import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

import emceepee_stdio.tools.diverted_results as diverted
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.interface import CarriesMeta, Kind
from emceepee_stdio.errors import (
    CallFailed,
    InvalidArguments,
    PromptNotFound,
    ProxyError,
    ResourceNotFound,
)
from emceepee_stdio.foreign_json import MAX_VALUES, decoded, values_in
from emceepee_stdio.session.client_calls import Call, ServerRun
from emceepee_stdio.session.own_resources import OWN, read_own
from emceepee_stdio.session.rendering import (
    CLUSTER_CHARS,
    RESULTS,
    head_within,
    page_chars,
    room_beside_context,
    whole_characters,
)
from emceepee_stdio.session.reply import Reply, attributed, attributed_text, mended, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Origin
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.tools.listing import (
    ALL,
    QUICK_LIST_TIMEOUT_S,
    Cursor,
    Limit,
    ServerPattern,
    is_remembered,
    list_items,
    pattern,
    request_limit,
    say_starting,
)
from emceepee_stdio.tools.registry import Params, pages, read_only, tool
from emceepee_stdio.visible_text import LISTED_NAMES, SHOWN_NAME_CHARS
from emceepee_stdio.wire.codec import to_json

# Which server has a resource that is asked for by its URI alone.
#
# A host reads a link that stood in an answer by its URI; whose it is, it does not know. A server
# that lists the URI comes before those with a template for it, and exposed servers, as they are
# listed, also before they are up, come before the others of the configuration. As with a tool,
# whoever is asked first must not get what another was meant for: servers that have not listed
# theirs are waited for, a moment, and then the read goes to nobody. Those that a model added are
# reached by read_resource.


_CONNECTING_TIMEOUT_S = 1.0  # as long as a list waits for a server that is still connecting
_SHOWN_URI_CHARS = 200  # enough to recognise it by
_EXPRESSION = re.compile(r"\{[^{}]*\}")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_SAY_WHICH = "Call read_resource and say which with `server`."


async def read_by_uri(
    runtime: Runtime, uri: str, *, within: float, call: CarriesMeta | None = None
) -> Raw:
    """What the one server that has it says; the error names the choice, or where to look."""
    backend = await _Lookup(runtime, uri).server()
    return await backend.read_resource(uri, within=within, call=call)


class _Lookup:
    """One URI, and the servers that have not said yet whether it is theirs."""

    def __init__(self, runtime: Runtime, uri: str) -> None:
        self._runtime = runtime
        self._uri = uri
        self._shown = repr(uri[:_SHOWN_URI_CHARS])
        self._missing: set[str] = set()

    async def server(self) -> Backend:
        members = self._runtime.servers.members.values()
        configured = [m.backend for m in members if m.origin is Origin.CONFIGURATION]
        exposed = [one for one in configured if self._runtime.surface.exposes_all(one.name)]
        having = (
            await self._having(exposed, Kind.RESOURCES, self._is_listed)
            or self._showing_pages(configured)
            or await self._having(configured, Kind.RESOURCES, self._is_listed)
            or await self._having(exposed, Kind.TEMPLATES, self._fits)
            or await self._having(configured, Kind.TEMPLATES, self._fits)
        )
        if len(having) == 1 and not self._missing:
            return having[0]
        raise self._unknown(having)

    def _is_listed(self, item: Mapping[str, object]) -> bool:
        return item.get("uri") == self._uri

    def _fits(self, item: Mapping[str, object]) -> bool:
        return fits_template(item.get("uriTemplate"), self._uri)

    def _showing_pages(self, among: Iterable[Backend]) -> list[Backend]:
        """Those with an exposed tool that it is the page of."""
        tools, shows = self._runtime.surface.lists.tools.values(), self._runtime.surface.shows
        names = {item.server for item in tools if item.page == self._uri and shows(item.server)}
        return [backend for backend in among if backend.name in names]

    async def _having(
        self, among: Iterable[Backend], kind: Kind, is_it: Callable[[Mapping[str, object]], bool]
    ) -> list[Backend]:
        asked = [backend for backend in among if backend.name not in self._missing]
        async with anyio.create_task_group() as tasks:
            for backend in asked:
                tasks.start_soon(self._list, backend, kind)
        return [one for one in asked if any(map(is_it, self._known(one, kind) or ()))]

    async def _list(self, backend: Backend, kind: Kind) -> None:
        """Have it listed as it is now; what stays unknown may still be found there."""
        if is_remembered(backend, kind) or backend.phase is Phase.FAILED:
            return
        is_up = backend.phase is Phase.CONNECTED
        if not is_up and self._known(backend, kind) is not None:
            return
        limit = QUICK_LIST_TIMEOUT_S if is_up else _CONNECTING_TIMEOUT_S
        with anyio.move_on_after(limit) as wait:
            try:
                await backend.list_all(kind, within=limit * 2)  # the wait ends before
            except ProxyError:  # a bad server costs itself
                return
        if wait.cancelled_caught and self._known(backend, kind) is None:
            self._missing.add(backend.name)

    def _known(self, backend: Backend, kind: Kind) -> Sequence[Mapping[str, object]] | None:
        known = backend.lists.known(kind)
        return self._runtime.surface.listed(backend.name, kind) if known is None else known

    def _unknown(self, having: Sequence[Backend]) -> ProxyError:
        names = ", ".join(sorted(backend.name for backend in having))
        if len(having) > 1:
            fact = f"Several servers have a resource {self._shown}: {names}."
            return ResourceNotFound(fact, hint=_SAY_WHICH)
        who = names or "No configured server"
        fact = f"{who} lists a resource {self._shown}"
        if self._missing:
            have = "have not listed theirs" if len(self._missing) > 1 else "has not listed its own"
            missing = f"{', '.join(sorted(self._missing))} {have} yet"
            return ResourceNotFound(f"{fact}, but {missing}.", hint=_SAY_WHICH)
        hint = "Call list_resources to find it, then read_resource with its server."
        return ResourceNotFound(f"{fact}.", hint=hint)


def fits_template(template: object, uri: str) -> bool:
    """Whether a URI may be made from a template: literal parts as they are, anything between.

    A template that leaves the scheme open would fit whatever others have: it fits nothing.
    """
    if not isinstance(template, str):
        return False
    literals = _EXPRESSION.split(template)
    if len(literals) == 1 or not uri.startswith(literals[0]) or not uri.endswith(literals[-1]):
        return False
    if not _SCHEME.match(literals[0]):
        return False
    place = len(literals[0])
    for literal in literals[1:-1]:
        place = uri.find(literal, place)
        if place < 0:
            return False
        place += len(literal)
    return place <= len(uri) - len(literals[-1])


_PAGE_CHARS = 20_000  # 5000 tokens of 4 characters; the strictest client cuts at 10,000
_HITS = 20  # with their excerpts about 5000 characters
_MAX_HITS = 200  # with their excerpts about 50,000 characters, which some clients cut off

Uri = Annotated[str, Meta(description="The resource's URI.")]
Server = Annotated[str, Meta(description="The server.")]
PageSize = Annotated[
    int, Meta(ge=1, le=1_000_000, description="Stored results: characters or hits.")
]
Filter = Annotated[str, Meta(description="Regex of URIs, names and descriptions.")]


class ListResources(Params):
    server: ServerPattern = ALL
    pattern: Filter = ALL
    limit: Limit = 50
    cursor: Cursor | UnsetType = UNSET


class ReadResource(Params):
    server: Annotated[str, Meta(description=f"The server; {OWN} for the proxy's own.")]
    uri: Uri
    offset: Annotated[int, Meta(ge=0, description="Stored results: first character.")] = 0
    limit: PageSize | UnsetType = UNSET
    pattern: Annotated[
        str | UnsetType, Meta(description="Stored results: regex to search for.")
    ] = UNSET
    select: diverted.SelectProgram | UnsetType = UNSET


class Subscription(Params):
    server: Server
    uri: Uri


@tool(read_only, meta=pages)
async def list_resources(runtime: Runtime, p: ListResources, call: Call) -> Reply:
    """List resources of all servers: files, records and other data that can be read."""
    texts = ("uri", "name", "title", "description")
    return await list_items(runtime, p, call, Kind.RESOURCES, texts)


@tool(read_only, meta=pages)
async def list_resource_templates(runtime: Runtime, p: ListResources, call: Call) -> Reply:
    """List URI templates of resources; fill one in and read it."""
    texts = ("uriTemplate", "name", "title", "description")
    return await list_items(runtime, p, call, Kind.TEMPLATES, texts)


@tool(read_only, meta=pages)
async def read_resource(runtime: Runtime, p: ReadResource, call: Call) -> Reply:
    """Read a resource of a server by its uri: a file or record.

    With server emceepee: the next page of a long result that was stored, or a search in it
    (execute_tool with server emceepee, tool save_result, args uri and path writes it to a file);
    emceepee://status, trace (the last requests) or diagrams.
    """
    is_part = bool(p.offset) or p.limit is not UNSET or p.pattern is not UNSET
    if is_part and p.select is not UNSET:
        raise InvalidArguments("select works on the whole: leave out offset, limit and pattern.")
    if p.server == OWN:
        if p.uri.startswith(RESULTS) and p.select is not UNSET:
            return await diverted.selected_from_stored(runtime, call, p.uri, p.select)
        if p.uri.startswith(RESULTS):
            return await _read_stored(runtime, p, call)
        own = Reply(content=text_block(read_own(runtime, p.uri)))
        return await diverted.selected(runtime, call, own, p.select)
    if is_part:
        raise InvalidArguments(
            f"offset, limit and pattern are for stored results of {OWN}.",
            hint="Read the resource without them; what is too large is stored and can be paged.",
        )
    backend = await _begun(runtime, call, p.server, "read_resource")
    result = await backend.read_resource(p.uri, within=math.inf, call=call)
    return await diverted.selected(
        runtime, call, Reply.contents(result, server=backend.name), p.select
    )


async def _begun(runtime: Runtime, call: Call, server: str, tool: str) -> Backend:
    """The server, once the call has its turn there."""
    backend = runtime.servers.get(server)
    within = min(runtime.settings.timeouts.call_ms / 1000, call.client.ceiling)
    run = ServerRun(server=backend.name, tool=tool)
    await runtime.session.begin_in_turn(call, run, within=within)
    say_starting(backend, call)
    return backend


@tool()
async def subscribe_resource(runtime: Runtime, p: Subscription, call: Call) -> Reply:
    """Be notified when a resource changes: by a notification event, in any answer or from
    await_activity.
    """
    backend = runtime.servers.get(p.server)
    await backend.subscribe(p.uri, within=request_limit(runtime, call))
    return Reply.json({"subscribed": p.uri, "server": backend.name})


@tool()
async def unsubscribe_resource(runtime: Runtime, p: Subscription, call: Call) -> Reply:
    """Stop being notified of a resource's changes."""
    backend = runtime.servers.get(p.server)
    await backend.unsubscribe(p.uri, within=request_limit(runtime, call))
    return Reply.json({"unsubscribed": p.uri, "server": backend.name})


async def _read_stored(runtime: Runtime, p: ReadResource, call: Call) -> Reply:
    """A page of a stored result that the client shows whole, or where a pattern is found in it."""
    results, now = runtime.session.state.results, runtime.clock.now()
    result_id = p.uri.removeprefix(RESULTS)
    if p.pattern is UNSET:
        limit = min(_PAGE_CHARS if p.limit is UNSET else p.limit, page_chars(runtime.settings))
        found = results.page(result_id, offset=p.offset, limit=limit + CLUSTER_CHARS, now=now)
        text = whole_characters(found.text, limit)
        text = head_within(text, room_beside_context(runtime.session, call.client.budget))
        facts: dict[str, object] = {"offset": found.offset, "total_chars": found.total}
        if found.offset + len(text) < found.total:
            facts["next_offset"] = found.offset + len(text)
        blocks = [text_block(attributed_text(text)), Reply.json(facts).content]
        ordered = reversed(blocks) if call.client.context_first else blocks
        return Reply(content=b",".join(ordered), paged=True)
    return await _search_stored(runtime, p, result_id)


async def _search_stored(runtime: Runtime, p: ReadResource, result_id: str) -> Reply:
    """Window by window, so that no other call has to wait for the whole."""
    results, now = runtime.session.state.results, runtime.clock.now()
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


_MOST_BLOCKS = 500  # of one message: each is looked at alone


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
    tool = f"get_prompt {p.name}"[:SHOWN_NAME_CHARS]
    backend = await _begun(runtime, call, p.server, tool)
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
    ref: dict[str, object] = {"type": "ref/prompt", "name": p.prompt}
    if p.prompt is UNSET:
        ref = {"type": "ref/resource", "uri": p.template}
    result = await backend.complete(
        ref,
        {"name": p.argument, "value": p.value},
        p.context or None,
        call=call,
        within=request_limit(runtime, call),
    )
    completed = decoded(result, _Completed)
    if completed is None:
        raise CallFailed(f"{backend.name} gave a completion that cannot be read.")
    return Reply.json({"completion": completed.completion})


def _messages(result: Raw, *, server: str) -> Reply:
    """Who says each block, in one block; then every message's content as it came."""
    try:
        if values_in(bytes(result)) > MAX_VALUES:
            raise CallFailed(f"{server} gave a prompt of {len(bytes(result))} bytes, unread.")
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
    if len(blocks) > _MOST_BLOCKS:
        return [mended(bytes(content))]
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
