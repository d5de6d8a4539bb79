"""Hosts that show little of a long answer, and cannot ask for us: opencode and Qwen Code."""

import re

import pytest

from tests.e2e.servers.novel import japanese
from tests.real_hosts.dialects import Call
from tests.real_hosts.headless import Headless
from tests.real_hosts.test_whole_results import next_page

pytestmark = pytest.mark.slow

CHARS = 38_000  # about 110,000 bytes


def test_the_servers_are_named_at_the_first_turn_of_the_first_session(
    cutting_host: Headless,
) -> None:
    assert "- library: Long texts, and notes" in cutting_host.run("done").turns[0].text


def test_a_long_text_arrives_with_its_event_both_ends_and_the_way_to_the_rest(
    cutting_host: Headless,
) -> None:
    asked = {"server": "library", "tool": "long_text", "args": {"chars": CHARS}}
    first, *pages = cutting_host.run(
        Call("execute_readonly_tool", asked), *[next_page] * 9
    ).last.results
    whole, rest = letters(japanese(CHARS)), letters("".join(map("".join, pages)))
    shown = "".join(first)
    assert "before the text" in shown
    assert re.search(r"emceepee://results/\w+.*offset=", shown)
    assert letters(shown).endswith(whole[-1_000:])
    assert whole.endswith(rest)
    assert letters(shown).startswith(whole.removesuffix(rest))


def letters(text: str) -> str:
    """The Japanese ones: the host joins the blocks of an answer with line ends of its own."""
    return re.sub(r"[^\u3000-\u9fff]", "", text)


def test_no_program_is_started_that_no_person_has_seen(cutting_host: Headless) -> None:
    mark = cutting_host.place / "started"
    new = {"name": "new", "command": "sh", "args": ["-c", f"touch {mark}; sleep 9"]}
    (said,) = cutting_host.run(Call("add_server", new)).last.results
    assert "[needs_approval]" in "".join(said)
    assert not mark.exists()
