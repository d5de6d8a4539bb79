"""What HTTP says, in our words; redirects, pauses and refusals."""

import errno
import socket
import ssl
from datetime import UTC, datetime
from email.utils import format_datetime

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.backends.channels.event_stream import EventStream
from emceepee_stdio.backends.channels.http_carrier import HttpOptions
from emceepee_stdio.backends.channels.http_connection import pause_before_reopening
from emceepee_stdio.backends.channels.http_errors import (
    HttpRefused,
    Unreachable,
    Untrusted,
    excerpt,
    is_same_origin,
    nameless_error,
    retry_after,
    unreachable,
)

EPOCH = 1_800_000_000.0


@given(st.integers(0, 10**9))
def test_a_pause_in_seconds_is_that_long(seconds: int) -> None:
    assert retry_after(f" {seconds} ", epoch=EPOCH) == seconds


@given(st.integers(-(10**6), 10**6))
def test_a_pause_until_a_date_is_what_is_left_of_it(offset: int) -> None:
    moment = datetime.fromtimestamp(EPOCH + offset, tz=UTC)
    for value in (format_datetime(moment, usegmt=True), format_datetime(moment)):
        assert retry_after(value, epoch=EPOCH) == max(offset, 0)


def test_a_date_without_a_zone_is_in_utc() -> None:
    moment = datetime.fromtimestamp(EPOCH + 5, tz=UTC).replace(tzinfo=None)
    assert retry_after(format_datetime(moment), epoch=EPOCH) == 5


@given(st.text() | st.sampled_from(["²", "-1", "1.5", "Mon, 99 Foo 99999 99:99:99 GMT", "٣"]))
def test_any_other_pause_is_none_and_never_raises(value: str) -> None:
    found = retry_after(value, epoch=EPOCH)
    assert found is None or found >= 0
    assert retry_after(None, epoch=EPOCH) is None


@pytest.mark.parametrize(
    ("url", "location", "same"),
    [
        ("http://h/mcp", "/other", True),
        ("http://h/mcp", "other?x=1", True),
        ("http://h/mcp", "http://h:80/other", True),
        ("http://h:80/mcp", "http://H/", True),
        ("http://h/mcp", "https://h/mcp", True),
        ("http://h/mcp", "https://h:443/", True),
        ("http://h/mcp", "https://h:8443/", False),
        ("http://h:8080/mcp", "https://h/mcp", False),
        ("https://h/mcp", "http://h/mcp", False),
        ("http://h:1/", "http://h:2/", False),
        ("http://h/mcp", "//other/mcp", False),
        ("http://h/mcp", "http://h@other/", False),
        ("http://h/mcp", "http://h.other/", False),
        ("http://h/mcp", "ftp://h/", False),
        ("http://h/mcp", "javascript:alert(1)", False),
        ("http://h/mcp", "http://[::1", False),
        ("http://h/mcp", "http://h:port/", False),
        ("http://127.0.0.1/", "http://localhost/", False),
        ("http://[::1]:1/", "http://[0:0:0:0:0:0:0:1]:1/", False),
    ],
)
def test_what_counts_as_the_same_place(url: str, location: str, *, same: bool) -> None:
    assert is_same_origin(url, location) is same


@given(st.text() | st.from_regex(r"(https?:)?//[a-z@:.\\\[\]0-9]{0,12}/?", fullmatch=True))
def test_a_redirect_that_we_follow_leads_the_client_to_the_same_host(location: str) -> None:
    url = "http://here.example:8080/mcp"
    if not is_same_origin(url, location):
        return
    try:
        target = httpx2.URL(url).join(location)
    except httpx2.InvalidURL:
        return
    assert (target.scheme, target.host, target.port) == ("http", "here.example", 8080)


@given(st.integers(100, 999), st.text())
def test_every_status_has_a_fact_and_a_next_step(status: int, detail: str) -> None:
    error = HttpRefused("files", status, detail=detail)
    assert f"files answered with HTTP status {status}" in error.fact
    assert error.next_step
    assert error.code == "server_unavailable"


def cause(error: BaseException) -> Exception:
    """As the HTTP client wraps it."""
    outer = OSError("All connection attempts failed")
    outer.__cause__ = error
    wrapped = RuntimeError("outermost")
    wrapped.__context__ = ExceptionGroup("several", [outer])
    return wrapped


@pytest.mark.parametrize(
    ("error", "kind", "fact"),
    [
        (socket.gaierror(-2, "Name or service not known"), Unreachable, "host name was not found"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "no"), Unreachable, "was refused"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] no"), Untrusted, "does not speak TLS"),
        (ssl.SSLEOFError(8, "EOF occurred"), Unreachable, "hung up while TLS"),
        (TimeoutError("slow"), Unreachable, "could not be reached: outermost"),
    ],
)
def test_the_first_known_cause_is_the_one_that_is_told(
    error: Exception, kind: type[Unreachable], fact: str
) -> None:
    told = unreachable("files", cause(error))
    assert type(told) is kind
    assert fact in told.fact


def test_an_error_without_an_id_is_read_from_a_refusal() -> None:
    error = nameless_error(b'{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"no"}}')
    assert error is not None
    assert (error.code, error.message) == (-1, "no")
    assert error.data is None
    more = nameless_error(b'{"error":{"code":-1,"message":"no","data":{"supported":[]}}}')
    assert more is not None
    assert bytes(more.data or b"") == b'{"supported":[]}'
    assert nameless_error(b'{"error":"no"}') is None
    assert nameless_error(b"[" * 100_000) is None


@given(st.binary(), st.sampled_from(["text/plain", "application/json", "text/html", ""]))
def test_an_excerpt_is_short_printable_and_on_one_line(body: bytes, kind: str) -> None:
    text = excerpt(body, kind)
    assert len(text) <= 201
    assert text.isprintable()


def test_an_excerpt_is_what_was_said_for_people() -> None:
    assert excerpt(b" Invalid\n key \x1b[0m", "text/plain") == "Invalid key [0m"
    assert excerpt(b'{"error":"x","error_description":"Expired"}', "application/json") == "Expired"
    assert excerpt(b'{"error":{"a":1},"message":"No"}', "application/problem+json") == "No"
    assert excerpt(b"<html>", "text/html") == ""


@given(st.integers(0, 10**6), st.one_of(st.none(), st.floats(0, 10**6)))
def test_a_stream_is_never_opened_again_at_once_nor_too_late(
    misses: int, retry: float | None
) -> None:
    options = HttpOptions()
    stream = EventStream(max_bytes=1, retry=retry)
    pause = pause_before_reopening(stream, misses, options=options)
    assert 0.05 <= pause <= options.reopen_cap
    assert pause <= pause_before_reopening(stream, misses + 1, options=options)
