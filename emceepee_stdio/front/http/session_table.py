"""The table of HTTP sessions: started within the limits, ended when unused.

No session reaches into another: each has a process of its own. What they share is the
configuration file, which all of them follow.
"""

import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CannotConnect, ConfigInvalid
from emceepee_stdio.front.http.access import HttpTokens
from emceepee_stdio.front.http.http_limits import HttpLimits
from emceepee_stdio.front.http.http_replies import RETRY, HttpRefusal, Incoming, refusal
from emceepee_stdio.front.http.http_sessions import HandshakeSession, ModernSession
from emceepee_stdio.front.http.session_process import SessionGuard, SessionSpec
from emceepee_stdio.front.http.stored_streams import EventStore, StoreTotal
from emceepee_stdio.ids import Ids

_NAME_BYTES = 16  # nobody guesses it
_MAX_JOURNALS = 10_000  # of one token: sessions whose requests it can see
_LOOK_AGAIN_S = 0.02  # nobody waits for this but the end

Session = HandshakeSession | ModernSession


def _no_room() -> HttpRefusal:
    """As many sessions as there may be are open, or the front is ending."""
    return refusal(
        HTTPStatus.SERVICE_UNAVAILABLE,
        "As many sessions as there may be are open. Each ends by DELETE, or after 30 minutes "
        "without use; `emceepee serve --http --max-sessions N` allows more.",
        RETRY,
    )


