"""Where a test can run: `posix_only(reason)` and `not_under_wine(reason)`.

A test has one of these marks if it cannot run on Windows, or needs what Wine lacks; not because it
fails there. `tests/not_on_windows.txt` names all of them, and `tests/unit/test_platforms.py`
compares it with the marks.
"""

import os
import sys

import pytest


def is_wine() -> bool:
    """Whether this Windows is Wine."""
    if sys.platform != "win32":
        return False
    import ctypes  # noqa: PLC0415 - only there

    return hasattr(ctypes.WinDLL("ntdll"), "wine_get_version")


def skip_what_cannot_run(items: list[pytest.Item]) -> None:
    if os.name == "posix":
        return
    marks = ("posix_only", "not_under_wine") if is_wine() else ("posix_only",)
    for item in items:
        for name in marks:
            if mark := item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name}: {mark.args[0]}"))
