"""The ways to a backend that are measured over HTTP: directly, and through proxies that serve it.

Behind a proxy the backend is a process of its own, on a pipe.
"""

import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from bench.client import WAIT_S, Call, Failed
from bench.ways import BACKEND, OURS, Direct, Proxy, environ

_TOKEN_FILE = "state/http-tokens"
_ADDRESS = re.compile(r"http://\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What listens at `url`; `pid` is the process that does."""

    url: str
    pid: int
    token: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token}"}


class HttpWay(Protocol):
    """How the backend is reached over HTTP and its tool called."""

    @property
    def name(self) -> str: ...

    def call(self) -> Call: ...

    def start(self, stack: ExitStack) -> Served: ...


class DirectHttp:
    """Nothing between."""

    name = "direct"

    def call(self) -> Call:
        return Direct().call(bytes=2)

    def start(self, stack: ExitStack) -> Served:
        argv = [sys.executable, "-m", "bench.http_backend"]
        process = stack.enter_context(_running(argv, environ(), said_on="stdout"))
        port = _said(process.stdout).strip()
        return Served(url=f"http://127.0.0.1:{port}/mcp", pid=process.pid)


class OurFront:
    """emceepee serve --http, with a token as usual."""

    name = OURS.name

    def call(self) -> Call:
        return OURS.call(bytes=2)

    def start(self, stack: ExitStack) -> Served:
        home = _home(stack)
        command = [sys.executable, "-m", "emceepee_stdio", "serve", "--http", "127.0.0.1:0"]
        argv, env = OURS.started_by(command).prepared(home, {"raw": BACKEND})
        process = stack.enter_context(_running(argv, env, said_on="stderr"))
        said = _said(process.stderr)
        found = _ADDRESS.search(said)
        if found is None:
            raise Failed(f"the front did not start: {said}")
        token = (Path(home) / _TOKEN_FILE).read_text(encoding="utf-8").split()[1]
        return Served(url=found[0], pid=process.pid, token=token)


class PeerFront:
    """Another proxy; `{port}` in its command is where it is to listen."""

    def __init__(self, proxy: Proxy) -> None:
        self.name = proxy.name
        self._proxy = proxy

    def call(self) -> Call:
        return self._proxy.call(bytes=2)

    def start(self, stack: ExitStack) -> Served:
        port = _free_port()
        argv, env = self._proxy.prepared(_home(stack), {"raw": BACKEND}, port=str(port))
        process = stack.enter_context(_running(argv, env, said_on=""))
        _until_open(process, port)
        return Served(url=f"http://127.0.0.1:{port}/mcp", pid=process.pid)


def _home(stack: ExitStack) -> str:
    return stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))


@contextmanager
def _running(
    argv: Sequence[str], env: dict[str, str], *, said_on: str
) -> Generator[subprocess.Popen[str]]:
    """A process until its end; only what it says on that stream is read."""
    to = {said_on: subprocess.PIPE}
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.PIPE,
        stdout=to.get("stdout", subprocess.DEVNULL),
        stderr=to.get("stderr", subprocess.DEVNULL),
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _said(stream: IO[str] | None) -> str:
    return "" if stream is None else stream.readline()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _until_open(process: subprocess.Popen[str], port: int) -> None:
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise Failed(f"nothing listens at port {port}")
