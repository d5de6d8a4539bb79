"""What holds for all tests: how fast this machine is today is no property of the code."""

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.platforms import skip_what_cannot_run

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

_forks = None
if sys.platform != "win32":
    from tests.fork_server import ForkServer

    _forks = ForkServer()
    _forks.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip_what_cannot_run(items)


@pytest.fixture(scope="session")
def fork_server() -> None:
    if _forks is not None and not os.environ.get("EMCEEPEE_TEST_REAL"):
        _forks.launch()


@pytest.fixture(autouse=True)
def our_programs_are_forked(request: pytest.FixtureRequest) -> Iterator[None]:
    """Unless the test is about a process from its very beginning."""
    if _forks is None:
        yield
        return
    is_fresh = request.node.get_closest_marker("fresh") is not None
    _forks.is_used = not (is_fresh or os.environ.get("EMCEEPEE_TEST_REAL"))
    yield
    _forks.is_used = False
