"""One child process on any system: started, watched, stopped with all that it started.

Its exit is noticed by itself, not by the end of its output: a grandchild may hold that open.
Whatever happens, `ended` is set once, and nothing is pushed after it.
"""

import asyncio
import contextvars
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread

from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.storage.private_file import stamp_of
from emceepee_stdio.wire import orphans, system
from emceepee_stdio.wire.environment import command_line
from emceepee_stdio.wire.framing import Lines, Oversized
from emceepee_stdio.wire.pipes import open_reader, open_writer

# The file that a server is started from, as a person saw it when they agreed.
#
# What is started is the path that was shown, because a Python of a virtual environment needs it.
# Right before the start that path must still lead to the same file: a link may have been swapped
# while the person was reading.


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFile:
    """A program: its path, where its links lead, and which file that is."""

    path: str
    file: str
    identity: tuple[int, ...]

    @classmethod
    def at(cls, path: str) -> "ProgramFile":
        """The one that is there now; without an identity where it cannot be looked at."""
        file = os.path.realpath(path)
        try:
            found = os.stat(file)  # noqa: PTH116 - as a string, like its path
        except OSError:
            return cls(path=path, file=file, identity=())
        return cls(path=path, file=file, identity=(found.st_dev, *stamp_of(found)))

    def check(self) -> None:
        """Raise when the path leads to another file by now."""
        if ProgramFile.at(self.path) != self:
            raise CannotConnect(
                f"{self.path} was not started: it is not the file any more that was looked at when "
                "the server was added.",
                hint="If the change is wanted, remove the server and add it again.",
            )


_KILL_WAIT_S = 2.0  # SIGKILL takes milliseconds, unless the kernel holds the process
_MAX_STDERR_LINE_BYTES = 16_384  # longer than any log line; binary output has no line ends at all
_EVERYTHING_BYTES = sys.maxsize  # more than was ever written


