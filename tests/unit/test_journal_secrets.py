from base64 import b64encode
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.journal import Secrets, given_secrets
from emceepee_stdio.journal.redact import MARKER


def secrets(*values: str) -> Secrets:
    made = Secrets()
    made.add(values)
    return made


def test_what_was_given_is_hidden_wherever_it_stands():
    known = secrets("quiet-river", "a.b*c(d")
    assert known.mask("quiet-river") == MARKER
    assert known.mask("xquiet-riverx a.b*c(d") == f"x{MARKER}x {MARKER}"
    assert known.mask("quiet river, aXbXcXd") == "quiet river, aXbXcXd"


def test_without_secrets_a_text_is_itself():
    text = "nothing to hide"
    assert Secrets().mask(text) is text
    assert secrets().mask(text) == text


def test_what_is_short_stands_in_ordinary_words_and_stays():
    known = secrets("", "a", "token", "tokens")
    assert known.mask("a token, two tokens") == f"a token, two {MARKER}"


def test_the_longest_is_hidden_whole():
    known = secrets("river-71", "quiet-river-71", "quiet-river-71-and-more")
    assert known.mask("quiet-river-71-and-more!") == f"{MARKER}!"
    assert known.mask("quiet-river-71!") == f"{MARKER}!"
    assert known.mask("a river-71!") == f"a {MARKER}!"


def test_what_was_once_secret_stays_so():
    known = secrets("quiet-river")
    known.add(["amber-lantern"])
    known.add([])
    assert known.mask("quiet-river amber-lantern") == f"{MARKER} {MARKER}"


def test_the_values_are_not_shown_of_themselves():
    assert repr(secrets("quiet-river", "short")) == "<Secrets 1 known>"


def test_so_many_are_known_at_most():
    known = Secrets()
    known.add(f"secret-{n}" for n in range(20_000))
    assert repr(known) == "<Secrets 10000 known>"
    assert known.mask("secret-9999") == MARKER


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=20), max_size=5), st.text(max_size=40))
def test_no_secret_is_left_in_any_text(values: list[str], around: str):
    known = secrets(*values)
    for value in values:
        if len(value) >= 6 and value not in MARKER:
            hidden = known.mask(f"{around}{value}{around}")
            assert value not in hidden.replace(MARKER, "\0")


def found(**what: object) -> set[str]:
    return set(given_secrets(**what))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["x", "--token", "quiet-river"], "quiet-river"),
        (["x", "--password=quiet-river"], "quiet-river"),
        (["x", "API_KEY=quiet-river"], "quiet-river"),
        (["x", "--header", "Authorization: Bearer quiet-river"], "Bearer quiet-river"),
        (["postgres://me:quiet-river@host/db"], "quiet-river"),
        (["--url=https://host/?api_key=quiet-river"], "quiet-river"),
    ],
    ids=str,
)
def test_arguments(argv: list[str], expected: str):
    assert any(expected in value for value in found(argv=argv))
    assert secrets(*found(argv=argv)).mask(f"it said {expected}") == f"it said {MARKER}"


def test_arguments_that_are_no_secrets():
    assert (
        found(argv=["npx", "-y", "some-package", "--verbose", "--port", "8080", "/a/path"]) == set()
    )


def test_the_environment():
    env = {
        "API_TOKEN": "quiet-river",
        "HOME": "/home/somebody",
        "DATABASE": "redis://:amber%20lantern@host/0",
        "EMPTY_TOKEN": "",
    }
    values = found(env=env)
    assert {"quiet-river", "amber%20lantern", "amber lantern"} <= values
    assert not any("somebody" in value for value in values)


def test_headers_but_those_that_everybody_sends():
    headers = {
        "X-Whatever": "quiet-river",
        "Authorization": "Bearer amber-lantern",
        "authorization2": "token copper-gate",
        "Accept": "application/json",
        "User-Agent": "somebody",
        "CONTENT-TYPE": "text/plain",
    }
    values = found(headers=headers)
    assert {"quiet-river", "Bearer amber-lantern", "amber-lantern", "copper-gate"} <= values
    assert not values & {"application/json", "somebody", "text/plain"}


def test_an_address_in_every_form_in_which_it_may_be_told():
    user, password = "indigo:lagoon", "p@ss/word"
    url = (
        f"https://{quote(user, safe='')}:{quote(password, safe='')}@host/mcp"
        "?api_key=walnut%2Destuary&page=2&token=a%26b%26c%26d"
    )
    values = found(url=url)
    assert {user, password, quote(password, safe="")} <= values
    assert b64encode(f"{user}:{password}".encode()).decode() in values
    assert {"walnut-estuary", "a&b&c&d", "a%26b%26c%26d"} <= values
    assert "2" not in values


@pytest.mark.parametrize(
    "url", ["", "no address", "http://[::1", "http://host:port:port/", "http://", "//", "http://@/"]
)
def test_an_address_that_is_none_is_no_failure(url: str):
    assert isinstance(found(url=url, env={"X_TOKEN": url}, argv=[url]), set)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=30), max_size=4), st.text(max_size=60))
def test_anything_can_be_given(argv: list[str], text: str):
    values = found(argv=argv, env={text[:8]: text}, headers={text[:8]: text}, url=text)
    assert all(isinstance(value, str) for value in values)
    secrets(*values).mask(text)


def test_what_looks_like_a_token_is_one_whatever_its_variable_is_called():
    env = {"PW": "hunter2-and-more", "LICENSE": "abcd1234efgh", "LEVEL": "verbose-mode"}
    secrets = Secrets()
    secrets.add(given_secrets(env={**env, "DIR": "/srv/data2026/x", "N": "1234567890123"}))
    assert secrets.mask("hunter2-and-more abcd1234efgh") == "[redacted] [redacted]"
    plain = "verbose-mode /srv/data2026/x 1234567890123"
    assert secrets.mask(plain) == plain


def test_secrets_that_overlap_are_hidden_together():
    assert secrets("abcdefgh", "efghijkl").mask("<abcdefghijkl>") == f"<{MARKER}>"
    assert secrets("abcdef", "ghijkl").mask("abcdefghijkl") == f"{MARKER}{MARKER}"


def test_the_time_does_not_grow_with_the_length_of_a_secret_that_is_nearly_in_the_text():
    # With one step for each character of the secret in each place this takes an hour.
    text = "a" * (8 << 20)
    assert secrets("a" * 500_000 + "b").mask(text) is text


def test_of_a_long_text_the_beginning_is_shown_with_its_size():
    known = secrets("quiet-river")
    assert known.mask_head("a quiet-river", 13) == f"a {MARKER}"
    assert known.mask_head("abc quiet-river", 3) == "abc… [cut] 15 characters"


@pytest.mark.parametrize("limit", range(1, 15))
def test_no_part_of_a_secret_is_shown_where_a_text_is_cut(limit: int):
    shown = secrets("quiet-river", "zzzzzz").mask_head("a quiet-river and more", limit)
    assert "qu" not in shown
    assert shown.endswith("… [cut] 22 characters")
