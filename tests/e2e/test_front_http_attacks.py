"""What a client sends to harm the front, or the sessions of others; and what it must not cost."""

import json
import re
import shlex
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import TaskStatus

from tests.e2e.client import received_by_server, server
from tests.e2e.clients.raw import WAIT_S, Message, entry, until
from tests.e2e.front_harness import (
    ACCEPT,
    INITIALIZE,
    HttpClient,
    RunningFront,
    calling,
    events_of,
    executing,
    http_client,
    modern_body,
    modern_headers,
    running_front,
    session,
    write_tokens,
    write_two_tokens,
)
from tests.front_entry import front_command
from tests.peers import SERVERS, plain

SLOW = {"server": "plain", "tool": "slow", "args": {"seconds": 300}}
SESSIONS, CALLS = "emceepee_sessions", "emceepee_calls_in_flight"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningFront]:
    place = tmp_path_factory.mktemp("front")
    with running_front(place, servers={"plain": entry(plain(), place, "plain")}) as running:
        yield running


@contextmanager
def connected(front: RunningFront) -> Generator[socket.socket]:
    parts = urlsplit(front.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as made:
        yield made


def flood(made: socket.socket, piece: bytes, most: int) -> int:
    """How much of it was taken before the other side closed."""
    sent = 0
    with suppress(OSError):
        while sent < most:
            made.sendall(piece)
            sent += len(piece)
    return sent


def head(front: RunningFront, *lines: str) -> bytes:
    host = f"Host: {urlsplit(front.url).netloc}"
    kinds = (f"Accept: {ACCEPT}", "Content-Type: application/json")
    return "\r\n".join(["POST /mcp HTTP/1.1", host, *kinds, *lines, "\r\n"]).encode()


INITIALIZING = json.dumps(
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
).encode()
CHUNKED = "Transfer-Encoding: chunked"
WHOLE = b"%x\r\n%b\r\n0\r\n" % (len(INITIALIZING), INITIALIZING)


async def test_a_head_of_many_small_fields_is_cut_off(front: RunningFront) -> None:
    with connected(front) as made:
        made.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"ab:\r\n" * 300)  # and no end
        assert made.recv(12) == b"HTTP/1.1 400"


async def test_requests_without_end_that_wait_behind_another_are_cut_off(
    front: RunningFront,
) -> None:
    with connected(front) as made:
        one = f"GET /health HTTP/1.1\r\nHost: {urlsplit(front.url).netloc}\r\n\r\n".encode()
        assert flood(made, one * 5_000, 32 << 20) < 32 << 20


async def test_what_comes_behind_a_body_is_no_header(front: RunningFront) -> None:
    authorization = f"Authorization: Bearer {front.token}\r\n".encode()
    for before, behind, status in (
        ((CHUNKED,), authorization + b"\r\n", b"401"),
        ((CHUNKED, authorization.decode().strip()), b"Host: evil.example\r\n\r\n", b"200"),
    ):
        with connected(front) as made:
            made.sendall(head(front, *before) + WHOLE + behind)
            assert made.recv(1000).split(b" ")[1] == status
    front.look()


async def test_fields_without_end_behind_a_body_are_cut_off(front: RunningFront) -> None:
    for piece in (b"X-a: b\r\n" * 100, b"x" * 10_000):
        with connected(front) as made:
            made.sendall(head(front, CHUNKED, f"Authorization: Bearer {front.token}") + WHOLE)
            assert flood(made, piece, 32 << 20) < 32 << 20


async def test_a_crowd_that_asks_nothing_shuts_nobody_out(tmp_path: Path) -> None:
    with running_front(tmp_path, python=front_command(connections=20)) as front:
        async with session(front) as client:
            crowd = [connected(front) for _ in range(60)]
            for one in crowd:
                one.__enter__()
            assert (await client.call("list_servers"))["content"]
            async with http_client(front) as other:
                assert (await other.http.get(f"{front.base}/health")).status_code == 200
            for one in crowd:
                one.__exit__(None, None, None)


