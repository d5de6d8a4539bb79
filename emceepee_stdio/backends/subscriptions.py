"""Subscriptions to changes of resources and lists, in both eras.

A handshake server pushes list changes unasked and takes one subscription per resource. A modern one
tells nothing outside the stream that `listening` keeps. What was wanted once is wanted on every
later connection, until it is taken back.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import cast

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw, Struct

from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.interface import Kind, Mark, RemoteError, small_object, without_stream
from emceepee_stdio.backends.lists import KINDS
from emceepee_stdio.errors import CallTimeout, NotSupported, ProxyError
from emceepee_stdio.json_values import mapping
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.wire.codec import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND

# The stream on which a modern connection tells changes.
#
# There is one stream at a time. When what is wanted changes, a new one takes its place, and the old
# one ends only when the new one is open; when the server ends it, it is opened again.
#
# Theory of operation. `renew` raises the revision of what is wanted. One task, `run`, compares what
# the open stream was opened for with what is wanted now, and opens another one where they differ:
# it sends `subscriptions/listen` in a task of its own, which lasts as long as the stream, and waits
# for the acknowledgement, which says what the server grants. Then the revision counts as answered,
# and `wait_until_answered` returns, granted or refused. A stream that ends although it had granted
# something is broken: what was told meanwhile is lost, so `on_gap` drops the lists, and it is
# opened again after a pause that doubles. A refusal by a code that will not change is not tried
# again.


ACKNOWLEDGED = "notifications/subscriptions/acknowledged"

_FOR_GOOD = (METHOD_NOT_FOUND, INVALID_PARAMS, INVALID_REQUEST)
_ACKNOWLEDGE_TIMEOUT_S = 30.0  # ample for a busy server; after that the stream is taken as open
_QUIET_S = 0.25  # an old stream that is silent for so long has nothing under way any more
_MAX_OVERLAP_S = 2.0  # who subscribes waits for it, and some servers are never silent
_REMEMBERED_MARKS = 100  # of streams that have ended; one that ended long ago tells nothing more
_MARK_CHARS = 200  # the mark is the id of our request, and that is a number
_FIRST_PAUSE_S = 1.0  # a broken stream is often a restart of the server, over within a second
_MAX_PAUSE_S = 60.0  # the subscription is worth one request per minute

Wanted = dict[str, object]


@dataclass(eq=False, slots=True)
class _Stream:
    """One `subscriptions/listen` request, from its sending to its end."""

    wanted: Wanted
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    granted: Mapping[str, object] | None = None
    mark: Mark | None = None
    told: int = 0
    failure: ProxyError | None = None
    over: bool = False


class SubscriptionStream(Struct, eq=False, dict=True):
    """What one modern connection tells us. `on_gap` is called when something may have been missed.

    `wanted` says what is wanted now; `renew` is called when that has changed. Two streams overlap
    for a moment, because the last messages of the old one may come after the first of the new one:
    a change may be told twice then, but none is missed. The old one ends when it is silent.
    """

    connection: Connection
    wanted: Callable[[], Wanted]
    on_gap: Callable[[], None]

    def __post_init__(self) -> None:
        self._stream: _Stream | None = None
        self._opening: _Stream | None = None
        self._ended_marks: deque[Mark | None] = deque(maxlen=_REMEMBERED_MARKS)
        self.failure: ProxyError | None = None
        self._revision = 1
        self._answered_revision = 0

    @property
    def granted(self) -> Mapping[str, object]:
        """What the server has promised to tell on the stream that is open now."""
        stream = self._stream
        return {} if stream is None or stream.over else stream.granted or {}

    @property
    def granted_uris(self) -> list[object]:
        uris = self.granted.get("resourceSubscriptions")
        return cast("list[object]", uris) if isinstance(uris, list) else []

    def renew(self) -> None:
        self._revision += 1
        self.connection.wakeup.wake()

    async def wait_until_answered(self) -> None:
        """Until the server has answered what is wanted now."""
        revision = self._revision
        await self.connection.wakeup.wait_for(
            lambda: self.connection.loss or self._answered_revision >= revision
        )
        if self.connection.loss is not None:
            raise self.connection.lost_error()

    def acknowledged(self, params: Raw | None) -> None:
        """The server says what of it it will tell; only then may the old stream go."""
        rest, mark = without_stream(params)
        stream = self._opening or self._stream
        if stream is None or stream.granted is not None:
            return
        stream.granted = mapping(small_object(rest).get("notifications"))
        stream.mark = None if isinstance(mark, str) and len(mark) > _MARK_CHARS else mark
        self.connection.wakeup.wake()

    def takes(self, mark: Mark) -> bool:
        """Count what it tells; False for a stream that has ended, whose last messages come late."""
        if self._stream is not None and mark == self._stream.mark:
            self._stream.told += 1
        return mark not in self._ended_marks

    async def run(self) -> None:
        """Keep the stream as wanted, for as long as the connection lives."""
        pause = _FIRST_PAUSE_S
        async with anyio.create_task_group() as tasks:
            while True:
                revision, wanted = self._revision, self.wanted()
                if self._stream is None or self._is_broken() or self._stream.wanted != wanted:
                    await self._open(wanted, tasks)
                self._answered_revision = revision
                self.connection.wakeup.wake()
                await self._news(revision)
                if self._stream is not None and self._is_broken():
                    self.on_gap()
                    pause = _FIRST_PAUSE_S if self._stream.granted else pause
                    with anyio.move_on_after(pause):
                        await self._news(revision, broken=False)
                    pause = min(pause * 2, _MAX_PAUSE_S)

    async def _open(self, wanted: Wanted, tasks: TaskGroup) -> None:
        """Put a new stream in the place of the one there is, unless the server refuses it."""
        previous, stream = self._stream, _Stream(wanted)
        if wanted:
            self._opening = stream
            tasks.start_soon(self._hold, stream)
            with anyio.move_on_after(_ACKNOWLEDGE_TIMEOUT_S):
                await self.connection.wakeup.wait_for(
                    lambda: stream.granted is not None or stream.over
                )
            self._opening = None
        self.failure = stream.failure
        if previous is not None:
            if stream.over and stream.granted is None and not previous.over:
                return
            if wanted and not previous.over:
                await self._until_quiet(previous)
            self._ended_marks.append(previous.mark)
            previous.scope.cancel()
        self._stream = stream

    async def _until_quiet(self, stream: _Stream) -> None:
        """What it told before the new one was open may still be under way."""
        told = -1
        with anyio.move_on_after(_MAX_OVERLAP_S):
            while told != stream.told:
                told = stream.told
                await anyio.sleep(_QUIET_S)

    async def _hold(self, stream: _Stream) -> None:
        with stream.scope:
            try:
                await self.connection.ask(
                    "subscriptions/listen", {"notifications": stream.wanted}, math.inf
                )
            except ProxyError as error:
                stream.failure = error
        stream.over = True
        self.connection.wakeup.wake()

    async def _news(self, revision: int, *, broken: bool = True) -> None:
        await self.connection.wakeup.wait_for(
            lambda: self._revision != revision or (broken and self._is_broken())
        )

    def _is_broken(self) -> bool:
        """Ended, and worth trying again: not refused, and not for want of anything to tell."""
        stream = self._stream
        if stream is None or not stream.over:
            return False
        error = stream.failure
        if isinstance(error, RemoteError) and error.error.code in _FOR_GOOD:
            return False
        return bool(stream.granted) or error is not None


_WANTS = {
    "toolsListChanged": Kind.TOOLS,
    "resourcesListChanged": Kind.RESOURCES,
    "promptsListChanged": Kind.PROMPTS,
}
_TELLS = {kind: name for name, kind in _WANTS.items()} | {Kind.TEMPLATES: "resourcesListChanged"}


class Subscriptions(Struct, eq=False, dict=True):
    """What one server is to tell us, kept across its connections."""

    server: str
    on_gap: Callable[[], None]
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._uris: dict[str, None] = {}
        self._stream: SubscriptionStream | None = None

    def __repr__(self) -> str:
        return f"<Subscriptions {self.server} {len(self._uris)} resources>"

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self._uris)

    def begin(self, connection: Connection) -> None:
        """A new connection, on which nothing is told yet."""
        self._stream = (
            SubscriptionStream(
                connection,
                wanted=lambda: self._wanted(connection),
                on_gap=self.on_gap,
            )
            if connection.is_modern
            else None
        )

    def tells_changes(self, kind: Kind) -> bool:
        """Whether the connection will say when that list changes."""
        return self._stream is None or self._stream.granted.get(_TELLS[kind]) is True

    def takes(self, mark: Mark) -> bool:
        return self._stream is None or self._stream.takes(mark)

    def acknowledged(self, params: Raw | None) -> None:
        if self._stream is not None:
            self._stream.acknowledged(params)

    async def add(self, uri: str, connection: Connection, *, within: float) -> None:
        if not connection.declares("resources", "subscribe"):
            raise self._unsupported()
        if self._stream is None:
            await self._ask(connection, "resources/subscribe", uri, within)
            self._uris[uri] = None
            return
        new = uri not in self._uris
        self._uris[uri] = None
        stream, granted = self._stream, False
        try:
            await self._settle(stream, within)
            granted = uri in stream.granted_uris
        finally:
            if new and not granted:
                self._uris.pop(uri, None)
                stream.renew()
        if not granted:
            raise self._refusal(stream, uri)

    def forget(self, uri: str) -> None:
        """Wanted no more, not even on a connection that is still to be made."""
        self._uris.pop(uri, None)

    async def remove(self, uri: str, connection: Connection, *, within: float) -> None:
        self.forget(uri)
        if self._stream is None:
            await self._ask(connection, "resources/unsubscribe", uri, within)
        else:
            await self._settle(self._stream, within)

    async def restore(self, connection: Connection, *, within: float) -> None:
        """A new connection: everything that was wanted before is wanted again."""
        if self._stream is not None:
            with anyio.move_on_after(within):
                await self._stream.wait_until_answered()
            refused = set(self._uris).difference(map(str, self._stream.granted_uris))
            for uri in refused:
                self.note(f"the subscription to {uri} was not restored")
            return
        for uri in self.uris:
            try:
                await connection.ask("resources/subscribe", {"uri": uri}, within)
            except RemoteError as error:
                self.note(f"the subscription to {uri} was not restored: {error.whole_fact}")

    async def listen(self) -> None:
        """Hold the stream of a modern connection; a handshake connection has none."""
        if self._stream is not None:
            await self._stream.run()

    async def _ask(self, connection: Connection, method: str, uri: str, within: float) -> None:
        try:
            await connection.ask(method, {"uri": uri}, within)
        except RemoteError as error:
            if error.error.code == METHOD_NOT_FOUND:
                raise self._unsupported() from None
            raise

    async def _settle(self, stream: SubscriptionStream, within: float) -> None:
        stream.renew()
        with anyio.move_on_after(within):
            with on_leg(Leg.SERVER):
                await stream.wait_until_answered()
            return
        raise CallTimeout(
            f"{self.server} did not open its stream of changes in {round(within, 2):g} s."
        )

    def _refusal(self, stream: SubscriptionStream, uri: str) -> ProxyError:
        failure = stream.failure
        if failure is not None and not isinstance(failure, RemoteError):
            return failure
        said = f": {failure.error.message}" if failure is not None else "."
        return NotSupported(f"{self.server} did not accept a subscription to {uri}{said}")

    def _unsupported(self) -> NotSupported:
        return NotSupported(f"{self.server} does not support subscriptions to resources.")

    def _wanted(self, connection: Connection) -> dict[str, object]:
        wanted: dict[str, object] = {
            name: True
            for name, kind in _WANTS.items()
            if connection.declares(KINDS[kind].capability, "listChanged")
        }
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        return wanted
