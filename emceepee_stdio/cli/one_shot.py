"""A session for one command: the servers as the proxy would have them, without a client.

Each server is tried once, in the time that the command has. Nothing of it is left afterwards.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager

import anyio
import msgspec

from emceepee_stdio.app import environment_of
from emceepee_stdio.backends.backend import Backend
from emceepee_stdio.backends.catalogue_record import Remembered
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import Config, RestartOverrides, ServerConfig, Settings
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import Journal, redact_text
from emceepee_stdio.session.catalogue import TOO_LARGE
from emceepee_stdio.session.runtime import Runtime
from emceepee_stdio.session.server_registry import Admission
from emceepee_stdio.wire.memory_protection import protect_memory
from emceepee_stdio.wire.process import StopTimes

__all__ = ["OneShotSession", "one_shot_session"]

_KEYRING_SHARE = 0.8  # of the time: so that a keyring that hangs is named, and not its server
_WRITE_S = 10.0  # for lists of megabytes on a slow disk; most take milliseconds
_STOP = StopTimes(term=0.2, kill=0.6)  # s: a person waits for the command to end


class OneShotSession:
    """The session of one command."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def __repr__(self) -> str:
        return f"<OneShotSession {self.runtime!r}>"

    async def open(self, server: ServerConfig) -> Backend:
        """A server that has begun to connect, and is not started again when it fails."""
        once = msgspec.structs.replace(
            server, start="eager", idle_stop_ms=0, restart=RestartOverrides(attempts=0)
        )
        servers = self.runtime.servers
        return await servers.add(Admission.configured(once), self.runtime.group())

    async def remembered(self, server: ServerConfig) -> Remembered | None:
        """What is known of a server that starts on first use; None where it has to be started."""
        catalogue, servers = self.runtime.catalogue, self.runtime.servers
        if catalogue is None or servers.start_mode(Admission.configured(server)) == "eager":
            return None
        return await catalogue.recall(server)

    async def not_remembered(self, server: ServerConfig) -> str:
        """Why a server that is to start on first use starts with each session; or nothing."""
        catalogue, servers = self.runtime.catalogue, self.runtime.servers
        if catalogue is not None:
            await catalogue.flush(_WRITE_S)
        return f" {TOO_LARGE}" if servers.is_too_large(Admission.configured(server)) else ""

    def shown(self, text: str) -> str:
        """What may be shown of what a server says."""
        return redact_text(self.runtime.session.secrets.mask(text))


@asynccontextmanager
async def one_shot_session(
    settings: Settings,
    *,
    environ: Mapping[str, str],
    within: float,
    configured: Iterable[str] = (),
) -> AsyncGenerator[OneShotSession]:
    """The session; every server in it is stopped at its end.

    `configured` are the names of all servers, on which those of exposed tools depend.
    """
    protect_memory()
    clock = Clock()
    timeout_ms = max(round(within * 1000), 1)
    settings = msgspec.structs.replace(
        settings,
        timeouts=msgspec.structs.replace(
            settings.timeouts, connect_ms=timeout_ms, request_ms=timeout_ms
        ),
        fixed=msgspec.structs.replace(
            settings.fixed,
            stop_term_s=_STOP.term,
            stop_kill_s=_STOP.kill,
            keyring_s=min(settings.fixed.keyring_s, within * _KEYRING_SHARE),
        ),
    )
    runtime = Runtime(
        Config(settings=settings),
        clock=clock,
        ids=Ids(clock),
        journal=Journal.silent(clock),
        environment=environment_of(settings, environ),
    )
    runtime.servers.configured_names |= set(configured)
    async with anyio.create_task_group() as tasks:
        await tasks.start(runtime.run)
        try:
            yield OneShotSession(runtime)
        finally:
            with anyio.CancelScope(shield=True):
                await runtime.stop(_STOP)
        tasks.cancel_scope.cancel()
