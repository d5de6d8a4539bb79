"""The client's side of the conversation: every request is answered, every cancel heard.

What needs no session is answered by `protocol`, calls of tools by `tool_calls`; here is the rest,
and what the client says beside requests.
"""

import os
from collections.abc import Callable

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.errors import ProxyError, ResultTooLarge
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.front.protocol import IDENTITY, LEAVES_OPEN, Protocol, Refused
from emceepee_stdio.front.roots_requests import RootsRequests
from emceepee_stdio.front.tool_calls import Meta, ToolCalls
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.session.large_results import RESULTS
from emceepee_stdio.session.own_resources import OWN_SCHEME, read_own
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.resource_lookup import read_by_uri
from emceepee_stdio.trace.open_request import Leg, OpenRequest, current_request, on_leg
from emceepee_stdio.versions import MODERN_VERSION, SERVER_INFO, SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    RESOURCE_NOT_FOUND,
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    to_json,
)
from emceepee_stdio.wire.peer import Peer

__all__ = ["Front"]

_CLIENT_CHARS = 200  # of what a client calls itself
_ENVELOPE_BYTES = 1_000  # what is around the contents of a resource


class _Read(msgspec.Struct):
    uri: str
    meta: Meta | None = msgspec.field(name="_meta", default=None)


class _Contents(msgspec.Struct):
    contents: list[Raw]


