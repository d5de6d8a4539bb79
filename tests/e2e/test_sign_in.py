"""Signing in behind the proxy: nothing opens by itself, who waits goes on, tokens stay where they
belong. The person is a plain HTTP client that opens the address that it was told."""

import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import anyio
import pytest

from tests.e2e.client import Answer, Client, Setting, proxy, until
from tests.e2e.sign_in_harness import Place, protected, visit

both_eras_of_servers = pytest.mark.parametrize("era", ["legacy", "modern"])


def behind(home: Path, place: Place, **more: Any) -> Setting:
    return Setting(home=home, servers={"s": place.entry(**more)})


class SharedSetting(Setting):
    """A home of its own, and tokens that all homes share."""

    def environ(self) -> dict[str, str]:
        return super().environ() | {"EMCEEPEE_STATE_DIR": str(self.home.parent / "state")}


def address(text: str) -> str:
    """The one that the person is asked to open."""
    return text.partition("open ")[2].split(" ")[0]


async def signed_in_call(client: Client, message: str) -> Answer:
    """A call that waits for the person, who signs in; its result."""
    answer = await client.execute("echo", args={"message": message})
    page = await visit(address(answer.text))
    assert "Signed in to s" in page, page
    return await client.call("get_task_result", task_id=answer.task, timeout_ms=20_000)


async def until_phase(client: Client, phase: str) -> dict[str, Any]:
    with anyio.fail_after(20):
        while True:
            (found,) = (await client.call("list_servers")).json["servers"]
            if found["phase"] == phase:
                return found
            await client.call("await_activity", timeout_ms=200)


@both_eras_of_servers
async def test_a_call_waits_for_the_person_and_goes_on_by_itself(tmp_path: Path, era: str) -> None:
    async with protected(era=era) as place:
        setting = behind(tmp_path / "home", place)
        async with proxy(setting) as client:
            found = await until_phase(client, "needs_sign_in")
            assert found["sign_in"] == {"command": "emceepee login s"}
            assert not place.issuer.http.received, "nothing is begun that nobody asked for"
            result = await signed_in_call(client, "hello")
            assert result.text == "hello"
            await client.until_event("signed_in")
            kinds = [event["type"] for event in client.events]
            assert kinds.index("sign_in_required") < kinds.index("signed_in")
        assert len(place.issuer.visits) == 1
        assert place.found_in(setting, str(client.events), client.stderr.decode()) == []


