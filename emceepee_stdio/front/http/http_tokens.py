"""Who may use the front: named tokens in a file that only its owner can read.

One token a line, its name before it: `laptop 4J0…`. The name is all that is ever shown.
"""

import hashlib
import hmac
import os
import re
import secrets
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from emceepee_stdio.config.regular_file import make_private, read_regular
from emceepee_stdio.errors import ConfigInvalid

__all__ = ["HttpTokens", "default_token_file"]

ANYBODY = "anybody"  # whoever comes, where no token is asked for
_FILE = "http-tokens"
_TOKEN_BYTES = 32
_MIN_TOKEN_CHARS = 20  # what is shorter can be tried out
_LINE = re.compile(r"(?P<name>[A-Za-z0-9_.-]{1,64})\s+(?P<token>\S+)")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_token_file(environ: Mapping[str, str]) -> Path:
    """Beside what people agreed to."""
    if chosen := environ.get("EMCEEPEE_STATE_DIR"):
        return Path(chosen).expanduser() / _FILE
    from platformdirs import user_state_path  # noqa: PLC0415 - often not needed

    return user_state_path("emceepee", appauthor=False) / _FILE


class HttpTokens:
    """The tokens by name. None at all: everybody may come, under one name."""

    def __init__(self, tokens: Mapping[str, str] | None) -> None:
        self._digests = (
            None if tokens is None else {name: _digest(token) for name, token in tokens.items()}
        )

    def __repr__(self) -> str:
        return f"<HttpTokens {'none' if self._digests is None else sorted(self._digests)}>"

    @classmethod
    def read(cls, path: Path) -> "HttpTokens":
        """Those in the file, which is made with one token where there is none."""
        if not path.exists():
            _write_new(path)
        tokens = _tokens_in(path)
        if not tokens:
            raise ConfigInvalid(
                f"{path} has no token.",
                hint="Remove the file: the next start makes one. Or write a line: NAME TOKEN.",
            )
        return cls(tokens)

    def owner(self, authorization: str | None) -> str | None:
        """Whose token it is; None for nobody's."""
        if self._digests is None:
            return ANYBODY
        scheme, _, token = (authorization or "").partition(" ")
        given = _digest(token.strip())
        found = None
        for name, digest in self._digests.items():  # all of them, so that none takes less time
            if hmac.compare_digest(digest, given):
                found = name
        return found if scheme.lower() == "bearer" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _write_new(path: Path) -> None:
    make_private(path.parent)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"default {secrets.token_urlsafe(_TOKEN_BYTES)}\n")


def _tokens_in(path: Path) -> dict[str, str]:
    if sys.platform != "win32" and path.stat().st_mode & _OTHERS:
        raise ConfigInvalid(
            f"{path} can be read by others.", hint=f"Run `chmod 600 {path}`, and start again."
        )
    tokens: dict[str, str] = {}
    for number, line in enumerate(read_regular(path).decode("utf-8", "replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None or len(found["token"]) < _MIN_TOKEN_CHARS or found["name"] in tokens:
            raise ConfigInvalid(
                f"Line {number} of {path} is no token.",
                hint=f"Write NAME TOKEN, each name once, with at least {_MIN_TOKEN_CHARS} "
                "characters of token.",
            )
        tokens[found["name"]] = found["token"]
    return tokens
