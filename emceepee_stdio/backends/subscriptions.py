"""Being told of changes, in both eras.

A handshake server pushes list changes unasked and takes one subscription per resource. A modern one
tells nothing outside the stream that `listening` keeps. What was wanted once is wanted on every
later connection, until it is taken back.
"""

from collections.abc import Callable

import anyio
from msgspec import Raw

from emceepee_stdio.backends.base import RemoteError
from emceepee_stdio.backends.connection import Connection
from emceepee_stdio.backends.lists import KINDS, Kind
from emceepee_stdio.backends.notifications import Mark
from emceepee_stdio.backends.subscription_stream import SubscriptionStream
from emceepee_stdio.errors import CallTimeout, NotSupported, ProxyError
from emceepee_stdio.trace.open_request import Leg, on_leg
from emceepee_stdio.wire.codec import METHOD_NOT_FOUND

__all__ = ["Subscriptions"]

_WANTS = {
    "toolsListChanged": Kind.TOOLS,
    "resourcesListChanged": Kind.RESOURCES,
    "promptsListChanged": Kind.PROMPTS,
}
_TELLS = {kind: name for name, kind in _WANTS.items()} | {Kind.TEMPLATES: "resourcesListChanged"}


class Subscriptions:
    """What one server is to tell us, kept across its connections."""

    def __init__(
        self,
        server: str,
        *,
        on_gap: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._server = server
        self._on_gap = on_gap
        self._note = note
        self._uris: dict[str, None] = {}
        self._stream: SubscriptionStream | None = None

    def __repr__(self) -> str:
        return f"<Subscriptions {self._server} {len(self._uris)} resources>"

    @property
    def uris(self) -> tuple[str, ...]:
        return tuple(self._uris)

    def begin(self, connection: Connection) -> None:
        """A new connection, on which nothing is told yet."""
        self._stream = (
            SubscriptionStream(
                connection,
                wanted=lambda: self._wanted(connection),
                on_gap=self._on_gap,
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
                self._note(f"the subscription to {uri} was not restored")
            return
        for uri in self.uris:
            try:
                await connection.ask("resources/subscribe", {"uri": uri}, within)
            except RemoteError as error:
                self._note(f"the subscription to {uri} was not restored: {error.fact}")

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
            f"{self._server} did not open its stream of changes in {round(within, 2):g} s."
        )

    def _refusal(self, stream: SubscriptionStream, uri: str) -> ProxyError:
        failure = stream.failure
        if failure is not None and not isinstance(failure, RemoteError):
            return failure
        said = f": {failure.error.message}" if failure is not None else "."
        return NotSupported(f"{self._server} did not accept a subscription to {uri}{said}")

    def _unsupported(self) -> NotSupported:
        return NotSupported(f"{self._server} does not support subscriptions to resources.")

    def _wanted(self, connection: Connection) -> dict[str, object]:
        wanted: dict[str, object] = {
            name: True
            for name, kind in _WANTS.items()
            if connection.declares(KINDS[kind].capability, "listChanged")
        }
        if self._uris:
            wanted["resourceSubscriptions"] = list(self._uris)
        return wanted
