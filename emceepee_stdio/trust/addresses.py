"""Where a URL leads: to this machine, into the network around it, or out into the world.

Judged by the address, never by the name, because a name may lead anywhere, and elsewhere the next
time that it is looked up.
"""

from collections.abc import Callable
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit

__all__ = ["AddressRule", "Area", "area_of", "named_area", "only"]

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


def only(area: Area) -> AddressRule:
    """A rule for the addresses that a connection really comes to: the problem with one, or None."""

    def problem(address: str) -> str | None:
        found = area_of(address)
        if found is area:
            return None
        return f"it leads to {address}, an address of {found.value}"

    return problem


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
