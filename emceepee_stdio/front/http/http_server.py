"""The HTTP front as a process: its socket, its signals, its end, and uvicorn within limits."""

import socket
import ssl
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.front.http.access import Access
from emceepee_stdio.front.http.http_app import CONNECTION, HttpApp
from emceepee_stdio.front.http.http_replies import HttpLimits
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.trace_endpoint import TraceEndpoint
from emceepee_stdio.front.shutdown_signals import heed_signals
from emceepee_stdio.wire import system


def check_tls_files(certificate: str, key: str) -> None:
    """Refuse files with which https would not work: uvicorn loads them when it serves already."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=str)  # else OpenSSL asks the terminal
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, ssl.SSLError) and error.reason:
            reason = error.reason.replace("_", " ").lower()
        raise ConfigInvalid(
            f"https cannot be served with {certificate} and {key}: {reason}.",
            hint="Give --tls-cert the certificate and --tls-key its private key, both in PEM "
            "format; the key without a passphrase, and in a chain the server's certificate first.",
        ) from None


# The connections of all clients, within limits that uvicorn does not have. Without them, clients
# without a token could fill the memory, or take every place.
#
# A connection counts the requests that it was asked and has answered. It is quiet when both are
# equal: then it is closed after a while, and earlier if its place is needed. A client that takes
# nothing of an answer is cut off by the system (TCP_USER_TIMEOUT, on Linux), or for its place.


_MAX_EXTRA_BYTES = 1 << 16  # of a request beside its body: head, trailer, sizes of chunks
_MAX_FIELDS = 256  # of a head and a trailer: a field of six bytes costs us a hundred
_MAX_PIPELINED = 16  # requests that wait behind the one that is being answered
_BACKLOG = 2048  # as uvicorn has it: a crowd is accepted and sent away, and delays no other
_GRACE_S = 2  # for answers that were just written, when everything ends


class _TooMuchError(Exception):
    """Raised in the parser, which then gives up on the connection."""


class Connections:
    """Those that are open, and which of them goes next."""

    def __init__(self, limits: HttpLimits, clock: Clock) -> None:
        self._limits = limits
        self.now = clock.now
        self._open: set[ClientConnection] = set()

    def add(self, connection: "ClientConnection") -> None:
        """First to go is one that never asked anything, but for the newest; the quietest first."""
        self._open.add(connection)
        if len(self._open) > self._limits.connections:
            quiet = (one for one in self._open if one.is_quiet or one.is_stuck)
            leaves = min(quiet, key=lambda one: (one is connection, one.asked > 0, one.since))
            self._open.discard(leaves)
            leaves.transport.abort()

    def discard(self, connection: "ClientConnection") -> None:
        self._open.discard(connection)

    async def close_quiet(self) -> None:
        """For as long as it runs; a request that never ends would hold a socket for ever."""
        while True:
            await anyio.sleep(self._limits.sweep_s)
            before = self.now() - self._limits.quiet_s
            for connection in list(self._open):
                if connection.is_quiet and connection.since <= before:
                    connection.transport.close()


class ClientConnection(HttpToolsProtocol):
    """One connection. A request finds it in the state of its scope."""

    def __init__(self, connections: Connections, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(app_state={**app_state, CONNECTION: self}, **given)
        self._crowd = connections
        self.asked = self.answered = 0  # requests
        self.since = connections.now()  # when it last became quiet
        self.is_stuck = False  # its client does not take what is written
        self.lost = anyio.Event()
        self._received = self._body = self._fields = 0  # of the request that is coming in
        self._in_head = False

    @property
    def is_quiet(self) -> bool:
        return self.asked == self.answered

    def end_request(self) -> None:
        self.answered += 1
        self.since = self._crowd.now()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._crowd.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._crowd.discard(self)
        self.lost.set()

    def pause_writing(self) -> None:
        self.is_stuck = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.is_stuck = False
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # under TLS, asyncio hands over what came before
            return
        self._received += len(data)
        super().data_received(data)
        if self._received - 2 * self._body > _MAX_EXTRA_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._received = self._body = self._fields = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Fields behind the body (RFC 9110, trailers) are left out: the request was judged."""
        self._fields += 1
        if self._fields > _MAX_FIELDS:
            raise _TooMuchError
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self.asked - self.answered > _MAX_PIPELINED:
            raise _TooMuchError
        if not self.url.startswith(b"/"):  # then its host counts, and not the header (RFC 9112)
            authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [field for field in self.headers if field[0] != b"host"]
            self.headers.append((b"host", authority))
        super().on_headers_complete()
        self.asked += 1

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)


class HttpServer(uvicorn.Server):
    """Leaves signals to us, and ends open answers before it waits for them."""

    def __init__(
        self,
        options: "FrontOptions",
        connections: Connections,
        sessions: SessionTable,
        trace: TraceEndpoint,
    ) -> None:
        self._sessions = sessions
        self._trace = trace
        super().__init__(
            uvicorn.Config(
                HttpApp(sessions, options.access, options.limits, trace),
                http=cast("Any", partial(ClientConnection, connections)),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # below that is what strangers send, and advice on packages
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=int(options.limits.quiet_s),
                timeout_graceful_shutdown=_GRACE_S,
                ssl_certfile=options.certificate,
                ssl_keyfile=options.key,
            )
        )

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def on_signal(self, _number: int) -> None:
        """End in order."""
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End open answers first: uvicorn waits for them."""
        for server in self.servers:
            server.close()
        self._trace.close()
        await self._sessions.close()
        await super().shutdown(sockets)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontOptions:
    """Where to listen and what to start.

    `children` are the options of each session's process, which records in `log_directory`.
    """

    host: str
    port: int
    access: Access
    log_directory: Path
    children: Sequence[str] = ()
    certificate: str | None = None
    key: str | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)


def run_front(
    options: FrontOptions, *, ready: Callable[[str], None], note: Callable[[str], None]
) -> None:
    """Serve until a signal comes. `ready` is told the address, `note` what goes wrong."""
    listener = _listen(options.host, options.port, stuck_s=options.limits.stuck_s)
    uses_uvloop = find_spec("uvloop") is not None
    anyio.run(_serve, options, listener, ready, note, backend_options={"use_uvloop": uses_uvloop})


def _listen(host: str, port: int, *, stuck_s: float) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        system.prepare_listener(listener, stuck_ms=round(stuck_s * 1000))
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        raise ConfigInvalid(
            f"{host}:{port} cannot be listened on: {error.strerror or error}.",
            hint="Name another address: emceepee serve --http HOST:PORT.",
        ) from None
    return listener


async def _serve(
    options: FrontOptions,
    listener: socket.socket,
    ready: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    clock, tokens = Clock(), options.access.tokens
    async with anyio.create_task_group() as tasks:
        sessions = SessionTable(
            options.children, options.limits, tokens, clock=clock, tasks=tasks, note=note
        )
        began = clock.epoch(clock.now())
        trace = TraceEndpoint(sessions, tokens, options.log_directory, since=began)
        connections = Connections(options.limits, clock)
        server = HttpServer(options, connections, sessions, trace)
        await tasks.start(heed_signals, server.on_signal)  # before the address is known
        tasks.start_soon(sessions.sweep)
        tasks.start_soon(sessions.follow_tokens)
        tasks.start_soon(connections.close_quiet)
        ready(_address(listener, secure=options.certificate is not None))
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


def _address(listener: socket.socket, *, secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}/mcp"
