"""uvicorn, with what it leaves out: connections that ask nothing, and heads without an end."""

import socket
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from emceepee_stdio.clock import Clock
from emceepee_stdio.front.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from emceepee_stdio.front.http.http_app import HttpApp

__all__ = ["HttpServer", "server_config"]

_MAX_HEAD_BYTES = 1 << 20  # with the first bytes of the body, which come along
_GRACE_S = 2  # for answers that were just written, when everything ends


class _Protocol(HttpToolsProtocol):
    """A connection that closes when a request does not come to its point."""

    _served: object = None
    _head = 0

    def data_received(self, data: bytes) -> None:
        if self.cycle is not self._served:
            self._served, self._head = self.cycle, 0
        if _asks_nothing(self):
            self._head += len(data)
            if self._head > _MAX_HEAD_BYTES:
                self.transport.close()
                return
        super().data_received(data)


def server_config(
    app: "HttpApp", limits: HttpLimits, *, certificate: str | None, key: str | None
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=int(limits.quiet_s),
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


class HttpServer(uvicorn.Server):
    """Leaves signals to us, and closes connections on which nothing is asked."""

    def __init__(self, config: uvicorn.Config, limits: HttpLimits, clock: Clock) -> None:
        super().__init__(config)
        self._limits = limits
        self._clock = clock
        self._before_end: Callable[[], Awaitable[None]] | None = None

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def run_until_told(
        self, listeners: Sequence[socket.socket], *, before_end: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until `should_exit`; uvicorn waits for open answers, so they are ended first."""
        self._before_end = before_end
        await self.serve(sockets=list(listeners))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self._before_end is not None:
            await self._before_end()
        await super().shutdown(sockets)

    async def close_quiet(self) -> None:
        """For as long as it runs; who never finishes a request would hold a socket for ever."""
        quiet_since: dict[Any, float] = {}
        while True:
            await anyio.sleep(self._limits.sweep_s)
            now = self._clock.now()
            quiet = [c for c in self.server_state.connections if _asks_nothing(c)]
            quiet_since = {c: quiet_since.get(c, now) for c in quiet}
            for connection, since in quiet_since.items():
                if now - since >= self._limits.quiet_s:
                    connection.transport.close()


def _asks_nothing(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
