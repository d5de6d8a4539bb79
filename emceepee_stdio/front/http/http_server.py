"""uvicorn, with limits that it lacks: idle connections, endless headers, TLS handshakes."""

import asyncio
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.front.http.http_limits import HttpLimits

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from emceepee_stdio.front.http.http_app import HttpApp


# The certificate and the key for https, tried before anything is served.
#
# uvicorn reads them when it serves already, and OpenSSL would ask the terminal for a passphrase.


_OTHER_KEY = "KEY_VALUES_MISMATCH"


def check_tls_files(certificate: str, key: str) -> None:
    """Refuse files with which https would not work."""
    for file in (certificate, key):
        _require_readable(file)
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
    except (ssl.SSLError, _Encrypted) as error:
        raise _unusable(certificate, key, error) from None


def _require_readable(file: str) -> None:
    if not Path(file).is_file():
        raise ConfigInvalid(f"There is no file {file}.", hint="Name the file for https.")
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ConfigInvalid(
            f"{file} cannot be read: {error.strerror or error}.",
            hint="Let the user who starts the front read it.",
        ) from None


class _Encrypted(Exception):
    """The key has a passphrase."""


def _refuse_passphrase() -> str:
    """OpenSSL asks for one only where the key has it."""
    raise _Encrypted


def _unusable(certificate: str, key: str, error: Exception) -> ConfigInvalid:
    if isinstance(error, _Encrypted):
        return ConfigInvalid(
            f"The key in {key} is encrypted.",
            hint=f"Give a key without a passphrase: openssl pkey -in {key} -out NEW_FILE",
        )
    reason = getattr(error, "reason", None)
    if reason == _OTHER_KEY:
        return ConfigInvalid(
            f"The key in {key} is not the key of the certificate in {certificate}.",
            hint="Give two files that were made together; the server's certificate comes first.",
        )
    return ConfigInvalid(
        f"{key} has no private key that fits {certificate}{f' ({reason})' if reason else ''}.",
        hint="Give --tls-key the private key of --tls-cert, in PEM format.",
    )


# TLS connections until their handshake is done, in bounded number and for a bounded time.
#
# asyncio's own servers show a connection after its handshake, so nobody would count those that
# never do one. Here sockets are accepted one by one, and the oldest handshake gives way to a new
# one.


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


_MAX_EXTRA_BYTES = 1 << 16  # of a request beside its body: head, trailer, sizes of chunks
_MAX_FIELDS = 256  # of a head and a trailer; the application says more kindly what is too much
_MAX_PIPELINED = 16  # requests that wait behind the one that is being answered
_CLOSING = 64  # connections that were told to go, and are still counted for a moment
_GRACE_S = 2  # for answers that were just written, when everything ends


class _TooMuchError(Exception):
    """Raised in the parser, which then gives up on the connection."""


class _Protocol(HttpToolsProtocol):
    """A connection that closes when a request does not come to its point.

    What a client sends is counted as it is parsed: a field of six bytes costs us a hundred. Fields
    behind the body (RFC 9110, trailers) are left out: they come after a request was judged.
    """

    _received = 0  # of the request that is coming in
    _body = 0
    _fields = 0
    resumed = 0  # how often its client took enough of what was written for more to be written
    is_stuck = False  # its client took nothing between the last two looks
    is_cut = False  # aborted by us, and counted for a moment
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
        self.resumed += 1
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
            _close(self)

    def _make_room(self) -> None:
        """One of those that ask nothing goes, so that a crowd of them shuts nobody out.

        First one that never asked anything, last one that does not take its answer.
        """
        most = (self.limit_concurrency or 0) - _CLOSING
        connections: set[Any] = self.connections
        if len(connections) <= most:
            return
        there = [c for c in connections if not c.is_cut and not _is_leaving(c)]
        if len(there) > most:
            idle = [c for c in there if c is not self and _can_go(c)]
            if idle:
                _close(min(idle, key=lambda c: (c.is_stuck, _has_asked(c))))


