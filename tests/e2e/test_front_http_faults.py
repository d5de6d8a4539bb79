"""The HTTP front under faults: cut connections, clients that do not read, and too many of them."""

import json
import math
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import SocketStream

from tests.e2e.clients.raw import PROXY, WAIT_S, entry, surroundings, until
from tests.e2e.front_harness import (
    Event,
    HttpClient,
    RunningFront,
    events_of,
    executing,
    http_client,
    running_front,
    session,
    write_tokens,
    write_two_tokens,
)
from tests.e2e.harness import alive, free_port
from tests.front_entry import front_command
from tests.peers import PeerMissingError, node_modules, plain

CROWD = 200


@pytest.fixture
def front(tmp_path: Path) -> Iterator[RunningFront]:
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with running_front(tmp_path, servers=servers) as running:
        yield running


@asynccontextmanager
async def cutting_relay(front: RunningFront, *, after: int) -> AsyncGenerator[str]:
    """An address that leads to the front, and cuts each connection after so many bytes."""
    host, port = urlsplit(front.url).hostname, urlsplit(front.url).port
    assert host is not None
    assert port is not None

    async def serve(client: SocketStream) -> None:
        server = await anyio.connect_tcp(host, port)

        async def forward() -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await server.send(await client.receive())

        async with client, server, anyio.create_task_group() as tasks:
            tasks.start_soon(forward)
            left = after
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while left > 0:
                    data = await server.receive()
                    await client.send(data[:left])
                    left -= len(data)
            tasks.cancel_scope.cancel()

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port_here = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port_here}/mcp"
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def impatient_relay(front: RunningFront, *, every: float) -> AsyncGenerator[str]:
    """An address that leads to the front, and cuts all its connections again and again.

    Not a POST before the first id of its answer: no client could take that up again.
    """
    host, port = urlsplit(front.url).hostname, urlsplit(front.url).port
    assert host is not None
    assert port is not None

    async def serve(client: SocketStream) -> None:
        async def copy(source: SocketStream, target: SocketStream) -> None:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
                while True:
                    data = await source.receive()
                    soon = anyio.current_time() + every
                    if data.startswith(b"POST "):
                        scope.deadline = math.inf
                    elif data.startswith(b"GET ") or b"\nid: " in data:
                        scope.deadline = min(scope.deadline, soon)
                    await target.send(data)
            tasks.cancel_scope.cancel()

        server = await anyio.connect_tcp(host, port)
        with anyio.CancelScope() as scope:
            async with client, server, anyio.create_task_group() as tasks:
                tasks.start_soon(copy, client, server)
                tasks.start_soon(copy, server, client)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve)
        port_here = listener.extra(anyio.abc.SocketAttribute.local_port)
        yield f"http://127.0.0.1:{port_here}/mcp"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("sdk", [1, 2])
async def test_a_typescript_client_misses_nothing_when_it_is_cut_off_every_second(
    front: RunningFront, sdk: int
) -> None:
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("node")
    async with impatient_relay(front, every=1.3) as url:
        plan = {
            "url": url,
            "headers": front.authorization,
            "modules": str(node_modules()),
            "sdk": sdk,
        }
        script = Path(__file__).with_name("clients") / "cut.mjs"
        with anyio.fail_after(WAIT_S):
            done = await anyio.run_process([node, str(script), json.dumps(plan)])
        front.look()
    facts = json.loads(done.stdout)
    assert facts == {"steps": list(range(1, 11)), "text": "10 steps"}


async def read_cut(client: HttpClient, got: list[Event], url: str, last: str | None) -> None:
    """What arrives of a stream that may be cut at any place."""
    direct, client.url = client.url, url
    message = executing("progress", token="t", steps=8, interval=0)
    try:
        async with client.get(last) if last else client.post(message) as response:
            async for event in events_of(response):
                got.append(event)  # noqa: PERF401 - what came before a cut counts
    except Exception as error:
        if "httpx" not in type(error).__module__:
            raise
    finally:
        client.url = direct


async def test_a_stream_that_is_cut_at_any_place_is_resumed_without_loss(
    front: RunningFront,
) -> None:
    async with session(front) as client:
        await client.execute("echo", message="warm")
        for after in range(200, 1500, 61):
            got: list[Event] = []
            async with cutting_relay(front, after=after) as url:
                await read_cut(client, got, url, None)
            if not got:  # not even the first id came: nothing to resume by
                continue
            for _ in range(3):
                if got[-1].message and "result" in got[-1].message:
                    break
                await read_cut(client, got, front.url, got[-1].id)
            messages = [event.message for event in got if event.message]
            steps = [m["params"]["progress"] for m in messages if "method" in m]
            assert steps == sorted(set(steps))
            assert messages[-1]["result"]["content"][0]["text"] == "8 steps"


