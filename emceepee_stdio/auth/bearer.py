"""The access token of one server in the serving process: attached, refreshed, never shown.

The record in the store is the truth, and other processes change it: it is looked at once a second,
and again before anything is decided. A token that is due is refreshed before it is sent, one that
is refused is refreshed once. Both are done by a helper, which writes the record. It is sent to the
origin of the configured URL and nowhere else.
"""

import re
import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec

from emceepee_stdio.auth.orders import (
    STEP_UP_STATUS,
    HelperExit,
    RefreshOrder,
    SignInNeeded,
    SignInOrder,
    challenged_scope,
)
from emceepee_stdio.auth.token_store import Stamp, TokenRecord, TokenStore
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.errors import ServerUnavailable

_UNAUTHORIZED = 401
_LOOK_EVERY_S = 1.0  # what other processes did is seen so soon
_RETRY_S = 5.0  # after a refresh that failed for a passing reason
_MAX_SCOPES = 100  # that a server ever asks for; each new one would be another try
_MAX_TYPED_CHARS = 400  # a command that is still one to copy
_PLAIN_SCOPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+*~@=-]*")  # nothing that leaves a quotation
_MAX_STEP_UPS = 2  # with the first sign-in three visits: a server is never content with more
_PORTS = {"http": 80, "https": 443}


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
    return shlex.join([*words, "--scope", scope] if scope else words)


def store_of(config: ServerConfig, directory: str) -> TokenStore:
    return TokenStore(Path(directory), config.url or "", client_id=config.oauth.client_id)


class Bearer:
    """The token of one server. `trusted`: a person named the server."""

    def __init__(self, config: ServerConfig, context: BearerContext, *, trusted: bool) -> None:
        self._config = config
        self._context = context
        self._trusted = trusted
        self._url = config.url or ""
        self._store = store_of(config, context.directory)
        self._record: TokenRecord | None = None
        self._stamp: Stamp = None
        self._looked_at = float("-inf")
        self._not_before = float("-inf")
        self._refreshing = anyio.Lock()
        self._step_ups: dict[str, list[str]] = {}  # tokens that did not suffice, by scope

    def __repr__(self) -> str:
        return f"<Bearer {self._config.name} {self._record!r}>"

    async def token(self, url: str) -> str | None:
        """What to send there; None where nothing is to be sent."""
        if _origin(url) != _origin(self._url):
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
        await self._look()
        if self._has_other(refused):
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
            command=login_command(self._config, known=self._trusted, scope=wanted),
            order=SignInOrder(
                directory=self._context.directory,
                name=self._config.name,
                server=self._url,
                status=status,
                challenge=challenge,
                oauth=self._config.oauth,
                trusted=self._trusted,
            ),
            is_met=lambda: self._is_replaced(refused),
        )

    def _may_step_up(self, scope: str) -> bool:
        """Whether another sign-in may help: what counts are sign-ins, not the calls between."""
        if scope not in self._step_ups and len(self._step_ups) == _MAX_SCOPES:
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
        for secret in self._secrets(self._record):
            self._context.learn(self._config.name, secret)

    def _secrets(self, record: TokenRecord | None) -> list[str]:
        if record is None:
            return []
        client = record.client
        held = (record.access_token, record.refresh_token, client and client.client_secret)
        return [value for value in held if value]

    async def _refresh(self, seen: str) -> int:
        """One at a time; who comes second finds it done."""
        async with self._refreshing:
            if self._has_other(seen):
                return HelperExit.STORED
            if self._context.clock.now() < self._not_before:
                return HelperExit.TRY_AGAIN
            order = RefreshOrder(
                directory=self._context.directory,
                server=self._url,
                oauth=self._config.oauth,
                seen=seen,
            )
            outcome = await self._context.refresh(msgspec.json.encode(order))
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
