"""OAuth sign-in with a person: discovery, registration, the browser, the tokens.

Built on the provider of the mcp SDK, which is a generator of requests. We drive it by hand: its
first request is never sent, because its answer, the challenge, is known; all others go through
`_Flow.send`, where the rules stand that the SDK does not keep. Nothing is stored before all of it
is there. What an error of the SDK says may hold codes and tokens, so its words are never shown.

This module imports mcp, which takes a second: it is for processes of its own.
"""

import html
import logging  # noqa: TID251 - to silence the SDK, whose lines quote codes and tokens
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import parse_qsl, urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import Listener, SocketStream
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken

from emceepee_stdio.auth.bearer import (
    STEP_UP_STATUS,
    ClientRefused,
    ConsentNeeded,
    NewerRecord,
    SignInFailed,
    SignInOrder,
    challenge_fields,
)
from emceepee_stdio.auth.refresh import (
    AddressRefused,
    NoAnswer,
    endpoint_client,
    error_code,
    read_answer,
)
from emceepee_stdio.auth.token_store import (
    OAuthClient,
    TokenRecord,
    TokenStore,
    lifetime,
    same_issuer,
    sendable,
)
from emceepee_stdio.clock import Clock
from emceepee_stdio.visible_text import cut, spelled_out
from emceepee_stdio.wire.loopback_http import (
    LOOPBACK,
    LoopbackServer,
    PageRefusal,
    PageReply,
    PageRequest,
    loopback_listener,
)

# What the SDK does not see to when somebody signs in: who may be asked, shown and believed.
#
# Everything here was said by a server, and every rule is checked before anything goes there.
# Without the SDK: what it read comes in as an `Announcement`. A message names what was announced,
# cleaned.


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

    def check_host(self, url: str) -> None:
        """What a model added may not lead a person to another host unasked."""
        host, order = urlsplit(url).hostname or "", self._order
        agreed = (urlsplit(order.server).hostname, *order.agreed_hosts)
        if not order.trusted and host not in agreed:
            raise ConsentNeeded(order.name, host)

    def check_mix_up(self, visit: str, token_endpoint: str, *, names_issuer: bool) -> None:
        """A server may lead to the sign-in of another one, and have its code brought to itself.

        That is noticed where the answer names its issuer. Otherwise a person vouches for both.
        """
        there, here = urlsplit(visit).hostname or "", urlsplit(token_endpoint).hostname or ""
        is_vouched = self._oauth.issuer is not None or here in self._order.agreed_hosts
        if there != here and not names_issuer and not is_vouched:
            raise ConsentNeeded(self._order.name, here, code_from=there)

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
        self.check_issuer(found)
        if self._oauth.client_id is not None and not self._oauth.is_client_document:
            raise SignInFailed(
                f"{self._announces(found)}, which is another one than before, and the configured "
                f"client is not shown to it. {self._trust(found)}"
            )
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
    return cut(spelled_out(said), _SHOWN_CHARS)


# The OAuth redirect address on this machine, where the browser brings the one answer.
#
# Only a request for our path with our state is the answer; whatever else comes, a favicon or a page
# that guesses, is not found. The browser is answered last, when it is known what came of it, with a
# page that loads nothing.


