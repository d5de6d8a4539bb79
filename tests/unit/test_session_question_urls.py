"""Addresses that a server wants a person to open."""

import pytest

from emceepee_stdio.session.questions import host_of, url_problem, url_warning

REFUSED = [
    "https://bank.example@evil.example/",
    "https://user:pw@bank.example/",
    "https://evil.example\\@bank.example/",
    "https://bank.example\\.evil.example/",
    "https://b\u0430nk.example/",  # a Cyrillic a
    "https://xn--bnk-8cd.example/",  # the same, as a browser writes it
    "https://\u0262oogle\u0430.example/",
    "https://bank%2eexample/",
    "https://stra\xdfe.example/",
    "https://bank.example:99999/",
    "https://xn--99999999999999999999/",
    "https://bank_\u2044login.example/",
]


@pytest.mark.parametrize("url", REFUSED, ids=ascii)
def test_an_address_that_can_be_read_in_two_ways_is_refused(url: str):
    assert url_problem(url)


OPENED = [
    ("https://bank.example/login?next=@home", "bank.example"),
    ("http://localhost:8080/x", "localhost"),
    ("http://[::1]:8080/x", "::1"),
    ("https://\u4f8b\u3048.example/", "xn--r8jz45g.example"),
    ("https://xn--80ak6aa92e.example/", "xn--80ak6aa92e.example"),  # all of it Cyrillic
    ("https://BANK.example/", "bank.example"),
]


@pytest.mark.parametrize(("url", "host"), OPENED, ids=ascii)
def test_the_host_is_shown_as_the_browser_asks_for_it(url: str, host: str):
    assert url_problem(url) is None
    assert host_of(url) == host


def test_of_a_long_host_the_end_is_shown_which_says_whose_it_is():
    shown = host_of("https://" + "bank.example." * 8 + "evil.example/")
    assert shown.startswith("…")
    assert shown.endswith("evil.example")
    assert len(shown) < 50


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://bank.example/", "not encrypted"),
        ("http://192.168.0.1/", "not encrypted"),
        ("https://xn--80ak6aa92e.example/", "other letters than A to Z: \u0430\u0440\u0440"),
        ("https://bank.example/", None),
        ("http://127.0.0.1:9/", None),
        ("http://localhost/", None),
    ],
)
def test_a_person_is_warned_of_what_the_address_does_not_show(url: str, says: str | None):
    warning = url_warning(url)
    assert (warning is None) if says is None else (warning is not None and says in warning)
