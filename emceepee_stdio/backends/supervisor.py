"""The owner of one backend: connects, serves, notices the end, backs off, reconnects, gives up.

One task, `run`, enters and leaves every connection; nobody else does. Cancelling it is the only way
to stop a backend. Others wait for a connection, make requests on it, or ask for a new one.
"""

import anyio
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Raw

from emceepee_stdio.backends.base import (
    Channel,
    Connection,
    Loss,
    OnProgress,
    Params,
    PhaseChange,
    Settled,
    Sink,
    Snapshot,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    CannotConnect,
    ProxyError,
    ServerDisconnected,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import PHASES, Phase
from emceepee_stdio.state.restarts import Restarts

__all__ = ["Supervisor"]


class Supervisor:
    """A backend and its life. Make it, start `run` in a task group, and use it from anywhere."""

    def __init__(
        self,
        name: str,
        channel: Channel,
        *,
        sink: Sink,
        clock: Clock,
        restarts: Restarts,
        lazy: bool = False,
        verdict: float = 0.2,
    ) -> None:
        self.name = name
        self._channel = channel
        self._sink = sink
        self._clock = clock
        self._restarts = restarts
        self._lazy = lazy
        self._verdict_time = verdict
        self._phase: Phase | None = None
        self._connection: Connection | None = None
        self._hello_before = False
        self._up_since: float | None = None
        self._starts = 0
        self._failures = 0
        self._next_retry_at: float | None = None
        self._last_error: ProxyError | None = None
        self._wanted = anyio.Event()
        self._changed = anyio.Event()
        self._renew = False
        self._attempt_scope: anyio.CancelScope | None = None
        self._run_scope = anyio.CancelScope()
        self._stopped = anyio.Event()

    def __repr__(self) -> str:
        phase = self._phase.value if self._phase else "new"
        return f"<Supervisor {self.name} {phase} starts={self._starts} {self._restarts!r}>"

    @property
    def current(self) -> Connection | None:
        """The living connection, if there is one now."""
        return self._connection

    @property
    def phase(self) -> Phase | None:
        return self._phase

    def snapshot(self) -> Snapshot:
        connection = self._connection
        return Snapshot(
            name=self.name,
            phase=self._phase or Phase.IDLE,
            transport=self._channel.transport,
            target=self._channel.target,
            pid=connection.pid if connection else None,
            up_since=self._up_since,
            hello=connection.hello if connection else None,
            session=connection.session if connection else None,
            starts=self._starts,
            attempt=self._restarts.attempts,
            attempts=self._restarts.policy.limit,
            next_retry_at=self._next_retry_at,
            last_error=str(self._last_error) if self._last_error else None,
            error=self._last_error,
        )

    # For everybody

    async def request(
        self,
        method: str,
        params: Params | None = None,
        *,
        within: float,
        call: object = None,
        on_progress: OnProgress | None = None,
        settled: Settled | None = None,
    ) -> Raw:
        """Ask the server, connecting first if need be, all within the given time.

        What was asked and `settled` before is not asked again, only told.
        """
        connection, connecting = self._connection, 0.0
        if settled is not None:
            connection = settled.connection
        if connection is None:
            asked_at = self._clock.now()
            connection = await self.connection(within=within)
            connecting = self._clock.now() - asked_at
        try:
            if settled is not None:
                return _told(settled, method, within)
            return await connection.request(
                method,
                params,
                within=max(within - connecting, 0.0),
                call=call,
                on_progress=on_progress,
            )
        except CallTimeout:
            spent = f", {connecting:.1f} s of them to connect" if connecting else ""
            fact = f"{self.name} did not answer {method} within {within:g} s{spent}."
            raise CallTimeout(fact) from None
        except ServerDisconnected as error:
            lost = error
        await self._verdict(connection)
        raise ServerDisconnected(lost.fact, hint=self._prospects())

    async def connection(self, *, within: float) -> Connection:
        """The living connection. A backend in backoff is tried now; callers share the attempt."""
        with anyio.move_on_after(within):
            return await self._await_connection()
        raise ServerUnavailable(
            f"{self.name} is still {self._phase_name()} after {within:g} s.",
            hint="Call again later, or list_servers to see what it waits for.",
        )

    async def reconnect(self, *, within: float) -> Connection:
        """Leave the connection or the attempt there is, and make a new one with a full budget."""
        if self._run_scope.cancel_called or self._stopped.is_set():
            raise self._gone()
        self._restarts.refill()
        self._renew = True
        self._connection = None
        self._wanted.set()
        if self._attempt_scope is not None:
            self._attempt_scope.cancel()
        return await self.connection(within=within)

    async def stop(self) -> None:
        """End the owner task; returns when nothing of the backend is left."""
        self._run_scope.cancel()
        if self._phase is None:  # `run` has not begun: nobody was told of it, nor need be now
            self._phase = Phase.DISCONNECTED
            self._stopped.set()
            self._changed.set()
        with anyio.CancelScope(shield=True):
            await self._stopped.wait()

    # The owner task

    async def run(self) -> None:
        if self._stopped.is_set():
            return
        with self._run_scope:
            try:
                await self._live()
            finally:
                self._drop()
                self._enter(Phase.DISCONNECTED)
                self._stopped.set()

    async def _live(self) -> None:
        self._enter(Phase.IDLE if self._lazy else Phase.CONNECTING)
        while True:
            if self._phase in (Phase.IDLE, Phase.FAILED):
                await self._wanted.wait()
                self._enter(Phase.CONNECTING)
            self._renew = False
            with anyio.CancelScope() as self._attempt_scope:
                await self._attempt()
            self._attempt_scope = None
            if self._renew:
                self._enter(Phase.CONNECTING)
            elif self._phase is Phase.RECONNECTING:
                await self._back_off()

    async def _attempt(self) -> None:
        """One connection, from opening to loss; whatever went wrong has become a phase."""
        await checkpoint_if_cancelled()
        self._starts += 1
        self._next_retry_at = None
        over = False
        try:
            async with self._channel.connect() as connection:
                # It may have opened in the very moment in which it was no longer wanted.
                await checkpoint_if_cancelled()
                self._gain(connection)
                try:
                    self._lose(await connection.lost())
                except anyio.get_cancelled_exc_class():
                    self._leave()
                    raise
                finally:
                    over = self._phase is not Phase.CONNECTED
        except (ProxyError, OSError) as error:
            if not over and not self._renew:
                self._fail(error)

    def _gain(self, connection: Connection) -> None:
        now = self._clock.now()
        self._connection = connection
        self._up_since = now
        self._last_error = None
        self._restarts.connected(now=now)
        self._enter(Phase.CONNECTED)
        self._hello_before = True

    def _lose(self, loss: Loss) -> None:
        self._drop()
        self._last_error = ServerDisconnected(str(loss))
        self._retry_or_give_up(self._last_error, loss=loss)

    def _fail(self, error: ProxyError | OSError) -> None:
        self._drop()
        if isinstance(error, OSError):
            error = ServerFailed(f"{self.name} could not be connected: {error}.")
        self._last_error = error
        hopeless = isinstance(error, CannotConnect) and not self._hello_before
        self._retry_or_give_up(error, hopeless=hopeless)

    def _retry_or_give_up(
        self, error: ProxyError, *, loss: Loss | None = None, hopeless: bool = False
    ) -> None:
        now = self._clock.now()
        delay = None if hopeless else self._restarts.after_loss(now=now)
        if not self._renew:  # what somebody has replaced by a new attempt fails for nobody
            self._failures += 1
        self._wanted = anyio.Event()
        if self._phase is Phase.RECONNECTING:
            self._sink.attempt_failed(self.name, error)
        if delay is None:
            self._enter(Phase.FAILED, loss=loss, error=error)
        else:
            self._next_retry_at = now + delay
            self._enter(Phase.RECONNECTING, loss=loss, error=error, retry_in=delay)

    def _leave(self) -> None:
        """Told at once when it is we who leave; stopping the server may take a while."""
        self._drop()
        stays = self._renew and not self._run_scope.cancel_called
        self._enter(Phase.CONNECTING if stays else Phase.DISCONNECTED)

    def _drop(self) -> None:
        self._connection = None
        self._up_since = None

    async def _back_off(self) -> None:
        """Wait out the pause, or until somebody needs the backend now."""
        if self._next_retry_at is not None:
            with anyio.move_on_after(self._next_retry_at - self._clock.now()):
                await self._wanted.wait()
        if self._renew:
            self._enter(Phase.CONNECTING)

    def _enter(
        self,
        phase: Phase,
        *,
        loss: Loss | None = None,
        error: ProxyError | None = None,
        retry_in: float | None = None,
    ) -> None:
        """Move by the table, wake whoever waits, and tell the session, once per change."""
        previous = self._phase
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
        if previous is phase:
            return
        if previous is not None:
            PHASES.check(previous, phase)
        self._phase = phase
        change = PhaseChange(
            previous=previous,
            phase=phase,
            hello=self._connection.hello if self._connection else None,
            loss=loss,
            error=error,
            attempt=self._restarts.attempts,
            attempts=self._restarts.policy.limit,
            retry_in=retry_in,
            was_connected_before=self._hello_before,
        )
        self._sink.phase_changed(self.name, change)

    # Waiting

    async def _await_connection(self) -> Connection:
        failures = self._failures
        while self._connection is None:
            if self._stopped.is_set():
                raise self._gone()
            if self._failures != failures and self._last_error is not None:
                raise self._unavailable(self._last_error)
            self._wanted.set()
            await self._changed.wait()
        return self._connection

    async def _verdict(self, connection: Connection) -> None:
        """The owner learns of a loss a moment after the callers: wait until it has decided."""
        with anyio.move_on_after(self._verdict_time):
            while self._connection is connection:
                await self._changed.wait()

    def _unavailable(self, error: ProxyError) -> ProxyError:
        """The error of the shared attempt, for each of its callers."""
        if self._phase is Phase.FAILED:
            hint = error.next_step
            if "reconnect_server" not in hint:
                hint = f"{hint} Then call reconnect_server."
            return ServerFailed(error.fact, hint=hint)
        return ServerUnavailable(error.fact, hint=self._prospects())

    def _prospects(self) -> str:
        """What happens next, for whoever just lost a call."""
        tries = f"{self._restarts.attempts} of {self._restarts.policy.limit or 'any number'}"
        if self._phase is Phase.RECONNECTING and self._next_retry_at is not None:
            wait = max(self._next_retry_at - self._clock.now(), 0.0)
            return f"Restart {tries} follows in {wait:.1f} s; calling again tries at once."
        if self._phase is Phase.FAILED:
            return "It was given up. Mend what the error names, then call reconnect_server."
        return f"It is {self._phase_name()}; call list_servers to see its state."

    def _phase_name(self) -> str:
        return self._phase.value if self._phase else "not started"

    def _gone(self) -> ServerUnavailable:
        return ServerUnavailable(
            f"{self.name} was removed.", hint="Call add_server to add it again."
        )


def _told(settled: Settled, method: str, within: float) -> Raw:
    if isinstance(settled.outcome, Raw):
        return settled.outcome
    raise settled.connection.failure(settled.outcome, method, within)
