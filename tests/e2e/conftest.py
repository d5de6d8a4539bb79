"""End-to-end tests run on asyncio, with real processes, and say so when a peer is missing."""

import os
import signal

import pytest

from tests.peers import PeerMissingError


def pytest_configure() -> None:
    """A shell starts what it puts into the background deaf to Ctrl-C, and its children with it."""
    for name in ("SIGINT", "SIGQUIT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            usual = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
            signal.signal(number, usual)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> object:
    """A missing peer skips the test and says how to get it; in CI nothing may be skipped."""
    try:
        return (yield)
    except PeerMissingError as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))
