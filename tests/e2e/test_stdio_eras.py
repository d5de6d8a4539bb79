"""Every kind of server over stdio: both eras, every version, other people's programs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import msgspec
import pytest

from emceepee_stdio.backends.interface import Era
from emceepee_stdio.errors import ProxyError
from emceepee_stdio.state.phases import RestartPolicy
from tests import peers
from tests.e2e.harness import FAST, WAIT_S, Rig, backend, outgoing
from tests.e2e.judge import judge_client

LEGACY_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]


def hello_of(rig: Rig) -> tuple[str, str]:
    hello = rig.supervisor.snapshot().hello
    assert hello is not None
    return hello.era.value, hello.protocol_version


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_every_older_version_is_accepted_and_what_we_send_is_valid_in_it(
    tmp_path: Path, version: str
) -> None:
    argv = peers.plain("--era", "legacy", "--version", version)
    async with backend(argv, tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        progress: list[msgspec.Raw] = []
        params = {"name": "progress", "arguments": {"steps": 3}}
        request = outgoing("tools/call", params, on_progress=progress.append)
        await rig.supervisor.request(request)
        assert hello_of(rig) == ("legacy", version)
        assert len(progress) == 3
    seen = judge_client(rig.messages(), version)
    assert seen == ["initialize", "notifications/initialized", "tools/call", "tools/call"]


async def test_a_server_of_both_eras_gets_the_handshake(tmp_path: Path) -> None:
    async with backend(peers.plain(), tmp_path) as rig:
        await rig.call("echo", message="hello")
        assert hello_of(rig) == ("legacy", "2025-11-25")


async def test_a_modern_server_is_found_out_by_its_refusal_without_a_second_process(
    tmp_path: Path,
) -> None:
    async with backend(peers.plain("--era", "modern"), tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig) == ("modern", "2026-07-28")
        assert len(rig.sink.pids) == 1
    (_, *modern) = rig.messages()
    assert judge_client(modern, "2026-07-28") == ["server/discover", "tools/call"]


async def test_the_era_is_remembered_for_the_next_connection(tmp_path: Path) -> None:
    async with backend(peers.plain("--era", "modern"), tmp_path) as rig:
        await rig.call("echo", message="hello")
        await rig.supervisor.reconnect(within=WAIT_S)
        await rig.call("echo", message="hello")
        assert len(rig.messages("initialize")) == 1
        assert len(rig.messages("server/discover")) == 2


async def test_the_era_can_be_chosen(tmp_path: Path) -> None:
    options = replace(FAST, era=Era.MODERN)
    async with backend(peers.plain(), tmp_path, options=options) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig) == ("modern", "2026-07-28")
        assert rig.messages("initialize") == []
    judge_client(rig.messages(), "2026-07-28")


@pytest.mark.parametrize(
    ("era", "argv"),
    [(Era.LEGACY, ("--era", "modern")), (Era.MODERN, ("--era", "legacy"))],
)
async def test_the_wrong_choice_of_an_era_says_which_switch_to_turn(
    tmp_path: Path, era: Era, argv: tuple[str, str]
) -> None:
    options = replace(FAST, era=era)
    once = RestartPolicy(limit=0)
    async with backend(peers.plain(*argv), tmp_path, options=options, restarts=once) as rig:
        with pytest.raises(ProxyError, match="era"):
            await rig.supervisor.connection(within=WAIT_S)


@pytest.mark.parametrize("mode", ["dies-on-discover", "ignores-unknown"])
async def test_a_server_that_cannot_bear_an_unknown_method_connects_at_the_first_try(
    tmp_path: Path, mode: str
) -> None:
    async with backend(peers.rude(mode), tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert rig.sink.received == ["connecting", "process started", "connected"]


async def test_a_modern_only_server_works_from_its_refusal_on(tmp_path: Path) -> None:
    async with backend(peers.rude("modern-only"), tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig)[0] == "modern"


@pytest.mark.parametrize("code", ["-32602", "-32600", "-32603", "-32601", "-32022", "0"])
async def test_a_modern_server_may_refuse_the_handshake_with_any_error(
    tmp_path: Path, code: str
) -> None:
    async with backend(peers.rude("modern-refuses", code), tmp_path) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig)[0] == "modern"
        assert len(rig.sink.pids) == 1


async def test_a_modern_server_may_be_silent_to_the_handshake(tmp_path: Path) -> None:
    options = replace(FAST, probe=0.2)
    async with backend(peers.rude("modern-silent"), tmp_path, options=options) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig)[0] == "modern"
        assert len(rig.sink.pids) == 1


@pytest.mark.parametrize("times", [("4",), ("1.7", "0.6")], ids=["to read", "to read and answer"])
async def test_a_server_that_is_slow_to_start_is_asked_nothing_but_the_handshake(
    tmp_path: Path, times: tuple[str, ...]
) -> None:
    options = replace(FAST, probe=2.0)
    async with backend(peers.rude("slow-start", *times), tmp_path, options=options) as rig:
        assert await rig.text("echo", message="hello") == "hello"
        assert hello_of(rig)[0] == "legacy"
        assert rig.messages("server/discover") == []
        assert rig.sink.received == ["connecting", "process started", "connected"]


async def test_a_question_reaches_the_sink_and_its_answer_the_server(tmp_path: Path) -> None:
    async with backend(peers.plain("--era", "legacy"), tmp_path) as rig:
        results: list[str] = []

        async def call() -> None:
            results.append(await rig.text("ask", mode="form"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await rig.sink.until(lambda: rig.sink.questions)
            (question,) = rig.sink.questions
            assert question.method == "elicitation/create"
            assert question.respond(b'{"action":"accept","content":{"name":"Ada"}}')
            assert not question.respond(b'{"action":"decline"}')
        assert "Ada" in results[0]
    judge_client(rig.messages(), "2025-11-25")


async def test_a_client_that_gives_up_tells_the_server(tmp_path: Path) -> None:
    async with backend(peers.plain(), tmp_path) as rig:
        await rig.call("echo", message="x")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.call("slow", seconds=300))
            with anyio.fail_after(WAIT_S):
                while len(rig.messages("tools/call")) < 2:
                    await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
        await rig.call("echo", message="x")
        with anyio.fail_after(WAIT_S):
            while not rig.received_by_server("cancelled"):
                await anyio.sleep(0.01)


@pytest.mark.parametrize(
    ("argv", "era"),
    [
        (peers.sdk2, "legacy"),
        (peers.sdk1, "legacy"),
        (peers.sdkold, "legacy"),
    ],
    ids=["mcp 2.3", "mcp 1.30", "mcp 1.6"],
)
async def test_servers_made_with_the_sdk_of_every_age(
    tmp_path: Path, argv: Callable[[], list[str]], era: str
) -> None:
    async with backend(argv(), tmp_path) as rig:
        assert "hello" in await rig.text("echo", message="hello")
        assert hello_of(rig)[0] == era


async def test_the_sdk_in_its_modern_era(tmp_path: Path) -> None:
    options = replace(FAST, era=Era.MODERN)
    async with backend(peers.sdk2(), tmp_path, options=options) as rig:
        assert "hello" in await rig.text("echo", message="hello")
        assert hello_of(rig) == ("modern", "2026-07-28")


async def test_server_everything_from_npm(tmp_path: Path) -> None:
    async with backend(peers.everything(), tmp_path) as rig:
        assert "hello" in await rig.text("echo", message="hello")
        tools = msgspec.json.decode(await rig.request("tools/list"))
        assert len(tools["tools"]) > 5
        asked = [question.method for question in rig.sink.questions]
        assert asked in ([], ["roots/list"])


async def test_server_memory_from_npm(tmp_path: Path) -> None:
    env = {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with backend(peers.memory(), tmp_path, env=env) as rig:
        entity = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
        await rig.call("create_entities", entities=[entity])
        assert "wrote programs" in await rig.text("search_nodes", query="Ada")


async def test_a_server_behind_npx_goes_when_npx_goes(tmp_path: Path) -> None:
    modules = peers.node_modules()
    package = ["npx", "--offline", "--no-install", "--prefix", str(modules.parent)]
    env = {"npm_config_update_notifier": "false", "npm_config_cache": str(tmp_path / "npm")}
    async with backend([*package, "mcp-server-everything", "stdio"], tmp_path, env=env) as rig:
        assert "hello" in await rig.text("echo", message="hello")
        assert len(rig.left_over()) >= 2
        await rig.supervisor.reconnect(within=WAIT_S)
        assert "hello" in await rig.text("echo", message="hello")


async def test_mcp_server_time_from_pypi(tmp_path: Path) -> None:
    async with backend(peers.time(), tmp_path) as rig:
        told = json.loads(await rig.text("get_current_time", timezone="UTC"))
        assert told["timezone"] == "UTC"
