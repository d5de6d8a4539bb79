"""Token refresh without a person: one request, and what each refusal of it means.

Only the token endpoint itself ends a sign-in, by refusing the refresh token or the client. Whatever
else goes wrong passes, and the record stays as it is.
"""

import base64
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import anyio
import anyio.to_thread
import httpx2
import msgspec

from emceepee_stdio.auth.bearer import HelperExit, SignInOrder
from emceepee_stdio.auth.token_store import OAuthClient, TokenRecord, TokenStore, sendable
from emceepee_stdio.clock import Clock
from emceepee_stdio.config.server import OAuthConfig, ServerConfig
from emceepee_stdio.foreign_json import decoded
from emceepee_stdio.json_values import mapping
from emceepee_stdio.trust.targets import AddressRule, Area, area_of, named_area, only, watched_dial
from emceepee_stdio.versions import LEGACY_VERSIONS

# Requests to the addresses that a server names for signing in: bounded, and held to its own rules.
#
# A server names its authorization server, and that names endpoints. None of them may lead nearer to
# this machine than the server itself is, or a public server could have us call what only we can
# reach. Judged by the address that was really connected to, before a byte is sent. Nothing is sent
# in the clear but to this machine, or to the host that a person gave as http, and no redirect is
# followed: what a request carries was meant for its own address.


_TIMEOUT_S = 20.0  # for one request; a person waits
_MAX_BODY_BYTES = 1 << 20  # metadata and tokens are a few kilobytes
_HTTPS_PORT = 443


class AddressRefused(Exception):
    """An address that this server may not send us to."""


class NoAnswer(Exception):
    """The network or the other side failed: trying again later may help."""


@asynccontextmanager
async def endpoint_client(
    server: str, *, anywhere: bool = False
) -> AsyncGenerator["EndpointClient"]:
    """For what the server at this URL names; `anywhere` where a person named it themselves."""
    trust = httpx2.create_ssl_context()  # with the certificates of the environment, for both
    async with (
        httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=trust) as client,
        httpx2.AsyncClient(timeout=_TIMEOUT_S, verify=trust, trust_env=False) as direct,
    ):
        yield EndpointClient(client, direct, server, anywhere=anywhere)


class EndpointClient:
    """Sends requests, one at a time. While `anywhere` is set, no address is refused."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        direct: httpx2.AsyncClient,
        server: str,
        *,
        anywhere: bool,
    ) -> None:
        self.anywhere = anywhere
        self._client = client
        self._direct = direct  # for this machine, which no proxy of the environment reaches
        self._server = urlsplit(server)
        self._rule: AddressRule | None = None

    async def check(self, url: str) -> None:
        """Whether a person may be sent there, too."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise AddressRefused("only http and https addresses are used")
        if parts.username is not None:
            raise AddressRefused("an address has a user name before its host")
        is_local = named_area(url) is Area.LOOPBACK
        is_its_own = parts.netloc == self._server.netloc and self._server.scheme == "http"
        if parts.scheme == "http" and not (is_local or is_its_own):
            raise AddressRefused(f"{parts.hostname} is not reached by https")
        rule = await self._address_rule()
        for address in await _addresses(parts.hostname, parts.port):
            if (problem := rule(address)) is not None:
                raise AddressRefused(problem)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """The whole answer, whatever its status."""
        await self.check(str(request.url))
        request.headers["accept-encoding"] = "identity"
        host, rule = request.url.raw_host.decode("ascii"), await self._address_rule()
        request.extensions["trace"] = watched_dial(host, rule, refused=AddressRefused)
        is_local = named_area(str(request.url)) is Area.LOOPBACK
        client = self._direct if is_local else self._client
        try:
            with anyio.fail_after(_TIMEOUT_S):
                answer = await client.send(request, stream=True, follow_redirects=False)
                try:
                    body = await _body(answer)
                finally:
                    await answer.aclose()
        except (httpx2.HTTPError, httpx2.StreamError, OSError, TimeoutError, ValueError) as error:
            raise NoAnswer(f"{request.url.host} did not answer") from error
        kept = {k: v for k, v in answer.headers.items() if k not in _TRANSFER_HEADERS}
        return httpx2.Response(answer.status_code, headers=kept, content=body, request=request)

    async def _address_rule(self) -> AddressRule:
        """No nearer to this machine than the server itself is, or anywhere in the world."""
        if self.anywhere:
            return only(*Area)
        if self._rule is None:
            host, port = self._server.hostname or "", self._server.port
            own = {area_of(found) for found in await _addresses(host, port)}
            nearest = next((area for area in Area if area in own), Area.PUBLIC)
            self._rule = only(nearest, Area.PUBLIC)
        return self._rule


_TRANSFER_HEADERS = frozenset({"content-encoding", "content-length", "transfer-encoding"})


async def _body(answer: httpx2.Response) -> bytes:
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body.extend(chunk)
        if len(body) > _MAX_BODY_BYTES:
            raise ValueError("a body over the bound")
    return bytes(body)


async def _addresses(host: str, port: int | None) -> list[str]:
    def look_up() -> list[str]:
        try:
            found = socket.getaddrinfo(host, port or _HTTPS_PORT, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return []  # perhaps a proxy knows it
        return [str(entry[4][0]) for entry in found]

    return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True)


