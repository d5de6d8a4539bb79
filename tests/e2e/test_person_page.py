"""The person is asked on a page in their browser, where their client cannot ask them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.trust.store import TrustStore
from tests.e2e.chromium import chromium
from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import until
from tests.e2e.hosts import Host, host, proposal
from tests.e2e.person_page_harness import Desktop, Visit
from tests.peers import plain

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["legacy", "modern"])
SHORT = {"emceepee": {}, "client_ceiling_ms": 1500}


@contextmanager
def desktop(tmp_path: Path, **how: Any) -> Iterator[tuple[Host, Desktop]]:
    """A host without forms, and a person before its screen."""
    screen = Desktop(tmp_path / "screen")
    env = {**screen.env, **how.pop("env", {})}
    with host(tmp_path, elicits=False, client="claude-ai", env=env, **how) as client:
        yield client, screen


def store(tmp_path: Path) -> TrustStore:
    return TrustStore(tmp_path / "state")


# What happens to a server that a model adds


@both_eras
@pytest.mark.parametrize("answer", ["once", "always"])
def test_a_server_is_added_when_the_person_agrees_on_the_page(
    tmp_path: Path, answer: str, *, modern: bool
) -> None:
    with desktop(tmp_path, modern=modern) as (client, screen):
        call = client.start("add_server", **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        assert (item["kind"], item["name"], item["mine"]) == ("server", "new", True)
        assert item["client"] == ("" if modern else "claude-ai") or modern
        assert ["Command", "plain"] in item["rows"]
        visit.answer(item["id"], answer)
        assert client.said_to(call).json["phase"] == "connected"
        kept = [one for one in store(tmp_path).granted() if not one.until]
        assert len(kept) == (answer == "always")
        assert store(tmp_path).waiting() == []
        assert client.use("add_server", **proposal()).json["phase"] == "connected"
        assert len(screen.opened) == 1


def test_a_no_on_the_page_is_a_refusal_and_the_same_is_not_asked_again(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen):
        call = client.start("add_server", **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        visit.answer(item["id"], "no")
        said = client.said_to(call)
        assert "[policy_denied]" in said.text
        assert "the person refused" in said.text
        again = client.use("add_server", **proposal())
        assert "refused before" in again.text
        assert client.servers() == {}
        assert store(tmp_path).granted() == store(tmp_path).waiting() == []


IMPATIENT = {"client_ceilings_ms": {"claude-ai": 700}}


def undecided(client: Host, **proposed: Any) -> str:
    said = client.use("add_server", **proposed)
    assert "[needs_approval]" in said.text
    assert "asked on a page in their browser" in said.text
    assert "--policy" not in said.text
    return said.text


def event(client: Host, kind: str, **data: Any) -> dict[str, Any]:
    """The first event of a kind that is told from now on."""
    found: list[dict[str, Any]] = []

    def is_told() -> bool:
        body = client.use("await_activity", timeout_ms=500).json
        found.extend(one for group in body["events"] for one in group["events"])
        return any(one["type"] == kind and data.items() <= one["data"].items() for one in found)

    until(is_told, kind)
    return next(one for one in found if one["type"] == kind)


def test_a_late_yes_adds_the_server_by_itself(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        visit.answer(item["id"], "once")
        granted = event(client, "approval_granted")
        assert granted["data"]["what"] == "new"
        until(lambda: client.servers().get("new", {}).get("phase") == "connected", "the server")
        assert client.servers()["new"]["admitted"] == "a person agreed"
        assert store(tmp_path).granted() == [], "once is used up"


def test_the_added_server_is_told_with_the_approval_as_its_reason(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        visit.answer(visit.waiting()[0]["id"], "always")
        assert event(client, "server_added", by="approval")["server"] == "new"


def test_a_late_no_is_told_and_kept(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        visit.answer(visit.waiting()[0]["id"], "no")
        assert event(client, "approval_refused")["data"]["what"] == "new"
        assert "refused before" in client.use("add_server", **proposal()).text
        assert client.servers() == {}


def test_the_same_call_joins_the_open_request(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        call = client.start("add_server", **proposal())
        visit.answer(visit.waiting()[0]["id"], "once")
        client.said_to(call)
        until(lambda: client.servers().get("new", {}).get("phase") == "connected", "the server")
        assert len(client.noted("approval_requested")) == 1


def test_who_answers_in_a_terminal_has_answered_the_page(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen):
        call = client.start("add_server", **proposal())
        visit = Visit(screen.until_opened()).enter()
        visit.waiting()
        trust = store(tmp_path)
        trust.allow(trust.waiting()[0], at="2026-01-01T00:00:00.000Z")
        assert client.said_to(call).json["phase"] == "connected"
        assert next(visit.states())["waiting"] == []


def test_a_call_that_the_client_takes_back_adds_nothing_later(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen):
        call = client.start("add_server", **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        client.send({"method": "notifications/cancelled", "params": {"requestId": call}})
        client.sync()
        visit.answer(item["id"], "once")
        event(client, "approval_granted")
        assert client.servers() == {}
        assert client.use("add_server", **proposal()).json["phase"] == "connected"


# Where there is no page


@pytest.mark.parametrize(
    "surroundings",
    [
        {"DISPLAY": ""},
        {"SSH_CONNECTION": "192.0.2.1 1 192.0.2.2 22"},
        {"EMCEEPEE_PAGE": "off"},
        {"EMCEEPEE_HTTP_SESSION": "x"},
        {"BROWSER": "/nowhere/browser"},
    ],
    ids=lambda found: next(iter(found)),
)
def test_without_a_desktop_it_waits_for_the_terminal(
    tmp_path: Path, surroundings: dict[str, str]
) -> None:
    with desktop(tmp_path, env=surroundings) as (client, screen):
        said = client.use("add_server", **proposal())
        assert "[needs_approval]" in said.text
        assert "browser" not in said.text
        assert screen.opened == []


def test_the_page_can_be_switched_off_in_the_configuration(tmp_path: Path) -> None:
    off = {"policy": {"mode": "auto", "page": False}}
    with desktop(tmp_path, settings=off) as (client, screen):
        assert "emceepee approve " in client.use("add_server", **proposal()).text
        assert screen.opened == []


def test_what_is_too_long_for_the_dialogue_of_a_host_goes_to_the_page(tmp_path: Path) -> None:
    screen = Desktop(tmp_path / "screen")
    with host(tmp_path, env=screen.env) as client:
        call = client.start("add_server", **proposal("x" * 200))
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        assert ["Command", "plain " + "x" * 200] in item["rows"]
        visit.answer(item["id"], "no")
        assert "the person refused" in client.said_to(call).text
        assert client.questions == []


# Whom the page lets in, and what it takes for an answer


def test_three_requests_at_once_open_one_page(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen):
        wanted = [proposal(name=f"n{n}", env={"N": str(n)}) for n in range(3)]
        calls = [client.start("add_server", **proposed) for proposed in wanted]
        visit = Visit(screen.until_opened()).enter()
        items = visit.waiting(3)
        assert sorted(item["name"] for item in items) == ["n0", "n1", "n2"]
        for item in items:
            visit.answer(item["id"], "once" if item["name"] == "n1" else "no")
        said = {n: client.said_to(call) for n, call in enumerate(calls)}
        assert [said[n].is_error for n in range(3)] == [True, False, True]
        assert len(screen.opened) == 1


def test_a_closed_tab_is_no_answer_and_three_pages_are_opened_at_most(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        for n in range(3):
            undecided(client, **proposal(env={"N": str(n)}))
            visit = Visit(screen.until_opened(n + 1)).enter()
            visit.waiting()  # and is closed again
        said = client.use("add_server", **proposal(env={"N": "3"}))
        assert "browser" not in said.text
        assert "emceepee approve " in said.text
        assert len(screen.opened) == 3
        assert len(store(tmp_path).waiting()) == 4


def test_the_address_is_in_no_answer_and_in_no_list_of_processes(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        text = undecided(client, **proposal())
        address = screen.until_opened()
        file = Path(address.removeprefix("file://"))
        assert address.startswith("file:///")
        assert file.stat().st_mode & 0o777 == 0o600
        visit = Visit(address)
        secrets = [visit.token, file.name, str(visit.port)]
        everything = text + str(client.said) + client.errors()
        assert not [one for one in secrets if one in everything]
        lines = [
            (path / "cmdline").read_bytes().decode(errors="replace")
            for path in Path("/proc").iterdir()
            if path.name.isdecimal() and (path / "cmdline").exists()
        ]
        assert not [line for line in lines if visit.token in line]
        visit.enter()
        assert not file.exists()
        assert visit.knock()[0] == 403, "a token is good once"


def test_no_answer_counts_in_the_first_second(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen):
        call = client.start("add_server", **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        status, said = visit.post(item["id"], "always")
        assert (status, "Read it first" in said) == (409, True)
        assert store(tmp_path).granted() == []
        visit.answer(item["id"], "no")
        assert client.said_to(call).is_error


def test_no_other_site_and_no_program_without_the_cookie_answers(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        until(lambda: "Read it first" not in visit.post(item["id"], "revoke")[1])
        for wrong in (
            {"origin": "http://attacker.example"},
            {"origin": "null"},
            {"origin": f"http://127.0.0.1:{visit.port + 1}"},
            {"host": "attacker.example"},
            {"cookie": ""},
            {"cookie": visit.cookie[:-1]},
            {"sec_fetch_site": "cross-site"},
            {"content_type": "text/plain"},
            {"content_type": "application/x-www-form-urlencoded"},
        ):
            assert visit.post(item["id"], "always", **wrong)[0] in (400, 403), wrong
        body = f'{{"id": "{item["id"]}", "answer": "always"}}'.encode()
        assert visit.request("POST", f"{visit.path}answer", body, cookie=visit.cookie)[0] == 403
        assert visit.request("GET", "/", cookie=visit.cookie)[0] == 404
        assert visit.request("GET", "/events", cookie=visit.cookie)[0] == 404
        assert store(tmp_path).granted() == []
        assert len(store(tmp_path).waiting()) == 1


def test_the_page_is_not_framed_stored_or_referred_to(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        for name in ("", "approvals.js", "approvals.css", "icon.svg"):
            status, headers, _ = visit.request("GET", visit.path + name, cookie=visit.cookie)
            assert status == 200
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-frame-options"] == "DENY"
            assert headers["cache-control"] == "no-store"
            assert headers["referrer-policy"] == "no-referrer"


def test_the_page_says_so_and_the_helper_ends_when_the_proxy_ends(tmp_path: Path) -> None:
    with desktop(tmp_path, settings=IMPATIENT) as (client, screen):
        undecided(client, **proposal())
        visit = Visit(screen.until_opened()).enter()
        states = visit.states()
        assert len(next(states)["waiting"]) == 1
        client.process.kill()
        assert list(states)[-1] == {}, "the last event is that it is over"
        until(lambda: client.left_over() == set(), "the end of the helper")
        assert list((tmp_path / "state").glob("page-*")) == []
        assert len(store(tmp_path).waiting()) == 1


# A call under an `ask` rule


def asking(tmp_path: Path, **how: Any) -> Any:
    command, *args = plain()
    servers = {"s": {"command": command, "args": args, "tools": {"echo": "ask"}}}
    return desktop(tmp_path, servers=servers, **how)


@pytest.mark.parametrize("answer", ["once", "always"])
def test_an_asked_call_waits_for_the_page(tmp_path: Path, answer: str) -> None:
    with asking(tmp_path) as (client, screen):
        call = client.start("execute_tool", server="s", tool="echo", args={"message": "<b>hi"})
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        assert item["kind"] == "call"
        assert ["Arguments", '{"message":"<b>hi"}'] in item["rows"]
        visit.answer(item["id"], answer)
        assert client.said_to(call).text.startswith("<b>hi")
        again = client.start("execute_tool", server="s", tool="echo", args={"message": "<b>hi"})
        if answer == "always":
            assert client.said_to(again).text.startswith("<b>hi")
            return
        visit.answer(visit.waiting()[0]["id"], "no")
        assert "[policy_denied]" in client.said_to(again).text


def test_an_asked_call_is_never_made_late_and_its_repeat_runs_once(tmp_path: Path) -> None:
    with asking(tmp_path, settings=IMPATIENT) as (client, screen):
        said = client.execute("s", "echo", message="hi")
        assert "asked on a page in their browser" in said.text
        visit = Visit(screen.until_opened()).enter()
        visit.answer(visit.waiting()[0]["id"], "once")
        assert event(client, "approval_granted")["data"]["what"] == "echo of s"
        assert not [line for line in client.said if '"hi"' in str(line.get("result"))]
        other = client.execute("s", "echo", message="ho")
        assert "[needs_approval]" in other.text
        assert client.execute("s", "echo", message="hi").text.startswith("hi")
        third = client.execute("s", "echo", message="hi")
        assert "[needs_approval]" in third.text


# In a browser that cannot read our file, and in a real one


def test_an_address_that_is_fetched_twice_is_void(tmp_path: Path) -> None:
    screen = Desktop(tmp_path / "snap" / "bin")
    with desktop(tmp_path, env=screen.sandboxed(), settings=IMPATIENT) as (client, _):
        undecided(client, **proposal())
        address = screen.until_opened()
        assert address.startswith("http://127.0.0.1:")
        early = Visit(address)
        assert early.request("GET", f"/open?{early.query}", sec_purpose="prefetch")[0] == 403
        visit = Visit(address).enter()
        (item,) = visit.waiting()
        status, _, said = Visit(address).knock()
        assert status == 403
        assert b"opened twice" in said
        assert visit.post(item["id"], "always")[0] == 403
        assert visit.request("GET", visit.path, cookie=visit.cookie)[0] == 403
        assert store(tmp_path).granted() == []


HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.mark.slow
def test_hostile_text_is_shown_as_text_in_a_real_browser(tmp_path: Path) -> None:
    args = ["-c", "<script>alert(2)</script>", "'\"><b>", "\u202egnp.exe"]
    with desktop(tmp_path) as (client, screen), chromium(tmp_path) as browser:
        call = client.start("add_server", name=HOSTILE, command="sh", args=args)
        browser.open(screen.until_opened())
        shown = browser.until("document.querySelector('.card h2').textContent")
        assert shown == HOSTILE
        assert browser.run("document.querySelector('main img, main b, main script') === null")
        command = browser.run("document.querySelector('.what').textContent")
        assert "<script>alert(2)</script>" in command
        assert "\u202e" not in command
        assert browser.complaints == []
        assert not Path(screen.opened[0].removeprefix("file://")).exists(), "it has been used"
        ours = ("http://127.0.0.1:", "file:")
        assert [one for one in browser.addresses if not one.startswith(ours)] == []
        browser.until("!document.querySelector('button.no').disabled")
        browser.click("button.no")
        assert "the person refused" in client.said_to(call).text
        browser.until("document.querySelector('.card.done').textContent.startsWith('Refused')")


@pytest.mark.slow
def test_a_real_browser_answers_after_a_second_and_not_before(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen), chromium(tmp_path) as browser:
        call = client.start("add_server", **proposal())
        browser.open(screen.until_opened())
        browser.until("document.querySelectorAll('.answers button').length === 3")
        assert browser.run("document.activeElement === document.body")
        browser.press("Enter", " ")
        browser.run("document.querySelectorAll('.answers button')[2].click()")  # by a script
        assert store(tmp_path).granted() == []
        browser.until("!document.querySelector('.answers .yes').disabled")
        browser.run("document.querySelectorAll('.answers button')[2].click()")
        assert store(tmp_path).granted() == [], "a script is no person"
        browser.click(".answers .yes")
        assert client.said_to(call).json["phase"] == "connected"


@pytest.mark.slow
def test_a_real_browser_says_that_the_proxy_has_ended(tmp_path: Path) -> None:
    with desktop(tmp_path) as (client, screen), chromium(tmp_path) as browser:
        client.start("add_server", **proposal())
        browser.open(screen.until_opened())
        browser.until("document.querySelector('.card') !== null")
        client.process.kill()
        browser.until("document.querySelector('#over').textContent.includes('has ended')")
        assert browser.run("[...document.querySelectorAll('main button')].every(b => b.disabled)")


# Questions of servers, and the page without a session


def test_a_question_of_a_server_is_answered_on_the_page_where_that_is_configured(
    tmp_path: Path,
) -> None:
    command, *args = plain()
    servers = {"s": {"command": command, "args": args}}
    with desktop(tmp_path, servers=servers, settings={"questions": "page"}) as (client, screen):
        call = client.start("execute_tool", server="s", tool="ask", args={})
        visit = Visit(screen.until_opened()).enter()
        (item,) = visit.waiting()
        assert (item["kind"], item["name"]) == ("question", "s")
        assert "name" in item["schema"]["properties"]
        visit.reply(item["id"], {"action": "accept", "content": {"name": "Ada"}})
        assert "Ada" in client.said_to(call).text


def test_by_default_the_model_has_the_questions_of_servers(tmp_path: Path) -> None:
    command, *args = plain()
    servers = {"s": {"command": command, "args": args}}
    with desktop(tmp_path, servers=servers) as (client, screen):
        said = client.use("execute_tool", server="s", tool="ask", args={})
        assert "respond_to_elicitation" in said.text
        assert screen.opened == []


def test_the_page_of_the_command_shows_all_that_waits_and_takes_approvals_back(
    tmp_path: Path,
) -> None:
    with host(tmp_path, elicits=False) as client:
        for n in range(2):
            client.use("add_server", **proposal(env={"N": str(n)}))
    screen, trust = Desktop(tmp_path / "screen"), store(tmp_path)
    home = Home(
        tmp_path / "home", env={**screen.env, "EMCEEPEE_STATE_DIR": str(tmp_path / "state")}
    )
    process = home.start("approve", "--web")
    visit = Visit(screen.until_opened()).enter()
    items = visit.waiting(2)
    assert [item["mine"] for item in items] == [True, True]
    visit.answer(items[0]["id"], "always")
    visit.answer(items[1]["id"], "no")
    (granted,) = trust.granted()
    assert next(visit.states())["granted"][0]["id"] == granted.digest
    assert visit.post(granted.digest, "revoke")[0] == 200
    assert trust.granted() == []
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert visit.token.encode() not in out + errors
    assert str(visit.port).encode() not in out + errors


def test_the_command_opens_no_page_without_a_desktop(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    process = home.start("approve", "--web")
    _, errors = process.communicate(timeout=60)
    assert process.returncode != 0
    assert b"no desktop" in errors
