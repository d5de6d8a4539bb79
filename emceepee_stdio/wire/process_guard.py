"""Starts child processes, and the watchdog that kills what is left when we are gone.

Every child is made known to the watchdog before anything can go wrong. What children leave behind
comes to us on Linux: it is reaped, and guarded like the children themselves.
"""

import os
import subprocess
from collections.abc import Callable
from contextlib import suppress

import anyio
import anyio.to_thread

from emceepee_stdio.wire import system
from emceepee_stdio.wire.environment import OWNER
from emceepee_stdio.wire.orphans import bury_orphans, end_orphans, forget_child, note_child
from emceepee_stdio.wire.process import Listener, Process, Spawn

# A small process that outlives us: when we are gone, however we went, our children go too.
#
# On POSIX it is one `/bin/sh` in a session of its own that reads the groups of our children from a
# pipe. The pipe closes when we end, even by SIGKILL; then it kills those groups, and on Linux also
# whatever still carries our mark. Children that end by themselves when we are gone get a grace
# first. On Windows a Job Object does the same.
#
# Servers matter more than their guard: where it cannot be started, as in an image without a shell,
# that is a warning, and the next child is a reason to try again.


SHELL = "/bin/sh"
_SCRIPT = r"""
trap '' HUP INT TERM QUIT PIPE
groups=
while read -r what id; do
  rest=
  for g in $groups; do
    [ "$g" = "$id" ] || rest="$rest $g"
  done
  groups=$rest
  [ "$what" = + ] && groups="$groups $id"
done
alive() {
  for g in $groups; do
    kill -0 "-$g" 2>/dev/null && return 0
  done
  return 1
}
tenths=$2
while [ "$tenths" -gt 0 ] && alive; do
  sleep 0.1
  tenths=$((tenths - 1))
done
sweep() {
  [ -r /proc/self/environ ] || return
  for f in $(grep -l -a -s -e "$1" /proc/[0-9]*/environ 2>/dev/null); do
    p=${f#/proc/}
    kill -KILL "${p%/environ}" 2>/dev/null
  done
}
for g in $groups; do
  kill -KILL "-$g" 2>/dev/null
done
sweep "$1"
# What was just being started had no environment to be seen.
[ -z "$groups" ] || { sleep 0.3; sweep "$1"; }
exit 0
"""


class Watchdog:
    """Knows the groups that must not survive us. Started with the first of them.

    `warn` is told once why it could not be started. `grace`: seconds that our children have to end
    by themselves.
    """

    def __init__(
        self, owner: str, *, warn: Callable[[str], None] | None = None, grace: float = 0.0
    ) -> None:
        self._arguments = (f"{OWNER}={owner}", str(round(grace * 10)))
        self._warn = warn
        self._process: subprocess.Popen[bytes] | None = None
        self._groups: set[int] = set()
        self._orphan_groups: set[int] = set()

    def __repr__(self) -> str:
        pid = self._process.pid if self._process else None
        return f"<Watchdog pid={pid}>"

    def start(self) -> None:
        """Before the first child, so that there is no moment without a guard."""
        if self._process is not None or not system.NEW_SESSION:
            return
        try:
            self._process = self._spawn()
        except OSError as error:
            warn, self._warn = self._warn, None
            if warn is not None:
                warn(f"{SHELL} cannot be started: {error.strerror or error}")
            return
        note_child(self._process.pid)
        for pgid in self._groups | self._orphan_groups:  # children from before it could be started
            self._tell(f"+ {pgid}\n")

    def renew(self) -> None:
        """Start another one where somebody has killed it: our children must not survive us."""
        if self._process is not None and self._process.poll() is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            forget_child(self._process.pid)
            self._process = None
            self.start()

    def _spawn(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own script
            [SHELL, "-c", _SCRIPT, "emceepee-watchdog", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": os.defpath},
            cwd="/",
            start_new_session=True,
        )

    def add(self, pgid: int) -> None:
        self._groups.add(pgid)
        self._tell(f"+ {pgid}\n")

    def remove(self, pgid: int) -> None:
        self._groups.discard(pgid)
        self._tell(f"- {pgid}\n")

    def guard_orphans(self, groups: set[int]) -> None:
        """The groups of all that came to us, as they are now: they may carry no mark."""
        groups = groups - self._groups
        for pgid in self._orphan_groups - groups - self._groups:
            self._tell(f"- {pgid}\n")
        for pgid in groups - self._orphan_groups:
            self._tell(f"+ {pgid}\n")
        self._orphan_groups = groups

    def close(self) -> None:
        """All children are gone: let it end. Bounded, because it has next to nothing to do."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        forget_child(process.pid)

    def _tell(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it was killed; the children still end with our own shutdown
                os.write(self._process.stdin.fileno(), line.encode())


_LOOK_EVERY_S = 1.0  # dead orphans cost a pid each, and a look costs microseconds


class ProcessGuard:
    """The children that carry the mark of one `owner`. `warn` hears why they have no watchdog."""

    def __init__(self, owner: str, *, warn: Callable[[str], None]) -> None:
        self.owner = owner
        self._watchdog = Watchdog(owner, warn=warn)
        self._is_closed = False

    async def start(self, spawn: Spawn, listener: Listener, *, drain: float) -> Process:
        self._watchdog.start()
        process = await Process.start(spawn, listener, drain=drain)
        self._watchdog.add(process.pid)
        return process

    def release(self, process: Process) -> None:
        """It has been stopped, with all that it started."""
        self._watchdog.remove(process.pid)

    async def run(self) -> None:
        """Reap dead orphans, and start the watchdog again if it died, until the guard is closed.

        A loop of its own, in the main thread: it waits for no disk and depends on no configuration.
        """
        while not self._is_closed:
            self._watchdog.guard_orphans(bury_orphans())
            self._watchdog.renew()
            await anyio.sleep(_LOOK_EVERY_S)

    async def close(self) -> None:
        """All children have been released."""
        self._is_closed = True
        await end_orphans()
        await anyio.to_thread.run_sync(self._watchdog.close)
