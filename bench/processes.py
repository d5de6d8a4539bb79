"""What a process costs, as Linux tells it: memory now, and time on a core so far."""

import time
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_AT_REST = 0.0003


def resident_mb(pid: int) -> float:
    """VmRSS: the pages in memory, shared ones included."""
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0.0


def tree_mb(pid: int) -> float:
    """A proxy with all that it started, but for the backends and the shell that watches them."""
    return sum(resident_mb(member) for member in (pid, *descendants(pid)) if _counts(member))


def cpu_seconds(pid: int) -> float:
    """Time on a core of the process and all of its threads, to the nanosecond."""
    threads = (_PROC / str(pid) / "task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def at_rest(pid: int) -> None:
    """Until the process has nothing left to do, such as writing its journal."""
    before = -1.0
    while cpu_seconds(pid) - before > _AT_REST:
        before = cpu_seconds(pid)
        time.sleep(0.02)


def descendants(pid: int) -> Iterator[int]:
    """All that it started, and they."""
    for thread in (_PROC / str(pid) / "task").iterdir():
        for child in (thread / "children").read_text().split():
            yield int(child)
            yield from descendants(int(child))


def _counts(pid: int) -> bool:
    command = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    is_backend = any(part.endswith(b"raw_backend.py") for part in command)
    return not is_backend and Path(command[0].decode()).name != "sh"