async def metric(client: HttpClient, name: str) -> int:
    got = await client.http.get(f"{client.front.base}/metrics", headers=client.headers())
    [line] = [line for line in got.text.splitlines() if line.startswith(f"{name} ")]
    return int(line.split()[1])


async def until_there_are(client: HttpClient, count: int, name: str = SESSIONS) -> None:
    with anyio.fail_after(WAIT_S):
        while await metric(client, name) != count:
            await anyio.sleep(0.05)


GATED = """
import sys
sys.executable = {python!r}
from emceepee_stdio.cli.serve_http import serve_http
sys.exit(serve_http(sys.argv[2:]))
"""


def gated_front(tmp_path: Path) -> tuple[list[str], Path]:
    """A front whose sessions answer nothing before there is a file; and that file."""
    gate, python = tmp_path / "gate", tmp_path / "python"
    waits = f"while [ ! -e {shlex.quote(str(gate))} ]; do sleep 0.01; done"
    goes = f'exec {shlex.quote(sys.executable)} "$@"'
    python.write_text(f'#!/bin/sh\ncase "$*" in *"emceepee_stdio serve"*) {waits};; esac\n{goes}\n')
    python.chmod(0o700)
    return [sys.executable, "-c", GATED.format(python=str(python))], gate


async def test_a_client_that_hangs_up_before_it_has_its_session_leaves_none(
    tmp_path: Path,
) -> None:
    command, gate = gated_front(tmp_path)
    with running_front(tmp_path, python=command) as front:
        async with http_client(front) as client:
            size = f"Content-Length: {len(INITIALIZING)}"
            with connected(front) as made:
                owner = f"Authorization: Bearer {front.token}"
                made.sendall(head(front, size, owner) + INITIALIZING)
                await until_there_are(client, 1)
            front.look()
            gate.touch()
            await until_there_are(client, 0)


async def test_a_session_whose_process_hangs_ends_when_its_client_hangs_up(tmp_path: Path) -> None:
    command, gate = gated_front(tmp_path)
    with running_front(tmp_path, python=command) as front:
        async with http_client(front) as client:
            with connected(front) as made:
                lines = (
                    f"Authorization: Bearer {front.token}",
                    f"Content-Length: {len(INITIALIZING)}",
                )
                made.sendall(head(front, *lines) + INITIALIZING)
                await until_there_are(client, 1, CALLS)
            await until_there_are(client, 0, CALLS)  # before its process has said anything
            front.look()
            gate.touch()
            await until_there_are(client, 0)


async def test_a_session_whose_client_never_comes_back_ends_soon(tmp_path: Path) -> None:
    with running_front(tmp_path, python=front_command(unused_s=0.5, sweep_s=0.1)) as front:
        async with session(front), http_client(front) as client:
            body = json.loads(INITIALIZING)
            begun = await client.http.post(front.url, json=body, headers=client.headers())
            assert begun.status_code == 200
            front.look()
            await until_there_are(client, 1)


async def test_a_call_that_is_one_too_many_is_not_made(tmp_path: Path) -> None:
    log = tmp_path / "received.jsonl"
    servers = {"plain": server(log=log)}
    with running_front(tmp_path, servers=servers, python=front_command(streams=2)) as front:
        async with session(front) as client, anyio.create_task_group() as tasks:

            async def wait() -> None:
                async with client.post(calling("execute_tool", **SLOW)) as response:
                    await response.aread()

            for _ in range(2):
                tasks.start_soon(wait)
            with anyio.fail_after(WAIT_S):
                while called(log).count("slow") < 2:
                    await anyio.sleep(0.01)
            async with client.post(executing("echo", message="x")) as refused:
                assert refused.status_code == 429
            tasks.cancel_scope.cancel()
        async with session(front) as client:  # whose turn comes after anything that was sent
            assert await client.execute("add", a=1, b=2)
        assert "echo" not in called(log)


