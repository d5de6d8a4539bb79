"""Descendants that hide: on Linux they come to the proxy, and end with it."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

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


def orphans_of(client: Proxy, group: int) -> list[int]:
    """The proxy's own children that are in this group, also the dead ones."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            _, parent, its_group = (path / "stat").read_text().rpartition(")")[2].split()[:3]
            if (int(parent), int(its_group)) == (client.process.pid, group):
                found.append(int(path.name))
    return found


def wait_for_the_guard(client: Proxy) -> None:
    """The proxy looks at all its orphans at once: when it buries this one, it knows the others."""
    other = hide(client, "bad", client.tmp_path / "other", ("left",))
    assert orphans_of(client, other.group)
    other.kill()
    until(lambda: not orphans_of(client, other.group), "the guard's look at the orphans")
    client.phases()  # answered after that look


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


@pytest.mark.parametrize("depth", ["0", "1", "2", "3"])
def test_dead_descendants_are_buried_at_every_depth(tmp_path: Path, depth: str) -> None:
    with proxy(tmp_path, env={"EMCEEPEE_DEPTH": depth}) as client:
        client.greet()
        client.call("add_server", name="bad", **BAD)
        hidden = hide(client, "bad", tmp_path / "descendant", ("left", "forks"))
        until(lambda: hidden.lives() > 20, "some forks")
        assert orphans_of(client, hidden.group)
        hidden.kill()
        until(lambda: not orphans_of(client, hidden.group), "the burial of all of them")


# A process that adopts one that forks every millisecond, in a group of its own.
ADOPTING = """
import os, signal, subprocess, sys
from contextlib import suppress
from pathlib import Path
from emceepee_stdio.wire.orphans import adopt_orphans, bury_orphans, expect_orphans, note_child
from emceepee_stdio.clock import Clock
from emceepee_stdio.wire.orphans import kill_marked

script, where, mark = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
told = lambda: [int(word) for word in where.read_text().split()]
expect_orphans()
adopt_orphans()
env = {**os.environ, "EMCEEPEE_OWNER": mark + ".x"}
first = subprocess.Popen([sys.executable, script, where, "left", "forks"], env=env)
note_child(first.pid)
first.wait()
while not where.exists():
    pass
group = told()[0]
"""
LOOKING = """
print({frozenset(bury_orphans()) for _ in range(3000)} == {frozenset({group})})
os.killpg(group, signal.SIGKILL)
"""
# The clock stands still: only what is seen ends the looking.
SPARING = """
looks = []
kill_marked("01OTHER", clock=Clock(monotonic=lambda: looks.append(0) or 0.0, wall=lambda: 0.0))
print(len(looks) < 25 and group in bury_orphans())
os.killpg(group, signal.SIGKILL)
"""
ENDING = """
while told()[1] < 300:
    pass
kill_marked(mark)
bury_orphans()
print(bury_orphans() == set())
with suppress(ProcessLookupError):
    os.killpg(group, signal.SIGKILL)
"""


def adopted(tmp_path: Path, and_then: str) -> str:
    argv = [sys.executable, "-c", ADOPTING + and_then]
    # A mark of its own: who carries it is killed anywhere on the machine, in another test, too.
    argv += [str(SERVERS / "descendant.py"), str(tmp_path / "descendant"), f"01{uuid4().hex}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout + done.stderr


def test_no_look_at_one_that_forks_on_misses_its_group(tmp_path: Path) -> None:
    assert adopted(tmp_path, LOOKING) == "True\n"


def test_one_that_forks_on_costs_little_when_another_server_ends(tmp_path: Path) -> None:
    assert adopted(tmp_path, SPARING) == "True\n"


def test_one_that_forks_on_is_ended_however_many_of_its_forks_nobody_has_buried(
    tmp_path: Path,
) -> None:
    assert adopted(tmp_path, ENDING) == "True\n"


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
