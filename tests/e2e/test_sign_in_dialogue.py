"""The person is led to the sign-in by the client: to a page where it can, else by a form first.

Nothing is opened without a yes, and nobody but the person gives one.
"""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from emceepee_stdio.wire.orphans import descendants
from tests.e2e.client import both_eras
from tests.e2e.clients.raw import Message, until
from tests.e2e.harness import argv_of
from tests.e2e.person_page_harness import Desktop, Visit
from tests.e2e.persons import Person, person
from tests.e2e.servers.authorization import AuthorizationServer
from tests.e2e.sign_in_harness import BROWSER, Place, protected
from tests.peers import SERVERS

pytestmark = pytest.mark.slow

YES = {"action": "accept", "content": {"decision": "Yes, open the browser"}}
NO = {"action": "accept", "content": {"decision": "No"}}
DECLINED = {"action": "decline"}


class FormPerson(Person):
    """Behind a client that has forms, and cannot send anybody to a page."""

    @property
    def capabilities(self) -> Message:
        return {"elicitation": {"form": {}}}


@contextmanager
def at_the_form(tmp_path: Path, place: Place | None, **more: Any) -> Iterator[Person]:
    servers = {} if place is None else {"s": place.entry()}
    env = {"BROWSER": BROWSER, **more.pop("env", {})}
    with person(tmp_path, kind=FormPerson, servers=servers, env=env, **more) as client:
        yield client
        if client.process.poll() is None:
            until(lambda: not browsers(client), "the end of the browser, which nobody ends")


def browsers(client: Person) -> list[int]:
    """Who has opened a browser for the proxy, and stays for as long as it does."""
    found = descendants(client.process.pid)
    return [pid for pid in found if b"\0emceepee_stdio.auth.browser\0" in argv_of(pid)]


async def played(play: Any, *, elsewhere: bool = False) -> AuthorizationServer:
    """Play with a server; `elsewhere`: its sign-in is at another host. What it was asked."""
    async with protected() as place:
        place.issuer.is_elsewhere = elsewhere
        place.server.names = place.issuer.url
        await anyio.to_thread.run_sync(play, place)
        return place.issuer


