"""The files of the page, and the page as one file."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import emceepee_stdio.trace
from emceepee_stdio.journal.journal_reader import journal_line as read_line
from emceepee_stdio.trace.trace_page import exported_page
from emceepee_stdio.trace.trace_reader import mark_of
from emceepee_stdio.wire.loopback_http import SERVED_POLICY, page_file
from tests.trace_records import START_MS, journal_line

FILES = Path(emceepee_stdio.trace.__file__).parent / "page"
HOSTILE = "</script><script>alert(1)</script><!--\u2028"
# Ways to make markup, to run text, or to reach somewhere else.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextual"
    r"|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|import\(|https?://(?!www\.w3\.org/2000/svg)"
)


def test_the_page_makes_no_markup_runs_no_text_and_reaches_nowhere() -> None:
    for path in FILES.iterdir():
        found = FORBIDDEN.findall(path.read_text(encoding="utf-8"))
        assert found == [], path.name


def test_the_page_has_no_inline_script_style_or_handler() -> None:
    page = (FILES / "trace.html").read_text(encoding="utf-8")
    assert re.findall(r"<script(?! src=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=", page) == []
    assert "unsafe" not in SERVED_POLICY


def test_every_file_that_the_page_names_is_there_and_every_script_is_named() -> None:
    page = (FILES / "trace.html").read_text(encoding="utf-8")
    named = set(re.findall(r'(?:src|href)="([^"]+)"', page))
    own = {path.name for path in FILES.iterdir()} - {"trace.html"}
    assert named == own | {"icon.svg"}  # the icon of all pages
    assert all(page_file("trace", name) for name in named)


def test_every_part_of_the_page_that_a_script_asks_for_is_in_it() -> None:
    page = (FILES / "trace.html").read_text(encoding="utf-8")
    there = set(re.findall(r'id="([a-z-]+)"', page)) | {"exported"}
    for path in FILES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        asked = set(re.findall(r'(?:byId|getElementById|click)\("([a-z-]+)"', text))
        assert asked <= there, path.name


def test_nothing_else_is_a_file_of_the_page() -> None:
    for name in (
        "",
        "../page_files.py",
        "page_files.py",
        "nothing.js",
        "TRACE.HTML",
        ".",
        "a/b.js",
    ):
        assert page_file("trace", name) is None


def test_an_export_runs_the_scripts_of_the_page_and_nothing_else() -> None:
    data = {"records": [{"tool": HOSTILE}], "marks": [{"text": HOSTILE}]}
    page = exported_page(data["records"], data["marks"], exported_at="2026-11-17T09:00:00Z")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', page)
    assert policy is not None
    assert "unsafe" not in policy[1]
    assert "default-src 'none'" in policy[1]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert len(scripts) == len(list(FILES.glob("*.js")))
    hashes = {b64encode(sha256(text.encode()).digest()).decode() for text in (*scripts, *styles)}
    assert set(re.findall(r"'sha256-([^']+)'", policy[1])) == hashes
    assert not re.search(r'(?:src|href)="', page)


def test_the_data_of_an_export_ends_no_element() -> None:
    records, marks = [{"tool": HOSTILE}], [{"text": HOSTILE}]
    page = exported_page(records, marks, exported_at="2026-11-17T09:00:00Z")
    block = re.search(r'<script type="application/json" id="exported">(.*?)</script>', page)
    assert block is not None
    assert "<" not in block[1]
    assert json.loads(block[1]) == {
        "records": records,
        "marks": marks,
        "exported_at": "2026-11-17T09:00:00Z",
    }


def marked(event: str, **more: object) -> tuple[str, str] | None:
    line = journal_line(START_MS, event, **more)
    mark = mark_of(read_line(json.dumps(line).encode(), 0.0))
    return None if mark is None else (mark.kind, mark.text)


def test_the_journal_marks_starts_crashes_questions_promotions_and_log_lines() -> None:
    lost = {"reason": "it exited", "exit_code": 3, "stderr": ["out of memory"]}
    assert marked("server_connected", server="s") == ("start", "server_connected")
    assert marked("server_disconnected", level="warning", server="s", data=lost) == (
        "crash",
        'server_disconnected reason=it exited exit_code=3 stderr=["out of memory"]',
    )
    assert marked("server_disconnected", server="s", data={"reason": "we left"}) == (
        "log",
        "server_disconnected reason=we left",
    )
    assert marked("server_failed", level="warning", server="s") == ("crash", "server_failed")
    assert marked("elicitation_received", server="s") == ("question", "elicitation_received")
    assert marked("tool_execution_timeout", server="s") == ("promotion", "tool_execution_timeout")
    assert marked("server_output", server="s", data={"text": "hello"}) == ("log", "hello")
    assert marked("config_broken", level="warning") == ("warning", "config_broken")
    client = {"name": "claude-code", "version": "2.1"}
    assert marked("client_connected", data=client) == ("session", "claude-code 2.1")


def test_what_the_records_say_already_or_concerns_no_server_is_no_mark() -> None:
    assert marked("tool_execution_complete", level="debug", server="s") is None
    assert marked("registry_shutdown_start") is None
    assert mark_of(read_line(b"not ours", 0.0)) is None


def test_a_long_log_line_is_cut() -> None:
    kind, text = marked("server_output", server="s", data={"text": "x" * 50_000}) or ("", "")
    assert (kind, len(text)) == ("log", 1_000)
