"""A call that takes longer than the host waits: a task in time, whose result is fetched."""

import re

import pytest

from tests.real_hosts.dialects import Call, Turn
from tests.real_hosts.headless import ClaudeCode, Codex, Headless

pytestmark = pytest.mark.slow

GIVES_UP_MS = 6_000
CEILING_MS = 1_000


def becomes_a_task_and_is_fetched(host: Headless, **env: str) -> None:
    """The file that the call waits for comes when the model has been told of the task."""
    file = host.place / "it"

    def fetch(turn: Turn) -> Call:
        file.touch()
        task_id = re.search(r'"task_id":"(\w+)"', turn.text)
        assert task_id is not None, turn.result
        return Call("get_task_result", {"task_id": task_id[1]})

    asked = {"server": "library", "tool": "wait_for", "args": {"file": str(file)}}
    asked["timeout_ms"] = 60_000
    ran = host.run(Call("execute_readonly_tool", asked), *[fetch] * 3, **env)
    assert f"timeout_ms was lowered to {CEILING_MS}," in ran.turns[1].result
    assert "it is there" in ran.last.result


def test_claude_code_gets_a_task_before_the_limit_that_it_has_in_its_environment(
    claude_code: ClaudeCode,
) -> None:
    becomes_a_task_and_is_fetched(claude_code, MCP_TOOL_TIMEOUT=str(GIVES_UP_MS))


def test_codex_gets_a_task_at_the_ceiling_that_is_configured_for_its_name(codex: Codex) -> None:
    codex.settings = {"client_ceilings_ms": {"codex": CEILING_MS}}
    codex.options = ("-c", f"mcp_servers.emceepee.tool_timeout_sec={GIVES_UP_MS / 1000}")
    becomes_a_task_and_is_fetched(codex)
