"""The HTTP front as a process: its socket, its signals, its shutdown."""

import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import anyio

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import ConfigInvalid
from emceepee_stdio.front.http.access import Access
from emceepee_stdio.front.http.http_app import HttpApp
from emceepee_stdio.front.http.http_limits import HttpLimits
from emceepee_stdio.front.http.http_server import HttpServer, server_config
from emceepee_stdio.front.http.session_table import SessionTable
from emceepee_stdio.front.http.trace_endpoint import TraceEndpoint
from emceepee_stdio.front.shutdown_signals import heed_signals

_BACKLOG = 2048  # as uvicorn has it: a crowd is accepted and sent away, and delays nobody


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
    clock, limits = Clock(), options.limits
    async with anyio.create_task_group() as tasks:
        sessions = SessionTable(options.children, limits, clock=clock, tasks=tasks, note=note)
        began = clock.epoch(clock.now())
        trace = TraceEndpoint(sessions, options.access.tokens, options.log_directory, since=began)
        app = HttpApp(sessions, options.access, limits, trace)
        config = server_config(app, limits, certificate=options.certificate, key=options.key)
        server = HttpServer(config, limits, clock)
        await tasks.start(heed_signals, server.on_signal)  # before anybody knows of us
        tasks.start_soon(sessions.sweep)
        tasks.start_soon(sessions.follow, options.access.tokens)
        tasks.start_soon(server.close_quiet)
        ready(_address(listener, secure=options.certificate is not None))

        async def before_end() -> None:
            trace.close()
            await sessions.close()

        await server.run_until_told([listener], before_end=before_end)
        tasks.cancel_scope.cancel()


def _address(listener: socket.socket, *, secure: bool) -> str:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{shown}:{port}/mcp"
