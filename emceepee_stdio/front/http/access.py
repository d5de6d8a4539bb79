"""Whether a request may be served at all: where it says it goes, where it comes from, and whose.

A page in a browser can make requests to this machine, under a name of its own that leads here. So
`Host` has to be a name of ours, and `Origin`, where a browser sent it, one that was named.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from emceepee_stdio.front.http.http_tokens import HttpTokens

__all__ = ["Access", "Denied"]

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
_ALLOWED_HEADERS = (
    "authorization, content-type, accept, last-event-id, mcp-session-id, mcp-protocol-version, "
    "mcp-method, mcp-name"
)
_PREFLIGHT_S = 600  # for which a browser need not ask again


@dataclass(frozen=True, slots=True)
class Denied:
    """Why not, as a status and a sentence."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`hosts` and `origins` were named by a person; loopback is always among the hosts."""

    tokens: HttpTokens
    hosts: frozenset[str] = field(default_factory=frozenset)
    origins: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def allowing(
        cls, tokens: HttpTokens, *, hosts: Iterable[str], origins: Iterable[str]
    ) -> "Access":
        return cls(
            tokens=tokens,
            hosts=frozenset(host.lower() for host in hosts),
            origins=frozenset(origin.lower().rstrip("/") for origin in origins),
        )

    def check(self, headers: Mapping[str, str]) -> Denied | None:
        """Whether its way is in order, whoever sent it."""
        host = headers.get("host", "").lower()
        if _without_port(host) not in _LOOPBACK and not {host, _without_port(host)} & self.hosts:
            return Denied(421, "The Host header names none of this server's names.")
        origin = headers.get("origin", "").lower()
        if origin and origin not in self.origins and not _is_loopback(origin):
            return Denied(403, "The Origin header names a page that was not allowed.")
        return None

    def owner(self, headers: Mapping[str, str]) -> str | Denied:
        """Whose token the request carries."""
        owner = self.tokens.owner(headers.get("authorization"))
        if owner is None:
            return Denied(
                401,
                "A bearer token is needed: the line that `emceepee serve --http` showed names "
                "the file that holds it.",
                (("www-authenticate", 'Bearer realm="emceepee"'),),
            )
        return owner

    def cors(self, headers: Mapping[str, str], *, preflight: bool) -> tuple[tuple[str, str], ...]:
        """What a page of a named origin needs to read the answer; nothing for any other."""
        origin = headers.get("origin", "")
        if origin.lower() not in self.origins:
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


def _is_loopback(origin: str) -> bool:
    scheme, separator, rest = origin.partition("://")
    return bool(separator) and scheme in ("http", "https") and _without_port(rest) in _LOOPBACK
