"""HTTP requests of one connection (httpx2): headers, bearer token attached, redirects, errors.

The only module that knows the HTTP client. Whatever goes wrong on the way leaves it as
`Unreachable`, when nothing was delivered, or as `BrokenOff`, when something may have been. A POST
is sent again only where the server has said that it did not take it.
"""

import base64
import re
import ssl
from collections.abc import (
    AsyncGenerator,
    Callable,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    aclosing,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import KW_ONLY, dataclass
from functools import cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urljoin

import anyio
import httpx2
from anyio.lowlevel import checkpoint
from msgspec import Raw

from emceepee_stdio.auth.bearer import Bearer
from emceepee_stdio.backends.channels.http_errors import (
    BrokenOff,
    NotMcp,
    is_same_origin,
    retry_after,
    said,
    unreachable,
)
from emceepee_stdio.backends.interface import Era
from emceepee_stdio.clock import Clock
from emceepee_stdio.errors import CannotConnect
from emceepee_stdio.foreign_json import decoded, opened
from emceepee_stdio.journal import redact_url
from emceepee_stdio.json_values import mapping
from emceepee_stdio.trust.targets import AddressRule, Area, named_area, watched_dial
from emceepee_stdio.wire.codec import to_json
from emceepee_stdio.wire.framing import PartialMessages, turns
from emceepee_stdio.wire.peer import OutgoingRequest

# The body of an HTTP answer, as far as it has come. Bounded.


class TooMuch(Exception):
    """A body over the bound."""

    def __init__(self, size: int) -> None:
        super().__init__(f"{size} bytes")
        self.size = size


class Body:
    """Takes chunks while there is room; `whole` is all of them."""

    def __init__(self, limit: int, partial: PartialMessages | None) -> None:
        self._limit = limit
        self._partial = partial
        self._data = bytearray()
        self._size = 0

    def take(self, chunk: bytes) -> bool:
        """Whether there is room for more."""
        self._size += len(chunk)
        self._data += chunk
        if self._partial is not None:
            self._partial.hold(self, self._size)
        return self._size <= self._limit

    def give_way(self) -> None:
        self._data.clear()
        self._limit = -1

    def whole(self) -> bytes:
        if self._size > self._limit:
            raise TooMuch(self._size)
        return bytes(self._data)


# The headers of a request over HTTP: what the modern era wants said twice, for those on the way.
#
# Method, name and the arguments that a tool's schema marks with `x-mcp-header` are mirrored from
# the body into headers; a server refuses a request whose two copies differ.


HeaderMap = Mapping[tuple[str, ...], str]

_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_PLAIN = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")
_WRAPPED = re.compile(r"=\?base64\?.*\?=")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_MARK = "x-mcp-header"
_MIRRORED_TYPES = ("string", "integer", "boolean")
_INNER = (
    *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
    *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
)
_INNER_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_INNER_MAPS = ("patternProperties", "dependentSchemas", "$defs", "definitions")


class HeaderMaps:
    """Which arguments of which tools are mirrored, as the lists of one server tell it."""

    def __init__(self) -> None:
        self._maps: dict[str, HeaderMap] = {}
        self.learned = False

    def __repr__(self) -> str:
        return f"<HeaderMaps {sorted(self._maps)}>"

    def learn(self, tools: Sequence[Mapping[str, object]]) -> list[str]:
        """Take in what the server has listed; the names of tools that cannot be called so."""
        self.learned = True
        maps = {
            name: header_map(tool.get("inputSchema"))
            for tool in tools
            if isinstance(name := tool.get("name"), str)
        }
        self._maps = {name: found for name, found in maps.items() if found}
        return [name for name, found in maps.items() if found is None]

    def headers(self, request: OutgoingRequest) -> dict[str, str]:
        return modern_headers(request, self._maps)


def custom_headers(given: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """The headers of the configuration, fit to be sent; and the first one that is not."""
    headers = {name.strip(): value.strip() for name, value in given.items()}
    for name, value in headers.items():
        if not _TOKEN.fullmatch(name) or not _PLAIN.fullmatch(value):
            return headers, name
    return headers, None


def modern_headers(request: OutgoingRequest, maps: Mapping[str, HeaderMap]) -> dict[str, str]:
    """The mirrored headers of one request; `maps` holds the marked arguments by tool."""
    headers = {"mcp-method": _encoded_header(request.method)}
    params = request.params or {}
    name = params.get(_NAMED_BY.get(request.method, ""))
    if not isinstance(name, str):
        return headers
    headers["mcp-name"] = _encoded_header(name)
    marked = maps.get(name) if request.method == "tools/call" else None
    for path, token in (marked or {}).items():
        value = _rendered(_value_at(params.get("arguments"), path))
        if value is not None:
            headers[f"mcp-param-{token}"] = _encoded_header(value)
    return headers


def header_map(schema: object) -> dict[tuple[str, ...], str] | None:
    """Which properties of an input schema are to be mirrored, and under which name.

    None where a mark is out of place: such a tool is not to be listed.
    """
    found: dict[tuple[str, ...], str] = {}
    for path, fields in _schemas(schema):
        if _MARK not in fields:
            continue
        token, kind = fields[_MARK], fields.get("type")
        if not path or not isinstance(token, str) or not _TOKEN.fullmatch(token):
            return None
        if kind not in _MIRRORED_TYPES or token.lower() in map(str.lower, found.values()):
            return None
        found[path] = token
    return found


def _schemas(root: object) -> Iterator[tuple[tuple[str, ...] | None, Mapping[str, object]]]:
    """Every schema inside a schema, with its path where only properties lead to it."""
    waiting: list[tuple[tuple[str, ...] | None, object]] = [((), root)]
    while waiting:
        path, schema = waiting.pop()
        fields = mapping(schema)
        yield path, fields
        for key, inner in fields.items():
            if key == "properties":
                for name, property_ in mapping(inner).items():
                    waiting.append((None if path is None else (*path, name), property_))
            elif key in _INNER:
                waiting.append((None, inner))
            elif key in _INNER_LISTS and isinstance(inner, list):
                waiting += [(None, each) for each in cast("list[object]", inner)]
            elif key in _INNER_MAPS:
                waiting += [(None, each) for each in mapping(inner).values()]


def _value_at(value: object, path: tuple[str, ...]) -> object:
    """Opened one level at a time: what else is in it may be beyond what can be read."""
    for key in path:
        value = (opened(to_json(value), dict[str, Raw]) or {}).get(key)
    return decoded(to_json(value), object)


def _rendered(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return str(value) if isinstance(value, str | int | float) else None
    except ValueError:  # an integer with more digits than Python writes
        return None


def _encoded_header(value: str) -> str:
    """As it is where a header can carry it, else wrapped."""
    if _PLAIN.fullmatch(value) and not _WRAPPED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


JSON = "application/json"
EVENTS = "text/event-stream"
# Compressed, a few hundred bytes hold gigabytes; and to a server on this machine it saves nothing.
PLAIN = "identity"

_NO_CONNECTION = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.LocalProtocolError,
    httpx2.InvalidURL,
)
_BROKEN = (
    httpx2.HTTPError,
    httpx2.StreamError,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
    anyio.EndOfStream,
    OSError,
    ValueError,
    ExceptionGroup,
)
_MAX_ATTEMPTS = 4  # the first and three more: redirects and pauses that the server asks for
_MAX_RENEWALS = 2  # of a token for one request; the first may have ended before it was used
_MAX_RETRY_AFTER_S = 60.0  # a longer pause is told to the caller instead of waited for
# The statuses that may carry Retry-After
_RETRYABLE = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
# Others turn a POST into a GET
_METHOD_KEEPING_REDIRECTS = (HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT)
_IDLE_CONNECTIONS = 20  # what httpx keeps by default; the rest is closed after use
_MAX_PORT = 65_535  # 16 bits
_MAX_DRAIN_BYTES = 65_536  # a longer rest is dropped with its connection: a new one is cheap
_SHOWN_CHARS = 100  # an encoding is a word


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How a server is to be treated. Times are seconds; what is None is found out.

    `reopen` is the pause before a stream is opened again, and grows up to `reopen_cap`.
    """

    era: Era | None = None
    sse: bool | None = None
    connect: float = 120.0
    max_message: int = 64 << 20
    network: float = 30.0
    probe: float = 5.0
    reopen: float = 1.0
    reopen_cap: float = 30.0
    rule: AddressRule | None = None
    partial: PartialMessages | None = None
    bearer: Bearer | None = None


@dataclass(frozen=True, slots=True)
class _Sent:
    """What is sent, perhaps several times; `connect` is the time for a connection."""

    method: str
    headers: Mapping[str, str]
    data: bytes | None = None
    connect: float | None = None


class Answer:
    """The head of an answer, and its body as it comes."""

    def __init__(self, response: httpx2.Response, server: str, token: str | None = None) -> None:
        self._response = response
        self._server = server
        self.token = token  # what it was asked with
        self.status = response.status_code
        self.kind = self.header("content-type").partition(";")[0].strip().lower()

    @property
    def is_stream(self) -> bool:
        return self.status == HTTPStatus.OK and self.kind == EVENTS

    @property
    def location(self) -> str | None:
        return self.header("location") if self._response.has_redirect_location else None

    def header(self, name: str) -> str:
        return self._response.headers.get(name, "")

    async def read(self, take: Callable[[bytes], bool]) -> None:
        """Hand over the body as it comes, to its end or until that is enough.

        What came in one read, or in many small chunks of one, is not taken in at once.
        """
        with _our_errors(self._server):
            async with aclosing(self._response.aiter_raw()) as chunks:
                async for chunk in chunks:
                    for piece in turns(chunk):
                        if not take(piece):
                            return
                        await checkpoint()

    async def body(self, limit: int, partial: PartialMessages | None = None) -> bytes:
        body = Body(limit, partial)
        await self.read(body.take)
        return body.whole()

    async def drain(self, within: float) -> None:
        """Read what nobody needs, so that the socket can serve again, unless it is too much."""
        with anyio.move_on_after(within):
            try:
                await self.body(_MAX_DRAIN_BYTES)
            except (TooMuch, BrokenOff):
                return


@dataclass(eq=False, repr=False, slots=True)
class Carrier:
    """Posts to one address, and listens to it."""

    server: str
    url: str  # follows where the server leads, close by
    client: httpx2.AsyncClient
    _: KW_ONLY
    clock: Clock
    options: HttpOptions

    def post(
        self, data: bytes, headers: Mapping[str, str], *, connect: float | None = None
    ) -> AbstractAsyncContextManager[Answer]:
        """Send a message; again, after a pause, where the server asks for that."""
        return self._answer(_Sent("POST", headers, data, connect))

    def listen(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Answer]:
        """Open a stream of events."""
        return self._answer(_Sent("GET", headers))

    @asynccontextmanager
    async def _answer(self, sent: _Sent) -> AsyncGenerator[Answer]:
        """The answer, after redirects, another token, and pauses that the server asks for."""
        renewals = 0
        is_post = sent.data is not None
        for left in reversed(range(_MAX_ATTEMPTS)):
            async with self._open(sent) as answer:
                pause = self.wait(answer) if is_post else None
                if self._leads_on(answer, left=left, keeps_method=is_post):
                    pause = 0.0
                elif left and renewals < _MAX_RENEWALS and await self._renews(answer):
                    renewals, pause = renewals + 1, 0.0
                elif pause is None or pause > _MAX_RETRY_AFTER_S or not left:
                    yield answer
                    return
            await anyio.sleep(pause)

    async def delete(self, headers: Mapping[str, str]) -> None:
        async with self._open(_Sent("DELETE", headers)) as answer:
            await answer.drain(self.options.probe)

    def wait(self, answer: Answer) -> float | None:
        """How long the server asks us to stay away."""
        if answer.status not in _RETRYABLE:
            return None
        epoch = self.clock.epoch(self.clock.now())
        return retry_after(answer.header("retry-after") or None, epoch=epoch)

    @asynccontextmanager
    async def _open(self, sent: _Sent) -> AsyncGenerator[Answer]:
        bearer, network = self.options.bearer, self.options.network
        timeout = httpx2.Timeout(network, read=None, pool=None, connect=sent.connect or network)
        token = None if bearer is None else await bearer.token(self.url)
        bearing = {} if token is None else {"authorization": f"Bearer {token}"}
        with _our_errors(self.server):
            async with self.client.stream(
                sent.method,
                self.url,
                content=sent.data,
                headers=_encoded({**sent.headers, **bearing}),
                timeout=timeout,
                extensions=self._extensions(),
            ) as response:
                _refuse_encoded(self.server, response)
                yield Answer(response, self.server, token)

    async def _renews(self, answer: Answer) -> bool:
        """Whether the same request may succeed with another token than it was sent with."""
        bearer = self.options.bearer if answer.status == HTTPStatus.UNAUTHORIZED else None
        return bearer is not None and await bearer.renew(answer.token)

    def _extensions(self) -> dict[str, Any]:
        if self.options.rule is None:
            return {}
        host = httpx2.URL(self.url).raw_host.decode("ascii")
        return {"trace": watched_dial(host, self.options.rule, refused=self._refused)}

    def _refused(self, problem: str) -> CannotConnect:
        return CannotConnect(
            f"{self.server} was not called: {problem}.",
            hint="A person can add it with `emceepee config add`.",
        )

    def _leads_on(self, answer: Answer, *, left: int, keeps_method: bool) -> bool:
        """Follow a redirect within the same place; elsewhere is for the person to decide."""
        if answer.location is None:
            return False
        if (keeps_method and answer.status not in _METHOD_KEEPING_REDIRECTS) or not is_same_origin(
            self.url, answer.location
        ):
            raise NotMcp(
                f"{self.server} redirects to {redact_url(_joined(self.url, answer.location))}, "
                f"which is not followed (HTTP status {answer.status}).",
                hint="If that is where the server is, use that URL for it.",
            )
        if not left:
            raise NotMcp(f"{self.server} redirects us in circles.")
        self.url = _with_user(self.url, _joined(self.url, answer.location))
        return True


@asynccontextmanager
async def sockets(
    server: str, url: str, headers: Mapping[str, str]
) -> AsyncGenerator[httpx2.AsyncClient]:
    """The client for one connection; an error where the settings cannot work."""
    loopback = _is_loopback(server, url)
    headers, bad = custom_headers(headers)
    if bad is not None:
        raise CannotConnect(
            f"The header {bad!r} of {server} holds a character that no header may hold.",
            hint="Correct it in headers: names are plain words, values printable ASCII.",
        )
    plain = loopback and url.startswith("http:")
    trust = _no_trust() if plain else await anyio.to_thread.run_sync(_trust)
    # What was given as a header is meant; without one, the user in the URL is made into it.
    given = "authorization" in map(str.lower, headers)
    try:
        client = httpx2.AsyncClient(
            headers={**headers, "accept-encoding": PLAIN},
            auth=httpx2.Auth() if given else None,
            verify=trust,
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS),
            mounts={f"all://{httpx2.URL(url).netloc.decode()}": None} if loopback else None,
        )
    except (ValueError, httpx2.InvalidURL) as error:
        raise CannotConnect(
            f"{server} cannot be reached through the proxy of the environment: {error}",
            hint="Correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or set NO_PROXY.",
        ) from None
    async with client:
        yield client


@cache
def _trust() -> ssl.SSLContext:
    """Reading all certificates takes a while: once, and off the loop."""
    return httpx2.create_ssl_context()


@cache
def _no_trust() -> ssl.SSLContext:
    """For those who speak plainly with this machine: verifies, and trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _is_loopback(server: str, url: str) -> bool:
    """Whether the address is on this machine; an error when it is no address."""
    try:
        parsed = httpx2.URL(url)
    except (httpx2.InvalidURL, ValueError) as error:
        raise CannotConnect(
            f"The URL of {server} is not valid: {said(error)}", hint="Correct its url."
        ) from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise CannotConnect(
            f"The URL of {server} must begin with http:// or https:// and name a host.",
            hint="Correct its url.",
        )
    if parsed.port is not None and not 0 < parsed.port <= _MAX_PORT:
        raise CannotConnect(
            f"The URL of {server} names port {parsed.port}, which does not exist.",
            hint="Correct its url.",
        )
    return named_area(url) is Area.LOOPBACK


def _refuse_encoded(server: str, response: httpx2.Response) -> None:
    encoding = response.headers.get("content-encoding", PLAIN).strip().lower()
    if encoding not in ("", PLAIN):
        raise NotMcp(
            f"{server} answered in the encoding {encoding[:_SHOWN_CHARS]!r}, though it was asked "
            f"for {PLAIN}.",
            hint="Its server, or a proxy before it, has to honour Accept-Encoding.",
        )


@contextmanager
def _our_errors(server: str) -> Generator[None]:
    try:
        yield
    except _NO_CONNECTION as error:
        raise unreachable(server, error) from None
    except _BROKEN as error:
        raise BrokenOff(f"The connection to {server} broke: {said(error)}.") from None


def _encoded(headers: Mapping[str, str]) -> dict[bytes, bytes]:
    return {name.encode(): value.encode() for name, value in headers.items()}


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError:
        return location


def _with_user(url: str, location: str) -> str:
    """The user of the URL goes with us."""
    return str(httpx2.URL(location).copy_with(userinfo=httpx2.URL(url).userinfo))
