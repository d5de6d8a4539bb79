"""The roots of the client: asked for when a server wants them, in the way of the client's era.

A client of the handshake era is sent `roots/list`, and again when it says that they changed. A
modern one can be asked only by the answer to a call: that is done once, with the first call after a
server wanted to know, and until then the server is kept waiting only for a moment. One that says
that they changed, as some do in that era as well, is asked once more.
"""

from collections.abc import Coroutine, Mapping, Sequence
from inspect import isawaitable

import anyio
import msgspec
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.errors import ProxyError
from emceepee_stdio.front.client_requests import ClientRequests
from emceepee_stdio.front.consent import StateSigner
from emceepee_stdio.front.protocol import Protocol
from emceepee_stdio.session.client_calls import InputRequired, Work
from emceepee_stdio.session.reply import Reply
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.wire.peer import OutgoingRequest

__all__ = ["RootsRequests"]

_KEY = "roots"
_METHOD = "roots/list"
_MAX_ROOTS = 100  # a workspace has a handful of directories


class _Listed(msgspec.Struct):
    uri: str
    name: str | None = None


class _Roots(msgspec.Struct):
    roots: list[_Listed]


class RootsRequests:
    """Asks one client."""

    def __init__(
        self, runtime: Runtime, protocol: Protocol, client: ClientRequests, tasks: TaskGroup
    ) -> None:
        self._roots = runtime.environment.roots
        self._fixed = runtime.settings.fixed
        self._clock = runtime.clock
        self._protocol = protocol
        self._client = client
        self._tasks = tasks
        self._seals = StateSigner(runtime.clock)
        self._is_stale = False
        self._is_asking = False
        self._was_asked = False
        self._roots.ask = self._ask

    def __repr__(self) -> str:
        return f"<RootsRequests {self._roots!r}>"

    def changed(self) -> None:
        """The client says so; nobody is asked before somebody wants to know."""
        self._was_asked = False
        if self._roots.wanted and self._protocol.offers_roots:
            self._ask()

    def begin(
        self, work: Work, state: str | None, responses: Mapping[str, Raw] | None
    ) -> Reply | Coroutine[object, object, Reply | None] | None:
        """The work of a modern call, with the roots that it brings, or after it was asked for them.

        One that brings another answer is not asked: that would be lost, and asked for again.
        """
        answer = (responses or {}).get(_KEY)
        if answer is not None and state and self._seals.spend(state, _KEY) is not None:
            self._roots.learn(_read(answer))
            return self._after_a_moment(work)
        if state is None and self._roots.wanted and not self._was_asked:
            self._was_asked = True
            raise InputRequired({_KEY: {"method": _METHOD}}, self._seals.seal(_KEY))
        return work()

    async def _after_a_moment(self, work: Work) -> Reply | None:
        """The server that the call is for may have to take them in first."""
        await anyio.sleep(self._fixed.roots_settle_s)
        result = work()
        return await result if isawaitable(result) else result

    def _ask(self) -> None:
        if self._protocol.offers_roots:
            self._is_stale = True
            if not self._is_asking:
                self._is_asking = True
                self._tasks.start_soon(self._request)
        elif self._protocol.modern_roots:
            self._tasks.start_soon(self._wait_for_call)
        else:
            self._roots.learn(None)

    async def _request(self) -> None:
        """As often as they changed meanwhile."""
        self._client.keep_time_in(self._tasks)
        while self._is_stale:
            self._is_stale = False
            within = self._fixed.roots_s
            deadline = self._clock.now() + within
            request = OutgoingRequest(method=_METHOD, deadline=deadline, within=within)
            try:
                answer = await self._client.request(request)
            except ProxyError:
                self._roots.learn(None)
            else:
                self._roots.learn(_read(answer))
        self._is_asking = False

    async def _wait_for_call(self) -> None:
        await anyio.sleep(self._fixed.roots_hold_s)
        self._roots.learn(None)


def _read(answer: Raw) -> Sequence[Mapping[str, str]] | None:
    """What can be used of an answer: directories, which are all that roots can be."""
    try:
        listed = msgspec.json.decode(answer, type=_Roots).roots
    except (msgspec.MsgspecError, RecursionError):
        return None
    return [
        {"uri": root.uri} | ({} if root.name is None else {"name": root.name})
        for root in listed[:_MAX_ROOTS]
        if root.uri.startswith("file://")
    ]
