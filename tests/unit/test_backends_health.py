from collections.abc import Callable

import anyio
import pytest
import trio
import trio.testing

from emceepee_stdio.backends.backend import Health, HealthPolicy
from emceepee_stdio.backends.interface import BackendEvent, HealthChange, RemoteError
from emceepee_stdio.errors import CallTimeout
from emceepee_stdio.wire.codec import RpcError


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Patient:
    """A server that is looked at: when, for how long, and how it then is."""

    def __init__(self, *script: str, uniform: Callable[[float, float], float] | None = None):
        self.script = list(script)
        self.looks: list[float] = []
        self.turns: list[tuple[str, int]] = []
        self.health = Health(
            HealthPolicy(),
            uniform=uniform or (lambda _low, _high: 1.0),
            emit=self.take,
        )

    def take(self, event: BackendEvent) -> None:
        assert isinstance(event, HealthChange)
        self.turns.append(("degraded" if event.degraded else "restored", event.misses))

    async def look(self, within: float) -> None:
        assert within == 60.0
        self.looks.append(trio.current_time())
        how = self.script.pop(0) if self.script else "well"
        if how == "silent":
            await anyio.sleep(within)
            raise CallTimeout("no answer")
        if how == "refuses":
            raise RemoteError("server", RpcError(-32601, "no ping here"))

    async def watch(self, seconds: float) -> None:
        with anyio.move_on_after(seconds):
            await self.health.watch(self.look)


async def test_a_look_every_two_minutes_more_or_less() -> None:
    spans: list[tuple[float, float]] = []
    draws = iter([1.1, 0.9, 1.0])

    def uniform(low: float, high: float) -> float:
        spans.append((low, high))
        return next(draws)

    began = trio.current_time()
    patient = Patient(uniform=uniform)
    await patient.watch(120 * 3 - 1)
    assert [at - began for at in patient.looks] == pytest.approx([132.0, 240.0])
    assert set(spans) == {(0.9, 1.1)}
    assert patient.turns == []


async def test_three_misses_in_a_row_are_told_once_and_so_is_the_way_back() -> None:
    patient = Patient(*["silent"] * 5, "well", "well")
    await patient.watch(120 * 7 + 60 * 5 + 1)
    assert patient.turns == [("degraded", 3), ("restored", 5)]
    assert not patient.health.degraded


async def test_misses_that_are_not_in_a_row_are_none() -> None:
    patient = Patient("silent", "silent", "well", "silent", "silent", "well")
    await patient.watch(2000)
    assert patient.turns == []


async def test_a_server_that_refuses_is_alive() -> None:
    patient = Patient(*["refuses"] * 5)
    await patient.watch(700)
    assert len(patient.looks) == 5
    assert patient.turns == []


async def test_a_new_connection_is_well() -> None:
    patient = Patient(*["silent"] * 3)
    await patient.watch(600)
    assert repr(patient.health) == "<Health degraded misses=3>"
    patient.health.well()
    patient.health.well()
    assert patient.turns == [("degraded", 3), ("restored", 3)]
    assert repr(patient.health) == "<Health well misses=0>"


async def test_it_ends_with_the_connection() -> None:
    patient = Patient("silent")
    await patient.watch(150)
    await anyio.sleep(10_000)
    assert len(patient.looks) == 1
    assert patient.turns == []
