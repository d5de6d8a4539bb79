"""The fuzzers run on asyncio, with real processes."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
