"""The page of requests at the HTTP front: for holders of a token, each their own sessions."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from tests.e2e.chromium import chromium
from tests.e2e.clients.raw import WAIT_S, entry, until
from tests.e2e.front_harness import (
    RunningFront,
    http_client,
    running_front,
    session,
    write_tokens,
)
from tests.front_entry import front_command
from tests.peers import plain
from tests.trace_records import START_MS, journal_line, request, write_journal, write_requests

ONE, TWO = "1" * 32, "2" * 32


def password(token: str, user: str = "") -> dict[str, str]:
    """What a browser sends once a person has typed it."""
    return {"authorization": f"Basic {base64.b64encode(f'{user}:{token}'.encode()).decode()}"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


class Told:
    """What a page is told, as it comes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.aiter_lines()

    async def next(self) -> tuple[str, Any]:
        fields: dict[str, str] = {}
        while line := await anext(self._lines):
            name, _, value = line.partition(": ")
            fields[name] = value
        return fields.get("event", ""), json.loads(fields.get("data", "null"))

    async def records(self) -> list[Any]:
        found: list[Any] = []
        with anyio.fail_after(WAIT_S):
            while not found:
                name, data = await self.next()
                found = data["records"] if name == "batch" else []
        return found

    async def until_caught_up(self) -> dict[str, list[Any]]:
        told: dict[str, list[Any]] = {"records": [], "marks": []}
        while (message := await self.next())[0] != "caught_up":
            for kind in told:
                told[kind] += message[1].get(kind, [])
        return told


@asynccontextmanager
async def following(front: RunningFront, token: str) -> AsyncGenerator[Told]:
    address = f"{front.base}/trace/events?after="
    async with (
        http_client(front) as client,
        client.http.stream("GET", address, headers=password(token)) as response,
    ):
        assert response.status_code == 200
        yield Told(response)


