"""Whatever hangs, the proxy ends when it is told to: locks, pipes in place of files, threads."""

import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.clients.raw import Proxy, entry, proxy, until
from tests.peers import plain, rude

LATE = {"last_resort_s": 3_600}  # what ends within a test did so without it


def stdin_ends(client: Proxy) -> None:
    client.close_stdin()


def is_terminated(client: Proxy) -> None:
    client.process.send_signal(signal.SIGTERM)


WAYS: dict[str, Callable[[Proxy], None]] = {"stdin ends": stdin_ends, "SIGTERM": is_terminated}


def check_orderly_end(client: Proxy, way: str) -> None:
    client.meet_family()
    WAYS[way](client)
    assert client.wait() == 0, client.errors()
    assert client.left_over() == set()
    assert "Traceback" not in client.errors()


@contextmanager
def held(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("way", WAYS)
def test_a_trust_lock_that_another_process_holds_does_not_hold_up_the_end(
    tmp_path: Path, way: str
) -> None:
    servers = {"server": entry(plain(), tmp_path, "server")}
    with (
        held(tmp_path / "state" / "lock"),
        proxy(tmp_path, servers=servers, fixed=LATE) as client,
    ):
        client.greet()
        client.call("list_tools", server="server")  # they are to be pinned, and cannot be
        check_orderly_end(client, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_in_the_place_of_the_pins_does_not_hold_up_the_end(tmp_path: Path, way: str) -> None:
    (tmp_path / "state").mkdir()
    os.mkfifo(tmp_path / "state" / "pins.json")
    servers = {"server": entry(plain(), tmp_path, "server")}
    with proxy(tmp_path, servers=servers, fixed=LATE) as client:
        client.greet()
        client.call("list_tools", server="server")
        check_orderly_end(client, way)


@pytest.mark.parametrize("way", WAYS)
def test_a_pipe_in_the_place_of_the_configuration_does_not_hold_up_the_end(
    tmp_path: Path, way: str
) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    arguments = ["serve", "--config", str(tmp_path / "pipe.json")]
    with proxy(tmp_path, arguments=arguments, fixed=LATE) as client:
        client.greet()
        assert client.phases() == {}
        check_orderly_end(client, way)


def test_an_end_that_is_not_in_time_is_made_by_force_and_says_where_it_hung(tmp_path: Path) -> None:
    servers = {"server": entry(rude("stubborn"), tmp_path, "server")}
    slow = {"eof_term_s": 3_600, "eof_kill_s": 3_600, "last_resort_s": 0.5}
    with proxy(tmp_path, servers=servers, fixed=slow) as client:
        client.greet()
        client.run("server", "echo", message="x")
        client.meet_family()
        client.close_stdin()
        assert client.wait() == 1
        assert "Timeout (" in client.errors()
        until(lambda: not client.left_over(), "the watchdog to clear away")
