import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.client import (
    WAIT_S,
    P,
    Setting,
    both_backends,
    both_eras,
    command,
    http_server,
    proxy,
    server,
    until,
)
from tests.peers import rude

BLOCKS: list[dict[str, Any]] = [
    {"type": "text", "text": 'één\u2028 "quoted"', "annotations": {"audience": ["user"]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"k": [1, 2.50]}},
    {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"},
    {"type": "resource", "resource": {"uri": "x://1", "mimeType": "text/plain", "text": "body"}},
    {"type": "resource", "resource": {"uri": "x://2", "blob": "aGk=", "_meta": {"deep": {}}}},
    {"type": "resource_link", "uri": "x://3", "name": "three", "annotations": {"priority": 0.5}},
    {"type": "text", "text": ""},
]


def setting(tmp_path: Path, era: str = "legacy", **more: Any) -> Setting:
    return Setting(home=tmp_path / "home", servers={"s": server(era=era)}, **more)


@both_eras
@both_backends
async def test_a_result_passes_through_untouched_and_alone(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        await client.drain()

        async def passed(result: dict[str, Any]) -> dict[str, Any]:
            whole = json.dumps({"resultType": "complete", **result} if era == "modern" else result)
            answer = await client.execute("verbatim", args={"result": whole})
            assert not answer.events
            assert not answer.pending
            return answer.result

        meta = {"fixture/key": {"a": [1]}, f"{P}serverInfo": {"name": "plain", "version": "9"}}
        for is_error in (False, True):
            given = {"content": BLOCKS, "isError": is_error, "_meta": meta}
            result = await passed(given)
            assert result["content"] == BLOCKS
            assert result.get("isError", False) is is_error
            assert result["_meta"]["fixture/key"] == {"a": [1]}
            if modern:
                assert result["_meta"][f"{P}serverInfo"]["name"] == "emceepee"
        assert (await passed({"content": []}))["content"] == []
        # Null is not absence: clients refuse a result that says so.
        bare = await passed({"content": BLOCKS[:1], "_meta": None, "isError": None})
        assert "isError" not in bare
        assert bare.get("_meta", {}) is not None


TASK = {"taskId": "k-7", "status": "working"}
UNFINISHED = [
    ("legacy", {"task": TASK}, "not_supported", '"k-7"'),
    ("legacy", {"resultType": "novel", "handle": "h-7"}, "call_failed", '"h-7"'),
    ("modern", {"resultType": "task", **TASK}, "not_supported", '"k-7"'),
    ("modern", {"resultType": "novel", "handle": "h-7"}, "call_failed", '"novel"'),
    ("modern", {"resultType": 7, "content": []}, "call_failed", "result type 7"),
]


@pytest.mark.parametrize("transport", ["stdio", "http"])
@pytest.mark.parametrize(("era", "result", "code", "named"), UNFINISHED)
async def test_what_is_no_result_yet_is_an_error_that_says_what_came(
    tmp_path: Path, transport: str, era: str, result: dict[str, Any], code: str, named: str
) -> None:
    async with AsyncExitStack() as stack:
        entry = server(era=era)
        if transport == "http":
            entry = {"url": await stack.enter_async_context(http_server("--era", era))}
        client = await stack.enter_async_context(
            proxy(Setting(home=tmp_path / "home", servers={"s": entry}))
        )
        await client.connected()
        answer = await client.execute("verbatim", args={"result": json.dumps(result)})
        assert answer.is_error
        assert f"[{code}]" in answer.text
        assert named in answer.text


async def test_blocks_keep_their_very_bytes(tmp_path: Path) -> None:
    async with proxy(setting(tmp_path)) as client:
        await client.connected()
        await client.drain()
        content = '[{"text":"\\u00e9","type" : "text", "annotations":{"priority":0.50}}]'
        pending, message = client.calling(
            "execute_tool",
            server="s",
            tool="verbatim",
            args={"result": f'{{"content":{content}}}'},
        )
        raw: list[bytes] = []
        take = json.loads

        def keep(line: bytes) -> Any:
            raw.append(bytes(line))
            return take(line)

        json.loads = keep  # type: ignore[assignment]
        try:
            await client.send(message)
            await pending.answer()
        finally:
            json.loads = take
        assert any(content[1:-1].encode() in line for line in raw)


@both_eras
@both_backends
async def test_structured_content_becomes_text_unless_a_text_says_the_same(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        await client.drain()
        said = await client.execute("structured", args={"say": True})
        assert [block["text"] for block in said.blocks] == ['{"n": 1}']
        news = await client.execute("structured", args={"say": False})
        assert [json.loads(block["text"]) for block in news.blocks] == [{"n": 1}]
        value = {"n": [1, {"deep": "é"}], "text": "x"}
        result = {
            "content": [{"type": "text", "text": "n is 1"}],
            "structuredContent": value,
            "isError": True,
        }
        if era == "modern":
            result["resultType"] = "complete"
        both = await client.execute("verbatim", args={"result": json.dumps(result)})
        assert both.blocks[0]["text"] == "n is 1"
        assert json.loads(both.blocks[1]["text"]) == value
        assert both.is_error


@pytest.mark.virtual_time
@both_eras
@both_backends
async def test_a_slow_call_becomes_a_task_whose_end_wakes_and_whose_result_is_the_same(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path, era), modern=modern) as client:
        await client.connected()
        await client.drain()
        slow = await client.execute("slow", args={"seconds": 2}, timeout_ms=50)
        assert slow.json["reason"] == "timeout"
        assert slow.json["proxy_task"]["status"] == "working"
        assert slow.json["pending_on_server"]["tasks"] == [], "its own is named above, once"
        assert json.dumps(slow.blocks).count(slow.task) == 1
        assert "last_updated_at" not in slow.json["proxy_task"]
        assert not slow.events, "its own task_created is told by the answer itself"
        working = (await client.call("list_tasks")).json["tasks"]
        assert [(t["task_id"], t["tool"], t["server"]) for t in working] == [
            (slow.task, "slow", "s")
        ]
        waited = await client.call("await_activity")
        assert waited.json["triggers"] == [
            {"type": "event", "server": "s", "event_type": "task_completed"}
        ]
        assert [e["data"]["task_id"] for e in waited.told] == [slow.task]
        assert waited.json["pending_server"] == []
        for _ in range(2):
            result = await client.call("get_task_result", task_id=slow.task)
            assert result.blocks == [{"type": "text", "text": "slept 2"}]
            assert not result.events
        assert (await client.call("list_tasks")).json["tasks"] == []
        ended = await client.call("list_tasks", status="completed")
        assert [t["task_id"] for t in ended.json["tasks"]] == [slow.task]


@pytest.mark.virtual_time
@both_eras
async def test_get_task_result_waits_for_the_end_and_gives_errors_as_the_call_would_have(
    tmp_path: Path, *, modern: bool
) -> None:
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        at_once = await client.execute("slow", args={"seconds": 2}, timeout_ms=0)
        early = await client.call("get_task_result", task_id=at_once.task, timeout_ms=1)
        assert early.json["task"]["status"] == "working"
        assert "No result yet" in early.text
        result = await client.call("get_task_result", task_id=at_once.task)
        assert result.text == "slept 2"
        failing = await client.execute("fail", timeout_ms=0)
        result = await client.call("get_task_result", task_id=failing.task)
        assert (result.is_error, result.text) == (True, "it failed")
        refused = await client.execute("rpc_error", args={"code": -32000}, timeout_ms=0)
        result = await client.call("get_task_result", task_id=refused.task)
        assert result.is_error
        assert "error -32000 as asked" in result.text
        assert '{"asked":-32000}' in result.text, "what the error says beside its message"
        assert "[call_failed]" in result.text
        await client.quiet()
        assert [t["tool"] for t in (await client.call("list_tasks", status="failed")).json["tasks"]]
        kinds = [e["type"] for e in client.events if e["type"].startswith("task_")]
        assert sorted(kinds) == ["task_completed", "task_completed", "task_failed"]


@both_eras
async def test_a_timeout_above_the_ceiling_is_lowered_and_said(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, timeouts={"client_ceiling_ms": 300})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        slow = await client.execute("slow", args={"seconds": 30}, timeout_ms=600_000)
        assert slow.json["reason"] == "timeout"
        assert "timeout_ms was lowered to 300" in slow.text
        unsaid = await client.execute("slow", args={"seconds": 30})
        assert unsaid.json["reason"] == "timeout"
        assert "lowered" not in unsaid.text
        still = await client.call("get_task_result", task_id=slow.task, timeout_ms=600_000)
        assert still.json["task"]["status"] == "working"
        nothing = await client.call("await_activity", timeout_ms=600_000)
        if not nothing.told:
            assert nothing.json["triggers"] == [{"type": "timeout"}]


async def test_the_ceiling_of_a_client_goes_by_its_name(tmp_path: Path) -> None:
    made = setting(
        tmp_path,
        timeouts={"client_ceiling_ms": 60_000},
        more={"client_ceilings_ms": {"hasty": 200}},
    )
    async with proxy(made, greet=False) as client:
        await client.greet(clientInfo={"name": "Very-Hasty-Client", "version": "1"})
        await client.connected()
        slow = await client.execute("slow", args={"seconds": 30}, timeout_ms=50_000)
        assert "lowered to 200" in slow.text


@both_eras
async def test_a_result_that_was_fetched_is_forgotten_later_and_says_so(
    tmp_path: Path, *, modern: bool
) -> None:
    made = setting(tmp_path, fixed={"result_retention_s": 0.001})
    async with proxy(made, modern=modern) as client:
        await client.connected()
        task = (await client.execute("echo", args={"message": "x"}, timeout_ms=0)).task
        assert (await client.call("get_task_result", task_id=task)).text == "x"
        with anyio.fail_after(WAIT_S):
            gone = await client.call("get_task_result", task_id=task)
            while not gone.is_error:
                gone = await client.call("get_task_result", task_id=task)
        assert "[result_expired]" in gone.text


async def test_a_task_limit_counts_calls_and_tasks_and_frees_every_place(tmp_path: Path) -> None:
    made = setting(tmp_path, limits={"tasks": 5})
    async with proxy(made) as client:
        await client.connected()
        tasks = [
            (await client.execute("slow", args={"seconds": 60}, timeout_ms=0)).task
            for _ in range(3)
        ]
        calls = [await client.begin_execute("slow", args={"seconds": 60}) for _ in range(2)]
        full = await client.execute("echo", args={"message": "x"}, timeout_ms=100)
        assert "[task_limit]" in full.text
        await client.cancel(calls[0])
        await until_free(client)
        for task in tasks:
            assert (await client.call("cancel_task", task_id=task)).json["success"]
        await client.cancel(calls[1])
        await until_free(client)
        await client.quiet()
        assert (await client.status())["working_tasks"] == 0


async def until_free(client: Any) -> None:
    with anyio.fail_after(WAIT_S):
        while (await client.execute("echo", args={"message": "x"})).is_error:
            pass


async def test_a_lifetime_over_the_maximum_is_refused_and_the_usual_one_is_cut(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path, fixed={"task_ttl_max_s": 60})
    async with proxy(made) as client:
        await client.connected()
        wrong = await client.execute(
            "slow", args={"seconds": 60}, timeout_ms=20, task_ttl_ms=80_000
        )
        assert "[invalid_arguments]" in wrong.text
        assert "task_ttl_ms" in wrong.text
        right = await client.execute("slow", args={"seconds": 60}, timeout_ms=20)
        assert right.json["reason"] == "timeout"
        await client.call("cancel_task", task_id=right.task)
        await client.quiet()


@both_eras
async def test_a_task_may_outlive_many_answers_and_its_result_is_kept(
    tmp_path: Path, *, modern: bool
) -> None:
    """Promotion races with completion: whichever comes first, there is one answer and one end."""
    async with proxy(setting(tmp_path), modern=modern) as client:
        await client.connected()
        await client.drain()
        pending = [
            await client.begin_execute("slow", args={"seconds": 0.05}, timeout_ms=40 + n)
            for n in range(24)
        ]
        tasks: list[str] = []
        for one in pending:
            answer = await one.answer()
            if answer.text != "slept 0.05":
                tasks.append(answer.task)
        for task in tasks:
            assert (await client.call("get_task_result", task_id=task)).text == "slept 0.05"
        await client.quiet()
        ended = [e["data"]["task_id"] for e in client.events if e["type"] == "task_completed"]
        assert sorted(ended) == sorted(tasks)


@pytest.mark.parametrize("how", ["args", "string", "beside", "quoted"])
async def test_arguments_are_repaired_even_before_anybody_listed_the_tools(
    tmp_path: Path, how: str
) -> None:
    made = setting(tmp_path)
    async with proxy(made) as client:
        await client.connected()
        ways: dict[str, dict[str, Any]] = {
            "args": {"args": {"a": 1, "b": 2}},
            "string": {"args": '{"a": 1, "b": 2}'},
            "beside": {"a": 1, "b": 2},
            "quoted": {"args": {"a": "1", "b": "2.0"}},
        }
        answer = await client.execute("add", **ways[how])
        assert float(answer.text) == 3
        wrong = await client.execute("add", a=1, c=2)
        assert "[invalid_arguments]" in wrong.text
        assert "c" in wrong.text
        await client.quiet()
    repaired = [line for line in made.journal() if line["event"] == "tool_arguments_repaired"]
    assert len(repaired) == (0 if how == "args" else 1)


async def test_a_server_may_be_left_out_when_one_alone_has_the_tool(tmp_path: Path) -> None:
    made = setting(tmp_path)
    box = tmp_path / "box"
    box.write_text("only_here")
    made.servers["t"] = server("--toolbox", str(box))
    async with proxy(made) as client:
        await client.connected("s", "t")
        assert (await client.call("execute_tool", tool="only_here")).text == "only_here"
        several = await client.call("execute_tool", tool="echo", args={"message": "x"})
        assert "s, t" in several.text
        assert "[invalid_arguments]" in several.text
        none = await client.call("execute_tool", tool="nowhere")
        assert "[server_not_found]" in none.text
        close = await client.execute("ehco", args={"message": "x"})
        assert "[tool_not_found]" in close.text
        assert "echo" in close.text
        lost = await client.execute("echo", "z", args={"message": "x"})
        assert "[server_not_found]" in lost.text
        assert "s, t" in lost.text
        await client.quiet()


async def test_a_call_without_a_server_asks_for_it_while_configured_ones_hang(
    tmp_path: Path,
) -> None:
    made = setting(tmp_path, timeouts={"client_ceiling_ms": 3000})
    for n in range(4):
        made.servers[f"hung{n}"] = command(rude("silent"))
    async with proxy(made) as client:
        await client.connected()
        answer = await client.call("execute_tool", tool="echo", args={"message": "found"})
        assert answer.is_error
        assert "hung0, hung1, hung2, hung3 have not listed their tools yet" in answer.text
        found = await client.execute("echo", args={"message": "found"})
        assert found.text == "found"


async def test_a_lazy_server_is_connected_by_the_first_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    made = Setting(home=tmp_path / "home", servers={"s": server(log=log, lazy=True)})
    async with proxy(made) as client:
        listed = (await client.call("list_servers")).json["servers"]
        assert [s["phase"] for s in listed] == ["idle"]
        assert not log.exists()
        assert (await client.execute("echo", args={"message": "now"})).text == "now"
        await until(log.exists)
