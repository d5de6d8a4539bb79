"""The HTTP front: sessions, streams that can be resumed, and who may use it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from tests.e2e.clients.raw import PROXY, WAIT_S, Message, entry, own_first, surroundings, until
from tests.e2e.front_harness import (
    LEGACY_VERSION,
    Event,
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
from tests.e2e.harness import alive
from tests.front_entry import front_command
from tests.peers import plain


@pytest.fixture
def plain_server(tmp_path: Path) -> dict[str, Message]:
    return {"plain": entry(plain(), tmp_path, "plain")}


@pytest.fixture
def front(tmp_path: Path, plain_server: dict[str, Message]) -> Iterator[RunningFront]:
    with running_front(tmp_path, servers=plain_server) as running:
        yield running


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFront]:
    """For what leaves no trace in it."""
    with running_front(tmp_path_factory.mktemp("shared")) as running:
        yield running


async def text(client: HttpClient, tool: str, **arguments: Any) -> str:
    return (await client.execute(tool, **arguments))["content"][0]["text"]


# Sessions


async def test_each_session_has_a_process_and_servers_of_its_own(front: RunningFront) -> None:
    async with session(front) as one, session(front) as other:
        assert one.session != other.session
        assert await text(one, "echo", message="one") == "one"
        assert await text(other, "echo", message="other") == "other"
        await one.call("set_timer", duration_ms=600_000, message="mine")
        listed = await other.call("list_timers")
        assert json.loads(listed["content"][0]["text"])["timers"] == []


async def test_a_session_starts_a_known_server_when_it_is_used(
    front: RunningFront, tmp_path: Path
) -> None:
    async with session(front) as client:
        for lister in ("tools", "resources", "resource_templates", "prompts"):
            await client.call(f"list_{lister}")

    def is_known() -> bool:
        files = list((tmp_path / "state" / "catalogue").glob("[!g]*.json"))
        return any(len(json.loads(file.read_bytes())["lists"]) == 4 for file in files)

    until(is_known, "the catalogue")
    async with session(front) as client:
        listed = json.loads((await client.call("list_servers"))["content"][0]["text"])
        assert [one["phase"] for one in listed["servers"]] == ["idle"]
        assert await text(client, "echo", message="hello") == "hello"


async def test_delete_ends_a_session_and_its_processes_and_no_others(front: RunningFront) -> None:
    async with session(front) as other:
        await text(other, "echo", message="warm")
        others = front.look()
        async with session(front) as client:
            await text(client, "echo", message="warm")
            family = front.look() - others
            response = await client.http.delete(client.url, headers=client.headers())
            assert response.status_code == 200
            gone = await client.tell({"method": "notifications/roots/list_changed"})
            assert gone.status_code == 404
            until(lambda: not any(alive(pid) for pid in family), "the end of the session")
        assert all(alive(pid) for pid in others)


async def test_a_token_that_takes_all_sessions_leaves_one_for_each_other_token(
    tmp_path: Path,
) -> None:
    write_two_tokens(tmp_path)
    begin = {"protocolVersion": LEGACY_VERSION, "capabilities": {}}
    begin |= {"clientInfo": {"name": "x", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": begin}
    with running_front(tmp_path, "--max-sessions", "2") as front:
        async with http_client(front) as client:

            async def begun(token: str) -> httpx2.Response:
                headers = client.headers(authorization=f"Bearer {token * 32}")
                return await client.http.post(front.url, json=body, headers=headers)

            assert [(await begun("1")).status_code for _ in range(3)] == [200, 200, 503]
            mine = await begun("2")
            assert (mine.status_code, (await begun("2")).status_code) == (200, 503)
            front.look()
            own = {"mcp-session-id": mine.headers["mcp-session-id"]}
            headers = client.headers(authorization=f"Bearer {'2' * 32}") | own
            assert (await client.http.delete(front.url, headers=headers)).status_code == 200
            with anyio.fail_after(30):
                while (await begun("2")).status_code != 200:
                    await anyio.sleep(0.05)
            assert (await begun("1")).status_code == 503


async def test_a_token_is_added_and_revoked_while_others_go_on(tmp_path: Path) -> None:
    write_two_tokens(tmp_path)
    with running_front(tmp_path, python=front_command(sweep_s=0.05)) as front:
        async with session(front) as client:

            async def status(token: str) -> int:
                headers = client.headers(authorization=f"Bearer {token * 32}")
                body = {"jsonrpc": "2.0", "method": "notifications/x"}
                return (await client.http.post(front.url, json=body, headers=headers)).status_code

            async def until_it_is(token: str, expected: int) -> None:
                with anyio.fail_after(WAIT_S):
                    while await status(token) != expected:
                        await anyio.sleep(0.01)

            assert (await status("1"), await status("2"), await status("3")) == (202, 404, 401)
            write_tokens(tmp_path, f"one {'1' * 32}", f"three {'3' * 32}")
            await until_it_is("3", 404)
            assert (await status("1"), await status("2")) == (202, 401)
            write_tokens(tmp_path, "one")
            assert front.process.stderr is not None
            assert "the tokens stay as they were" in front.process.stderr.readline()
            assert (await status("1"), await status("3")) == (202, 404)
            async with client.get() as unasked:
                write_tokens(tmp_path, f"one {'4' * 32}", f"three {'3' * 32}")
                assert [event async for event in events_of(unasked)] == []
            await until_it_is("1", 401)
            await until_it_is("4", 404)
            (tmp_path / "state" / "http-tokens").unlink()
            await until_it_is("4", 401)
            assert "nobody can come in" in front.process.stderr.readline()


async def test_a_session_belongs_to_its_token_and_its_path(tmp_path: Path) -> None:
    write_two_tokens(tmp_path)
    with running_front(tmp_path) as front:
        async with session(front) as client:
            for url, token, status in (
                (front.url, "2" * 32, 404),
                (f"{front.url}/other", "1" * 32, 404),
                (front.url, "3" * 32, 401),
                (front.url, "1" * 32, 202),
            ):
                headers = client.headers(authorization=f"Bearer {token}")
                body = {"jsonrpc": "2.0", "method": "notifications/x"}
                response = await client.http.post(url, json=body, headers=headers)
                assert response.status_code == status


async def test_a_session_whose_process_died_is_over_and_the_others_go_on(
    front: RunningFront,
) -> None:
    async with session(front) as one, session(front) as other:
        await text(other, "echo", message="warm")
        mine = front.look()
        async with one.post(executing("slow", seconds=300)) as response:
            stream = events_of(response)
            assert (await anext(stream)).message is None
            [process] = [pid for pid in mine if _session_of(pid) == (one.session or "")[:8]]
            os.kill(process, signal.SIGKILL)
            last = [event async for event in stream][-1].message
        assert last is not None
        assert last["error"]["message"] == "The session has ended. Begin a new one."
        assert (await one.tell({"method": "notifications/x"})).status_code == 404
        assert await text(other, "echo", message="still") == "still"
        one.session = None
        assert (await one.initialize()).status_code == 200


def _session_of(pid: int) -> str | None:
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    cmdline = Path(f"/proc/{pid}/cmdline").read_bytes()
    if b"serve" not in cmdline:
        return None
    found = [value for value in environ if value.startswith(b"EMCEEPEE_HTTP_SESSION=")]
    return found[0].partition(b"=")[2].decode() if found else None


async def test_no_more_sessions_than_allowed_and_the_rest_are_told_to_come_later(
    tmp_path: Path,
) -> None:
    with running_front(tmp_path, "--max-sessions", "2") as front:
        async with session(front) as one, session(front), http_client(front) as third:
            refused = await third.initialize()
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            await one.http.delete(one.url, headers=one.headers())
            with anyio.fail_after(30):
                while (await third.initialize()).status_code != 200:
                    await anyio.sleep(0.05)


async def test_nothing_is_left_when_the_front_is_killed(
    tmp_path: Path, plain_server: dict[str, Message]
) -> None:
    with running_front(tmp_path, servers=plain_server) as front:
        async with session(front) as client:
            await text(client, "echo", message="warm")
            family = front.look()
            front.process.kill()
            until(lambda: not any(alive(pid) for pid in family), "the end of all")
    [journal] = (tmp_path / "journal").glob("emceepee-*.jsonl")
    assert "registry_shutdown_complete" in journal.read_text(), "the session ended in order"


# Streams


async def test_a_call_goes_on_while_its_client_is_away_and_nothing_is_missed(
    front: RunningFront,
) -> None:
    async with session(front) as client:
        await text(client, "echo", message="warm")
        got: list[Event] = []
        async with client.post(executing("progress", token="t", steps=40, interval=0.02)) as first:
            async for event in events_of(first):
                got.append(event)
                if len(got) == 5:
                    break
        async with client.get(got[-1].id) as resumed:
            got += [event async for event in events_of(resumed)]
        messages = [event.message for event in got if event.message is not None]
        steps = [m["params"]["progress"] for m in messages if "method" in m]
        assert steps == list(range(1, 41))
        assert messages[-1]["result"]["content"][0]["text"] == "40 steps"
        told = [event.id for event in got if event.message is not None]
        assert len(set(told)) == len(told)


async def test_a_resumed_stream_brings_nothing_of_another(front: RunningFront) -> None:
    async with session(front) as client:
        async with client.post(executing("echo", message="one")) as first:
            one = [event async for event in events_of(first)]
        await text(client, "echo", message="two")
        async with client.get(one[0].id) as resumed:
            again = [event async for event in events_of(resumed)]
        assert again == [Event(one[0].id, None), *one[1:]]


async def test_ids_of_another_session_lead_nowhere(front: RunningFront) -> None:
    async with session(front) as one, session(front) as other:
        for _ in range(20):
            async with one.post(executing("echo", message="hello")) as response:
                told = [event async for event in events_of(response)]
        async with other.get(told[-1].id) as resumed:
            assert resumed.status_code == 400
        for wrong in (
            f"{one.session}x",
            str(one.session).upper(),
            f"{one.session},{other.session}",
        ):
            headers = other.headers(mcp_session_id=wrong)
            assert (await other.http.delete(other.url, headers=headers)).status_code == 404
        assert await text(one, "echo", message="still") == "still"


async def test_an_event_id_that_is_not_known_is_a_bad_request_and_ends_no_session(
    front: RunningFront,
) -> None:
    async with session(front) as client:
        async with client.get("no_such_id") as response:
            assert response.status_code == 400
        assert await text(client, "echo", message="still") == "still"


async def test_a_second_stream_is_refused_unless_it_resumes_the_first(front: RunningFront) -> None:
    async with session(front) as client:
        async with client.get() as first:
            assert first.status_code == 200
            async with client.get() as second:
                assert second.status_code == 409
        with anyio.fail_after(30):
            while True:
                async with client.get() as third:
                    if third.status_code == 200:
                        break
                await anyio.sleep(0.02)


async def test_a_cancelled_call_ends_its_stream(front: RunningFront) -> None:
    async with session(front) as client:
        async with client.post(executing("slow", seconds=300)) as response:
            stream = events_of(response)
            await anext(stream)
            note = {"requestId": client.last_id, "reason": "enough"}
            await client.tell({"method": "notifications/cancelled", "params": note})
            last = [event async for event in stream][-1].message
        assert last is not None
        assert last["error"]["code"] == -32800


async def test_a_question_comes_on_the_stream_of_its_call(front: RunningFront) -> None:
    answer = {"action": "accept", "content": {"name": "Ada", "age": 36}}
    async with http_client(front) as client:
        await client.initialize(capabilities={"elicitation": {"form": {}}})
        await text(client, "echo", message="warm")
        asking = calling("execute_tool", server="plain", tool="ask", timeout_ms=3_000)
        async with client.post(asking) as response:
            messages = [event.message async for event in events_of(response)]
        _, question, promotion = messages
        assert question is not None
        assert promotion is not None
        assert question["method"] == "elicitation/create"
        assert "_meta" not in question["params"]
        blocks = [block["text"] for block in promotion["result"]["content"]]
        task = next(json.loads(text)["proxy_task"] for text in blocks if "proxy_task" in text)
        await anyio.sleep(1)  # a person does not answer at once
        assert (await client.tell({"id": question["id"], "result": answer})).status_code == 202
        result = await client.call("get_task_result", task_id=task["task_id"])
        assert json.loads(own_first(result)[0]["text"]) == answer
        front.look()


# The modern era


async def test_modern_clients_with_the_same_ids_get_their_own_answers(front: RunningFront) -> None:
    async with http_client(front) as client:
        results: dict[str, object] = {}

        async def one(word: str) -> None:
            arguments = {"server": "plain", "tool": "echo", "args": {"message": word}}
            body = modern_body(7, "tools/call", name="execute_tool", arguments=arguments)
            headers = modern_headers(front, body)
            response = await client.http.post(front.url, json=body, headers=headers)
            assert response.status_code == 200, response.text
            results[word] = response.json()

        async with anyio.create_task_group() as tasks:
            for word in ("one", "two", "three"):
                tasks.start_soon(one, word)
        for word, result in results.items():
            assert isinstance(result, dict)
            assert result["id"] == 7
            assert result["result"]["content"][0]["text"] == word
        front.look()


async def test_a_modern_client_that_leaves_takes_its_call_back(front: RunningFront) -> None:
    received = front.tmp_path / "received-plain.jsonl"
    arguments = {"server": "plain", "tool": "slow", "args": {"seconds": 300}}
    body = modern_body(
        1, "tools/call", name="execute_tool", arguments=arguments, _meta={"progressToken": "p"}
    )
    async with http_client(front) as client:
        with anyio.move_on_after(60) as scope:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    headers = modern_headers(front, body)
                    await client.http.post(front.url, json=body, headers=headers)

                tasks.start_soon(call)
                while not received.exists() or '"tools/call"' not in received.read_text():
                    await anyio.sleep(0.02)
                front.look()
                tasks.cancel_scope.cancel()
        assert not scope.cancelled_caught
        until(lambda: '"cancelled"' in received.read_text(), "the server to hear of it")


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"mcp-method": "tools/list"}, 400, -32020),
        ({"mcp-name": "other"}, 400, -32020),
        ({"mcp-protocol-version": "2099-01-01"}, 400, -32020),
    ],
)
async def test_modern_headers_have_to_say_what_the_body_says(
    shared: RunningFront, change: dict[str, str], status: int, code: int
) -> None:
    async with http_client(shared) as client:
        body = modern_body(1, "tools/call", name="list_servers", arguments={})
        headers = modern_headers(shared, body) | change
        response = await client.http.post(shared.url, json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)


async def test_a_modern_initialize_is_not_found(shared: RunningFront) -> None:
    async with http_client(shared) as client:
        body = modern_body(1, "initialize")
        headers = modern_headers(shared, body)
        response = await client.http.post(shared.url, json=body, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (404, -32601)


# Who may use it


async def test_only_who_holds_the_token_comes_in(shared: RunningFront) -> None:
    async with http_client(shared) as client:
        for given in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": f"Basic {shared.token}"},
        ):
            for path in ("/mcp", "/metrics", "/nothing"):
                response = await client.http.post(shared.base + path, json={}, headers=given)
                assert response.status_code == 401
                assert response.headers["www-authenticate"].startswith("Bearer")
        for host in ("localhost", "10.0.0.5:8080"):  # a probe knows an address, and no name
            got = await client.http.get(f"{shared.base}/health", headers={"host": host})
            assert got.json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("host", "evil.example", 421),
        ("host", "127.0.0.1.evil.example:80", 421),
        ("origin", "http://evil.example", 403),
        ("origin", "null", 403),
        ("origin", "http://localhost.evil.example", 403),
    ],
)
async def test_a_page_of_somebody_else_is_turned_away(
    shared: RunningFront, name: str, value: str, status: int
) -> None:
    async with http_client(shared) as client:
        headers = client.headers(**{name: value})
        response = await client.http.post(shared.url, json={}, headers=headers)
        assert response.status_code == status
        assert "access-control-allow-origin" not in response.headers


async def test_a_named_origin_may_read_the_answers_and_no_other(tmp_path: Path) -> None:
    with running_front(tmp_path, "--allow-origin", "https://app.example") as front:
        async with http_client(front) as client:
            asks = {"origin": "https://app.example", "access-control-request-method": "POST"}
            response = await client.http.options(front.url, headers=asks)
            assert response.status_code == 204
            assert response.headers["access-control-allow-origin"] == "https://app.example"
            assert "mcp-session-id" in response.headers["access-control-allow-headers"]
            asks["origin"] = "https://other.example"
            assert (await client.http.options(front.url, headers=asks)).status_code == 403


async def test_the_token_is_in_a_private_file_and_nowhere_else(front: RunningFront) -> None:
    tokens = front.tmp_path / "state" / "http-tokens"
    assert tokens.stat().st_mode & 0o777 == 0o600
    assert front.token is not None
    async with session(front) as client:
        await text(client, "echo", message="warm")
        for pid in front.look() | {front.process.pid}:
            for name in ("cmdline", "environ"):
                assert front.token.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
    journal = front.tmp_path / "journal"
    for file in journal.rglob("*"):
        assert not file.is_file() or front.token.encode() not in file.read_bytes()


def _command() -> Message:
    command = plain()
    return {"command": command[0], "args": list(command[1:])}


@pytest.mark.parametrize(
    "target",
    [
        _command(),
        {"url": "http://127.0.0.1:9/mcp"},
        {"url": "https://[::1]:9/mcp"},
        {"url": "http://192.168.0.1:9/mcp"},
        {"url": "http://mcp.example.invalid/mcp"},
    ],
    ids=lambda target: target.get("url", "command"),
)
@pytest.mark.parametrize("mode", ["auto", "ask"])
async def test_a_model_over_http_adds_nothing_that_nobody_approved_on_this_machine(
    tmp_path: Path, mode: str, target: Message
) -> None:
    """Whoever answers the questions of its client may be anywhere: they are not asked."""
    with running_front(tmp_path, settings={"policy": {"mode": mode}}) as front:
        async with http_client(front) as client:
            await client.initialize(capabilities={"elicitation": {}})
            async with client.post(calling("add_server", name="new", **target)) as response:
                said = [e.message async for e in events_of(response) if e.message is not None]
            front.look()
    waiting = next(tmp_path.rglob("pending.json"))
    assert json.loads(waiting.read_text())["waiting"][0]["token"] == "default"
    [answer] = said
    assert answer["result"]["isError"] is True
    told = answer["result"]["content"][0]["text"]
    assert "needs_approval" in told
    assert "emceepee approve" in told


# Bodies and connections


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"accept": "application/json"}, b"{}", 406),
        ({"content_type": "text/plain"}, b"{}", 415),
        ({}, b"{", 400),
        ({}, b"", 400),
        ({}, b"[]", 400),
        ({}, b'"x"', 400),
        ({}, b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400),
        ({}, b"x" * (5 << 20), 413),
    ],
)
async def test_what_is_no_message_is_refused(
    shared: RunningFront, headers: dict[str, str], body: bytes, status: int
) -> None:
    async with http_client(shared) as client:
        given = client.headers(**{"content_type": "application/json", **headers})
        response = await client.http.post(shared.url, content=body, headers=given)
        assert response.status_code == status


async def test_a_method_that_is_none_is_refused(shared: RunningFront) -> None:
    async with http_client(shared) as client:
        response = await client.http.put(shared.url, headers=client.headers())
        assert (response.status_code, response.headers["allow"]) == (405, "GET, POST, DELETE")
        response = await client.http.post(f"{shared.base}/other", headers=client.headers())
        assert response.status_code == 404


@pytest.mark.parametrize(
    ("name", "first", "second", "status"),
    [
        ("origin", "http://evil.example", "http://localhost", 403),
        ("authorization", "Bearer wrong", None, 401),
        ("mcp-session-id", "0" * 32, "1" * 32, 404),
        ("accept", "application/json", "text/event-stream", 404),
    ],
)
async def test_a_header_that_comes_twice_says_both(
    shared: RunningFront, name: str, first: str, second: str | None, status: int
) -> None:
    """Whatever stands before the front may have looked at the other one."""
    async with http_client(shared) as client:
        client.session = "2" * 32
        sent = {**client.headers(), "host": "localhost", "content-type": "application/json"}
        own = sent.pop(name, "")
        headers = [*sent.items(), (name, first), (name, second or own)]
        body = {"jsonrpc": "2.0", "method": "notifications/x"}
        response = await client.http.post(shared.url, json=body, headers=headers)
        assert response.status_code == status


async def test_of_two_hosts_none_is_taken(shared: RunningFront) -> None:
    parts = urlsplit(shared.url)
    token = f"Authorization: Bearer {shared.token}"
    async with await anyio.connect_tcp(str(parts.hostname), parts.port or 0) as stream:
        head = f"GET /metrics HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n{token}\r\n\r\n"
        await stream.send(head.encode())
        assert (await stream.receive()).startswith(b"HTTP/1.1 421 ")


async def test_the_host_of_an_absolute_target_counts(shared: RunningFront) -> None:
    parts = urlsplit(shared.url)
    token = f"Authorization: Bearer {shared.token}"
    for target, host, status in (
        ("http://evil.example/metrics", "localhost", b"421"),
        ("http://localhost@evil.example/metrics", "localhost", b"421"),
        ("http://localhost/metrics", "evil.example", b"200"),
    ):
        async with await anyio.connect_tcp(str(parts.hostname), parts.port or 0) as stream:
            head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n{token}\r\n\r\n"
            await stream.send(head.encode())
            assert (await stream.receive()).split(b" ")[1] == status


async def test_more_headers_than_anybody_needs_are_refused(shared: RunningFront) -> None:
    async with http_client(shared) as client:
        for count, status in ((100, 200), (200, 431), (1_000, 400)):
            headers = [("x", "y")] * count
            response = await client.http.get(f"{shared.base}/health", headers=headers)
            assert response.status_code == status


async def test_metrics_count_without_telling_what_was_said(front: RunningFront) -> None:
    async with session(front) as client:
        await text(client, "echo", message="do not tell")
        response = await client.http.get(f"{front.base}/metrics", headers=front.authorization)
        assert "emceepee_sessions 1\n" in response.text
        assert "emceepee_sessions_begun_total 1\n" in response.text
        assert "do not tell" not in response.text


@pytest.mark.parametrize(
    ("token", "code", "words"),
    [
        ("right", 0, "All is well."),
        ("wrong", 3, "Credentials refused: front."),
        (None, 0, "All is well."),
    ],
)
def test_doctor_tries_a_running_front_as_a_client(
    shared: RunningFront, token: str | None, code: int, words: str
) -> None:
    env = {**surroundings(shared.tmp_path)}
    if token is not None:
        env["EMCEEPEE_HTTP_TOKEN"] = str(shared.token) if token == "right" else "wrong"
    done = subprocess.run(
        [*PROXY, "doctor", "--http", shared.url],
        capture_output=True,
        text=True,
        env=env,
        timeout=WAIT_S,
        check=False,
    )
    assert (done.returncode, words in done.stdout) == (code, True), done.stdout + done.stderr
    assert ("EMCEEPEE_HTTP_TOKEN" in done.stdout) == (token == "wrong")
    assert "config path" not in done.stdout
    assert str(shared.token) not in done.stdout + done.stderr
    shared.look()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--http", "0.0.0.0:0"], "would cross the network unprotected"),
        (["--http", "0.0.0.0:0", "--no-token", "--insecure"], "would let everybody in"),
        (["--http", "127.0.0.1:0", "--tls-cert", "x.pem"], "belong together"),
        (["--http", "127.0.0.1:99999"], "no address to listen on"),
        (["--http", "127.0.0.1:0", "--server", "x"], "expected NAME=COMMAND"),
        (["--http", "127.0.0.1:0", "--max-sessions", "0"], "no number of sessions"),
    ],
)
def test_a_front_that_would_be_unsafe_or_wrong_does_not_start(
    tmp_path: Path, options: list[str], words: str
) -> None:
    done = subprocess.run(
        [*PROXY, "serve", *options],
        capture_output=True,
        text=True,
        env=surroundings(tmp_path),
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode != 0
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
