"""Other people's servers over HTTP: the SDKs of both eras, and server-everything from npm."""

import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import anyio
import pytest

from emceepee_stdio.backends.interface import Era, RemoteError
from emceepee_stdio.errors import ProxyError
from tests import peers
from tests.e2e.harness import WAIT_S, free_port, outgoing
from tests.e2e.http_harness import (
    QUICK,
    HttpRig,
    http_backend,
    nothing_left,
    process,
    until,
)

SERVERS = peers.SERVERS
# The listening stream is not opened again while the server is away: only a call finds out.
PATIENT = replace(QUICK, reopen=WAIT_S, reopen_cap=WAIT_S)
ACCEPT = b'{"action":"accept","content":{"name":"Ada"}}'


def answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(WAIT_S)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@asynccontextmanager
async def listening(
    argv: Sequence[str], port: int, env: Mapping[str, str] | None = None
) -> AsyncIterator[None]:
    async with process(argv, env):
        await until(lambda: answers(port))
        yield


@asynccontextmanager
async def sdk(python: str, script: str, transport: str, era: Era | None) -> AsyncIterator[HttpRig]:
    port = free_port()
    path = "/mcp" if transport == "streamable-http" else "/sse"
    argv = [python, str(SERVERS / script), transport, str(port)]
    options = replace(QUICK, era=era)
    async with (
        nothing_left(),
        listening(argv, port),
        http_backend(f"http://127.0.0.1:{port}{path}", options=options) as rig,
    ):
        yield rig


@asynccontextmanager
async def everything(mode: str) -> AsyncIterator[tuple[HttpRig, int]]:
    port = free_port()
    path = "/mcp" if mode == "streamableHttp" else "/sse"
    argv = [*peers.everything()[:-1], mode]
    async with (
        nothing_left(),
        listening(argv, port, {**os.environ, "PORT": str(port)}),
        http_backend(f"http://127.0.0.1:{port}{path}") as rig,
    ):
        yield rig, port


async def answer_elicitations(rig: HttpRig, answer: bytes) -> None:
    """Answer the first question of each kind that is not about roots."""
    await rig.sink.until(lambda: any(q.method == "elicitation/create" for q in rig.sink.questions))
    for question in rig.sink.questions:
        if question.method == "elicitation/create":
            question.respond(answer)


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
@pytest.mark.parametrize(
    ("script", "era"),
    [("http_sdk1.py", None), ("http_sdk2.py", Era.LEGACY), ("http_sdk2.py", Era.MODERN)],
    ids=["mcp 1.30", "mcp 2.3 legacy", "mcp 2.3 modern"],
)
async def test_a_server_made_with_an_sdk(script: str, era: Era | None, transport: str) -> None:
    if transport == "sse" and era is Era.MODERN:
        era = None
    python = sys.executable if script == "http_sdk2.py" else str(peers.peer_python("py-mcp1"))
    async with sdk(python, script, transport, era) as rig:
        assert "hello" in await rig.text("echo", message="hello")
        assert {"echo", "ask", "progress"} <= {tool["name"] for tool in await rig.tools()}
        assert (await rig.progress("progress", steps=4))[1] == [1, 2, 3, 4]
        legacy = transport == "sse" or era is not Era.MODERN
        assert rig.hello()[0] == ("legacy" if legacy else "modern")
        if not legacy:
            return
        texts: list[str] = []

        async def ask() -> None:
            texts.append(await rig.text("ask"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await answer_elicitations(rig, ACCEPT)
        assert texts == ["hello Ada"]


async def test_an_sdk_server_accepts_what_we_mirror_and_would_refuse_anything_else() -> None:
    async with sdk(sys.executable, "http_sdk2.py", "streamable-http", None) as rig:
        await rig.tools()
        for region in ("west", "Zürich", " padded ", "", "=?base64?eA==?=", "a\nb"):
            assert await rig.text("marked", region=region, count=7) == f"7 in {region}"
        connection = await rig.connection()
        connection._header_maps._maps.clear()
        with pytest.raises(RemoteError, match="header is missing"):
            await rig.call("marked", region="west", count=7)


async def test_a_modern_question_comes_as_the_result_of_its_call() -> None:
    async with sdk(sys.executable, "http_sdk2.py", "streamable-http", Era.MODERN) as rig:
        first = await rig.call("ask")
        assert first["resultType"] == "input_required"


@pytest.mark.parametrize("mode", ["streamableHttp", "sse"])
async def test_server_everything(mode: str) -> None:
    async with everything(mode) as (rig, _):
        assert "hello" in await rig.text("echo", message="hello")
        assert len(await rig.tools()) > 5
        tool = "trigger-long-running-operation"
        _, steps = await rig.progress(tool, duration=0.4, steps=4)
        assert steps == [1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["streamableHttp", "sse"])
async def test_server_everything_asks_and_hears_the_answer(mode: str) -> None:
    async with everything(mode) as (rig, _):
        await rig.text("echo", message="hello")
        await until(lambda: rig.sink.questions)
        for question in rig.sink.questions:
            if question.method == "roots/list":
                question.respond(b'{"roots":[]}')
        names = {tool["name"] for tool in await rig.tools()}
        assert "trigger-elicitation-request" in names
        results: list[object] = []

        async def ask() -> None:
            results.append(await rig.call("trigger-elicitation-request", call="the call"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await answer_elicitations(rig, b'{"action":"accept","content":{"name":"Ada"}}')
        assert "Ada" in str(results)


@pytest.mark.parametrize("mode", ["streamableHttp", "sse"])
async def test_server_everything_tells_of_changed_resources(mode: str) -> None:
    async with everything(mode) as (rig, _):
        uri = "demo://resource/dynamic/text/1"
        await rig.supervisor.request(outgoing("resources/subscribe", {"uri": uri}))
        await rig.call("toggle-subscriber-updates")
        await rig.sink.until(
            lambda: ("notifications/resources/updated", {"uri": uri}) in rig.sink.notifications
        )


async def test_server_everything_started_anew_gets_a_new_session() -> None:
    """It answers 400, not 404, to a session that it does not know."""
    port = free_port()
    argv = [*peers.everything()[:-1], "streamableHttp"]
    env = {**os.environ, "PORT": str(port)}
    async with nothing_left(), process(argv, env) as first:
        await until(lambda: answers(port))
        async with http_backend(f"http://127.0.0.1:{port}/mcp", options=PATIENT) as rig:
            await rig.text("echo", message="hello")
            before = rig.supervisor.snapshot().session
            first.kill()
            await until(lambda: not answers(port))
            async with listening(argv, port, env):
                with suppress(ProxyError):  # it depends on what is noticed first
                    await rig.text("echo", message="hello")
                assert "hello" in await rig.text("echo", message="hello")
                after = rig.supervisor.snapshot().session
                assert before is not None
                assert after is not None
                assert after.upstream_id not in (None, before.upstream_id)
                assert rig.sink.received[:2] == ["connecting", "connected"]
                assert rig.sink.received.count("connected") == 2