CALLBACK_PATH = "/callback"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_PAGE_TIMEOUT_S = 2.0  # for the last page, when all is done
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:1.1em/1.5 system-ui,sans-serif;max-width:34em;margin:18vh auto;padding:0 1em}}
@media(prefers-color-scheme:dark){{body{{background:#16181c;color:#e8e8e8}}}}</style></head>
<body><h1>{title}</h1><p>{text}</p></body></html>
"""


class Callback:
    """The answer that is waited for, and the page that it is answered with."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.state: str | None = None  # nothing is the answer before there is one
        self._given: dict[str, str] | None = None
        self._came = anyio.Event()
        self._over = anyio.Event()
        self._page = _page("Not signed in", "The sign-in was given up. You can close this tab.")

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}{CALLBACK_PATH}"

    async def wait(self) -> dict[str, str]:
        await self._came.wait()
        return self._given or {}

    def take(self, given: dict[str, str]) -> bool:
        """Whether these parameters are the answer; the first ones are."""
        ours = self.state is not None and given.get("state") == self.state
        if ours and not self._came.is_set():
            self._given = given
            self._came.set()
        return ours

    def finish(self, title: str, text: str) -> None:
        """What the person reads in the browser."""
        self._page = _page(title, text)
        self._over.set()

    def close(self) -> None:
        """A browser that waits gets the page as it is."""
        self._over.set()

    async def reply(self, request: PageRequest) -> PageReply:
        if request.path != CALLBACK_PATH or not self.take(request.query):
            raise PageRefusal(HTTPStatus.NOT_FOUND, "There is nothing here.")
        await self._over.wait()
        return PageReply(self._page, policy=_POLICY)


def parameters(address: str) -> dict[str, str]:
    """What stands in an address that a person copied from the browser."""
    try:
        return dict(parse_qsl(urlsplit(address.strip()).query))
    except ValueError:
        return {}


@asynccontextmanager
async def callback_listener(
    listener: Listener[SocketStream], port: int
) -> AsyncGenerator[Callback]:
    """Listen while the person is away."""
    callback = Callback(port)
    server = LoopbackServer(port, callback.reply, led_here=(CALLBACK_PATH,))  # state is proof
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(server.accept, listener)
        try:
            yield callback
        finally:
            callback.close()
            with anyio.move_on_after(_PAGE_TIMEOUT_S, shield=True):
                await server.drained()
            tasks.cancel_scope.cancel()


def _page(title: str, text: str) -> bytes:
    return _PAGE.format(title=html.escape(title), text=html.escape(text)).encode()


_VISIT_TIMEOUT_S = 300.0  # for the person in the browser
_PROTOCOL_VERSION = "2025-11-25"  # the newest that the rules of OAuth differ by
_METADATA_PATH = re.compile(r"/\.well-known/(oauth-authorization-server|openid-configuration)")


@dataclass
class _Context(OAuthContext):
    """Some servers refuse the `resource` of RFC 8707."""

    sends_resource: bool = True

    def should_include_resource_param(self, protocol_version: str | None = None) -> bool:
        return self.sends_resource and super().should_include_resource_param(protocol_version)


Show = Callable[[str], Awaitable[None]]
Paste = Callable[[], Awaitable[str | None]]


async def sign_in(
    order: SignInOrder,
    store: TokenStore,
    clock: Clock,
    *,
    show: Show,
    paste: Paste | None = None,
    on_return: Callable[[], None] = lambda: None,
) -> TokenRecord:
    """Sign in and store what came of it; only with the lock `person`.

    `show` is given the address for the person. `paste`, where given, returns what the person typed:
    the address that their browser ended at, where it cannot reach this machine, or None when nobody
    types any more. `on_return` is told when the person is back, and what they brought is exchanged.
    """
    logging.disable()
    if store.is_newer():
        raise NewerRecord(order.name)
    old = store.read()
    failure: SignInFailed | None = None
    async with callback_listener(*await _bound(order, old)) as callback:
        try:
            record = await _Flow(order, old, clock, callback, show, paste, on_return).run()
        except SignInFailed as error:
            failure = error
            callback.finish("Not signed in", f"{error} You can close this tab.")
        else:
            with store.writing():
                store.write(record)
            callback.finish(f"Signed in to {order.name}", "You can close this tab.")
            return record
    if isinstance(failure, ClientRefused) and old is not None:
        with store.writing():
            store.write(msgspec.structs.replace(old, client=None))
    raise failure


async def _bound(order: SignInOrder, old: TokenRecord | None) -> tuple[Listener[SocketStream], int]:
    """On the port that was configured, else on the one of the registration if it is free."""
    fixed, known = order.oauth.redirect_port, None if old is None else old.client
    try:
        return await loopback_listener(fixed or (known.redirect_port if known else 0))
    except OSError:
        if fixed is not None:
            raise SignInFailed(
                f"Port {fixed} on this machine is in use: end the program that has it, or change "
                "oauth.redirect_port."
            ) from None
    return await loopback_listener(0)


@dataclass(frozen=True, slots=True)
class _Storage:
    """What the flow may know from before; it stores nothing."""

    order: SignInOrder
    old: TokenRecord | None
    redirect: str

    async def get_tokens(self) -> OAuthToken | None:
        """For a step-up the scopes that were granted, which it asks for again."""
        if self.old is None or self.order.status != STEP_UP_STATUS:
            return None
        return OAuthToken(access_token="-", scope=self.old.scope)  # noqa: S106 - none

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Bound to its issuer: else it would be shown to any that the server names."""
        oauth, old = self.order.oauth, self.old
        issuer = oauth.issuer or (None if old is None else old.issuer)
        if oauth.client_id is not None and not oauth.is_client_document:
            return OAuthClientInformationFull(
                client_id=oauth.client_id, client_secret=oauth.client_secret, issuer=issuer
            )
        known = None if old is None else old.client
        if known is None or self.redirect not in known.redirect_uris:
            return None
        return OAuthClientInformationFull.model_validate(
            {
                "client_id": known.client_id,
                "client_secret": known.client_secret,
                "token_endpoint_auth_method": known.token_endpoint_auth_method,
                "redirect_uris": known.redirect_uris,
                "issuer": issuer,
            }
        )

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """All is stored at once, at the end."""

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """All is stored at once, at the end."""


@dataclass
class _Flow:
    """One sign-in, from the challenge to the tokens."""

    order: SignInOrder
    old: TokenRecord | None
    clock: Clock
    callback: Callback
    show: Show
    paste: Paste | None
    on_return: Callable[[], None]
    came_back: bool = False
    error: str | None = None  # what the browser brought instead of a code

    def __post_init__(self) -> None:
        self._oauth = self.order.oauth
        self._rules = SignInRules(self.order)
        about = OAuthClientMetadata.model_validate(
            {"client_name": "emceepee", "redirect_uris": [self.callback.url]}
        )
        document = self._oauth.client_id if self._oauth.is_client_document else None
        storage = _Storage(self.order, self.old, self.callback.url)
        self._provider = OAuthClientProvider(
            self.order.server, about, storage, client_metadata_url=document
        )
        self._context = self._provider.context = _Context(
            server_url=self.order.server,
            client_metadata=about,
            storage=storage,
            redirect_handler=self._lead,
            callback_handler=self._come_back,
            client_metadata_url=document,
            sends_resource=self._oauth.resource,
        )

    async def run(self) -> TokenRecord:
        try:
            async with endpoint_client(self.order.server) as self._client:
                since = await self._drive()
        except SignInFailed:
            raise
        except AddressRefused as error:
            raise SignInFailed(f"{self.order.name} sends us where it may not: {error}.") from None
        except NoAnswer as error:
            raise SignInFailed(f"{error}: try again later.") from None
        except TimeoutError:
            raise SignInFailed(
                f"Nobody signed in within {_VISIT_TIMEOUT_S / 60:g} minutes: try again."
            ) from None
        except Exception:  # noqa: BLE001 - whatever the SDK raises is a failed sign-in
            if self.error is not None:
                raise SignInFailed(f"The server said no: {self.error}.") from None
            raise SignInFailed(self._broken_rules()) from None
        return self._record(since)

    async def _drive(self) -> float:
        """Feed the provider what it asks for, until it would call the server itself."""
        request = httpx2.Request(
            "POST", self.order.server, headers={"mcp-protocol-version": _PROTOCOL_VERSION}
        )
        seen = httpx2.Response(
            self.order.status, headers={"www-authenticate": self._challenge()}, request=request
        )
        since = 0.0
        async with aclosing(self._provider.async_auth_flow(request)) as flow:
            await anext(flow)
            outgoing = await flow.asend(seen)
            while outgoing is not request:
                since = self.clock.epoch(self.clock.now())
                outgoing = await flow.asend(await self._send(outgoing))
        return since

    def _challenge(self) -> str:
        """With the scope that a person configured in the place of the server's."""
        found = challenge_fields(self.order.challenge)
        if self._oauth.scope is not None:
            found["scope"] = self._oauth.scope
        self._asks_scope = "scope" in found
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in found.items())

    # What the SDK does not see to

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        is_token = "form" in request.headers.get("content-type", "")
        self._rules.check_host(str(request.url))
        if is_token:
            self._rules.check_issuer(self._announced())
        elif request.method == "POST":
            back = self.callback
            self._rules.check_registration(self._announced(), redirect=back.url, port=back.port)
        self._client.anywhere = self._rules.may_be_anywhere(self._announced(), str(request.url))
        answer = await self._client.send(request)
        if is_token:
            said = self._rules.token_answer(answer.status_code, read_answer(answer))
            return _replaced(answer, said)
        if request.method == "POST" and answer.status_code >= _FIRST_ERROR:
            code = error_code(read_answer(answer)) or f"HTTP status {answer.status_code}"
            raise self._rules.registration_refused(self._announced(), code)
        if _METADATA_PATH.search(request.url.path):
            return self._without_scopes(answer)
        return answer

    def _announced(self) -> Announcement:
        metadata, context = self._context.oauth_metadata, self._context
        named = context.auth_server_url
        if metadata is None:
            issuer = named or origin_of(self.order.server)
            return Announcement(issuer=issuer, is_named=named is not None)
        methods = metadata.code_challenge_methods_supported
        return Announcement(
            issuer=str(metadata.issuer),
            is_named=named is not None,
            has_metadata=True,
            registers=metadata.registration_endpoint is not None,
            challenge_methods=None if methods is None else tuple(methods),
        )

    def _without_scopes(self, answer: httpx2.Response) -> httpx2.Response:
        """All scopes of an authorization server are too many: where nobody asks, none is sent."""
        resource = self._context.protected_resource_metadata
        if self._asks_scope or (resource is not None and resource.scopes_supported is not None):
            return answer
        metadata = read_answer(answer)
        metadata.pop("scopes_supported", None)
        return _replaced(answer, metadata) if metadata else answer

    # The person

    async def _lead(self, visit: str) -> None:
        """Discovery and registration are done, nothing is exchanged yet."""
        self._rules.check_issuer(self._announced())
        client, metadata = self._context.client_info, self._context.oauth_metadata
        if metadata is not None:
            visit = visit_address(visit, str(metadata.authorization_endpoint))
        for address in (visit, self._token_endpoint()):
            self._rules.check_host(address)
            self._client.anywhere = self._rules.may_be_anywhere(self._announced(), address)
            await self._client.check(address)
        names = metadata is not None and metadata.authorization_response_iss_parameter_supported
        self._rules.check_mix_up(visit, self._token_endpoint(), names_issuer=names is True)
        if client is not None and client.client_secret and not client.token_endpoint_auth_method:
            # The SDK would leave the secret out.
            ways = (metadata and metadata.token_endpoint_auth_methods_supported) or []
            posts = bool(ways) and "client_secret_basic" not in ways
            client.token_endpoint_auth_method = f"client_secret_{'post' if posts else 'basic'}"
        self.callback.state = dict(parse_qsl(urlsplit(visit).query)).get("state")
        await self.show(visit)

    async def _come_back(self) -> AuthorizationCodeResult:
        """State and issuer of what comes back are compared by the SDK."""
        given: dict[str, str] = {}
        with anyio.fail_after(_VISIT_TIMEOUT_S):
            async with anyio.create_task_group() as tasks:
                if self.paste is not None:
                    tasks.start_soon(self._take_pasted, self.paste, tasks.cancel_scope)
                given = await self.callback.wait()
                tasks.cancel_scope.cancel()
        if not given:
            raise SignInFailed("The input ended before the address came: try again at a terminal.")
        self.on_return()
        self.came_back = True
        self.error = error_code({"error": given.get("error")})
        return AuthorizationCodeResult(
            code=given.get("code", ""), state=given.get("state"), iss=given.get("iss")
        )

    async def _take_pasted(self, paste: Paste, wait: anyio.CancelScope) -> None:
        while (typed := await paste()) is not None:
            if self.callback.take(parameters(typed)):
                return
        wait.cancel()

    # What came of it

    def _record(self, since: float) -> TokenRecord:
        context = self._context
        client, tokens = context.client_info, context.current_tokens
        if client is None or tokens is None:
            raise SignInFailed("The server gave no token.")
        revocation = context.oauth_metadata and context.oauth_metadata.revocation_endpoint
        sends_resource = context.should_include_resource_param(context.protocol_version)
        is_configured = client.client_id == self._oauth.client_id
        record = TokenRecord(
            server=self.order.server,
            issuer=self._announced().issuer,
            token_endpoint=self._token_endpoint(),
            revocation_endpoint=str(revocation) if revocation else None,
            resource=context.get_resource_url() if sends_resource else None,
            scope=context.client_metadata.scope,
            client=OAuthClient(
                client_id=client.client_id,
                client_secret=None if is_configured else client.client_secret,
                token_endpoint_auth_method=client.token_endpoint_auth_method,
                redirect_uris=(self.callback.url,),
                is_configured=is_configured,
            ),
        )
        return record.taken(tokens.model_dump(), now=since)

    def _token_endpoint(self) -> str:
        metadata, context = self._context.oauth_metadata, self._context
        if metadata is not None:
            return str(metadata.token_endpoint)
        return f"{context.get_authorization_base_url(context.server_url)}/token"

    def _broken_rules(self) -> str:
        """By when it happened alone: what the SDK says may quote a code or a token."""
        if self.came_back:
            what = "what came back from its sign-in names another issuer, or is no token"
        else:
            what = "what it announces for signing in contradicts itself or its address"
        return (
            f"{self.order.name} does not keep to OAuth: {what}. Try again; if it stays so, tell "
            "whoever runs the server."
        )


def _replaced(answer: httpx2.Response, body: dict[str, object]) -> httpx2.Response:
    """The same answer with another object in it."""
    content = msgspec.json.encode(body)
    return httpx2.Response(answer.status_code, content=content, request=answer.request)