def called(log: Path) -> list[str]:
    messages = [line["message"] for line in received_by_server(log)]
    return [m["params"]["name"] for m in messages if m.get("method") == "tools/call"]


async def answers(client: HttpClient, body: bytes) -> list[Message]:
    headers = {**client.headers(), "content-type": "application/json"}
    async with client.http.stream("POST", client.url, content=body, headers=headers) as response:
        return [e.message async for e in events_of(response) if e.message is not None]


async def test_a_call_that_is_taken_back_in_the_same_batch_ends(front: RunningFront) -> None:
    async with session(front) as client:
        call = {"jsonrpc": "2.0", "id": 7, **calling("execute_tool", **SLOW)}
        back = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        batch = json.dumps([call, {"jsonrpc": "2.0", **back}]).encode()
        [answer] = await answers(client, batch)
        assert (answer["id"], answer["error"]["code"]) == (7, -32800)


async def test_a_call_under_an_id_with_a_line_end_in_it_ends(front: RunningFront) -> None:
    async with session(front) as client:
        [answer] = await answers(client, b'{"jsonrpc":"2.0","id":"a\rb","method":"ping"}')
        assert answer["id"] == "a b"


@pytest.mark.parametrize("taken_back", ["1e999", "true", "null", "[]"])
async def test_what_is_no_id_takes_no_call_back(front: RunningFront, taken_back: str) -> None:
    async with session(front) as client:
        headers = {**client.headers(), "content-type": "application/json"}
        note = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}'
        body = note % taken_back.encode()
        told = await client.http.post(front.url, content=body, headers=headers)
        assert told.status_code == 202
        result = await client.execute("echo", message="served")
        assert result["content"][0]["text"] == "served"


async def test_a_path_has_one_spelling(front: RunningFront) -> None:
    async with http_client(front, "%2fother") as client:
        assert (await client.initialize()).status_code == 404


STRANGE = r"""
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("method") == "initialize":
        about = {"serverInfo": {"name": "strange", "version": "1"}, "capabilities": {"tools": {}}}
        result = json.dumps({"protocolVersion": "2025-11-25", **about})
    elif asked.get("method") == "tools/list":
        result = json.dumps({"tools": [{"name": "odd", "inputSchema": {"type": "object"}}]})
    elif asked.get("method") == "tools/call":
        result = '{"content":[{"type":"text",\r\r"text":"whole"}]}'
    else:
        continue
    answer = '{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (asked["id"], result)
    sys.stdout.buffer.write(answer.encode())
    sys.stdout.flush()
"""


async def test_a_server_that_writes_odd_white_space_breaks_no_event(tmp_path: Path) -> None:
    script = tmp_path / "strange.py"
    script.write_text(STRANGE)
    servers = {"strange": {"command": sys.executable, "args": [str(script)]}}
    with running_front(tmp_path, servers=servers) as front:
        async with session(front) as client:
            result = await client.execute("odd", server="strange")
            assert result["content"][0]["text"] == "whole"
            async with client.post(
                calling("execute_tool", server="strange", tool="odd", args={})
            ) as response:
                assert b"\r" not in await response.aread()


async def status_of(client: HttpClient, token: str, path: str = "/mcp") -> int:
    """Of an `initialize` with this token."""
    headers = client.headers(authorization=f"Bearer {token}", content_type="application/json")
    url = f"{client.front.base}{path}"
    return (await client.http.post(url, content=INITIALIZING, headers=headers)).status_code