@both_eras
async def test_the_client_sends_its_person_to_the_sign_in_and_the_call_goes_on(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with person(tmp_path, modern=modern, servers={"s": place.entry()}) as client:
            call = client.begin("echo", args={"message": "hello"})
            asked = client.asked(call)
            assert asked["mode"] == "url"
            assert asked["message"].splitlines() == [
                'emceepee: "s" wants you to sign in at 127.0.0.1.',
                "The server itself is on this computer.",
            ]
            page = httpx2.get(asked["url"], follow_redirects=True, timeout=60).text
            assert "Signed in to s" in page
            said = client.said_to(client.say(call, {"action": "accept"}))
            assert said.blocks[0]["text"] == "hello"
            assert client.pending() == []

    assert len((await played(play)).visits) == 1


@both_eras
@pytest.mark.parametrize("tool", ["list_tools", "reconnect_server"])
async def test_other_tools_that_need_one_server_lead_to_the_same_dialogue(
    tmp_path: Path, tool: str, *, modern: bool
) -> None:
    asks = {"server": "s"} if tool == "list_tools" else {"name": "s"}

    def play(place: Place) -> None:
        with person(tmp_path, modern=modern, servers={"s": place.entry()}) as client:
            call = client.start(tool, **asks)
            url = client.asked(call)["url"]
            said = client.said_to(client.say(call, DECLINED))
            assert f"s wants a person to sign in: ask the person to open {url} or" in said.text
            call = client.begin("echo", args={"message": "hello"})
            task = client.said_to(call).text.partition('"task_id":"')[2].partition('"')[0]
            assert "Signed in" in httpx2.get(url, follow_redirects=True, timeout=60).text
            done = client.use("get_task_result", task_id=task, timeout_ms=20_000)
            assert done.blocks[0]["text"] == "hello"

    assert len((await played(play)).visits) == 1


@both_eras
@pytest.mark.parametrize("tool", ["list_tools", "reconnect_server"])
async def test_such_a_tool_answers_when_the_person_has_signed_in(
    tmp_path: Path, tool: str, *, modern: bool
) -> None:
    asks = {"server": "s"} if tool == "list_tools" else {"name": "s"}

    def play(place: Place) -> None:
        with person(tmp_path, modern=modern, servers={"s": place.entry()}) as client:
            call = client.start(tool, **asks)
            httpx2.get(client.asked(call)["url"], follow_redirects=True, timeout=60)
            said = client.said_to(client.say(call, {"action": "accept"}))
            shown = said.json
            if tool == "list_tools":
                assert "echo" in [one["name"] for one in shown["tools"]]
            else:
                assert shown["phase"] == "connected"

    assert len((await played(play)).visits) == 1


async def test_a_person_who_declines_can_still_sign_in_later(tmp_path: Path) -> None:
    def play(place: Place) -> None:
        with person(tmp_path, modern=False, servers={"s": place.entry()}) as client:
            call = client.begin("echo", args={"message": "hello"})
            url = client.asked(call)["url"]
            said = client.said_to(client.say(call, DECLINED))
            assert "`emceepee login s`" in said.text
            assert "Signed in" in httpx2.get(url, follow_redirects=True, timeout=60).text
            task = said.text.partition('"task_id":"')[2].partition('"')[0]
            done = client.use("get_task_result", task_id=task, timeout_ms=20_000)
            assert done.blocks[0]["text"] == "hello"

    await played(play)


@both_eras
async def test_a_client_with_forms_asks_first_and_on_yes_the_browser_is_opened(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, place, modern=modern) as client:
            call = client.begin("echo", args={"message": "hello"})
            asked = client.asked(call)
            assert asked["mode"] == "form"
            assert asked["message"].splitlines()[0].endswith("wants you to sign in at 127.0.0.1.")
            (field,) = asked["requestedSchema"]["properties"].values()
            assert field["default"] == "No"
            assert not place.issuer.visits, "nothing is opened before the yes"
            said = client.said_to(client.say(call, YES))
            assert said.blocks[0]["text"] == "hello"
            assert client.pending() == []

    assert len((await played(play)).visits) == 1


@both_eras
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_over_http_no_client_has_a_browser_opened_here(
    tmp_path: Path, *, modern: bool, elsewhere: bool
) -> None:
    over_http = {"EMCEEPEE_HTTP_SESSION": "h"}

    def play(place: Place) -> None:
        with at_the_form(tmp_path, place, modern=modern, env=over_http) as client:
            said = client.said_to(client.begin("echo", args={"message": "hello"}))
            assert "`emceepee login s`" in said.text
            assert client.questions == []
            assert browsers(client) == []

    issuer = await played(play, elsewhere=elsewhere)
    assert not issuer.visits


async def test_two_proxies_whose_persons_say_yes_open_one_tab(tmp_path: Path) -> None:
    env = {"EMCEEPEE_STATE_DIR": str(tmp_path / "shared")}
    for name in "ab":
        (tmp_path / name).mkdir()

    def play(place: Place) -> None:
        place.issuer.welcomes.clear()
        with (
            at_the_form(tmp_path / "a", place, env=env) as one,
            at_the_form(tmp_path / "b", place, env=env) as other,
        ):
            calls = [
                (client, client.begin("echo", args={"message": "hi"})) for client in (one, other)
            ]
            for client, call in calls:
                client.asked(call)
            for client, call in calls:
                client.say(call, YES)
                client.sync()
            anyio.from_thread.run_sync(place.issuer.welcomes.set)
            for client, call in calls:
                assert client.said_to(call).blocks[0]["text"] == "hi"

    assert len((await played(play)).visits) == 1


@both_eras
@pytest.mark.parametrize("answer", [NO, DECLINED], ids=["no", "declined"])
async def test_without_a_yes_nothing_is_opened_and_the_answer_says_how(
    tmp_path: Path, answer: Message, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, place, modern=modern) as client:
            call = client.begin("echo", args={"message": "hello"})
            client.asked(call)
            said = client.said_to(client.say(call, answer))
            assert "`emceepee login s`" in said.text
            assert f"{place.issuer.url}/authorize?" in said.text

    assert (await played(play)).visits == []


@pytest.mark.parametrize("answer", [YES, DECLINED], ids=["yes", "declined"])
async def test_an_answer_that_is_faster_than_a_person_opens_nothing_and_no_tool_can_give_it(
    tmp_path: Path, answer: Message
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, place, fixed={"automatic_answer_s": 1000.0}) as client:
            call = client.begin("echo", args={"message": "hello"})
            client.asked(call)
            said = client.said_to(client.say(call, answer))
            assert "`emceepee login s`" in said.text
            assert client.pending() == []
            assert "elicitation_request" not in client.events()

    assert (await played(play)).visits == []


async def test_a_person_who_says_no_at_the_sign_in_is_not_waited_for_any_longer(
    tmp_path: Path,
) -> None:
    def play(place: Place) -> None:
        place.issuer.denies = True
        with at_the_form(tmp_path, place) as client:
            call = client.begin("echo", args={"message": "hello"})
            client.asked(call)
            said = client.said_to(client.say(call, YES))
            assert "(The server said no: access_denied)" in said.text
            assert "`emceepee login s`" in said.text

    assert len((await played(play)).visits) == 1


@both_eras
async def test_a_server_that_is_added_asks_and_is_connected_when_its_answer_comes(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, None, modern=modern) as client:
            call = client.start("add_server", name="new", url=place.server.url)
            assert client.asked(call)["mode"] == "form"
            said = client.said_to(client.say(call, YES))
            assert said.json["phase"] == "connected"

    assert len((await played(play)).visits) == 1


@both_eras
async def test_a_sign_in_at_another_host_begins_when_the_person_agrees_to_that_host(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, None, modern=modern) as client:
            call = client.start("add_server", name="new", url=place.server.url)
            assert client.asked(call)["message"].splitlines() == [
                'emceepee: "new" wants you to sign in at localhost.',
                "You did not configure it. The server itself is at another host, 127.0.0.1.",
            ]
            assert not place.issuer.http.received, "the other host hears nothing before the yes"
            said = client.said_to(client.say(call, YES))
            assert said.json["phase"] == "connected"

    assert len((await played(play, elsewhere=True)).visits) == 1


@both_eras
@pytest.mark.parametrize("answer", [YES, NO])
async def test_the_person_is_asked_before_a_sign_in_is_given_to_another_host(
    tmp_path: Path, *, modern: bool, answer: Message
) -> None:
    def play(place: Place) -> None:
        elsewhere = place.issuer.url.replace("127.0.0.1", "localhost")
        place.issuer.authorization_endpoint = f"{elsewhere}/authorize"
        with at_the_form(tmp_path, place, modern=modern) as client:
            call = client.begin("echo", args={"message": "hello"})
            assert client.asked(call)["message"].splitlines() == [
                'emceepee: "s" wants you to sign in at localhost.',
                "Beware: the sign-in there is then given to 127.0.0.1, another host.",
                "The server itself is at another host, 127.0.0.1.",
            ]
            said = client.said_to(client.say(call, answer))
            assert said.text.startswith("hello" if answer is YES else "s wants a person to sign in")

    issuer = await played(play)
    assert len(issuer.grants) == len(issuer.visits) == (answer is YES)


@both_eras
async def test_without_consent_to_another_host_nothing_is_sent_there(
    tmp_path: Path, *, modern: bool
) -> None:
    def play(place: Place) -> None:
        with at_the_form(tmp_path, None, modern=modern) as client:
            call = client.start("add_server", name="new", url=place.server.url)
            client.asked(call)
            said = client.said_to(client.say(call, NO))
            assert f"`emceepee login {place.server.url}`" in said.text

    assert (await played(play, elsewhere=True)).http.received == []


@pytest.mark.skipif(sys.platform != "linux", reason="only there we are given orphans")
async def test_the_browser_outlives_every_server_and_the_proxy(tmp_path: Path) -> None:
    note = tmp_path / "browser-pid"
    browser = f"{sys.executable} {SERVERS / 'lasting_browser.py'} {note}"

    def play(place: Place) -> None:
        # A server that is a process makes us the parent of whoever loses theirs.
        with at_the_form(tmp_path, None, env={"BROWSER": browser}) as client:
            assert client.execute("s", "echo", message="one").text
            call = client.start("add_server", name="new", url=place.server.url)
            client.asked(call)
            assert client.said_to(client.say(call, YES)).json["phase"] == "connected"
            client.use("remove_server", name="s")
            client.close_stdin()
            assert client.wait() == 0
            os.kill(int(note.read_text()), 0)

    try:
        assert len((await played(play)).visits) == 1
    finally:
        if note.exists():
            os.kill(int(note.read_text()), signal.SIGKILL)


class SilentPerson(Person):
    """Behind a client that can ask nothing, at a screen."""

    @property
    def capabilities(self) -> Message:
        return {}


@both_eras
async def test_a_client_that_cannot_ask_leads_its_person_to_the_sign_in_by_the_page(
    tmp_path: Path, *, modern: bool
) -> None:
    screen = Desktop(tmp_path / "screen")

    def play(place: Place) -> None:
        with person(
            tmp_path,
            kind=SilentPerson,
            modern=modern,
            servers={"s": place.entry()},
            env=screen.env,
        ) as client:
            call = client.begin("echo", args={"message": "hello"})
            visit = Visit(screen.until_opened()).enter()
            (item,) = visit.waiting()
            assert item["kind"] == "question"
            assert "sign in at 127.0.0.1" in item["text"]
            visit.reply(item["id"], {"action": "accept"})
            httpx2.get(item["url"], follow_redirects=True, timeout=60)
            assert "hello" in client.said_to(call).text

    await played(play)
