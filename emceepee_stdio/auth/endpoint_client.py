"""Requests to the addresses that a server names for signing in: bounded, and held to its own rules.

A server names its authorization server, and that names endpoints. None of them may lead nearer to
this machine than the server itself is, or a public server could have us call what only we can
reach. Judged by the address that was really connected to, before a byte is sent. Nothing is sent
in the clear but to this machine, or to the host that a person gave as http, and no redirect is
followed: what a request carries was meant for its own address.
"""

import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import httpx2

from emceepee_stdio.trust.addresses import Area, area_of, named_area

__all__ = ["AddressRefused", "EndpointClient", "NoAnswer", "endpoint_client"]

_TIMEOUT_S = 20.0  # for one request; a person waits
_MAX_BODY_BYTES = 1 << 20  # metadata and tokens are a few kilobytes
_HTTPS_PORT = 443
_ALLOWED = {
    Area.LOOPBACK: frozenset({Area.LOOPBACK, Area.PUBLIC}),
    Area.NEAR: frozenset({Area.NEAR, Area.PUBLIC}),
    Area.PUBLIC: frozenset({Area.PUBLIC}),
}


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
        self._allowed: frozenset[Area] | None = None

    def __repr__(self) -> str:
        return f"<EndpointClient for {self._server.hostname}>"

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
        for address in await _addresses(parts.hostname, parts.port):
            await self._check_address(address)

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """The whole answer, whatever its status."""
        await self.check(str(request.url))
        request.headers["accept-encoding"] = "identity"
        request.extensions["trace"] = self._watch(request.url.raw_host.decode("ascii"))
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

    def _watch(self, host: str) -> Callable[[str, Any], Awaitable[None]]:
        dials_proxy = False

        async def look(event: str, info: Any) -> None:
            nonlocal dials_proxy
            if event == "connection.connect_tcp.started":
                dials_proxy = str(info["host"]).strip("[]") != host
            if event != "connection.connect_tcp.complete" or dials_proxy:
                return  # a proxy of the environment finds the way by itself
            stream = info["return_value"]
            try:
                await self._check_address(str(stream.get_extra_info("server_addr")[0]))
            except AddressRefused:
                await stream.aclose()
                raise

        return look

    async def _check_address(self, address: str) -> None:
        if self.anywhere:
            return
        if self._allowed is None:
            host, port = self._server.hostname or "", self._server.port
            own = {area_of(found) for found in await _addresses(host, port)}
            nearest = next((area for area in Area if area in own), Area.PUBLIC)
            self._allowed = _ALLOWED[nearest]
        if area_of(address) not in self._allowed:
            raise AddressRefused(f"{address} is an address of {area_of(address).value}")


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
