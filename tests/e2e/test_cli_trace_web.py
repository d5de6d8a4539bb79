"""`emceepee trace --web` as a person starts and ends it."""

import html
import json
import re
import socket
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.page_harness import Events, page
from tests.trace_records import journal_lines, requests, write_journal, write_requests


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_page_server_that_starts_again_is_where_it_was(home: Home) -> None:
    with page(home) as first:
        path, cookie = first.enter()
        code, errors = first.end()
        assert (code, "Traceback" in errors) == (0, False)
    with page(home) as second:
        assert second.port == first.port
        assert second.token != first.token
        assert second.get(path, cookie=cookie).status == 200
        with page(home) as third:
            assert third.port != first.port
            assert third.get(path, cookie=cookie).status == 403
    assert home.left_over() == []
    [saved] = home.path.rglob("trace-page.json")
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_a_chosen_port_is_taken_on_this_machine_alone_or_refused_in_words(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = home.start("trace", "--web", "--port", str(port))
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert f"port {port}" in errors.decode().lower()
        assert b"Traceback" not in errors
    with page(home, "--port", str(port)) as shown:
        assert shown.port == port
        table = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        rows = [line.split() for line in table.splitlines()]
        own = [row[1] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")]
        assert own == [f"0100007F:{port:04X}"]


def led_to(opened: Path) -> str:
    """The address to which the page leads that the browser was given."""
    page = Path(urlsplit(opened.read_text().strip()).path).read_text()
    [address] = re.findall('0;url=([^"]*)"', page)
    return html.unescape(address)


def test_the_browser_is_opened_at_a_terminal_and_only_there(home: Home, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1" > {opened}.new\nmv {opened}.new {opened}\n')
    browser.chmod(0o700)
    home.env["BROWSER"] = str(browser)
    with home.screen("trace", "--web") as screen:
        screen.until(opened.exists, "the browser")
        screen.until(lambda: led_to(opened) in screen.text, "the same address")
        screen.type("\x03")
        assert screen.wait() == 0
    opened.unlink()
    with home.screen("trace", "--web", "--no-browser") as screen:
        screen.until_said("Ctrl-C ends it")
    with page(home):
        pass
    assert not opened.exists()


def exported(path: Path) -> dict[str, list[dict[str, Any]]]:
    block = re.search(r'id="exported">(.*?)</script>', path.read_text(encoding="utf-8"))
    assert block is not None
    return json.loads(block[1])


async def test_an_export_holds_what_was_asked_for_and_payloads_only_on_request(home: Home) -> None:
    made = list(requests(300, payloads=True))
    write_requests(home.path / "logs", made)
    write_journal(home.path / "logs", journal_lines(made))
    target = home.path / "trace.html"
    (await home.run("trace", "--server", "git", "--export", str(target))).well()
    told = exported(target)
    assert {record["server"] for record in told["records"]} == {"git"}
    assert not [record for record in told["records"] if "arguments" in record or "result" in record]
    assert {mark["kind"] for mark in told["marks"]} >= {"start", "log"}
    whole = home.path / "whole.html"
    (await home.run("trace", "--payloads", "--export", str(whole))).well()
    told = exported(whole)
    assert len(told["records"]) == 300
    assert [record for record in told["records"] if "arguments" in record]
    wrong = await home.run("trace", "--export", str(home.path / "trace.txt"))
    wrong.said(".json or .html")


def test_options_choose_the_requests_of_the_page(home: Home) -> None:
    made = list(requests(300))
    write_requests(home.path / "logs", made)
    with page(home, "--server", "git", "--slow", "20ms") as shown:
        events = Events(shown, *shown.enter())
        events.next()
        told = events.until_caught_up()["records"]
        events.close()
    assert [record["id"] for record in told] == [
        record["id"]
        for record in sorted(made, key=lambda record: record["start_ms"] + record["duration_ms"])
        if record.get("server") == "git" and record["duration_ms"] >= 20
    ]
