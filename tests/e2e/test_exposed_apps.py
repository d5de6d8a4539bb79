"""An MCP App behind us is what it is without us: its tool, its page, its results."""

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.e2e.client import LEGACY, Setting, both_eras, command, proxy
from tests.e2e.test_exposed_lists import RESOURCES
from tests.e2e.test_exposed_tools import FIXED, listed, until_listed, without_identity
from tests.peers import budget_allocator

PAGE = "ui://budget-allocator/mcp-app.html"
TOOL = "get-budget-data"


def direct(argv: list[str], *requests: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server itself answers."""
    info = {"name": "raw", "version": "1"}
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        results = []
        for number, (method, params) in enumerate((("initialize", hello), *requests)):
            request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            results.append(json.loads(process.stdout.readline())["result"])
        process.kill()
    return results[1:]


def of_no_era(result: dict[str, Any]) -> dict[str, Any]:
    said = without_identity(result)
    return {key: value for key, value in said.items() if key not in ("ttlMs", "cacheScope")}


@both_eras
async def test_an_app_equals_the_direct_one_but_for_the_name_and_the_output_schema(
    tmp_path: Path, *, modern: bool
) -> None:
    argv = budget_allocator()
    tools, resources, page, called = direct(
        argv,
        ("tools/list", {}),
        ("resources/list", {}),
        ("resources/read", {"uri": PAGE}),
        ("tools/call", {"name": TOOL, "arguments": {}}),
    )
    (tool,) = tools["tools"]
    assert tool["_meta"]["ui"]["resourceUri"] == PAGE
    servers = {"app": command(argv, expose=True)}
    setting = Setting(home=tmp_path / "home", servers=servers, fixed=FIXED)
    async with proxy(setting, modern=modern) as client:
        client.exposes = True
        await client.connected("app")
        while f"app__{TOOL}" not in (shown := await listed(client)):
            await client.call("await_activity", timeout_ms=20)
        without = {key: value for key, value in tool.items() if key != "outputSchema"}
        long = {**tool["_meta"], "anthropic/maxResultSizeChars": 500_000}
        assert shown == {f"app__{TOOL}": {**without, "name": f"app__{TOOL}", "_meta": long}}
        pages = await listed(client, *RESOURCES)
        assert list(pages.values()) == resources["resources"]
        read = await client.request("resources/read", {"uri": PAGE})
        assert of_no_era(read) == page
        for name in (f"app__{TOOL}", TOOL):  # a page calls a tool by its own name
            answer = of_no_era((await client.call(name)).result)
            assert forms(answer) == forms(called)
            assert answer["structuredContent"]["config"] == called["structuredContent"]["config"]


def forms(value: Any) -> Any:
    """The form of a value, whatever its numbers and texts: the server draws them by chance."""
    if isinstance(value, dict):
        return {key: forms(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [forms(inner) for inner in value]
    return "number" if isinstance(value, int | float) else type(value).__name__


async def test_the_result_of_an_app_is_whole_however_large_it_is(tmp_path: Path) -> None:
    """Its page reads what the model is not shown."""
    servers = {"app": command(budget_allocator(), expose=["get-*"])}
    limits = {"result_bytes": 500}
    setting = Setting(home=tmp_path / "home", servers=servers, fixed=FIXED, limits=limits)
    async with proxy(setting) as client:
        client.exposes = True
        await until_listed(client, f"app__{TOOL}")
        answer = await client.call(f"app__{TOOL}")
        assert len(answer.result["structuredContent"]["analytics"]["history"]) == 24
        paged = await client.execute(TOOL, "app")
        assert "stored_result" in paged.text
        read = await client.request("resources/read", {"uri": PAGE})
        assert "<html" in read["contents"][0]["text"].lower()