def server_config(
    app: "HttpApp", limits: HttpLimits, *, certificate: str | None, key: str | None
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # below that is what strangers send, and advice on packages
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections + _CLOSING,
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
        self._tasks: TaskGroup | None = None
        self._tls: list[TlsListener] = []

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    def on_signal(self, _number: int) -> None:
        """End in order."""
        self.should_exit = True

    async def run_until_told(
        self, listeners: Sequence[socket.socket], *, before_end: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until `on_signal`; uvicorn waits for open answers, so they are ended first."""
        self._before_end = before_end
        async with anyio.create_task_group() as self._tasks:
            await self.serve(sockets=list(listeners))
            self._tasks.cancel_scope.cancel()  # a signal during the start leaves out `shutdown`

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does it, but for TLS."""
        context = self.config.ssl
        await super().startup(sockets if context is None else [])
        if context is None or self._tasks is None:
            return
        protocol = partial(_Protocol, self.config, self.server_state, {})
        for listener in sockets or []:
            self._tls.append(TlsListener(listener, context, self._limits, protocol=protocol))
            self._tasks.start_soon(self._tls[-1].run)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in [*self.servers, *self._tls]:
            server.close()
        if self._before_end is not None:
            await self._before_end()
        await super().shutdown(sockets)

    async def close_quiet(self) -> None:
        """For as long as it runs; who never finishes a request would hold a socket for ever."""
        limits = self._limits
        quiet, stuck = _Unchanged(), _Unchanged()
        while True:
            await anyio.sleep(limits.sweep_s)
            now = self._clock.now()
            there: list[Any] = list(self.server_state.connections)
            blocked = {c: _taken(c) for c in there if _is_blocked(c)}
            asks_nothing = {c: c.cycle for c in there if _asks_nothing(c) and c not in blocked}
            over = [c for c, age in quiet.look(asks_nothing, now) if age >= limits.quiet_s]
            for connection, age in stuck.look(blocked, now):
                connection.is_stuck = age > 0
                over += [connection] if age >= limits.stuck_s else []
            for connection in over:
                _close(connection)


class _Unchanged:
    """For how long things have been the same, from one look to the next."""

    def __init__(self) -> None:
        self._since: dict[Any, tuple[object, float]] = {}

    def look(self, values: Mapping[Any, object], now: float) -> list[tuple[Any, float]]:
        """Each with the seconds for which it has had its value."""
        before = self._since
        self._since = {
            key: before[key] if key in before and before[key][0] == value else (value, now)
            for key, value in values.items()
        }
        return [(key, now - since) for key, (_, since) in self._since.items()]


def _is_blocked(connection: Any) -> bool:
    """Whether what is written to it waits for its client; under TLS also a close does."""
    transport = connection.transport
    waits = transport.get_write_buffer_size() > 0 or _is_tls(connection)
    return connection.flow.write_paused or (transport.is_closing() and waits)


def _taken(connection: Any) -> tuple[int, int, int]:
    """What differs when its client has taken anything."""
    transport = connection.transport
    return connection.resumed, transport.get_write_buffer_size(), _unsent(transport)


def _unsent(transport: Any) -> int:
    """What the system still holds, which changes with each piece; 0 where it does not say."""
    if sys.platform != "linux":
        return 0
    from fcntl import ioctl  # noqa: PLC0415 - not on every platform
    from termios import TIOCOUTQ  # noqa: PLC0415 - as above

    try:
        held = ioctl(transport.get_extra_info("socket").fileno(), TIOCOUTQ, bytes(4))
    except OSError:
        return 0
    return int.from_bytes(held, sys.byteorder)


def _close(connection: Any) -> None:
    """What a client does not take would be waited for, without an end.

    Under TLS, a close waits for the client's close_notify, and a silent client sends none.
    """
    transport = connection.transport
    if _is_blocked(connection) or (_is_tls(connection) and _has_taken_all(connection)):
        connection.is_cut = True
        transport.abort()
    else:
        transport.close()


def _is_leaving(connection: Any) -> bool:
    """Closing, and its client still takes the rest of its answer."""
    if connection.is_stuck or not connection.transport.is_closing():
        return False
    return not (_is_tls(connection) and _has_taken_all(connection))


def _can_go(connection: Any) -> bool:
    is_closing = connection.transport.is_closing()
    return connection.is_stuck or is_closing or _asks_nothing(connection)


def _has_taken_all(connection: Any) -> bool:
    """Whether no part of an answer would be lost by an abort."""
    transport = connection.transport
    is_empty = transport.get_write_buffer_size() == 0 and _unsent(transport) == 0
    return is_empty or not _has_asked(connection)


def _is_tls(connection: Any) -> bool:
    return connection.scheme == "https"


def _has_asked(connection: Any) -> bool:
    return connection.cycle is not None


def _asks_nothing(connection: Any) -> bool:
    return connection.cycle is None or connection.cycle.response_complete
