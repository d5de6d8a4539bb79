"""Connections over TLS that do nothing: they must not take the places of others."""

import socket
import ssl
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.front_harness import RunningFront, http_client, running_front
from tests.e2e.test_front_http_mistakes import tls_files
from tests.front_entry import front_command

WITHOUT_UVLOOP = """
import runpy, sys
sys.modules["uvloop"] = None
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
FEW, CROWD = 20, 120  # uvicorn refuses the next one at 64 more than few


def asyncio_command(**limits: float) -> list[str]:
    python, *rest = front_command(**limits)
    return [python, "-c", WITHOUT_UVLOOP, *rest]


Command = Callable[..., list[str]]
on_each_loop = pytest.mark.parametrize(
    "command", [front_command, asyncio_command], ids=["uvloop", "asyncio"]
)


@contextmanager
def tls_front(tmp_path: Path, python: list[str]) -> Generator[RunningFront]:
    files = tls_files(tmp_path)
    options = ["--tls-cert", files["cert"], "--tls-key", files["key"]]
    with running_front(tmp_path, *options, python=python) as front:
        yield front


def raw_connection(front: RunningFront) -> socket.socket:
    parts = urlsplit(front.url)
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)


def tls_connection(front: RunningFront) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(raw_connection(front))


async def is_healthy(front: RunningFront) -> bool:
    async with http_client(front) as client:
        return (await client.http.get(f"{front.base}/health")).status_code == 200


@on_each_loop
@pytest.mark.parametrize("how", ["silent", "keep-alive", "close"])
async def test_a_crowd_that_never_closes_shuts_nobody_out(
    tmp_path: Path, command: Command, how: str
) -> None:
    """Under TLS, a server that closes waits for its client to do so, too."""
    with tls_front(tmp_path, command(connections=FEW)) as front, ExitStack() as stack:
        for _ in range(CROWD):
            made = stack.enter_context(tls_connection(front))
            if how != "silent":
                asked = f"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: {how}\r\n\r\n"
                made.sendall(asked.encode())
                assert made.recv(15) == b"HTTP/1.1 200 OK"
        assert await is_healthy(front)


@on_each_loop
def test_a_client_that_never_closes_does_not_disturb_the_end(
    tmp_path: Path, command: Command
) -> None:
    with ExitStack() as stack, tls_front(tmp_path, command(sweep_s=0.05)) as front:
        made = stack.enter_context(tls_connection(front))  # which outlives the front
        made.sendall(b"\0garbage\r\n\r\n")
        assert made.recv(12) == b"HTTP/1.1 400"
