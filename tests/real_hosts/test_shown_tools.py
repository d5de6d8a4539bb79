"""What a model is shown of emceepee before it has done anything, and what it finds."""

import pytest

from emceepee_stdio.tools import TABLE
from tests.e2e.servers.novel import japanese
from tests.real_hosts.dialects import Call, Script, Search
from tests.real_hosts.headless import ClaudeCode, Codex, Headless

pytestmark = pytest.mark.slow

CORE = {name for name, tool in TABLE.items() if "anthropic/alwaysLoad" in tool.meta}
ALL = set(TABLE)
LOOP = "list_tools finds the right tool"  # of the instructions
CODE_MODE = ("--model", "gpt-6.1-sol")  # it calls tools by scripts
DEFERRED = ("-c", "mcp_servers.emceepee.omit_tools_from=[]")  # as if `install` had not written it


def test_claude_code_shows_the_core_at_the_first_turn_and_names_the_rest(
    claude_code: ClaudeCode,
) -> None:
    (first,) = claude_code.run().turns
    assert set(first.tools) == CORE
    assert LOOP in first.text
    for name in ALL - CORE:
        assert f"mcp__emceepee__{name}\n" in first.text


def test_claude_code_finds_the_tool_that_pages(claude_code: ClaudeCode) -> None:
    _, found = claude_code.run(Search("read the next page of a stored result")).turns
    assert set(found.tools) == CORE | {"read_resource"}


@pytest.mark.parametrize("model", ["gpt-5.5", "a model that it does not know"])
def test_codex_shows_every_tool_at_the_first_turn(codex: Codex, model: str) -> None:
    codex.options = ("--model", model)
    (first,) = codex.run().turns
    assert set(first.tools) == ALL
    assert LOOP in first.text


def test_codex_in_code_mode_shows_every_tool_at_the_first_turn(codex: Codex) -> None:
    codex.options = CODE_MODE
    calls = "text(await tools.mcp__emceepee__list_servers({}))"
    first, ran = codex.run(Script(calls)).turns
    assert LOOP in first.text
    for name in ALL:
        assert f"### `mcp__emceepee__{name}`" in first.text
    assert "library" in ran.result


def test_codex_with_an_entry_of_ones_own_shows_the_instructions_and_finds_the_tools(
    codex: Codex,
) -> None:
    codex.options = DEFERRED
    first, found = codex.run(Search("run a tool of a server")).turns
    assert not first.tools
    assert LOOP in first.text
    assert found.results[0][:2] == ("execute_tool", "execute_readonly_tool")
    assert {"execute_tool", "execute_readonly_tool", "list_tools"} <= set(found.tools)


def test_codex_in_code_mode_with_an_entry_of_ones_own_shows_nothing_before_it_is_asked(
    codex: Codex,
) -> None:
    codex.options = (*CODE_MODE, *DEFERRED)
    look = "text(ALL_TOOLS.filter(t => /execute_readonly_tool/.test(t.name)))"
    first, found = codex.run(Script(look)).turns
    assert "emceepee" not in first.text
    assert LOOP in found.result


def test_the_instructions_name_the_servers_from_the_first_run_on(host: Headless) -> None:
    line = "- library: Long texts, and notes"
    (first,) = host.run(Call("list_servers", {})).turns[:1]
    (second,) = host.run().turns
    assert line in first.text
    assert line in second.text


def test_an_exposed_tool_has_its_own_name_at_the_first_turn_of_the_second_run(
    host: Headless,
) -> None:
    host.servers = {"library": {**host.servers["library"], "expose": ["long_text"]}}
    forever = {"server": "library", "tool": "wait_for", "args": {"file": "/no/such/file"}}
    host.run(Call("execute_readonly_tool", {**forever, "timeout_ms": 3_000}))
    first, ran = host.run(Call("library__long_text", {"chars": 20})).turns
    assert "library__long_text" in first.text
    assert ran.result.endswith(japanese(20))
