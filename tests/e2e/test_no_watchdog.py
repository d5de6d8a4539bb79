"""Where the watchdog cannot be started, as in an image without a shell, everything else works."""

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from emceepee_stdio.wire import process_guard as module
from emceepee_stdio.wire.process_guard import Watchdog
from tests.e2e.clients.raw import Proxy, entry, proxy
from tests.e2e.test_watchdog import NOBODY, left_alone, sleeper
from tests.peers import plain

WITHOUT_SHELL = (
    "import runpy\n"
    "from emceepee_stdio.wire import process_guard\n"
    "process_guard.SHELL = {shell!r}\n"
    "runpy.run_module('emceepee_stdio', run_name='__main__', alter_sys=True)\n"
)


@pytest.fixture(params=["missing", "not executable", "a directory", "no program"])
def bad_shell(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "sh"
    if request.param == "not executable":
        path.write_text("#!/bin/sh\n")
    elif request.param == "a directory":
        path.mkdir()
    elif request.param == "no program":
        path.write_bytes(b"\0\0\0\0")
        path.chmod(0o755)
    return str(path)


def test_servers_start_and_end_without_a_watchdog_and_the_journal_says_so_once(
    tmp_path: Path, bad_shell: str
) -> None:
    servers = {name: entry(plain(), tmp_path, name) for name in ("one", "two")}
    python = [sys.executable, "-c", WITHOUT_SHELL.format(shell=bad_shell)]
    with proxy(tmp_path, servers=servers, python=python) as client:
        client.greet()
        for name in servers:
            assert client.run(name, "echo", message="hi").startswith("hi")
        family = client.meet_family()
        assert len(family) == len(servers), "each server, and nothing else"
        client.call("reconnect_server", name="one")
        assert client.run("one", "echo", message="again").startswith("again")
        client.meet_family()
        client.close_stdin()
        assert client.wait() == 0
        assert client.left_over() == set()
        (warning,) = warnings(client)
        assert warning["level"] == "warning"
        assert bad_shell in str(warning)
        assert "watchdog_unavailable" in client.errors()


def warnings(client: Proxy) -> list[dict[str, Any]]:
    return [line for line in client.journal() if line["event"] == "watchdog_unavailable"]


def test_a_watchdog_that_could_not_be_started_tells_once_and_tries_again(
    monkeypatch: pytest.MonkeyPatch, bad_shell: str
) -> None:
    told: list[str] = []
    watchdog = Watchdog(NOBODY, warn=told.append)
    with sleeper() as early, sleeper() as later, sleeper() as ended:
        with monkeypatch.context() as patch:
            patch.setattr(module, "SHELL", bad_shell)
            for process in (early, ended):
                watchdog.start()
                watchdog.add(process.pid)
            watchdog.remove(ended.pid)
        assert len(told) == 1
        assert bad_shell in told[0]
        watchdog.start()
        watchdog.add(later.pid)
        left_alone(watchdog)
        assert (early.wait(30), later.wait(30)) == (-9, -9)
        assert ended.poll() is None
    assert len(told) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN])
def test_whatever_keeps_the_watchdog_from_starting_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "as the test wants")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    told: list[str] = []
    watchdog = Watchdog(NOBODY, warn=told.append)
    watchdog.start()
    watchdog.add(1)
    watchdog.remove(1)
    watchdog.close()
    assert len(told) == 1
    assert "as the test wants" in told[0]