class Front:
    """One client.

    `write` takes lines, `queued` says how many bytes that were, `written` is told how many left.
    """

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        *,
        tasks: TaskGroup,
        write: Callable[[bytes], None],
        queued: Callable[[], int],
    ) -> None:
        self._runtime = runtime
        self._protocol = protocol
        runtime.session.word = protocol.word
        if runtime.status is not None:
            runtime.status.client = lambda: (protocol.client_name, protocol.client_version)
        self._tasks = tasks
        self._started = False
        self.peer = Peer(
            handler=self,
            write=write,
            max_line=runtime.settings.limits.line_bytes,
            strict=True,
        )
        client = ClientRequests(self.peer, runtime.clock)
        self._roots = RootsRequests(runtime, protocol, client, tasks)
        self.calls = ToolCalls(
            runtime, protocol, self.peer, tasks=tasks, queued=queued, roots=self._roots
        )

    def __repr__(self) -> str:
        return f"<Front {self._protocol!r} {self.calls!r}>"

    def start(self) -> None:
        """The client stays: the configured servers may be started."""
        if not self._started:
            self._started = True
            self._tasks.start_soon(self._start)

    async def _start(self) -> None:
        """In a task: a modern client has said its name when its first request has been read."""
        self._runtime.journal.record(
            JournalEvent.CLIENT_CONNECTED,
            name=self._protocol.client_name[:_CLIENT_CHARS],
            version=self._protocol.client_version[:_CLIENT_CHARS],
            protocol=self._protocol.version or MODERN_VERSION,
            pid=os.getpid(),
        )
        await self._runtime.connect_configured()

    # What the client says

    def on_request(self, request: Request, origin: RequestId | None) -> None:
        del origin  # there is one stream
        if not self._started and request.method not in LEAVES_OPEN:
            self.start()
        if problem := self.calls.problem_with(request.id):
            self._refuse(self._begin(request), Refused(INVALID_REQUEST, problem))
        elif request.method == "tools/call":
            if refused := self.calls.begin(request):
                self._refuse(self._begin(request), refused)
        else:
            trace = self.calls.others[request.id] = self._begin(request)
            if request.method == "resources/read":
                self._read(request, trace)
            else:
                self._answer_static(request, trace)

    def _begin(self, request: Request) -> OpenRequest:
        size = len(request.params or b"")
        return self._runtime.session.trace.begin(request.method, request.id, bytes_in=size)

    def on_failed(self, request: Request, error: Exception) -> None:
        trace = self.calls.others.get(request.id) or self._begin(request)
        self._refuse(trace, self._refusal(error))

    def on_notification(self, notification: Notification) -> None:
        if notification.method == "notifications/initialized":
            self.start()
        elif notification.method == "notifications/roots/list_changed":
            self._roots.changed()

    def on_cancelled(self, request_id: RequestId) -> None:
        self.calls.cancel(request_id)

    def on_given_up(self, request_id: RequestId, method: str, reason: str) -> None:
        """A question of ours that nobody waits for any more."""
        del method
        note = to_json({"requestId": request_id, "reason": reason})
        self.peer.notify("notifications/cancelled", note)

    def on_malformed(self, message: Malformed) -> None:
        self.peer.complain(message)

    def on_stray(self, request_id: str) -> None:
        """An answer to what we asked, late or twice: nobody waits for a word on it."""
        noise = f"an answer that nobody waits for: id {request_id}"
        self._runtime.journal.record(JournalEvent.CLIENT_NOISE, text=noise)

    def on_noise(self, text: str) -> None:
        self._runtime.journal.record(JournalEvent.CLIENT_NOISE, text=text)
        self.peer.complain(Malformed(None, PARSE_ERROR, "Parse error"))

    # Answers

    def _answer_static(self, request: Request, trace: OpenRequest) -> None:
        params = msgspec.json.decode(request.params or b"{}", type=dict[str, object])
        answer = self._protocol.answer(request.method, params)
        if answer is None:
            self._listen(request, trace)
        elif isinstance(answer, Refused):
            self._refuse(trace, answer)
        else:
            self._answer(trace, answer)

    def _listen(self, request: Request, trace: OpenRequest) -> None:
        """Nothing here ever changes: the stream is acknowledged, empty, and stays open."""
        trace.enter(Leg.WAITING)
        note = {
            "notifications": {},
            "_meta": {SUBSCRIPTION_ID: request.id},
        }
        self.peer.notify("notifications/subscriptions/acknowledged", to_json(note))

    def _refuse(self, trace: OpenRequest, refused: Refused) -> None:
        data = None if refused.data is None else Raw(to_json(refused.data))
        trace.error_code = trace.error_code or str(refused.code)
        error = RpcError(refused.code, refused.message, data)
        self._answer(trace, error)

    def _answer(self, trace: OpenRequest, answer: bytes | RpcError) -> None:
        """Once; what the client has taken back is no longer among those that are open."""
        self.peer.answer(trace.request_id, answer)
        if self.calls.others.get(trace.request_id) is trace:
            del self.calls.others[trace.request_id]
        is_error = isinstance(answer, RpcError)
        body = b"" if is_error else answer
        self._runtime.session.trace.answered(trace, body, is_error=is_error)

    def _refusal(self, error: Exception) -> Refused:
        """What a request that could not be served is told."""
        if isinstance(error, msgspec.ValidationError):
            return Refused(INVALID_PARAMS, f"Invalid params: {error}")
        if isinstance(error, msgspec.MsgspecError | RecursionError):
            return Refused(INVALID_PARAMS, "Invalid params: no object")
        return Refused(INTERNAL_ERROR, str(self.calls.unexpected(error)))

    def _read(self, request: Request, trace: OpenRequest) -> None:
        """One of our own resources, or one of a configured server."""
        asked = msgspec.json.decode(request.params or b"{}", type=_Read)
        modern, refused = self.calls.check(asked.meta)
        if refused:
            self._refuse(trace, refused)
        elif self._runtime.configured.is_known and asked.uri.startswith(OWN_SCHEME):
            self._answer_read(trace, asked.uri, self._own_contents(asked.uri), modern=modern)
        else:
            self._tasks.start_soon(self._read_in_task, trace, asked.uri, modern)

    async def _read_in_task(self, trace: OpenRequest, uri: str, modern: bool) -> None:  # noqa: FBT001 - given by position
        """Answer once the contents are there, unless the client has taken the request back."""
        current_request.set(trace)
        with on_leg(Leg.QUEUED):
            await self._runtime.configured.known()
        is_own = uri.startswith(OWN_SCHEME)
        found = self._own_contents(uri) if is_own else await self._foreign_contents(uri)
        if trace.outcome is None:
            self._answer_read(trace, uri, found, modern=modern)

    def _own_contents(self, uri: str) -> list[object] | ProxyError:
        try:
            text = read_own(self._runtime, uri)
        except ProxyError as error:
            return error
        kind = "text/plain" if uri.startswith(RESULTS) else "application/json"
        return [{"uri": uri, "mimeType": kind, "text": text}]

    async def _foreign_contents(self, uri: str) -> list[object] | ProxyError:
        """As their server gave them; what fits into no line is not sent."""
        within = self._runtime.settings.timeouts.request_ms / 1000
        try:
            result = await read_by_uri(self._runtime, uri, within=within)
            contents = msgspec.json.decode(result, type=_Contents).contents
        except ProxyError as error:
            return error.masked(self._runtime.session.secrets.mask)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not end the others
            return self.calls.unexpected(error)
        limit = self._runtime.settings.fixed.client_line_bytes
        if (size := len(memoryview(result))) > limit - _ENVELOPE_BYTES:
            return ResultTooLarge(
                f"The resource has {size} bytes; a client is sent at most {limit} at a time.",
                hint="Call read_resource with its server: what is too large is stored and paged.",
            )
        return list(contents)

    def _answer_read(
        self,
        trace: OpenRequest,
        uri: str,
        found: list[object] | ProxyError,
        *,
        modern: bool,
    ) -> None:
        if isinstance(found, ProxyError):
            code = INVALID_PARAMS if modern else RESOURCE_NOT_FOUND
            trace.error_code = found.code
            self._refuse(trace, Refused(code, str(found), {"uri": uri}))
            return
        body: dict[str, object] = {"contents": found}
        if modern:
            body |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            body["_meta"] = {SERVER_INFO: IDENTITY}
        self._answer(trace, to_json(body))
