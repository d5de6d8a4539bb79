"""The phases of a backend, and the budget and delays of its restarts."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from emceepee_stdio.state.machine import Machine, Move


class Phase(StrEnum):
    """Where a backend stands."""

    IDLE = "idle"
    DISABLED = "disabled"
    NEEDS_SIGN_IN = "needs_sign_in"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    RECONNECTING = "reconnecting"
    FAILED = "failed"
    DISCONNECTED = "disconnected"


PHASES = Machine(
    "backend_phases",
    Phase,
    [
        Move(source=None, target=Phase.IDLE, cause="it waits for its first use"),
        Move(source=None, target=Phase.DISABLED, cause="its entry is broken or disabled"),
        Move(source=None, target=Phase.CONNECTING, cause="added"),
        Move(source=Phase.IDLE, target=Phase.CONNECTING, cause="it is used"),
        Move(source=Phase.CONNECTING, target=Phase.CONNECTED, cause="the opening succeeded"),
        Move(source=Phase.CONNECTING, target=Phase.RECONNECTING, cause="it failed, a retry is set"),
        Move(source=Phase.CONNECTING, target=Phase.FAILED, cause="it failed for good"),
        Move(source=Phase.CONNECTED, target=Phase.RECONNECTING, cause="lost, a retry is set"),
        Move(
            source=Phase.CONNECTED, target=Phase.FAILED, cause="lost, the restart budget is spent"
        ),
        Move(source=Phase.CONNECTED, target=Phase.IDLE, cause="not used for idle_stop_ms"),
        Move(source=Phase.CONNECTED, target=Phase.CONNECTING, cause="reconnect_server"),
        Move(source=Phase.RECONNECTING, target=Phase.CONNECTED, cause="a retry succeeded"),
        Move(source=Phase.RECONNECTING, target=Phase.FAILED, cause="the restart budget is spent"),
        Move(source=Phase.RECONNECTING, target=Phase.CONNECTING, cause="reconnect_server"),
        Move(
            source=Phase.FAILED, target=Phase.CONNECTING, cause="reconnect_server or the next call"
        ),
        *(
            Move(source=phase, target=Phase.NEEDS_SIGN_IN, cause="a person has to sign in")
            for phase in (Phase.CONNECTING, Phase.CONNECTED, Phase.RECONNECTING)
        ),
        Move(
            source=Phase.NEEDS_SIGN_IN,
            target=Phase.CONNECTING,
            cause="signed in, or reconnect_server",
        ),
        *(
            Move(source=phase, target=Phase.DISCONNECTED, cause="removed")
            for phase in Phase
            if phase is not Phase.DISCONNECTED
        ),
    ],
)


# When to try again, and when to give up.
#
# A start that succeeds proves nothing: the budget is refilled only by staying up, so a server that
# starts well and crashes at once is given up like one that never starts.


_MAX_DOUBLINGS = 60  # the cap is reached long before; it keeps the power small


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How fast and how often. Without a limit there is no giving up."""

    base: float = 1.0
    factor: float = 2.0
    cap: float = 60.0
    jitter: float = 0.1
    limit: int | None = 5
    stable_after: float = 60.0


class Restarts:
    """The attempts of one backend. `uniform(a, b)` is the source of jitter."""

    def __init__(self, policy: RestartPolicy, *, uniform: Callable[[float, float], float]) -> None:
        self.policy = policy
        self._uniform = uniform
        self.attempts = 0  # granted since the budget was last full
        self._up_since: float | None = None

    def __repr__(self) -> str:
        limit = "∞" if self.policy.limit is None else self.policy.limit
        return f"<Restarts {self.attempts}/{limit}>"

    def connected(self, *, now: float) -> None:
        self._up_since = now

    def after_loss(self, *, now: float) -> float | None:
        """The connection or the attempt ended: seconds until the next one, or None to give up."""
        if self._up_since is not None and now - self._up_since >= self.policy.stable_after:
            self.attempts = 0
        self._up_since = None
        if self.policy.limit is not None and self.attempts >= self.policy.limit:
            return None
        self.attempts += 1
        return self._delay(self.attempts)

    def refill(self) -> None:
        """Somebody asked for a new attempt: the budget is full again."""
        self.attempts = 0
        self._up_since = None

    def _delay(self, attempt: int) -> float:
        p = self.policy
        delay = min(p.base * p.factor ** min(attempt - 1, _MAX_DOUBLINGS), p.cap)
        return delay * self._uniform(1 - p.jitter, 1 + p.jitter)
