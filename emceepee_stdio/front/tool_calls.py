"""Tool calls of the client, from request to answer; `render` fits the answer into its budget.

A call is answered by `_proceed`: with what its tool gives at once, or with what a task waits for.
Whatever goes wrong in one is its answer, never the end of the connection.

`render` makes the bytes of an answer: the reply, and its context after the tool's own blocks, or
before them for a client that cuts the end. The context is events that the client has not seen, and
questions that wait. The events are leased: delivered only once the answer has been written. What
fits into the budget of the client is decided here, once.
"""

from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import KW_ONLY, dataclass
from functools import partial
from inspect import isawaitable

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from emceepee_stdio.errors import CallFailed, InvalidArguments, ProxyError
from emceepee_stdio.foreign_json import decoder
from emceepee_stdio.front.carried_questions import CallLine
from emceepee_stdio.front.client_profile import ceiling_s, profile_of
from emceepee_stdio.front.client_requests import ClientRequests, RequestStates, RootsRequests
from emceepee_stdio.front.person_client import PersonClient
from emceepee_stdio.front.progress import CallProgress
from emceepee_stdio.front.protocol import IDENTITY, Protocol, Refused, elicitation_modes
from emceepee_stdio.journal import JournalEvent
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call, CallEnd, CallingClient, Work
from emceepee_stdio.session.person import ClientRequest, InputRequired
from emceepee_stdio.session.rendering import (
    answer_budget,
    fitted,
    lease_events,
    pending_client,
    stored_whole,
)
from emceepee_stdio.session.reply import Reply, text_block
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.event_log import Lease
from emceepee_stdio.tools import TABLE
from emceepee_stdio.tools.execute import UnknownTool, exposed_tool, unknown_tool
from emceepee_stdio.tools.registry import Result
from emceepee_stdio.trace.request import (
    MAX_PAYLOAD_BYTES,
    Leg,
    OpenRequest,
    current_request,
    on_leg,
    traceparent_in,
)
from emceepee_stdio.versions import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    PREFIX,
    PROTOCOL_VERSION,
    SERVER_INFO,
)
from emceepee_stdio.wire.codec import INVALID_PARAMS, Request, RequestId, RpcError, to_json
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.peer import Peer

_NULL = Raw(b"null")
_MAX_REQUESTS = 1_000  # of one client at the same time; a client that has more is broken


class Meta(msgspec.Struct):
    """What a request says of itself beside its params; its version makes it modern."""

    version: str | UnsetType = msgspec.field(name=PROTOCOL_VERSION, default=UNSET)
    capabilities: object = msgspec.field(name=CLIENT_CAPABILITIES, default=None)
    info: object = msgspec.field(name=CLIENT_INFO, default=None)
    progress: int | str | UnsetType = msgspec.field(name="progressToken", default=UNSET)
    traceparent: Raw | UnsetType = UNSET


class _Call(msgspec.Struct):
    name: str
    arguments: Raw | UnsetType = UNSET
    meta: Raw | UnsetType = msgspec.field(name="_meta", default=UNSET)
    responses: dict[str, Raw] | None = msgspec.field(name="inputResponses", default=None)
    state: str | None = msgspec.field(name="requestState", default=None)


_read_call = msgspec.json.Decoder(_Call).decode
_read_meta = decoder(Meta)
_read_keys = msgspec.json.Decoder(dict[str, Raw]).decode


