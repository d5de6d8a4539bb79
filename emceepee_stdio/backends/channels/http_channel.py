"""The HTTP channel: a server behind a URL, by Streamable HTTP or the older SSE transport.

Opened the modern way first, then with the handshake, then as SSE, unless the settings say which.
What worked is remembered for the next connection. Whoever imports this module pays for the HTTP
client: import it off the loop, when the first URL is to be reached.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from http import HTTPStatus
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup
from msgspec import Raw

from emceepee_stdio.backends import eras
from emceepee_stdio.backends.channels.http_carrier import Carrier, HeaderMaps, HttpOptions, sockets
from emceepee_stdio.backends.channels.http_connection import (
    HttpConnection,
    HttpConversation,
    SseConnection,
)
from emceepee_stdio.backends.channels.http_errors import (
    HttpRefused,
    NotMcp,
    Unreachable,
    Untrusted,
)
from emceepee_stdio.backends.interface import Emit, Era, RemoteError
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import (
    CallTimeout,
    CannotConnect,
    NeedsSignIn,
    ProxyError,
    ServerFailed,
    WrongCredentials,
)
from emceepee_stdio.ids import Ids
from emceepee_stdio.journal import redact_url

C = TypeVar("C", bound=HttpConversation)

_CLOSE_TIMEOUT_S = 2.0  # the DELETE that ends a session is a courtesy; nobody waits long for it
_AUTH = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_NOT_STREAMABLE = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.NOT_FOUND,
    HTTPStatus.METHOD_NOT_ALLOWED,
    HTTPStatus.NOT_ACCEPTABLE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """One try to open a connection: what it has, and what it made of it so far."""

    carrier: Carrier
    tasks: TaskGroup
    made: list[HttpConversation] = field(default_factory=list[HttpConversation])


@dataclass(eq=False, repr=False)
class HttpChannel:
    """Opens connections to one URL."""

    transport = "http"

    name: str
    url: str
    _: KW_ONLY
    emit: Emit
    clock: Clock
    ids: Ids
    headers: Mapping[str, str] | None = None
    options: HttpOptions = field(default_factory=HttpOptions)
    _header_maps: HeaderMaps = field(init=False, default_factory=HeaderMaps)
    _learned_era: Era | None = field(init=False, default=None)
    _learned_sse: bool | None = field(init=False, default=None)

    @property
    def target(self) -> str:
        return redact_url(self.url)

    @property
    def needs_tools(self) -> bool:
        """A modern call carries headers that only the list of tools tells of."""
        legacy = Era.LEGACY in (self._learned_era, self.options.era)
        return not (self._header_maps.learned or legacy)

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[HttpConversation]:
        """Open, and at the end say goodbye and close every socket."""
        failure: ProxyError | None = None
        async with (
            sockets(self.name, self.url, self.headers or {}) as client,
            anyio.create_task_group() as tasks,
        ):
            options = self.options
            carrier = Carrier(self.name, self.url, client, clock=self.clock, options=options)
            attempt = _Attempt(carrier=carrier, tasks=tasks)
            try:
                connection = await self._open(attempt)
            except ProxyError as error:
                failure = error
            else:
                yield connection
            finally:
                with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                    for made in attempt.made:
                        await made.leave()
                tasks.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _open(self, attempt: _Attempt) -> HttpConversation:
        sse = self._learned_sse if self.options.sse is None else self.options.sse
        try:
            if sse:
                return await self._open_sse(attempt, self.options.connect)
            connection = await self._open_streamable(attempt)
            if not isinstance(connection, HttpRefused):
                return connection
            return await self._open_fallback(attempt, connection)
        except Unreachable:
            raise
        except ProxyError:
            # What was learned of a server may have changed with it.
            self._learned_era = self._learned_sse = None
            raise

    async def _open_streamable(self, attempt: _Attempt) -> HttpConnection | HttpRefused:
        connection = self._make(HttpConnection, attempt)
        asks = (self.options.era or self._learned_era) is not Era.LEGACY
        if asks and await self._discovered(connection):
            return self._learn(connection, Era.MODERN, sse=False)
        refusal = await self._shake_hands(connection)
        if isinstance(refusal, RemoteError):
            if asks or not await self._discovered(connection):
                raise self._refused(refusal)
            return self._learn(connection, Era.MODERN, sse=False)
        return refusal or self._learn(connection, Era.LEGACY, sse=False)

    async def _open_fallback(self, attempt: _Attempt, refusal: HttpRefused) -> HttpConversation:
        """The older transport, for servers that refused the newer one; else that refusal."""
        if self.options.sse is not None or refusal.status not in _NOT_STREAMABLE:
            raise refusal
        attempt.carrier.url = self.url
        try:
            return await self._open_sse(attempt, self.options.probe)
        except CannotConnect:
            raise
        except ProxyError:
            raise refusal from None

    async def _open_sse(self, attempt: _Attempt, within: float) -> HttpConversation:
        connection = self._make(SseConnection, attempt)
        try:
            await connection.open(within)
        except ProxyError as error:
            raise self._hopeless(error) from None
        refusal = await self._shake_hands(connection)
        if isinstance(refusal, RemoteError):
            raise self._refused(refusal)
        if refusal is not None:
            raise refusal
        return self._learn(connection, Era.LEGACY, sse=True)

    def _make(self, kind: type[C], attempt: _Attempt) -> C:
        connection = kind(
            attempt.carrier,
            attempt.tasks,
            emit=self.emit,
            proxy_id=self.ids(),
            header_maps=self._header_maps,
        )
        attempt.made.append(connection)
        return connection

    def _learn(self, connection: C, era: Era, *, sse: bool) -> C:
        self._learned_era = era
        self._learned_sse = sse
        connection.opened()
        return connection

    async def _discovered(self, connection: HttpConversation) -> bool:
        """Whether the server speaks the modern era; an error where asking on makes no sense."""
        connection.era = Era.MODERN
        outcome = await connection.greet("server/discover", {}, self.options.probe)
        if isinstance(outcome, RemoteError) and eras.offers_modern(outcome.error):
            outcome = await connection.greet("server/discover", {}, self.options.probe)
        try:
            if isinstance(outcome, Raw):
                connection.hello = eras.read_discovery(outcome, server=self.name)
                return True
        except CannotConnect:
            if self.options.era is Era.MODERN:
                raise
        if isinstance(outcome, ProxyError) and self._ends_opening(outcome):
            raise self._hopeless(outcome)
        if isinstance(outcome, RemoteError) and eras.refuses_as_modern(outcome.error):
            raise CannotConnect(
                f"{self.name} speaks the modern era, but refused server/discover: {outcome.fact}",
                hint="Update emceepee or the server: they do not agree on the protocol.",
            )
        if self.options.era is Era.MODERN:
            raise eras.wrong_era(self.name, Era.MODERN, _told(outcome))
        connection.era = Era.LEGACY
        return False

    async def _shake_hands(self, connection: HttpConversation) -> HttpRefused | RemoteError | None:
        """The handshake; what may mean another transport or era is handed back."""
        hello = eras.initialize_params()
        outcome = await connection.greet("initialize", hello, self.options.connect)
        if isinstance(outcome, Raw):
            connection.hello = eras.read_handshake(outcome, server=self.name)
            await connection.initialized()
            return None
        if isinstance(outcome, RemoteError) and eras.refuses_handshake(outcome.error):
            if self.options.era is Era.LEGACY:
                raise eras.wrong_era(self.name, Era.LEGACY, outcome.error.message)
            return outcome
        if isinstance(outcome, RemoteError):
            raise self._refused(outcome)
        if isinstance(outcome, CallTimeout):
            raise ServerFailed(outcome.fact, hint="Check that the URL is that of an MCP server.")
        error = self._hopeless(outcome)
        if isinstance(error, HttpRefused):
            return error
        raise error

    def _ends_opening(self, error: ProxyError) -> bool:
        """Whether another way of opening would fail as well."""
        if isinstance(error, HttpRefused):
            return error.status in _AUTH or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        return isinstance(error, NotMcp | Unreachable | NeedsSignIn)

    def _hopeless(self, error: ProxyError) -> ProxyError:
        """As an error that is not tried again, where that would change nothing."""
        forbidden = isinstance(error, HttpRefused) and error.status in _AUTH
        if forbidden:
            return error.turned_into(WrongCredentials)
        if isinstance(error, NotMcp | Untrusted):
            return error.turned_into(CannotConnect)
        return error

    def _refused(self, error: RemoteError) -> ServerFailed:
        return ServerFailed(f"{self.name} refused initialize: {_told(error)}")


def _told(outcome: Raw | ProxyError) -> str:
    if isinstance(outcome, RemoteError):
        return f"error {outcome.error.code}: {outcome.error.message}"
    return outcome.fact if isinstance(outcome, ProxyError) else "an answer that is none."
