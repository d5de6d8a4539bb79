"""What one server sends to be slow to read makes nobody else wait, and does not delay the end."""

import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from emceepee_stdio.errors import ProxyError
from tests.e2e.client import Client, Setting, proxy, server
from tests.e2e.http_harness import http_backend, mcp_server
from tests.e2e.servers.http_mcp import Call, McpServer
from tests.e2e.servers.http_wire import head

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
        asked = {e.headers.get("accept-encoding") for e in bad.http.heard}
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
