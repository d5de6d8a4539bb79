"""`emceepee login` and `emceepee logout`: sign in to a server behind a URL, and out again."""

import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread
import msgspec
import typer

from emceepee_stdio.auth.bearer import signs_in, store_of
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
from emceepee_stdio.cli.secret_values import KeyringStorage
from emceepee_stdio.cli.shared_options import ConfigOption, chosen, complete_servers, is_url
from emceepee_stdio.cli.terminal import (
    CREDENTIALS_REFUSED,
    FAILED,
    Terminal,
    ask_whether,
    interrupts,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.config import ServerConfig, load_file
from emceepee_stdio.config.fields import filled_in, needed_secrets
from emceepee_stdio.config.server import OAuthConfig
from emceepee_stdio.errors import CannotConnect, ConfigInvalid
from emceepee_stdio.visible_text import spelled_out
from emceepee_stdio.wire.own_process import protect_memory

_UNAUTHORIZED = 401
_LOCK_S = 1.0  # somebody who holds it longer leads a person already
_MAX_HOSTS = 3  # other than the server's that a person is asked about for one sign-in
_STREAMS = (0, 2)  # on which a person is asked
_LOOK_S = 0.2  # another process tells nobody that it is done

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A configured server, or the URL of one.",
        autocompletion=complete_servers,
    ),
]


