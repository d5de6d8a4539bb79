"""What the raw fixture servers share: JSON-RPC lines on fd 0 and 1, and a log of all that came.

Every frame is written whole under one lock. With FIXTURE_LOG set, each line of that file is one
JSON object with `event` and `pid`: `start`, `received` (with `message`, and `line` as it came),
`unreadable` (with `line`), `eof`, and what a server adds by `record`.
"""

import contextvars
import io
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

Message = dict[str, Any]

_SPEAKING = threading.local()


class Host:
    """Where a server runs: a process of its own. `tests/in_process` has one without a process."""

    def __init__(self) -> None:
        self._out = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def environ(self) -> Mapping[str, str]:
        return os.environ

    def lines(self) -> Iterable[bytes]:
        return sys.stdin.buffer

    def write(self, data: bytes) -> None:
        """A reader that is gone ends the server."""
        try:
            with self._lock:
                self._out.write(data)
                self._out.flush()
        except BrokenPipeError:
            self.leave(0)

    def complain(self, data: bytes) -> None:
        os.write(2, data)

    def wait_until(self, is_so: Callable[[], bool], seconds: float | None = None) -> bool:
        """Whether it is so before that time is over; who makes it so wakes us by `CHANGED`."""
        with CHANGED:
            return CHANGED.wait_for(is_so, seconds)

    def start(self, function: Callable[[], object]) -> None:
        """A thread of the server."""
        threading.Thread(target=function, daemon=True).start()

    def leave(self, code: int) -> NoReturn:
        os._exit(code)

    def die(self, number: int) -> NoReturn:
        os.kill(os.getpid(), number)
        while True:
            self.wait_until(lambda: False)


CHANGED = threading.Condition()
# A thread that a server starts inherits it: use `start_thread` and `later`.
_PROCESS = Host()
HOST = contextvars.ContextVar[Host]("HOST", default=_PROCESS)

# Takes every frame, and the id of the request on whose behalf it is sent, in the place of stdout.
outlet: Callable[[bytes, Any], None] | None = None


class RpcError(Exception):
    """Becomes the JSON-RPC error of the request being answered."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.body: Message = {"code": code, "message": message}
        if data is not None:
            self.body["data"] = data


def write(data: bytes) -> None:
    """Put bytes on stdout as they are; a reader that is gone ends the server."""
    if outlet is not None:
        outlet(data, getattr(_SPEAKING, "request", None))
    else:
        HOST.get().write(data)


def start_thread(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    HOST.get().start(partial(contextvars.copy_context().run, function, *args, **kwargs))


def later(seconds: float, function: Callable[..., object], *args: Any) -> None:
    def run() -> None:
        pause(seconds)
        function(*args)

    start_thread(run)


class Signal:
    """As an event of `threading`, but for a server that need not have a process."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        with CHANGED:
            self._is_set = True
            CHANGED.notify_all()

    def wait(self, seconds: float | None = None) -> bool:
        return HOST.get().wait_until(self.is_set, seconds)


class Mailbox:
    """As a queue, for one reader."""

    def __init__(self) -> None:
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        with CHANGED:
            self._items.append(item)
            CHANGED.notify_all()

    def get(self) -> Any:
        HOST.get().wait_until(lambda: bool(self._items))
        return self._items.popleft()


@contextmanager
def speaking_for(request: Any) -> Iterator[None]:
    """What this thread sends meanwhile belongs to that request."""
    _SPEAKING.request = request
    try:
        yield
    finally:
        _SPEAKING.request = None


def frame(message: Mapping[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def send(message: Mapping[str, Any]) -> None:
    if "id" in message and "method" in message:
        record("requested", message=dict(message))
    write(frame(message))


def notify(method: str, params: Mapping[str, Any] | None = None) -> None:
    send({"method": method} if params is None else {"method": method, "params": params})


def text(words: str, **fields: Any) -> Message:
    """A tool result of one text block."""
    return {"content": [{"type": "text", "text": words}], **fields}


def complain(words: str) -> None:
    """Write one line to stderr at once."""
    HOST.get().complain(words.encode() + b"\n")


def pause(seconds: float) -> None:
    HOST.get().wait_until(lambda: False, seconds)


def pause_for_ever() -> NoReturn:
    while True:
        pause(3600)


def leave(code: int) -> NoReturn:
    """End now, whatever other threads are doing."""
    HOST.get().leave(code)


def record(event: str, **fields: Any) -> None:
    host = HOST.get()
    path = host.environ.get("FIXTURE_LOG")
    if path:
        line = json.dumps({"event": event, "pid": host.pid, **fields}) + "\n"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(fd, line.encode())
        os.close(fd)


def messages() -> Iterator[Message]:
    """Every message from stdin until EOF; the parts of a batch one by one."""
    record("start")
    for line in HOST.get().lines():
        try:
            received = json.loads(line)
        except ValueError:
            record("unreadable", line=line.decode(errors="replace"))
            continue
        for message in received if isinstance(received, list) else [received]:
            record("received", message=message, line=line.decode(errors="replace"))
            yield message
    record("eof")
