"""The server of the page as it answers whoever asks: the person's browser, and others."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.e2e.page_harness import Events, Page, served
from tests.trace_records import (
    START_MS,
    journal_line,
    journal_lines,
    request,
    requests,
    write_journal,
    write_requests,
)

MAX_CONNECTIONS = 40


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def shown(logs: Path) -> Iterator[Page]:
    with served(logs) as running:
        yield running


# Who is let in


def test_the_address_is_exchanged_once_for_a_cookie(shown: Page) -> None:
    got = shown.get(shown.opening)
    assert got.status == 200
    cookie, *attributes = got.headers["set-cookie"].split("; ")
    path = next(part for part in attributes if part.startswith("Path=/")).removeprefix("Path=")
    assert len(path) > 10
    assert {"HttpOnly", "SameSite=Strict"} <= set(attributes)
    assert f"url={path}" in got.body.decode()
    assert b"<title>emceepee trace</title>" in shown.get(path, cookie=cookie).body
    again = shown.get(shown.opening)
    assert (again.status, "set-cookie" in again.headers) == (403, False)
    assert b"has been used" in again.body


def test_a_wrong_token_is_refused_and_costs_nothing(shown: Page) -> None:
    for wrong in ("", "x", shown.token[:-1], f"{shown.token}x", "%C3%A9"):
        assert shown.get(f"/open?token={wrong}").status == 403
    early = shown.get(shown.opening, Sec_Purpose="prefetch;prerender")
    assert early.status == 403
    assert shown.get(shown.opening).status == 200


def test_nothing_is_served_without_the_cookie(shown: Page) -> None:
    path, cookie = shown.enter()
    for name in ("", "page.js", "trace.css", "events", "nothing"):
        for wrong in ("", "emceepee_trace=", f"{cookie}x", cookie.upper()):
            got = shown.get(f"{path}{name}", cookie=wrong)
            assert got.status == 403, name
            assert b"emceepee trace --web" in got.body
    assert shown.get(f"{path}page.js", cookie=f"other=1; {cookie}").status == 200
    assert shown.get("/page.js", cookie=cookie).status == 404


def test_another_host_is_refused_even_with_the_token(shown: Page) -> None:
    for host in ("attacker.example", f"attacker.example:{shown.port}", f"localhost:{shown.port}"):
        assert shown.get(shown.opening, host=host).status == 403
    twice = f"GET {shown.opening} HTTP/1.1\r\nHost: {shown.host}\r\nHost: {shown.host}\r\n\r\n"
    assert b" 403 " in shown.raw(twice.encode()).split(b"\r\n")[0]
    path, cookie = shown.enter()
    assert shown.get(path, host="attacker.example", cookie=cookie).status == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://attacker.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors"},
        {"sec_fetch_site": "same-site", "sec_fetch_mode": "cors"},
        {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"},
    ],
    ids=str,
)
def test_a_page_of_another_origin_is_refused(shown: Page, headers: dict[str, str]) -> None:
    path, cookie = shown.enter()
    for name in ("", "page.js", "events"):
        got = shown.get(f"{path}{name}", cookie=cookie, **headers)
        assert got.status == 403
        assert not [header for header in got.headers if header.startswith("access-control")]


def test_a_link_from_another_site_may_open_the_page(shown: Page) -> None:
    """A terminal in a browser is such a site."""
    link = {"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert shown.get(shown.opening, **link, sec_fetch_dest="document").status == 200


@pytest.mark.parametrize("method", ["HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_only_get_is_answered(shown: Page, method: str) -> None:
    got = shown.get(shown.opening, method=method)
    assert (got.status, got.headers["allow"]) == (405, "GET")
    assert shown.get(shown.opening).status == 200


# What is served


def test_browsers_are_told_to_keep_the_page_to_itself(shown: Page) -> None:
    path, cookie = shown.enter()
    for name in ("", "page.js", "trace.css", "icon.svg"):
        headers = shown.get(f"{path}{name}", cookie=cookie).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [header for header in headers if header.startswith("access-control")]


@pytest.mark.parametrize(
    "name",
    ["../page_access.py", "..%2f__init__.py", "%2e%2e/", "page.js/", "/etc/passwd", "PAGE.JS", "?"],
)
def test_nothing_but_the_files_of_the_page_is_served(shown: Page, name: str) -> None:
    path, cookie = shown.enter()
    got = shown.get(f"{path}{name}", cookie=cookie)
    assert got.status == 404 or (name == "?" and b"emceepee" in got.body)


def test_garbage_is_refused_and_the_page_goes_on(shown: Page) -> None:
    head = b"GET / HTTP/1.1\r\nx: "
    assert b" 431 " in shown.raw(head + b"x" * 40_000)[:40]
    for garbage in (
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\n\r\n",
    ):
        assert b" 400 " in shown.raw(garbage)[:40]
    assert shown.get(shown.opening).status == 200


def test_connections_are_bounded_and_freed(shown: Page) -> None:
    path, cookie = shown.enter()
    with ExitStack() as held:
        for _ in range(MAX_CONNECTIONS):
            idle = socket.create_connection(("127.0.0.1", shown.port))
            held.enter_context(closing(idle))
            idle.sendall(b"GET / HT")
        while shown.get(path, cookie=cookie).status != 503:
            pass  # those before are taken in turn
    while shown.get(path, cookie=cookie).status != 200:
        pass  # their end is noticed in turn


# What is told


def test_a_stream_tells_what_is_recorded_and_then_what_comes(logs: Path) -> None:
    past = list(requests(1_200, payloads=True))
    write_requests(logs, past)
    write_journal(logs, journal_lines(past))
    with served(logs) as shown:
        path, cookie = shown.enter()
        events = Events(shown, path, cookie)
        hello, about = events.next()
        assert (hello, set(about)) == ("hello", {"version", "feed"})
        told = events.until_caught_up()
        assert {record["id"] for record in told["records"]} == {record["id"] for record in past}
        assert {mark["kind"] for mark in told["marks"]} >= {"start", "crash", "log", "question"}
        new = request(9_000, START_MS + 1e7, ("server", 5), server="git", server_tool="git_log")
        write_requests(logs, [new])
        assert events.next()[1] == {"records": [new], "marks": []}
        place = events.place
        data = {"source": "stderr", "text": "<b>late</b>"}
        line = journal_line(START_MS + 1e7, "server_output", server="git", data=data)
        write_journal(logs, [line])
        assert events.next()[1]["marks"][0]["text"] == "<b>late</b>"
        events.close()
        later = Events(shown, path, cookie, after=place)
        assert later.next()[0] == "hello"
        told = later.until_caught_up()
        assert (len(told["records"]), len(told["marks"])) == (0, 1)
        later.close()


def test_what_is_no_record_is_left_out(logs: Path) -> None:
    good = request(1, START_MS, ("server", 5))
    write_requests(logs, [good])
    with next(logs.glob("requests-*")).open("ab") as file:
        file.write(b'not json\n{"id": 1}\n' + b"x" * 3_000_000 + b"\n")
    second = request(2, START_MS, ("server", 5))
    write_requests(logs, [second])
    with served(logs) as shown:
        events = Events(shown, *shown.enter())
        events.next()
        assert events.until_caught_up()["records"] == [good, second]
        events.close()
