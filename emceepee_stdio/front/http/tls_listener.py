"""TLS connections until their handshake is done, in bounded number and for a bounded time.

asyncio's own servers show a connection after its handshake, so nobody would count those that never
do one. Here sockets are accepted one by one, and the oldest handshake gives way to a new one.
"""

import asyncio
import socket
import ssl
from collections.abc import Callable

import anyio
import anyio.lowlevel

from emceepee_stdio.front.http.http_limits import HttpLimits

__all__ = ["TlsListener"]

_ACCEPT_AGAIN_S = 0.1  # after an error: a client that has gone, or no descriptor that is free


class TlsListener:
    """One listening socket, which is closed at the end. `protocol` makes one for a connection."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        limits: HttpLimits,
        *,
        protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        self._listener = listener
        self._context = context
        self._limits = limits
        self._protocol = protocol
        self._accepting = anyio.CancelScope()
        self._handshakes: dict[anyio.CancelScope, None] = {}  # the oldest first

    def __repr__(self) -> str:
        return f"<TlsListener {len(self._handshakes)} handshakes>"

    def close(self) -> None:
        """Accept no more."""
        self._accepting.cancel()

    async def run(self) -> None:
        """Until `close`."""
        loop = asyncio.get_running_loop()
        self._listener.settimeout(0)
        with self._listener, self._accepting:
            async with anyio.create_task_group() as tasks:
                while True:
                    try:
                        connection, _ = await loop.sock_accept(self._listener)
                    except OSError:
                        await anyio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    tasks.start_soon(self._handshake, connection)
                    await anyio.lowlevel.checkpoint()  # asyncio accepts without a pause

    async def _handshake(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with anyio.move_on_after(self._limits.handshake_s) as scope:
            self._add(scope)
            try:
                await loop.connect_accepted_socket(self._protocol, connection, ssl=self._context)
            except Exception:  # noqa: BLE001, S110 - whatever a stranger sends, others are served
                pass
            finally:
                self._handshakes.pop(scope, None)

    def _add(self, scope: anyio.CancelScope) -> None:
        self._handshakes[scope] = None
        if len(self._handshakes) > self._limits.handshakes:
            oldest = next(iter(self._handshakes))
            del self._handshakes[oldest]
            oldest.cancel()
