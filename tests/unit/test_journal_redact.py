import json
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emceepee_stdio.clock import Clock
from emceepee_stdio.journal import (
    Journal,
    redact,
    redact_argv,
    redact_env,
    redact_text,
    redact_url,
)
from emceepee_stdio.redaction.redact import CUT, MARKER, TOO_DEEP
from emceepee_stdio.redaction.secret_patterns import is_secret_name

SECRET_NAMES = [
    "authorization",
    "Authorization",
    "Proxy-Authorization",
    "cookie",
    "Set-Cookie",
    "token",
    "GITHUB_TOKEN",
    "accessToken",
    "id_token",
    "oauth2Token",
    "x-api-key",
    "apiKey",
    "APIKey",
    "apikey",
    "clientSecret",
    "client_secret",
    "DB_PASSWORD",
    "PGPASSWORD",
    "DB_PASS",
    "passwd",
    "pwd",
    "pw",
    "DB_PW",
    "wifi-psk",
    "passcode",
    "passphrase",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID",
    "privateKey",
    "credentials",
    "Mcp-Session-Id",
    "signature",
    "bearer",
    "GITHUB_PAT",
    "OPENAI_KEY",
    "_auth",
    "refresh.token",
]
HARMLESS_NAMES = [
    "progressToken",
    "progress_token",
    "progresstoken",
    "max_tokens",
    "maxTokens",
    "max_output_tokens",
    "token_count",
    "tokenizer",
    "task_id",
    "request_id",
    "session",
    "key",
    "keyboard",
    "primary_key",
    "PRIMARY_KEY",
    "public_key",
    "monkey",
    "author",
    "secretary",
    "compass",
    "pass_env",
    "path",
    "nextPageToken",
    "token_endpoint",
    "authorization_servers",
    "bearer_token_env_var",
    "SSH_AUTH_SOCK",
    "",
    "é",
]


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_a_name_that_means_a_secret_hides_its_value(name: str):
    assert is_secret_name(name)
    assert redact({name: "hunter2"}) == {name: MARKER}


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_a_name_that_only_sounds_secret_shows_its_value(name: str):
    assert not is_secret_name(name)
    assert redact({name: "plain"}) == {name: "plain"}


def test_numbers_that_count_and_flags_stay_under_secret_names():
    plain = {"maxTokens": 5, "tokens": 512, "hasToken": True, "password": None, "secret": ""}
    assert redact(plain) == plain


def test_a_number_that_is_the_secret_is_hidden():
    assert redact({"password": 123456, "pin_token": 7.5}) == {
        "password": MARKER,
        "pin_token": MARKER,
    }


