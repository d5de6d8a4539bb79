"""`emceepee doctor --http`: what is behind a running front, and what the check leaves in it."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import PROXY, WAIT_S, Message, entry, surroundings
from tests.e2e.front_harness import RunningFront, http_client, running_front
from tests.e2e.sign_in_harness import protected
from tests.peers import plain, rude


async def doctor(
    front: RunningFront, servers: Mapping[str, Message], *options: str
) -> subprocess.CompletedProcess[str]:
    env = surroundings(front.tmp_path, servers)
    command = [*PROXY, "doctor", "--http", front.url, *options]
    run = lambda: subprocess.run(  # noqa: E731 - for the thread
        command, capture_output=True, text=True, env=env, timeout=WAIT_S, check=False
    )
    return await anyio.to_thread.run_sync(run)


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    found = json.loads(done.stdout)["checks"]
    return {check["id"].removeprefix("backend."): check for check in found}


async def test_servers_of_the_front_that_cannot_be_used_are_reported(tmp_path: Path) -> None:
    async with protected() as place:
        servers = {
            "well": entry(plain(), tmp_path, "well"),
            "exits": entry(rude("exit-at-once", "3"), tmp_path, "exits", restart={"attempts": 0}),
            "unset": entry(plain(), tmp_path, "unset", cwd="${NOT_SET_HERE}"),
            "off": entry(plain(), tmp_path, "off", disabled=True),
            "locked": place.entry(),
        }
        with running_front(tmp_path, servers=servers) as front:
            done = await doctor(front, servers)
            assert done.returncode == 4, done.stdout + done.stderr
            assert "All is well" not in done.stdout
            verdict = "Failed: front/exits. Broken: front/unset. Sign-in needed: front/locked."
            assert done.stdout.endswith(f"{verdict}\n")
            assert "\nfront/unset\tbroken\tIts entry is broken: " in done.stdout
            found = checks(await doctor(front, servers, "--json"))
            front.look()
    assert {name: check["status"] for name, check in found.items()} == {
        "front": "ok",
        "front/exits": "failed",
        "front/unset": "failed",
        "front/locked": "auth",
    }
    exits = found["front/exits"]
    assert exits["summary"].startswith("exits exited with code 3.")
    assert exits["details"]["stderr"] == ["rude: cannot start: the license file is missing"]
    assert exits["remediation"].endswith(":\n  emceepee tail-logs --server exits")
    assert "NOT_SET_HERE" in found["front/unset"]["summary"]
    assert found["front/unset"]["details"]["state"] == "broken"
    assert found["front/unset"]["remediation"].endswith(":\n  emceepee config check")
    assert found["front/locked"]["remediation"].endswith(":\n  emceepee login locked")


def test_a_server_that_is_slow_to_start_has_its_time(tmp_path: Path) -> None:
    """It does nothing before the front itself was found to be well, which is told at once."""
    go_on = tmp_path / "go-on"
    wait = 'until [ -e "$1" ]; do sleep 0.02; done; shift; exec "$@"'
    slow = ["/bin/sh", "-c", wait, "sh", str(go_on), *rude("exit-at-once", "3")]
    servers = {"slow": entry(slow, tmp_path, "slow", restart={"attempts": 0})}
    with running_front(tmp_path, servers=servers) as front:
        command = [*PROXY, "doctor", "--http", front.url]
        env = surroundings(tmp_path, servers)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
            assert process.stdout is not None
            while not (line := process.stdout.readline()).startswith("front\tok\t"):
                assert line, "it ended before it told of the front"
            front.look()
            go_on.touch()
            said, _ = process.communicate(timeout=WAIT_S)
    assert "front/slow\tfailed\tslow exited with code 3." in said


def test_the_name_of_a_server_of_the_front_is_not_broken(tmp_path: Path) -> None:
    servers = {"a-longer-name": entry(plain(), tmp_path, "s", cwd="${NOT_SET_HERE}")}
    with running_front(tmp_path, servers=servers) as front:
        home = Home(tmp_path / "home", env={"EMCEEPEE_HTTP_TOKEN": front.token or ""})
        home.write({})
        with home.screen("doctor", "--http", front.url, color=False) as screen:
            assert screen.wait() == 4
            assert screen.fits()
        front.look()
    assert re.search(r"front/a-longer-name +broken ", screen.text)


async def test_the_check_leaves_no_session_in_the_front(tmp_path: Path) -> None:
    servers = {"well": entry(plain(), tmp_path, "well")}
    with running_front(tmp_path, servers=servers) as front:
        done = await doctor(front, servers)
        assert (done.returncode, "All is well." in done.stdout) == (0, True), done.stdout
        async with http_client(front) as client:
            url = f"{front.base}/metrics"
            while "emceepee_sessions 0\n" not in (
                said := (await client.http.get(url, headers=front.authorization)).text
            ):
                assert "emceepee_sessions 1\n" in said
                await anyio.sleep(0.02)
        assert "emceepee_sessions_begun_total 1\n" in said


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("127.0.0.1:18431", "http://127.0.0.1:18431/mcp"),
        ("ftp://host/mcp", "http://host/mcp"),
        ("http://", "http://127.0.0.1:8080/mcp"),
    ],
)
def test_what_is_no_address_is_said_of_the_address(tmp_path: Path, given: str, right: str) -> None:
    done = subprocess.run(
        [*PROXY, "doctor", "--http", given],
        capture_output=True,
        text=True,
        env=surroundings(tmp_path),
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    said = " ".join(done.stderr.split())
    assert f"{given!r} is no address of an HTTP front." in said
    assert said.endswith(f"such as {right}")
    assert "config check" not in said
