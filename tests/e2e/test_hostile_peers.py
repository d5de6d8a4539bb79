"""Servers and clients that do to the protocol what nobody would expect: each costs itself alone."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    WAIT_S,
    Client,
    Setting,
    both_backends,
    both_eras,
    command,
    proxy,
    received_by_server,
    until,
)
from tests.peers import SERVERS


def setting(tmp_path: Path, era: str, **more: Any) -> Setting:
    argv = [sys.executable, str(SERVERS / "scripted.py"), era]
    entry = command(argv, era=era, env={"FIXTURE_LOG": str(tmp_path / "log")})
    return Setting(home=tmp_path / "home", servers={"s": entry}, **more)


def line(**message: Any) -> str:
    """A message of the server; `<id>` and `<token>` are those of the call."""
    text = json.dumps({"jsonrpc": "2.0", **message})
    return text.replace('"<id>"', "<id>").replace('"<token>"', "<token>")


def result(**fields: Any) -> str:
    return line(id="<id>", result={"resultType": "complete", **fields})


def says(words: str) -> str:
    return result(content=[{"type": "text", "text": words}])


def progress(**params: Any) -> str:
    return line(method="notifications/progress", params={"progressToken": "<token>", **params})


async def alive(client: Client) -> None:
    assert (await client.execute("echo", args={"message": "alive"})).text == "alive"


@both_eras
@both_backends
async def test_what_is_no_block_reaches_no_client(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    """What the client gets is judged by the official types."""
    bad: list[Any] = [{"type": "text", "text": 5}, {"type": "image"}, {"type": "novel"}, None, 7]
    beside: list[dict[str, Any]] = [
        {"annotations": 5},
        {"annotations": None},
        {"annotations": {"priority": 7}},
        {"_meta": []},
    ]
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        for block in bad:
            answer = await client.execute("say", args={"lines": [result(content=[block])]})
            assert "no content block" in answer.text
            assert json.dumps(block) in answer.text
        for wrong in beside:
            block = {"type": "text", "text": "fine", **wrong}
            answer = await client.execute("say", args={"lines": [result(content=[block])]})
            assert answer.blocks == [{"type": "text", "text": "fine"}]
        await alive(client)


STRAY = {
    "an id that was never given": line(id=987_654, result={}),
    "a negative id": line(id=-1, result={}),
    "an id of 400 digits": line(id=10**399, result={}),
    "a fraction": line(id=1.5, result={}),
    "no id": line(id=None, error={"code": -32700, "message": "x"}),
    "true": line(id=True, result={}),
    "an object": line(id={"a": 1}, result={}),
    "an empty batch": "[]",
    "a batch in a batch": f"[[{line(id=987_654, result={})}]]",
    "neither": line(),
    "a method that is none": line(method=7),
    "an empty method": line(method=""),
    "params that are none": line(method="notifications/x", params=7),
    "a notification with an id": line(id=77, method="notifications/message", params={"data": 1}),
    "a cancel of our own request": line(
        method="notifications/cancelled", params={"requestId": "<id>"}
    ),
    "a cancel of nothing": line(method="notifications/cancelled", params={"requestId": [1]}),
    "a log message of another shape": line(method="notifications/message", params="words"),
}


@both_eras
@both_backends
async def test_messages_that_fit_nothing_end_no_call_and_no_connection(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        for what, stray in STRAY.items():
            answer = await client.execute("say", args={"lines": [stray, says(what)]})
            assert answer.text == what
        [shown] = (await client.call("list_servers", name="s")).json["servers"]
        assert shown["restarts"] == 0
        await alive(client)


@both_backends
async def test_the_first_answer_counts_and_the_second_reaches_nobody(
    tmp_path: Path, era: str
) -> None:
    error = line(id="<id>", error={"code": 1, "message": "x"})
    async with proxy(setting(tmp_path, era)) as client:
        await client.connected()
        for second in (says("second"), error):
            lines = [says("first"), second]
            assert (await client.execute("say", args={"lines": lines})).text == "first"
            await alive(client)


ODD_PROGRESS: list[dict[str, Any]] = [
    {"progress": "x"},
    {"progress": None},
    {"progress": float("nan")},
    {"progress": 1, "total": "x"},
    {"progress": 1, "message": 5},
    {"progress": True},
    {"progress": 10**400},
    {"progress": 1.7e308},
    {"progress": 1, "total": -(10**400)},
    {},
]


@both_eras
@both_backends
async def test_progress_that_is_none_is_not_passed_on(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    """What is passed on is judged by the official types; nothing comes after the answer."""
    odd = [progress(**params) for params in ODD_PROGRESS]
    infinite = progress(progress=0).replace('"progress": 0', '"progress": 1e999')
    nulls = progress(progress=1, total=None, message=None)
    lines = [progress(progress=-1), *odd, infinite, nulls, progress(progress=2), says("done")]
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        late = [*lines, progress(progress=3)]
        pending = await client.begin_execute("say", args={"lines": late}, token="t")
        assert (await pending.answer()).text == "done"
        await alive(client)
        assert [told["progress"] for told in pending.progress] == [-1, 1, 2]
        assert "total" not in pending.progress[1]


@both_eras
async def test_a_server_that_asks_for_input_and_asks_nothing_is_called_once(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, "modern"), modern=modern) as client:
        await client.connected()
        for requests in ({}, {"inputRequests": {}}, {"inputRequests": {}, "requestState": None}):
            asks = line(id="<id>", result={"resultType": "input_required", **requests})
            answer = await client.execute("say", args={"lines": [asks]})
            assert "not for what" in answer.text
    received = [entry["message"] for entry in received_by_server(tmp_path / "log")]
    assert len([m for m in received if m.get("method") == "tools/call"]) == 3


async def test_an_id_of_a_question_that_was_taken_back_may_be_used_again(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {}}

    def asks(words: str) -> str:
        question = {"message": words, "requestedSchema": schema}
        return line(id=7, method="elicitation/create", params=question)

    cancels = line(method="notifications/cancelled", params={"requestId": 7})
    async with proxy(setting(tmp_path, "legacy")) as client:
        await client.connected()
        lines = [asks("first"), asks("in between"), cancels, asks("second")]
        task = (await client.execute("say", args={"lines": lines}, timeout_ms=0)).task
        await client.until_event("elicitation_expired", reason="withdrawn")
        with anyio.fail_after(WAIT_S):  # its server says one thing after the other
            while not (asked := (await client.call("get_elicitations")).json["elicitations"]):
                await client.call("await_activity", timeout_ms=200)
        [shown] = asked
        assert shown["message"] == "second"
        answer = {"request_id": shown["request_id"], "action": "decline"}
        await client.call("respond_to_elicitation", **answer)
        await client.call("cancel_task", task_id=task)
        await until(lambda: len(_answers(tmp_path)) == 2)
    refused, declined = _answers(tmp_path)
    assert "already in use" in refused["error"]["message"]
    assert declined["result"] == {"action": "decline"}


def _answers(tmp_path: Path) -> list[dict[str, Any]]:
    """What the server was answered to its questions."""
    received = [entry["message"] for entry in received_by_server(tmp_path / "log")]
    return [message for message in received if message.get("id") == 7 and "method" not in message]


META = [5, [], "x", {"progressToken": 1.5}, {"progressToken": True}, {"progressToken": {}}]


@both_eras
async def test_what_is_no_meta_is_refused_and_costs_only_its_call(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, "legacy"), modern=modern) as client:
        await client.connected()
        for meta in META:
            params = {"name": "list_servers", "arguments": {}, "_meta": meta}
            pending, message = client.prepare("tools/call", modern=False)
            await client.send({**message, "params": params})
            assert (await pending.error())["code"] == -32602
        await alive(client)


@both_eras
async def test_an_id_may_be_used_again_after_its_call_was_cancelled(
    tmp_path: Path, *, modern: bool
) -> None:
    """Its first server answers late; that answer reaches nobody."""
    async with proxy(setting(tmp_path, "legacy"), modern=modern) as client:
        await client.connected()
        params = {"server": "s", "tool": "say", "args": {"lines": []}}
        first = await client.begin(
            "tools/call", {"name": "execute_tool", "arguments": params}, id="again"
        )
        await until(lambda: _called(tmp_path))
        await client.cancel(first)
        first.message = {}  # it is over, and nobody waits for it
        second = await client.begin(
            "tools/call", {"name": "list_servers", "arguments": {}}, id="again"
        )
        assert "servers" in (await second.answer()).json
        late = line(id=_called(tmp_path)[0]["id"], result={"content": []})
        assert (await client.execute("say", args={"lines": [late, says("ok")]})).text == "ok"
        await alive(client)


def _called(tmp_path: Path) -> list[dict[str, Any]]:
    received = [entry["message"] for entry in received_by_server(tmp_path / "log")]
    return [message for message in received if message.get("method") == "tools/call"]


@pytest.mark.parametrize("number", ["1e999", "-1", "0.5", "9" * 400, "true", "null", '"5"'])
async def test_a_number_that_no_timer_can_have_is_refused_by_name(
    tmp_path: Path, number: str
) -> None:
    async with proxy(setting(tmp_path, "legacy")) as client:
        pending, message = client.prepare(
            "tools/call",
            {"name": "set_timer", "arguments": {"duration_ms": "<n>", "message": "x"}},
        )
        await client.send(json.dumps(message).replace('"<n>"', number).encode() + b"\n")
        answer = await pending.answer()
        assert answer.is_error
        assert "duration_ms" in answer.text