def test_everything_under_a_secret_name_is_hidden_however_deep():
    data = {"credentials": {"user": {"name": "bob"}}, "tokens": ["a", "b"], "secret": {1}}
    assert redact(data) == {"credentials": MARKER, "tokens": MARKER, "secret": MARKER}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"name": "Authorization", "value": "x"}, {"name": "Authorization", "value": MARKER}),
        ({"key": "lang", "value": "x"}, {"key": "lang", "value": "x"}),
        ([["Cookie", "a=b"], ["Accept", "*"]], [["Cookie", MARKER], ["Accept", "*"]]),
        ((b"token", "x"), ["token", "x"]),
        (["run", "--token", "abc", "--fast"], ["run", "--token", MARKER, "--fast"]),
        (["--password=correct horse", 1, "x"], [f"--password={MARKER}", 1, "x"]),
        ({"url": "https://h/s/a1b2c3d4e5f6a7b8c9d0/mcp"}, {"url": f"https://h/s/{MARKER}/mcp"}),
        ({"text": b"token=abc \xff"}, {"text": f"token={MARKER} \\xff"}),
        ({"ghp_abcdefghijklmnop1234": 1}, {MARKER: 1}),
    ],
)
def test_pairs_lists_addresses_bytes_and_keys_are_looked_into(value: object, shown: object):
    assert redact(value) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Bearer abcdefgh", "Bearer [redacted]"),
        ("sent bearer%20abcdefgh ok", "sent bearer%20[redacted] ok"),
        ("Basic dXNlcjpwYXNz sent", "Basic [redacted] sent"),
        ("Authorization: Basic dXNl", "Authorization: [redacted]"),
        (
            'curl -H "Authorization: Bearer a" https://h',
            'curl -H "Authorization: [redacted]" https://h',
        ),
        ("Cookie: a=b; c=d\nHost: x", "Cookie: [redacted]\nHost: x"),
        ("postgres://u:p@h:5432/db", "postgres://[redacted]@h:5432/db"),
        ("postgres://u:p/w@h/db", "postgres://[redacted]@h/db"),
        ("https://token:abc@h/x", "https://[redacted]@h/x"),
        (
            "https://h/?api_key=a&q=1#access_token=b",
            "https://h/?api_key=[redacted]&q=1#access_token=[redacted]",
        ),
        ("https://h/?key=abc&api%5Fkey=d", "https://h/?key=[redacted]&api%5Fkey=[redacted]"),
        ("x eyJhbGciOi.eyJzdWIi.c2ln y", "x [redacted] y"),
        ("\\nghp_abcdefghijklmnop1234 y", "\\n[redacted] y"),
        ("--api-key abc --verbose", "--api-key [redacted] --verbose"),
        ("['--token', 'abc', 'x']", "['--token', '[redacted]', 'x']"),
        ("--token=abc -v", "--token=[redacted] -v"),
        ("--token --verbose", "--token --verbose"),
        ("export GITHUB_TOKEN=abc; ls", "export GITHUB_TOKEN=[redacted] ls"),
        ("password: correct horse", "password: [redacted]"),
        ('{"password": "a\\"b c", "user": "bob"}', '{"password": "[redacted]", "user": "bob"}'),
        ("{'token': 'a b', 'u': 1}", "{'token': '[redacted]', 'u': 1}"),
        (r"{\"token\": \"a\\\"b\", \"u\": 1}", r"{\"token\": \"[redacted]\", \"u\": 1}"),
        (r"{\\\"token\\\": \\\"ab\\\", 1}", r'{\\\"token\\\": \\\"[redacted]", 1}'),
        ('args={"token": ["a", {"b": "]"}], "n": 1}', 'args={"token": [redacted], "n": 1}'),
        ('token: "a password=b" c', 'token: "[redacted]" c'),
        ("secret: [a, b", "secret: [redacted]"),
        ("api key: zzz", "api key: [redacted]"),
        ("UID=sa;PWD=x", "UID=sa;PWD=[redacted]"),
        ("token =", "token ="),
        ("--token ", "--token "),
    ],
)
def test_a_secret_is_known_by_its_shape_or_by_what_is_written_before_it(text: str, shown: str):
    assert redact_text(text) == shown
    assert redact_text(shown) == shown


TOKENS = [
    "ghp_" + "a1B2" * 9,
    "gho_" + "a1B2" * 9,
    "ghs_" + "a1B2" * 9,
    "ghu_" + "a1B2" * 9,
    "github_pat_" + "a1B2_" * 10,
    "glpat-" + "a1B2" * 5,
    "sk-" + "a1B2" * 8,
    "sk-ant-api03-" + "a1B2" * 8,
    "sk-proj-" + "a1B2" * 8,
    "xoxb-123456789012-" + "a1B2" * 4,
    "xoxp-123456789012-" + "a1B2" * 4,
    "xapp-1-A012-" + "a1B2" * 4,
    "AKIA" + "A1B2" * 4,
    "ASIA" + "A1B2" * 4,
    "AIza" + "a1B2-" * 7,
    "npm_" + "a1B2" * 9,
    "pypi-" + "AgEI" * 10,
    "hf_" + "aBcD" * 9,
    "ya29." + "a1B2-" * 6,
    "dop_v1_" + "a1b2" * 16,
    "shpat_" + "a1b2" * 8,
    "SG." + "a1B2" * 5 + "." + "a1B2" * 10,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nabc\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\\nMIIEow\\nabc",
]


