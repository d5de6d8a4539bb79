"""The watchdog by process groups alone, which is all where no mark can be read; and its renewal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from emceepee_stdio.wire.process_guard import Watchdog
from tests.e2e.clients.raw import Proxy, proxy, until
from tests.peers import plain

NOBODY = "01NOBODYCARRIESTHISMARK00"


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A child in a group of its own, without any mark; gone at the end in any case."""
    with subprocess.Popen(["sleep", "300"], start_new_session=True, env={}) as process:
        try:
            yield process
        finally:
            process.kill()


def left_alone(watchdog: Watchdog) -> None:
    """Its pipe closes and it does its work, however slowly: `close` waits for a second only."""
    process = watchdog._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    process.wait(30)
    watchdog.close()


def test_a_group_that_was_named_goes_when_the_pipe_closes() -> None:
    watchdog = Watchdog(NOBODY)
    watchdog.start()
    with sleeper() as first, sleeper() as second:
        for process in (first, second):
            watchdog.add(process.pid)
        left_alone(watchdog)
        assert (first.wait(30), second.wait(30)) == (-9, -9)


def test_a_group_that_was_taken_back_is_left_alone() -> None:
    watchdog = Watchdog(NOBODY)
    watchdog.start()
    with sleeper() as kept, sleeper() as gone:
        for process in (kept, gone):
            watchdog.add(process.pid)
        watchdog.remove(kept.pid)
        left_alone(watchdog)
        assert gone.wait(30) == -9
        assert kept.poll() is None


def test_one_that_was_killed_is_followed_by_another_that_knows_the_same_groups() -> None:
    watchdog = Watchdog(NOBODY)
    watchdog.start()
    with sleeper() as process:
        watchdog.add(process.pid)
        killed = _pid(watchdog)
        os.kill(killed, signal.SIGKILL)
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
        watchdog.renew()
        assert _pid(watchdog) != killed
        watchdog.renew()
        left_alone(watchdog)
        assert process.wait(30) == -9


def _pid(watchdog: Watchdog) -> int:
    return int(repr(watchdog).removeprefix("<Watchdog pid=").removesuffix(">"))


@pytest.mark.parametrize("depth", ["0", "2"])
def test_the_proxy_starts_another_one_and_its_servers_still_do_not_survive_it(
    tmp_path: Path, depth: str
) -> None:
    with proxy(tmp_path, env={"EMCEEPEE_DEPTH": depth}) as client:
        client.greet()
        check_renewal(client)


# Once there is a file of this name, nothing is heard of the configuration's disk any more.
HANGING_DISK = """
import pathlib, runpy, threading
from emceepee_stdio.config.load import Source

stamp, hangs = Source.stamp, pathlib.Path({hangs!r})

def hang(source):
    if hangs.exists():
        hangs.with_suffix(".seen").touch()
        threading.Event().wait()
    return stamp(source)

Source.stamp = hang
runpy.run_module("emceepee_stdio", run_name="__main__", alter_sys=True)
"""


def test_the_proxy_starts_another_one_while_the_disk_of_its_configuration_hangs(
    tmp_path: Path,
) -> None:
    hangs = tmp_path / "hangs"
    python = [sys.executable, "-c", HANGING_DISK.format(hangs=str(hangs))]
    with proxy(tmp_path, python=python) as client:
        client.greet()
        assert client.phases() == {}  # it has read its configuration
        hangs.touch()
        until(hangs.with_suffix(".seen").exists, "a look at the disk")
        check_renewal(client)


def check_renewal(client: Proxy) -> None:
    argv = plain()
    client.call("add_server", name="server", command=argv[0], args=argv[1:])
    client.run("server", "echo", message="x")
    client.meet_family()
    killed = client.watchdog()
    os.kill(killed, signal.SIGKILL)
    until(lambda: _renewed(client, killed), "another watchdog")
    client.process.kill()
    client.wait()
    until(lambda: not client.left_over(), f"the end of {client.left_over()}")


def _renewed(client: Proxy, killed: int) -> bool:
    client.meet_family()
    client.family.discard(killed)
    return bool(client.watchdogs())
