"""Access checks of an HTTP request: `Host`, `Origin` and bearer tokens.

A page in a browser can make requests to this machine, under a name of its own that leads here. So
`Host` has to be a name of ours, and `Origin`, where a browser sent it, one that was named.
"""

import base64
import hashlib
import hmac
import re
import secrets
import stat
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path

from emceepee_stdio.errors import ConfigInvalid, InvalidArguments
from emceepee_stdio.front.http.http_replies import Headers, refusal
from emceepee_stdio.storage.private_file import (
    Stamp,
    file_stamp,
    make_private,
    others_may,
    read_regular,
    state_directory,
    write_new,
)
from emceepee_stdio.visible_text import shell_word

# Who may use the front: named tokens in a file that only its owner can read.
#
# One token a line, its name before it: `laptop 4J0…`. The name is all that is ever shown. The file
# is followed: a token that is taken out of it is worth nothing a few seconds later.


ANYBODY = "anybody"  # whoever comes, where no token is asked for
_FILE = "http-tokens"
_TOKEN_BYTES = 32
_MIN_TOKEN_CHARS = 20  # what is shorter can be tried out
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOKEN = re.compile(r"[!-~]+")  # what a header can have: a client could not send anything else
_MAKE_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def default_token_file(environ: Mapping[str, str]) -> Path:
    """Beside what people agreed to."""
    return state_directory(environ) / _FILE


class HttpTokens:
    """The tokens by name, as `path` has them. None at all: everybody may come, under one name."""

    def __init__(
        self, tokens: Mapping[str, str] | None, path: Path | None = None, stamp: Stamp | None = None
    ) -> None:
        self._digests = None if tokens is None else _digests(tokens)
        self._path = path
        self._stamp: Stamp | None = stamp
        self._emptied: Stamp | None = None  # the stamp under which it had no token
        # How often a token under this name was revoked. Counted in the event loop, where sessions
        # begin and end: `follow` runs in a thread.
        self.revocations: Counter[str] = Counter()

    @classmethod
    def read(cls, path: Path) -> "HttpTokens":
        """Those in the file, which is made with one token where there is none."""
        if not path.exists():
            _write_new(path)
        stamp = file_stamp(path)  # before: what is written meanwhile is read again
        tokens = _tokens_in(path)
        if not tokens:
            raise ConfigInvalid(
                f"{path} has no token.",
                hint="Remove the file: the next start makes one. Or write a line: NAME TOKEN.",
            )
        return cls(tokens, path, stamp)

    def follow(self) -> list[str]:
        """Take in what was changed in the file; whose tokens are gone, or other ones now.

        A file without a token, or none, lets nobody in, if it is so twice: an editor may be writing
        it. While the file cannot be used, which is raised once, all stays as it was.
        """
        if self._digests is None or self._path is None:
            return []
        stamp = file_stamp(self._path)
        if stamp == self._stamp:
            self._emptied = None
            return []
        before, self._stamp = self._stamp, stamp
        now = {} if stamp is None else _digests(_tokens_in(self._path))
        if not now and self._emptied != (stamp or ()):
            self._stamp, self._emptied = before, stamp or ()
            return []
        self._emptied = None
        gone = [name for name, digest in self._digests.items() if now.get(name) != digest]
        self._digests = now
        return gone

    @property
    def is_empty(self) -> bool:
        """Whether nobody can come in."""
        return self._digests == {}

    @property
    def is_open(self) -> bool:
        """Whether no token is asked for."""
        return self._digests is None

    def owner(self, authorization: str | None, *, as_password: bool = False) -> str | None:
        """Whose token it is; None for nobody's. A browser sends it as a password (RFC 7617)."""
        if self._digests is None:
            return ANYBODY
        scheme, _, token = (authorization or "").partition(" ")
        if as_password and scheme.lower() == "basic":
            scheme, token = "bearer", _password(token)
        given = _digest(token.strip())
        found = None
        for name, digest in self._digests.items():  # all of them, so that none takes less time
            if hmac.compare_digest(digest, given):
                found = name
        return found if scheme.lower() == "bearer" else None


def _password(encoded: str) -> str:
    """What is behind the name, which may be any."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _digests(tokens: Mapping[str, str]) -> dict[str, bytes]:
    return {name: _digest(token) for name, token in tokens.items()}


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def _write_new(path: Path) -> None:
    if path.is_symlink():
        raise ConfigInvalid(
            f"{path} is a link to a file that does not exist.",
            hint="Make that file, or remove the link: the next start makes a file with a token.",
        )
    try:
        make_private(path.parent)
        write_new(path, f"default {secrets.token_urlsafe(_TOKEN_BYTES)}\n".encode())
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be made: {error.strerror or error}.",
            hint="Name another file with --token-file.",
        ) from None


def _tokens_in(path: Path) -> dict[str, str]:
    tokens: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if problem := _problem(words, tokens):
            raise ConfigInvalid(f"Line {number} of {path} {problem[0]}.", hint=problem[1])
        name, token = words
        tokens[name] = token
    return tokens


def _text(path: Path) -> str:
    """Of a file that only its owner can read; editors on Windows begin it with a BOM."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise ConfigInvalid(
                f"{path} is not a regular file.",
                hint="Name a file with --token-file; one that does not exist is made.",
            )
        if others_may(found):
            raise ConfigInvalid(
                f"{path} can be read by others.", hint=f"Run `chmod 600 {shell_word(str(path))}`."
            )
        return read_regular(path).decode("utf-8-sig", "replace")
    except OSError as error:
        raise ConfigInvalid(
            f"{path} cannot be read: {error.strerror or error}.",
            hint="Let only the user who starts the front read it, or name another --token-file.",
        ) from None