@pytest.mark.parametrize("token", TOKENS, ids=lambda token: token[:11])
@pytest.mark.parametrize("around", ["{}", "say {} now", '"{}",', "x={}", "\\n{}\\n", "%20{}"])
def test_a_well_known_token_is_hidden_wherever_it_stands(token: str, around: str):
    shown = redact_text(around.format(token))
    assert token not in shown
    assert token[12:] not in shown
    assert MARKER in shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read_file",
        "01J9ZK3V7Q8N5T2R4W6Y0A1B2C",
        "tokens: 512, max_tokens=5, token_count: 3",
        "password: null, token=false",
        "SyntaxError: Unexpected token < in JSON at position 0",
        'WWW-Authenticate: Bearer realm="mcp", error="invalid"',
        "Bearer authentication is required",
        "basic usage of the task-force-and-everything-else",
        "http://localhost:8080/@scope/package",
        "ssh://git@github.com/o/r",
        "https://h/?page=2&limit=5",
        "npm_config_registry and npm_lifecycle_event",
        "/usr/lib/python3/site-packages/foo-1.2.3.dist-info/RECORD",
        "4bf92f3577b34da6a3ce929d0e0e4736",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "auth::token::parse failed",
    ],
)
def test_ordinary_text_is_left_as_it_is(text: str):
    assert redact_text(text) == text


def test_an_address_keeps_its_host_and_loses_what_opens_the_door():
    assert (
        redact_url("https://u:p@mcp.example.com/api/s/NjQ4YmM3ZGE2NzQ4YmM3/mcp?x=1&sig=2")
        == f"https://{MARKER}@mcp.example.com/api/s/{MARKER}/mcp?x=1&sig={MARKER}"
    )
    assert redact_url("https://h/u/123e4567-e89b-12d3-a456-426614174000") == f"https://h/u/{MARKER}"
    kept = "https://h.example.com:8443/getting-started-with-version-2/mcp?page=1"
    assert redact_url(kept) == kept
    stored = "emceepee://results/01J9ZK3V7Q8N5T2R4W6Y0A1B2C"
    assert redact_url(stored) == stored


def test_arguments_keep_their_names_and_lose_their_secrets():
    argv = ["npx", "-y", "srv", "--token", "abc", "--password=correct horse", "-e", "TOKEN=a b"]
    argv += ["--header=X-Api-Key: abc d", "--env=DB_PASS=a=b", "--max-tokens", "5", "--tokens=7"]
    argv += ["--secret", "-abc", "--token", "--fast", "https://u:p@h/", "a=b=c=d=e=token=x"]
    assert redact_argv(argv) == [
        *("npx", "-y", "srv", "--token", MARKER, f"--password={MARKER}", "-e", f"TOKEN={MARKER}"),
        *(f"--header=X-Api-Key: {MARKER}", f"--env=DB_PASS={MARKER}", "--max-tokens", "5"),
        *("--tokens=7", "--secret", MARKER, "--token", "--fast", f"https://{MARKER}@h/"),
        f"a=b=c=d=e=token={MARKER}",
    ]


def test_a_key_is_a_secret_in_a_command_line_and_an_environment_alone():
    assert redact_argv(["x", "--key", "abc", "--key=abc", "KEY=abc", "-key", "abc"]) == [
        *("x", "--key", MARKER, f"--key={MARKER}", f"KEY={MARKER}", "-key", MARKER)
    ]
    assert redact_env({"KEY": "abc", "PASS": "abc", "KEYBOARD": "us"}) == {
        "KEY": MARKER,
        "PASS": MARKER,
        "KEYBOARD": "us",
    }
    assert redact_text("press the key: enter") == "press the key: enter"


def test_an_environment_keeps_its_names_and_its_harmless_values():
    env = {"PATH": "/bin", "LANG": "C", "PWD": "/home/x", "GITHUB_TOKEN": "abc", "EMPTY_TOKEN": ""}
    env |= {"DATABASE_URL": "postgres://u:p@h/d", "HEADERS": '{"Authorization": "Bearer x"}'}
    assert redact_env(env) == env | {
        "GITHUB_TOKEN": MARKER,
        "DATABASE_URL": f"postgres://{MARKER}@h/d",
        "HEADERS": f'{{"Authorization": "{MARKER}"}}',
    }


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Name(StrEnum):
    ANNA = "anna"


class Opaque:
    def __repr__(self) -> str:
        return "Opaque(password=hunter2)"


