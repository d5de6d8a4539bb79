"""The HTTP front as a process: its socket, its signals, its end, and uvicorn within limits.

uvicorn has no limit for connections that ask nothing, and none for headers without an end.
"""

import socket
import ssl
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.front.http.access import Access
from emceepee_stdio.front.http.http_app import HttpApp
from emceepee_stdio.front.http.http_replies import HttpLimits
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.trace_endpoint import TraceEndpoint
from emceepee_stdio.front.shutdown_signals import heed_signals
from emceepee_stdio.storage.private_file import read_regular

# The certificate and the key for https, tried before anything is served.
#
# uvicorn reads them when it serves already, and OpenSSL would ask the terminal for a passphrase.


class _Encrypted(Exception):
    """The key has a passphrase."""


def check_tls_files(certificate: str, key: str) -> None:
    """Refuse files with which https would not work."""
    for file in (certificate, key):
        try:
            read_regular(Path(file))
        except OSError as error:
            raise ConfigInvalid(
                f"{file} cannot be read: {error.strerror or error}.",
                hint="Name a file for https that the user who starts the front can read.",
            ) from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        raise ConfigInvalid(
            f"{certificate} has no certificate in PEM format.",
            hint="Give --tls-cert the certificate, and --tls-key its private key.",
        ) from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except _Encrypted:
        raise ConfigInvalid(
            f"The key in {key} is encrypted.",
            hint=f"Give a key without a passphrase: openssl pkey -in {key} -out NEW_FILE",
        ) from None
    except ssl.SSLError as error:
        is_other = error.reason == "KEY_VALUES_MISMATCH"
        problem = "is not the key of the certificate in" if is_other else "has no private key for"
        raise ConfigInvalid(
            f"{key} {problem} {certificate}.",
            hint="Give --tls-key the private key of --tls-cert, in PEM format; in a chain, the "
            "server's certificate comes first.",
        ) from None


def _refuse_passphrase() -> str:
    """OpenSSL asks for one only where the key has it."""
    raise _Encrypted


_MAX_EXTRA_BYTES = 1 << 16  # of a request beside its body: head, trailer, sizes of chunks
_MAX_FIELDS = 256  # of a head and a trailer; the application says more kindly what is too much
_MAX_PIPELINED = 16  # requests that wait behind the one that is being answered
_CLOSING = 64  # connections that were told to go, and are still counted for a moment
_BACKLOG = 2048  # as uvicorn has it: a crowd is accepted and sent away, and delays no other
_GRACE_S = 2  # for answers that were just written, when everything ends


class _TooMuchError(Exception):
    """Raised in the parser, which then gives up on the connection."""