@dataclass(frozen=True, slots=True, kw_only=True)
class Spawn:
    """What to start. `owner` marks it and everything it starts.

    `agreed` is the file that the program has to be, if somebody has looked at it.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path
    owner: str
    agreed: ProgramFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a process ended."""

    code: int

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.code).name}"
        return f"was killed by signal {-self.code}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopTimes:
    """Seconds after which a child that does not end by itself is asked, and then made, to."""

    term: float
    kill: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who hears what a child says. `on_end` comes last, once.

    `on_written` hears how many bytes the child has taken in all.
    """

    on_stdout: Callable[[bytes], None]
    on_stderr: Callable[[str], None]
    on_end: Callable[[], None]
    on_written: Callable[[int], None] | None = None


class Process:
    """A running child. Made by `start`; `stop` leaves nothing of it behind."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        job: system.Job,
        spawn: Spawn,
        listener: Listener,
        drain: float,
    ) -> None:
        self._popen = popen
        self._spawn = spawn
        self._listener = listener
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # for what a thread tells the loop
        self._stderr_lines = Lines(_MAX_STDERR_LINE_BYTES)
        self.pid = popen.pid
        orphans.note_child(self.pid)
        self.exit: Exit | None = None
        self.exited = anyio.Event()
        self.ended = anyio.Event()
        self._open_outputs = 2
        self._job = job
        self._stdin_fd = _take_fd(popen.stdin)
        self.stdin = open_writer(
            self._stdin_fd, on_broken=self._input_broken, on_written=listener.on_written
        )
        self._stdout = open_reader(
            _take_fd(popen.stdout), on_data=listener.on_stdout, on_end=self._output_ended
        )
        self._stderr = open_reader(
            _take_fd(popen.stderr), on_data=self._on_stderr, on_end=self._stderr_ended
        )
        self._watch_exit()

    def __repr__(self) -> str:
        return f"<Process {self.pid} {self.exit or 'running'} {self._spawn.argv[0]}>"

    @classmethod
    async def start(cls, spawn: Spawn, listener: Listener, *, drain: float = 0.1) -> "Process":
        """Start it, off the loop: a slow disk must not hold up other backends."""
        popen, job = await anyio.to_thread.run_sync(_popen, spawn)
        try:
            return cls(popen, job, spawn, listener, drain)
        except OSError:  # there was no descriptor left for its pipes: it must not run unheard
            job.kill()
            popen.kill()
            popen.wait()
            orphans.forget_child(popen.pid)
            raise

    async def stop(self, times: StopTimes) -> None:
        """End it and all that it started: end of input, SIGTERM, SIGKILL, each with a limit."""
        with anyio.CancelScope(shield=True):
            family = await anyio.to_thread.run_sync(self._family)
            self.stdin.close()
            await self._wait_exit(times.term)
            if self.exit is None:
                self._job.ask()
                await self._wait_exit(times.kill - times.term)
            self._job.kill()
            await self._wait_exit(_KILL_WAIT_S)
            await anyio.to_thread.run_sync(orphans.kill_same, family)
            await anyio.to_thread.run_sync(orphans.kill_marked, self._spawn.owner)
            self._finish()

    @property
    def unread(self) -> int:
        """Bytes of its input that it has not read, where the platform can tell; else none."""
        return 0 if self.ended.is_set() else system.unread(self._stdin_fd)

    def pause(self) -> None:
        """Read no more of its output for now."""
        self._stdout.pause()

    def resume(self) -> None:
        self._stdout.resume()

    def kill(self) -> None:
        """End the whole group at once; its exit is noticed as any other."""
        self._job.kill()

    def _family(self) -> dict[int, str]:
        """Who is below it: known by that alone if it left the group and cleared its mark."""
        return orphans.moments_of_birth(orphans.descendants(self.pid)) if self.exit is None else {}

    async def _wait_exit(self, seconds: float) -> None:
        if self.exit is None:
            with anyio.move_on_after(seconds):
                await self.exited.wait()

    def _watch_exit(self) -> None:
        if (pidfd := system.pidfd(self.pid)) is not None:
            self._loop.add_reader(pidfd, self._pidfd_ready, pidfd)
            return
        threading.Thread(target=self._wait_in_thread, name=f"wait-{self.pid}", daemon=True).start()

    def _pidfd_ready(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._on_exit(self._popen.wait())

    def _wait_in_thread(self) -> None:
        code = self._popen.wait()
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(self._on_exit, code, context=self._context)

    def _on_exit(self, code: int) -> None:
        orphans.forget_child(self.pid)
        self.exit = Exit(code=code)
        self.exited.set()
        if not self._open_outputs:
            self._finish()
        else:
            self._loop.call_later(self._drain, self._finish)

    def _input_broken(self) -> None:
        """It closed its input: what it did not read is not waited for."""
        if self._listener.on_written is not None:
            self._listener.on_written(_EVERYTHING_BYTES)

    def _output_ended(self) -> None:
        """Its output is over: it is leaving, or of no more use. Its exit code gets a moment."""
        self._loop.call_later(self._drain, self._finish)
        self._one_output_ended()

    def _one_output_ended(self) -> None:
        self._open_outputs -= 1
        if not self._open_outputs and self.exit is not None:
            self._finish()

    def _on_stderr(self, data: bytes) -> None:
        self._take_stderr(self._stderr_lines.feed(data))

    def _stderr_ended(self) -> None:
        self._take_stderr(self._stderr_lines.end())
        self._one_output_ended()

    def _take_stderr(self, lines: list[bytes | Oversized]) -> None:
        for line in lines:
            raw = line.head if isinstance(line, Oversized) else line
            text = raw[:_MAX_STDERR_LINE_BYTES].decode(errors="replace").rstrip("\r")
            if not self.ended.is_set():
                self._listener.on_stderr(text)

    def _finish(self) -> None:
        if self.ended.is_set():
            return
        self._take_stderr(self._stderr_lines.end())
        for end in (self.stdin, self._stdout, self._stderr):
            end.close()
        self._job.close()
        self.ended.set()
        self._listener.on_end()


def _take_fd(pipe: IO[bytes] | None) -> int:
    """A descriptor of our own, so that nothing closes it behind the loop's back."""
    if pipe is None:
        raise ValueError("the child was started without pipes")
    fd = os.dup(pipe.fileno())
    pipe.close()
    return fd


def _popen(spawn: Spawn) -> tuple[subprocess.Popen[bytes], system.Job]:
    if spawn.agreed is not None:
        spawn.agreed.check()
    orphans.adopt_orphans()
    try:
        popen = subprocess.Popen(  # noqa: S603 - argv only, never a shell; policy was asked above
            command_line(spawn.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(spawn.env),
            cwd=spawn.cwd,
            bufsize=0,
            start_new_session=system.NEW_SESSION,
            creationflags=system.CREATION_FLAGS,
        )
    except FileNotFoundError:
        script = Path(spawn.argv[0]).exists()
        what = "the interpreter on its #! line" if script else "it"
        raise CannotConnect(
            f"{spawn.argv[0]} cannot be started: {what} does not exist.",
            hint="Install what is missing, or name another command.",
        ) from None
    except (PermissionError, NotADirectoryError, ValueError) as error:
        raise CannotConnect(f"{spawn.argv[0]} cannot be started: {error}.") from None
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
        raise CannotConnect(
            f"{spawn.argv[0]} is no program that this system can run.",
            hint="Name its interpreter as the command, and the file as its first argument.",
        ) from None
    return popen, system.contain(popen)