class Broken(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise RuntimeError("hunter2")

    def __iter__(self):
        raise RuntimeError("hunter2")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Opaque(), "[Opaque]"),
        (Broken(), "[Broken]"),
        (memoryview(b"hunter2"), "[memoryview]"),
        ({Opaque(): 1, 2: 3, None: 4, b"k": 5}, {"[Opaque]": 1, "2": 3, "None": 4, "k": 5}),
        ("\ud800x", "\\ud800x"),
        (deque([1, (2,)]), [1, [2]]),
        ([Colour.RED, Size.BIG, Name.ANNA], ["red", 3, "anna"]),
        (PurePosixPath("/a/b"), "/a/b"),
        (bytearray(b"ab"), "ab"),
        (1 << 5000, "[large number]"),
        (1 << 70, 1 << 70),
    ],
)
def test_any_value_becomes_plain_data(value: object, shown: object):
    assert redact(value) == shown


def test_a_cycle_ends_at_the_depth_limit():
    value: list[object] = []
    value.append({"again": value})
    assert TOO_DEEP in json.dumps(redact(value))


def test_a_value_that_unfolds_without_end_is_cut():
    value: list[object] = ["x"]
    for _ in range(60):
        value = [value, value, value]
    assert CUT in json.dumps(redact(value))


def test_the_cut_never_shows_half_a_secret():
    for gap in range(0, 60, 7):
        text = "x" * (100 - gap) + " ghp_" + "a1B2" * 9 + " " + "y" * 10_000
        shown = redact(text, max_chars=100)
        assert isinstance(shown, str)
        assert "ghp_" not in shown
        assert "a1B2" not in shown
        assert shown.endswith(f"{CUT} {len(text)} characters")


def test_a_secret_at_the_edge_of_what_was_searched_is_not_shown_when_the_text_shrinks():
    key = "-----BEGIN PRIVATE KEY-----" + "A" * 4096 + "-----END PRIVATE KEY-----"
    at_the_edge = 100 + 4096 - len(key) - 10
    shown = redact(
        key + "x" * at_the_edge + " ghp_a1B2a1B2a1B2a1B2a1B2 " + "y" * 9000, max_chars=100
    )
    assert "ghp_" not in str(shown)


def test_the_whole_is_bounded_and_says_how_much_is_missing():
    shown = redact({f"k{n}": "v" * 50 for n in range(100)}, max_total=500)
    assert isinstance(shown, dict)
    assert len(json.dumps(shown)) < 1500
    assert shown[CUT] == f"{100 - len(shown) + 1} more"
    assert str(redact(list(range(500)), max_total=100)).endswith("more']")


ADVERSARIAL = [
    *("a", " ", "\t", '"', "\\", "=", "&", "@", "[", "{", "-", "%", "\n", "é", "\ud800", "A1"),
    *("://", "://a:b/", "://@", "eyJ", "eyJ.", "%41eyJ", "sk-", "ghp_", "xoxb-", "AKIA", "SG.a"),
    *("-----BEGIN ", "-----BEGIN PRIVATE KEY-----", "-----END "),
    *("token=", "token: ", 'token: "', 'token: \\"', 'token: \\\\"', "password: '", "token: ["),
    *("token: {}", "password: true ", '"token": null,', "cookie:", "token \t", "token\\\\"),
    *("--token ", "--token", "--a", "api ", "api key ", "Bearer ", "bearer+", "basic ", "?key="),
]


