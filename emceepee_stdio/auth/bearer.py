"""The access token of one server in the serving process: looked up, renewed in time, never shown.

The record in the store is the truth, and other processes change it: it is looked at once a second,
and again before anything is decided. A token that is due is refreshed before it is sent, one that
is refused is refreshed once. Both are done by a helper, which writes the record. It is sent to the
origin of the configured URL and nowhere else.

Here are also the messages between the proxy and its sign-in helpers: orders, exit codes, failures.
Without the SDK and the HTTP client, so that the serving process can give the orders.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from emceepee_stdio.auth.token_store import TokenRecord, TokenStore
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import OAuthConfig, ServerConfig
from emceepee_stdio.errors import NeedsSignIn, ServerUnavailable
from emceepee_stdio.visible_text import shell_line

_CHALLENGE_CHARS = 4_000  # of a header that may come from anywhere
_SCOPE_TOKEN = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, 3.3
_MAX_SCOPES = 50  # of a challenge: what nobody would read is not asked for
_CHALLENGE_FIELD = re.compile(r'\b(resource_metadata|scope|error)\s*=\s*(?:"([^"]*)"|([^\s",]+))')
STEP_UP_STATUS = 403  # with a challenge: the token is good, but not for this
_UNAUTHORIZED = 401
_LOOK_EVERY_S = 1.0  # what other processes did is seen so soon
_RETRY_S = 5.0  # after a refresh that failed for a passing reason
_MAX_STEP_UP_SCOPES = 100  # that a server ever asks for; each new one would be another try
_MAX_TYPED_CHARS = 400  # a command that is still one to copy
_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+*~@=-]*")  # nothing that leaves a quotation
_MAX_STEP_UPS = 2  # with the first sign-in three visits: a server is never content with more
_PORTS = {"http": 80, "https": 443}


class HelperExit(IntEnum):
    """How a helper ends; any other number, such as that of a signal, is `TRY_AGAIN`."""

    STORED = 0
    PERSON_NEEDED = 3
    TRY_AGAIN = 75


def challenge_fields(header: str) -> dict[str, str]:
    """What a WWW-Authenticate header says that matters to signing in."""
    found = _CHALLENGE_FIELD.findall(header[:_CHALLENGE_CHARS])
    return {name: quoted or plain for name, quoted, plain in found}


def challenged_scope(header: str) -> str:
    """The scopes that it names, without what is none."""
    words = challenge_fields(header).get("scope", "").split()
    return " ".join([word for word in words if _SCOPE_TOKEN.fullmatch(word)][:_MAX_SCOPES])


class SignInFailed(Exception):
    """Why it came to nothing, in words that hold no secret, with the next step."""


class ConsentNeeded(SignInFailed):
    """The server sends us to another host, and no person has agreed to that.

    With `code_from`, what a person does at that host would be given to `host`.
    """

    def __init__(self, server: str, host: str, *, code_from: str | None = None) -> None:
        super().__init__(
            f"{server} wants a sign-in at another host, {host}."
            if code_from is None
            else f"{server} gives a sign-in at {code_from} to {host}. If both are of the same "
            "operator, agree to it, or configure oauth.issuer."
        )
        self.host = host
        self.code_from = code_from


class ClientRefused(SignInFailed):
    """The registration is gone: the next sign-in makes another."""


class NewerRecord(SignInFailed):
    """What is kept was written by a newer version, and is not ours to replace."""

    def __init__(self, server: str) -> None:
        super().__init__(
            "A newer emceepee keeps this sign-in: update this one, or forget it with "
            f"`{shell_line(['emceepee', 'logout', server])}`."
        )


class SignInOrder(Struct, frozen=True, kw_only=True):
    """What to sign in to, or to refresh. `status` and `challenge` are the answer of the server.

    `trusted`: a person named this server, so that it may name an authorization server elsewhere;
    `agreed_hosts` are other hosts that a person agreed to. `seen` is the token to refresh, which is
    refused or due: where another is kept, all is done.
    """

    directory: str
    name: str
    server: str
    status: int = 401
    challenge: str = ""
    oauth: OAuthConfig = msgspec.field(default_factory=OAuthConfig)
    trusted: bool = False
    agreed_hosts: tuple[str, ...] = ()
    seen: str | None = None

    @property
    def store(self) -> TokenStore:
        return TokenStore(Path(self.directory), self.server, client_id=self.oauth.client_id)


class SignInNeeded(NeedsSignIn):
    """A person has to sign in: `order` says to what; `is_met` looks whether they have."""

    def __init__(
        self,
        fact: str,
        *,
        command: str,
        order: SignInOrder,
        is_met: Callable[[], Awaitable[bool]],
    ) -> None:
        super().__init__(
            fact,
            hint=f"Ask the person to run `{command}`; the server connects by itself then.",
            command=command,
        )
        self.order = order
        self.is_step_up = order.status == STEP_UP_STATUS
        self.is_met = is_met

    async def signed_in(self) -> None:
        """Returns when they have; whoever led them there tells nobody."""
        while True:
            if await self.is_met():
                return
            await anyio.sleep(_LOOK_EVERY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerContext:
    """What the tokens of all servers have in common.

    `refresh` runs the helper with an order, and returns its exit code. `learn` is told every token
    of a server, so that it is never shown.
    """

    directory: str
    clock: Clock
    refresh: Callable[[bytes], Awaitable[int]]
    learn: Callable[[str, str], None]


def signs_in(config: ServerConfig) -> bool:
    """Whether signing in is for this server: what a person gave as a header wins."""
    if config.url is None or config.auth == "none" or "@" in urlsplit(config.url).netloc:
        return False
    return "authorization" not in map(str.lower, config.headers)


def login_command(config: ServerConfig, *, known: bool, scope: str | None = None) -> str:
    """What a person types to sign in; a server that they did not configure goes by its URL."""
    words = ["emceepee", "login", config.name if known else config.url or ""]
    return shell_line([*words, "--scope", scope] if scope else words)


def store_of(config: ServerConfig, directory: str) -> TokenStore:
    return TokenStore(Path(directory), config.url or "", client_id=config.oauth.client_id)


class Bearer:
    """The token of one server. `trusted`: a person named the server."""

    def __init__(self, config: ServerConfig, context: BearerContext, *, trusted: bool) -> None:
        self._config = config
        self._context = context
        self._order = SignInOrder(
            directory=context.directory,
            name=config.name,
            server=config.url or "",
            oauth=config.oauth,
            trusted=trusted,
        )
        self._store = self._order.store
        self._record: TokenRecord | None = None
        self._stamp: tuple[int, ...] | None = None
        self._looked_at = float("-inf")
        self._not_before = float("-inf")
        self._refreshing = anyio.Lock()
        self._step_ups: dict[str, list[str]] = {}  # tokens that did not suffice, by scope

    def __repr__(self) -> str:
        return f"<Bearer {self._config.name} {self._record!r}>"

    async def token(self, url: str) -> str | None:
        """What to send there; None where nothing is to be sent."""
        if _origin(url) != _origin(self._order.server):
            return None
        now = self._context.clock.now()
        if now - self._looked_at >= _LOOK_EVERY_S:
            await self._look()
        record = self._record
        if record is None or record.access_token is None:
            return None
        if record.is_due(now=self._context.clock.epoch(now)):
            await self._refresh(record.access_token)
            record = self._record
        return None if record is None else record.access_token

    async def renew(self, refused: str | None) -> bool:
        """After a 401: whether there is another token now than the one that was refused."""
        if await self._is_replaced(refused):
            return True
        record = self._record
        if refused is None or record is None or record.refresh_token is None:
            return False
        outcome = await self._refresh(refused)
        if self._has_other(refused):
            return True
        if outcome not in (HelperExit.STORED, HelperExit.PERSON_NEEDED):
            raise ServerUnavailable(
                f"{self._config.name} wants a new token, and its sign-in server gives none now.",
                hint="The sign-in is kept: call again in a minute.",
            )
        return False

    def needed(self, status: int, challenge: str) -> SignInNeeded | None:
        """What a refusal means: a person has to sign in, or None where that would not help."""
        scheme, scope = challenge.strip().lower(), challenged_scope(challenge)
        wanted: str | None = None
        if status == STEP_UP_STATUS:
            if "insufficient_scope" not in scheme or not self._may_step_up(scope):
                return None
            granted = "" if self._record is None else self._record.scope or ""
            wanted = _typed(f"{granted} {scope}")
            fact = f"{self._config.name} wants a sign-in with more rights for this."
        elif status == _UNAUTHORIZED and ("bearer" in scheme or self._config.auth == "oauth"):
            fact = f"{self._config.name} wants a person to sign in."
        else:
            return None
        refused = None if self._record is None else self._record.access_token
        return SignInNeeded(
            fact,
            command=login_command(self._config, known=self._order.trusted, scope=wanted),
            order=replace(self._order, status=status, challenge=challenge),
            is_met=lambda: self._is_replaced(refused),
        )

    def _may_step_up(self, scope: str) -> bool:
        """Whether another sign-in may help: what counts are sign-ins, not the calls between."""
        if scope not in self._step_ups and len(self._step_ups) == _MAX_STEP_UP_SCOPES:
            return False
        refused = self._step_ups.setdefault(scope, [])
        token = (self._record and self._record.access_token) or ""
        if token not in refused and len(refused) <= _MAX_STEP_UPS:
            refused.append(token)
        return len(refused) <= _MAX_STEP_UPS

    async def _is_replaced(self, refused: str | None) -> bool:
        await self._look()
        return self._has_other(refused)

    def _has_other(self, refused: str | None) -> bool:
        record = self._record
        return record is not None and record.access_token not in (None, refused)

    async def _look(self) -> None:
        """Take in what the store holds, if it changed."""
        self._looked_at = self._context.clock.now()
        stamp = await anyio.to_thread.run_sync(self._store.stamp, abandon_on_cancel=True)
        if stamp == self._stamp:
            return
        self._record = await anyio.to_thread.run_sync(self._store.read, abandon_on_cancel=True)
        self._stamp = stamp
        self._not_before = float("-inf")  # somebody got a token: the sign-in server is back
        for secret in [] if self._record is None else self._record.secrets():
            self._context.learn(self._config.name, secret)

    async def _refresh(self, seen: str) -> int:
        """One at a time; who comes second finds it done."""
        async with self._refreshing:
            if self._has_other(seen):
                return HelperExit.STORED
            if self._context.clock.now() < self._not_before:
                return HelperExit.TRY_AGAIN
            outcome = await self._context.refresh(
                msgspec.json.encode(replace(self._order, seen=seen))
            )
            if outcome not in (HelperExit.STORED, HelperExit.PERSON_NEEDED):
                self._not_before = self._context.clock.now() + _RETRY_S
            await self._look()
            self._carry_over(seen)
            return outcome

    def _carry_over(self, seen: str) -> None:
        """A token that was refreshed is the same sign-in."""
        fresh = (self._record and self._record.access_token) or ""
        for refused in self._step_ups.values():
            refused[:] = [fresh if token == seen else token for token in refused]


def _typed(scope: str) -> str | None:
    """Scopes for a command that a person types; None where a server put anything else there."""
    words = list(dict.fromkeys(scope.split()))
    typed = " ".join(words)
    plain = len(typed) <= _MAX_TYPED_CHARS and all(map(_PLAIN_SCOPE.fullmatch, words))
    return typed if plain else None


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)
