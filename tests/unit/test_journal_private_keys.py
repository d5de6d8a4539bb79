import secrets
from base64 import b64encode

import pytest

from emceepee_stdio.journal import PrivateKeyLines
from emceepee_stdio.redaction.redact import MARKER


def key(kind: str = "RSA ", size: int = 1190) -> list[str]:
    """A key as openssl prints it; its bytes are random, which is all that matters here."""
    body = b64encode(secrets.token_bytes(size)).decode()
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return [f"-----BEGIN {kind}PRIVATE KEY-----", *lines, f"-----END {kind}PRIVATE KEY-----"]


def hidden(lines: list[str]) -> list[str]:
    keys = PrivateKeyLines()
    return [keys.hide(line) for line in lines]


@pytest.mark.parametrize("kind", ["", "RSA ", "EC ", "OPENSSH ", "ENCRYPTED "])
@pytest.mark.parametrize("size", [32, 121, 1190, 9000])
def test_a_key_that_comes_line_by_line_is_hidden(kind: str, size: int):
    lines = key(kind, size)
    shown = hidden(["before it", *lines, "after it"])
    assert shown[0] == "before it"
    assert shown[-1] == "after it"
    assert set(shown[1:-1]) == {MARKER}


@pytest.mark.parametrize(
    "around", ["2026-11-16 INFO key: {}", '{{"level":"info","message":"{}"}}', "  | {}", "{}\t"]
)
def test_what_a_logger_writes_around_each_line_does_not_help(around: str):
    lines = key()
    shown = "\n".join(hidden([around.format(line) for line in lines]))
    assert not any(line in shown for line in lines[1:-1])


def test_the_lines_of_others_in_between_are_shown_and_the_key_goes_on_after_them():
    lines = key()
    shown = hidden([*lines[:3], "GET /health 200", "Proc-Type: 4,ENCRYPTED", "", *lines[3:]])
    assert shown[3:6] == ["GET /health 200", "Proc-Type: 4,ENCRYPTED", ""]
    assert set(shown[6:]) == {MARKER}


def test_a_message_that_names_the_first_line_does_not_hide_the_log_that_follows():
    shown = hidden(["it must begin with -----BEGIN PRIVATE KEY-----", *["plain words"] * 30])
    assert shown[1:] == ["plain words"] * 30
    keys = PrivateKeyLines()
    for line in ["-----BEGIN PRIVATE KEY-----", *["plain words"] * 20]:
        keys.hide(line)
    assert not keys.is_inside


def test_no_key_is_endless():
    keys = PrivateKeyLines()
    keys.hide("-----BEGIN PRIVATE KEY-----")
    for _ in range(400):
        assert keys.hide("A" * 64) == MARKER
    assert not keys.is_inside
    assert keys.hide("A" * 64) == "A" * 64


def test_several_keys_may_stand_in_one_line_beside_other_text():
    one = " ".join(key("", 32))
    assert PrivateKeyLines().hide(f"a {one} b {one} c") == f"a {MARKER} b {MARKER} c"
    assert PrivateKeyLines().hide("nothing of the kind") == "nothing of the kind"


def test_a_certificate_and_a_public_key_are_no_secret():
    lines = ["-----BEGIN CERTIFICATE-----", "MIIB" * 16, "-----END CERTIFICATE-----"]
    assert hidden(lines) == lines
