"""Mistakes of those who start the HTTP front: one line with the next step, and nothing served."""

import datetime as dt
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.cli_harness import Home
from tests.e2e.clients.raw import PROXY, WAIT_S, surroundings
from tests.e2e.front_harness import http_client, running_front

PEM = serialization.Encoding.PEM
Key = ec.EllipticCurvePrivateKey


def pem_of(key: Key, passphrase: bytes | None = None) -> bytes:
    sealing = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase)
    )
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, sealing)


def certificate_of(key: Key) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(PEM)


def tls_files(tmp_path: Path) -> dict[str, str]:
    """Files by what is in them."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = {
        "cert": certificate_of(key),
        "key": pem_of(key),
        "other-key": pem_of(ec.generate_private_key(ec.SECP256R1())),
        "encrypted-key": pem_of(key, b"secret"),
        "empty": b"",
        "half-key": pem_of(key)[:80],
    }
    for name, content in files.items():
        (tmp_path / f"{name}.pem").write_bytes(content)
    return {name: str(tmp_path / f"{name}.pem") for name in files}


def refusal(tmp_path: Path, *options: str, code: int = 1) -> str:
    """What it says instead of serving."""
    done = subprocess.run(
        [*PROXY, "serve", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=surroundings(tmp_path),
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "emceepee serves" not in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("cert", "key", "words"),
    [
        ("cert", "other-key", "key values mismatch"),
        ("cert", "empty", "empty.pem: "),
        ("cert", "half-key", "half-key.pem: "),
        ("key", "cert", "key.pem and "),
        ("empty", "key", "empty.pem and "),
        ("cert", "encrypted-key", "encrypted-key.pem: "),
        ("cert", "missing", "missing.pem: No such file or directory."),
    ],
)
def test_files_with_which_https_would_not_work_are_refused_before_anything_is_served(
    tmp_path: Path, cert: str, key: str, words: str
) -> None:
    files = tls_files(tmp_path) | {"missing": str(tmp_path / "missing.pem")}
    said = refusal(
        tmp_path, "--http", "127.0.0.1:0", "--tls-cert", files[cert], "--tls-key", files[key]
    )
    assert "https cannot be served with" in said
    assert words in said
    assert said.count("\n") == 2, "the fact, and the next step"


async def test_the_right_files_serve_https(tmp_path: Path) -> None:
    files = tls_files(tmp_path)
    options = ["--tls-cert", files["cert"], "--tls-key", files["key"]]
    with running_front(tmp_path, *options) as front:
        assert front.url.startswith("https://")
        async with http_client(front) as client:
            assert (await client.http.get(f"{front.base}/health")).json() == {"status": "ok"}


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("nowhere")])
def test_a_token_file_that_is_no_file_is_refused_with_a_next_step(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "tokens")
    said = refusal(tmp_path, "--http", "127.0.0.1:0", "--token-file", str(tmp_path / "tokens"))
    assert said.startswith(f"emceepee: {tmp_path / 'tokens'} is ")
    assert said.count("\n") == 2


def test_nobody_is_advised_to_change_a_device(tmp_path: Path) -> None:
    said = refusal(tmp_path, "--http", "127.0.0.1:0", "--token-file", os.devnull)
    assert "/dev/null is not a regular file" in said
    assert "chmod" not in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--allow-origin", "*"], "Name each origin: --allow-origin https://app.example.org"),
        (["--allow-origin", "app.example.org"], ": --allow-origin https://app.example.org"),
        (["--allow-host", "http://x/"], "Write the name alone: --allow-host x"),
        (["--no-token", "--token-file", "tokens"], "Leave one of the two out."),
    ],
)
def test_an_option_that_would_do_nothing_is_refused_with_the_right_spelling(
    tmp_path: Path, options: list[str], words: str
) -> None:
    assert words in refusal(tmp_path, "--http", "127.0.0.1:0", *options, code=2)
    assert not (tmp_path / "state" / "http-tokens").exists()


@pytest.mark.parametrize(
    "options", [["--no-token"], ["--token-file", "x"], ["--allow-host=x"], ["--max-sessions", "3"]]
)
def test_an_option_for_http_without_http_says_what_is_missing(
    tmp_path: Path, options: list[str]
) -> None:
    flag = options[0].partition("=")[0]
    said = refusal(tmp_path, *options, code=2)
    assert f"{flag} needs --http: emceepee serve --http {flag} …" in said


def test_an_option_for_http_without_http_says_so_at_a_terminal_as_well(tmp_path: Path) -> None:
    with Home(tmp_path / "home").screen("serve", "--no-token") as screen:
        assert screen.wait() == 2
        assert "--no-token needs --http" in screen.words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--http", "nonsense:port"], "Write HOST:PORT, or a port alone."),
        (["--http", "0.0.0.0:0"], "Give --tls-cert and --tls-key;"),
        (["--http", "127.0.0.1:0", "--server", "x"], "See: emceepee serve --help"),
        (["--http", "127.0.0.1:0", "--max-sessions", "many"], "Write 1 or more."),
    ],
)
def test_a_mistake_in_the_command_line_has_its_own_exit_code_and_no_code_in_its_words(
    tmp_path: Path, options: list[str], words: str
) -> None:
    said = refusal(tmp_path, *options, code=2)
    assert words in said
    assert "[invalid" not in said
