"""The client's side of the conversation: its requests become calls, its cancels reach them.

Requests run at the same time, each in a task of its own. Whatever goes wrong in one is its answer,
never the end of the connection.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import UNSET, Raw, UnsetType

from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.front.limits import ceiling_ms
from emceepee_stdio.front.person import AskedBack, AskedDirectly, Questions, Seals
from emceepee_stdio.front.protocol import (
    CLIENT_CAPABILITIES,
    CLIENT_INFO,
    IDENTITY,
    PROTOCOL_VERSION,
    SERVER_INFO,
    Protocol,
    Refused,
)
from emceepee_stdio.front.render import render
from emceepee_stdio.journal import Event
from emceepee_stdio.session.calls import Call, InputRequired, Person
from emceepee_stdio.session.large import RESULTS, fitted
from emceepee_stdio.session.own import read_own
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.registry import Tool
from emceepee_stdio.tools.table import TABLE
from emceepee_stdio.wire.codec import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    Malformed,
    Notification,
    Request,
    RequestId,
    RpcError,
    to_json,
)
from emceepee_stdio.wire.peer import Peer

if TYPE_CHECKING:
    from emceepee_stdio.state import Lease

__all__ = ["Front"]

Fields = Mapping[str, object]

_NULL = Raw(b"null")
_LEAVES_OPEN = frozenset({"initialize", "server/discover", "ping"})


class _Meta(msgspec.Struct):
    version: str | UnsetType = msgspec.field(name=PROTOCOL_VERSION, default=UNSET)
    capabilities: object = msgspec.field(name=CLIENT_CAPABILITIES, default=None)
    info: object = msgspec.field(name=CLIENT_INFO, default=None)
    progress: int | str | UnsetType = msgspec.field(name="progressToken", default=UNSET)


class _Told(msgspec.Struct, omit_defaults=True):
    """The params of a progress notification."""

    token: int | str = msgspec.field(name="progressToken")
    progress: int | float
    total: int | float | UnsetType = UNSET
    message: str | UnsetType = UNSET


class _Call(msgspec.Struct):
    name: str
    arguments: Raw | UnsetType = UNSET
    meta: _Meta | None = msgspec.field(name="_meta", default=None)
    responses: dict[str, Raw] | None = msgspec.field(name="inputResponses", default=None)
    state: str | None = msgspec.field(name="requestState", default=None)


class _Read(msgspec.Struct):
    uri: str
    meta: _Meta | None = msgspec.field(name="_meta", default=None)


class Front:
    """One client. `write` takes lines; `written` is told when they have left."""

    def __init__(
        self,
        runtime: Runtime,
        protocol: Protocol,
        *,
        tasks: TaskGroup,
        write: Callable[[bytes], None],
    ) -> None:
        self._runtime = runtime
        self._session = runtime.session
        self._protocol = protocol
        self._tasks = tasks
        self._identity = to_json(IDENTITY)
        self._write_out = write
        self._queued = 0
        self._unwritten: deque[tuple[int, list[Lease]]] = deque()
        self._calls: dict[RequestId, Call] = {}
        self._started = False
        self._patience: tuple[str, float] | None = None
        self._answered = anyio.Event()
        self.peer = Peer(
            handler=self,
            write=self._write,
            max_line=runtime.settings.limits.line_bytes,
            strict=True,
        )
        self._seals = Seals(runtime.clock)
        self._questions = Questions(
            self.peer,
            runtime.clock,
            tasks,
            within=runtime.settings.timeouts.client_request_ms / 1000,
        )

    def __repr__(self) -> str:
        return f"<Front {self._protocol!r} calls={len(self._calls)}>"

    async def idle(self) -> None:
        """Until nobody waits for an answer any more."""
        while self._calls:
            self._answered = anyio.Event()
            await self._answered.wait()

    def start(self) -> None:
        """The client stays: the configured servers may be started."""
        if not self._started:
            self._started = True
            self._tasks.start_soon(self._runtime.connect_configured)

    def written(self, total: int) -> None:
        """So many bytes have left: the answers among them have told their events."""
        while self._unwritten and self._unwritten[0][0] <= total:
            for lease in self._unwritten.popleft()[1]:
                self._session.events.commit(lease)

    # What the client says

    def on_request(self, request: Request) -> None:
        if request.method not in _LEAVES_OPEN:
            self.start()
        try:
            if request.method == "tools/call":
                self._begin_call(request)
            elif request.method == "resources/read":
                self._read(request)
            else:
                self._answer_static(request)
        except msgspec.ValidationError as error:
            self._refuse(request.id, Refused(INVALID_PARAMS, f"Invalid params: {error}"))
        except (msgspec.MsgspecError, RecursionError):
            self._refuse(request.id, Refused(INVALID_PARAMS, "Invalid params: no object"))
        except Exception as error:  # noqa: BLE001 - one request must not end the connection
            self._refuse(request.id, Refused(INTERNAL_ERROR, str(self._unexpected(error))))

    def on_notification(self, notification: Notification) -> None:
        if notification.method == "notifications/initialized":
            self.start()

    def on_cancelled(self, request_id: RequestId) -> None:
        if call := self._calls.pop(request_id, None):
            self._session.abandon(call)
            call.cancel()
            self._answered.set()

    def on_malformed(self, message: Malformed) -> None:
        self.peer.complain(message)

    def on_stray(self, request_id: str) -> None:
        """An answer to what we asked, late or twice: nobody waits for a word on it."""
        noise = f"an answer that nobody waits for: id {request_id}"
        self._runtime.journal.record(Event.CLIENT_NOISE, text=noise)

    def on_noise(self, text: str) -> None:
        self._runtime.journal.record(Event.CLIENT_NOISE, text=text)
        self.peer.complain(Malformed(None, -32700, "Parse error"))

    # Answers

    def _answer_static(self, request: Request) -> None:
        params = msgspec.json.decode(request.params or b"{}", type=dict[str, object])
        answer = self._protocol.answer(request.method, params)
        if answer is None:
            self._listen(request)
        elif isinstance(answer, Refused):
            self._refuse(request.id, answer)
        else:
            self.peer.answer(request.id, answer)

    def _listen(self, request: Request) -> None:
        """Nothing here ever changes: the stream is acknowledged, empty, and stays open."""
        note = {
            "notifications": {},
            "_meta": {"io.modelcontextprotocol/subscriptionId": request.id},
        }
        self.peer.notify("notifications/subscriptions/acknowledged", to_json(note))

    def _refuse(self, request_id: RequestId, refused: Refused) -> None:
        data = None if refused.data is None else Raw(to_json(refused.data))
        self.peer.refuse(request_id, RpcError(refused.code, refused.message, data))

    def _check(self, meta: _Meta | None) -> tuple[bool, Refused | None]:
        """Whether a request is of the modern era, and if so whether it may be served."""
        if meta is None or meta.version is UNSET:
            return False, None
        fields = {
            PROTOCOL_VERSION: meta.version,
            CLIENT_CAPABILITIES: meta.capabilities,
            CLIENT_INFO: meta.info,
        }
        return True, self._protocol.check(fields)

    def _read(self, request: Request) -> None:
        """One of our own resources."""
        asked = msgspec.json.decode(request.params or b"{}", type=_Read)
        modern, refused = self._check(asked.meta)
        if refused:
            self._refuse(request.id, refused)
        elif self._runtime.configured.is_known:
            self._answer_read(request.id, asked, modern=modern)
        else:
            self._tasks.start_soon(self._read_later, request.id, asked, modern)

    async def _read_later(self, request_id: RequestId, asked: _Read, modern: bool) -> None:  # noqa: FBT001 - the way of a task
        await self._runtime.configured.known()
        try:
            self._answer_read(request_id, asked, modern=modern)
        except Exception as error:  # noqa: BLE001 - one request must not end the connection
            self._refuse(request_id, Refused(INTERNAL_ERROR, str(self._unexpected(error))))

    def _answer_read(self, request_id: RequestId, asked: _Read, *, modern: bool) -> None:
        try:
            text = read_own(self._runtime, asked.uri)
        except ProxyError as error:
            code = INVALID_PARAMS if modern else -32002
            self._refuse(request_id, Refused(code, str(error), {"uri": asked.uri}))
            return
        kind = "text/plain" if asked.uri.startswith(RESULTS) else "application/json"
        content = {"uri": asked.uri, "mimeType": kind, "text": text}
        body: dict[str, object] = {"contents": [content]}
        if modern:
            body |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            body["_meta"] = {"io.modelcontextprotocol/serverInfo": Raw(self._identity)}
        self.peer.answer(request_id, to_json(body))

    def _begin_call(self, request: Request) -> None:
        asked = msgspec.json.decode(request.params or b"{}", type=_Call)
        modern, refused = self._check(asked.meta)
        tool = TABLE.get(asked.name)
        if refused is None and tool is None:
            refused = Refused(INVALID_PARAMS, f"Unknown tool: {asked.name[:200]}")
        if refused is not None or tool is None:
            self._refuse(request.id, refused or Refused(INVALID_PARAMS, "Unknown tool"))
            return
        token = UNSET if asked.meta is None else asked.meta.progress
        call = Call(
            answer=lambda reply: self._answer(request.id, call, reply, modern=modern),
            ceiling=self._ceiling(),
            person=self._person(asked, modern=modern),
        )
        if token is not UNSET:
            call.on_progress = self._forwarder(call, token)
        self._calls[request.id] = call
        arguments = None if asked.arguments in (UNSET, _NULL) else asked.arguments
        if not self._begin_tool(tool, arguments, call):
            self._tasks.start_soon(self._run, tool, arguments, call)

    def _begin_tool(self, tool: Tool, arguments: Raw | None, call: Call) -> bool:
        """Without a task, where the tool can; False when it needs one."""
        if tool.begin is None or not self._runtime.configured.is_known:
            return False
        try:
            return tool.begin(
                self._runtime,
                arguments,
                call,
                lambda make: self._finish(tool, call, make),
                lambda: self._tasks.start_soon(self._run, tool, arguments, call),
            )
        except ProxyError as error:
            self._session.fail(call, error)
        except Exception as error:  # noqa: BLE001 - a bug in one call must not end the others
            self._session.fail(call, self._unexpected(error, tool.name))
        return True

    def _finish(self, tool: Tool, call: Call, make: Callable[[], Reply]) -> None:
        try:
            self._session.finish(call, fitted(self._session, make()))
        except ProxyError as error:
            self._session.fail(call, error)
        except Exception as error:  # noqa: BLE001 - see above
            self._session.fail(call, self._unexpected(error, tool.name))

    def _person(self, asked: _Call, *, modern: bool) -> Person | None:
        """Whom the client can ask for us, if anybody."""
        if modern:
            declared = None if asked.meta is None else asked.meta.capabilities
            if not isinstance(declared, dict) or not _fills_forms(cast("Fields", declared)):
                return None
            return AskedBack(self._seals, state=asked.state, responses=asked.responses)
        if not _fills_forms(self._protocol.capabilities):
            return None
        return AskedDirectly(self._questions, patience=self._ceiling())

    async def _run(self, tool: Tool, arguments: Raw | None, call: Call) -> None:
        """One call, from its arguments to its answer, whatever happens."""
        if call.answered and call.task is None:  # cancelled before it began
            return
        with call.scope:
            try:
                await self._runtime.configured.known()
                reply = await tool.call(self._runtime, arguments, call)
                self._session.finish(call, fitted(self._session, reply) if call.server else reply)
            except ProxyError as error:
                self._session.fail(call, error)
            except InputRequired as question:
                self._ask_back(call, question)
            except Exception as error:  # noqa: BLE001 - a bug in one call must not end the others
                self._session.fail(call, self._unexpected(error, tool.name))
        if call.scope.cancelled_caught:
            self._session.abandon(call)
        if call.lease is not None:
            self._session.events.release(call.lease)
            self._session.wake()

    def _answer(self, request_id: RequestId, call: Call, reply: Reply, *, modern: bool) -> None:
        self._calls.pop(request_id, None)
        self._answered.set()
        identity = self._identity if modern else None
        try:
            body, leases = render(self._session, reply, call, identity=identity)
        except Exception as error:  # noqa: BLE001 - whatever is in it, the client gets an answer
            instead = replace(Reply.error(self._unexpected(error)), whole=True)
            body, leases = render(self._session, instead, call, identity=identity)
        call.lease = None
        if self.peer.answer(request_id, body):
            if leases:
                self._unwritten.append((self._queued, leases))
        else:
            for lease in leases:
                self._session.events.release(lease)

    def _ask_back(self, call: Call, question: InputRequired) -> None:
        """Only calls of the modern era come to this: the question is their result."""
        self._session.abandon(call)
        body = {
            "resultType": "input_required",
            "inputRequests": question.requests,
            "requestState": question.state,
            "_meta": {SERVER_INFO: Raw(self._identity)},
        }
        for request_id, waiting in list(self._calls.items()):
            if waiting is call:
                del self._calls[request_id]
                self.peer.answer(request_id, to_json(body))
        self._answered.set()

    def _unexpected(self, error: Exception, what: str = "a request") -> ProxyError:
        reference = self._runtime.ids()
        self._runtime.journal.record(
            Event.UNEXPECTED_ERROR, request_id=reference, tool=what, error=repr(error)
        )
        return CallFailed(
            f"Something went wrong inside emceepee while it ran {what}.",
            hint=f"The journal has the details under {reference}; other calls are not affected.",
        )

    def _ceiling(self) -> float:
        """How long this client waits, by the name that it gave last."""
        name = self._protocol.client_name
        if self._patience is None or self._patience[0] != name:
            settings = self._runtime.settings
            ceiling = ceiling_ms(
                name,
                default=settings.timeouts.client_ceiling_ms,
                configured=settings.client_ceilings_ms,
            )
            self._patience = (name, ceiling / 1000)
        return self._patience[1]

    def _forwarder(self, call: Call, token: int | str) -> Callable[[Raw], None]:
        """The backend's progress under the client's own token, until the client has its answer."""

        def forward(params: Raw) -> None:
            if call.answered:
                return
            try:
                told = msgspec.json.decode(params, type=_Told)
            except (msgspec.MsgspecError, RecursionError):
                return  # the client would not understand it either
            told.token = token
            self.peer.notify("notifications/progress", to_json(told))

        return forward

    def _write(self, data: bytes) -> None:
        self._queued += len(data)
        self._write_out(data)


def _fills_forms(capabilities: "Fields") -> bool:
    """Whether a client lets its person fill in forms; one that names only URLs does not."""
    declared = capabilities.get("elicitation")
    return isinstance(declared, dict) and (not declared or "form" in declared)
