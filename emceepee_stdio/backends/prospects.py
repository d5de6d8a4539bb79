"""The words of the supervisor: why a backend is not there, and what happens next."""

from typing import cast

from msgspec import Raw

from emceepee_stdio.backends.base import OnResult, Snapshot
from emceepee_stdio.errors import (
    CallTimeout,
    NeedsSignIn,
    ProxyError,
    ServerFailed,
    ServerUnavailable,
)
from emceepee_stdio.state.phases import Phase

__all__ = ["as_our_error", "prospects", "told_late", "unavailable"]


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
        hint = error.next_step
        if "reconnect_server" not in hint:
            hint = f"{hint} Then call reconnect_server."
        return ServerFailed(error.fact, hint=hint)
    return ServerUnavailable(error.fact, hint=prospects(snapshot, now=now))


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
