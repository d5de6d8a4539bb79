"""Tools of the SDK that can ask in one era only: the error names the switch to the other."""

import sys
from pathlib import Path

import pytest

from emceepee_stdio.backends.interface import RemoteError
from tests import peers
from tests.e2e.backend_harness import Reply, beside, running

ARGV = [sys.executable, str(peers.SERVERS / "sdk2_ask.py")]
ADA = {"action": "accept", "content": {"name": "Ada"}}


@pytest.mark.parametrize(
    ("combination", "tool", "code", "other"),
    [
        ("stdio-modern", "push", -32600, "legacy"),
        ("stdio-legacy", "in_rounds", -32603, "modern"),
    ],
)
async def test_a_tool_of_the_other_era_fails_with_the_name_of_the_switch(
    tmp_path: Path, combination: str, tool: str, code: int, other: str
) -> None:
    async with running(combination, tmp_path, argv=ARGV) as rig:
        outcome = await beside(rig, tool)
        assert isinstance(outcome.error, RemoteError)
        assert outcome.error.error.code == code
        assert f"reconnect_server for server with era {other}" in str(outcome.error)
        assert rig.sink.questions == []


async def test_the_switch_helps_a_tool_that_pushes(tmp_path: Path) -> None:
    async with running("stdio-legacy", tmp_path, argv=ARGV) as rig:
        outcome = await beside(rig, "push", Reply(rig, ADA))
        assert outcome.text == "hello Ada"


async def test_the_switch_helps_a_tool_that_asks_in_rounds(tmp_path: Path) -> None:
    async with running("stdio-modern", tmp_path, argv=ARGV, rounds=2) as rig:
        outcome = await beside(rig, "in_rounds", Reply(rig, ADA, ADA))
        assert "asked 3 times in a row" in str(outcome.error)
        assert [question.call for question in rig.sink.questions] == ["in_rounds"] * 2


async def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    async with running("stdio-modern", tmp_path, argv=peers.plain()) as rig:
        outcome = await beside(rig, "rpc_error", code=-32600)
        assert isinstance(outcome.error, RemoteError)
        assert "era" not in outcome.error.next_step.split()
