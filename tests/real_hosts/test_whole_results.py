"""What a model is shown of results: all of it, once, and with what came beside it."""

import re

import pytest

from tests import peers
from tests.e2e.servers.novel import japanese
from tests.real_hosts.dialects import Call, Reply, Turn
from tests.real_hosts.headless import ClaudeCode, Headless
from tests.real_hosts.model_api import DONE

pytestmark = pytest.mark.slow

CHARS = 38_000  # about 110,000 bytes
FILE = "".join(f"line {number:04d} of a file\n" for number in range(1_500))  # 31,500 bytes
LINE = "{:03d}: " + "x" * 900


def next_page(turn: Turn) -> Reply:
    """As the last answer says; nothing when it was the last page."""
    offset = re.search(r'(?:offset=|"next_offset":)(\d+)', turn.result)
    if offset is None:
        return DONE
    uri = re.findall(r"emceepee://results/\w+", turn.text)[-1]
    return Call("read_resource", {"server": "emceepee", "uri": uri, "offset": int(offset[1])})


def test_a_long_japanese_text_with_an_event_reaches_the_model_whole(host: Headless) -> None:
    asked = {"server": "library", "tool": "long_text", "args": {"chars": CHARS}}
    shown = host.run(Call("execute_readonly_tool", asked), *[next_page] * 4).last.results
    assert "before the text" in "".join(shown[0])
    assert "".join(max(texts, key=len) for texts in shown) == japanese(CHARS)


def test_a_file_of_server_filesystem_is_shown_once_and_whole(host: Headless) -> None:
    project = host.place / "project"
    project.mkdir()
    (project / "it.txt").write_text(FILE)
    command, *args = peers.filesystem(project)
    host.servers = {"files": {"command": command, "args": args}}
    path = {"path": str(project / "it.txt")}
    asked = {"server": "files", "tool": "read_text_file", "args": path}
    (shown,) = host.run(Call("execute_readonly_tool", asked)).last.results
    assert shown[-1] == FILE
    assert sum(map(len, shown)) < len(FILE) + 100


def test_claude_code_shows_logs_whole_that_are_nearly_as_long_as_an_answer_may_be(
    claude_code: ClaudeCode,
) -> None:
    lines = [LINE.format(number) for number in range(95)]
    asked = {"server": "library", "tool": "complain", "args": {"lines": lines}}
    steps = Call("execute_tool", asked), Call("get_logs", {"server": "library"})
    said, logs = claude_code.run(*steps).last.results
    assert said == ("95 lines",)
    for line in lines:
        assert line in logs[0]