@dataclass(eq=False, repr=False)
class ToolCalls(CallEnd):
    """The calls of one client. `queued` says how many bytes `peer` has been given to write."""

    runtime: Runtime
    protocol: Protocol
    peer: Peer
    _: KW_ONLY
    tasks: TaskGroup
    queued: Callable[[], int]
    roots: RootsRequests
    states: RequestStates

    def __post_init__(self) -> None:
        self._session = self.runtime.session
        self._identity = to_json(IDENTITY)
        self._written = 0
        self._unwritten: deque[tuple[int, list[Lease]]] = deque()
        self._calls: dict[RequestId, Call] = {}
        # Open, but no calls: streams, and readings that wait.
        self.others: dict[RequestId, OpenRequest] = {}
        self._answered = anyio.Event()
        self._progress = CallProgress(
            self.runtime.session,
            self.peer,
            self.runtime.clock,
            every=self.runtime.settings.fixed.heartbeat_s,
            tasks=self.tasks,
            unread=lambda: self.queued() - self._written,
        )
        behind_http = BEHIND_HTTP in self.runtime.environment.environ
        client = ClientRequests(self.peer, self._calls if behind_http else None)
        line = CallLine(calls=self._calls, bind=self._bind, ask_back=self._ask_back)
        self.person = PersonClient(
            self.runtime, self.protocol, client, line, self.states, tasks=self.tasks
        )
        self._client: CallingClient | None = None

    def __repr__(self) -> str:
        return f"<ToolCalls {len(self._calls)} open>"

    def ask_roots(self) -> None:
        """A server wants to know the roots of the client."""
        self.roots.ask(self.person.carried.carry_roots)

    async def idle(self) -> None:
        """Until nobody waits for an answer any more."""
        while self._calls:
            self._answered = anyio.Event()
            await self._answered.wait()

    def written(self, total: int) -> None:
        """So many bytes have left: the answers among them have told their events."""
        self._written = total
        while self._unwritten and self._unwritten[0][0] <= total:
            for lease in self._unwritten.popleft()[1]:
                self._session.state.events.commit(lease)

    def problem_with(self, request_id: RequestId) -> str | None:
        """Why a request of that id cannot be taken now."""
        if request_id in self._calls or request_id in self.others:
            return f"The id {request_id!r} is already in use."
        is_full = len(self._calls) + len(self.others) >= _MAX_REQUESTS
        return f"{_MAX_REQUESTS} requests are open already." if is_full else None

    def cancel(self, request_id: RequestId) -> None:
        if trace := self.others.pop(request_id, None):
            self._session.trace.end(trace, "cancelled")
        if call := self._calls.pop(request_id, None):
            self._progress.end(call)
            self._session.cancel(call)
            self._session.trace.end(call.trace, "cancelled")
            self._answered.set()

    def begin(self, request: Request) -> Refused | None:
        """Run the tool that is asked for; or why it cannot be."""
        asked = _read_call(request.params or b"{}")
        meta = None if asked.meta in (UNSET, _NULL) else _read_meta(asked.meta)
        modern, refused = (False, None) if meta is None else self.check(meta)
        if refused is not None:
            return refused
        tool = TABLE.get(asked.name) or exposed_tool(self.runtime, asked.name)
        if tool is None:
            return Refused(INVALID_PARAMS, unknown_tool(self.runtime, asked.name))
        trace = self._session.trace.begin(
            "tools/call", request.id, tool=tool.name, bytes_in=len(request.params or b"")
        )
        client = self._client
        if client is None or client.name != self.protocol.client_name:
            client = self._client = self._calling_client()
        arguments = None if asked.arguments in (UNSET, _NULL) else asked.arguments
        if self._session.trace.keeps_payloads and arguments is not None:
            trace.arguments = bytes(memoryview(arguments)[:MAX_PAYLOAD_BYTES])
        made = ClientRequest(
            id=request.id,
            tool=asked.name,
            arguments=arguments,
            native=tool.native,
            whole=tool.whole,
        )
        if meta is not None or self._session.trace.is_collected:
            made = self._with_meta(made, asked, meta, trace, is_modern=modern)
        call = self._calls[request.id] = Call(client=client, request=made, trace=trace)
        if made.token is not None:
            self._progress.begin(call)
        work: Work = partial(tool.call, self.runtime, arguments, call)
        if modern or self.protocol.word.encode() in bytes(request.params or b""):
            work = partial(self._run, work, made, request)
        is_known = self.runtime.configured.is_known
        self.proceed(call, work if is_known else partial(self._once_known, work))
        return None

    def _with_meta(
        self,
        request: ClientRequest,
        asked: _Call,
        meta: Meta | None,
        trace: OpenRequest,
        *,
        is_modern: bool,
    ) -> ClientRequest:
        """The request with what its `_meta` says: to its server, to us, and of its era."""
        passed, token = request.meta, None
        if asked.meta is not UNSET and meta is not None:
            passed = _passed_on(asked.meta)
            trace.traceparent = traceparent_in(meta.traceparent)
            token = None if meta.progress is UNSET else meta.progress
        passed = self._session.trace.with_trace(passed, trace)
        if meta is None or not is_modern:
            return replace(request, meta=passed, token=token)
        if asked.state and (asked_at := self.states.asked_at(asked.state)) is not None:
            trace.was_asked(asked_at)
        return replace(
            request,
            meta=passed,
            token=token,
            modes=elicitation_modes(mapping(meta.capabilities)),
            state=asked.state,
            answers=asked.responses or {},
        )

    def _run(self, work: Work, made: ClientRequest, request: Request) -> Result:
        """What the tool gives, after what a modern call carries: roots, or answers to questions."""
        if self.protocol.word.encode() in bytes(request.params or b""):
            # A server that knows the word could forge our blocks.
            raise InvalidArguments(
                "The arguments hold the word by which you know emceepee's own blocks.",
                hint="Leave it out: it is for nobody but you.",
            )
        if made.modes is None:
            return work()
        if self.protocol.modern_roots:
            work = partial(self.roots.begin, work, made)
        return self.person.carried.begin(work, made)

    def _calling_client(self) -> CallingClient:
        """What follows from the name that the client gave last."""
        name = self.protocol.client_name
        profile = profile_of(name, self.protocol.client_version)
        settings, environ = self.runtime.settings, self.runtime.environment.environ
        ceiling = ceiling_s(
            name,
            profile,
            default_ms=settings.timeouts.client_ceiling_ms,
            configured_ms=settings.client_ceilings_ms,
            environ=environ,
        )
        return CallingClient(
            name=name,
            ceiling=ceiling,
            budget=answer_budget(settings, profile.result_bytes),
            context_first=profile.cuts_end,
            person=self.person,
            end=self,
        )

    def begin_refused(self, request: Request) -> OpenRequest:
        """The record of a call that is not run; one by the name SERVER__TOOL names its server."""
        size = len(request.params or b"")
        trace = self._session.trace.begin("tools/call", request.id, bytes_in=size)
        name = _read_call(request.params or b"{}").name
        if meant := max(self.runtime.servers.claiming(name), key=len, default=None):
            trace.server, trace.server_tool = meant, name[len(meant) + 2 :]
        return trace

    def _bind(self, request: ClientRequest, call: Call) -> None:
        """From now on the call answers this request."""
        self._session.trace.made_again(call.trace, self._calls[request.id].trace)
        self._calls[request.id] = call
        if request.token is not None:
            self._progress.begin(call)

    def check(self, meta: Meta | None) -> tuple[bool, Refused | None]:
        """Whether a request is of the modern era, and if so whether it may be served."""
        if meta is None or meta.version is UNSET:
            return False, None
        fields = {
            PROTOCOL_VERSION: meta.version,
            CLIENT_CAPABILITIES: meta.capabilities,
            CLIENT_INFO: meta.info,
        }
        return True, self.protocol.check(fields)

    async def _once_known(self, work: Work) -> Reply | None:
        """The configured servers are there by name, connected or not."""
        with on_leg(Leg.QUEUED):
            await self.runtime.configured.known()
        await checkpoint_if_cancelled()  # it may have been cancelled in the same moment
        result = work()
        return await result if isawaitable(result) else result

    def proceed(self, call: Call, work: Work) -> None:
        """Answer with what the work gives; in a task where that has to be waited for."""
        token = current_request.set(call.trace)
        try:
            result = work()
            if isinstance(result, Reply):
                self._session.finish(call, result)
            elif result is not None:
                self.tasks.start_soon(self._wait, call, result)
        except Exception as error:  # noqa: BLE001 - a bug in one call must not end the others
            self._fail(call, error)
        finally:
            current_request.reset(token)

    async def _wait(self, call: Call, result: Coroutine[object, object, Reply | None]) -> None:
        if call.answered and call.task is None:  # cancelled before it began
            result.close()
            return
        with call.scope:
            try:
                reply = await result
            except Exception as error:  # noqa: BLE001 - see above
                self._fail(call, error)
            else:
                self.proceed(call, lambda: reply)
        if call.scope.cancelled_caught:
            self._session.abandon(call)

    def _fail(self, call: Call, error: Exception) -> None:
        if isinstance(error, InputRequired):
            self._session.abandon(call)
            self._ask_back(call.request.id, error)
        elif isinstance(error, UnknownTool):
            self._refuse(call, error)
        elif isinstance(error, ProxyError):
            self._session.fail(call, error)
        else:
            self._session.fail(call, self.unexpected(error, call.tool))

    def answer(self, call: Call, reply: Reply) -> None:
        request = call.request
        identity = None if request.modes is None else self._identity
        self._calls.pop(request.id, None)
        if request.token is not None:
            self._progress.end(call)
        self._answered.set()
        try:
            body, leases = render(self._session, reply, call, identity=identity)
        except Exception as error:  # noqa: BLE001 - whatever is in it, the client gets an answer
            instead = replace(Reply.error(self.unexpected(error)), whole=True)
            body, leases = render(self._session, instead, call, identity=identity)
        call.leases = ()  # from here on they are with those that wait to be written
        if self.peer.answer(request.id, body):
            if leases:
                self._unwritten.append((self.queued(), leases))
        else:
            for lease in leases:
                self._session.state.events.release(lease)
        self._session.trace.answered(call.trace, body, is_error=reply.is_error, task_id=call.task)

    def _ask_back(self, request_id: RequestId, question: InputRequired) -> None:
        """Only calls of the modern era come to this: the question is their result."""
        body = {
            "resultType": "input_required",
            "inputRequests": question.requests,
            "requestState": question.state,
            "_meta": {SERVER_INFO: Raw(self._identity)},
        }
        if call := self._calls.pop(request_id, None):
            self._progress.end(call)
            self._session.trace.asked_back(call.trace)
        self.peer.answer(request_id, to_json(body))
        self._answered.set()

    def _refuse(self, call: Call, error: ProxyError) -> None:
        """As `begin` refuses, after the call was waited with."""
        self._session.abandon(call)
        self._calls.pop(call.request.id, None)
        self._progress.end(call)
        call.trace.error_code = error.code
        text = error.masked(self._session.secrets.mask).whole_fact
        self.peer.answer(call.request.id, RpcError(INVALID_PARAMS, text))
        self._session.trace.answered(call.trace, b"", is_error=True)
        self._answered.set()

    def progress(self, call: Call, params: Raw) -> None:
        self._progress.forward(call, params)

    def status(self, call: Call, text: str) -> None:
        self._progress.status(call, text)

    def unexpected(self, error: Exception, what: str = "a request") -> ProxyError:
        reference = self.runtime.ids()
        self.runtime.journal.record(
            JournalEvent.UNEXPECTED_ERROR, request_id=reference, tool=what, error=repr(error)
        )
        return CallFailed(
            f"Something went wrong inside emceepee while it ran {what}.",
            hint=f"The journal has the details under {reference}; other calls are not affected.",
        )


