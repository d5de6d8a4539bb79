"""One child process: started in its own group, watched, stopped with all that it started.

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
from typing import IO, Protocol

import anyio
import anyio.to_thread

from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.wire.framing import Lines, Oversized
from emceepee_stdio.wire.orphans import (
    adopt_orphans,
    descendants,
    forget_child,
    kill_group,
    kill_marked,
    kill_same,
    moments_of_birth,
    note_child,
)
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
        identity = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
        return cls(path=path, file=file, identity=identity)

    def check(self) -> None:
        """Raise when the path leads to another file by now."""
        if ProgramFile.at(self.path) != self:
            raise CannotConnect(
                f"{self.path} was not started: it is not the file any more that was looked at when "
                "the server was added.",
                hint="If the change is wanted, remove the server and add it again.",
            )


# Windows: a Job Object that takes a child and its descendants along when its handle closes.
#
# The counterpart of process groups and the watchdog. The handle belongs to our process, so the
# system closes it however we end. Untested: written from the documented interface.


class Job(Protocol):
    """What holds a child and its descendants together."""

    def kill(self) -> None: ...
    def close(self) -> None: ...


def contain(pid: int) -> Job | None:
    """A job around this child; None where process groups do that work."""
    return _JobObject(pid) if sys.platform == "win32" else None


if sys.platform == "win32":
    import ctypes
    from ctypes import wintypes

    _KILL_ON_JOB_CLOSE = 0x2000
    _EXTENDED_LIMIT_INFORMATION = 9
    _TERMINATE_AND_SET_QUOTA = 0x0101  # what AssignProcessToJobObject needs

    class _BasicLimits(ctypes.Structure):
        _fields_ = [
            ("PerProcessUserTimeLimit", wintypes.LARGE_INTEGER),
            ("PerJobUserTimeLimit", wintypes.LARGE_INTEGER),
            ("LimitFlags", wintypes.DWORD),
            ("MinimumWorkingSetSize", ctypes.c_size_t),
            ("MaximumWorkingSetSize", ctypes.c_size_t),
            ("ActiveProcessLimit", wintypes.DWORD),
            ("Affinity", ctypes.c_size_t),
            ("PriorityClass", wintypes.DWORD),
            ("SchedulingClass", wintypes.DWORD),
        ]

    class _ExtendedLimits(ctypes.Structure):
        _fields_ = [
            ("BasicLimitInformation", _BasicLimits),
            ("IoInfo", ctypes.c_ulonglong * 6),
            ("ProcessMemoryLimit", ctypes.c_size_t),
            ("JobMemoryLimit", ctypes.c_size_t),
            ("PeakProcessMemoryUsed", ctypes.c_size_t),
            ("PeakJobMemoryUsed", ctypes.c_size_t),
        ]

    class _JobObject:
        """One job for one child."""

        def __init__(self, pid: int) -> None:
            self._kernel = ctypes.WinDLL("kernel32", use_last_error=True)
            self._kernel.CreateJobObjectW.restype = wintypes.HANDLE
            self._kernel.OpenProcess.restype = wintypes.HANDLE
            self._job = wintypes.HANDLE(self._kernel.CreateJobObjectW(None, None))
            limits = _ExtendedLimits()
            limits.BasicLimitInformation.LimitFlags = _KILL_ON_JOB_CLOSE
            self._kernel.SetInformationJobObject(
                self._job, _EXTENDED_LIMIT_INFORMATION, ctypes.byref(limits), ctypes.sizeof(limits)
            )
            process = wintypes.HANDLE(self._kernel.OpenProcess(_TERMINATE_AND_SET_QUOTA, 0, pid))
            self._kernel.AssignProcessToJobObject(self._job, process)
            self._kernel.CloseHandle(process)

        def kill(self) -> None:
            self._kernel.TerminateJobObject(self._job, 1)

        def close(self) -> None:
            self._kernel.CloseHandle(self._job)


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
        self, popen: subprocess.Popen[bytes], spawn: Spawn, listener: Listener, drain: float
    ) -> None:
        self._popen = popen
        self._spawn = spawn
        self._listener = listener
        self._drain = drain
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()  # for what a thread tells the loop
        self._stderr_lines = Lines(_MAX_STDERR_LINE_BYTES)
        self.pid = popen.pid
        note_child(self.pid)
        self.exit: Exit | None = None
        self.exited = anyio.Event()
        self.ended = anyio.Event()
        self._output_over = False
        self._job = contain(popen.pid)
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
        popen = await anyio.to_thread.run_sync(_popen, spawn)
        try:
            return cls(popen, spawn, listener, drain)
        except OSError:  # there was no descriptor left for its pipes: it must not run unheard
            if sys.platform != "win32":
                kill_group(popen.pid, force=True)
            popen.kill()
            popen.wait()
            forget_child(popen.pid)
            raise

    async def stop(self, times: StopTimes) -> None:
        """End it and all that it started: end of input, SIGTERM, SIGKILL, each with a limit."""
        with anyio.CancelScope(shield=True):
            family = await anyio.to_thread.run_sync(self._family)
            self.stdin.close()
            await self._wait_exit(times.term)
            if self.exit is None:
                self._signal(force=False)
                await self._wait_exit(times.kill - times.term)
            self._signal(force=True)
            await self._wait_exit(_KILL_WAIT_S)
            await anyio.to_thread.run_sync(kill_same, family)
            await anyio.to_thread.run_sync(kill_marked, self._spawn.owner)
            self._finish()

    @property
    def unread(self) -> int:
        """Bytes of its input that it has not read, where the platform can tell; else none."""
        if sys.platform != "linux" or self.ended.is_set():
            return 0
        import fcntl  # noqa: PLC0415 - not on every platform, and seldom needed
        import termios  # noqa: PLC0415

        try:
            size = fcntl.ioctl(self._stdin_fd, termios.FIONREAD, bytes(4))
        except OSError:
            return 0
        return int.from_bytes(size, sys.byteorder)

    def pause(self) -> None:
        """Read no more of its output for now."""
        self._stdout.pause()

    def resume(self) -> None:
        self._stdout.resume()

    def kill(self) -> None:
        """End the whole group at once; its exit is noticed as any other."""
        self._signal(force=True)

    def _family(self) -> dict[int, str]:
        """Who is below it: known by that alone if it left the group and cleared its mark."""
        return moments_of_birth(descendants(self.pid)) if self.exit is None else {}

    async def _wait_exit(self, seconds: float) -> None:
        if self.exit is None:
            with anyio.move_on_after(seconds):
                await self.exited.wait()

    def _signal(self, *, force: bool) -> None:
        if sys.platform != "win32":
            kill_group(self.pid, force=force)
        elif force and self._job is not None:
            self._job.kill()
        else:
            self._popen.terminate()

    def _watch_exit(self) -> None:
        if sys.platform == "linux" and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                pidfd = os.pidfd_open(self.pid)
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
        forget_child(self.pid)
        self.exit = Exit(code=code)
        self.exited.set()
        if self._output_over:
            self._finish()
        else:
            self._loop.call_later(self._drain, self._finish)

    def _input_broken(self) -> None:
        """It closed its input: what it did not read is not waited for."""
        if self._listener.on_written is not None:
            self._listener.on_written(_EVERYTHING_BYTES)

    def _output_ended(self) -> None:
        """Its output is over: it is leaving, or of no more use. Its exit code gets a moment."""
        self._output_over = True
        if self.exit is not None:
            self._finish()
        else:
            self._loop.call_later(self._drain, self._finish)

    def _on_stderr(self, data: bytes) -> None:
        self._take_stderr(self._stderr_lines.feed(data))

    def _stderr_ended(self) -> None:
        self._take_stderr(self._stderr_lines.end())

    def _take_stderr(self, lines: list[bytes | Oversized]) -> None:
        for line in lines:
            raw = line.head if isinstance(line, Oversized) else line
            text = raw[:_MAX_STDERR_LINE_BYTES].decode(errors="replace").rstrip("\r")
            if not self.ended.is_set():
                self._listener.on_stderr(text)

    def _finish(self) -> None:
        if self.ended.is_set():
            return
        self._stderr_ended()
        for end in (self.stdin, self._stdout, self._stderr):
            end.close()
        if self._job is not None:
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


def _popen(spawn: Spawn) -> subprocess.Popen[bytes]:
    if spawn.agreed is not None:
        spawn.agreed.check()
    adopt_orphans()
    try:
        return subprocess.Popen(  # noqa: S603 - argv only, never a shell; policy was asked above
            list(spawn.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(spawn.env),
            cwd=spawn.cwd,
            bufsize=0,
            start_new_session=sys.platform != "win32",
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
