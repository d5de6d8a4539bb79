"""The front: dispatches the client's requests, notifications and cancellations.

What needs no session is answered by `protocol`, calls of tools by `tool_calls`, what else a server
answers by `native_requests`; here is the rest, and what the client says beside requests.
"""

import os
from collections.abc import Callable

import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.foreign_json import decode_object
from emceepee_stdio.front.client_requests import ClientRequests, RequestStates, RootsRequests
from emceepee_stdio.front.native_requests import ForwardedRequests, ListChanges
from emceepee_stdio.front.protocol import LEAVES_OPEN, LISTEN, Protocol, Refused
from emceepee_stdio.front.tool_calls import ToolCalls
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.trace.request import Leg, OpenRequest
from emceepee_stdio.versions import MODERN_VERSION
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    to_json,
)
from emceepee_stdio.wire.peer import Peer

_CLIENT_CHARS = 200  # of what a client calls itself


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
        self._tasks = tasks
        self._started = False
        self.peer = Peer(
            handler=self, write=write, max_line=runtime.settings.limits.line_bytes, strict=True
        )
        client = ClientRequests(self.peer)
        states = RequestStates(runtime.clock)
        self._roots = RootsRequests(runtime, protocol, client, states, tasks)
        self.calls = ToolCalls(
            runtime,
            protocol,
            self.peer,
            tasks=tasks,
            queued=queued,
            roots=self._roots,
            states=states,
        )
        self._changes = ListChanges(protocol, self.peer)
        runtime.session.client.connect(
            protocol,
            person=self.calls.person,
            ask_roots=self.calls.ask_roots,
            on_lists=self._changes.take,
        )
        for request_id in protocol.streams:
            self._open_stream(self._runtime.session.trace.begin(LISTEN, request_id))
        forwarded = ForwardedRequests(
            runtime, self.calls, answer=self._answer, refuse=self._refuse, tasks=tasks
        )
        self._forwarded = {"resources/read": forwarded.read, "prompts/get": forwarded.get_prompt}

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
                self._refuse(self.calls.begin_refused(request), refused)
        else:
            trace = self.calls.others[request.id] = self._begin(request)
            if handle := self._forwarded.get(request.method):
                handle(request, trace)
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
        self._changes.close(request_id)
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
        params = decode_object(request.params or b"{}")
        answer = self._protocol.answer(request.method, params)
        if answer is None:  # the rest is looked for before
            self._open_stream(trace)
            self._changes.listen(request, params)
        elif isinstance(answer, Refused):
            self._refuse(trace, answer)
        else:
            self._answer(trace, answer)

    def _open_stream(self, trace: OpenRequest) -> None:
        trace.enter(Leg.WAITING)
        self.calls.others[trace.request_id] = trace

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