@pytest.mark.parametrize(
    "count", [50, pytest.param(1_000, marks=(pytest.mark.slow, pytest.mark.timeout(300)))]
)
async def test_no_answer_is_lost_that_comes_while_its_stream_is_being_resumed(
    front: RunningFront, count: int
) -> None:
    answered: list[str] = []

    async def one(client: HttpClient, rounds: int) -> None:
        for number in range(rounds):
            word = f"{client.session}-{number}"
            last = None
            async with client.post(executing("echo", message=word)) as response:
                async for event in events_of(response):
                    last = event
                    break
            assert last is not None
            await anyio.sleep(random.uniform(0, 0.004))
            async with client.get(last.id) as response:
                messages = [event.message async for event in events_of(response)]
            assert messages[-1] is not None
            answered.append(messages[-1]["result"]["content"][0]["text"])
            assert answered[-1] == word

    async with (
        session(front) as first,
        session(front) as second,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(one, first, count // 2)
        tasks.start_soon(one, second, count // 2)
    assert len(answered) == count


async def test_a_crowd_that_never_reads_costs_nobody_else(front: RunningFront) -> None:
    async with session(front) as client, session(front) as other:
        await client.execute("echo", message="warm")
        address = (urlsplit(front.url).hostname, urlsplit(front.url).port)
        with ExitStack() as stack:
            for number in range(CROWD):
                body = b'{"jsonrpc":"2.0","id":"c%d","method":"tools/list"}' % number
                given = client.headers(host="localhost", content_type="application/json")
                lines = [f"{name}: {value}" for name, value in given.items()]
                head = "\r\n".join(["POST /mcp HTTP/1.1", *lines])
                mute = stack.enter_context(socket.create_connection(address))
                mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                mute.sendall(f"{head}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
            result = await other.execute("echo", message="served")
            assert result["content"][0]["text"] == "served"
        result = await client.execute("echo", message="again")
        assert result["content"][0]["text"] == "again"


async def test_connections_on_which_nothing_is_asked_are_closed_and_others_served(
    tmp_path: Path,
) -> None:
    quick = front_command(quiet_s=1, sweep_s=0.1)
    with running_front(tmp_path, python=quick) as front, ExitStack() as stack:
        address = (urlsplit(front.url).hostname, urlsplit(front.url).port)
        slow = [stack.enter_context(socket.create_connection(address)) for _ in range(CROWD)]
        for number, one in enumerate(slow):
            one.sendall(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\nx: "[: 4 + number % 40])
        async with http_client(front) as client:
            assert (await client.initialize()).status_code == 200
            front.look()
        for one in slow:
            one.settimeout(30)
            with suppress(ConnectionResetError):
                assert one.recv(1) in (b"", b"H")  # closed, or told that it is no request


async def test_a_head_without_end_is_cut_off(front: RunningFront) -> None:
    address = (urlsplit(front.url).hostname, urlsplit(front.url).port)
    sent = 0
    with socket.create_connection(address) as endless, suppress(OSError):
        endless.settimeout(30)
        endless.sendall(b"POST /mcp HTTP/1.1\r\nhost: localhost\r\n")
        while sent < 64 << 20:
            line = b"x-%d: " % sent + b"a" * 60_000 + b"\r\n"
            endless.sendall(line)
            sent += len(line)
    assert sent < 8 << 20
    async with http_client(front) as client:
        assert (await client.http.get(f"{front.base}/health")).status_code == 200


async def test_a_head_without_end_behind_an_open_stream_is_cut_off(front: RunningFront) -> None:
    address = (urlsplit(front.url).hostname, urlsplit(front.url).port)
    async with http_client(front) as client:
        await client.initialize()
        lines = [f"{name}: {value}" for name, value in client.headers(host="localhost").items()]
        sent = 0
        with socket.create_connection(address) as endless, suppress(OSError):
            endless.settimeout(30)
            endless.sendall("\r\n".join(["GET /mcp HTTP/1.1", *lines, "\r\n"]).encode())
            assert endless.recv(15) == b"HTTP/1.1 200 OK"
            endless.sendall(b"POST /mcp HTTP/1.1\r\nx: ")
            while sent < 64 << 20:
                endless.sendall(b"a" * 60_000)
                sent += 60_000
        assert sent < 32 << 20  # what the sockets of both sides hold, and no more
        result = await client.execute("echo", message="served")
        assert result["content"][0]["text"] == "served"


async def test_sessions_that_are_left_open_do_not_become_more_than_allowed(tmp_path: Path) -> None:
    with running_front(tmp_path, "--max-sessions", "4") as front:
        async with http_client(front) as client:
            statuses: list[int] = []

            async def one() -> None:
                opened = HttpClient(front, client.http)
                statuses.append((await opened.initialize()).status_code)

            async with anyio.create_task_group() as tasks:
                for _ in range(CROWD):
                    tasks.start_soon(one)
            assert (statuses.count(200), statuses.count(503)) == (4, CROWD - 4)
            front.look()


async def test_a_session_that_nobody_uses_ends_but_not_while_a_task_works(tmp_path: Path) -> None:
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    quick = front_command(idle_s=2, sweep_s=0.1)
    with running_front(tmp_path, servers=servers, python=quick) as front:
        async with session(front) as busy:
            call = {"server": "plain", "tool": "slow", "args": {"seconds": 300}, "timeout_ms": 0}
            await busy.call("execute_tool", **call)  # before another begins, which takes its time
            async with session(front) as idle:
                with anyio.fail_after(60):
                    while (await http_status(idle)) != 404:
                        await anyio.sleep(3)
            assert (await http_status(busy)) == 202
            family = front.look()
    until(lambda: not any(alive(pid) for pid in family), "the end of all")


async def http_status(client: HttpClient, **headers: str) -> int:
    body = {"jsonrpc": "2.0", "method": "notifications/x"}
    return (
        await client.http.post(client.url, json=body, headers=client.headers(**headers))
    ).status_code


def test_a_signal_that_follows_the_address_at_once_ends_it_in_order(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        front.process.send_signal(signal.SIGTERM)
        assert front.process.wait(WAIT_S) == 0


async def test_a_front_whose_stderr_nobody_reads_any_more_goes_on(tmp_path: Path) -> None:
    write_two_tokens(tmp_path)
    with running_front(tmp_path, python=front_command(sweep_s=0.05)) as front:
        async with session(front) as client:
            assert front.process.stderr is not None
            front.process.stderr.close()
            front.process.stderr = None
            write_tokens(tmp_path, f"one {'1' * 32}", f"two {'2' * 32}", "wrong")
            [process] = [pid for pid in front.look() if "serve" in _words(pid)]
            await anyio.sleep(1)  # it has looked many times, and had something to say
            write_tokens(tmp_path, f"one {'1' * 32}")
            with anyio.fail_after(WAIT_S):
                while (await http_status(client, authorization=f"Bearer {'2' * 32}")) != 401:
                    await anyio.sleep(0.05)
            assert (await http_status(client)) == 202
            assert alive(process)


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_a_front_that_cannot_say_where_it_is_serves_all_the_same(
    tmp_path: Path, stderr: str
) -> None:
    port = free_port()
    line = f"exec {shlex.join([*PROXY, 'serve', '--http', str(port)])} {stderr}"
    process = subprocess.Popen(["sh", "-c", line], env=surroundings(tmp_path), cwd=tmp_path)
    try:
        until(lambda: _answers(port), "the front")
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
        process.wait()


def _answers(port: int) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.get(f"http://127.0.0.1:{port}/health").status_code == 200
    return False


async def test_a_process_that_no_longer_reads_ends_its_session_alone(tmp_path: Path) -> None:
    with running_front(tmp_path, python=front_command(idle_s=2, sweep_s=0.1)) as front:
        async with session(front) as stuck:
            [process] = [pid for pid in front.look() if "serve" in _words(pid)]
            os.kill(process, signal.SIGSTOP)
            note = {"method": "notifications/x", "params": {"x": "y" * 3_900_000}}
            while (await stuck.tell(note)).status_code == 202:
                pass
            with anyio.fail_after(WAIT_S):
                while (await stuck.tell({"method": "notifications/x"})).status_code != 404:
                    await anyio.sleep(3)  # whoever asks keeps a session
            os.kill(process, signal.SIGCONT)
        async with session(front) as other:
            assert (await other.call("list_servers"))["content"]


@pytest.mark.slow  # it waits for what could still have ended by itself
async def test_a_process_that_is_stopped_does_not_outlive_a_front_that_is_killed(
    tmp_path: Path,
) -> None:
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with running_front(tmp_path, servers=servers) as front:
        async with session(front) as client:
            assert await client.execute("echo", message="warm")
            family = front.look()
            [process] = [pid for pid in family if "serve" in _words(pid)]
            os.kill(process, signal.SIGSTOP)
            front.process.kill()
            with anyio.fail_after(WAIT_S):
                while any(alive(pid) for pid in family):
                    await anyio.sleep(0.1)


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


async def test_garbage_is_refused_and_leaves_nothing_in_the_log(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        parts = urlsplit(front.url)
        upgrade = (
            b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket"
        )
        for garbage in (
            b"\x16\x03\x01\x02",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            upgrade + b"\r\n\r\n",
        ):
            async with await anyio.connect_tcp(str(parts.hostname), parts.port or 0) as stream:
                await stream.send(garbage)
                assert (await stream.receive()).startswith(b"HTTP/1.1 4")
        front.process.terminate()
        assert front.process.stderr is not None
        assert await anyio.to_thread.run_sync(front.process.stderr.read) == ""
        await anyio.to_thread.run_sync(front.process.wait)
