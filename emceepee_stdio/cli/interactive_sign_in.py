"""Signing in and out at a terminal, for `login`, `logout` and other commands.

Where a helper of a proxy leads the person already, its visit is joined instead of made anew.
"""

import os
import shlex
import sys
from collections.abc import Iterable

import anyio
import anyio.to_thread
import msgspec

from emceepee_stdio.auth.bearer import store_of
from emceepee_stdio.auth.browser import open_browser
from emceepee_stdio.auth.orders import ConsentNeeded, SignInFailed, SignInOrder
from emceepee_stdio.auth.refresh import (
    AddressRefused,
    Challenge,
    NoAnswer,
    challenge_of,
    endpoint_client,
    revoke,
)
from emceepee_stdio.auth.token_store import (
    TokenRecord,
    TokenStore,
    Visit,
    default_token_directory,
)
from emceepee_stdio.cli.terminal import Terminal, ask_whether
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import ServerConfig
from emceepee_stdio.config.server import OAuthConfig
from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.visible_text import spelled_out
from emceepee_stdio.wire.own_process import protect_memory

_UNAUTHORIZED = 401
_LOCK_S = 1.0  # somebody who holds it longer leads a person already
_MAX_HOSTS = 3  # other than the server's that a person is asked about for one sign-in
_STREAMS = (0, 2)  # on which a person is asked
_LOOK_S = 0.2  # another process tells nobody that it is done


def _store(server: ServerConfig) -> TokenStore:
    return store_of(server, str(default_token_directory(os.environ)))


async def sign_out(
    server: ServerConfig, others: Iterable[ServerConfig], terminal: Terminal, *, revokes: bool
) -> bool:
    """Forget the tokens, also of clients that were configured before; those of `others` stay.

    False where the server was to be told, and did not take it.
    """
    own = _store(server)
    theirs = {_store(other): other.name for other in others}
    stores = dict.fromkeys([own, *own.of_all_clients()])
    done = [
        await _forget(store, server, revokes=revokes) for store in stores if store not in theirs
    ]
    word = "Signed out of" if any(was_there for was_there, _ in done) else "Nobody was signed in to"
    terminal.line(f"{word} {server.name}.")
    for name in [theirs[store] for store in stores if store in theirs]:
        terminal.note(f"{name} is signed in there as well: {_command('logout', name)}")
    revoked = all(is_revoked for _, is_revoked in done)
    if not revoked:
        terminal.note("The server did not take the revocation: end the session there yourself.")
    return revoked


async def _forget(store: TokenStore, server: ServerConfig, *, revokes: bool) -> tuple[bool, bool]:
    """Whether there was anything, and whether the server took what it was to be told."""
    revoked = True
    with store.writing():
        record = store.read()
        if record is not None and revokes:
            is_own = store == _store(server)
            revoked = await revoke(record, server.oauth if is_own else OAuthConfig())
        return store.remove(), revoked


def _command(*words: str) -> str:
    return shlex.join(["emceepee", *words])


