"""The phases of a backend: one table for every kind of server."""

from enum import StrEnum

from emceepee_stdio.state.machine import Machine, Move

__all__ = ["PHASES", "Phase"]


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
