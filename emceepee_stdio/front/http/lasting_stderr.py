"""Stderr for a server that outlives whoever reads it: a line that nobody takes ends no session."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

__all__ = ["lasting_stderr"]


@contextmanager
def lasting_stderr() -> Generator[None]:
    """Write to stderr in it; where that fails, all that is written later goes nowhere."""
    if sys.stderr is None:  # it was closed before we began
        sys.stderr = _nowhere()
    try:
        yield
        sys.stderr.flush()
    except (OSError, ValueError):
        sys.stderr = _nowhere()


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")
