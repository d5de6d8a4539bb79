"""The token store: one private file for each server and client, shared by all processes.

A record belongs to the URL that a person or model gave, never to what a server calls itself. It is
written whole or not at all. Two locks guard it: `person` is held for as long as somebody signs in,
`write` for one request to the token endpoint, so that a visit never holds up a refresh. Whoever has
taken `write` reads the record again first: another process may have been faster.
"""

import errno
import hashlib
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from copy import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.storage import private_file
from emceepee_stdio.storage.file_lock import file_lock, is_locked
from emceepee_stdio.trust.targets import canonical_url
from emceepee_stdio.visible_text import cut, spelled_out

_VERSION = 1
_KEY_CHARS = 32  # 128 bits of a hash: no two servers share a file
_MAX_RECORD_BYTES = 1 << 20  # a token is a few kilobytes at most
_MAX_LIFE_S = 10 * 365 * 86_400.0  # no token lives longer; a larger number is a mistake
_SHOWN_SCOPE_CHARS = 300  # a few lines of a terminal
_VISIBLE = re.compile(r"[\x21-\x7e]+")  # what a header carries (RFC 6750)
_EARLY_SHARE = 0.1  # of its life: this long before its end a token is refreshed,
_EARLY_S = 60.0  # but no longer than this
WRITE_TIMEOUT_S = 60.0  # longer than one request to a token endpoint may take

T = TypeVar("T", bound=Struct)


