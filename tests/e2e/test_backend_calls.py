"""Calls and everything else that is asked, the same in both eras and over both transports."""

import json
from pathlib import Path

import anyio
import msgspec
import pytest

from emceepee_stdio.backends.interface import RemoteError
from emceepee_stdio.errors import (
    CallFailed,
    CallTimeout,
    NotSupported,
    ResourceNotFound,
)
from tests.e2e.backend_harness import COMBINATIONS, Reply, running
from tests.e2e.harness import WAIT_S, outgoing

pytestmark = pytest.mark.parametrize("combination", COMBINATIONS)


async def test_results_of_every_kind_arrive_as_they_were(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        assert await rig.text("echo", message="grüße, 世界 \u2028") == "grüße, 世界 \u2028"
        image = await rig.call("image")
        assert image["content"][1]["annotations"] == {"audience": ["user"], "priority": 0.5}
        assert image["_meta"]["fixture/key"] == 1
        assert (await rig.call("structured", say=False))["structuredContent"] == {"n": 1}
        failed = await rig.call("fail")
        assert (failed["isError"], failed["content"][0]["text"]) == (True, "it failed")


async def test_five_megabytes_arrive_whole(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        assert await rig.text("big", bytes=5_000_000) == "x" * 5_000_000


async def test_what_the_server_wrote_is_what_the_session_gets(
    combination: str, tmp_path: Path
) -> None:
    said = (
        '{ "content":[ {"type":"text","text":"\\u00e9 é"} ],"x-odd":{"n":1.50, "big":'
        '12345678901234567890123},"_meta":{"a/b":null},"resultType":"complete" }'
    )
    async with running(combination, tmp_path) as rig:
        result = await rig.backend.call_tool("verbatim", {"result": said}, within=WAIT_S)
        if rig.is_http:
            assert json.loads(bytes(result)) == json.loads(said)
        else:
            assert bytes(result) == said.encode()


# Read and written anew, each of these would come out otherwise from one JSON library or another.
ODD_ARGUMENTS = {
    "spaces": b'{ "message" :\t"x" }',
    "order": b'{"z":1,"message":"x","a":2}',
    "numbers": b'{"message":"x","n":[1.0,1e2,1E+2,0.10,-0,-0.0]}',
    "big": b'{"message":"x","n":123456789012345678901234567890}',
    "escapes": b'{"message":"\\u00e9 \\/ \\u0041 \\ud83d\\ude00"}',
    "unicode": '{"message":"é 😀 \u2028"}'.encode(),
    "twice": b'{"message":"x","message":"y"}',
}


@pytest.mark.parametrize("kind", ODD_ARGUMENTS)
async def test_arguments_go_out_as_the_bytes_that_they_were(
    combination: str, tmp_path: Path, kind: str
) -> None:
    given = ODD_ARGUMENTS[kind]
    async with running(combination, tmp_path) as rig:
        await rig.backend.call_tool("echo", msgspec.Raw(given), within=WAIT_S)
        (line,) = rig.lines("tools/call")
        assert f'"arguments":{given.decode()}' in line


async def test_arguments_are_the_same_bytes_when_a_call_goes_on_after_a_question(
    combination: str, tmp_path: Path
) -> None:
    given = b'{ "mode" : "f\\u006frm" }'
    async with running(combination, tmp_path) as rig:

        async def ask() -> None:
            await rig.backend.call_tool("ask", msgspec.Raw(given), within=WAIT_S, call="ask")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(Reply(rig, {"action": "decline"}))
        lines = rig.lines("tools/call")
        assert len(lines) == (2 if rig.is_modern else 1)
        assert all(f'"arguments":{given.decode()}' in line for line in lines)


@pytest.mark.parametrize("odd", ["[1,2]", '"text"', "null", "7"])
async def test_a_result_that_is_no_object_is_an_error_that_shows_it(
    combination: str, tmp_path: Path, odd: str
) -> None:
    async with running(combination, tmp_path) as rig:
        with pytest.raises(CallFailed, match="no object"):
            await rig.call("verbatim", result=odd)
        assert await rig.text("echo", message="still there") == "still there"


async def test_an_error_of_the_server_keeps_its_code_and_data(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        with pytest.raises(RemoteError, match="error -32050 as asked") as caught:
            await rig.call("rpc_error", code=-32050)
        assert caught.value.error.code == -32050
        assert json.loads(bytes(caught.value.error.data or b"")) == {"asked": -32050}
        with pytest.raises(RemoteError, match="Unknown tool"):
            await rig.call("no_such_tool")


async def test_progress_arrives_in_order_and_only_while_it_is_wanted(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        received: list[msgspec.Raw] = []
        params = {"name": "progress", "arguments": {"steps": 50, "interval": 0.0}}
        await rig.backend.request(outgoing("tools/call", params, on_progress=received.append))
        steps = [msgspec.json.decode(raw)["progress"] for raw in received]
        assert steps == list(range(1, 51))
        await rig.call("progress", steps=3, interval=0.0)
        assert rig.sink.notifications == []


async def test_a_caller_who_gives_up_stops_the_server(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: rig.call("slow", seconds=300))
            await rig.until_server(lambda: rig.messages("tools/call"))
            tasks.cancel_scope.cancel()
        await rig.until_server(lambda: rig.received_by_server("cancelled"))
        assert await rig.text("echo", message="still there") == "still there"


async def test_a_call_that_takes_too_long_stops_the_server(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        await rig.call("echo", message="warm")
        with pytest.raises(CallTimeout, match=r"did not answer tools/call within 0.3 s"):
            await rig.call("slow", 0.3, seconds=300)
        await rig.until_server(lambda: rig.received_by_server("cancelled"))


async def test_resources_are_read_and_the_unknown_is_told_apart(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        assert await rig.names("resources") == ["one", "two"]
        assert await rig.names("resource_templates") == ["item"]
        text = await rig.backend.read_resource("fixture://item/7", within=WAIT_S)
        assert b"text of fixture://item/7" in bytes(text)
        blob = await rig.backend.read_resource("fixture://two", within=WAIT_S)
        assert json.loads(bytes(blob))["contents"][0]["mimeType"] == "image/png"
        with pytest.raises(ResourceNotFound, match="nowhere://else"):
            await rig.backend.read_resource("nowhere://else", within=WAIT_S)


async def test_prompts_are_filled_in_and_a_refusal_is_passed_on(
    combination: str, tmp_path: Path
) -> None:
    async with running(combination, tmp_path) as rig:
        assert await rig.names("prompts") == ["greet", "plain"]
        prompt = await rig.backend.get_prompt("greet", {"name": "Ada"}, within=WAIT_S)
        assert b"Say hello to Ada." in bytes(prompt)
        for refused in ("nobody", "greet"):
            with pytest.raises(RemoteError, match=f"No prompt {refused}"):
                await rig.backend.get_prompt(refused, {}, within=WAIT_S)


async def test_arguments_are_completed(combination: str, tmp_path: Path) -> None:
    async with running(combination, tmp_path) as rig:
        found = await rig.backend.complete(
            {"type": "ref/prompt", "name": "greet"},
            {"name": "name", "value": "al"},
            {"other": "x"},
            within=WAIT_S,
        )
        assert json.loads(bytes(found))["completion"]["values"] == ["alice", "albert"]


async def test_what_the_server_does_not_know_is_not_supported(
    combination: str, tmp_path: Path
) -> None:
    methods = ("resources/read", "prompts/get", "completion/complete")
    options = [word for method in methods for word in ("--refuse", method)]
    async with running(combination, tmp_path, *options) as rig:
        with pytest.raises(NotSupported, match="resources"):
            await rig.backend.read_resource("fixture://one", within=WAIT_S)
        with pytest.raises(NotSupported, match="prompts"):
            await rig.backend.get_prompt("greet", {}, within=WAIT_S)
        with pytest.raises(NotSupported, match="completion"):
            await rig.backend.complete({}, {"name": "n", "value": ""}, None, within=WAIT_S)
        rig.log.unlink()  # an empty reference is valid nowhere
