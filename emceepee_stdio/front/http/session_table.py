"""The table of HTTP sessions: who gets one when most are taken, and when it ends if unused.

No session reaches into another: each has a process of its own. What they share is the
configuration file, which all of them follow. Each session has one owner task here, which starts its
process, waits for its end and stops it.
"""

import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CannotConnect, ConfigInvalid
from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_exchange import Incoming
from emceepee_stdio.front.http.http_replies import RETRY, HttpLimits, HttpRefusal, refusal
from emceepee_stdio.front.http.http_session import SHOWN_CHARS, STOP_TIMES, HttpSession
from emceepee_stdio.front.http.stored_streams import EventStore, StoreTotal
from emceepee_stdio.ids import Ids
from emceepee_stdio.wire.environment import BEHIND_HTTP, HTTP_TOKEN, JOURNAL_SESSION, OWNER
from emceepee_stdio.wire.orphans import owner_mark
from emceepee_stdio.wire.process import Spawn
from emceepee_stdio.wire.process_guard import Watchdog

_NAME_BYTES = 16  # no client guesses it
_MAX_JOURNALS = 10_000  # of one token: sessions whose requests it can see
_LOOK_AGAIN_S = 0.02  # only the end waits for this


def _no_room() -> HttpRefusal:
    """As many sessions as there may be are open, or the front is ending."""
    return refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "As many sessions as there may be are open. Each ends by DELETE, or after 30 minutes "
        "without use; `emceepee serve --http --max-sessions N` allows more.",
        RETRY,
    )


