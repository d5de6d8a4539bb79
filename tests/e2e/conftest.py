"""End-to-end tests run on asyncio, with real processes, and say so when a peer is missing."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import anyio.to_thread
import pytest

from tests.e2e import client, official_schema
from tests.peers import PeerMissingError
from tests.virtual_time import VirtualTimeLoop, holding_up_time


def pytest_configure() -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and its children with it."""
    for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
            signal.signal(number, usual)


@pytest.fixture(scope="session", autouse=True)
def forks_from_the_start(fork_server: None) -> None:
    """Else a test that looks for sockets left over finds that of the first fork."""


@pytest.fixture(autouse=True)
def in_a_process_or_in_this_one(request: pytest.FixtureRequest) -> Iterator[None]:
    """A conversation runs in this process, unless the test is about a real one."""
    is_real = any(request.node.get_closest_marker(mark) for mark in ("real", "fresh"))
    before, client.is_real = client.is_real, client.is_real or is_real
    yield
    client.is_real = before


@pytest.fixture
def anyio_backend(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, dict[str, Any]]:
    if client.is_real or request.node.get_closest_marker("virtual_time") is None:
        return "asyncio", {}
    monkeypatch.setattr(anyio.to_thread, "run_sync", holding_up_time(anyio.to_thread.run_sync))
    return "asyncio", {"loop_factory": VirtualTimeLoop}


@pytest.fixture(autouse=True)
def every_message_fits_the_official_schema(request: pytest.FixtureRequest) -> Iterator[None]:
    """All that we sent, to the client and to the fixture servers, in this test."""
    official_schema.judges.clear()
    place = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    faults = [fault for judge in official_schema.judges for fault in judge.faults]
    if place is not None and official_schema.is_here():
        faults += official_schema.logs_in(place)
    assert not faults


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> object:
    """A missing peer skips the test and says how to get it; in CI nothing may be skipped."""
    try:
        return (yield)
    except PeerMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
