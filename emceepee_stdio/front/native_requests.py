"""`resources/read`, `prompts/get` and other requests beside calls, and `list_changed`.

What comes back is passed on as the server gave it, but for what could be taken for ours. Our own
resources are read the same way.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.errors import CallFailed, PromptNotFound, ProxyError, ResultTooLarge
from emceepee_stdio.foreign_json import decoder
from emceepee_stdio.front.protocol import ACKNOWLEDGED, IDENTITY, Protocol, Refused
from emceepee_stdio.front.tool_calls import Meta, ToolCalls
from emceepee_stdio.greeting import LISTS
from emceepee_stdio.session.own_resources import Fields, prompt_fields, read_own, resource_fields
from emceepee_stdio.session.rendering import RESULTS
from emceepee_stdio.session.reply import attributed_text, is_own_uri
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.resource_tools import read_by_uri
from emceepee_stdio.trace.request import (
    Leg,
    OpenRequest,
    current_request,
    on_leg,
    traceparent_in,
)
from emceepee_stdio.versions import SERVER_INFO, SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    Request,
    RequestId,
    to_json,
)
from emceepee_stdio.wire.peer import Peer

# Tells the client that a list is another one: by itself, or on the streams that it opened.
#
# A client of the handshake era is told because we declared that we would; a modern one only on a
# stream of changes, under the id of the request that opened it.


class ListChanges:
    """The lists of one client, and its streams."""

    def __init__(self, protocol: Protocol, peer: Peer) -> None:
        self._protocol = protocol
        self._peer = peer

    def listen(self, request: Request, params: Mapping[str, object]) -> None:
        """Acknowledge a stream, which stays open till the client takes it back."""
        note = self._protocol.listen(request.id, params)
        self._peer.notify(ACKNOWLEDGED.decode(), note)

    def close(self, request_id: RequestId) -> None:
        self._protocol.streams.pop(request_id, None)

    def take(self, lists: Mapping[str, bytes]) -> None:
        """What is exposed now; the client is told of what it has not been listed so."""
        before, self._protocol.exposed = self._protocol.exposed, lists
        changed = [name for name in LISTS if lists.get(name, b"") != before.get(name, b"")]
        # Templates have no notification of their own.
        for what in dict.fromkeys("resources" if n.startswith("resource") else n for n in changed):
            self._tell(what)

    def _tell(self, what: str) -> None:
        method = f"notifications/{what}/list_changed"
        if self._protocol.version is not None:
            self._peer.notify(method)
        for request_id, told in self._protocol.streams.items():
            if what in told:
                self._peer.notify(method, to_json({"_meta": {SUBSCRIPTION_ID: request_id}}))


_ENVELOPE_BYTES = 1_000  # what is around a result
_SHOWN_NAME_CHARS = 200  # names that we list are shorter
_ERROR_CHARS = 4_000  # of what a server says of its error; the rest would tell nobody more


class _Read(msgspec.Struct):
    uri: str
    meta: Meta | None = msgspec.field(name="_meta", default=None)


class _GetPrompt(msgspec.Struct):
    name: str
    arguments: dict[str, str] = msgspec.field(default_factory=dict)
    meta: Meta | None = msgspec.field(name="_meta", default=None)


_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_read = decoder(_Read)
_decode_get_prompt = decoder(_GetPrompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forwarded:
    """A request that waits for a server, and what its answer says beside the result."""

    trace: OpenRequest
    modern: bool
    error_code: int = INVALID_PARAMS
    error_data: dict[str, object] | None = None
    cache: Fields = field(default_factory=dict[str, object])


class ForwardedRequests(Struct, eq=False, dict=True):
    """Those of one client. `answer` and `refuse` end a request."""

    runtime: Runtime
    calls: ToolCalls
    answer: Callable[[OpenRequest, bytes], None]
    refuse: Callable[[OpenRequest, Refused], None]
    tasks: TaskGroup

    def read(self, request: Request, trace: OpenRequest) -> None:
        """One of our own resources, or one of a configured server."""
        asked = _decode_read(request.params or b"{}")
        modern, refused = self._check(asked.meta, trace)
        forwarded = _Forwarded(
            trace=trace,
            modern=modern,
            error_code=INVALID_PARAMS if modern else RESOURCE_NOT_FOUND,
            error_data={"uri": asked.uri},
            cache={"ttlMs": 0, "cacheScope": "private"},
        )
        if refused:
            self.refuse(trace, refused)
        elif self.runtime.configured.is_known and is_own_uri(asked.uri):
            try:
                self._end(forwarded, self._own(asked.uri))
            except ProxyError as error:
                self._end(forwarded, error)
        else:
            self.tasks.start_soon(self._wait, forwarded, partial(self._resource, asked.uri))

    def get_prompt(self, request: Request, trace: OpenRequest) -> None:
        """A prompt of an exposed server, by the name under which it is listed."""
        asked = _decode_get_prompt(request.params or b"{}")
        modern, refused = self._check(asked.meta, trace)
        if refused:
            self.refuse(trace, refused)
        else:
            forwarded = _Forwarded(trace=trace, modern=modern)
            self.tasks.start_soon(self._wait, forwarded, partial(self._prompt, asked))

    def _check(self, meta: Meta | None, trace: OpenRequest) -> tuple[bool, Refused | None]:
        if meta is not None:
            trace.traceparent = traceparent_in(meta.traceparent)
        return self.calls.check(meta)

    async def _wait(
        self, asked: _Forwarded, get: Callable[[OpenRequest], Awaitable[Fields]]
    ) -> None:
        """Answer with what a server says, unless the client takes the request back meanwhile."""
        current_request.set(asked.trace)
        with on_leg(Leg.QUEUED):
            await self.runtime.configured.known()
        try:
            found = await get(asked.trace)
        except ProxyError as error:
            found = error.masked(self.runtime.session.secrets.mask)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others
            found = self.calls.unexpected(error)
        if asked.trace.outcome is None:
            self._end(asked, found)

    def _end(self, asked: _Forwarded, found: Fields | ProxyError) -> None:
        if isinstance(found, ProxyError):
            asked.trace.error_code = found.code
            refused = Refused(asked.error_code, _said(found), asked.error_data)
            self.refuse(asked.trace, refused)
        else:
            self.answer(asked.trace, _body(found, asked.cache, modern=asked.modern))

    def _own(self, uri: str) -> Fields:
        text = read_own(self.runtime, uri)
        kind = "text/plain" if uri.startswith(RESULTS) else "application/json"
        return {"contents": [{"uri": uri, "mimeType": kind, "text": text}]}

    async def _resource(self, uri: str, trace: OpenRequest) -> Fields:
        """As its server gave it; what fits into no line is not sent."""
        if is_own_uri(uri):
            return self._own(uri)
        result = await read_by_uri(self.runtime, uri, within=self._within(), call=trace)
        hint = "Call read_resource with its server: what is too large is stored and paged."
        unreadable = "Its server gave a resource without readable contents."
        return self._bounded("resource", result, resource_fields, hint, unreadable)

    async def _prompt(self, asked: _GetPrompt, trace: OpenRequest) -> Fields:
        item = self.runtime.surface.lists.prompts.get(asked.name)
        if item is None or not self.runtime.surface.shows(item.server):
            raise PromptNotFound(f"There is no prompt {asked.name[:_SHOWN_NAME_CHARS]!r}.")
        backend = self.runtime.servers.get(item.server)
        within = self._within()
        result = await backend.get_prompt(item.own, asked.arguments, within=within, call=trace)
        hint = "Call get_prompt with its server: what is too large is stored and paged."
        unreadable = f"{item.server} gave a prompt without readable messages."
        return self._bounded("prompt", result, prompt_fields, hint, unreadable)

    def _within(self) -> float:
        return self.runtime.settings.timeouts.request_ms / 1000

    def _bounded(
        self, what: str, result: Raw, read: Callable[[Raw], Fields], hint: str, unreadable: str
    ) -> Fields:
        """What a client is sent of it, if that fits into a line."""
        limit = self.runtime.settings.fixed.client_line_bytes
        fields: Fields = {}
        if (size := len(memoryview(result))) <= limit - _ENVELOPE_BYTES:
            try:
                fields = read(result)
            except (msgspec.MsgspecError, RecursionError):
                raise CallFailed(unreadable) from None
            size = len(to_json(fields))  # with its marks
        if size > limit - _ENVELOPE_BYTES:
            fact = f"The {what} has {size} bytes; a client is sent at most {limit} at a time."
            raise ResultTooLarge(fact, hint=hint)
        return fields


def _said(error: ProxyError) -> str:
    """With the next step, which stands at its end, however long what its server says is."""
    text = attributed_text(str(error))
    if len(text) <= _ERROR_CHARS:
        return text
    return f"{text[: _ERROR_CHARS // 2]} … {text[-_ERROR_CHARS // 2 :]}"


def _body(found: Fields, more: Fields, *, modern: bool) -> bytes:
    """The result, with what a modern one says of itself: who answers is we."""
    meta = found.get("_meta")
    said = _read_fields(meta) if isinstance(meta, Raw) and bytes(meta)[:1] == b"{" else {}
    body = {key: value for key, value in found.items() if key != "_meta"}
    if modern:
        body |= {"resultType": "complete", **more}
        body["_meta"] = {**said, SERVER_INFO: IDENTITY}
    elif said:
        body["_meta"] = said
    return to_json(body)
