"""The lists of a server, the same in both eras and over both transports."""

from pathlib import Path

import anyio
import pytest

from emceepee_stdio.backends.interface import Kind
from emceepee_stdio.errors import CallFailed, CallTimeout
from tests.e2e.backend_harness import COMBINATIONS, running
from tests.e2e.harness import WAIT_S

pytestmark = pytest.mark.parametrize("combination", COMBINATIONS)


async def test_every_page_is_fetched_also_behind_an_empty_one(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--pages", "three") as rig:
        names = await rig.names("tools")
        cursors = [m.get("params", {}).get("cursor") for m in rig.messages("tools/list")]
    async with running(combination, tmp_path) as rig:
        assert names == await rig.names("tools")
    assert cursors == [None, "2", ""]


async def test_a_list_without_end_is_an_error_that_says_so(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--pages", "loop") as rig:
        with pytest.raises(CallFailed, match="does not come to an end of tools/list"):
            await rig.names("tools")
        assert await rig.text("echo", message="still there") == "still there"


async def test_what_is_no_object_is_no_item(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path, "--pages", "odd") as rig:
        assert "echo" in await rig.names("tools")


async def test_a_list_is_fetched_once_and_again_when_the_server_says_that_it_changed(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        assert rig.backend.lists.known(Kind.TOOLS) is None
        names = await rig.names("tools")
        assert names == await rig.names("tools")
        assert len(rig.messages("tools/list")) == 1
        grown = await rig.text("grow")
        changed = ("notifications/tools/list_changed", None)
        await rig.sink.until(lambda: changed in rig.sink.notifications)
        assert [item["name"] for item in rig.backend.lists.known(Kind.TOOLS) or ()] == names
        assert await rig.names("tools") == [*names, grown]
        assert await rig.names("tools") == [*names, grown]
        assert len(rig.messages("tools/list")) == 2
        assert rig.backend.snapshot().counts == {"tools": len(names) + 1}


async def test_callers_at_the_same_time_share_one_fetch(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path, "--refuse", "subscriptions/listen") as rig:
        await rig.settle()
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(rig.names, "resources")
        assert len(rig.messages("resources/list")) == 1


async def test_a_modern_list_that_nobody_will_say_changed_is_asked_for_each_time(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--refuse", "subscriptions/listen") as rig:
        await rig.settle()
        await rig.names("tools")
        await rig.names("tools")
        assert len(rig.messages("tools/list")) == (2 if rig.is_modern else 1)


async def test_a_modern_list_that_lives_is_not_asked_for_again(
    combination: str, tmp_path: Path
) -> None:
    options = ("--refuse", "subscriptions/listen", "--ttl", "3600000")
    async with running(combination, tmp_path, *options) as rig:
        await rig.settle()
        await rig.names("prompts")
        await rig.names("prompts")
        assert len(rig.messages("prompts/list")) == 1


async def test_what_a_server_does_not_declare_is_not_asked_for(
    combination: str, tmp_path: Path
) -> None:
    options = ("--without", "resources", "--without", "prompts")
    async with running(combination, tmp_path, *options) as rig:
        for kind in ("resources", "resource_templates", "prompts"):
            assert await rig.names(kind) == []
            assert rig.backend.lists.known(Kind(kind)) == ()
        asked = {m["method"] for m in rig.messages()}
        assert not asked & {"resources/list", "resources/templates/list", "prompts/list"}


async def test_a_list_that_the_server_does_not_know_is_empty(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--refuse", "resources/templates/list") as rig:
        assert await rig.names("resource_templates") == []
        assert rig.backend.lists.known(Kind.TEMPLATES) == ()
        assert await rig.names("resources") == ["one", "two"]


async def test_lists_are_fetched_anew_after_a_reconnect(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.settle()
        names = await rig.names("tools")
        await rig.backend.reconnect(within=WAIT_S)
        await rig.until_server(lambda: len(rig.messages("tools/list")) == 2)
        assert await rig.names("tools") == names


async def test_a_list_cannot_be_waited_for_longer_than_it_may_take(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.call("mute", methods=["prompts/list"])

        async def patient() -> None:
            await rig.names("prompts")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(patient)
            await rig.until_server(lambda: rig.messages("prompts/list"))
            with pytest.raises(CallTimeout, match=r"prompts/list within 0\.1 s"):
                await rig.backend.list_all("prompts", within=0.1)
            tasks.cancel_scope.cancel()