class _Protocol(HttpToolsProtocol):
    """A connection that closes when a request does not come to its point.

    What a client sends is counted as it is parsed: a field of six bytes costs us a hundred. Fields
    behind the body (RFC 9110, trailers) are left out: they come after a request was judged.
    """

    cycle: Any  # None before the first request
    _received = 0  # of the request that is coming in
    _body = 0
    _fields = 0
    _resumed = 0  # how often its client took enough of what was written for more to be written
    is_stuck = False  # its client took nothing between the last two looks
    is_cut = False  # aborted by us, and counted for a moment
    _state: object = "new"  # as the last look found it
    _since = 0.0  # when it was first found so
    _answered: Any = None  # the request that is being answered; others may wait behind it
    _in_head = False  # also of a request that comes while another is being answered

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._make_room()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._received = self._body = self._fields = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += 1
        if self._fields > _MAX_FIELDS:
            raise _TooMuchError
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        waiting = len(self.pipeline)
        if waiting >= _MAX_PIPELINED:
            raise _TooMuchError
        if not self.url.startswith(b"/"):  # then its host counts, and not the header (RFC 9112)
            authority = self.url.partition(b"://")[2].partition(b"/")[0].partition(b"?")[0]
            self.headers[:] = [field for field in self.headers if field[0] != b"host"]
            self.headers.append((b"host", authority))
        super().on_headers_complete()
        if len(self.pipeline) == waiting:
            self._answered = self.cycle

    def on_body(self, body: bytes) -> None:
        self._body += len(body)
        super().on_body(body)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # under TLS, asyncio hands over what came before
            return
        self._received += len(data)
        super().data_received(data)
        is_too_much = self._received - self._body > _MAX_EXTRA_BYTES + self._body
        if is_too_much and not self.transport.is_closing():
            self.transport.close()
            self._end_cycles()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._end_cycles()

    def shutdown(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()

    def resume_writing(self) -> None:
        self._resumed += 1
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """The server tells only the newest of several requests that their client has gone."""
        super().connection_lost(exc)
        self._end_cycles()

    def _end_cycles(self) -> None:
        """One that went on would close a second time: then asyncio's TLS transport is unusable."""
        for cycle in [self._answered, *(cycle for cycle, _ in self.pipeline)]:
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def on_response_complete(self) -> None:
        self._answered = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():
            self.close()

    def _make_room(self) -> None:
        """One of those that ask nothing goes, so that a crowd of them shuts nobody out.

        First one that never asked anything, last one that does not take its answer.
        """
        most = (self.limit_concurrency or 0) - _CLOSING
        connections: set[Any] = self.connections
        if len(connections) <= most:
            return
        there = [c for c in connections if not c.is_cut and not c.is_leaving]
        if len(there) > most:
            idle = [
                c
                for c in there
                if c is not self and (c.is_stuck or c.transport.is_closing() or c.asks_nothing)
            ]
            if idle:
                min(idle, key=lambda c: (c.is_stuck, c.cycle is not None)).close()

    def look(self, now: float, limits: HttpLimits) -> None:
        """Close it if its client has asked nothing, or taken nothing, for too long."""
        is_blocked = self._is_blocked
        if is_blocked:
            state: object = self._resumed, self.transport.get_write_buffer_size(), self._unsent
        else:
            state = self.cycle if self.asks_nothing else now
        if state != self._state:
            self._state, self._since = state, now
        age = now - self._since
        self.is_stuck = is_blocked and age > 0
        if age >= (limits.stuck_s if is_blocked else limits.quiet_s):
            self.close()

    def close(self) -> None:
        """What a client does not take would be waited for, without an end.

        Under TLS, a close waits for the client's close_notify, and a silent client sends none.
        """
        if self._is_blocked or (self._is_tls and self._has_taken_all):
            self.is_cut = True
            self.transport.abort()
        else:
            self.transport.close()

    @property
    def asks_nothing(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_leaving(self) -> bool:
        """Closing, and its client still takes the rest of its answer."""
        if self.is_stuck or not self.transport.is_closing():
            return False
        return not (self._is_tls and self._has_taken_all)

    @property
    def _is_tls(self) -> bool:
        return self.scheme == "https"

    @property
    def _is_blocked(self) -> bool:
        """Whether what is written to it waits for its client; under TLS also a close does."""
        waits = self._is_tls or self.transport.get_write_buffer_size() > 0
        return self.flow.write_paused or (self.transport.is_closing() and waits)

    @property
    def _has_taken_all(self) -> bool:
        """Whether no part of an answer would be lost by an abort."""
        is_written = self.transport.get_write_buffer_size() == 0 and self._unsent == 0
        return is_written or self.cycle is None

    @property
    def _unsent(self) -> int:
        """What the system still holds, which changes with each piece; 0 where it does not say."""
        if sys.platform != "linux":
            return 0
        from fcntl import ioctl  # noqa: PLC0415 - not on every platform
        from termios import TIOCOUTQ  # noqa: PLC0415 - as above

        try:
            held = ioctl(self.transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(held, sys.byteorder)


class HttpServer(uvicorn.Server):
    """Leaves signals to us, and closes connections on which nothing is asked."""

    def __init__(
        self, options: "FrontOptions", clock: Clock, sessions: SessionTable, trace: TraceEndpoint
    ) -> None:
        self._limits = options.limits
        self._clock = clock
        self._sessions = sessions
        self._trace = trace
        super().__init__(
            uvicorn.Config(
                HttpApp(sessions, options.access, options.limits, trace),
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # below that is what strangers send, and advice on packages
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=options.limits.connections + _CLOSING,
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

    async def close_quiet(self) -> None:
        """For as long as it runs; who never finishes a request would hold a socket for ever."""
        while True:
            await anyio.sleep(self._limits.sweep_s)
            now = self._clock.now()
            connections: list[Any] = list(self.server_state.connections)
            for connection in connections:
                connection.look(now, self._limits)


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
    listener = _listen(options.host, options.port)
    uses_uvloop = sys.platform != "win32" and find_spec("uvloop") is not None
    anyio.run(_serve, options, listener, ready, note, backend_options={"use_uvloop": uses_uvloop})


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        if sys.platform != "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
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
        server = HttpServer(options, clock, sessions, trace)
        await tasks.start(heed_signals, server.on_signal)  # before the address is known
        tasks.start_soon(sessions.sweep)
        tasks.start_soon(sessions.follow_tokens)
        tasks.start_soon(server.close_quiet)
        ready(_address(listener, secure=options.certificate is not None))
        await server.serve(sockets=[listener])
        tasks.cancel_scope.cancel()


def _address(listener: socket.socket, *, secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}/mcp"
