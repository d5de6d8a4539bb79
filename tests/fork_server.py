"""Real processes of this project's programs that need not load again what is loaded already.

Most of what a short command costs is its interpreter and its imports. One process per test run
loads everything and then forks: each fork is a process of its own and a child of the test, with
its own arguments, environment, directory, descriptors and terminal, also as /proc shows them. Not
as in a fresh one are its memory, the order of its imports and its end: tests of these have the mark
`fresh`, and with EMCEEPEE_TEST_REAL=1 there are no forks.
"""

import atexit
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_ROOT = Path(__file__).resolve().parents[1]
_ENTRIES = {str(_ROOT / "tests" / name) for name in ("front_entry.py", "proxy_entry.py")}
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37  # from linux/prctl.h
_LARGEST = 1 << 17
_ROOM = 1 << 15  # for arguments and for the environment of a fork
# What an interpreter reads at its start, so that a fork cannot heed it any more; but for two.
_EARLY = ("PYTHON", "LC_", "LANG")
_LATE = {"PYTHONPATH", "PYTHON_KEYRING_BACKEND"}
_LAZY = ("httpx2", "uvicorn", "rich.markdown", "rich.progress", "rich.table")

Request = dict[str, Any]


def own_the_terminal() -> None:
    """For `preexec_fn`: the leader of a session takes its stdin as its terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class ForkServer:
    """Starts them, in place of `Popen._execute_child`."""

    def __init__(self, control: socket.socket | None = None) -> None:
        self._execute = subprocess.Popen._execute_child
        self._socket = control
        self._lock = threading.Lock()
        self.is_used = True

    def install(self) -> None:
        """Popen has no seam for this; asyncio and anyio start their processes with it as well."""
        server = self

        def execute(popen: Any, args: Any, *rest: Any) -> None:
            server._start(popen, args, *rest)

        subprocess.Popen._execute_child = execute

    def _start(self, popen: Any, args: Any, *rest: Any) -> None:
        executable, preexec, _, pass_fds, cwd, env, _, _, shell, *pipes = rest[:15]
        _, gid, gids, uid, umask, new_session, group = rest[15:]
        usual = (executable, pass_fds, shell, gid, gids, uid, umask, group)
        is_ours = (
            self.is_used
            and usual == (None, (), False, None, None, None, -1, -1)
            and preexec in (None, own_the_terminal)
            and _is_program(args, env or {})
        )
        if not is_ours or env is None:
            self._execute(popen, args, *rest)
            return
        request: Request = {
            "argv": [os.fsdecode(word) for word in args],
            "env": {name: os.fsdecode(value) for name, value in env.items()},
            "cwd": os.fsdecode(cwd or Path.cwd()),
            "new_session": new_session,
            "own_terminal": preexec is not None,
            "umask": _umask(),
        }
        descriptors = [pipes[0], pipes[3], pipes[5]]
        given = [own if fd == -1 else fd for own, fd in enumerate(descriptors)]
        with self._lock:
            popen.pid = self._fork(request, given)
        popen._child_created = True
        popen._close_pipe_fds(*pipes)

    def _fork(self, request: Request, descriptors: Sequence[int]) -> int:
        control = self.launch()
        libc = ctypes.CDLL(None)
        before = ctypes.c_int()
        libc.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        libc.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(control, [json.dumps(request).encode()], descriptors)
            pid = int(control.recv(64))
        finally:
            libc.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)
        assert pid, f"it could not be forked: {request['argv']}"
        return pid

    def launch(self) -> socket.socket:
        """Have it there before anybody counts the sockets of this process."""
        if self._socket is None:
            self._socket = self._launch()
        return self._socket

    def _launch(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno()), "-" * _ROOM],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(_ROOT), "ROOM": "-" * _ROOM},
        )
        theirs.close()

        def end() -> None:
            ours.close()
            process.wait()

        atexit.register(end)
        return ours


def _umask() -> int:
    fields = Path("/proc/self/status").read_text().split()
    return int(fields[fields.index("Umask:") + 1], 8)


def _is_program(args: Sequence[Any], env: Mapping[str, Any]) -> bool:
    if isinstance(args, str | bytes) or str(args[0]) != sys.executable:
        return False
    if any(name.startswith(_EARLY) for name in env.keys() - _LATE):
        return False
    words = [str(word) for word in args[1:] if word != "-P"]
    if sum(len(os.fsencode(word)) + 1 for word in args) > _ROOM:
        return False
    is_module = words[0] == "-m" and words[1].partition(".")[0] == "emceepee_stdio"
    return is_module or words[0] in _ENTRIES


# The process that forks


def _load_everything() -> None:
    import emceepee_stdio  # noqa: PLC0415 - not for the tests, which have it their own way

    for module in pkgutil.walk_packages(emceepee_stdio.__path__, "emceepee_stdio."):
        if not module.name.endswith(("__main__", ".wire.windows")):
            importlib.import_module(module.name)
    for name in _LAZY:
        importlib.import_module(name)
    sys.modules.pop("emceepee_stdio.__main__", None)


def _serve(control: socket.socket) -> Request:
    """Fork for each request; returns in the fork. Ends with the test run."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, _LARGEST, 3)
        if not data:
            os._exit(0)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == between:  # until it is the child of whoever asked for it
                time.sleep(0.0005)
            request = json.loads(data)
            for target, fd in enumerate(descriptors):
                os.dup2(fd, target)
            _become(request)
            os.write(tell, str(os.getpid()).encode())  # as after the exec of a program
            os.closerange(3, 256)
            return _with_forks(request)
        os.close(tell)
        os.waitpid(between, 0)
        control.send(os.read(told, 64) or b"0")
        for fd in (told, *descriptors):
            os.close(fd)