async def test_the_page_of_requests_is_for_whoever_holds_a_token(tmp_path: Path) -> None:
    with running_front(tmp_path, "--allow-origin", "http://app.example") as front:
        assert front.token is not None
        async with http_client(front) as client:
            get = client.http.get
            for wrong in (
                {},
                password("x" * 32),
                {"authorization": "Basic %%%"},
                password("", front.token),
            ):
                for path in ("/trace", "/trace/", "/trace/page.js", "/trace/events"):
                    got = await get(front.base + path, headers=wrong)
                    assert got.status_code == 401
                    assert got.headers["www-authenticate"].startswith("Basic ")
            for right in (password(front.token), password(front.token, "me"), bearer(front.token)):
                sent_on = await get(f"{front.base}/trace", headers=right)
                assert (sent_on.status_code, sent_on.headers["location"]) == (308, "/trace/")
                page = await get(f"{front.base}/trace/", headers=right)
                assert page.status_code == 200
                assert "<title>emceepee trace</title>" in page.text
                policy = page.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "script-src 'self'" in policy
                assert "unsafe" not in policy
                assert page.headers["cache-control"] == "no-store"
                assert page.headers["referrer-policy"] == "no-referrer"
                script = await get(f"{front.base}/trace/page.js", headers=right)
                assert script.headers["content-type"].startswith("text/javascript")
                for odd in ("nothing", "..%2fpage_http.py", "PAGE.JS", "page.js/"):
                    gone = await get(f"{front.base}/trace/{odd}", headers=right)
                    assert gone.status_code == 404
            posted = await client.http.post(f"{front.base}/trace/", headers=password(front.token))
            assert (posted.status_code, posted.headers["allow"]) == (405, "GET")
            spoken = await client.http.post(front.url, json={}, headers=password(front.token))
            assert spoken.status_code == 401  # a browser would send it for a page of anybody


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://app.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ],
    ids=str,
)
async def test_another_page_cannot_read_the_page_of_requests(
    allowing: RunningFront, headers: dict[str, str]
) -> None:
    assert allowing.token is not None
    async with http_client(allowing) as client:
        for name in ("", "page.js", "events"):
            sent = {**password(allowing.token), **headers}
            got = await client.http.get(f"{allowing.base}/trace/{name}", headers=sent)
            assert got.status_code == 403
            assert not [header for header in got.headers if header.startswith("access-control")]


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A front that a page of another origin may use, but for this."""
    with running_front(
        tmp_path_factory.mktemp("allowing"), "--allow-origin", "http://app.example"
    ) as front:
        yield front


async def test_where_no_token_is_asked_for_there_is_no_page(tmp_path: Path) -> None:
    with running_front(tmp_path, "--no-token") as front:
        async with http_client(front) as client:
            got = await client.http.get(f"{front.base}/trace/")
        assert got.status_code == 403
        assert "emceepee trace --web" in got.text


def echoes_in(journal: Path) -> int:
    return sum(file.read_text().count('"echo"') for file in journal.glob("requests-*"))


def connections_in(journal: Path) -> int:
    return sum(file.read_text().count('"server_connected"') for file in journal.glob("emceepee-*"))


async def test_each_token_sees_the_requests_of_its_own_sessions_alone(tmp_path: Path) -> None:
    write_tokens(tmp_path, f"one {ONE}", f"two {TWO}")
    journal = tmp_path / "journal"
    foreign = request(1, START_MS * 10, ("server", 5), server="git", server_tool="git_log")
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with running_front(tmp_path, servers=servers) as front:
        async with session(front) as mine, session(replace(front, token=TWO)) as theirs:
            await mine.execute("echo", message="mine")
            await theirs.execute("echo", message="theirs")
            await theirs.execute("echo", message="theirs")
            write_requests(journal, [foreign])
            note = {"source": "stderr", "text": "of nobody here"}
            write_journal(journal, [journal_line(START_MS * 10, "server_output", data=note)])

            until(lambda: echoes_in(journal) == 3, "the records")
            until(lambda: connections_in(journal) == 2, "the marks, which others write")
            async with following(front, ONE) as told:
                assert (await told.next())[0] == "hello"
                seen = await told.until_caught_up()
                (own,) = {record["session"] for record in seen["records"]}
                calls = [r for r in seen["records"] if r.get("server_tool") == "echo"]
                assert len(calls) == 1
                assert {mark["session"] for mark in seen["marks"]} == {own}
                assert "of nobody here" not in json.dumps(seen)
                await theirs.execute("echo", message="theirs again")
                await mine.execute("echo", message="mine again")
                assert {record["session"] for record in await told.records()} == {own}
            await theirs.http.delete(theirs.url, headers=theirs.headers())
        until(lambda: echoes_in(journal) == 5, "the records")
        async with following(front, TWO) as told:  # also when the session is over
            await told.next()
            seen = await told.until_caught_up()
            assert len([r for r in seen["records"] if r.get("server_tool") == "echo"]) == 3
            assert own not in json.dumps(seen)
        front.look()


async def test_a_page_ends_when_its_token_is_revoked(tmp_path: Path) -> None:
    write_tokens(tmp_path, f"one {ONE}", f"two {TWO}")
    with running_front(tmp_path, python=front_command(sweep_s=0.05)) as front:
        async with following(front, ONE) as told:
            assert (await told.next())[0] == "hello"
            write_tokens(tmp_path, f"two {TWO}")
            with anyio.fail_after(WAIT_S), suppress(StopAsyncIteration):
                while await told.next():
                    pass


async def test_the_next_holder_of_a_name_sees_nothing_of_the_one_before(tmp_path: Path) -> None:
    write_tokens(tmp_path, f"one {ONE}")
    with running_front(tmp_path, python=front_command(sweep_s=0.05)) as front:
        async with session(front) as mine:
            await mine.call("list_servers")
        front.look()
        async with following(front, ONE) as before:
            assert await before.records()
            write_tokens(tmp_path, f"one {TWO}")
            page = f"{front.base}/trace/"
            async with http_client(front) as client:
                with anyio.fail_after(WAIT_S):
                    while (await client.http.get(page, headers=password(TWO))).is_error:
                        await anyio.sleep(0.01)
            async with following(front, TWO) as told:
                assert (await told.next())[0] == "hello"
                assert (await told.until_caught_up())["records"] == []


async def test_a_token_follows_in_so_many_tabs_and_the_front_ends_all_the_same(
    tmp_path: Path,
) -> None:
    with running_front(tmp_path) as front:
        assert front.token is not None
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                told = following(front, front.token)
                await _entered(tasks, told)
            async with http_client(front) as client:
                address = f"{front.base}/trace/events"
                got = await client.http.get(address, headers=password(front.token))
            assert got.status_code == 429
            front.process.terminate()
            with anyio.fail_after(WAIT_S):
                assert await anyio.to_thread.run_sync(front.process.wait) == 0
            tasks.cancel_scope.cancel()


async def _entered(tasks: Any, told: Any) -> None:
    """Open a stream that stays until the tasks end."""
    ready = anyio.Event()

    async def hold() -> None:
        async with told as opened:
            await opened.next()
            ready.set()
            await anyio.sleep_forever()

    tasks.start_soon(hold)
    await ready.wait()


def test_a_browser_shows_the_page_once_the_token_is_given_as_a_password(tmp_path: Path) -> None:
    servers = {"plain": entry(plain(), tmp_path, "plain")}

    async def call_once(front: RunningFront) -> None:
        async with session(front) as client:
            await client.execute("echo", message="hello")

    with running_front(tmp_path, servers=servers) as front, chromium(tmp_path / "p") as browser:
        anyio.run(call_once, front)
        address = front.base.replace("http://", f"http://me:{front.token}@")
        browser.open(f"{address}/trace")
        browser.until("document.querySelector('.row.request')?.innerText.includes('echo')")
        assert browser.complaints == []
