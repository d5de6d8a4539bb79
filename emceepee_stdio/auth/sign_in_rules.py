"""What the SDK does not see to when somebody signs in: who may be asked, shown and believed.

Everything here was said by a server, and every rule is checked before anything goes there. Without
the SDK: what it read comes in as an `Announcement`. A message names what was announced, cleaned.
"""

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from emceepee_stdio.auth.orders import ClientRefused, ConsentNeeded, SignInFailed, SignInOrder
from emceepee_stdio.auth.refresh import error_code
from emceepee_stdio.auth.token_store import lifetime, same_issuer, sendable
from emceepee_stdio.visible_text import spelled_out

__all__ = ["Announcement", "SignInRules", "origin_of", "visit_address"]

_FIRST_ERROR = 400
_SHOWN_CHARS = 200  # of an address that a server announced


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What is known of the authorization server. Without `has_metadata` it is guessed.

    `is_named`: the server named it, so that nothing may be guessed.
    """

    issuer: str
    is_named: bool
    has_metadata: bool = False
    registers: bool = False
    challenge_methods: tuple[str, ...] | None = None


class SignInRules:
    """The rules of one sign-in."""

    def __init__(self, order: SignInOrder) -> None:
        self._order = order
        self._oauth = order.oauth

    def __repr__(self) -> str:
        return f"<SignInRules {self._order.name}>"

    def check_host(self, url: str) -> None:
        """What a model added may not lead a person to another host unasked."""
        host, order = urlsplit(url).hostname or "", self._order
        agreed = (urlsplit(order.server).hostname, *order.agreed_hosts)
        if not order.trusted and host not in agreed:
            raise ConsentNeeded(order.name, host)

    def may_be_anywhere(self, found: Announcement, url: str) -> bool:
        """A person who configured an issuer trusts it, and the endpoints in its metadata.

        Until the server has named that issuer, it may only lead us to its own origin: where it
        says that its metadata is may be any URL of a private network.
        """
        wanted = self._oauth.issuer
        if wanted is None:
            return False
        if found.has_metadata:
            return same_issuer(found.issuer, wanted)
        named = (self._order.server, wanted) if found.is_named else (self._order.server,)
        return origin_of(url) in map(origin_of, named)

    def check_registration(self, found: Announcement, *, redirect: str, port: int) -> None:
        """The SDK would guess where to register, and come as somebody else than configured."""
        if self._oauth.client_id is not None and not self._oauth.is_client_document:
            self.check_issuer(found)
            raise SignInFailed(
                f"{self._announces(found)}, which is another one than before, and the configured "
                f"client is not shown to it. {self._trust(found)}"
            )
        self.check_issuer(found)
        if found.has_metadata and not found.registers:
            raise SignInFailed(
                f"{_shown(urlsplit(found.issuer).hostname or '')} registers no clients: register "
                f"emceepee there with the redirect address {redirect}, and configure "
                f"oauth.client_id and oauth.redirect_port ({port})."
            )

    def registration_refused(self, found: Announcement, code: str) -> SignInFailed:
        """Why nobody can be signed in, where a client could not be registered."""
        host = _shown(urlsplit(found.issuer).hostname or "")
        if found.has_metadata:
            return SignInFailed(
                f"{host} registers no client of this kind ({code}): configure oauth.client_id for "
                "this server."
            )
        # Nothing was announced: we asked where servers of 2025-03-26 have it.
        return SignInFailed(
            f"{host} announces no sign-in ({code}). If the server takes a token that you got "
            'elsewhere, write "headers": {"Authorization": "Bearer ${TOKEN}"} into its entry with '
            "`emceepee config edit`, and set TOKEN where the client is started."
        )

    def check_issuer(self, found: Announcement) -> None:
        """Nobody but the issuer that a person named is shown a client, its secret or a code."""
        wanted = self._oauth.issuer
        if found.is_named and not found.has_metadata:
            raise SignInFailed(
                f"The authorization server that it names, {_shown(found.issuer)}, says nothing of "
                "itself: try again later, or tell whoever runs it."
            )
        if wanted is not None and not same_issuer(found.issuer, wanted):
            raise SignInFailed(
                f"{self._announces(found)}, and oauth.issuer is another issuer: nothing was sent "
                f"there. {self._trust(found)}"
            )
        if self._oauth.is_unbound_secret:
            raise SignInFailed(
                f"{self._announces(found)}, and oauth.issuer is not configured: the configured "
                f"client_secret is sent to nobody. {self._trust(found)}"
            )
        self._check_proof(found)

    def _check_proof(self, found: Announcement) -> None:
        """MCP refuses a server that does not say that it checks PKCE.

        Some that do check it do not say so; a person who named the issuer vouches for it.
        """
        methods = found.challenge_methods
        if not found.has_metadata or "S256" in (methods or ()):
            return
        if methods is None and self._oauth.issuer is not None:
            return
        vouch = f" {self._trust(found)}" if methods is None else ""
        raise SignInFailed(
            f"{_shown(found.issuer)} does not say that it checks PKCE with S256: a code that "
            f"somebody else catches would be good. Tell whoever runs it.{vouch}"
        )

    def token_answer(self, status: int, said: dict[str, object]) -> dict[str, object]:
        """What a token endpoint said, if that is a token. Errors come with any status."""
        code = error_code(said)
        if code in ("invalid_client", "unauthorized_client"):
            ours = "check oauth.client_id and oauth.client_secret"
            step = ours if self._oauth.client_id else "try again, as another one"
            raise ClientRefused(f"The server does not know this client ({code}): {step}.")
        if code is not None:
            raise SignInFailed(f"The server gave no token: {code}.")
        if status >= _FIRST_ERROR:
            raise SignInFailed(f"The server gave no token: HTTP status {status}.")
        if not all(sendable(said[name]) for name in _TOKENS if said.get(name) is not None):
            raise SignInFailed(
                "The server gave a token that cannot be sent, with characters that no header may "
                "have: tell whoever runs it."
            )
        life, rest = lifetime(said.get("expires_in")), {**said}
        rest.pop("expires_in", None)
        return rest if life is None else {**rest, "expires_in": int(life)}

    def _announces(self, found: Announcement) -> str:
        return f"{self._order.name} announces the issuer {_shown(found.issuer)}"

    def _trust(self, found: Announcement) -> str:
        return (
            f'If you trust that issuer, write "issuer": "{_shown(found.issuer)}" into `oauth` of '
            f"{self._order.name}, in the file that `emceepee config path` names, and sign in again."
        )


_TOKENS = ("access_token", "refresh_token")


def visit_address(asked: str, endpoint: str) -> str:
    """What the SDK asked for, where the endpoint has a query of its own (RFC 6749, 3.1)."""
    parts = urlsplit(endpoint)
    if parts.fragment:
        raise SignInFailed("Its authorization endpoint has a fragment: tell whoever runs it.")
    if not parts.query:
        return asked
    added = asked.removeprefix(f"{endpoint}?")
    ours = dict(parse_qsl(added, keep_blank_values=True))
    own = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True) if name in ours]
    if own:
        raise SignInFailed(
            f"Its authorization endpoint names {own[0]} itself, which is ours to choose: tell "
            "whoever runs it."
        )
    return f"{endpoint}&{added}"


def origin_of(url: str) -> str:
    """Who signs in at a server that says nothing of it: the server itself."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def _shown(said: str) -> str:
    shown = spelled_out(said)
    return shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
