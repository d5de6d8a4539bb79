"""A link from its first connection to its end, in both eras and over both transports."""

from pathlib import Path

import anyio
import pytest

from emceepee_stdio.backends.backend import HealthPolicy
from emceepee_stdio.errors import ProxyError, ServerUnavailable
from emceepee_stdio.state.phases import Phase
from tests.e2e.backend_harness import COMBINATIONS, BackendRig, beside, running
from tests.e2e.harness import WAIT_S

pytestmark = pytest.mark.parametrize("combination", COMBINATIONS)

OFTEN = HealthPolicy(interval=0.05, within=0.7, misses=3)


async def refreshed(rig: BackendRig) -> None:
    """Until the lists that were known are fetched anew."""
    known = rig.backend.lists.all_known()
    await rig.until_server(lambda: len(rig.messages("tools/list")) == 2)
    with anyio.fail_after(WAIT_S):
        while set(rig.backend.lists._kept) < set(known):
            await anyio.sleep(0.01)


async def test_a_server_that_comes_back_with_other_tools(combination: str, tmp_path: Path) -> None:
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("hammer")
    async with running(combination, tmp_path, "--toolbox", str(toolbox)) as rig:
        await rig.settle()
        names = await rig.names("tools")
        await rig.names("resources")
        await rig.names("resource_templates")
        toolbox.write_text("hammer saw")
        await rig.lose()
        await rig.come_back()
        await rig.sink.until(lambda: rig.sink.differing)
        await refreshed(rig)
        assert rig.sink.differing == [["tools"]]
        assert await rig.names("tools") == [*names, "saw"]


async def test_a_server_that_comes_back_as_it_was(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        await rig.names("tools")
        await rig.names("resources")
        await rig.lose()
        await rig.come_back()
        await refreshed(rig)
        assert rig.sink.differing == []
        assert [c.phase for c in rig.sink.changes].count(Phase.CONNECTED) == 2


async def test_lists_that_nobody_asked_for_are_not_fetched_by_a_reconnect(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        await rig.backend.reconnect(within=WAIT_S)
        await rig.settle()
        assert await rig.text("echo", message="again") == "again"
        assert rig.messages("tools/list") == []


async def test_a_silent_server_is_degraded_once_and_restored_once_and_never_reconnected(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, health=OFTEN) as rig:
        look = "server/discover" if rig.is_modern else "ping"
        await rig.settle()
        await rig.until_server(lambda: len(rig.messages(look)) >= 3)
        await rig.call("mute", methods=[look])
        await rig.sink.until(lambda: "health degraded" in rig.sink.received)
        assert rig.backend.snapshot().degraded
        missed = len(rig.messages(look))
        await rig.until_server(lambda: len(rig.messages(look)) >= missed + 2)
        await rig.call("mute", methods=[])
        await rig.sink.until(lambda: "health restored" in rig.sink.received)
        assert not rig.backend.snapshot().degraded
        healthy = len(rig.messages(look))
        await rig.until_server(lambda: len(rig.messages(look)) >= healthy + 2)
        turns = [what for what in rig.sink.received if what.startswith("health")]
        assert turns == ["health degraded", "health restored"]
        assert rig.sink.received.count("connected") == 1


async def test_a_server_that_refuses_to_be_looked_at_is_well(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--refuse", "ping", health=OFTEN) as rig:
        look = "server/discover" if rig.is_modern else "ping"
        await rig.settle()
        await rig.until_server(lambda: len(rig.messages(look)) >= 6)
        assert not rig.backend.snapshot().degraded


async def test_a_stop_before_the_first_connection_is_made(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.stop()
        with pytest.raises(ServerUnavailable, match="removed"):
            await rig.call("echo", message="too late")


async def test_a_stop_in_the_moment_of_the_connection(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.connect(within=WAIT_S)
        await rig.backend.stop()


async def test_a_stop_while_a_stream_is_open(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.subscribe("fixture://one", within=WAIT_S)
        await rig.backend.stop()


async def test_a_stop_while_a_question_is_open(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:

        async def stop() -> None:
            await rig.sink.until(lambda: rig.sink.questions)
            await rig.backend.stop()

        outcome = await beside(rig, "ask", stop)
        assert isinstance(outcome.error, ProxyError)
        assert not rig.sink.questions[0].respond(b'{"action":"decline"}')


async def test_a_stop_while_things_are_being_restored(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        for kind in ("tools", "resources", "prompts"):
            await rig.names(kind)
        await rig.backend.subscribe("fixture://one", within=WAIT_S)
        await rig.call("mute", methods=["resources/subscribe", "subscriptions/listen"])
        await rig.backend.reconnect(within=WAIT_S)
        await rig.backend.stop()


async def test_a_server_that_dies_again_and_again_while_things_are_restored(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        await rig.names("tools")
        await rig.backend.subscribe("fixture://one", within=WAIT_S)
        for _ in range(3):
            await rig.lose()
            if rig.server is not None:
                await rig.server.start()
            await rig.backend.connect(within=WAIT_S)
        await rig.settle()
        if not rig.is_modern:
            await rig.until_server(lambda: rig.messages("resources/subscribe"))
        updated = ("notifications/resources/updated", {"uri": "fixture://one"})
        with anyio.fail_after(WAIT_S):
            while updated not in rig.sink.notifications:
                await rig.call("touch", uri="fixture://one")
        assert rig.sink.differing == []


async def test_reconnects_in_a_row_leave_one_connection(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(lambda: rig.backend.reconnect(within=WAIT_S))
        await rig.settle()
        assert await rig.text("echo", message="again") == "again"
        assert rig.sink.received[-1] in {"connected", "process started"}
