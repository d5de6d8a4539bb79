"""Helper processes of our own, for sign-in and the keyring: they finish whatever happens to us.

A helper leads a session of its own, so that a host that kills our group does not kill a request to
a token endpoint half-way. It carries no mark of ours and is no server: nobody clears it away. What
it has to know comes on its stdin, never in its arguments, and stdin is also how it learns that we
are gone. It answers by its exit code, by what it stores, or in one line on its stdout.
"""

import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

import anyio
import anyio.to_thread

from emceepee_stdio.wire import system
from emceepee_stdio.wire.environment import DEPTH, OWNER
from emceepee_stdio.wire.orphans import forget_child, note_child

HELPER_MAIN = "emceepee_stdio.helper_main"  # the module that most helpers run
_LOOK_S = 0.02  # it takes a fifth of a second or more
_END_S = 2.0  # for one that was killed: only the kernel is waited for


class HelperProcess:
    """One helper. For the main thread, where its number is on record before anybody looks."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._is_noted = True

    @classmethod
    def start(
        cls,
        module: str,
        *arguments: str,
        order: bytes,
        environ: Mapping[str, str],
        answers: bool = False,
    ) -> Self:
        """Run a module of ours with an order, which is one short line."""
        process = subprocess.Popen(  # noqa: S603 - our own Python and our own module
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if answers else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=system.NEW_SESSION,
            creationflags=system.HELPER_FLAGS,
            env={name: value for name, value in environ.items() if name not in (OWNER, DEPTH)},
        )
        note_child(process.pid)
        helper = cls(process)
        helper.send(order)
        return helper

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        """Blocks while the pipe is full; nothing where it has ended."""
        if self._process.stdin is not None:
            with suppress(OSError, ValueError):  # ValueError: it was let go
                self._process.stdin.write(line + b"\n")
                self._process.stdin.flush()

    def poll(self) -> int | None:
        """Its exit code, once it has one."""
        code = self._process.poll()
        if code is not None:
            self.let_go()
            if self._is_noted:
                self._is_noted = False
                forget_child(self._process.pid)
        return code

    def let_go(self) -> None:
        """It sees that nobody waits for it any more."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    async def answer(self, max_bytes: int, *, last: bool = True) -> bytes:
        """The line that it writes; what there is of it where it ends before."""

        def line() -> bytes:
            told = self._process.stdout
            if told is None or told.closed:
                return b""
            try:
                return told.readline(max_bytes)
            finally:
                if last:
                    told.close()

        return await anyio.to_thread.run_sync(line, abandon_on_cancel=True)

    async def kill(self) -> None:
        """With all that it started: nothing of it is left, and nobody waits for its answer."""
        with anyio.CancelScope(shield=True):
            if self._process.poll() is None:
                with suppress(OSError):
                    system.kill_tree(self._process)
            with anyio.move_on_after(_END_S):
                await self.wait()

    async def wait(self, *, every: float = _LOOK_S) -> int:
        """Looked at again and again: a process tells nobody that it has ended."""
        while True:
            code = self.poll()
            if code is not None:
                return code
            await anyio.sleep(every)
