from enum import StrEnum

import pytest

from emceepee_stdio.state.machine import IllegalMove, Machine, Move
from emceepee_stdio.state.phases import PHASES, Phase


class Light(StrEnum):
    RED = "red"
    GREEN = "green"
    DARK = "dark"


LIGHTS = Machine(
    "lights",
    Light,
    [
        Move(source=None, target=Light.RED, cause="power"),
        Move(source=Light.RED, target=Light.GREEN, cause="time"),
        Move(source=Light.GREEN, target=Light.RED, cause="time"),
        Move(source=Light.GREEN, target=Light.DARK, cause="a stone"),
    ],
)


def test_a_move_of_the_table_is_allowed():
    LIGHTS.check(Light.RED, Light.GREEN)
    assert LIGHTS.allows(Light.RED, Light.GREEN)
    assert LIGHTS.allows(None, Light.RED)
    assert not LIGHTS.allows(None, Light.GREEN)


def test_a_move_that_the_table_has_not_raises_and_says_which():
    with pytest.raises(IllegalMove, match="lights: no move from dark to red") as caught:
        LIGHTS.check(Light.DARK, Light.RED)
    assert caught.value.machine == "lights"
    assert (caught.value.source, caught.value.target) == (Light.DARK, Light.RED)


def test_a_state_is_not_followed_by_itself_unless_the_table_says_so():
    assert not LIGHTS.allows(Light.RED, Light.RED)


def test_a_state_without_a_way_out_is_final():
    assert [state for state in Light if LIGHTS.is_final(state)] == [Light.DARK]


def test_the_repr_shows_the_size_of_the_table():
    assert repr(LIGHTS) == "<Machine lights 3 states 4 moves>"


# The phases of a backend, written out once more

STARTS = {Phase.IDLE, Phase.DISABLED, Phase.CONNECTING}
FOLLOWING: dict[Phase, set[Phase]] = {
    Phase.IDLE: {Phase.CONNECTING},
    Phase.DISABLED: set(),
    Phase.NEEDS_SIGN_IN: {Phase.CONNECTING},
    Phase.CONNECTING: {
        Phase.CONNECTED,
        Phase.RECONNECTING,
        Phase.FAILED,
        Phase.NEEDS_SIGN_IN,
    },
    Phase.CONNECTED: {
        Phase.IDLE,
        Phase.RECONNECTING,
        Phase.FAILED,
        Phase.CONNECTING,
        Phase.NEEDS_SIGN_IN,
    },
    Phase.RECONNECTING: {
        Phase.CONNECTED,
        Phase.FAILED,
        Phase.CONNECTING,
        Phase.NEEDS_SIGN_IN,
    },
    Phase.FAILED: {Phase.CONNECTING},
}


@pytest.mark.parametrize("source", Phase)
@pytest.mark.parametrize("target", Phase)
def test_a_backend_moves_between_phases_as_the_design_says(source: Phase, target: Phase):
    removed = source is not Phase.DISCONNECTED and target is Phase.DISCONNECTED
    allowed = removed or target in FOLLOWING.get(source, set())
    assert PHASES.allows(source, target) == allowed


@pytest.mark.parametrize("phase", Phase)
def test_a_backend_starts_idle_disabled_or_connecting(phase: Phase):
    assert PHASES.allows(None, phase) == (phase in STARTS)


def test_only_a_removed_backend_is_at_its_end():
    assert [phase for phase in Phase if PHASES.is_final(phase)] == [Phase.DISCONNECTED]
