"""What a server tells unasked, or once it was asked to: the same words in both eras."""

from pathlib import Path

import anyio
import pytest

from emceepee_stdio.backends.interface import LogLine, LogSource
from emceepee_stdio.errors import InvalidArguments, NotSupported
from tests.e2e.backend_harness import COMBINATIONS, BackendRig, running
from tests.e2e.harness import WAIT_S

pytestmark = pytest.mark.parametrize("combination", COMBINATIONS)

ONE, TWO = "fixture://one", "fixture://two"


def updated(uri: str) -> tuple[str, object]:
    return "notifications/resources/updated", {"uri": uri}


async def touch(rig: BackendRig, uri: str) -> None:
    """Have the server say that a resource changed, and hear it."""
    received = rig.sink.notifications.count(updated(uri))
    await rig.call("touch", uri=uri)
    await rig.sink.until(lambda: rig.sink.notifications.count(updated(uri)) > received)


async def test_a_subscription_tells_until_it_is_taken_back(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.subscribe(ONE, within=WAIT_S)
        await touch(rig, ONE)
        await rig.backend.subscribe(TWO, within=WAIT_S)
        await touch(rig, ONE)
        await touch(rig, TWO)
        await rig.backend.unsubscribe(ONE, within=WAIT_S)
        await rig.call("touch", uri=ONE)
        await touch(rig, TWO)
        assert rig.sink.notifications == [updated(u) for u in (ONE, ONE, TWO, TWO)]
        assert rig.backend.subscriptions.uris == (TWO,)


async def test_subscriptions_and_the_log_level_outlive_a_crash(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.subscribe(ONE, within=WAIT_S)
        await rig.backend.set_log_level("error", within=WAIT_S)
        await rig.lose()
        await rig.come_back()
        if not rig.is_modern:
            await rig.until_server(lambda: len(rig.messages("logging/setLevel")) == 2)
        await touch(rig, ONE)
        await rig.call("log", level="info")
        await rig.call("log", level="alert")
        await rig.sink.until(lambda: any(line.level == "alert" for line in rig.sink.lines))
        assert not any(line.level == "info" for line in rig.sink.lines)


async def test_what_the_server_does_not_declare_cannot_be_subscribed(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--without", "resources.subscribe") as rig:
        with pytest.raises(NotSupported, match="subscriptions"):
            await rig.backend.subscribe(ONE, within=WAIT_S)


async def test_a_subscription_that_the_server_does_not_grant(
    combination: str, tmp_path: Path
) -> None:
    legacy = ("--refuse", "resources/subscribe")
    options = ("--deaf",) if combination.endswith("modern") else legacy
    async with running(combination, tmp_path, *options) as rig:
        with pytest.raises(NotSupported, match="subscription"):
            await rig.backend.subscribe(ONE, within=WAIT_S)
        assert rig.backend.subscriptions.uris == ()


async def test_a_modern_server_that_knows_no_streams_says_so_at_once(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path, "--refuse", "subscriptions/listen") as rig:
        await rig.settle()
        if rig.is_modern:
            with pytest.raises(NotSupported, match="Method not found"):
                await rig.backend.subscribe(ONE, within=WAIT_S)
            assert len(rig.messages("subscriptions/listen")) == 2
        else:
            await rig.backend.subscribe(ONE, within=WAIT_S)
            await touch(rig, ONE)


async def test_nothing_is_missed_while_subscriptions_come_and_go(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.subscribe(ONE, within=WAIT_S)

        async def come_and_go() -> None:
            for n in range(4):
                await rig.backend.subscribe(f"fixture://item/{n}", within=WAIT_S)
            await rig.backend.unsubscribe("fixture://item/0", within=WAIT_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(come_and_go)
            for n in range(10):
                tasks.start_soon(
                    lambda: rig.call("notify", n=30, method="notifications/resources/updated")
                )
                await anyio.sleep(0.01 * (n % 3))
        await rig.sink.until(lambda: rig.sink.notifications.count(updated(ONE)) >= 300)
        if not rig.is_modern:  # two streams overlap, and may tell the same
            assert len(rig.sink.notifications) == 300
        await touch(rig, "fixture://item/1")


async def test_callers_who_subscribe_at_once_all_get_what_they_want(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        uris = [f"fixture://item/{n}" for n in range(10)]
        async with anyio.create_task_group() as tasks:
            for uri in uris:
                tasks.start_soon(lambda uri=uri: rig.backend.subscribe(uri, within=WAIT_S))
        for uri in uris:
            await touch(rig, uri)


async def test_a_stream_that_the_server_ends_is_opened_again(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.subscribe(ONE, within=WAIT_S)
        await rig.names("tools")
        listened = len(rig.messages("subscriptions/listen"))
        await rig.call("end_streams")
        if rig.is_modern:
            await rig.until_server(lambda: len(rig.messages("subscriptions/listen")) > listened)
        await touch(rig, ONE)
        await rig.names("tools")
        assert len(rig.messages("tools/list")) == (2 if rig.is_modern else 1)


async def test_log_messages_come_from_the_level_that_was_asked_for(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.backend.set_log_level("warning", within=WAIT_S)
        await rig.call("log", level="info")
        await rig.call("log", level="error", n=2)
        await rig.sink.until(lambda: len(rig.sink.lines) >= 2)
        assert rig.sink.lines == [
            LogLine(
                source=LogSource.PROTOCOL,
                level="error",
                logger="plain",
                text=f'{{"line":{n}}}',
            )
            for n in range(2)
        ]
        assert rig.sink.notifications == []


async def test_a_level_that_there_is_not(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path, "--refuse", "logging/setLevel") as rig:
        with pytest.raises(InvalidArguments, match="'loud' is no log level: debug"):
            await rig.backend.set_log_level("loud", within=WAIT_S)
        if not rig.is_modern:
            with pytest.raises(NotSupported, match="log levels"):
                await rig.backend.set_log_level("info", within=WAIT_S)
        assert await rig.text("echo", message="still there") == "still there"


async def test_notifications_of_any_kind_pass_untouched_and_in_order(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.call("notify", n=10_000)
        await rig.sink.until(lambda: len(rig.sink.notifications) == 10_000)
        expected = [("notifications/fixture", {"n": n}) for n in range(10_000)]
        assert rig.sink.notifications == expected
