"""Two ids for two sides: that of the client at the front, and that of a server behind it."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.e2e.cli_harness import EMCEEPEE
from tests.e2e.clients.raw import WAIT_S, Message, own_first, surroundings
from tests.e2e.front_harness import HttpClient, RunningFront, running_front, session
from tests.e2e.http_harness import mcp_server
from tests.e2e.servers.http_mcp import McpServer

pytestmark = pytest.mark.anyio

SHOWN_CHARS = 8


def entries(server: McpServer) -> dict[str, Message]:
    return {"web": {"url": server.url, "era": "legacy"}}


async def facts(client: HttpClient) -> Message:
    listed = await client.call("list_servers", name="web")
    return json.loads(own_first(listed)[0]["text"])["servers"][0]


async def text(client: HttpClient, **arguments: Any) -> str:
    return own_first(await client.execute("echo", server="web", **arguments))[0]["text"]


async def status(front: RunningFront, *options: str) -> str:
    """What the command tells once the session's file is there."""
    home = front.tmp_path / "person"
    home.mkdir(exist_ok=True)
    environ = surroundings(home) | {"EMCEEPEE_STATE_DIR": str(front.tmp_path / "state")}
    with anyio.fail_after(WAIT_S):
        while not list((front.tmp_path / "state" / "running").glob("*.json")):
            await anyio.sleep(0.02)
    return (await anyio.run_process([*EMCEEPEE, "status", *options], env=environ)).stdout.decode()


def files_below(path: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in path.rglob("*") if file.is_file())


async def test_both_sides_of_a_session_are_shown_and_neither_id_leaves_whole(
    tmp_path: Path,
) -> None:
    async with mcp_server() as server:
        with running_front(tmp_path, servers=entries(server)) as front:
            async with session(front) as client:
                assert client.session is not None
                assert await text(client, message="hello") == "hello"
                theirs = server.only_session().name
                shown = (await facts(client))["session"]
                assert shown["http_id"] == client.session[:SHOWN_CHARS]
                assert shown["upstream_id"] == f"{theirs[: len(theirs) // 2]}…"
                [proxy] = json.loads(await status(front, "--json"))["proxies"]
                assert proxy["http_session"] == client.session[:SHOWN_CHARS]
                table = await status(front)
                assert client.session[:SHOWN_CHARS] in table
                written = files_below(tmp_path / "state") + files_below(tmp_path / "journal")
                marks = "".join(
                    Path(f"/proc/{pid}/{name}").read_text(errors="replace")
                    for pid in front.look()
                    for name in ("cmdline", "environ")
                )
                for secret in (client.session, theirs):
                    assert secret not in written + table + marks + json.dumps(proxy)


async def test_a_server_that_forgets_its_session_does_not_disturb_that_of_the_client(
    tmp_path: Path,
) -> None:
    async with mcp_server() as server:
        with running_front(tmp_path, servers=entries(server)) as front:
            async with session(front) as client, client.get() as stream:
                assert stream.status_code == 200
                assert await text(client, message="before") == "before"
                ours, before = client.session, await facts(client)
                forgotten = server.only_session().name
                server.sessions.clear()
                assert await text(client, message="after") == "after"
                after = await facts(client)
                assert server.only_session().name != forgotten
                assert after["session"]["http_id"] == before["session"]["http_id"]
                assert client.session == ours
                async with client.get() as second:
                    assert second.status_code == 409  # the first one is still being read
