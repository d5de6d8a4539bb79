"""Descendants that hide: on Linux they come to the proxy, and end with it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.clients.raw import Proxy, proxy, until
from tests.e2e.test_shutdown import WAYS
from tests.peers import SERVERS, plain


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


def hide(client: Proxy, server: str, where: Path, how: Sequence[str]) -> Hidden:
    """Have the server start a descendant that hides in these ways."""
    client.run(server, "hide", where=str(where), how=list(how))
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


BAD = {"command": plain()[0], "args": plain("--hostile")[1:]}


@pytest.mark.parametrize("how", HIDING)
@pytest.mark.parametrize("way", ["stdin ends", "SIGTERM", "is killed"])
def test_no_way_to_hide_survives_the_end_of_the_proxy(tmp_path: Path, way: str, how: str) -> None:
    where = tmp_path / "descendant"
    with proxy(tmp_path, servers={"bad": BAD}) as client:
        client.greet()
        hidden = hide(client, "bad", where, HIDING[how])
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


# Adopts one that forks every millisecond, and looks at it again and again.
LOOKING = """
import os, signal, subprocess, sys
from pathlib import Path
from emceepee_stdio.wire.orphans import adopt_orphans, bury_orphans, expect_orphans, note_child
script, where = sys.argv[1:]
expect_orphans()
adopt_orphans()
first = subprocess.Popen([sys.executable, script, where, "left", "forks"])
note_child(first.pid)
first.wait()
while not Path(where).exists():
    pass
group = int(Path(where).read_text().split()[0])
print({frozenset(bury_orphans()) for _ in range(3000)} == {frozenset({group})})
os.killpg(group, signal.SIGKILL)
"""


def test_no_look_at_one_that_forks_on_misses_its_group(tmp_path: Path) -> None:
    script = SERVERS / "descendant.py"
    looked = subprocess.run(
        [sys.executable, "-c", LOOKING, str(script), str(tmp_path / "descendant")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert looked.stdout == "True\n", looked.stderr


@pytest.mark.parametrize("how", HIDING)
def test_it_ends_with_its_server_and_the_others_keep_theirs(tmp_path: Path, how: str) -> None:
    """One that comes to us before its server ends and says nothing of it ends with the proxy."""
    theirs = tmp_path / "theirs"
    with proxy(tmp_path, servers={"bad": BAD, "good": BAD}) as client:
        client.greet()
        kept = hide(client, "good", theirs, ("unmarked", "left"))
        hidden = hide(client, "bad", tmp_path / "its", HIDING[how])
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
