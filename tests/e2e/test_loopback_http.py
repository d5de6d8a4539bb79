"""The HTTP server on this machine as it takes forms: bounded, and from its own page alone."""

import http.client
import socket
from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from emceepee_stdio.wire.loopback_http import (
    LoopbackServer,
    PageReply,
    PageRequest,
    loopback_listener,
)

WAIT_S = 20


async def echo(request: PageRequest) -> PageReply:
    return PageReply(f"{request.method} {request.path} ".encode() + request.body)


@pytest.fixture
def port() -> Iterator[int]:
    with start_blocking_portal() as portal:
        listener, bound = portal.call(loopback_listener, 0)
        server = LoopbackServer(bound, echo, methods=("GET", "POST"))
        running = portal.start_task_soon(server.accept, listener)
        try:
            yield bound
        finally:
            running.cancel()


def post(port: int, body: bytes, **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("POST", "/form", body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_a_form_of_its_own_page_is_taken(port: int) -> None:
    own = f"http://127.0.0.1:{port}"
    assert post(port, b"agree=yes", origin=own) == (200, b"POST /form agree=yes")
    assert post(port, b"x" * 65_536, origin=own)[1].endswith(b"x" * 65_536)


def test_a_form_that_names_no_origin_or_another_one_is_refused(port: int) -> None:
    assert post(port, b"agree=yes")[0] == 403
    for origin in ("null", "http://attacker.example", f"https://127.0.0.1:{port}"):
        assert post(port, b"agree=yes", origin=origin)[0] == 403
    own = f"http://127.0.0.1:{port}"
    led = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert post(port, b"", origin=own, **led, **{"sec-fetch-dest": "document"})[0] == 403
    assert post(port, b"", origin=own, host="attacker.example")[0] == 403


def test_a_form_is_as_long_as_it_says_and_not_too_long(port: int) -> None:
    start = f"POST /form HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\n"
    for line, status in (
        ("Content-Length: 65537", 413),
        ("Content-Length: 9999999999999", 413),
        ("Content-Length: -1", 411),
        ("Content-Length: 1\r\nContent-Length: 2", 411),
        ("Transfer-Encoding: chunked", 411),
        ("X: y", 411),
    ):
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
            connection.sendall(f"{start}{line}\r\n\r\n".encode())
            assert connection.recv(100).split(b" ")[1] == str(status).encode(), line
