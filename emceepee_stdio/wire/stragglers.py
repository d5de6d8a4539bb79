"""Processes that a child left behind, wherever they went.

Every descendant inherits the owner's mark in its environment, also one that left the group or whose
parent is gone. Linux shows the environment of our own processes; elsewhere nothing is found here
and the process group is all there is.
"""

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from emceepee_stdio.wire.environment import OWNER

__all__ = ["kill_group", "kill_marked", "marked"]

_PROC = Path("/proc")


def kill_group(pgid: int, *, force: bool) -> bool:
    """Signal a whole process group; False when nobody is left in it."""
    try:
        os.killpg(pgid, signal.SIGKILL if force else signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def marked(owner: str) -> list[int]:
    """The living processes whose mark starts with this owner."""
    if sys.platform != "linux":
        return []
    mark = f"{OWNER}={owner}".encode()
    return [int(entry.name) for entry in _PROC.iterdir() if _carries(entry, mark)]


def kill_marked(owner: str) -> list[int]:
    """Kill them; a process that takes a freed pid in between is not hit."""
    killed: list[int] = []
    mark = f"{OWNER}={owner}".encode()
    for pid in marked(owner):
        with suppress(OSError):
            handle = os.pidfd_open(pid)
            try:
                if _carries(_PROC / str(pid), mark):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                    killed.append(pid)
            finally:
                os.close(handle)
    return killed


def _carries(entry: Path, mark: bytes) -> bool:
    if not entry.name.isdecimal():
        return False
    try:
        environment = (entry / "environ").read_bytes()
    except OSError:
        return False
    return environment.startswith(mark) or b"\0" + mark in environment