def login(
    name: NameArgument,
    *,
    no_browser: Annotated[
        bool, typer.Option("--no-browser", help="Only print the address to open.")
    ] = False,
    paste: Annotated[
        bool,
        typer.Option(
            "--paste",
            help="The browser is on another machine: type in the address at which it ends.",
        ),
    ] = False,
    scope: Annotated[
        str | None,
        typer.Option(metavar="SCOPES", help="Ask for these, instead of what the server names."),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Sign in to a server with OAuth.

    Opens the browser. Every proxy that waits for the sign-in goes on. Exit code 1: what answers
    there is no MCP server; 3: nobody signed in, or the server refused it.

    Example: emceepee login github
    """
    made = _SignIn(
        server=_server(name, config),
        terminal=Terminal(),
        opens=not no_browser and not paste,
        pastes=paste,
        scope=scope,
        trusted=not is_url(name),
    )
    if not interrupts.run(made.run):
        raise typer.Exit(CREDENTIALS_REFUSED)


def logout(
    name: NameArgument,
    *,
    revoke: Annotated[
        bool, typer.Option("--revoke", help="Also tell the server that the tokens have ended.")
    ] = False,
    config: ConfigOption = None,
) -> None:
    """Delete the tokens of a server.

    Deletes our registration there, too. Exit code 1: the server did not take the revocation; the
    tokens are forgotten all the same.

    Example: emceepee logout github --revoke
    """
    server = _server(name, config)
    others = [one for one in _configured(config) if one.url is not None and one.name != name]
    if not interrupts.run(partial(_sign_out, server, others, Terminal(), revokes=revoke)):
        raise typer.Exit(FAILED)


def _server(name: str, config: Path | None) -> ServerConfig:
    if is_url(name):
        server = ServerConfig(name="the server", url=name)
    else:
        server = chosen(name, load_file(config, environ=os.environ), argument="NAME")
    if server.url is None:
        raise typer.BadParameter(
            f"{name} is a command, not a URL: it is given its credentials in `env`.",
            param_hint="NAME",
        )
    if not signs_in(server):
        raise typer.BadParameter(
            f'{name} has credentials in its url or headers, or `auth: "none"`: those count.',
            param_hint="NAME",
        )
    if not server.templates:
        return server
    return filled_in(server, KeyringStorage().secrets(needed_secrets(server)))


def _configured(config: Path | None) -> tuple[ServerConfig, ...]:
    try:
        return load_file(config, environ=os.environ).servers
    except ConfigInvalid:  # a server is signed out by its URL all the same
        return ()


def _store(server: ServerConfig) -> TokenStore:
    return store_of(server, str(default_token_directory(os.environ)))


async def _sign_out(
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


@dataclass(slots=True, kw_only=True, repr=False)
class _SignIn:
    """One sign-in at a terminal.

    If a helper of a proxy leads the person already, its visit is joined instead of made anew.
    """

    server: ServerConfig
    terminal: Terminal
    opens: bool
    pastes: bool
    scope: str | None
    trusted: bool  # it is configured, so that it may name a sign-in at another host
    _is_pasted: bool = False

    @property
    def _store(self) -> TokenStore:
        return _store(self.server)

    async def run(self) -> bool:
        """Whether all is well now; else it was said why not."""
        protect_memory()
        name = self.server.name
        try:
            order = await self._order()
            if order is None:
                self.terminal.line(f"{self._subject} asks nobody to sign in.")
                return True
            record = await self._sign_in_where_agreed(order)
        except SignInFailed as error:
            self.terminal.note(f"emceepee: Not signed in to {name}. {error}")
            return False
        self.terminal.line(f"Signed in to {name} {record.validity()}.")
        return True

    async def _order(self) -> SignInOrder | None:
        """From the challenge of the server; None where it has none."""
        server = self.server
        try:
            async with endpoint_client(server.url or "", anywhere=True) as client:
                challenge = await challenge_of(server, client)
        except (NoAnswer, AddressRefused) as error:
            raise SignInFailed(f"{error}: check its URL, and the network.") from None
        asks = challenge.status == _UNAUTHORIZED
        if not asks and server.auth != "oauth" and self.scope is None:
            self._require_mcp(challenge)
            return None
        scope = self.scope or server.oauth.scope
        return SignInOrder(
            directory=str(self._store.directory),
            name=server.name,
            server=server.url or "",
            challenge=challenge.authenticate,
            oauth=msgspec.structs.replace(server.oauth, scope=scope),
            trusted=self.trusted,
        )

    @property
    def _subject(self) -> str:
        """What a sentence begins with; the name of a configured server stays as it is."""
        return self.server.name if self.trusted else "The server"

    def _require_mcp(self, answer: Challenge) -> None:
        """Raises for a page, or an error of the web server: that says nothing about a sign-in."""
        if answer.is_of_mcp:
            return
        see = f"see: {_command('doctor', self.server.name)}" if self.trusted else "check its URL."
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
        url, host = self.server.url or "", spelled_out(needed.host)
        if not all(map(os.isatty, _STREAMS)):
            add = _command("config", "add", "NAME", "--url", url)
            raise SignInFailed(
                f"{url} wants a sign-in at another host, {host}, and nobody can be asked here. If "
                f"you trust it, configure it first: {add}; then: emceepee login NAME"
            )
        question = f"{url} wants you to sign in at another host, {host}. Go there?"
        if not await ask_whether(question, self.terminal, usual=False):
            raise SignInFailed("Nothing was sent there.")

    async def _sign_in(self, order: SignInOrder) -> TokenRecord:
        from emceepee_stdio.auth.sign_in import sign_in  # noqa: PLC0415 - takes a second

        async def show(url: str) -> None:
            self._store.tell(Visit(url=url))
            self._show(url)

        paste = self._paste if self.pastes else None
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
        opened = self.opens and open_browser(url, os.environ)
        self.terminal.note(
            "The browser opens this address; if it does not, open it yourself:"
            if opened
            else "Open this address in a browser:"
        )
        self.terminal.note(url)
        if not self.pastes:
            self.terminal.note("Waiting until you have signed in there; Ctrl-C stops it.")
        else:
            self.terminal.note(
                "At the end the browser shows an address that it cannot reach: copy it here."
            )

    async def _paste(self) -> str | None:
        if self._is_pasted:  # what was typed before was not it
            self.terminal.note(
                "That is not the address at which this sign-in ends; it has /callback? in it."
            )
        self._is_pasted = True
        self.terminal.ask("Address:")
        line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        return line or None

    async def _join(self) -> TokenRecord:
        """Another process leads a person already: the same visit is good for both."""
        before, visit = self._store.stamp(), self._store.visit()
        if visit is None or visit.url is None or self.scope is not None or self.pastes:
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
