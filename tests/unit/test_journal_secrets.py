import json
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.journal import (
    Secrets,
    given_secrets,
    redact_argv,
    redact_env,
    redact_url,
)
from emceepee_stdio.redaction.known_secrets import token_secrets
from emceepee_stdio.redaction.redact import MARKER


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


# The forms of one value


PASSWORDS = [
    'say "quiet" river',
    "grün-wälder\\71",
    "a/b+c&d<e>f'g`h",
    "naïve\ttab-71",
    "☃-snow-🎿-71",
]


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize(
    "told",
    [
        json.dumps,
        lambda value: json.dumps(value, ensure_ascii=False),
        lambda value: json.dumps(json.dumps(value)),
        lambda value: json.dumps(json.dumps(value, ensure_ascii=False), ensure_ascii=False),
        lambda value: msgspec.json.encode(value).decode(),
        lambda value: json.dumps(value).replace("/", "\\/"),
        lambda value: re.sub(r"\\u....", lambda m: "\\u" + m[0][2:].upper(), json.dumps(value)),
        repr,
        lambda value: quote(value, safe=""),
        quote_plus,
    ],
    ids=["json", "utf-8", "twice", "twice utf-8", "msgspec", "php", "java", "repr", "url", "form"],
)
def test_a_value_is_hidden_in_whatever_encoding_it_is_repeated(password: str, told: Any):
    known = secrets(*found(env={"DB_PASSWORD": password}))
    assert known.mask(f"got {told(password)}!").strip("\"'got !\\") == MARKER


@pytest.mark.parametrize("password", [*PASSWORDS, "quiet-river-71", "s3cr3t"])
@pytest.mark.parametrize("before", ["", "u", "us", "user:"])
@pytest.mark.parametrize("behind", ["", "!", "~~"])
@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_a_value_is_hidden_in_base64_whatever_stands_beside_it(
    password: str, before: str, behind: str, encode: Callable[[bytes], bytes]
):
    known = secrets(*found(env={"DB_PASSWORD": password}))
    told = encode(f"{before}{password}{behind}".encode()).decode()
    shown = known.mask(f"got {told}.")
    assert MARKER in shown
    left = shown.replace(MARKER, "").removeprefix("got ").removesuffix(".")
    around = len(encode(before.encode())) + len(encode(behind.encode()))
    assert len(left) <= around + 3, "of the value itself only bits at its ends"


@pytest.mark.parametrize("password", [*PASSWORDS, "quiet-river-71"])
def test_a_value_is_hidden_in_hex(password: str):
    known = secrets(*found(env={"DB_PASSWORD": password}))
    for told in (password.encode().hex(), password.encode().hex().upper()):
        assert known.mask(f"got 0x{told}ff!") == f"got 0x{MARKER}ff!"


def test_few_values_are_looked_for_in_an_ordinary_line():
    """A token and its forms stand only in a run of so many letters."""

    class Counted(str):
        __slots__ = ()
        searched = 0

        def find(self, *args: Any) -> int:
            Counted.searched += 1
            return super().find(*args)

    known = secrets(*found(env={f"TOKEN_{n}": f"ghp_{n:032}" for n in range(50)}))
    line = "2026-11-18T21:00:00Z WARN the server at 10.0.0.7 answered 503, try again in 5 s"
    assert known.mask(Counted(line)) == line
    assert Counted.searched < 50


def test_a_value_of_several_lines_is_hidden_line_by_line():
    known = secrets(*found(env={"SERVICE_KEY": "first-quiet-line\nsecond-quiet-line\r\n\nab\n"}))
    assert known.mask("> second-quiet-line") == f"> {MARKER}"
    assert known.mask("ab") == "ab"


# Parts of an address's path


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://mcp.example/s/a1b2c3d4e5f6a7b8c9d0/mcp", "a1b2c3d4e5f6a7b8c9d0"),
        ("https://mcp.example/mcp/sk-ak-abcdefghijklmnopqrst/sse", "sk-ak-abcdefghijklmnopqrst"),
        ("https://mcp.example/token/quiet-river-71/mcp", "quiet-river-71"),
        ("https://mcp.example/Ab-cdEf_gh1jKl-mnOp_qr/mcp", "Ab-cdEf_gh1jKl-mnOp_qr"),
        ("https://h/3f2504e0-4f89-11d3-9a0c-0305e82c3301", "3f2504e0-4f89-11d3-9a0c-0305e82c3301"),
        ("https://mcp.example/key/quiet%2Friver%2F71", "quiet/river/71"),
    ],
)
def test_a_secret_in_the_path_of_an_address_is_hidden_wherever_it_is_repeated(
    url: str, secret: str
):
    for given_as in ({"url": url}, {"argv": ["npx", "mcp-remote", url]}, {"env": {"TARGET": url}}):
        known = secrets(*found(**given_as))
        assert known.mask(f"404 at {secret}.") == f"404 at {MARKER}."
    assert secret not in redact_url(url)
    assert secret not in " ".join(redact_argv(["npx", "mcp-remote", url, f"--url={url}"]))
    assert secret not in redact_env({"TARGET": url})["TARGET"]


@pytest.mark.parametrize(
    "url",
    [
        "https://api.githubcopilot.com/mcp/",
        "https://mcp.example/v1/projects/my-very-long-project-name/mcp",
        "https://mcp.example/auth/callback/session/start",
        "https://mcp.example/token/refresh",
    ],
)
def test_the_plain_words_of_a_path_are_no_secret(url: str):
    assert found(url=url) == set()
    assert redact_url(url) == url


# Bounds


def test_no_server_fills_the_table_of_another():
    known = Secrets()
    for server in range(20):
        known.add((f"header-{server}-{n}" for n in range(1_000)), server=f"filler-{server}")
    known.add(["quiet-river"], server="mine")
    assert known.mask("quiet-river header-0-0 header-19-999") == f"{MARKER} {MARKER} {MARKER}"


def test_what_a_former_server_was_given_stays_secret_up_to_a_bound():
    known = Secrets()
    known.add(["quiet-river"], server="mine")
    for n in range(30):
        known.add((f"value-{n}-{m}" for m in range(1_000)), server="again")
    assert known.mask("quiet-river value-29-0 value-28-0") == f"{MARKER} {MARKER} {MARKER}"
    assert known.mask("value-0-0") == "value-0-0"
    assert repr(known) == "<Secrets 11001 known>"
    known.retire("mine")
    assert known.mask("quiet-river") == MARKER


@pytest.mark.parametrize("encode", [b64encode, urlsafe_b64encode])
def test_a_token_in_base64_is_hidden_as_well(encode: Callable[[bytes], bytes]):
    known, token = Secrets(), "access-7>>>quiet??river~"
    known.learn(token_secrets(token))
    shown = known.mask(f"refused: {encode(token.encode()).decode()}")
    assert shown.rstrip("=") == f"refused: {MARKER}"