class OAuthClient(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As whom we came. The secret of a configured client stays in the configuration."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None
    redirect_uris: tuple[str, ...] = ()
    is_configured: bool = False

    @property
    def redirect_port(self) -> int:
        """Where the browser came back to; 0 where that is not known."""
        return next((port for uri in self.redirect_uris if (port := urlsplit(uri).port)), 0)

    def __repr__(self) -> str:
        return f"<OAuthClient {'configured' if self.is_configured else 'registered'}>"


class _Versioned(Struct, frozen=True):
    """All that is known of a record of whatever version."""

    version: int = _VERSION


class TokenRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What signing in to one server came to. Times are seconds since 1970 by our own clock."""

    version: int = _VERSION
    server: str
    token_endpoint: str
    issuer: str | None = None
    revocation_endpoint: str | None = None
    resource: str | None = None
    client: OAuthClient | None = None
    access_token: str | None = None
    refresh_token: str | None = None
    scope: str | None = None
    obtained_at: float = 0.0
    expires_at: float | None = None

    def __repr__(self) -> str:
        state = "signed in" if self.access_token else "signed out"
        return f"<TokenRecord {state} expires_at={self.expires_at}>"

    def is_due(self, *, now: float) -> bool:
        """Whether to refresh it before it is used again."""
        if self.expires_at is None or self.refresh_token is None:
            return False
        life = max(self.expires_at - self.obtained_at, 0.0)
        return now >= self.expires_at - min(_EARLY_S, _EARLY_SHARE * life)

    def taken(self, answer: Mapping[str, object], *, now: float) -> "TokenRecord":
        """With what a token endpoint granted; what it left out stays as it was (RFC 6749, 6)."""
        kept = {
            name: value
            for name in ("access_token", "refresh_token", "scope")
            if isinstance(value := answer.get(name), str) and value
        }
        life = lifetime(answer.get("expires_in"))
        expires_at = None if life is None else now + life
        return msgspec.structs.replace(self, **kept, obtained_at=now, expires_at=expires_at)

    def validity(self) -> str:
        """Until when somebody is signed in, and for what."""
        until = "until the server ends it"
        end = self.expires_at
        is_end = end is not None and 0 <= end <= self.obtained_at + _MAX_LIFE_S  # as kept long ago
        if end is not None and is_end and self.refresh_token is None:
            moment = datetime.fromtimestamp(end, tz=UTC)
            until = f"until {moment.isoformat(timespec='minutes')}"
        scope = cut(spelled_out(self.scope or ""), _SHOWN_SCOPE_CHARS)
        return f"{until}, with the scopes {scope}" if scope else until

    def is_of(self, issuer: str | None) -> bool:
        """Whether it came from this issuer; where none is named, from any."""
        if issuer is None:
            return True
        parts = urlsplit(self.token_endpoint)
        return same_issuer(self.issuer or f"{parts.scheme}://{parts.netloc}", issuer)

    def secrets(self) -> list[str]:
        held = self.access_token, self.refresh_token, self.client and self.client.client_secret
        return [value for value in held if value]

    def without_tokens(self) -> "TokenRecord":
        return msgspec.structs.replace(self, access_token=None, refresh_token=None, expires_at=None)


def lifetime(value: object) -> float | None:
    """Seconds as servers write them: a number, or a number in a string; None where it is no use."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:_KEY_CHARS])
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        return None
    return float(min(value, _MAX_LIFE_S))


def sendable(token: object) -> bool:
    """Whether a header can carry it."""
    return isinstance(token, str) and _VISIBLE.fullmatch(token) is not None


def same_issuer(one: str, other: str) -> bool:
    """As the metadata and people write it, with or without a slash at the end."""
    return one.rstrip("/") == other.rstrip("/")


class Visit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sign-in that is under way: where the person has to go, or why it came to nothing."""

    url: str | None = None
    failed: str | None = None
    other_host: str | None = None  # that a person has to agree to before anything is sent there
    code_from: str | None = None  # the host of a sign-in that would be given to `other_host`

    def __repr__(self) -> str:
        return f"<Visit {'failed' if self.failed else 'open'}>"


def default_token_directory(environ: Mapping[str, str]) -> Path:
    """Beside what people agreed to."""
    return private_file.state_directory(environ) / "tokens"


class TokenStore:
    """The record of one server and client. Blocking: the session calls it in a thread."""

    def __init__(self, directory: Path, url: str, *, client_id: str | None = None) -> None:
        self.directory = directory
        self._url = canonical_url(url)
        named = "\0".join([self._url, client_id or ""])
        self._key = hashlib.sha256(named.encode()).hexdigest()[:_KEY_CHARS]

    def __repr__(self) -> str:
        return f"<TokenStore {self._key}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TokenStore) and self._path("") == other._path("")

    def __hash__(self) -> int:
        return hash(self._key)

    def of_all_clients(self) -> list["TokenStore"]:
        """The records of the same server, whichever client they are for."""
        found: list[TokenStore] = []
        for path in sorted(self.directory.glob("*.json")):
            one = copy(self)
            one._key = path.name.removesuffix(".json")  # noqa: SLF001 - of the same class
            record = one.read()
            if record is not None and canonical_url(record.server) == self._url:
                found.append(one)
        return found

    def stamp(self) -> private_file.Stamp | None:
        """Another after every change of the record; None while there is none."""
        return private_file.file_stamp(self._path("json"))

    def read(self) -> TokenRecord | None:
        record = self._decoded("json", TokenRecord)
        return record if record is not None and record.version <= _VERSION else None

    def is_newer(self) -> bool:
        """Whether a newer version of this program wrote it: that is not ours to replace."""
        kept = self._decoded("json", _Versioned)
        return kept is not None and kept.version > _VERSION

    def write(self, record: TokenRecord) -> None:
        """In the place of what was there; only with the lock `write`."""
        if self.is_newer():
            raise PermissionError(errno.EPERM, "a newer emceepee wrote it", self._path("json").name)
        private_file.write_whole(self._path("json"), msgspec.json.encode(record))

    def remove(self) -> bool:
        """Forget it; whether there was anything. Only with the lock `write`."""
        try:
            self._path("json").unlink()
        except FileNotFoundError:
            return False
        return True

    # The visit of a person

    def visit(self) -> Visit | None:
        """The one under way, or why the last one failed."""
        visit = self._decoded("visit.json", Visit)
        if visit is not None and visit.failed is None and not self.is_visited():
            return None  # whoever waited for it is gone
        return visit

    def tell(self, visit: Visit) -> None:
        private_file.make_private(self.directory)
        private_file.write_whole(self._path("visit.json"), msgspec.json.encode(visit))

    def end_visit(self) -> None:
        for suffix in ("visit.json", "opened"):
            with suppress(OSError):
                self._path(suffix).unlink(missing_ok=True)

    def claim_opening(self) -> bool:
        """Whether nobody else has opened a browser for the visit under way."""
        try:
            private_file.write_new(self._path("opened"), b"")
        except OSError:
            return False
        return True

    def is_visited(self) -> bool:
        return is_locked(self._path("person.lock"))

    # Locks

    def person(self, *, within: float) -> AbstractContextManager[None]:
        private_file.make_private(self.directory)
        return file_lock(self._path("person.lock"), within=within)

    def writing(self, *, within: float = WRITE_TIMEOUT_S) -> AbstractContextManager[None]:
        private_file.make_private(self.directory)
        return file_lock(self._path("write.lock"), within=within)

    def _path(self, suffix: str) -> Path:
        return self.directory / f"{self._key}.{suffix}"

    def _decoded(self, suffix: str, kind: type[T]) -> T | None:
        """What cannot be read counts as not there."""
        try:
            return decoded(private_file.read_own(self._path(suffix), most=_MAX_RECORD_BYTES), kind)
        except OSError:
            return None
