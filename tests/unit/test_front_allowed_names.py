"""Hosts and origins that a person allows: what no client sends is refused, with what one would."""

import pytest

from emceepee_stdio.errors import InvalidArguments
from emceepee_stdio.front.http.access import check_host, check_origin


@pytest.mark.parametrize(
    "given",
    ["mcp.example.org", "MCP.example.org:8443", "localhost", "10.0.0.1", "[2001:db8::1]:80"],
)
def test_a_host_as_clients_send_it_is_taken(given: str) -> None:
    check_host(given)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("http://mcp.example.org/", "mcp.example.org"),
        ("https://mcp.example.org:8443/mcp", "mcp.example.org:8443"),
        ("mcp.example.org/mcp", "mcp.example.org"),
        ("2001:db8::1", "[2001:db8::1]"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*", "mcp.example.org"),
        ("", "mcp.example.org"),
    ],
)
def test_another_host_is_refused_with_its_right_spelling(given: str, right: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        check_host(given)
    assert refused.value.next_step == f"Write the name alone: --allow-host {right}"
    check_host(right)


@pytest.mark.parametrize(
    "given",
    [
        "https://app.example.org",
        "https://app.example.org/",
        "HTTP://App.example.org:8080",
        "http://[2001:db8::1]:3000",
        "chrome-extension://abcdefghijklmnop",
    ],
)
def test_an_origin_as_browsers_send_it_is_taken(given: str) -> None:
    check_origin(given)


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("*", "https://app.example.org"),
        ("app.example.org", "https://app.example.org"),
        ("app.example.org:8443", "https://app.example.org:8443"),
        ("https://app.example.org/page", "https://app.example.org"),
        ("https://app.example.org:443", "https://app.example.org"),
        ("http://app.example.org:80/", "http://app.example.org"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://*.example.org", "https://mcp.example.org"),
    ],
)
def test_another_origin_is_refused_with_its_right_spelling(given: str, right: str) -> None:
    with pytest.raises(InvalidArguments) as refused:
        check_origin(given)
    assert refused.value.next_step.endswith(f": --allow-origin {right}")
    check_origin(right)
