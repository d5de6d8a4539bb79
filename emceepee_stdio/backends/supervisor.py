"""The owner of one backend: connects, serves, reconnects, and gives up what cannot succeed.

One task, `run`, enters and leaves every connection; nobody else does. Cancelling it is the only way
to stop a backend. Others send requests, wait for a connection, or ask for a new one.

The phase tells all that is going on, and moves by the table in `state/phases`. A loss is decided on
in the moment in which the connection notices it (`_lose`), before anybody else hears of it; the
owner task only finds out afterwards, leaves the connection, and goes on from the phase it finds.
Whatever an attempt to connect raises is a failed attempt, and is tried again like any other.
"""

from collections.abc import Awaitable, Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TypeVar, cast

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint_if_cancelled
from msgspec import Raw

from emceepee_stdio.auth.bearer import SignInNeeded
from emceepee_stdio.backends.connection import Channel, Connection
from emceepee_stdio.backends.interface import (
    AttemptFailed,
    Cancel,
    Emit,
    Loss,
    OnResult,
    PhaseChange,
    Sender,
    SignInWanted,
    Snapshot,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    CannotConnect,
    NeedsSignIn,
    ProxyError,
    ServerDisconnected,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import PHASES, Phase, Restarts
from emceepee_stdio.trace.request import Leg, on_leg
from emceepee_stdio.wire.peer import OutgoingRequest
from emceepee_stdio.wire.timing import Wakeup, first_of

# The words of the supervisor: why a backend is not there, and what happens next.


def as_our_error(server: str, error: BaseException) -> ProxyError:
    """The boundary: whatever was raised on the way to the server, as an error of ours."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, ProxyError):
        return error
    shown = str(error).rstrip(".") or type(error).__name__
    return ServerFailed(f"{server} could not be connected: {shown}.")


def unavailable(error: ProxyError, snapshot: Snapshot, *, now: float) -> ProxyError:
    """The error of the shared attempt, for each of its callers."""
    if isinstance(error, NeedsSignIn):
        return error.masked(str)  # each gets an error of its own
    if snapshot.phase is Phase.FAILED:
        then = "" if error.reconnects else " Then call reconnect_server."
        return error.turned_into(ServerFailed, hint=f"{error.next_step}{then}")
    return error.turned_into(ServerUnavailable, hint=prospects(snapshot, now=now))


def prospects(snapshot: Snapshot, *, now: float) -> str:
    """What happens next, for whoever just lost a call."""
    tries = f"{snapshot.attempt} of {snapshot.attempts or 'any number'}"
    if snapshot.phase is Phase.RECONNECTING and snapshot.next_retry_at is not None:
        wait = max(snapshot.next_retry_at - now, 0.0)
        return f"Restart {tries} follows in {wait:.1f} s; calling again tries at once."
    if snapshot.phase is Phase.FAILED:
        return "It was given up. Fix what the error names, then call reconnect_server."
    if isinstance(snapshot.error, NeedsSignIn):
        return snapshot.error.next_step
    return f"It is {snapshot.phase.value}; call list_servers to see its state."


def told_late(on_done: OnResult, spent: float, outcome: Raw | ProxyError) -> None:
    """A call that ran out of time is told how much of it went into connecting."""
    if isinstance(outcome, CallTimeout):
        fact = f"{outcome.fact.removesuffix('.')}, {spent:.1f} s of them to connect."
        outcome = CallTimeout(fact)
    on_done(outcome)


T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Supervisor(Sender):
    """A backend and its life. Make it, start `run`, and use it from anywhere.

    Requests that have to wait do so in `tasks`.
    """

    name: str
    channel: Channel
    _: KW_ONLY
    emit: Emit
    clock: Clock
    restarts: Restarts
    tasks: TaskGroup
    lazy: bool = False

    def __post_init__(self) -> None:
        self.phase: Phase | None = None
        self.current: Connection | None = None  # the living connection, if there is one now
        self._hello_before = False
        self._up_since: float | None = None
        self._starts = 0
        self._failures = 0
        self._next_retry_at: float | None = None
        self._last_error: ProxyError | None = None
        self._wanted = anyio.Event()
        self._changed = Wakeup()
        self._renew = False
        self._attempt_scope: anyio.CancelScope | None = None
        self._run_scope = anyio.CancelScope()
        self._why_stopped = ""
        self._stopped = anyio.Event()

    def __repr__(self) -> str:
        phase = self.phase.value if self.phase else "new"
        return f"<Supervisor {self.name} {phase} starts={self._starts} {self.restarts!r}>"

    def snapshot(self) -> Snapshot:
        connection = self.current
        return Snapshot(
            name=self.name,
            phase=self.phase or Phase.IDLE,
            transport=self.channel.transport,
            target=self.channel.target,
            pid=connection.pid if connection else None,
            up_since=self._up_since,
            hello=connection.hello if connection else None,
            session=connection.session if connection else None,
            starts=self._starts,
            attempt=self.restarts.attempts,
            attempts=self.restarts.policy.limit,
            next_retry_at=self._next_retry_at,
            last_error=str(self._last_error) if self._last_error else None,
            error=self._last_error,
        )

    # For everybody

    def send(self, request: OutgoingRequest, on_done: OnResult) -> Cancel:
        """On the living connection; where there is none, it is made first, within the time."""
        if self.current is not None:
            return self.current.send(request, on_done)
        began = self.clock.now()
        sent: Cancel | None = None

        def connected(outcome: Connection | ProxyError) -> None:
            nonlocal sent
            if isinstance(outcome, ProxyError):
                on_done(outcome)
            else:
                spent = self.clock.now() - began
                sent = outcome.send(request, partial(told_late, on_done, spent))

        within = max(request.deadline - began, 0.0)
        connect = partial(self.connection, within=within, through_sign_in=True)
        waiting = self.in_task(connect, connected)
        return lambda: waiting() if sent is None else sent()

    def in_task(
        self, work: Callable[[], Awaitable[T]], on_done: Callable[[T | ProxyError], None]
    ) -> Cancel:
        """Do what has to wait; `on_done` is told once, also when the backend ends meanwhile."""
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    outcome = await work()
                except anyio.get_cancelled_exc_class():
                    if not scope.cancel_called:
                        on_done(self._gone())
                    raise
                except Exception as error:  # noqa: BLE001 - it would end the backend for everybody
                    outcome = as_our_error(self.name, error)
                if not scope.cancel_called:
                    on_done(outcome)

        self.tasks.start_soon(run)
        return scope.cancel

    async def connection(self, *, within: float, through_sign_in: bool = False) -> Connection:
        """The living connection. A backend in backoff is tried now; callers share the attempt.

        Where a person has to sign in first, that is waited for only if it is asked for.
        """
        with anyio.move_on_after(within):
            return await self._await_connection(through_sign_in=through_sign_in)
        phase = self.phase.value if self.phase else "not started"
        raise ServerUnavailable(
            f"{self.name} is still {phase} after {round(within, 2):g} s.",
            hint="Call again later, or list_servers to see what it waits for.",
            for_person="",
        )

    async def reconnect(self, *, within: float) -> Connection:
        """Leave the connection or the attempt there is, and make a new one with a full budget."""
        if self._run_scope.cancel_called or self._stopped.is_set():
            raise self._gone()
        self.restarts.refill()
        self._renew = True
        if self.current is not None:
            self._leave(self.current)
        self._wanted.set()
        if self._attempt_scope is not None:
            self._attempt_scope.cancel()
        return await self.connection(within=within)

    def deactivate(self) -> None:
        """Stop the server; whoever needs it, also while it stops, is served by the next one."""
        if (connection := self.current) is None:
            return
        self._wanted = anyio.Event()
        self._drop()
        connection.is_left = True
        self._enter(Phase.IDLE)
        connection.close()

    async def stop(self, why: str = "was removed") -> None:
        """End the owner task; returns when nothing of the backend is left."""
        self._why_stopped = why
        self._run_scope.cancel()
        if self.phase is None:  # `run` has not begun: nobody was told of it, nor need be now
            self.phase = Phase.DISCONNECTED
            self._stopped.set()
            self._changed.wake()
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
                self._enter(Phase.DISCONNECTED)
                self._stopped.set()
                self._changed.wake()

    async def _live(self) -> None:
        self._enter(Phase.IDLE if self.lazy else Phase.CONNECTING)
        while True:
            if self.phase in (Phase.IDLE, Phase.FAILED):
                await self._wanted.wait()
                self._enter(Phase.CONNECTING)
            elif isinstance(self._last_error, SignInNeeded) and self.phase is Phase.NEEDS_SIGN_IN:
                await first_of(self._last_error.signed_in, self._wanted.wait)
                self._enter(Phase.CONNECTING)
            self._renew = False
            with anyio.CancelScope() as self._attempt_scope:
                await self._attempt()
            self._attempt_scope = None
            if self._renew:
                self._enter(Phase.CONNECTING)
            elif self.phase is Phase.RECONNECTING:
                await self._back_off()

    async def _attempt(self) -> None:
        """One connection, from opening to loss; whatever went wrong has become a phase."""
        await checkpoint_if_cancelled()
        self._starts += 1
        self._next_retry_at = None
        gained: Connection | None = None
        try:
            async with self.channel.connect() as connection:
                # It may have opened in the very moment in which it was no longer wanted.
                await checkpoint_if_cancelled()
                gained = connection
                self._gain(connection)
                await self._serve(connection)
        except Exception as error:  # noqa: BLE001 - whatever a start raises is a failed start
            failure = as_our_error(self.name, error)
            if gained is not None:
                gained.lose(Loss(fact=failure.fact, tail=failure.stderr))
            elif not self._renew:
                self._fail(failure)

    async def _serve(self, connection: Connection) -> None:
        try:
            await connection.serve()
        except anyio.get_cancelled_exc_class():
            # Unless it is we who leave, something in the channel has failed, and comes next.
            if self._renew or self._run_scope.cancel_called:
                self._leave(connection)
            raise
        except Exception as error:
            failure = as_our_error(self.name, error)
            connection.lose(Loss(fact=failure.fact, tail=failure.stderr))
            raise

    def _gain(self, connection: Connection) -> None:
        now = self.clock.now()
        self.current = connection
        self._up_since = now
        self._last_error = None
        self.restarts.connected(now=now)
        connection.own(self._lose)
        self._enter(Phase.CONNECTED)
        self._hello_before = True
        if connection.loss is not None:
            self._lose(connection, connection.loss)

    def _lose(self, connection: Connection, loss: Loss) -> str:
        """The connection is lost; what happens next, for whoever lost a call with it."""
        if self.current is connection:
            self._drop()
            if loss.sign_in is not None:
                self._need_sign_in(loss.sign_in, loss=loss)
            else:
                self._last_error = ServerDisconnected(loss.fact, stderr=loss.tail)
                self._retry_or_give_up(self._last_error, loss=loss)
        return prospects(self.snapshot(), now=self.clock.now())

    def _leave(self, connection: Connection) -> None:
        """It is we who leave, which is told at once; stopping the server may take a while."""
        stays = self._renew and not self._run_scope.cancel_called
        why = None if stays else Loss(fact=f"{self.name} {self._why_stopped}.")
        if self.current is connection:
            self._drop()
            connection.is_left = True  # what is answered now still goes out
            self._enter(Phase.CONNECTING if stays else Phase.DISCONNECTED, loss=why)
        connection.close(why)

    def _need_sign_in(self, needed: SignInNeeded, *, loss: Loss | None = None) -> None:
        """No failure: it waits for a person, and whoever waits for it goes on waiting."""
        self._last_error = needed
        self._wanted = anyio.Event()
        self._enter(Phase.NEEDS_SIGN_IN, loss=loss, error=needed)

    def _fail(self, error: ProxyError) -> None:
        if isinstance(error, SignInNeeded):
            self._need_sign_in(error)
            return
        self._last_error = error
        hopeless = isinstance(error, CannotConnect) and not self._hello_before
        self._retry_or_give_up(error, hopeless=hopeless)

    def _retry_or_give_up(
        self, error: ProxyError, *, loss: Loss | None = None, hopeless: bool = False
    ) -> None:
        now, failed = self.clock.now(), self.restarts.attempts
        delay = None if hopeless else self.restarts.after_loss(now=now)
        if not self._renew:  # what somebody has replaced by a new attempt fails for nobody
            self._failures += 1
        self._wanted = anyio.Event()
        if self.phase is Phase.RECONNECTING:
            self.emit(AttemptFailed(error, attempt=failed, retry_in=delay))
        if delay is None:
            self._enter(Phase.FAILED, loss=loss, error=error)
        else:
            self._next_retry_at = now + delay
            self._enter(Phase.RECONNECTING, loss=loss, error=error, retry_in=delay)

    def _drop(self) -> None:
        self.current = None
        self._up_since = None

    async def _back_off(self) -> None:
        """Wait out the pause, or until somebody needs the backend now."""
        if self._next_retry_at is not None:
            with anyio.move_on_after(self._next_retry_at - self.clock.now()):
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
        """Move by the table, tell the session, and wake whoever waits, once per change."""
        previous = self.phase
        if previous is not None and previous is not phase:
            PHASES.check(previous, phase)
        self.phase = phase
        if previous is not phase:
            self.emit(
                PhaseChange(
                    previous=previous,
                    phase=phase,
                    hello=self.current.hello if self.current else None,
                    loss=loss,
                    error=error,
                    attempt=self.restarts.attempts,
                    attempts=self.restarts.policy.limit,
                    retry_in=retry_in,
                    was_connected_before=self._hello_before,
                    url=self.channel.target if self.channel.transport == "http" else None,
                )
            )
        self._changed.wake()

    # Waiting

    async def _await_connection(self, *, through_sign_in: bool) -> Connection:
        failures = self._failures

        def is_decided() -> bool:
            if self.current or self._failures != failures or self._stopped.is_set():
                return True
            if isinstance(self._last_error, SignInNeeded) and self.phase is Phase.NEEDS_SIGN_IN:
                if through_sign_in:
                    self.emit(SignInWanted(self._last_error))
                return not through_sign_in
            self._wanted.set()
            return False

        with on_leg(Leg.CONNECTING, self.name):
            await self._changed.wait_for(is_decided)
        if self.current is not None:
            return self.current
        if self._stopped.is_set() or self._last_error is None:
            raise self._gone()
        raise unavailable(self._last_error, self.snapshot(), now=self.clock.now())

    def _gone(self) -> ServerUnavailable:
        return ServerUnavailable(
            f"{self.name} was removed.", hint="Call add_server to add it again.", for_person=""
        )
