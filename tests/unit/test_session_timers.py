"""Timers that fire while nobody is told, on a clock of our own."""

from pathlib import Path

from emceepee_stdio.json_values import mapping
from tests.unit.test_session_client_calls import World


def test_timers_that_fire_again_and_again_push_out_no_event_of_another(tmp_path: Path) -> None:
    world = World(tmp_path, fixed={"events": 10})
    timers = world.session.state.timers
    timers.set(duration=0.001, message="tea", now=world.now)
    for n in range(5):
        timers.set(duration=0.2, message=f"tick {n}", repeats=True, now=world.now)
    world.after(20.1)
    told = {mapping(e.data)["message"]: e.count for e in world.session.state.events.take().events}
    assert told == {"tea": 1, **{f"tick {n}": 100 for n in range(5)}}