@pytest.mark.parametrize("unit", ADVERSARIAL, ids=repr)
def test_a_million_characters_of_anything_are_searched_in_reasonable_time(unit: str):
    text = (unit * (1_000_000 // len(unit) + 1))[:1_000_000]
    assert redact_text(text) is not None
    assert redact_url("https://h/" + text) is not None
    assert redact_argv([text]) is not None


secrets = st.from_regex(r"Zq[0-9][A-Za-z0-9]{10,20}", fullmatch=True)
noise = st.text(max_size=12) | st.text(alphabet="tokenauth \"'\\:=-,;[]{}@/?&\n", max_size=12)
secret_names = st.sampled_from(SECRET_NAMES)
harmless_names = st.sampled_from([name for name in HARMLESS_NAMES if name.isascii() and name])


@dataclass(frozen=True)
class Planted:
    secret: str
    node: object


@dataclass(frozen=True)
class Kept:
    text: str


PLANTERS: list[Callable[[str, str, str], object]] = [
    lambda name, secret, _: {name: secret},
    lambda name, secret, _: {name: [secret, {"x": secret}]},
    lambda name, secret, _: {"name": name, "value": secret},
    lambda name, secret, _: {"headers": [[name, secret]]},
    lambda _, secret, noise: f"{noise} Bearer {secret} {noise}",
    lambda _, secret, noise: f"{noise} authorization: Basic {secret}\n{noise}",
    lambda _, secret, noise: f"{noise} https://user:{secret}@host/{noise}",
    lambda _, secret, noise: f"{noise} https://{secret}@host/{noise}",
    lambda name, secret, noise: f"https://host/p?q=1&{name}={secret}&r=2 {noise}",
    lambda name, secret, _: {"argv": ["srv", "--" + name.strip("_"), secret, "--fast"]},
    lambda name, secret, _: {"argv": ["srv", f"--{name}={secret} {secret}"]},
    lambda name, secret, _: {"env": {name: secret}},
    lambda name, secret, noise: f"{noise} {name}={secret} {noise}",
    lambda name, secret, noise: f"{noise} {name}: {secret}\n{noise}",
    lambda name, secret, noise: f"{noise} --{name.strip('_')} {secret} {noise}",
    lambda name, secret, noise: json.dumps({noise: {name: f"{noise} {secret} {noise}"}}),
    lambda name, secret, noise: json.dumps(json.dumps({name: f'"{noise}\\" {secret}'})),
    lambda _, secret, noise: f"{noise} ghp_{secret}abcdefgh {noise}",
    lambda _, secret, noise: f"{noise} eyJ{secret}.eyJ{secret}.{secret} {noise}",
    lambda _, secret, noise: (
        f"{noise}-----BEGIN PRIVATE KEY-----\n{secret}\n-----END PRIVATE KEY-----"
    ),
]


def planted() -> st.SearchStrategy[Planted]:
    return st.builds(
        lambda plant, name, secret, noise: Planted(secret, plant(name, secret, noise)),
        st.sampled_from(PLANTERS),
        secret_names,
        secrets,
        noise,
    )


kept = st.builds(Kept, st.from_regex(r"keep[a-z]{8}", fullmatch=True))
trees = st.recursive(
    planted() | kept | st.integers() | st.none() | st.booleans() | st.floats(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(harmless_names, inner, max_size=4),
    max_leaves=12,
)


def grow(tree: object, secrets: set[str], keep: set[str]) -> object:
    match tree:
        case Planted(secret, node):
            secrets.add(secret)
            return node
        case Kept(text):
            keep.add(text)
            return text
        case list():
            return [grow(item, secrets, keep) for item in tree]
        case dict():
            return {name: grow(item, secrets, keep) for name, item in tree.items()}
        case _:
            return tree


@settings(deadline=None)
@given(trees)
def test_no_planted_secret_survives_and_every_harmless_value_does(tree: object):
    planted: set[str] = set()
    keep: set[str] = set()
    shown = json.dumps(redact(grow(tree, planted, keep)))
    assert [secret for secret in planted if secret in shown] == []
    assert [text for text in keep if text not in shown] == []


@settings(deadline=None)
@given(trees)
def test_no_planted_secret_reaches_the_file_or_stderr(
    tmp_path_factory: pytest.TempPathFactory, tree: object
):
    planted: set[str] = set()
    keep: set[str] = set()
    data = grow(tree, planted, keep)
    said: list[bytes] = []
    directory: Path = tmp_path_factory.mktemp("journal")
    journal = Journal.open(directory=directory, session="s", clock=Clock(), stderr=said.append)
    secret = next(iter(planted), "none")
    journal.write("error", "x", server=f"token={secret}", request_id=f"token={secret}", data=data)
    journal.write("warning", f"Bearer {secret}", **{f"k{n}": data for n in range(3)})
    journal.close()
    written = journal.statistics().path.read_text("utf-8")
    assert journal.statistics().lines_written == 2
    for secret in planted:
        assert secret not in written
        assert secret not in b"".join(said).decode()
    assert [text for text in keep if text not in written] == []


@settings(deadline=None)
@given(st.text() | st.text(alphabet="tokenapiky-_=: \"'\\[]{}@/.?&#%eyJ\n", max_size=60))
def test_text_of_any_kind_is_redacted_without_complaint_and_only_once(text: str):
    once = redact_text(text)
    assert redact_text(once) == once
    assert isinstance(redact_url(text), str)
    assert len(redact_argv([text, text])) == 2
