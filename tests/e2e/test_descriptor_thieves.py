"""No server takes the descriptors of the others; where there are too few, the end is in order."""

import asyncio
import subprocess
import sys
from pathlib import Path

from tests.e2e.clients.raw import PROXY, Proxy
from tests.e2e.clients.raw import proxy as raw_proxy
from tests.e2e.clients.raw import until as until_so
from tests.e2e.http_harness import HttpRig, http_backend, mcp_server, until
from tests.e2e.servers.http_wire import Exchange
from tests.peers import plain

FEW = ("sh", "-c", 'ulimit -n 64; exec "$0" "$@"', *PROXY)


async def test_a_server_that_takes_none_of_our_answers_has_so_many_sockets_and_no_more() -> None:
    held: list[Exchange] = []
    release = asyncio.Event()

    async def hold(exchange: Exchange) -> bool:
        if exchange.method == "POST" and "method" not in exchange.message:
            held.append(exchange)
            await release.wait()
            await exchange.reply(202, kind="")
            return True
        return False

    async with mcp_server(era="legacy") as bad:
        bad.before = hold
        async with http_backend(bad.url) as rig:
            await rig.connection()
            (session,) = bad.sessions.values()
            for n in range(300):
                session.log.add({"id": f"ping-{n}", "method": "ping"})
            await until(lambda: len(held) >= 8)
            assert await rig.text("echo", message="hi") == "hi"
            assert len(held) == 8
            assert len(bad.http.connections) < 20
            release.set()
            await until(lambda: len(held) == 300)


async def test_answers_that_a_server_does_not_take_are_dropped_over_a_number_of_bytes() -> None:
    held: list[Exchange] = []
    release = asyncio.Event()
    count, id_bytes = 600, 4 * 900

    async def hold(exchange: Exchange) -> bool:
        if exchange.method == "POST" and "method" not in exchange.message:
            held.append(exchange)
            await release.wait()
            await exchange.reply(202, kind="")
            return True
        return False

    async with mcp_server(era="legacy") as bad:
        bad.before = hold
        async with http_backend(bad.url) as rig:
            await rig.connection()
            (session,) = bad.sessions.values()
            for n in range(count):
                session.log.add({"id": f"{n}" + "\N{GRINNING FACE}" * 900, "method": "ping"})
            session.log.add({"method": "notifications/last"})
            await until(lambda: ("notifications/last", None) in rig.sink.notifications)
            release.set()
            await until(lambda: len(held) + len(dropped(rig)) == count)
            assert len(held) * id_bytes < 1 << 20


def dropped(rig: HttpRig) -> list[str]:
    return [text for _, text in rig.sink.logs if text.startswith("an answer was dropped")]


def test_with_too_few_descriptors_for_its_servers_it_ends_in_order(tmp_path: Path) -> None:
    argv = plain()
    servers = {f"s{n}": {"command": argv[0], "args": argv[1:]} for n in range(31)}
    with raw_proxy(tmp_path, servers=servers, python=FEW) as client:
        client.greet()
        until_so(lambda: _is_short_of(client), "a server for which there is no descriptor")
        client.meet_family()
        client.close_stdin()
        assert client.wait() == 0
        assert "Traceback" not in client.errors()
        assert client.left_over() == set()


# A process whose three descriptors are all that it may have.
NONE_FREE = """
import os, resource
from emceepee_stdio.wire.orphans import bury_orphans, descendants, expect_orphans
from emceepee_stdio.wire.orphans import kill_marked, leftovers, marked
expect_orphans()
resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
print(leftovers(None), marked("x"), kill_marked("x"), bury_orphans(), descendants(os.getpid()))
"""


def test_without_a_free_descriptor_nobody_is_found_and_nothing_is_raised() -> None:
    looked = subprocess.run(  # closes all but the first three
        [sys.executable, "-c", NONE_FREE], capture_output=True, text=True, check=False
    )
    assert looked.stdout.split("\n") == ["[] [] [] set() []", ""], looked.stderr


def _is_short_of(client: Proxy) -> bool:
    journals = (client.tmp_path / "journal").glob("emceepee-*.jsonl")
    return any("Too many open files" in path.read_text() for path in journals)
