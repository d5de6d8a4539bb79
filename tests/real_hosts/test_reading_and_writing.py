"""What a host runs by itself, and what it asks a person for, where there is none."""

import pytest

from tests.real_hosts.dialects import Call
from tests.real_hosts.headless import ClaudeCode, Codex

pytestmark = pytest.mark.slow

READ = {"server": "library", "tool": "long_text", "args": {"chars": 20}}
WRITE = {"server": "library", "tool": "write_note", "args": {"words": "x"}}
READ_WELL = "第〇〇〇〇〇行"


def test_codex_exec_runs_what_only_reads_and_refuses_the_other_road(codex: Codex) -> None:
    steps = [Call("execute_readonly_tool", READ), Call("execute_tool", READ)]
    steps += [Call("execute_tool", WRITE), Call("execute_readonly_tool", WRITE)]
    read, same, written, dodged = codex.run(*steps).last.results
    assert READ_WELL in read[-1]
    assert "requires approval" in same[-1]
    assert "requires approval" in written[-1]
    assert "[policy_denied]" in dodged[-1]


def test_codex_exec_runs_both_roads_where_the_person_approved_them(codex: Codex) -> None:
    codex.options = ("-c", 'mcp_servers.emceepee.default_tools_approval_mode="approve"')
    (written,) = codex.run(Call("execute_tool", WRITE)).last.results
    assert written[-1] == "written: x"


def test_claude_code_runs_what_only_reads_where_a_rule_allows_that_road_alone(
    claude_code: ClaudeCode,
) -> None:
    claude_code.options = ("--allowedTools", "mcp__emceepee__execute_readonly_tool")
    steps = [Call("execute_readonly_tool", READ), Call("execute_tool", WRITE)]
    read, written = claude_code.run(*steps).last.results
    assert READ_WELL in read[0]
    assert "haven't granted it" in written[0]