def _problem(words: Sequence[str], tokens: Mapping[str, str]) -> tuple[str, str] | None:
    """What is wrong with a line, and what to do; no token is shown."""
    if len(words) != len(("name", "token")) or not _NAME.fullmatch(words[0]):
        return "is not a name and a token", (
            "Write NAME TOKEN; the name can have letters, digits and . _ -"
        )
    name, token = words
    if not _TOKEN.fullmatch(token):
        return "has a token that clients cannot send: it is not ASCII", f"Make one: {_MAKE_ONE}"
    if len(token) < _MIN_TOKEN_CHARS:
        return f"has a token of less than {_MIN_TOKEN_CHARS} characters", f"Make one: {_MAKE_ONE}"
    if name in tokens:
        return f"has the name {name}, which another line has", "Give each line its own name."
    same = next((other for other, known in tokens.items() if known == token), None)
    if same is not None:
        return f"has the token of {same} again", f"Give {name} a token of its own: {_MAKE_ONE}"
    return None


# What a person may write after --allow-host and --allow-origin.
#
# Each is compared with a header that a client sends, so what no client sends would allow nobody.


_HOST = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_ORIGIN = re.compile(rf"[a-z][a-z0-9+.-]*://{_HOST.pattern}")
_EXAMPLE = "mcp.example.org"
_DEFAULT_PORTS = {"http": 80, "https": 443}  # which no browser writes into an origin


def check_host(given: str) -> None:
    """Refuse what is never in a Host header."""
    if not _HOST.fullmatch(given.lower()):
        raise InvalidArguments(
            f"--allow-host {given!r} is not a host name.",
            hint=f"Write the name alone: --allow-host {_host(given.rpartition('://')[2])}",
        )


def check_origin(given: str) -> None:
    """Refuse what is never in an Origin header."""
    if given == "*":
        raise InvalidArguments(
            "--allow-origin '*' would let every page in, which is not possible.",
            hint="Name each origin: --allow-origin https://app.example.org",
        )
    if (right := _origin(given)) != given.lower().rstrip("/"):
        raise InvalidArguments(
            f"--allow-origin {given!r} is not an origin.",
            hint=f"Write scheme and host as the browser sends them: --allow-origin {right}",
        )


def _origin(given: str) -> str:
    """The nearest origin."""
    scheme, _, rest = (given if "://" in given else f"https://{given}").partition("://")
    scheme = scheme.lower()
    host = _host(rest).removesuffix(f":{_DEFAULT_PORTS.get(scheme)}")
    right = f"{scheme}://{host}"
    return right if _ORIGIN.fullmatch(right) else f"https://{host}"


def _host(text: str) -> str:
    """The nearest host name, without a path."""
    text = re.split(r"[/?#]", text)[0].rpartition("@")[2].lower()
    if text.count(":") > 1 and not text.startswith("["):
        text = f"[{text}]"
    try:
        text = text.encode("idna").decode()
    except UnicodeError:
        return _EXAMPLE
    return text if _HOST.fullmatch(text) else _EXAMPLE


_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ALLOWED_HEADERS = (
    "authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, "
    "mcp-method, mcp-name"
)
_PREFLIGHT_S = 600  # for which a browser need not ask again


class Access:
    """`hosts` and `origins` were named by a person; loopback is always among the hosts."""

    def __init__(self, tokens: HttpTokens, *, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self.tokens = tokens
        self._hosts = _LOOPBACK | {host.lower() for host in hosts}
        self._origins = {origin.lower().rstrip("/") for origin in origins}

    def check(self, headers: Mapping[str, str]) -> None:
        """Deny a request that came by a name or from a page that is not allowed."""
        host = headers.get("host", "").lower()
        if not {host, _without_port(host)} & self._hosts:
            reason = "The Host header names none of this server's names."
            raise refusal(HTTPStatus.MISDIRECTED_REQUEST, reason)
        origin = headers.get("origin", "").lower()
        scheme, _, rest = origin.partition("://")
        is_local = scheme in _DEFAULT_PORTS and _without_port(rest) in _LOOPBACK
        if origin and origin not in self._origins and not is_local:
            reason = "The Origin header names a page that was not allowed."
            raise refusal(HTTPStatus.FORBIDDEN, reason)

    def owner(self, headers: Mapping[str, str]) -> str:
        """Whose token the request carries."""
        owner = self.tokens.owner(headers.get("authorization"))
        if owner is None:
            raise refusal(
                HTTPStatus.UNAUTHORIZED,
                "A bearer token is needed: the line that `emceepee serve --http` showed names "
                "the file that holds it.",
                (("www-authenticate", 'Bearer realm="emceepee"'),),
            )
        return owner

    def cors(self, headers: Mapping[str, str], *, preflight: bool) -> Headers:
        """What a page of a named origin needs to read the answer; nothing for any other."""
        origin = headers.get("origin", "")
        if origin.lower() not in self._origins:
            return ()
        shown = (
            ("access-control-allow-origin", origin),
            ("access-control-expose-headers", "mcp-session-id"),
            ("vary", "origin"),
        )
        if not preflight:
            return shown
        return (
            *shown,
            ("access-control-allow-methods", "GET, POST, DELETE"),
            ("access-control-allow-headers", _ALLOWED_HEADERS),
            ("access-control-max-age", str(_PREFLIGHT_S)),
        )


def _without_port(host: str) -> str:
    name, separator, port = host.rpartition(":")
    return name if separator and port.isdecimal() else host
