"""No server takes the descriptors of the others; where there are too few, the end is in order."""

import asyncio
from pathlib import Path

from tests.e2e.clients.raw import PROXY, Proxy
from tests.e2e.clients.raw import proxy as raw_proxy
from tests.e2e.clients.raw import until as until_so
from tests.e2e.http_harness import http_backend, mcp_server, until
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


def _is_short_of(client: Proxy) -> bool:
    journals = (client.tmp_path / "journal").glob("*.jsonl")
    return any("Too many open files" in path.read_text() for path in journals)
