"""The page of `emceepee trace --web` in a real browser, which must find nothing to complain of."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from emceepee_stdio.trace.trace_page import exported_page
from tests.e2e.chromium import Chromium, chromium
from tests.e2e.client import Setting, proxy, server
from tests.e2e.page_harness import served
from tests.trace_records import (
    SESSION,
    START_MS,
    journal_line,
    journal_lines,
    request,
    requests,
    write_journal,
    write_requests,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MANY = 10_000
LANES = "page.rows.items.filter(item => item.lane).length"
ROWS = "document.querySelectorAll('.row').length"
SUMMARY = "document.getElementById('summary').textContent"
LIVE = "document.getElementById('live').dataset.state"
DETAILS = "document.getElementById('details')"
SPAN = "page.viewport.span"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with chromium(tmp_path_factory.mktemp("browser")) as started:
        yield started


@pytest.fixture
def browser(running: Chromium) -> Iterator[Chromium]:
    """Whatever a test does, nothing is complained about, and nothing but the page is asked for."""
    running.complaints.clear()
    running.addresses.clear()
    yield running
    running.open("about:blank")
    running.until("location.href === 'about:blank'")
    assert running.complaints == []
    own = ("http://127.0.0.1:", "file:///", "about:")
    assert [address for address in running.addresses if not address.startswith(own)] == []


def rows_shown(browser: Chromium) -> list[str]:
    return browser.run("[...document.querySelectorAll('.row.request')].map(r => r.innerText)")


def choose(browser: Chromium, select: str, value: str) -> None:
    browser.run(
        f"(s => {{ s.value = {json.dumps(value)};"
        " s.dispatchEvent(new Event('input', {bubbles: true})); })"
        f"(document.getElementById('{select}'))"
    )


def details(browser: Chromium) -> str:
    return browser.run(f"{DETAILS}.innerText")


@pytest.fixture
def many(browser: Chromium, tmp_path: Path) -> Iterator[Chromium]:
    made = list(requests(MANY, payloads=True))
    write_requests(tmp_path, made)
    write_journal(tmp_path, journal_lines(made))
    with served(tmp_path) as shown:
        browser.open(shown.address)
        browser.until(f"{LIVE} === 'live' && {SUMMARY}.startsWith('10,000 requests')")
        yield browser
        browser.open("about:blank")
        browser.until("location.href === 'about:blank'")


def test_ten_thousand_requests_are_filtered_zoomed_and_looked_into(many: Chromium) -> None:
    # Whichever part of them is looked at, only the rows on the screen are there.
    assert many.run("location.search") == ""
    many.press("0")
    many.until(f"{SUMMARY} === '10,000 requests'")
    for key in ("End", "Home", "End"):
        many.press(key)
        edge = "at(-1)" if key == "End" else "at(0)"
        many.until(f"page.rows.selected === page.rows.items.{edge}.key")
        assert 10 < many.run(ROWS) < 100

    # By text, outcome, server and time.
    many.press("/")
    many.type("git_log")
    many.until(f"{LANES} === 1")
    assert all("git_log" in row for row in rows_shown(many))
    many.press("Escape")
    many.until(f"{SUMMARY} === '10,000 requests'")
    choose(many, "outcome", "bad")
    choose(many, "server", "=browser")
    many.until(f"{LANES} === 1 && {SUMMARY}.includes(' of 10,000')")
    assert all("error" in row for row in rows_shown(many))
    many.press("Escape")
    choose(many, "slow", "5000")
    choose(many, "view", "slowest")
    many.until(f"{LANES} === 0 && {ROWS} > 5 && page.rows.scroller.scrollTop === 0")
    tooks = many.run("page.rows.items.map(item => item.request.took)")
    assert tooks == sorted(tooks, reverse=True)
    assert tooks[-1] >= 5000
    many.click("#clear")
    many.until(f"{SUMMARY} === '10,000 requests' && {LANES} > 0")

    # By keys, wheel, buttons and brush.
    span = many.run(SPAN)
    many.press("+")
    many.until(f"{SPAN} < {span * 0.6}")
    many.press("-")
    many.until(f"{SPAN} > {span * 0.9}")
    many.wheel("#strip", -200)
    many.until(f"{SPAN} < {span * 0.9}")
    before = many.run(SPAN)
    many.wheel("#rows", -200, ctrl=True)
    many.until(f"{SPAN} < {before * 0.9}")
    many.click("#zoom-all")
    many.until(f"{SPAN} > {span * 0.95}")
    many.drag("#strip", 0.5, 0.6)
    many.until(f"{SPAN} < {span * 0.15}")
    before = many.run("page.viewport.from")
    many.press("ArrowRight")
    many.until(f"page.viewport.from > {before}")


def test_everything_can_be_reached_by_keys_and_read_aloud(many: Chromium) -> None:
    many.press("Home", "ArrowDown", "ArrowDown", "Enter")
    many.until(f"!{DETAILS}.hidden")
    assert many.run("document.activeElement.id") == "details"
    said = details(many)
    name = many.run("page.rows.item(page.rows.selected).request.name")
    assert name in said
    assert "at the server" in said
    many.press("Escape")
    many.until(f"{DETAILS}.hidden")
    assert many.run("document.activeElement.id") == "rows"
    many.press("Home", " ")
    many.until("page.rows.items[0].folded")
    many.press("Enter")
    many.until(f"{DETAILS}.innerText.includes('What happened')")
    many.press("Escape", "?")
    many.until("document.getElementById('help').open")
    many.press("Escape")
    many.until("!document.getElementById('help').open")

    nodes = many.accessible()
    by_role = {node["role"]["value"] for node in nodes}
    assert {"treegrid", "row", "gridcell", "searchbox", "status", "button"} <= by_role
    rows = [node for node in nodes if node["role"]["value"] == "row"]
    names = [node["name"]["value"] for node in rows]
    assert any("requests" in name and "median" in name for name in names)
    assert any("at the server" in name for name in names)
    grid = next(node for node in nodes if node["role"]["value"] == "treegrid")
    properties = {given["name"] for given in grid["properties"]}
    assert "activedescendant" in properties


def test_a_recorded_call_is_copied_as_a_line_for_a_shell(browser: Chromium, tmp_path: Path) -> None:
    args = {"text": 'it\'s $HOME `date` \u202e\nnext "line" é', "key": "[redacted]"}
    given = json.dumps({"server": "-s", "tool": "say it", "args": args}, ensure_ascii=False)
    made = request(1, START_MS, ("server", 5), server="-s", server_tool="say it", arguments=given)
    steered = request(2, START_MS + 9, ("server", 5), server="s\n", server_tool="t", arguments="{}")
    cut = request(3, START_MS + 19, ("server", 5), server="s", server_tool="t", arguments='{"a": …')
    write_requests(tmp_path, [made, steered, cut])
    with served(tmp_path) as shown:
        browser.open(shown.address)
        browser.until(f"{LIVE} === 'live' && {ROWS} === 6")
        browser.run(f"page.goTo(page.store.byId.get('{made['id']}')); page.openDetails()")
        line = browser.until(f"{DETAILS}.querySelector('.command').textContent")
        assert line.isascii()
        words = shlex.split(line)
        assert words[:5] == ["emceepee", "call", "--", "-s", "say it"]
        assert json.loads(words[5]) == args
        assert "Secrets are hidden" in details(browser)
        for other in (steered, cut):
            browser.run(f"page.goTo(page.store.byId.get('{other['id']}')); page.openDetails()")
            browser.until(f"{DETAILS}.innerText.includes('{other['id']}')")
            assert browser.run(f"{DETAILS}.querySelector('.command')") is None


async def test_a_live_call_a_crash_and_restarts_are_followed(
    browser: Chromium, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    setting = Setting(home=home, servers={"s": server()}, more={"restart": {"base_ms": 100}})
    run = anyio.to_thread.run_sync
    with served(home / "logs") as first:
        await run(browser.open, first.address)
        await run(browser.until, f"{LIVE} === 'live'")
        async with proxy(setting) as client:
            await client.connected()
            await client.execute("echo", args={"text": "hello"})
            await run(browser.until, "page.rows.items.some(item => item.request?.name === 'echo')")
            following = "document.getElementById('follow').getAttribute('aria-pressed')"
            await run(browser.press, "ArrowDown")  # whoever reads is not carried away
            await run(browser.until, f"{following} === 'false'")
            await run(browser.press, "f")
            await run(browser.until, f"{following} === 'true'")
            await client.execute("crash", args={"code": 3})
            crashed = "page.store.lanes.get('s')?.marks.some(mark => mark.kind === 'crash')"
            await run(browser.until, crashed)
            line = "document.querySelector('.row[data-outcome=error] .crash') !== null"
            await run(browser.until, line)
    # The proxy has ended, and so has the page's server. Both come back.
    await run(browser.until, f"{LIVE} === 'lost'")
    with served(home / "logs", first.identity):
        await run(browser.until, f"{LIVE} === 'live'")
        before = await run(browser.run, "page.store.requests.length")
        async with proxy(setting) as client:
            await client.connected()
            await client.execute("echo", args={"text": "again"})
            # The list is drawn a frame after the session is known.
            offered = "[...document.getElementById('session').options].map(o => o.text)"
            named = "s => s.join() === 'false,true,true'"
            await run(browser.until, f"({named})({offered}.map(t => t.endsWith('raw 1')))")
        assert before > 2
        await run(browser.until, f"page.store.requests.length > {before}")
        await run(browser.open, "about:blank")
    browser.complaints[:] = [said for said in browser.complaints if "net::ERR_" not in said]


HOSTILE = (
    "<script>window.ran = 1</script>",
    "<img src=x onerror='window.ran = 1'>",
    "</script><script>window.ran = 1</script>",
    "<!--<script>",
    "javascript:window.ran=1",
    "\x1b[31mred\x1b]0;title\x07",
    "\u202egnp.exe\u2066",
    "${window.ran = 1}",
    "__proto__",
    "constructor",
    "a" * 1_000_000,
    "\ud83d".encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
    "x\u0000y\u2028z\r\n",
)


def hostile(number: int, text: str) -> dict[str, Any]:
    """A record in which everything that somebody else chose is that text."""
    short = text[:1_000]  # what is longer is no line of the file
    return request(
        number,
        START_MS + 10 * number,
        ("server", 5),
        (short, 2),
        **dict.fromkeys(("server_tool", "tool", "method", "error_code", "traceparent"), short),
        **dict.fromkeys(("request_id", "task_id", "parent", "arguments", "result"), short),
        server=text,
        outcome="error",
        session=f"{SESSION}{short}",
    )


def hostile_lines() -> list[dict[str, Any]]:
    return [
        journal_line(START_MS + number, "server_output", server=text, data={"text": text[:1_000]})
        for number, text in enumerate(HOSTILE)
    ]


def look_at_everything(browser: Chromium) -> None:
    """The details of each row, and its tip."""
    browser.press("0")
    count = 2 * len(HOSTILE)  # a lane and a request for each
    browser.until(f"page.rows.items.length === {count}")
    browser.press("Home")
    browser.click(".row[aria-selected=true] .lane-facts")
    for index in range(count):
        browser.until(
            f"{DETAILS}.innerText.length > 20 && page.details.key === page.rows.items[{index}].key"
        )
        browser.hover(".row[aria-selected=true] .track")
        browser.press("ArrowDown")
    assert browser.run("window.ran") is None
    assert browser.run("document.querySelectorAll('main script, main img').length") == 0
    text = browser.run("document.body.innerText")
    assert "<img src=x onerror='window.ran = 1'>" in text
    assert "\\u202egnp.exe\\u2066" in text
    assert not set(text) & set("\x1b\x07\u202e\u2066\u0000\u2028")
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_hostile_text_neither_runs_nor_breaks_the_page(browser: Chromium, tmp_path: Path) -> None:
    records = [hostile(number, text) for number, text in enumerate(HOSTILE)]
    write_requests(tmp_path, records)
    write_journal(tmp_path, hostile_lines())
    with served(tmp_path) as shown:
        browser.open(shown.address)
        browser.until(f"{LIVE} === 'live' && page.store.requests.length > 0")
        look_at_everything(browser)
        browser.open("about:blank")
        browser.until("location.href === 'about:blank'")


def test_an_export_opens_from_a_file_and_reaches_nothing(browser: Chromium, tmp_path: Path) -> None:
    records = [hostile(number, text) for number, text in enumerate(HOSTILE)]
    records += [made for made in requests(500, payloads=True) if made["outcome"] != "error"]
    exported = tmp_path / "trace.html"
    exported.write_text(
        exported_page(records, [], exported_at="2026-11-17T09:00:00Z"), encoding="utf-8"
    )
    browser.open(exported.as_uri())
    browser.until(f"{LIVE} === 'exported' && page.store.requests.length > 400")
    assert browser.run("document.getElementById('follow').hidden")
    choose(browser, "slow", "500")
    browser.until(f"{SUMMARY}.includes(' of ')")
    browser.press("Escape")
    choose(browser, "outcome", "error")
    look_at_everything(browser)
    assert browser.addresses == [exported.as_uri()]


def test_both_themes_follow_the_system_until_a_person_chooses(
    browser: Chromium, tmp_path: Path
) -> None:
    write_requests(tmp_path, list(requests(20)))
    background = "getComputedStyle(document.body).backgroundColor"
    with served(tmp_path) as shown:
        browser.theme("light")
        browser.open(shown.address)
        browser.until(f"{LIVE} === 'live'")
        light = browser.run(background)
        browser.theme("dark")
        dark = browser.until(f"{background} !== {json.dumps(light)} && {background}")
        browser.press("t")
        browser.until(f"{background} === {json.dumps(light)}")
        browser.press("t")
        browser.until(f"{background} === {json.dumps(dark)}")
        browser.press("t")
        assert browser.run("document.getElementById('theme').textContent") == "Theme: auto"
        browser.theme("light")
        browser.until(f"{background} === {json.dumps(light)}")
        browser.open("about:blank")
        browser.until("location.href === 'about:blank'")
