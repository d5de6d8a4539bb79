"""What one server sends to be slow to read makes nobody else wait, and does not delay the end."""

import gzip
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from emceepee_stdio.errors import ProxyError
from tests.e2e.client import Client, Setting, command, proxy, server
from tests.e2e.http_harness import http_backend, mcp_server
from tests.e2e.servers.http_mcp import Call, McpServer
from tests.e2e.servers.http_wire import head
from tests.peers import rude

BOMB = gzip.compress(gzip.compress(bytes(b"\n" * (64 << 20))))  # a few hundred bytes


@asynccontextmanager
async def beside(attacker: McpServer, home: Path, **more: Any) -> AsyncIterator[Client]:
    """The proxy with a bad server behind a URL and a good one on stdio."""
    servers = {"bad": {"url": attacker.url, **more}, "good": server()}
    async with proxy(Setting(home=home, servers=servers)) as client:
        await client.connected("bad", "good")
        yield client


async def test_what_is_compressed_though_we_did_not_ask_for_it_is_refused_unread(
    tmp_path: Path,
) -> None:
    async def bomb(call: Call) -> None:
        fields = {"content-type": "text/event-stream", "content-encoding": "gzip, gzip"}
        await call.exchange.raw(head(200, {**fields, "content-length": str(len(BOMB))}))
        await call.exchange.raw(BOMB)

    async with mcp_server() as bad:
        bad.tools["bomb"] = bomb
        async with beside(bad, tmp_path) as client:
            under_attack = await client.begin_execute("bomb", "bad")
            assert (await client.execute("echo", "good", args={"message": "hi"})).text == "hi"
            refused = await under_attack.answer()
            assert refused.is_error
            assert "in the encoding 'gzip, gzip'" in refused.text
        asked = {e.headers.get("accept-encoding") for e in bad.http.received}
        assert asked == {"identity"}


@pytest.mark.parametrize("chunked", [False, True], ids=["one chunk", "many chunks"])
async def test_others_have_their_turn_while_many_small_events_are_taken_in(
    *, chunked: bool
) -> None:
    count, event = 4_000, b"data: {}\n\n"
    counts = [0]

    async def flood(call: Call) -> None:
        await call.exchange.stream()
        if chunked:
            await call.exchange.raw(b"%x\r\n%b\r\n" % (len(event), event) * count)
        else:
            await call.exchange.chunk(event * count)
        await call.exchange.finish()

    async with mcp_server() as bad:
        bad.tools["flood"] = flood
        async with http_backend(bad.url) as rig, anyio.create_task_group() as tasks:

            async def look_on() -> None:
                while True:
                    await anyio.lowlevel.checkpoint()
                    counts.append(len(rig.sink.logs))

            await rig.connection()
            tasks.start_soon(look_on)
            with pytest.raises(ProxyError, match="ended the stream"):
                await rig.text("flood")
            tasks.cancel_scope.cancel()
    assert counts[-1] >= count
    assert max(after - before for before, after in pairwise(counts)) <= count / 10


def noisy(home: Path) -> dict[str, Any]:
    """A server that was given a long secret, and logs what is nearly that, over and over."""
    home.mkdir(parents=True, exist_ok=True)
    script = home / "noisy.py"
    script.write_text(NOISY)
    env = {"API_TOKEN": "a" * 100_000 + "b"}
    return command([sys.executable, str(script)], env=env)


NOISY = """
import json, sys
say = lambda **m: print(json.dumps({"jsonrpc": "2.0", **m}), flush=True)
hello = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "logging": {}},
         "serverInfo": {"name": "noisy", "version": "1"}}
for line in sys.stdin:
    m = json.loads(line)
    if m.get("method") == "tools/call":
        say(method="notifications/message", params={"level": "info", "data": "a" * (4 << 20)})
    if "id" in m:
        listed = {"tools": [{"name": "log", "inputSchema": {"type": "object"}}], "content": []}
        say(id=m["id"], result=hello if m["method"] == "initialize" else listed)
"""


async def test_a_long_secret_and_a_long_line_that_is_nearly_it_keep_nobody_waiting(
    tmp_path: Path,
) -> None:
    servers = {"bad": noisy(tmp_path), "good": server()}
    setting = Setting(home=tmp_path, servers=servers, limits={"result_bytes": 100_000})
    async with proxy(setting) as client:
        await client.connected("bad", "good")
        under_attack = await client.begin_execute("log", "bad")
        assert (await client.execute("echo", "good", args={"message": "hi"})).text == "hi"
        await under_attack.answer()
        (line,) = (await client.call("get_logs", server="bad", sources=["protocol"])).json["logs"]
        assert line["text"].endswith(f"… [cut] {4 << 20} characters")


async def test_of_a_list_without_measure_the_beginning_is_shown_and_that_is_said(
    tmp_path: Path,
) -> None:
    toolbox = tmp_path / "toolbox"
    toolbox.write_text("\n".join(f"tool-{n}" for n in range(20_000)))
    servers = {"many": server("--toolbox", str(toolbox)), "good": server()}
    async with proxy(Setting(home=tmp_path / "home", servers=servers)) as client:
        await client.connected("many", "good")
        listed = (await client.call("list_tools", detail="names", limit=1)).json
        assert listed["servers_with_more"] == {"many": "Only its first 5000 are listed."}
        assert 5_000 < listed["total"] < 5_100


@pytest.fixture
def hanging() -> dict[str, Any]:
    """A server that never says hello, and would be waited for two minutes."""
    return command(rude("silent"))


async def test_a_list_names_who_is_still_connecting_and_does_not_wait_for_it(
    tmp_path: Path, hanging: dict[str, Any]
) -> None:
    servers = {"hangs": hanging, "good": server()}
    async with proxy(Setting(home=tmp_path, servers=servers)) as client:
        await client.connected("good")
        asked = [
            await client.begin_call(tool)
            for tool in ("list_tools", "list_resources", "list_resource_templates", "list_prompts")
        ]
        for pending in asked:
            failed = (await pending.answer()).json["servers_that_failed"]
            assert failed["hangs"].startswith("hangs is still connecting.")


async def test_a_list_of_the_connecting_server_alone_waits_for_it(tmp_path: Path) -> None:
    servers = {"slow": server(), "good": server()}
    async with proxy(Setting(home=tmp_path, servers=servers)) as client:
        listed = (await client.call("list_tools", server="slow", detail="names")).json
        assert listed["tools"]
        assert "servers_that_failed" not in listed
