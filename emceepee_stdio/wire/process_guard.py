"""Starts the children of this process, and leaves none of them behind, however it ends.

Every child is made known to the watchdog before anything can go wrong. What children leave behind
comes to us on Linux: it is reaped, and guarded like the children themselves.
"""

from collections.abc import Callable

import anyio.to_thread

from emceepee_stdio.wire.orphans import bury_orphans, end_orphans
from emceepee_stdio.wire.process import Listener, Process, Spawn
from emceepee_stdio.wire.watchdog import Watchdog

__all__ = ["ProcessGuard"]


class ProcessGuard:
    """The children that carry the mark of one `owner`. `warn` is told why they have no watchdog."""

    def __init__(self, owner: str, *, warn: Callable[[str], None]) -> None:
        self.owner = owner
        self._watchdog = Watchdog(owner, warn=warn)

    def __repr__(self) -> str:
        return f"<ProcessGuard {self._watchdog!r}>"

    async def start(self, spawn: Spawn, listener: Listener, *, drain: float) -> Process:
        self._watchdog.start()
        process = await Process.start(spawn, listener, drain=drain)
        self._watchdog.add(process.pid)
        return process

    def release(self, process: Process) -> None:
        """It has been stopped, with all that it started."""
        self._watchdog.remove(process.pid)

    def look_after(self) -> None:
        """Reap dead orphans, and start the watchdog again if it died."""
        self._watchdog.guard_orphans(bury_orphans())
        self._watchdog.renew()

    async def close(self) -> None:
        """All children have been released."""
        await end_orphans()
        await anyio.to_thread.run_sync(self._watchdog.close)
