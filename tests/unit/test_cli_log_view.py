import re

import pytest
from rich.color import Color

from emceepee_stdio.cli.tail_logs import STYLES, Story, _cut, plain_text, story_of
from emceepee_stdio.journal.journal_reader import DatedLine
from emceepee_stdio.journal.writer import Record


def _luminance(style: str) -> float:
    """As the guidelines for accessible pages measure it."""
    name = re.search(r"color\(\d+\)", style)
    assert name is not None
    rgb = Color.parse(name[0]).get_truecolor()
    red, green, blue = (
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("style", STYLES.values())
def test_every_colour_can_be_read_on_black_and_on_white(style: str):
    on_black = (_luminance(style) + 0.05) / 0.05
    on_white = 1.05 / (_luminance(style) + 0.05)
    assert min(on_black, on_white) > 3.8


def record(event: str, **data: object) -> Record:
    return Record(timestamp="", level="info", event=event, session="s", data=data)


@pytest.mark.parametrize(
    ("found", "story"),
    [
        (
            record("server_output", source="stderr", text="a = b"),
            Story("stderr: a = b", ""),
        ),
        (
            record("task_failed", task_id="1", error="It broke.\nHere:\n  there", tool="t"),
            Story("task_failed: It broke.", "task_id=1 tool=t", ("Here:", "  there")),
        ),
        (
            record("server_disconnected", exit_code=3, reason="It went.", stderr=["a", "b c"]),
            Story("server_disconnected: It went.", "exit_code=3", ("a", "b c")),
        ),
        (
            record("client_connected", name="raw", version="1", pid=7),
            Story("client_connected: raw 1", "pid=7"),
        ),
        (
            record(
                "request_ended", tool="t", outcome="ok", duration_ms=61_500, kind="task", id="x"
            ),
            Story("task t ok 1 min 1 s", ""),
        ),
        (
            record("request_ended", tool="t", outcome="error", duration_ms=0.25, error_code="e"),
            Story("call t error 0.2 ms", "error_code=e"),
        ),
        (
            record("request_ended", method="resources/read", outcome="ok", duration_ms=12.3),
            Story("resources/read ok 12 ms", ""),
        ),
        (record("anything", a=1, b="x y"), Story("anything", 'a=1 b="x y"')),
    ],
    ids=lambda value: value.event if isinstance(value, Record) else "",
)
def test_what_is_useful_comes_first(found: Record, story: Story):
    assert story_of(found) == story


def test_in_a_pipe_all_of_it_is_one_line():
    found = record("server_disconnected", reason="It went.", stderr=["a", "b"])
    assert (
        plain_text(DatedLine(b"", 0.0, found)) == 'server_disconnected: It went. stderr=["a","b"]'
    )


@pytest.mark.parametrize(
    ("texts", "columns", "shown"),
    [
        (["abc", "def"], 6, "abcdef"),
        (["abc", "def"], 5, "abcd…"),
        (["abc", "def"], 3, "ab…"),
        (["日本語"], 6, "日本語"),
        (["日本語"], 5, "日本…"),
        (["日本語"], 4, "日 …"),
        (["abc"], 1, "…"),
    ],
)
def test_a_line_is_cut_to_the_columns_that_it_has(texts: list[str], columns: int, shown: str):
    assert "".join(text for text, _ in _cut([(text, "") for text in texts], columns)) == shown
