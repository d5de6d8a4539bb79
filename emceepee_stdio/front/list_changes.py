"""Tells the client that a list is another one: by itself, or on the streams that it opened.

A client of the handshake era is told because we declared that we would; a modern one only on a
stream of changes, under the id of the request that opened it.
"""

from collections.abc import Mapping

from emceepee_stdio.front.protocol import ACKNOWLEDGED, Protocol
from emceepee_stdio.greeting import LISTS
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import Request, RequestId, to_json
from emceepee_stdio.wire.peer import Peer

__all__ = ["ListChanges"]


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
