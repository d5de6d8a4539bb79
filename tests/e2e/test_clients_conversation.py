"""Real clients in front of the proxy: each SDK, in every mode, has the same full conversation."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.lives import COUNTED, check_lives
from tests.e2e.clients.raw import PROXY, WAIT_S, Message, entry, own_first, surroundings
from tests.e2e.front_harness import running_front
from tests.peers import PeerMissingError, node_modules, peer_python, plain

CLIENTS = Path(__file__).resolve().parent / "clients"
LEGACY, MODERN = "2025-11-25", "2026-07-28"

CASES = {
    "py2 auto": ("py2.py", "auto", MODERN),
    "py2 legacy": ("py2.py", "legacy", LEGACY),
    "py2 modern": ("py2.py", MODERN, MODERN),
    "py1": ("py1.py", "legacy", LEGACY),
    "ts1": ("ts1.mjs", "legacy", LEGACY),
    "ts2 legacy": ("ts2.mjs", "legacy", LEGACY),
    "ts2 auto": ("ts2.mjs", "auto", MODERN),
    "ts2 modern": ("ts2.mjs", MODERN, MODERN),
}
# These probe in a second process, which they end right after.
PROBING = {"ts2 auto", "ts2 modern"}


def interpreter(script: str) -> str:
    if script == "py2.py":
        return sys.executable
    if script == "py1.py":
        return str(peer_python("py-mcp1"))
    node = shutil.which("node")
    if node is None:
        raise PeerMissingError("node")
    return node


def drive(script: str, mode: str, tmp_path: Path, way: dict[str, Any]) -> dict[str, Any]:
    """Run the client to its end; what it has to report."""
    program = interpreter(script)
    plan = {
        **way,
        "server": entry(plain(), tmp_path, "added"),
        "mode": mode,
        "modules": str(node_modules()) if script.endswith(".mjs") else "",
    }
    done = subprocess.run(
        [program, str(CLIENTS / script), json.dumps(plan)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    facts["stderr"] = done.stderr
    return facts


def texts(result: Message) -> list[str]:
    return [block["text"] for block in own_first(result) if block["type"] == "text"]


def check_conversation(facts: dict[str, Any], version: str) -> None:
    assert facts["complaints"] == []
    assert facts["stderr"] == ""
    assert facts["version"] == version
    assert "add_server" in {tool["name"] for tool in facts["tools"]}
    assert {resource["uri"] for resource in facts["resources"]} == {
        "emceepee://status",
        "emceepee://diagrams",
        "emceepee://trace",
    }
    added = json.loads(texts(facts["added"])[0])
    assert (added["phase"], added["counts"]["resources"]) == ("connected", 2)
    assert texts(facts["echo"])[0] == "hello"
    assert facts["image"]["content"][1]["mimeType"] == "image/png"
    assert facts["image"]["content"][1]["annotations"]["priority"] == 0.5
    assert facts["image"]["_meta"]["fixture/key"] == 1
    assert facts["failed"]["isError"] is True
    assert facts["unknown"]["isError"] is True
    assert "server_not_found" in texts(facts["unknown"])[0]
    assert texts(facts["progress"])[0] == "3 steps"
    assert facts["steps"][:2] == [[1, 3], [2, 3]]
    assert texts(facts["slow_result"])[0] == "slept 0.2"
    elicited = json.loads(texts(facts["ask_result"])[0])
    assert elicited == {"action": "accept", "content": {"name": "Ada", "age": 36}}
    (status,) = facts["status"]
    assert [server["name"] for server in json.loads(status["text"])["servers"]][-1] == "plain"
    assert len(json.loads(facts["diagrams"][0]["text"])["diagrams"]) == 5
    assert facts["not_found"][0] in (-32602, -32002)
    assert "emceepee://nothing" in facts["not_found"][1]


def by_stdio(tmp_path: Path, servers: dict[str, Message]) -> dict[str, Any]:
    return {
        "command": [*COUNTED, str(tmp_path / "proxies"), *PROXY],
        "env": surroundings(tmp_path, servers),
        "cwd": str(tmp_path),
    }


@pytest.mark.parametrize("case", CASES)
def test_a_real_client_has_a_full_conversation_and_leaves_nothing(
    tmp_path: Path, case: str
) -> None:
    script, mode, version = CASES[case]
    servers = {"configured": entry(plain(), tmp_path, "configured")}
    facts = drive(script, mode, tmp_path, by_stdio(tmp_path, servers))
    check_conversation(facts, version)
    if case != "py2 modern":  # a client that pins the version asks nobody who the server is
        assert facts["server_info"]["name"] == "emceepee"
        assert "add_server" in facts["instructions"]
    check_lives(tmp_path, "configured", "added", proxies=2 if case in PROBING else 1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.slow
def test_a_real_client_has_the_same_conversation_over_http(tmp_path: Path, case: str) -> None:
    script, mode, version = CASES[case]
    servers = {"configured": entry(plain(), tmp_path, "configured")}
    with running_front(tmp_path, servers=servers) as front:
        way = {"url": front.url, "headers": front.authorization}
        check_conversation(drive(script, mode, tmp_path, way), version)
        front.look()
