"""The certificate and the key for https, tried before anything is served.

uvicorn reads them when it serves already, and OpenSSL would ask the terminal for a passphrase.
"""

import ssl
from pathlib import Path

from emceepee_stdio.errors import ConfigInvalid

__all__ = ["check_tls_files"]

_OTHER_KEY = "KEY_VALUES_MISMATCH"


def check_tls_files(certificate: str, key: str) -> None:
    """Refuse files with which https would not work."""
    for file in (certificate, key):
        _require_readable(file)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except ssl.SSLError:
        raise ConfigInvalid(
            f"{certificate} has no certificate in PEM format.",
            hint="Give --tls-cert the certificate, and --tls-key its private key.",
        ) from None
    try:
        context.load_cert_chain(certificate, key, password=_refuse_passphrase)
    except (ssl.SSLError, _Encrypted) as error:
        raise _unusable(certificate, key, error) from None


def _require_readable(file: str) -> None:
    if not Path(file).is_file():
        raise ConfigInvalid(f"There is no file {file}.", hint="Name the file for https.")
    try:
        with Path(file).open("rb"):
            pass
    except OSError as error:
        raise ConfigInvalid(
            f"{file} cannot be read: {error.strerror or error}.",
            hint="Let the user who starts the front read it.",
        ) from None


class _Encrypted(Exception):
    """The key has a passphrase."""


def _refuse_passphrase() -> str:
    """OpenSSL asks for one only where the key has it."""
    raise _Encrypted


def _unusable(certificate: str, key: str, error: Exception) -> ConfigInvalid:
    if isinstance(error, _Encrypted):
        return ConfigInvalid(
            f"The key in {key} is encrypted.",
            hint=f"Give a key without a passphrase: openssl pkey -in {key} -out NEW_FILE",
        )
    reason = getattr(error, "reason", None)
    if reason == _OTHER_KEY:
        return ConfigInvalid(
            f"The key in {key} is not the key of the certificate in {certificate}.",
            hint="Give two files that were made together; the server's certificate comes first.",
        )
    return ConfigInvalid(
        f"{key} has no private key that fits {certificate}{f' ({reason})' if reason else ''}.",
        hint="Give --tls-key the private key of --tls-cert, in PEM format.",
    )