async def test_a_server_that_is_added_says_where_to_sign_in_and_connects_afterwards(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(Setting(home=tmp_path / "home")) as client:
        answer = await client.call("add_server", name="s", url=place.server.url)
        assert f"`emceepee login {place.server.url}`" in answer.text
        assert answer.json["phase"] == "needs_sign_in"
        assert answer.json["sign_in"]["url"] == address(answer.text)
        assert "Signed in to s" in await visit(address(answer.text))
        await client.connected()
        assert (await client.execute("echo", args={"message": "hi"})).text == "hi"


async def test_a_token_that_ended_is_refreshed_without_anybody_noticing(tmp_path: Path) -> None:
    async with protected() as place:
        setting = behind(tmp_path / "home", place)
        async with proxy(setting) as client:
            await signed_in_call(client, "one")
            place.issuer.expire()
            calls = [await client.begin_execute("echo", args={"message": str(n)}) for n in range(5)]
            assert [(await call.answer()).text for call in calls] == list("01234")
        async with proxy(setting) as client:  # the next start needs nobody either
            place.issuer.expire()
            assert (await client.execute("echo", args={"message": "two"})).text == "two"
        issuer = place.issuer
        assert (len(issuer.visits), issuer.refreshes, issuer.replays) == (1, 2, 0)
        assert place.found_in(setting) == []


async def test_a_refresh_that_fails_in_passing_costs_no_sign_in(tmp_path: Path) -> None:
    async with protected() as place:
        setting = behind(tmp_path / "home", place)
        async with proxy(setting) as client:
            await signed_in_call(client, "one")
            place.issuer.expire()
            place.issuer.answers_with = [(503, {})]
            answer = await client.execute("echo", args={"message": "two"})
            assert answer.is_error
            assert "The sign-in is kept" in answer.text
        async with proxy(setting) as client:
            assert (await client.execute("echo", args={"message": "three"})).text == "three"
        assert len(place.issuer.visits) == 1


async def test_a_token_that_ends_before_it_is_used_costs_no_sign_in(tmp_path: Path) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        await signed_in_call(client, "one")
        place.issuer.expire()
        place.issuer.revoked_at_once = 1
        assert (await client.execute("echo", args={"message": "two"})).text == "two"
        assert (len(place.issuer.visits), place.issuer.refreshes) == (1, 2)


async def test_a_server_that_refuses_every_new_token_costs_two_refreshes_and_no_more(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        await signed_in_call(client, "one")
        place.issuer.expire()
        place.issuer.revoked_at_once = 1000
        answer = await client.execute("echo", args={"message": "two"})
        assert "wants a person to sign in" in answer.text
        assert place.issuer.refreshes == 2


async def test_a_refused_refresh_asks_the_person_again_and_the_call_goes_on(tmp_path: Path) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        await signed_in_call(client, "one")
        place.issuer.end()
        assert (await signed_in_call(client, "two")).text == "two"
        assert len(place.issuer.visits) == 2
        assert len(place.issuer.registrations) == 1


@pytest.mark.real  # one of them finds what another process has begun
async def test_five_proxies_lead_to_one_visit_and_all_connect(tmp_path: Path) -> None:
    async with protected() as place, AsyncExitStack() as stack:
        servers = {"s": place.entry()}
        settings = [SharedSetting(home=tmp_path / str(n), servers=servers) for n in range(5)]
        clients = [await stack.enter_async_context(proxy(setting)) for setting in settings]
        calls = [await c.begin_execute("echo", args={"message": "hi"}) for c in clients]
        answers = [await call.answer() for call in calls]
        addresses = {address(answer.text) for answer in answers}
        assert len(addresses) == 1
        assert "Signed in" in await visit(addresses.pop())
        for client, answer in zip(clients, answers, strict=True):
            result = await client.call("get_task_result", task_id=answer.task, timeout_ms=20_000)
            assert result.text == "hi"
        assert len(place.issuer.visits) == len(place.issuer.registrations) == 1


async def test_more_rights_are_asked_for_with_those_there_were(tmp_path: Path) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        place.server.scope = "read"
        await signed_in_call(client, "one")
        place.server.needs = {"tools/call": "write"}
        answer = await client.execute("echo", args={"message": "two"})
        assert "[needs_sign_in]" in answer.text
        assert "emceepee login s --scope 'read write'" in answer.text
        event = await client.until_event("sign_in_required", command=answer.text.split("`")[1])
        assert "Signed in" in await visit(event["data"]["url"])
        with anyio.fail_after(20):
            while (answer := await client.execute("echo", args={"message": "two"})).is_error:
                await client.call("await_activity", timeout_ms=200)
        assert answer.text == "two"
        assert place.issuer.visits[-1]["scope"] == "read write"


async def test_more_rights_that_are_wanted_while_a_sign_in_is_ending_are_asked_for_next(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        place.server.scope, place.server.needs = "read", {"tools/call": "write"}
        answer = await client.execute("echo", args={"message": "one"})
        url = address(answer.text)
        port = urlsplit(dict(parse_qsl(urlsplit(url).query))["redirect_uri"]).port or 0
        # A browser that is not answered yet: the helper stays for it when the token is stored.
        async with await anyio.connect_tcp("127.0.0.1", port):
            assert "Signed in" in await visit(url)
            event = await client.until_event(
                "sign_in_required", command="emceepee login s --scope 'read write'"
            )
        assert "Signed in" in await visit(event["data"]["url"])
        assert place.issuer.visits[-1]["scope"] == "read write"


async def test_a_token_that_is_refused_while_its_sign_in_is_ending_leads_to_another(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        first = await client.execute("echo", args={"message": "one"})
        url = address(first.text)
        port = urlsplit(dict(parse_qsl(urlsplit(url).query))["redirect_uri"]).port or 0
        async with await anyio.connect_tcp("127.0.0.1", port):  # the helper stays for it
            assert "Signed in" in await visit(url)
            await client.call("get_task_result", task_id=first.task, timeout_ms=15_000)
            place.issuer.end()
            second = await client.execute("echo", args={"message": "two"})
        found = address(second.text)
        with anyio.fail_after(20):
            while found in ("", url):
                (server,) = (await client.call("list_servers", name="s")).json["servers"]
                found = server["sign_in"].get("url", "")
        assert "Signed in" in await visit(found)
        result = await client.call("get_task_result", task_id=second.task, timeout_ms=15_000)
        assert result.text == "two"


async def test_more_rights_that_a_server_wants_to_connect_are_told_to_whoever_waits(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(behind(tmp_path / "home", place)) as client:
        place.server.scope = "read"
        place.server.needs = dict.fromkeys(("initialize", "server/discover"), "write")
        answer = await client.execute("echo", args={"message": "one"})
        assert "Signed in" in await visit(address(answer.text))
        again = await client.call("get_task_result", task_id=answer.task, timeout_ms=15_000)
        other = await client.execute("echo", args={"message": "two"})
        assert address(again.text) == address(other.text) != address(answer.text)
        assert "Signed in" in await visit(address(other.text))
        for task, message in ((answer.task, "one"), (other.task, "two")):
            result = await client.call("get_task_result", task_id=task, timeout_ms=15_000)
            assert result.text == message
        assert place.issuer.visits[-1]["scope"] == "read write"


async def test_a_server_that_a_model_added_leads_nobody_to_another_host_unasked(
    tmp_path: Path,
) -> None:
    async with protected() as place, proxy(Setting(home=tmp_path / "home")) as client:
        place.issuer.is_elsewhere = True
        place.server.names = place.issuer.url
        answer = await client.call("add_server", name="s", url=place.server.url)
        assert "at another host, localhost" in answer.text
        assert f"`emceepee login {place.server.url}`" in answer.text
        assert not place.issuer.http.received


async def test_credentials_that_a_person_gave_win(tmp_path: Path) -> None:
    async with protected() as place:
        setting = behind(tmp_path / "home", place, headers={"Authorization": "Bearer mine"})
        async with proxy(setting) as client:
            await until_phase(client, "failed")
        assert set(place.server.seen) == {"mine"}
        assert not place.issuer.http.received


async def test_what_a_person_has_brought_is_kept_when_the_proxy_is_killed(tmp_path: Path) -> None:
    async with protected() as place, anyio.create_task_group() as tasks:
        setting = behind(tmp_path / "home", place)
        place.issuer.gives.clear()
        async with proxy(setting, code=-signal.SIGKILL) as client:
            answer = await client.execute("echo", args={"message": "hi"})
            tasks.start_soon(visit, address(answer.text))
            await until(lambda: place.issuer.grants)
            client.process.kill()
            await client.process.wait()
            place.issuer.gives.set()
            await until(lambda: not setting.left_over())
        assert len(place.records(setting.home)) == 1


@pytest.mark.real
async def test_helpers_that_wait_for_a_person_end_with_the_proxy(tmp_path: Path) -> None:
    async with protected() as place:
        setting = behind(tmp_path / "home", place)
        async with proxy(setting) as client:
            await client.execute("echo", args={"message": "hi"})
            assert len(setting.left_over()) == 2  # the proxy, and the helper
        await until(lambda: not setting.left_over())
        assert place.issuer.visits == []
