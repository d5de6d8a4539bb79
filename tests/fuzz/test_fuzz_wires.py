"""The short run over both wires; `python -m tests.fuzz` is the long one.

The seeds are fixed, so that a run that fails fails again.
"""

from pathlib import Path

import pytest

from tests.fuzz.episodes import (
    FLOODS,
    endless_line,
    misreport_episode,
    replay_child,
    replay_front,
    run_episode,
)
from tests.fuzz.mutate import CORPUS

# Their memory is judged, and a fork shares some.
pytestmark = pytest.mark.fresh

REGRESSIONS = sorted((CORPUS / "regressions").glob("*.lines"))
FLOOD = 20_000


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ["front", "child", "http"])
async def test_amid_garbage_every_call_is_answered_once_and_rightly(
    tmp_path: Path, kind: str, seed: int
) -> None:
    await run_episode(kind, seed, steps=60, keep=tmp_path)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kind", ["hostile-server", "hostile-url", "hostile-client", "hostile-http"]
)
async def test_whatever_member_of_a_message_is_costly_to_read_every_call_is_answered(
    tmp_path: Path, kind: str, seed: int
) -> None:
    await run_episode(kind, seed, steps=25, keep=tmp_path)


async def test_progress_that_is_none_is_not_passed_on(tmp_path: Path) -> None:
    await misreport_episode(0, tmp_path / "home", steps=40)


@pytest.mark.parametrize("said", REGRESSIONS, ids=lambda path: path.stem)
async def test_what_once_did_harm_does_none(tmp_path: Path, said: Path) -> None:
    replay = replay_front if said.name.startswith("front-") else replay_child
    await replay(said, tmp_path / "home")


@pytest.mark.parametrize("side", FLOODS)
async def test_a_flood_drowns_nobody_and_fills_no_memory(tmp_path: Path, side: str) -> None:
    seen = await FLOODS[side](FLOOD, tmp_path / "home")
    assert seen.calls > 0


@pytest.mark.parametrize("greet", [False, True], ids=["first", "later"])
async def test_a_line_without_an_end_is_not_kept(tmp_path: Path, *, greet: bool) -> None:
    await endless_line(160, tmp_path / "home", greet=greet)