class InteractiveSignIn:
    """One sign-in at a terminal."""

    def __init__(
        self,
        server: ServerConfig,
        terminal: Terminal,
        *,
        opens: bool,
        pastes: bool,
        scope: str | None,
        trusted: bool,
    ) -> None:
        """`trusted`: it is configured, so that it may name a sign-in at another host."""
        self._server = server
        self._trusted = trusted
        self._terminal = terminal
        self._opens = opens
        self._pastes = pastes
        self._is_pasted = False
        self._scope = scope
        self._store = _store(server)

    def __repr__(self) -> str:
        return f"<InteractiveSignIn {self._server.name}>"

    async def run(self) -> bool:
        """Whether all is well now; else it was said why not."""
        protect_memory()
        name = self._server.name
        try:
            order = await self._order()
            if order is None:
                self._terminal.line(f"{self._subject} asks nobody to sign in.")
                return True
            record = await self._sign_in_where_agreed(order)
        except SignInFailed as error:
            self._terminal.note(f"emceepee: Not signed in to {name}. {error}")
            return False
        self._terminal.line(f"Signed in to {name} {record.validity()}.")
        return True

    async def _order(self) -> SignInOrder | None:
        """From the challenge of the server; None where it has none."""
        server = self._server
        try:
            async with endpoint_client(server.url or "", anywhere=True) as client:
                challenge = await challenge_of(server, client)
        except (NoAnswer, AddressRefused) as error:
            raise SignInFailed(f"{error}: check its URL, and the network.") from None
        asks = challenge.status == _UNAUTHORIZED
        if not asks and server.auth != "oauth" and self._scope is None:
            self._require_mcp(challenge)
            return None
        scope = self._scope or server.oauth.scope
        return SignInOrder(
            directory=str(self._store.directory),
            name=server.name,
            server=server.url or "",
            challenge=challenge.authenticate,
            oauth=msgspec.structs.replace(server.oauth, scope=scope),
            trusted=self._trusted,
        )

    @property
    def _subject(self) -> str:
        """What a sentence begins with; the name of a configured server stays as it is."""
        return self._server.name if self._trusted else "The server"

    def _require_mcp(self, answer: Challenge) -> None:
        """Raises for a page, or an error of the web server: that says nothing about a sign-in."""
        if answer.is_of_mcp:
            return
        see = f"see: {_command('doctor', self._server.name)}" if self._trusted else "check its URL."
        raise CannotConnect(
            f"{self._subject} answered with {answer}, which no MCP server does here; {see}", hint=""
        )

    async def _sign_in_where_agreed(self, order: SignInOrder) -> TokenRecord:
        """At another host only with a yes, which is asked before anything is sent there."""
        for _ in range(_MAX_HOSTS):
            try:
                return await self._sign_in(order)
            except ConsentNeeded as needed:
                await self._agree(needed)
                order = msgspec.structs.replace(
                    order, agreed_hosts=(*order.agreed_hosts, needed.host)
                )
        return await self._sign_in(order)

    async def _agree(self, needed: ConsentNeeded) -> None:
        url, host = self._server.url or "", spelled_out(needed.host)
        if not all(map(os.isatty, _STREAMS)):
            add = _command("config", "add", "NAME", "--url", url)
            raise SignInFailed(
                f"{url} wants a sign-in at another host, {host}, and nobody can be asked here. If "
                f"you trust it, configure it first: {add}; then: emceepee login NAME"
            )
        question = f"{url} wants you to sign in at another host, {host}. Go there?"
        if not await ask_whether(question, self._terminal, usual=False):
            raise SignInFailed("Nothing was sent there.")

    async def _sign_in(self, order: SignInOrder) -> TokenRecord:
        from emceepee_stdio.auth.sign_in import sign_in  # noqa: PLC0415 - takes a second

        async def show(url: str) -> None:
            self._store.tell(Visit(url=url))
            self._show(url)

        paste = self._paste if self._pastes else None
        try:
            with self._store.person(within=_LOCK_S):
                self._store.end_visit()
                try:
                    return await sign_in(order, self._store, Clock(), show=show, paste=paste)
                finally:
                    self._store.end_visit()
        except TimeoutError:
            return await self._join()

    def _show(self, url: str) -> None:
        opened = self._opens and open_browser(url, os.environ)
        self._terminal.note(
            "The browser opens this address; if it does not, open it yourself:"
            if opened
            else "Open this address in a browser:"
        )
        self._terminal.note(url)
        if not self._pastes:
            self._terminal.note("Waiting until you have signed in there; Ctrl-C stops it.")
        else:
            self._terminal.note(
                "At the end the browser shows an address that it cannot reach: copy it here."
            )

    async def _paste(self) -> str | None:
        if self._is_pasted:  # what was typed before was not it
            self._terminal.note(
                "That is not the address at which this sign-in ends; it has /callback? in it."
            )
        self._is_pasted = True
        self._terminal.ask("Address:")
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return line or None

    async def _join(self) -> TokenRecord:
        """Another process leads a person already: the same visit is good for both."""
        before, visit = self._store.stamp(), self._store.visit()
        if visit is None or visit.url is None or self._scope is not None or self._pastes:
            raise SignInFailed("Another process is signing in there: try again in a minute.")
        self._show(visit.url)
        while True:
            if not self._store.is_visited():
                break
            await anyio.sleep(_LOOK_S)
        record = self._store.read()
        if record is None or record.access_token is None or self._store.stamp() == before:
            raise SignInFailed("The sign-in of the other process came to nothing: try again.")
        return record