async def test_a_token_that_is_revoked_while_its_request_arrives_is_worth_nothing(
    tmp_path: Path,
) -> None:
    write_two_tokens(tmp_path)
    body = modern_body(1, "tools/list")
    with running_front(tmp_path, python=front_command(sweep_s=0.05)) as front:
        modern = [f"{name}: {value}" for name, value in modern_headers(front, body).items()]
        for lines, sent in (
            ([f"Authorization: Bearer {'1' * 32}"], INITIALIZING),
            ([line for line in modern if "accept" not in line], json.dumps(body).encode()),
        ):
            with connected(front) as made:
                made.sendall(head(front, *lines, f"Content-Length: {len(sent)}") + sent[:-1])
                write_tokens(tmp_path, f"two {'2' * 32}")
                async with http_client(front) as client:
                    with anyio.fail_after(WAIT_S):
                        while await status_of(client, "1" * 32) != 401:
                            await anyio.sleep(0.02)
                    made.sendall(sent[-1:])
                    assert made.recv(12) == b"HTTP/1.1 401"
                    write_two_tokens(tmp_path)
                    with anyio.fail_after(WAIT_S):
                        while await status_of(client, "1" * 32, "/mcp/again") == 401:
                            await anyio.sleep(0.02)
        front.look()


async def test_one_token_leaves_places_for_others(tmp_path: Path) -> None:
    write_two_tokens(tmp_path)
    with running_front(tmp_path, python=front_command(exchanges=3)) as front:
        async with http_client(front) as client, anyio.create_task_group() as tasks:

            async def listen(number: int, *, task_status: TaskStatus[None]) -> None:
                body = modern_body(number, "subscriptions/listen", notifications={})
                headers = modern_headers(front, body)
                async with client.http.stream("POST", front.url, json=body, headers=headers) as got:
                    assert got.status_code == 200
                    task_status.started()
                    await anyio.sleep_forever()

            for number in range(3):
                await tasks.start(listen, number)
            assert await status_of(client, "1" * 32) == 429
            assert await status_of(client, "2" * 32) == 200
            front.look()
            tasks.cancel_scope.cancel()


def sessionless(number: int, padding: int) -> bytes:
    """A request that is refused with 400 once it has arrived."""
    asked = {"jsonrpc": "2.0", "id": number, "method": "ping", "params": {"x": "y" * padding}}
    return json.dumps(asked).encode()


