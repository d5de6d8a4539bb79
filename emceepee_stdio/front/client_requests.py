"""Requests of ours to the client, and what a modern client brings back for us.

A client of the handshake era is sent a request. A modern one is answered with what we want to know,
and makes its call again: what it then brings back is bound to what was asked, expires, and counts
once (`RequestStates`).
"""

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from inspect import isawaitable

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.backends.interface import Cancel, OnResult, Sender
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed, ProxyError
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.json_values import mapping
from emceepee_stdio.session.client_calls import Call, Work
from emceepee_stdio.session.person import ClientRequest, InputRequired
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.tools.registry import Result
from emceepee_stdio.versions import HTTP_REQUEST, NO_READER
from emceepee_stdio.wire.codec import RequestId, RpcError, encode_request, to_json
from emceepee_stdio.wire.peer import Outcome, OutgoingRequest, Peer

_STATE_BYTES = 24  # cannot be guessed
_STATE_LIFETIME_S = 600.0  # a person may take some minutes to decide


class NoReader(CallFailed):
    """Over HTTP, the client reads no stream: it was not asked."""


class ClientRequests(Sender):
    """Sends to the client; over HTTP with the id of the request for which it asks, of `calls`."""

    def __init__(self, peer: Peer, calls: Mapping[RequestId, Call] | None = None) -> None:
        self._peer = peer
        self._calls: Mapping[RequestId, Call] = {} if calls is None else calls

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        line = encode_request(self._peer.next_id, request.method, self._marked(request))

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Raw):
                on_done(outcome)
            else:
                unread = isinstance(outcome, RpcError) and outcome.code == NO_READER
                kind = NoReader if unread else CallFailed
                on_done(kind(f"The client did not answer {request.method}."))

        request_id = self._peer.expect(request, done)
        if request_id is None:
            return lambda: None
        self._peer.write(line)
        return lambda: self._peer.cancel(request_id)

    def _marked(self, request: OutgoingRequest) -> Mapping[str, object]:
        params = request.params or {}
        for name, call in self._calls.items():
            if call is request.call:
                return {**params, "_meta": {**mapping(params.get("_meta")), HTTP_REQUEST: name}}
        return params

    async def ask(self, request: OutgoingRequest, *, within: float) -> Raw | None:
        """The answer of the client; None where there is none in time, or it is an error."""
        with anyio.move_on_after(within):
            try:
                return await self.request(request)
            except ProxyError:
                return None
        return None

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        self._peer.notify(method, to_json(params))


class RequestStates:
    """Keeps what the `requestState` of each call stands for that a modern client makes again.

    A state is a random name. It counts once, only for what it was made for, and in its time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[str, tuple[object, float, float]] = {}  # what, made and expires when

    def __repr__(self) -> str:
        return f"<RequestStates {len(self._kept)} kept>"

    def keep(self, kind: str, about: object, *, within: float = _STATE_LIFETIME_S) -> str:
        now = self._clock.now()
        for state in [state for state, (_, _, expires) in self._kept.items() if expires < now]:
            del self._kept[state]
        expires = round(now + within, 3)
        state = f"{expires}:{kind}:{secrets.token_urlsafe(_STATE_BYTES)}"
        self._kept[state] = about, now, expires
        return state

    def spend(self, state: str, about: object) -> float | None:
        """How long ago we made it for this; None where we did not, or it is spent or too old."""
        found, made, expires = self._kept.get(state, (None, 0.0, -math.inf))
        now = self._clock.now()
        if found != about or expires < now:
            return None
        del self._kept[state]
        return now - made

    def asked_at(self, state: str) -> float | None:
        """When a person was asked what a call with this state brings the answer to."""
        kept = self._kept.get(state)
        return None if kept is None or kept[0] == ROOTS_KEY else kept[1]

    def forget(self, state: str) -> None:
        self._kept.pop(state, None)


# The roots of the client: asked for when a server wants them, in the way of the client's era.
#
# A client of the handshake era is sent `roots/list`, and again when it says that they changed. A
# modern one can be asked only by the answer to a call: that is done once, by a call that is in
# flight when a server wants to know, else by the next one. Until then the server is kept waiting,
# not as long as servers wait for an answer. A client that says that they changed, as some do in
# that era as well, is asked once more.


ROOTS_KEY = "roots"
ROOTS_REQUEST: Mapping[str, object] = {"method": "roots/list"}
TakeRoots = Callable[[Raw | None], None]
_MAX_ROOTS = 100  # a workspace has a handful of directories


class _Listed(msgspec.Struct):
    uri: str
    name: str | None = None


class _Roots(msgspec.Struct):
    roots: list[_Listed]


class RootsRequests(Struct, eq=False, dict=True):
    """Asks one client."""

    runtime: Runtime
    protocol: Protocol
    client: ClientRequests
    states: RequestStates
    tasks: TaskGroup

    def __post_init__(self) -> None:
        self._roots = self.runtime.roots
        self._fixed = self.runtime.settings.fixed
        self._is_stale = False
        self._is_asking = False
        self._was_asked = False

    def changed(self) -> None:
        """The client says so; it is asked when a server wants to know."""
        self._was_asked = False
        if self._roots.wanted and self.protocol.offers_roots:
            self.ask()

    def begin(self, work: Work, request: ClientRequest) -> Result:
        """The work of a modern call, with the roots that it brings, or after it was asked for them.

        One that brings another answer is not asked: that would be lost, and asked for again.
        """
        answer, state = request.answers.get(ROOTS_KEY), request.state
        if answer is not None and state and self.states.spend(state, ROOTS_KEY) is not None:
            self._take(answer)
            return self._after_a_moment(work)
        if state is None and self._roots.wanted and not self._was_asked:
            self._was_asked = True
            raise InputRequired({ROOTS_KEY: ROOTS_REQUEST}, self.states.keep(ROOTS_KEY, ROOTS_KEY))
        return work()

    async def _after_a_moment(self, work: Work) -> Reply | None:
        """The server that the call is for may have to take them in first."""
        await anyio.sleep(self._fixed.roots_settle_s)
        result = work()
        return await result if isawaitable(result) else result

    def _take(self, answer: Raw | None) -> None:
        self._roots.learn(None if answer is None else _read(answer))

    def ask(self, carry: Callable[[TakeRoots], bool] = lambda _take: False) -> None:
        """A server wants to know them. `carry` has a modern call in flight ask for them."""
        if self.protocol.offers_roots:
            self._is_stale = True
            if not self._is_asking:
                self._is_asking = True
                self.tasks.start_soon(self._request)
        elif self.protocol.modern_roots:
            self._was_asked = self._was_asked or carry(self._take)
            self.tasks.start_soon(self._wait_for_call)
        else:
            self._roots.learn(None)

    async def _request(self) -> None:
        """As often as they changed meanwhile."""
        while self._is_stale:
            self._is_stale = False
            request = OutgoingRequest(method="roots/list")
            answer = await self.client.ask(request, within=self._fixed.roots_s)
            self._take(answer)
        self._is_asking = False

    async def _wait_for_call(self) -> None:
        await anyio.sleep(self._fixed.roots_s if self._was_asked else self._fixed.roots_hold_s)
        self._roots.learn(None)


def _read(answer: Raw) -> Sequence[Mapping[str, str]] | None:
    """What can be used of an answer: directories, which are all that roots can be."""
    listed = decoded(answer, _Roots)
    if listed is None:
        return None
    return [
        {"uri": root.uri} | ({} if root.name is None else {"name": root.name})
        for root in listed.roots[:_MAX_ROOTS]
        if root.uri.startswith("file://")
    ]