def _with_forks(request: Request) -> Request:
    """A program that starts many of ours, sessions or helpers, is the parent of what they are."""
    if "--http" not in request["argv"] and "PYTHON_KEYRING_BACKEND" not in request["env"]:
        return request
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        _show(["fork server"], [])
        return _serve(theirs)
    theirs.close()
    ForkServer(ours).install()
    return request


def _become(request: Request) -> None:
    """What the kernel and the interpreter do before a program runs."""
    os.environ.clear()
    os.environ.update(request["env"])
    _show(request["argv"], [f"{name}={value}" for name, value in request["env"].items()])
    os.umask(request["umask"])
    os.chdir(request["cwd"])
    if request["new_session"]:
        os.setsid()
    if request["own_terminal"]:
        own_the_terminal()
    time.tzset()
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        number = ("stdin", "stdout", "stderr").index(name)
        stream = io.TextIOWrapper(
            open(number, mode + "b", closefd=False),  # noqa: SIM115 - as the interpreter does
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "surrogateescape",
            line_buffering=name == "stderr" or os.isatty(number),
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _show(*lists: Sequence[str]) -> None:
    """Have /proc show these arguments and this environment, where it showed those of the server."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    starts, ends = map(int, fields[45:49:2]), map(int, fields[46:49:2])
    for words, start, end in zip(lists, starts, ends, strict=True):
        data = os.fsencode("".join(f"{word}\0" for word in words))
        assert len(data) <= end - start, "more than there is room for: see _ROOM"
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def _run(argv: Sequence[str]) -> None:
    words = [word for word in argv[1:] if word != "-P"]
    is_module = words[0] == "-m"
    beside = Path.cwd() if is_module else Path(words[0]).parent
    before = [] if "-P" in argv else [str(beside)]
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [*before, *named]
    sys.argv = words
    if is_module:
        module = sys.argv.pop(1)
        if "." in module:
            sys.modules.pop(module)  # so that it is not said to be there already
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _leave(code: int) -> NoReturn:
    """As an interpreter ends, but without taking all those modules down one by one."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _load_everything()
    gc.collect()
    gc.freeze()
    _request = _serve(socket.socket(fileno=int(sys.argv[1])))
    try:
        _run(_request["argv"])
    except SystemExit as _end:
        if not isinstance(_end.code, int | None):
            raise
        _leave(_end.code or 0)
    _leave(0)
