"""Who may see the page: whoever has the address that was printed, once, and then that browser.

The token in the address is good for one use. It is exchanged for a cookie which no script can
read, which no other site can make the browser send, and which is bound to a path that nobody
guesses: browsers send cookies to every port of a host, but not to another path. `Host` is compared,
so that a name which somebody points to this machine leads nowhere.

The cookie outlives the page's server, so that an open page comes back by itself when the server is
started again; it does so for half a day.
"""

import hmac
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import msgspec

from emceepee_stdio.clock import HOUR_S
from emceepee_stdio.config.state_directory import state_directory
from emceepee_stdio.trace.page_http import PageRefusal, PageRequest

__all__ = [
    "LOOPBACK",
    "OPEN_PATH",
    "PageAccess",
    "PageIdentity",
    "check_fetch_site",
    "identity_file",
]

LOOPBACK = "127.0.0.1"
OPEN_PATH = "/open"
_COOKIE = "emceepee_trace"
_MAX_AGE_S = 12 * HOUR_S  # a working day; a page that is older is opened anew
_MAX_FILE_BYTES = 1_000
_FILE_NAME = "trace-page.json"


class PageIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Where a page is, and the cookie that opens it."""

    port: int
    path: str
    cookie: str
    made_at: float

    @classmethod
    def new(cls, port: int, *, now: float) -> "PageIdentity":
        path, cookie = secrets.token_urlsafe(9), secrets.token_urlsafe(32)
        return cls(port=port, path=path, cookie=cookie, made_at=now)

    @classmethod
    def saved(cls, file: Path, *, now: float) -> "PageIdentity | None":
        """That of the last page; None where it is too old or cannot be read."""
        try:
            with file.open("rb") as opened:
                found = msgspec.json.decode(opened.read(_MAX_FILE_BYTES), type=cls)
        except (OSError, ValueError):
            return None
        return found if 0 <= now - found.made_at < _MAX_AGE_S else None

    def save(self, file: Path) -> None:
        """For its owner alone; a page that cannot be remembered is opened anew."""
        made = file.with_name(f"{file.name}.{os.getpid()}")
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as opened:
                opened.write(msgspec.json.encode(self))
            made.replace(file)
        except OSError:
            made.unlink(missing_ok=True)


def identity_file(environ: Mapping[str, str]) -> Path:
    """EMCEEPEE_STATE_DIR, or the platform's own place for what a program remembers."""
    return state_directory(environ) / _FILE_NAME


class PageAccess:
    """Judges each request; `address` is what a person is given."""

    def __init__(self, identity: PageIdentity) -> None:
        self.identity = identity
        self._authority = f"{LOOPBACK}:{identity.port}"
        self._token: str | None = secrets.token_urlsafe(24)

    def __repr__(self) -> str:
        state = "used" if self._token is None else "unused"
        return f"<PageAccess {self._authority} token {state}>"

    @property
    def address(self) -> str:
        return f"http://{self._authority}{OPEN_PATH}?token={self._token or ''}"

    @property
    def page_path(self) -> str:
        return f"/{self.identity.path}/"

    @property
    def set_cookie(self) -> str:
        given = f"{_COOKIE}={self.identity.cookie}"
        return f"{given}; Path={self.page_path}; HttpOnly; SameSite=Strict"

    def check_origin(self, request: PageRequest) -> None:
        """Refuse what did not come to this address, or comes from a page of somebody else."""
        if request.method != "GET":
            raise PageRefusal(405, "Only GET is answered here.")
        if request.headers.get("host") != self._authority:
            raise PageRefusal(403, "This address does not belong to the page.")
        origin = request.headers.get("origin")
        if origin is not None and origin != f"http://{self._authority}":
            raise PageRefusal(403, "Another page asked for this.")
        check_fetch_site(request.headers)

    def redeem(self, request: PageRequest) -> None:
        """Use up the token."""
        if "prefetch" in request.headers.get("sec-purpose", ""):
            raise PageRefusal(403, "The address is opened by a person, not in advance.")
        given, expected = request.query.get("token", ""), self._token
        if expected is None or not hmac.compare_digest(given.encode(), expected.encode()):
            used = "This address has been used" if expected is None else "This address is not known"
            raise PageRefusal(403, f"{used}. Run emceepee trace --web again for a new one.")
        self._token = None

    def check_cookie(self, request: PageRequest) -> None:
        given = request.cookies().get(_COOKIE, "")
        if not hmac.compare_digest(given.encode(), self.identity.cookie.encode()):
            raise PageRefusal(403, "Run emceepee trace --web, and open the address that it prints.")

    def name_in_page(self, request: PageRequest) -> str:
        """What is asked for, below the path of the page."""
        if not request.path.startswith(self.page_path):
            raise PageRefusal(404, "There is nothing here.")
        return request.path.removeprefix(self.page_path)


def check_fetch_site(headers: Mapping[str, str]) -> None:
    """A link may lead here, from a terminal in a browser too; nothing else of a page may."""
    if headers.get("sec-fetch-site") not in ("cross-site", "same-site"):
        return
    navigates = headers.get("sec-fetch-mode") == "navigate"
    if not navigates or headers.get("sec-fetch-dest") != "document":
        raise PageRefusal(403, "Another page asked for this.")
