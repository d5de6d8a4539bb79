"""`resources/read`, `prompts/get` and other requests beside calls, and `list_changed`.

What comes back is passed on as the server gave it, but for what could be taken for ours. Our own
resources are read the same way.
"""

from collections.abc import Callable, Mapping

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.errors import CallFailed, PromptNotFound, ProxyError, ResultTooLarge
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.front.protocol import ACKNOWLEDGED, IDENTITY, Protocol, Refused
from emceepee_stdio.front.tool_calls import Meta, ToolCalls
from emceepee_stdio.greeting import LISTS
from emceepee_stdio.session.large_results import RESULTS
from emceepee_stdio.session.own_resources import Fields, prompt_fields, read_own, resource_fields
from emceepee_stdio.session.reply import attributed_text, is_own_uri
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.resource_tools import read_by_uri
from emceepee_stdio.trace.open_request import (
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

    def __repr__(self) -> str:
        return f"<ListChanges {len(self._protocol.streams)} streams>"

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
_decode_read = envelope_decoder(_Read)
_decode_get_prompt = envelope_decoder(_GetPrompt)


class ForwardedRequests:
    """Those of one client. `answer` and `refuse` end a request."""

    def __init__(
        self,
        runtime: Runtime,
        calls: ToolCalls,
        *,
        answer: Callable[[OpenRequest, bytes], None],
        refuse: Callable[[OpenRequest, Refused], None],
        tasks: TaskGroup,
    ) -> None:
        self._runtime = runtime
        self._calls = calls
        self._answer = answer
        self._refuse = refuse
        self._tasks = tasks

    def __repr__(self) -> str:
        return f"<ForwardedRequests of {self._calls!r}>"

    def read(self, request: Request, trace: OpenRequest) -> None:
        """One of our own resources, or one of a configured server."""
        asked = _decode_read(request.params or b"{}")
        modern, refused = self._check(asked.meta, trace)
        if refused:
            self._refuse(trace, refused)
        elif self._runtime.configured.is_known and is_own_uri(asked.uri):
            self._answer_read(trace, asked.uri, self._own(asked.uri), modern=modern)
        else:
            self._tasks.start_soon(self._read, trace, asked.uri, modern)

    def get_prompt(self, request: Request, trace: OpenRequest) -> None:
        """A prompt of an exposed server, by the name under which it is listed."""
        asked = _decode_get_prompt(request.params or b"{}")
        modern, refused = self._check(asked.meta, trace)
        if refused:
            self._refuse(trace, refused)
        else:
            self._tasks.start_soon(self._get_prompt, trace, asked, modern)

    def _check(self, meta: Meta | None, trace: OpenRequest) -> tuple[bool, Refused | None]:
        if meta is not None:
            trace.traceparent = traceparent_in(meta.traceparent)
        return self._calls.check(meta)

    # Waiting for what a server says, unless the client takes the request back meanwhile

    async def _read(self, trace: OpenRequest, uri: str, modern: bool) -> None:  # noqa: FBT001 - given by position
        await self._known(trace)
        found = self._own(uri) if is_own_uri(uri) else await self._foreign(uri, trace)
        if trace.outcome is None:
            self._answer_read(trace, uri, found, modern=modern)

    async def _get_prompt(self, trace: OpenRequest, asked: _GetPrompt, modern: bool) -> None:  # noqa: FBT001 - given by position
        await self._known(trace)
        try:
            found = await self._messages(asked, trace)
        except ProxyError as error:
            found = error.masked(self._runtime.session.secrets.mask)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others
            found = self._calls.unexpected(error)
        if trace.outcome is not None:
            return
        if isinstance(found, ProxyError):
            trace.error_code = found.code
            self._refuse(trace, Refused(INVALID_PARAMS, _said(found)))
        else:
            self._answer(trace, _body(found, {}, modern=modern))

    async def _known(self, trace: OpenRequest) -> None:
        current_request.set(trace)
        with on_leg(Leg.QUEUED):
            await self._runtime.configured.known()

    def _own(self, uri: str) -> Fields | ProxyError:
        try:
            text = read_own(self._runtime, uri)
        except ProxyError as error:
            return error
        kind = "text/plain" if uri.startswith(RESULTS) else "application/json"
        return {"contents": [{"uri": uri, "mimeType": kind, "text": text}]}

    async def _foreign(self, uri: str, trace: OpenRequest) -> Fields | ProxyError:
        """As their server gave them; what fits into no line is not sent."""
        try:
            result = await read_by_uri(self._runtime, uri, within=self._within(), call=trace)
            hint = "Call read_resource with its server: what is too large is stored and paged."
            return self._bounded("resource", result, resource_fields, hint)
        except ProxyError as error:
            return error.masked(self._runtime.session.secrets.mask)
        except (msgspec.MsgspecError, RecursionError):
            return CallFailed("Its server gave a resource without readable contents.")
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others
            return self._calls.unexpected(error)

    async def _messages(self, asked: _GetPrompt, trace: OpenRequest) -> Fields:
        item = self._runtime.surface.lists.prompts.get(asked.name)
        if item is None or not self._runtime.surface.shows(item.server):
            raise PromptNotFound(f"There is no prompt {asked.name[:_SHOWN_NAME_CHARS]!r}.")
        backend = self._runtime.servers.get(item.server)
        within = self._within()
        result = await backend.get_prompt(item.own, asked.arguments, within=within, call=trace)
        hint = "Call get_prompt with its server: what is too large is stored and paged."
        try:
            return self._bounded("prompt", result, prompt_fields, hint)
        except (msgspec.MsgspecError, RecursionError):
            raise CallFailed(f"{item.server} gave a prompt without readable messages.") from None

    def _within(self) -> float:
        return self._runtime.settings.timeouts.request_ms / 1000

    def _bounded(self, what: str, result: Raw, read: Callable[[Raw], Fields], hint: str) -> Fields:
        """What a client is sent of it, if that fits into a line."""
        limit = self._runtime.settings.fixed.client_line_bytes
        fields: Fields = {}
        if (size := len(memoryview(result))) <= limit - _ENVELOPE_BYTES:
            fields = read(result)
            size = len(to_json(fields))  # with its marks
        if size > limit - _ENVELOPE_BYTES:
            fact = f"The {what} has {size} bytes; a client is sent at most {limit} at a time."
            raise ResultTooLarge(fact, hint=hint)
        return fields

    def _answer_read(
        self, trace: OpenRequest, uri: str, found: Fields | ProxyError, *, modern: bool
    ) -> None:
        if isinstance(found, ProxyError):
            code = INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
            trace.error_code = found.code
            self._refuse(trace, Refused(code, _said(found), {"uri": uri}))
            return
        kept: Fields = {"ttlMs": 0, "cacheScope": "private"} if modern else {}
        self._answer(trace, _body(found, kept, modern=modern))


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
