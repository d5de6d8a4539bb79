"""The inspector's command line in front of the proxy: a process, one request, and its answer."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.clients.lives import COUNTED, check_gone, check_lives
from tests.e2e.clients.raw import PROXY, WAIT_S, entry, proxy, surroundings
from tests.e2e.front_harness import RunningFront, running_front
from tests.peers import inspector, plain


def inspect(tmp_path: Path, method: str, *options: str) -> Any:
    """One request as a person types it; what the inspector prints."""
    env = surroundings(tmp_path, {"plain": entry(plain(), tmp_path, "plain")})
    given = [word for name, value in env.items() for word in ("-e", f"{name}={value}")]
    command = [*COUNTED, str(tmp_path / "proxies"), *PROXY]
    return printed(tmp_path, *given, "--", *command, "--method", method, *options)


def printed(tmp_path: Path, *words: str) -> Any:
    done = subprocess.run(
        [*inspector(), "--cli", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def execute(tmp_path: Path, **arguments: str) -> Any:
    """Call a tool of a server; the inspector reads each value by the schema that we list."""
    pairs = [f"{name}={value}" for name, value in arguments.items()]
    options = [word for pair in pairs for word in ("--tool-arg", pair)]
    return inspect(tmp_path, "tools/call", "--tool-name", "execute_tool", *options)


def test_it_lists_the_tools_as_we_list_them(tmp_path: Path) -> None:
    listed = inspect(tmp_path, "tools/list")
    check_gone(tmp_path, "plain")
    with proxy(tmp_path) as client:
        client.greet()
        assert listed == client.request("tools/list")


def test_it_calls_a_tool_of_a_server(tmp_path: Path) -> None:
    told = execute(tmp_path, server="plain", tool="echo", args='{"message": "a = b"}')
    assert told["content"][0] == {"type": "text", "text": "a = b"}
    check_lives(tmp_path, "plain")


def test_a_failed_call_is_an_answer_to_it(tmp_path: Path) -> None:
    told = execute(tmp_path, server="plain", tool="fial")
    assert told["isError"] is True
    assert "[tool_not_found]" in told["content"][0]["text"]
    check_lives(tmp_path, "plain")


def test_it_lists_and_reads_our_resources(tmp_path: Path) -> None:
    listed = inspect(tmp_path, "resources/list")["resources"]
    assert {one["uri"] for one in listed} == {
        "emceepee://status",
        "emceepee://diagrams",
        "emceepee://trace",
    }
    (read,) = inspect(tmp_path, "resources/read", "--uri", "emceepee://diagrams")["contents"]
    assert len(json.loads(read["text"])["diagrams"]) == 5
    check_gone(tmp_path, "plain", proxies=2)


def test_the_status_that_it_reads_first_of_all_names_the_servers(tmp_path: Path) -> None:
    (read,) = inspect(tmp_path, "resources/read", "--uri", "emceepee://status")["contents"]
    assert [server["name"] for server in json.loads(read["text"])["servers"]] == ["plain"]
    check_gone(tmp_path, "plain")


def inspect_front(front: RunningFront, method: str, *options: str) -> Any:
    return printed(front.tmp_path, front.url, "--method", method, *options)


@pytest.mark.slow
def test_over_http_it_has_the_same_conversation(tmp_path: Path) -> None:
    """Without a token: its command line has no way to send one."""
    servers = {"plain": entry(plain(), tmp_path, "plain")}
    with running_front(tmp_path, "--no-token", servers=servers) as front:
        called = ("--tool-name", "execute_tool", "--tool-arg", "server=plain", "--tool-arg")
        told = inspect_front(
            front, "tools/call", *called, "tool=echo", "--tool-arg", 'args={"message": "a = b"}'
        )
        assert told["content"][0] == {"type": "text", "text": "a = b"}
        failed = inspect_front(front, "tools/call", *called, "tool=fial")
        assert failed["isError"] is True
        assert "[tool_not_found]" in failed["content"][0]["text"]
        (read,) = inspect_front(front, "resources/read", "--uri", "emceepee://status")["contents"]
        assert [server["name"] for server in json.loads(read["text"])["servers"]] == ["plain"]
        listed = inspect_front(front, "tools/list")
        front.look()
    with proxy(tmp_path) as client:
        client.greet()
        assert listed == client.request("tools/list")
