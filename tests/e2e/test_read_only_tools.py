"""execute_readonly_tool: what only reads runs by it, and nothing else does."""

from pathlib import Path

import pytest

from tests.e2e.client import Client, Setting, both_eras, proxy, server

ECHO = {"tool": "echo", "args": {"message": "x"}}


async def refused(client: Client, why: str, **call: object) -> None:
    answer = await client.call("execute_readonly_tool", **call)  # type: ignore[arg-type]
    assert "[policy_denied]" in answer.text
    assert why in answer.text
    assert "Call execute_tool instead." in answer.text


@both_eras
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_the_reading_road_runs_what_only_reads_and_nothing_else(
    tmp_path: Path, era: str, *, modern: bool
) -> None:
    servers = {
        "s": server(era=era),
        "asking": server(era=era, tools={"echo": "ask"}),
        "off": server(era=era, tools={"echo": "off"}),
        "allowed": server(era=era, tools={"*": "allow"}),
    }
    setting = Setting(home=tmp_path / "home", servers=servers)
    setting.more = {"policy": {"mode": "allow"}}
    async with proxy(setting, modern=modern) as client:
        for name in ("s", "allowed"):
            ran = await client.call("execute_readonly_tool", server=name, **ECHO)
            assert ran.text == "x"
        await refused(client, "does not say that it only reads", server="s", tool="add")
        await refused(client, "does not list it", server="s", tool="no_such_tool")
        await refused(client, "a rule of the configuration", server="asking", **ECHO)
        off = await client.call("execute_readonly_tool", server="off", **ECHO)
        assert "'echo' of off is off by a rule" in off.text
        assert "execute_tool" not in off.text, "that would not run it either"
        entry = server("--paged", era=era)  # rules bind its target, whatever it is called
        await client.call(
            "add_server", name="mine", command=entry["command"], args=entry["args"], era=era
        )
        await refused(client, "no person has configured", server="mine", **ECHO)
        assert (await client.execute("echo", "mine", args={"message": "y"})).text == "y"
        found = (await client.call("list_tools", tool="^(echo|add)$", detail="names")).json
        assert found["run_with"] == "execute_tool, unless the tool says otherwise"
        marked = {(one["server"], one["name"]): one.get("run_with") for one in found["tools"]}
        assert {tool for tool, road in marked.items() if road is not None} == {
            ("s", "echo"),
            ("allowed", "echo"),
        }
        assert set(marked.values()) == {None, "execute_readonly_tool"}
        assert "run_with" not in (await client.call("list_tools", tool="no_such_tool")).json
