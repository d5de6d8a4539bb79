"""What a host waits for is kept to, by its name and by what it says in our environment."""

from pathlib import Path

import pytest

from tests.e2e.clients.raw import entry
from tests.e2e.hosts import host
from tests.peers import plain


@pytest.mark.parametrize(
    ("client", "told", "lowered_ms"),
    [
        ("claude-code", "1000", 500),
        ("claude-code", "6000", 1_000),
        ("codex-mcp-client", "6000", 1_000),
        ("somebody else", "6000", 1_000),
    ],
)
def test_a_host_that_tells_its_limit_gets_a_task_before_it(
    tmp_path: Path, client: str, told: str, lowered_ms: int
) -> None:
    servers = {"s": entry(plain("--era", "legacy"), tmp_path, "s")}
    env = {"MCP_TOOL_TIMEOUT": told}
    with host(tmp_path, client=client, servers=servers, env=env) as here:
        said = here.use(
            "execute_tool", server="s", tool="slow", args={"seconds": 60}, timeout_ms=60_000
        )
        assert f"timeout_ms was lowered to {lowered_ms}," in said.text
        assert '"proxy_task"' in said.text


@pytest.mark.parametrize(
    ("client", "ceiling_ms"),
    [("claude-code", 110_000), ("codex-mcp-client", 240_000), ("somebody else", 45_000)],
)
def test_the_longest_wait_goes_by_the_name_of_the_client(
    tmp_path: Path, client: str, ceiling_ms: int
) -> None:
    servers = {"s": entry(plain("--era", "legacy"), tmp_path, "s")}
    with host(tmp_path, client=client, servers=servers, elicits=False) as here:
        said = here.use("execute_tool", server="s", tool="ask", args={}, timeout_ms=ceiling_ms + 1)
        assert f"timeout_ms was lowered to {ceiling_ms}," in said.text
