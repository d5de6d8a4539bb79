"""The process of clients of the modern era: one for each token and path, without a handshake.

Several clients may share it, so ids, progress tokens and the ids of subscriptions are ours on its
wire, and the client's own again in what is said to it. A request lives as long as its connection.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from msgspec import Raw

from emceepee_stdio.errors import CallFailed
from emceepee_stdio.foreign_json import envelope_decoder
from emceepee_stdio.front.http.held_bytes import HeldBytes
from emceepee_stdio.front.http.session_process import SessionProcess, SessionSpec
from emceepee_stdio.front.http.stored_streams import REQUEST_LOST
from emceepee_stdio.json_values import mapping
from emceepee_stdio.versions import SUBSCRIPTION_ID
from emceepee_stdio.wire.codec import (
    Message,
    Notification,
    RequestId,
    Response,
    RpcError,
    encode_error,
    encode_notification,
    encode_result,
    to_json,
)

__all__ = ["ModernSession", "Said"]

_ENDED = RpcError(REQUEST_LOST, "The process behind this address has ended. Try again.", None)
_DROPPED = RpcError(
    REQUEST_LOST,
    "The call was made, but its answer is lost: too many answers for this token are not read yet.",
    None,
)
_UNREAD_BYTES = 1 << 20  # of notifications for one request
_LISTEN = "subscriptions/listen"
_decode = envelope_decoder(object)


@dataclass(frozen=True, slots=True)
class Said:
    """A message for the client; `code` is that of an error, `last` that nothing follows.

    `is_dropped`: an error instead of the answer, which its token may not hold.
    """

    data: bytes
    last: bool = False
    code: int = 0
    is_dropped: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class _Open:
    id: RequestId  # the client's own
    token: object
    listens: bool
    out: MemoryObjectSendStream[Said]
    held: HeldBytes
    unread: int = 0


class ModernSession:
    """`on_end` is told once when its process has ended."""

    def __init__(
        self,
        spec: SessionSpec,
        *,
        on_end: Callable[["ModernSession"], None],
    ) -> None:
        self.name = spec.name
        self.owner = spec.owner
        self.used_at = 0.0
        self.is_used = True
        self._count = 0
        self.open = 0  # requests whose answers are not all written
        self._open: dict[RequestId, _Open] = {}
        self._on_end = on_end
        self.process = SessionProcess(spec, on_message=self._take, on_end=self._ended)
        self.is_over = False

    def __repr__(self) -> str:
        return f"<ModernSession {self.name[:8]} {len(self._open)} open>"

    @property
    def calls(self) -> int:
        """Requests that will be answered."""
        return sum(not found.listens for found in self._open.values())

    @property
    def readers(self) -> int:
        """Streams that stay open."""
        return len(self._open) - self.calls

    def request(
        self, body: Mapping[str, object], held: HeldBytes
    ) -> tuple[RequestId, MemoryObjectReceiveStream[Said]]:
        """Send it under a name of ours; what is said to it comes on the stream, until `finish`."""
        self._count += 1
        name = self._count
        params = mapping(body.get("params"))
        meta = mapping(params.get("_meta"))
        token = meta.get("progressToken")
        if token is not None:
            params = {**params, "_meta": {**meta, "progressToken": name}}
        self.process.write(to_json({**body, "id": name, "params": params}))
        out, said = anyio.create_memory_object_stream[Said](math.inf)
        self._open[name] = _Open(
            id=cast("RequestId", body.get("id")),
            token=token,
            listens=body.get("method") == _LISTEN,
            out=out,
            held=held,
        )
        self.open += 1
        return name, said

    def cancel(self, name: RequestId) -> None:
        """Its client has gone."""
        if found := self._open.pop(name, None):
            found.out.close()
            note = encode_notification("notifications/cancelled", to_json({"requestId": name}))
            with suppress(CallFailed):  # it hangs, and will not know
                self.process.write(note.strip())

    def finish(self, name: RequestId) -> None:
        """All is written, or its client has gone."""
        self.cancel(name)
        self.open -= 1

    def was_read(self, name: RequestId, size: int) -> None:
        if found := self._open.get(name):
            found.unread -= size

    def _take(self, message: Message, line: bytes) -> None:
        del line  # what is in it has other names for the client
        if isinstance(message, Response):
            self._answer(message)
        elif isinstance(message, Notification):
            self._tell(message)

    def _answer(self, response: Response) -> None:
        found = self._open.pop(response.id, None)
        if found is None:
            return
        outcome = response.outcome
        if isinstance(outcome, RpcError):
            data, code = encode_error(found.id, outcome), outcome.code
        else:
            result = _renamed(outcome, found.id) if found.listens else outcome
            data, code = encode_result(found.id, result), 0
        said = Said(data.strip(), last=True, code=code)
        if not found.held.take(len(said.data)):
            data = encode_error(found.id, _DROPPED)
            said = Said(data.strip(), last=True, code=_DROPPED.code, is_dropped=True)
        found.out.send_nowait(said)
        found.out.close()

    def _tell(self, note: Notification) -> None:
        """To the request that it names; a client that does not read is told no more."""
        params = mapping(_decode(note.params or b"{}"))
        meta = mapping(params.get("_meta"))
        if "progressToken" in params:
            found = self._open.get(cast("RequestId", params["progressToken"]))
            told: dict[str, object] = {**params, "progressToken": found.token if found else None}
        else:
            found = self._open.get(cast("RequestId", meta.get(SUBSCRIPTION_ID)))
            shown = {**meta, SUBSCRIPTION_ID: found.id if found else None}
            told = {**params, "_meta": shown}
        data = encode_notification(note.method, to_json(told)).strip()
        if found is not None and found.unread + len(data) <= _UNREAD_BYTES:
            found.unread += len(data)
            found.out.send_nowait(Said(data))

    async def stop(self) -> None:
        await self.process.stop()
        self._ended()

    def end_streams(self) -> None:
        for found in self._open.values():
            data = encode_error(found.id, _ENDED).strip()
            found.out.send_nowait(Said(data, last=True, code=_ENDED.code))
            found.out.close()
        self._open.clear()

    def _ended(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.end_streams()
            self._on_end(self)


def _renamed(result: Raw, request_id: RequestId) -> bytes:
    """The result of a subscription, with the client's own name for it."""
    fields = dict(mapping(_decode(result)))
    meta = mapping(fields.get("_meta"))
    if SUBSCRIPTION_ID in meta:
        fields["_meta"] = {**meta, SUBSCRIPTION_ID: request_id}
    return to_json(fields)
