"""`emceepee login` and `emceepee logout`: sign in to a server behind a URL, and out again."""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer

from emceepee_stdio.auth import refresh, token_store
from emceepee_stdio.auth.bearer import ConsentNeeded, SignInFailed, SignInOrder, signs_in, store_of
from emceepee_stdio.auth.browser import open_browser
from emceepee_stdio.cli.command_line import argument, flag, option
from emceepee_stdio.cli.secret_values import KeyringStorage
from emceepee_stdio.cli.shared_options import ConfigOption, chosen, complete_servers, is_url
from emceepee_stdio.cli.terminal import (
    ExitCode,
    ask,
    ask_whether,
    interrupts,
    is_person_there,
    terminal,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.fields import filled_in, needed_secrets
from emceepee_stdio.config.load import load_file
from emceepee_stdio.config.server import OAuthConfig, ServerConfig
from emceepee_stdio.errors import CannotConnect, ConfigInvalid
from emceepee_stdio.visible_text import shell_line, spelled_out
from emceepee_stdio.wire.own_process import protect_memory

_UNAUTHORIZED = 401
_LOCK_S = 1.0  # somebody who holds it longer leads a person already
_MAX_HOSTS = 3  # other than the server's that a person is asked about for one sign-in
_LOOK_S = 0.2  # another process tells nobody that it is done

NameArgument = Annotated[
    str,
    argument(
        "NAME", about="A configured server, or the URL of one.", autocompletion=complete_servers
    ),
]


def login(
    name: NameArgument,
    *,
    no_browser: Annotated[bool, flag("--no-browser")] = False,
    paste: Annotated[bool, flag("--paste")] = False,
    scope: Annotated[str | None, option("SCOPES")] = None,
    config: ConfigOption = None,
) -> None:
    """Sign in to a server with OAuth.

    Opens the browser. Every proxy that waits for the sign-in goes on. Exit code 1: what answers
    there is no MCP server; 3: nobody signed in, or the server refused it.

    Takes:
      no_browser: Only print the address to open.
      paste: The browser is on another machine: type in the address at which it ends.
      scope: Ask for these, instead of what the server names.

    Example: emceepee login github
    """
    made = _SignIn(
        server=_server(name, config),
        opens=not no_browser and not paste,
        pastes=paste,
        scope=scope,
        trusted=not is_url(name),
    )
    if not interrupts.run(made.run):
        raise typer.Exit(ExitCode.CREDENTIALS_REFUSED)


def logout(
    name: NameArgument,
    *,
    revoke: Annotated[bool, flag("--revoke")] = False,
    config: ConfigOption = None,
) -> None:
    """Delete the tokens of a server.

    Deletes our registration there, too. Exit code 1: the server did not take the revocation; the
    tokens are forgotten all the same.

    Takes:
      revoke: Also tell the server that the tokens have ended.

    Example: emceepee logout github --revoke
    """
    server = _server(name, config)
    configured: tuple[ServerConfig, ...] = ()
    with suppress(ConfigInvalid):  # a server is signed out by its URL all the same
        configured = load_file(config, environ=os.environ).servers
    others = [one for one in configured if one.url is not None and one.name != name]
    if not interrupts.run(partial(_sign_out, server, others, revokes=revoke)):
        raise typer.Exit(ExitCode.FAILED)


def _server(name: str, config: Path | None) -> ServerConfig:
    if is_url(name):
        server = ServerConfig(name="the server", url=name)
    else:
        server = chosen(name, load_file(config, environ=os.environ), argument="NAME")
    if server.url is None:
        fact = f"{name} is a command, not a URL: it is given its credentials in `env`."
        raise typer.BadParameter(fact, param_hint="NAME")
    if not signs_in(server):
        fact = f'{name} has credentials in its url or headers, or `auth: "none"`: those count.'
        raise typer.BadParameter(fact, param_hint="NAME")
    if not server.templates:
        return server
    return filled_in(server, KeyringStorage().secrets(needed_secrets(server)))


def _store(server: ServerConfig) -> token_store.TokenStore:
    return store_of(server, str(token_store.default_token_directory(os.environ)))


async def _sign_out(server: ServerConfig, others: Iterable[ServerConfig], *, revokes: bool) -> bool:
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


async def _forget(
    store: token_store.TokenStore, server: ServerConfig, *, revokes: bool
) -> tuple[bool, bool]:
    """Whether there was anything, and whether the server took what it was to be told."""
    revoked = True
    with store.writing():
        record = store.read()
        if record is not None and revokes:
            is_own = store == _store(server)
            revoked = await refresh.revoke(record, server.oauth if is_own else OAuthConfig())
        return store.remove(), revoked


def _command(*words: str) -> str:
    return shell_line(["emceepee", *words])


@dataclass(slots=True, kw_only=True, repr=False)
class _SignIn:
    """One sign-in at a terminal.

    If a helper of a proxy leads the person already, its visit is joined instead of made anew.
    """

    server: ServerConfig

    opens: bool
    pastes: bool
    scope: str | None
    trusted: bool  # it is configured, so that it may name a sign-in at another host
    _is_pasted: bool = False

    @property
    def _store(self) -> token_store.TokenStore:
        return _store(self.server)

    async def run(self) -> bool:
        """Whether all is well now; else it was said why not."""
        protect_memory()
        name = self.server.name
        try:
            order = await self._order()
            if order is None:
                terminal.line(f"{self._subject} asks nobody to sign in.")
                return True
            record = await self._sign_in_where_agreed(order)
        except SignInFailed as error:
            terminal.note(f"emceepee: Not signed in to {name}. {error}")
            return False
        terminal.line(f"Signed in to {name} {record.validity()}.")
        return True

    async def _order(self) -> SignInOrder | None:
        """From the challenge of the server; None where it has none."""
        server = self.server
        try:
            async with refresh.endpoint_client(server.url or "", anywhere=True) as client:
                challenge = await refresh.challenge_of(server, client)
        except (refresh.NoAnswer, refresh.AddressRefused) as error:
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

    def _require_mcp(self, answer: refresh.Challenge) -> None:
        """Raises for a page, or an error of the web server: that says nothing about a sign-in."""
        if answer.is_of_mcp:
            return
        see = f"see: {_command('doctor', self.server.name)}" if self.trusted else "check its URL."
        raise CannotConnect(
            f"{self._subject} answered with {answer}, which no MCP server does here; {see}", hint=""
        )

    async def _sign_in_where_agreed(self, order: SignInOrder) -> token_store.TokenRecord:
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
        question = f"{url} wants you to sign in at another host, {host}. Go there?"
        if needed.code_from is not None:
            if not is_person_there():
                raise SignInFailed(spelled_out(str(needed)))
            at = spelled_out(needed.code_from)
            question = f"{url} gives your sign-in at {at} to another host, {host}. Trust both?"
        elif not is_person_there():
            add = _command("config", "add", "NAME", "--url", url)
            raise SignInFailed(
                f"{url} wants a sign-in at another host, {host}, and nobody can be asked here. If "
                f"you trust it, configure it first: {add}; then: emceepee login NAME"
            )
        if not await ask_whether(question, usual=False):
            raise SignInFailed("Nothing was sent there.")

    async def _sign_in(self, order: SignInOrder) -> token_store.TokenRecord:
        from emceepee_stdio.auth.sign_in import sign_in  # noqa: PLC0415 - takes a second

        async def show(url: str) -> None:
            self._store.tell(token_store.Visit(url=url))
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
        how = "The browser opens this address; if it does not, open it yourself:"
        terminal.note(how if opened else "Open this address in a browser:")
        terminal.note(url)
        waits = "Waiting until you have signed in there; Ctrl-C stops it."
        copy = "At the end the browser shows an address that it cannot reach: copy it here."
        terminal.note(copy if self.pastes else waits)

    async def _paste(self) -> str | None:
        if self._is_pasted:  # what was typed before was not it
            terminal.note(
                "That is not the address at which this sign-in ends; it has /callback? in it."
            )
        self._is_pasted = True
        return await ask("Address:")

    async def _join(self) -> token_store.TokenRecord:
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