_OK = 200
_REFUSED = frozenset({"invalid_grant", "invalid_client", "unauthorized_client"})
_ERROR_CHARS = 60  # error codes are words of the RFCs


async def refresh(order: SignInOrder, store: TokenStore, clock: Clock) -> HelperExit:
    with store.writing():
        record = store.read()
        if record is not None and record.access_token not in (None, order.seen):
            return HelperExit.STORED  # another process was faster
        if record is None or record.refresh_token is None or not _may_send(record, order.oauth):
            return HelperExit.PERSON_NEEDED
        fields = {"grant_type": "refresh_token", "refresh_token": record.refresh_token}
        if record.resource is not None:
            fields["resource"] = record.resource
        now = clock.epoch(clock.now())
        said = await _post(record.token_endpoint, fields, record, order.oauth)
        if said is None:
            return HelperExit.TRY_AGAIN
        answer = read_answer(said)
        if said.status_code == _OK and sendable(answer.get("access_token")):
            store.write(record.taken(answer, now=now))
            return HelperExit.STORED
        code = error_code(answer)  # looked at with any status, also with 200
        if code not in _REFUSED:
            return HelperExit.TRY_AGAIN
        left = record.without_tokens()
        if code != "invalid_grant":  # the registration is gone, too
            left = msgspec.structs.replace(left, client=None)
        store.write(left)
        return HelperExit.PERSON_NEEDED


def _may_send(record: TokenRecord, oauth: OAuthConfig) -> bool:
    """Tokens go to the issuer that they came from, a configured secret to a configured issuer."""
    if record.client is None or not record.is_of(oauth.issuer):
        return False
    return not (record.client.is_configured and oauth.is_unbound_secret)


async def revoke(record: TokenRecord, oauth: OAuthConfig) -> bool:
    """Tell the server that the tokens are not needed any more (RFC 7009); whether it took it."""
    url, token = record.revocation_endpoint, record.refresh_token or record.access_token
    if url is None or token is None or not _may_send(record, oauth):
        return False
    said = await _post(url, {"token": token}, record, oauth)
    return said is not None and said.status_code == _OK


async def _post(
    url: str, fields: dict[str, str], record: TokenRecord, oauth: OAuthConfig
) -> httpx2.Response | None:
    """Send it as the client that signed in, in the way that it did then; None without an answer."""
    client = record.client or OAuthClient(client_id="")
    secret = oauth.client_secret if client.is_configured else client.client_secret
    headers = {"accept": "application/json"}
    fields = {**fields, "client_id": client.client_id}
    if secret and client.token_endpoint_auth_method == "client_secret_post":  # noqa: S105
        fields["client_secret"] = secret
    elif secret and client.token_endpoint_auth_method != "none":  # noqa: S105
        pair = f"{quote(client.client_id, safe='')}:{quote(secret, safe='')}"
        headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    request = httpx2.Request("POST", url, data=fields, headers=headers)
    try:
        anywhere = oauth.issuer is not None
        async with endpoint_client(record.server, anywhere=anywhere) as endpoint:
            return await endpoint.send(request)
    except (NoAnswer, AddressRefused):
        return None


def read_answer(said: httpx2.Response) -> dict[str, object]:
    """The object in a body; empty where it holds none."""
    return dict(mapping(decoded(said.content, object)))


def error_code(answer: dict[str, object]) -> str | None:
    """The error by its RFC name, which holds no secret; what a server adds may."""
    code = answer.get("error")
    if isinstance(code, str) and code.isascii() and code.replace("_", "").isalpha():
        return code[:_ERROR_CHARS]
    return None


# What a server answers to somebody without a token: the challenge from which a sign-in begins.


_SUCCESS = range(200, 300)
_NO_POST = 405
_MEDIA_TYPES = ("application/json", "text/event-stream")
_HELLO: dict[str, object] = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": {},
        "clientInfo": {"name": "emceepee", "version": "0"},
    },
}


class Challenge(NamedTuple):
    """The answer, as far as it says whether a person has to sign in."""

    status: int
    authenticate: str
    media_type: str
    is_json_rpc: bool

    @property
    def is_of_mcp(self) -> bool:
        """Whether an MCP server answers so.

        A modern one refuses `initialize` by an error, one of the older SSE transport a POST.
        """
        is_answer = self.status in _SUCCESS and self.media_type in _MEDIA_TYPES
        return is_answer or self.is_json_rpc or self.status == _NO_POST

    def __str__(self) -> str:
        status = f"HTTP status {self.status}"
        if self.status not in _SUCCESS:
            return status
        return f"{status} and the content type {self.media_type!r}"


async def challenge_of(server: ServerConfig, client: EndpointClient) -> Challenge:
    headers = {
        **server.headers,
        "accept": ", ".join(_MEDIA_TYPES),
        "content-type": "application/json",
    }
    body = msgspec.json.encode(_HELLO)
    request = httpx2.Request("POST", server.url or "", content=body, headers=headers)
    answer = await client.send(request)
    return Challenge(
        status=answer.status_code,
        authenticate=answer.headers.get("www-authenticate", ""),
        media_type=answer.headers.get("content-type", "").partition(";")[0].strip().lower(),
        is_json_rpc=read_answer(answer).get("jsonrpc") == "2.0",
    )