def _passed_on(meta: Raw) -> dict[str, Raw]:
    """What of a call's `_meta` is for its server: all but what is said of this connection."""
    return {
        key: value
        for key, value in _read_keys(meta).items()
        if key != "progressToken" and not key.startswith(PREFIX)
    }


def render(
    session: Session, reply: Reply, call: Call, *, identity: bytes | None
) -> tuple[bytes, list[Lease]]:
    """The result, and the leases that it fulfils. `identity` stamps an answer of the modern era."""
    leases: list[Lease] = []
    context: list[bytes] = []
    budget = call.client.budget
    try:
        has_news = session.state.events.undelivered or session.state.requests.open
        if has_news and not (reply.whole or reply.native):
            lease = session.state.events.take(limit=session.settings.fixed.response_events)
            lease, events = lease_events(session, lease, budget)
            leases.append(lease)
            context = _blocks(session, lease, events, budget)
    except BaseException:
        for taken in leases:
            session.state.events.release(taken)
        raise
    leases += call.leases
    first = call.client.context_first
    assemble = partial(_assemble, context=context, identity=identity, context_first=first)
    body = assemble(reply)
    limit = session.settings.fixed.client_line_bytes
    budget = limit if reply.whole else min(budget, limit)
    if reply.native and reply.structured is not None and len(body) > budget:
        reply = reply.as_text()
        body = assemble(reply)
    if len(body) > budget < limit and not reply.paged:
        room = max(budget - sum(map(len, context)), budget // 4)
        reply = fitted(session, reply, room, pointer_first=first)
        body = assemble(reply)
    if len(body) > limit and reply.content:
        body = assemble(stored_whole(session, reply, limit))
    return body, leases


def _blocks(
    session: Session, lease: Lease, events: list[dict[str, object]], budget: int
) -> list[bytes]:
    blocks: list[bytes] = []
    if events:
        told: dict[str, object] = {"events_since_last_response": events}
        if lease.remaining:
            told["events_remaining"] = lease.remaining
        told["word"] = session.client.word
        blocks.append(text_block(to_json(told).decode()))
    if session.state.requests.open:
        asked = pending_client(session, budget)
        pending = {"pending_client_action": asked, "word": session.client.word}
        blocks.append(text_block(to_json(pending).decode()))
    return blocks


def _assemble(
    reply: Reply, context: list[bytes], identity: bytes | None, *, context_first: bool
) -> bytes:
    blocks = [reply.content] if reply.content else []
    blocks = [*context, *blocks] if context_first else [*blocks, *context]
    parts = [b'"content":[%b]' % b",".join(blocks)]
    if reply.native and reply.structured is not None:
        parts.append(b'"structuredContent":%b' % bytes(reply.structured))
    if reply.is_error:
        parts.append(b'"isError":true')
    meta = reply.meta
    if identity is not None:
        parts.insert(0, b'"resultType":"complete"')
        meta = _stamped(meta, identity)
    if meta is not None:
        parts.append(b'"_meta":%b' % bytes(meta))
    return b"{%b}" % b",".join(parts)


def _stamped(meta: Raw | None, identity: bytes) -> Raw:
    """Who answers is we, whatever the backend said of itself."""
    fields = {} if meta is None else msgspec.json.decode(meta, type=dict[str, Raw])
    return Raw(to_json({**fields, SERVER_INFO: Raw(identity)}))