async def test_the_bodies_that_arrive_of_one_token_are_bounded(tmp_path: Path) -> None:
    write_two_tokens(tmp_path)
    most = 1 << 20
    with running_front(tmp_path, python=front_command(held_bytes=most)) as front:
        async with http_client(front) as client:

            async def answer(token: str, padding: int = 0) -> httpx2.Response:
                headers = client.headers(
                    authorization=f"Bearer {token * 32}", content_type="application/json"
                )
                body = sessionless(1, padding)
                return await client.http.post(front.url, content=body, headers=headers)

            for _ in range(4):  # one after the other
                assert (await answer("1", most // 2)).status_code == 400
            with connected(front) as made:
                lines = (f"Authorization: Bearer {'1' * 32}", f"Content-Length: {most + 1}")
                made.sendall(head(front, *lines) + b" " * most)
                with anyio.fail_after(WAIT_S):
                    while (refused := await answer("1")).status_code != 503:
                        await anyio.sleep(0.02)
                assert "retry-after" in refused.headers
                assert (await answer("2", most // 2)).status_code == 400
            with anyio.fail_after(WAIT_S):
                while (await answer("1")).status_code != 400:
                    await anyio.sleep(0.02)


async def test_the_answers_that_a_modern_client_does_not_read_are_bounded(tmp_path: Path) -> None:
    servers = {"large": entry([sys.executable, str(SERVERS / "large.py")], tmp_path, "large")}
    settings = {"limits": {"result_bytes": 0}}
    most = 8 << 20  # an answer is longer than what the sockets of both sides hold
    python = front_command(held_bytes=most)
    say = {"server": "large", "tool": "tell", "args": {"chars": 2 << 20}}
    body = modern_body(1, "tools/call", name="execute_tool", arguments=say)
    with running_front(tmp_path, servers=servers, settings=settings, python=python) as front:
        async with http_client(front) as client:

            async def answer() -> httpx2.Response:
                return await client.http.post(
                    front.url, json=body, headers=modern_headers(front, body)
                )

            whole = await answer()
            assert whole.status_code == 200
            assert len(whole.content) < most < 2 * len(whole.content)
            given = [f"{name}: {value}" for name, value in modern_headers(front, body).items()]
            lines = [line for line in given if not line.startswith("accept")]
            sent = json.dumps(body).encode()
            with connected(front) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                made.sendall(head(front, *lines, f"Content-Length: {len(sent)}") + sent)
                assert made.recv(15) == b"HTTP/1.1 200 OK"  # and no more
                refused = await answer()
                assert (refused.status_code, refused.json()["id"]) == (503, 1)
                assert "retry-after" in refused.headers
                front.look()
            with anyio.fail_after(WAIT_S):
                while (await answer()).status_code != 200:
                    await anyio.sleep(0.02)


async def test_a_body_that_is_nested_too_deeply_is_refused_in_either_era(
    front: RunningFront,
) -> None:
    async with session(front) as client:
        for levels in range(970, 1_000):
            deep = "[" * levels + "]" * levels
            legacy = f'{{"jsonrpc":"2.0","id":"d{levels}","method":"ping","params":{{"a":{deep}}}}}'
            headers = client.headers(content_type="application/json")
            got = await client.http.post(front.url, content=legacy, headers=headers)
            assert got.status_code in (200, 400), levels
            body = modern_body(1, "tools/list", a="DEEP")
            modern = json.dumps(body).replace('"DEEP"', deep)
            headers = modern_headers(front, body) | {"content-type": "application/json"}
            got = await client.http.post(front.url, content=modern, headers=headers)
            assert got.status_code in (200, 400), levels


async def test_a_session_begins_alone(front: RunningFront) -> None:
    async with http_client(front) as client:
        batch = f'[{INITIALIZING.decode()},{{"jsonrpc":"2.0","id":2,"method":"tools/list"}}]'
        headers = client.headers(content_type="application/json")
        got = await client.http.post(front.url, content=batch, headers=headers)
        assert (got.status_code, "mcp-session-id" in got.headers) == (400, False)


def open_files(front: RunningFront) -> int:
    return len(list(Path(f"/proc/{front.process.pid}/fd").iterdir()))


async def test_a_connection_that_does_not_take_its_answer_is_cut_off(tmp_path: Path) -> None:
    servers = {"large": entry([sys.executable, str(SERVERS / "large.py")], tmp_path, "large")}
    quick = front_command(stuck_s=1, sweep_s=0.1)
    settings = {"limits": {"result_bytes": 0}}
    with running_front(tmp_path, servers=servers, settings=settings, python=quick) as front:
        async with session(front) as client:
            say = {"server": "large", "tool": "tell", "args": {"chars": 2_000_000}}
            small = {**say, "args": {"chars": 10}}
            await client.call("execute_tool", **small)
            before = open_files(front)
            asked = {"jsonrpc": "2.0", "id": "mute", **calling("execute_tool", **say)}
            body = json.dumps(asked).encode()
            lines = [f"{name}: {value}" for name, value in client.headers().items()]
            with connected(front) as made:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
                made.sendall(head(front, *lines[1:], f"Content-Length: {len(body)}") + body)
                begun = b""
                while not (first := re.search(rb"id: (\d+)\n", begun)):
                    begun += made.recv(100)
                until(lambda: open_files(front) <= before, "its end")
            async with client.get(first[1].decode()) as again:  # its answer is still there
                events = [event async for event in events_of(again)]
            answer = events[-1].message
            assert answer is not None
            assert len(answer["result"]["content"][0]["text"]) == 2_000_000


async def test_a_connection_on_which_much_is_asked_is_not_quiet(tmp_path: Path) -> None:
    quick = front_command(quiet_s=2.5, sweep_s=0.1)
    with running_front(tmp_path, python=quick) as front, connected(front) as made:
        for _ in range(30):
            made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            got = b""
            while not got.endswith(b'"ok"}'):
                more = made.recv(1000)
                assert more, got
                got += more
            await anyio.sleep(0.1)  # in all longer than a connection may be quiet
