"""Descendants that hide: on Linux they come to the proxy, and end with it."""

import json
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.clients.raw import Message, Proxy, proxy, until
from tests.e2e.test_shutdown import WAYS

# A server whose only tool starts a descendant: `how` says in which way that one hides.
SERVER = """
import json, os, subprocess, sys
for line in sys.stdin:
    m = json.loads(line)
    if "id" not in m or "method" not in m:
        continue
    if m["method"] == "initialize":
        r = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
             "serverInfo": {"name": "bad", "version": "1"}}
    elif m["method"] == "tools/list":
        r = {"tools": [{"name": "hide", "inputSchema": {"type": "object"}}]}
    elif m["method"] == "tools/call":
        subprocess.Popen([sys.executable, "-c", DESCENDANT, *sys.argv[1:]],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        r = {"content": [{"type": "text", "text": "started"}]}
    else:
        r = {}
    print(json.dumps({"jsonrpc": "2.0", "id": m["id"], "result": r}), flush=True)
"""
DESCENDANT = """
import os, sys, time
where, *how = sys.argv[1:]
if "unmarked" in how and "EMCEEPEE_OWNER" in os.environ:
    code = open("/proc/self/cmdline").read().split(chr(0))[2]
    os.execve(sys.executable, [sys.executable, "-c", code, *sys.argv[1:]], {})
if "left" in how:
    os.setsid()
    if os.fork():
        os._exit(0)
lives = 0
while True:
    with open(where + ".new", "w") as file:
        file.write(f"{os.getpgrp()} {lives}")
    os.rename(where + ".new", where)
    if "forks" not in how:
        time.sleep(300)
    time.sleep(0.001)
    lives += 1
    if os.fork():
        os._exit(0)
"""


class Hidden:
    """The descendant, by the file in which it says who it is. It keeps its group."""

    def __init__(self, where: Path) -> None:
        self._where = where
        self.group = self._read()[0]

    def lives(self) -> int:
        return self._read()[1]

    def is_gone(self) -> bool:
        """Nobody is left in its group, not even to be buried; the kernel answers in one go."""
        try:
            os.killpg(self.group, 0)
        except ProcessLookupError:
            return True
        return False

    def kill(self) -> None:
        """For a test that failed."""
        with suppress(ProcessLookupError):
            os.killpg(self.group, signal.SIGKILL)

    def _read(self) -> tuple[int, int]:
        group, lives = self._where.read_text().split()
        return int(group), int(lives)


def bad(where: Path, *how: str) -> Message:
    code = f"DESCENDANT = {DESCENDANT!r}\n{SERVER}"
    return {"command": sys.executable, "args": ["-c", code, str(where), *how]}


def hide(client: Proxy, server: str, where: Path) -> Hidden:
    client.run(server, "hide")
    client.meet_family()
    until(where.exists, "the descendant")
    return Hidden(where)


def wait_for_the_guard(client: Proxy) -> None:
    """The proxy looks at its orphans before it looks at its file: once this is known, it did."""
    path = client.tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["mcpServers"]["news"] = {"command": "news", "lazy": True}
    path.write_text(json.dumps(config))
    until(lambda: "news" in client.phases(), "the new configuration")


HIDING = {
    "forks": ("forks",),
    "forks in a group of its own": ("left", "forks"),
    "cleared its mark and left its group": ("unmarked", "left"),
    "cleared its mark, left its group and forks": ("unmarked", "left", "forks"),
}


# Of one that hides in every way and forks on, the watchdog of a killed proxy may know nothing yet.
ENDINGS = [
    (way, how)
    for way in ("stdin ends", "SIGTERM", "is killed")
    for how in HIDING
    if way != "is killed" or "forks" not in HIDING[how] or len(HIDING[how]) == 1
]


@pytest.mark.parametrize(("way", "how"), ENDINGS)
def test_no_way_to_hide_survives_the_end_of_the_proxy(tmp_path: Path, way: str, how: str) -> None:
    where = tmp_path / "descendant"
    with proxy(tmp_path, servers={"bad": bad(where, *HIDING[how])}) as client:
        client.greet()
        hidden = hide(client, "bad", where)
        if "forks" in HIDING[how]:
            until(lambda: hidden.lives() > 20, "some forks")
        if way == "is killed":
            wait_for_the_guard(client)
        try:
            WAYS[way](client)
            client.wait()
            until(hidden.is_gone, "its end")
        finally:
            hidden.kill()
        assert "Traceback" not in client.errors()


@pytest.mark.parametrize("how", HIDING)
def test_it_ends_with_its_server_and_the_others_keep_theirs(tmp_path: Path, how: str) -> None:
    """One that comes to us before its server ends and says nothing of it ends with the proxy."""
    theirs = tmp_path / "theirs"
    servers = {"bad": bad(tmp_path / "its", *HIDING[how]), "good": bad(theirs, "unmarked", "left")}
    with proxy(tmp_path, servers=servers) as client:
        client.greet()
        kept = hide(client, "good", theirs)
        hidden = hide(client, "bad", tmp_path / "its")
        try:
            client.call("remove_server", name="bad")
            if "unmarked" not in HIDING[how]:
                until(hidden.is_gone, "its end")
            assert not kept.is_gone()
            client.close_stdin()
            assert client.wait() == 0
            until(lambda: hidden.is_gone() and kept.is_gone(), "the end of both")
        finally:
            hidden.kill()
            kept.kill()
