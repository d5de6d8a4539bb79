"""The target of a server: what counts as the same command line or URL, and private addresses.

What a person decided holds for the target. Another name, or another spelling of the same address,
is the same target.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import PurePath
from posixpath import normpath
from typing import Any
from urllib.parse import unquote, urldefrag, urlsplit

from emceepee_stdio.config.server import ServerConfig
from emceepee_stdio.trust.approval_request import main_word, words_in

# Where a URL leads: to this machine, into the network around it, or out into the world.
#
# Judged by the address, never by the name, because a name may lead anywhere, and elsewhere the next
# time that it is looked up.


AddressRule = Callable[[str], str | None]

_NAT64 = ip_network("64:ff9b::/96")
_IPV4_MASK = 0xFFFF_FFFF  # a /96 prefix leaves the last 32 bits for the IPv4 address
# All global unicast addresses; the rest is reserved, or embeds an IPv4 address in another way.
_GLOBAL_UNICAST = ip_network("2000::/3")


class Area(StrEnum):
    """How far away an address is."""

    LOOPBACK = "this machine"
    NEAR = "a private network"
    PUBLIC = "the internet"


def area_of(address: str) -> Area:
    """Of an address in digits; whatever is not plainly public counts as near."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return Area.NEAR
    found = _embedded(found)
    if found.is_loopback:
        return Area.LOOPBACK
    is_public = found.is_global and not found.is_multicast
    if isinstance(found, IPv6Address) and found not in _GLOBAL_UNICAST:
        is_public = False
    return Area.PUBLIC if is_public else Area.NEAR


def named_area(url: str) -> Area | None:
    """What the URL says by itself; None when its host is a name that has to be looked up."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return Area.LOOPBACK
    try:
        ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return area_of(host)


def only(*areas: Area) -> AddressRule:
    """A rule for the addresses that a connection really comes to: the problem with one, or None."""

    def problem(address: str) -> str | None:
        found = area_of(address)
        if found in areas:
            return None
        return f"it leads to {address}, an address of {found.value}"

    return problem


def watched_dial(
    host: str, rule: AddressRule, *, refused: Callable[[str], Exception]
) -> Callable[[str, Any], Awaitable[None]]:
    """The `trace` extension of a request of httpx: judges the address that was connected to.

    Before a byte is sent there. `host` is what the request names, as it is dialled. Made for one
    request, which dials one connection at a time; dials of several requests overlap.
    """
    dials_proxy = False

    async def look(event: str, info: Any) -> None:
        nonlocal dials_proxy
        if event == "connection.connect_tcp.started":
            dials_proxy = str(info["host"]).strip("[]") != host
        if event != "connection.connect_tcp.complete" or dials_proxy:
            return  # a proxy of the environment finds the way by itself
        stream = info["return_value"]
        problem = rule(str(stream.get_extra_info("server_addr")[0]))
        if problem is not None:
            await stream.aclose()
            raise refused(problem)

    return look


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that an IPv6 address embeds, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & _IPV4_MASK)
    return address


_DEFAULT_PORTS = {"http": 80, "https": 443}
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")


def canonical_url(url: str) -> str:
    """The same for every spelling of an address; one that cannot be read stays as it is."""
    try:
        parts = urlsplit(url.strip())
        host, port = (parts.hostname or "").rstrip("."), parts.port
        host = host if host.isascii() else host.encode("idna").decode()
    except (ValueError, UnicodeError):
        return url
    scheme = parts.scheme.lower()
    user = parts.netloc.rpartition("@")[0]
    place = f"[{host}]" if ":" in host else host
    if port is not None and port != _DEFAULT_PORTS.get(scheme):
        place = f"{place}:{port}"
    query = f"?{_unescaped(parts.query)}" if parts.query else ""
    return f"{scheme}://{f'{user}@' if user else ''}{place}{_unescaped(parts.path) or '/'}{query}"


def target_id(config: ServerConfig, key: bytes) -> str:
    """The same for the same target, and no other."""
    return _hash(config, None if config.url is None else canonical_url(config.url), key)


def target_id_of_version_1(config: ServerConfig, key: bytes) -> str:
    """As it was when an address counted as it was written."""
    return _hash(config, config.url and urldefrag(config.url).url, key)


def leads_to_same(one: ServerConfig, other: ServerConfig) -> bool:
    """Whether two servers are likely the same one: for what must not be evaded by a spelling.

    More is the same here than by `target_id`: what a restriction reaches in addition is the lesser
    evil.
    """
    return _place(one) == _place(other)


def may_be_same(wanted: ServerConfig, known: ServerConfig) -> bool:
    """Whether a server that is wanted may be a known one in another spelling.

    As `env X PROGRAM`, as program text of a shell, with one more argument, or at another path of
    its host. Far more is the same here: it is what a person is told of, and not what is decided.
    """
    if known.url is None:
        argv = [known.command or "", *known.args]
        return main_word(argv) in words_in([wanted.command or "", *wanted.args])
    host = _place(known)[1:3]
    if wanted.url is not None:
        return _place(wanted)[1:3] == host
    return host[0] in words_in(wanted.args)


# One server often offers both transports, each at the end of the same address.
_TRANSPORT_PATHS = re.compile(r"(?:/(?:mcp|sse|messages?))?/*$")
_PARAMETERS = re.compile(";[^/]*")  # of a part of a path: many servers do not look at them


def _place(config: ServerConfig) -> Sequence[str]:
    """The program by its name and its arguments; of an address the host, the port and the path."""
    if config.url is None:
        return [PurePath(config.command or "").name, *config.args]
    parts = urlsplit(canonical_url(config.url))
    host = "localhost" if named_area(config.url) is Area.LOOPBACK else parts.hostname or ""
    port = "" if parts.port in {None, *_DEFAULT_PORTS.values()} else str(parts.port)
    path = _PARAMETERS.sub("", unquote(parts.path)).replace("\\", "/")
    path = normpath(f"/{path}").lstrip("/").casefold()
    return ["", host, port, _TRANSPORT_PATHS.sub("", f"/{path}")]


def _hash(config: ServerConfig, url: str | None, key: bytes) -> str:
    argv = [config.command or "", *config.args] if config.url is None else []
    text = json.dumps([argv, url], separators=(",", ":"))
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def _unescaped(text: str) -> str:
    """Escapes that stand for plain letters are those letters; the others are upper-case."""

    def spelt(match: re.Match[str]) -> str:
        char = chr(int(match[1], 16))
        return char if char in _UNRESERVED else match[0].upper()

    return _ESCAPED.sub(spelt, text)