class SessionTable:
    """`options` are those of the processes; `note` hears what a person should know."""

    def __init__(
        self,
        options: Sequence[str],
        limits: HttpLimits,
        *,
        clock: Clock,
        tasks: TaskGroup,
        note: Callable[[str], None],
    ) -> None:
        self._options = options
        self._limits = limits
        self._clock = clock
        self._ids = Ids(clock)
        self._tasks = tasks
        self._note = note
        self._guard = SessionGuard(self._ids(), note=note)
        self._handshakes: dict[str, HandshakeSession] = {}
        self._journals: dict[str, dict[str, None]] = {}  # by owner, in order
        self._moderns: dict[tuple[str, str], ModernSession] = {}
        self._held: Counter[str] = Counter()  # processes that are not over, by owner
        self._revoked: Counter[str] = Counter()  # how often a token of this name was revoked
        self._opening = anyio.Lock()
        self._starting = 0
        self._ending = 0
        self._is_closing = False
        self.total = StoreTotal(max_events=limits.events, max_bytes=limits.bytes)
        self.begun = 0
        self.refused = 0
        self.lost_answers = 0

    def __repr__(self) -> str:
        return f"<SessionTable {len(self)} open>"

    def __len__(self) -> int:
        """Processes that there are, also those that are about to begin or end."""
        return len(self._handshakes) + len(self._moderns) + self._starting + self._ending

    def __iter__(self) -> Iterator[Session]:
        return iter([*self._handshakes.values(), *self._moderns.values()])

    @property
    def calls(self) -> int:
        return sum(session.calls for session in self)

    def find(self, name: str, incoming: Incoming) -> HandshakeSession | None:
        """A session by its id, for the token and at the path that began it."""
        found = self._handshakes.get(name)
        if found is None or found.is_over:
            return None
        if (found.owner, found.path) != (incoming.owner, incoming.path):
            return None
        found.used_at = self._clock.now()
        found.is_used = True
        return found

    async def begin(self, incoming: Incoming) -> HandshakeSession:
        """A new session of the handshake era, found by its id from now on."""
        store = EventStore(
            self.total,
            max_events=self._limits.session_events,
            max_bytes=self._limits.session_bytes,
            owner=incoming.owner,
        )
        spec = self._spec(incoming.owner)
        session = HandshakeSession(spec, path=incoming.path, store=store, on_end=self._forget)
        try:
            await self._start(session)
        except BaseException:
            store.close()
            raise
        self._handshakes[session.name] = session
        return session

    async def modern(self, incoming: Incoming) -> ModernSession:
        """The session of the modern era for this token and path."""
        owner, path = incoming.owner, incoming.path
        revoked = self._revoked[owner]
        async with self._opening:
            if self._revoked[owner] != revoked:
                raise _no_room()
            found = self._moderns.get((owner, path))
            if found is None or found.is_over:
                found = ModernSession(self._spec(owner), on_end=self._forget)
                await self._start(found)
                self._moderns[owner, path] = found
        found.used_at = self._clock.now()
        return found

    async def _start(self, session: Session) -> None:
        """One is every token's own, beyond the limit if need be: nobody takes the last place."""
        owner, revoked = session.owner, self._revoked[session.owner]
        if self._is_closing or (len(self) >= self._limits.sessions and self._held[owner]):
            self.refused += 1
            raise _no_room()
        self._starting += 1
        try:
            self._held[owner] += 1
            await session.process.start()
        except (OSError, CannotConnect) as error:
            self._note(f"a session could not be started: {error}")
            raise _no_room() from None
        finally:
            self._starting -= 1
            if session.process.pid is None:
                self._held[owner] -= 1
        if self._revoked[owner] != revoked:
            self.end(session)
            raise _no_room()
        session.used_at = self._clock.now()
        self.begun += 1

    def was_begun_by(self, owner: str, journal: str) -> bool:
        """Whether a session was begun with this token whose requests have that id."""
        return journal in self._journals.get(owner, ())

    def _spec(self, owner: str) -> SessionSpec:
        return SessionSpec(
            name=secrets.token_hex(_NAME_BYTES),
            owner=owner,
            journal=self._remember(owner),
            options=self._options,
            guard=self._guard,
        )

    def _remember(self, owner: str) -> str:
        """A new id for the records of a session."""
        known = self._journals.setdefault(owner, {})
        if len(known) >= _MAX_JOURNALS:
            del known[next(iter(known))]
        journal = self._ids()
        known[journal] = None
        return journal

    def end(self, session: Session) -> None:
        """Its client has left, or it was idle for too long."""
        self._remove(session)
        self._ending += 1
        self._tasks.start_soon(self._stop, session)

    async def follow(self, tokens: HttpTokens) -> None:
        """End the sessions of tokens that are revoked."""
        while True:
            await anyio.sleep(self._limits.sweep_s)
            gone: list[str] = []
            try:
                gone = await anyio.to_thread.run_sync(tokens.follow)
            except (OSError, ConfigInvalid) as error:
                self._note(f"the tokens stay as they were: {error}")
            if gone and tokens.is_empty:
                self._note("the file has no token: nobody can come in")
            self._revoked.update(gone)
            for owner in gone:
                self._journals.pop(owner, None)  # the next holder of the name sees none of it
            for session in self:
                if session.owner in gone:
                    session.end_streams()
                    self.end(session)

    async def _stop(self, session: Session) -> None:
        try:
            await session.stop()
        finally:
            self._ending -= 1

    def _forget(self, session: Session) -> None:
        """Its process has ended, by itself or by us."""
        self._remove(session)
        self._held[session.owner] -= 1
        if isinstance(session, HandshakeSession):
            self.lost_answers += session.store.lost_answers
            session.store.close()

    def _remove(self, session: Session) -> None:
        if isinstance(session, HandshakeSession):
            self._handshakes.pop(session.name, None)
            return
        for key in [key for key, found in self._moderns.items() if found is session]:
            del self._moderns[key]

    async def sweep(self) -> None:
        """End sessions that have been idle for long, and renew the watchdog if it died."""
        while True:
            await anyio.sleep(self._limits.sweep_s)
            self._guard.watchdog.renew()
            # At the same time: each process that hangs would delay all the others.
            async with anyio.create_task_group() as looks:
                for session in self:
                    looks.start_soon(self._end_if_idle, session)

    async def _end_if_idle(self, session: Session) -> None:
        limits = self._limits
        before = self._clock.now() - (limits.idle_s if session.is_used else limits.unused_s)
        if session.readers or session.calls or session.used_at > before:
            return
        if await session.process.is_busy():
            session.used_at = self._clock.now()
        if session.used_at <= before:
            self.end(session)

    async def close(self) -> None:
        """No new ones; what is under way may finish for a while, then all end."""
        self._is_closing = True
        with anyio.move_on_after(self._limits.finish_s):
            while self.calls:  # noqa: ASYNC110 - once in the life of a process
                await anyio.sleep(_LOOK_AGAIN_S)
        for session in self:
            session.end_streams()
        for session in self:
            self.end(session)
        while self._ending:  # noqa: ASYNC110 - see above
            await anyio.sleep(_LOOK_AGAIN_S)
        await anyio.to_thread.run_sync(self._guard.watchdog.close)
