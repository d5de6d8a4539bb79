"""A missing suite skips its tests with the command that installs it."""

from tests.e2e.conftest import anyio_backend, pytest_runtest_call

__all__ = ["anyio_backend", "pytest_runtest_call"]
