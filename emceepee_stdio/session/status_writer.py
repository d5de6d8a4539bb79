"""Writes the status file of this proxy, once a second if it changed.

It is looked at once a second what there is to tell, and only what differs is written, in a thread:
no call waits for it, however many there are. A file that somebody else removed or wrote over is
written anew. Where it cannot be written, `status` does not show this proxy; nothing else depends
on it.
"""

import os
import threading
from collections import Counter
from contextlib import suppress

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct

from emceepee_stdio import __version__
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.load import Source
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.journal import Journal, JournalEvent
from emceepee_stdio.session.proxy_status import (
    MAX_CHARS,
    OpenQuestions,
    ProxyStatus,
    ServerStatus,
    here,
    status_directory,
    sweep,
)
from emceepee_stdio.session.server_registry import Environment, Origin, RegisteredServer, Servers
from emceepee_stdio.session.session import Session
from emceepee_stdio.state.pending_requests import Recipient
from emceepee_stdio.state.phases import Phase
from emceepee_stdio.storage.private_file import Stamp, file_stamp, make_private, write_whole
from emceepee_stdio.trust.store import TrustStore
from emceepee_stdio.trust.targets import target_id
from emceepee_stdio.wire.environment import BEHIND_HTTP
from emceepee_stdio.wire.orphans import started

_EVERY_S = 1.0  # a person takes this for now
_END_WAIT_S = 0.5  # for a write that is under way when the proxy ends


class StatusWriter(Struct, eq=False, dict=True):
    """Writes what `look` finds."""

    session: Session
    servers: Servers
    source: Source
    environment: Environment
    clock: Clock
    journal: Journal
    trust: TrustStore

    def __post_init__(self) -> None:
        self._directory = status_directory(self.environment.environ)
        self._written: ProxyStatus | None = None
        self._stamp: Stamp | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._proxy = ProxyStatus(
            pid=os.getpid(),
            process_started=started(os.getpid()),
            host=here(),
            session=self.journal.session,
            http_session=self.environment.environ.get(BEHIND_HTTP, "")[:MAX_CHARS],
            version=__version__,
            client_name="",
            client_version="",
            started_at=self.clock.epoch(self.clock.now()),
            directory=str(self.environment.cwd),
            config=_path_of(self.source),
        )

    async def run(self) -> None:
        """Write what has changed, until cancelled."""
        try:
            await anyio.to_thread.run_sync(self._prepare, abandon_on_cancel=True)
            while True:
                status = self.look()
                if status != self._written or self._found() != self._stamp:
                    self._written = status
                    await anyio.to_thread.run_sync(self._write, status, abandon_on_cancel=True)
                await anyio.sleep(_EVERY_S)
        except Exception as error:  # noqa: BLE001 - a bug here must not end the session
            self.journal.record(JournalEvent.UNEXPECTED_ERROR, error=repr(error))

    def look(self) -> ProxyStatus:
        """How this proxy is doing."""
        name, version = self.session.client.name
        asked = Counter((q.server, q.recipient) for q in self.session.state.requests.open.values())
        working = Counter(task.server for task in self.session.state.tasks.working())
        members = self.servers.members.values()
        broken = tuple(
            ServerStatus(name=one.name, phase=Phase.DISABLED.value)
            for one in self.servers.broken.values()
            if not one.switched_off
        )
        return msgspec.structs.replace(
            self._proxy,
            client_name=name[:MAX_CHARS],
            client_version=version[:MAX_CHARS],
            servers=tuple(self._server(member, asked, working) for member in members) + broken,
        )

    def close(self) -> None:
        """Remove the file: the proxy ends."""
        taken = self._lock.acquire(timeout=_END_WAIT_S)
        self._closed = True
        with suppress(OSError):
            (self._directory / self._proxy.file_name).unlink()
        if taken:
            self._lock.release()

    def _server(
        self, member: RegisteredServer, asked: Counter[tuple[str, Recipient]], working: Counter[str]
    ) -> ServerStatus:
        snapshot = member.backend.snapshot()
        name = snapshot.name
        return ServerStatus(
            name=name,
            phase=snapshot.phase.value,
            target=target_id(member.config, self.trust.key()),
            transport=snapshot.transport,
            start=self.servers.start_mode(member.admission),
            in_file=member.origin is Origin.CONFIGURATION and not self.source.gives(name),
            from_catalogue=snapshot.remembered_at,
            pid=snapshot.pid,
            calls=len(self.session.waiting_on(name)),
            tasks=working[name],
            questions=OpenQuestions(
                person=asked[name, Recipient.PERSON], tools=asked[name, Recipient.TOOLS]
            ),
        )

    def _prepare(self) -> None:
        self.trust.key()  # it is read from a file once
        with suppress(OSError):
            sweep(self._directory, clock=self.clock)

    def _found(self) -> Stamp | None:
        """What is in the place of the file."""
        return file_stamp(self._directory / self._proxy.file_name, follow=False)

    def _write(self, status: ProxyStatus) -> None:
        with self._lock, suppress(OSError):
            if self._closed:
                return
            make_private(self._directory)
            path = self._directory / status.file_name
            write_whole(path, msgspec.json.encode(status), lasting=False)
            self._stamp = self._found()


def _path_of(source: Source) -> str:
    try:
        return str(source.path().absolute())
    except (OSError, RuntimeError, ProxyError):
        return ""