@dataclass(eq=False)
class SessionTable:
    """`options` are those of the processes; `note` is for what a person should know."""

    options: Sequence[str]
    limits: HttpLimits
    tokens: HttpTokens
    _: KW_ONLY
    clock: Clock
    tasks: TaskGroup
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._ids = Ids(self.clock)
        self._mark = owner_mark(self._ids())
        self._watchdog = Watchdog(
            self._mark,
            warn=lambda reason: self.note(f"a crash may leave processes: {reason}"),
            grace=STOP_TIMES.kill,
        )
        # In the handshake era by their ids, in the modern one by owner and path.
        self._sessions: dict[str | tuple[str, str], HttpSession] = {}
        self._processes: Counter[str] = Counter()  # by owner, also those that begin or end
        self._journals: dict[str, dict[str, None]] = {}  # by owner, in order
        self._opening = anyio.Lock()
        self._is_closing = False
        self.total = StoreTotal(max_events=self.limits.events, max_bytes=self.limits.bytes)
        self.begun = 0
        self.refused = 0
        self.lost_answers = 0

    def __len__(self) -> int:
        """Processes that there are, also those that are about to begin or end."""
        return self._processes.total()

    def __iter__(self) -> Iterator[HttpSession]:
        return iter([one for one in self._sessions.values() if not one.over.is_set()])

    @property
    def calls(self) -> int:
        return sum(session.calls for session in self)

    def find(self, name: str, incoming: Incoming) -> HttpSession | None:
        """A session by its id, for the token and at the path that began it."""
        found = self._sessions.get(name)
        if found is None or found.over.is_set():
            return None
        if (found.owner, found.path) != (incoming.owner, incoming.path):
            return None
        found.used_at = self.clock.now()
        found.is_used = True
        return found

    async def modern(self, incoming: Incoming) -> HttpSession:
        """The session of the modern era for this token and path."""
        owner = incoming.owner
        revoked = self.tokens.revocations[owner]
        async with self._opening:
            if self.tokens.revocations[owner] != revoked:
                raise _no_room()
            found = self._sessions.get((owner, incoming.path))
            if found is None or found.over.is_set():
                found = await self.begin(incoming, is_shared=True)
        found.used_at = self.clock.now()
        return found

    async def begin(self, incoming: Incoming, *, is_shared: bool = False) -> HttpSession:
        """A new session. One is every token's own, beyond the limit if need be."""
        owner, limits = incoming.owner, self.limits
        revoked = self.tokens.revocations[owner]
        if self._is_closing or (len(self) >= limits.sessions and self._processes[owner]):
            self.refused += 1
            raise _no_room()
        session = HttpSession(
            name=secrets.token_hex(_NAME_BYTES),
            owner=owner,
            path=incoming.path,
            store=EventStore(
                self.total,
                max_events=limits.session_events,
                max_bytes=limits.session_bytes,
                owner=owner,
            ),
            is_shared=is_shared,
        )
        self._processes[owner] += 1
        try:
            await self.tasks.start(self._own, session)
        except (OSError, CannotConnect) as error:
            self.note(f"a session could not be started: {error}")
            raise _no_room() from None
        if self._is_closing or self.tokens.revocations[owner] != revoked:
            session.end()
            raise _no_room()
        self.begun += 1
        return session

    async def _own(self, session: HttpSession, *, task_status: TaskStatus[None]) -> None:
        """The life of a session's process."""
        try:
            self._watchdog.start()
            pid = await session.start(self._spawn(session))
            self._watchdog.add(pid)
            session.used_at = self.clock.now()
            self._sessions[session.key] = session
            task_status.started()
            await session.over.wait()
            if self._sessions.get(session.key) is session:
                del self._sessions[session.key]
            await session.stop()
            self._watchdog.remove(pid)
        finally:
            self._processes[session.owner] -= 1
            self.lost_answers += session.store.lost_answers
            session.store.close()

    def _spawn(self, session: HttpSession) -> Spawn:
        journal = self._journal(session.owner)
        owner = f"{self._mark}.{journal}"
        own = {BEHIND_HTTP: session.name[:SHOWN_CHARS], HTTP_TOKEN: session.owner}
        own |= {JOURNAL_SESSION: journal, OWNER: owner}
        return Spawn(
            argv=(sys.executable, "-m", "emceepee_stdio", "serve", *self.options),
            env={**os.environ, **own},
            cwd=Path.cwd(),
            owner=owner,
        )

    def _journal(self, owner: str) -> str:
        """A new id for the records of a session."""
        known = self._journals.setdefault(owner, {})
        if len(known) >= _MAX_JOURNALS:
            del known[next(iter(known))]
        journal = self._ids()
        known[journal] = None
        return journal

    def was_begun_by(self, owner: str, journal: str) -> bool:
        """Whether a session was begun with this token whose requests have that id."""
        return journal in self._journals.get(owner, ())

    async def follow_tokens(self) -> None:
        """End the sessions of tokens that are revoked."""
        while True:
            await anyio.sleep(self.limits.sweep_s)
            gone: list[str] = []
            try:
                gone = await anyio.to_thread.run_sync(self.tokens.follow)
            except (OSError, ConfigInvalid) as error:
                self.note(f"the tokens stay as they were: {error}")
            if gone and self.tokens.is_empty:
                self.note("the file has no token: nobody can come in")
            self.tokens.revocations.update(gone)
            for owner in gone:
                self._journals.pop(owner, None)  # the next holder of the name sees none of it
            for session in self:
                if session.owner in gone:
                    session.end()

    async def sweep(self) -> None:
        """Look after idle sessions, questions that no client reads, and the watchdog."""
        while True:
            await anyio.sleep(self.limits.sweep_s)
            self._watchdog.renew()
            for session in self:
                session.give_up_unread()
            # At the same time: each process that hangs would delay all the others.
            async with anyio.create_task_group() as looks:
                for session in self:
                    looks.start_soon(self._end_if_idle, session)

    async def _end_if_idle(self, session: HttpSession) -> None:
        limits = self.limits
        before = self.clock.now() - (limits.idle_s if session.is_used else limits.unused_s)
        if session.readers or session.calls or session.used_at > before:
            return
        if await session.is_busy():
            session.used_at = self.clock.now()
        if session.used_at <= before:
            session.end()

    async def close(self) -> None:
        """No new ones; what is under way may finish for a while, then all end."""
        self._is_closing = True
        with anyio.move_on_after(self.limits.finish_s):
            while self.calls:  # noqa: ASYNC110 - once in the life of a process
                await anyio.sleep(_LOOK_AGAIN_S)
        for session in self:
            session.end()
        while len(self):  # noqa: ASYNC110 - see above
            await anyio.sleep(_LOOK_AGAIN_S)
        await anyio.to_thread.run_sync(self._watchdog.close)
