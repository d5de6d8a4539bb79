"""The page's server under way, and the requests that a browser or somebody else makes to it.

`served` runs it in a thread of this process, which is quick; `page` runs `emceepee trace --web`.
"""

import http.client
import json
import signal
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import anyio
from anyio.abc import SocketAttribute
from anyio.from_thread import start_blocking_portal

from emceepee_stdio.trace.trace_page import PageFeed, PageIdentity, PageServer
from tests.e2e.cli_harness import WAIT_S, Home

if TYPE_CHECKING:
    import subprocess


class Got(NamedTuple):
    """A response, with all of its body."""

    status: int
    headers: dict[str, str]
    body: bytes


class Page:
    """A page that is served at `address`."""

    def __init__(self, address: str, identity: PageIdentity | None = None) -> None:
        self.address = address
        self.identity = identity
        parts = urlsplit(address)
        assert parts.port is not None, address
        self.port = parts.port
        self.host = f"127.0.0.1:{self.port}"
        self.opening = f"{parts.path}?{parts.query}"
        self.token = parse_qs(parts.query)["token"][0]

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Got:
        """`host=`, `cookie=` and others as they are given, with dashes for underscores."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(connection):
            connection.request(method, path, headers=named)
            answer = connection.getresponse()
            got = {name.lower(): value for name, value in answer.getheaders()}
            return Got(answer.status, got, answer.read())

    def enter(self) -> tuple[str, str]:
        """Use the address: the path of the page, and the cookie for it."""
        got = self.get(self.opening)
        assert got.status == 200, got
        cookie, _, attributes = got.headers["set-cookie"].partition("; ")
        path = dict(part.split("=") for part in attributes.split("; ") if "=" in part)["Path"]
        return path, cookie

    def raw(self, request: bytes) -> bytes:
        """Bytes as they are, and all that is answered."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WAIT_S) as connection:
            connection.sendall(request)
            answer = b""
            while data := connection.recv(1 << 16):
                answer += data
            return answer


@contextmanager
def served(directory: Path, identity: PageIdentity | None = None) -> Iterator[Page]:
    """The requests of a directory; with the identity of an earlier page in that one's place."""
    feed = PageFeed(directory, wanted=lambda _: True)
    with closing(feed), start_blocking_portal() as portal:
        port = 0 if identity is None else identity.port
        where = {"local_host": "127.0.0.1", "local_port": port}
        listener = portal.call(partial(anyio.create_tcp_listener, **where)).listeners[0]
        bound = listener.extra(SocketAttribute.local_port)
        server = PageServer(identity or PageIdentity.new(bound, now=0.0), feed)
        running = portal.start_task_soon(server.run, listener)
        try:
            yield Page(server.address, server.identity)
        finally:
            running.cancel()


class Running(Page):
    """The command, in a pipe."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        self.process = process
        super().__init__(process.stdout.readline().decode().strip())

    def end(self) -> tuple[int, str]:
        """Ctrl-C: the exit code, and what it said on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors.decode()


@contextmanager
def page(home: Home, *arguments: str) -> Iterator[Running]:
    """Ended at the end, if it has not."""
    process = home.start("trace", "--web", *arguments)
    try:
        yield Running(process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=WAIT_S)


class Events:
    """A stream of the page's server, read message by message."""

    def __init__(self, page: Page, path: str, cookie: str, *, after: str = "") -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", page.port, timeout=WAIT_S)
        self._connection.request("GET", f"{path}events?after={after}", headers={"cookie": cookie})
        self._answer = self._connection.getresponse()
        assert self._answer.status == 200
        self.place = ""

    def next(self) -> tuple[str, Any]:
        """The name of the next message, and its data."""
        fields: dict[str, str] = {}
        while line := self._answer.readline().decode().rstrip("\n"):
            name, _, value = line.partition(": ")
            fields[name] = value
        self.place = fields.get("id", self.place)
        return fields["event"], json.loads(fields["data"])

    def until_caught_up(self) -> dict[str, list[Mapping[str, Any]]]:
        """Everything that is told before that."""
        told: dict[str, list[Mapping[str, Any]]] = {"records": [], "marks": []}
        while (message := self.next())[0] != "caught_up":
            for kind in told:
                told[kind] += message[1].get(kind, [])
        return told

    def close(self) -> None:
        self._connection.close()
