"""Requests of ours to the client: asked on the same wire, answered whenever the client does."""

import math
from collections.abc import Mapping

from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends.base import Cancel, OnResult, Sender
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CallFailed
from emceepee_stdio.json_values import mapping
from emceepee_stdio.versions import HTTP_REQUEST
from emceepee_stdio.wire.codec import RequestId, encode_request, to_json
from emceepee_stdio.wire.peer import Outcome, OutgoingRequest, Peer
from emceepee_stdio.wire.ticker import Ticker

__all__ = ["ClientRequests"]


class ClientRequests(Sender):
    """Sends to the client; over HTTP with the name of the request for which it asks, of `calls`."""

    def __init__(
        self, peer: Peer, clock: Clock, calls: Mapping[RequestId, object] | None = None
    ) -> None:
        self._peer = peer
        self._calls = calls
        self._clock = clock
        self._ticker = Ticker(clock, [peer.next_deadline], peer.expire, on_bug=_ignored)
        self.keep_time = self._ticker.run
        self._keeps_time = False

    def keep_time_in(self, tasks: TaskGroup) -> None:
        """End what is not answered in time, from now on."""
        if not self._keeps_time:
            self._keeps_time = True
            tasks.start_soon(self.keep_time)

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        params = to_json(self._marked(request))
        line = encode_request(self._peer.next_id, request.method, params)

        def done(outcome: Outcome) -> None:
            if isinstance(outcome, Raw):
                on_done(outcome)
            else:
                on_done(CallFailed(f"The client did not answer {request.method}."))

        request_id = self._peer.expect(request, done)
        if request_id is None:
            return lambda: None
        if request.deadline != math.inf:
            self._ticker.look(request.deadline)
        self._peer.write(line)
        return lambda: self._peer.cancel(request_id)

    def _marked(self, request: OutgoingRequest) -> Mapping[str, object]:
        params = request.params or {}
        for name, call in (self._calls or {}).items():
            if call is request.call:
                return {**params, "_meta": {**mapping(params.get("_meta")), HTTP_REQUEST: name}}
        return params

    def notify(self, method: str, params: Mapping[str, object]) -> None:
        self._peer.notify(method, to_json(params))


def _ignored(_error: Exception) -> None:
    """Ending what is overdue calls nothing but the two lines above."""
