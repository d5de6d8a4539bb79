from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emceepee_stdio.trust.targets import Area, area_of, named_area, only


@pytest.mark.parametrize("address", ["127.0.0.1", "127.255.255.254", "::1", "::1%lo"])
def test_this_machine_is_known_by_its_addresses(address: str):
    assert area_of(address) is Area.LOOPBACK


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:4700::1111"])
def test_the_internet_is_what_is_plainly_public(address: str):
    assert area_of(address) is Area.PUBLIC


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "0.0.0.0",
        "0.1.2.3",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "fd12:3456::1",
        "ff02::1",
        "ff0e::1",
        "2001:db8::1",
        "2001::1",
        "64:ff9b:1::1",
        "100::1",
        "5f00::1",
    ],
)
def test_private_and_special_addresses_are_near(address: str):
    assert area_of(address) is Area.NEAR


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "0x7f000001", "1.2.3.4.5", "::g"])
def test_what_is_no_address_in_digits_counts_as_near(text: str):
    assert area_of(text) is Area.NEAR


def _mapped(inner: IPv4Address) -> IPv6Address:
    return IPv6Address((0xFFFF << 32) | int(inner))


def _sixtofour(inner: IPv4Address) -> IPv6Address:
    return IPv6Address((0x2002 << 112) | (int(inner) << 80) | 1)


def _nat64(inner: IPv4Address) -> IPv6Address:
    return IPv6Address(int(IPv6Address("64:ff9b::")) | int(inner))


@pytest.mark.parametrize("dress", [_mapped, _sixtofour, _nat64])
@given(inner=st.integers(0, 2**32 - 1).map(IPv4Address))
def test_an_ipv4_address_inside_ipv6_counts_as_itself(dress, inner: IPv4Address):
    assert area_of(str(dress(inner))) is area_of(str(inner))


@pytest.mark.parametrize("address", ["::127.0.0.1", "::10.0.0.1", "::ffff:0:127.0.0.1"])
def test_ipv6_forms_that_are_out_of_use_are_never_public(address: str):
    assert area_of(address) is not Area.PUBLIC


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_no_ipv6_address_is_public_that_the_library_calls_otherwise(address: IPv6Address):
    if area_of(str(address)) is Area.PUBLIC and not address.ipv4_mapped:
        assert address.is_global
        assert not address.is_multicast


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8080/mcp",
        "http://LocalHost/",
        "http://localhost./",
        "https://app.localhost/",
        "http://127.0.0.1/",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]/",
    ],
)
def test_a_url_can_say_by_itself_that_it_leads_to_this_machine(url: str):
    assert named_area(url) is Area.LOOPBACK


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/",
        "https://localhost.example.com/",
        "https://notlocalhost/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
    ],
)
def test_whatever_is_no_plain_address_has_to_be_looked_up(url: str):
    assert named_area(url) is None


def test_an_address_in_a_url_says_where_it_is():
    assert named_area("http://10.1.2.3/") is Area.NEAR
    assert named_area("https://[2606:4700::1111]/") is Area.PUBLIC


def test_a_rule_names_the_address_that_breaks_it():
    rule = only(Area.PUBLIC)
    assert rule("93.184.216.34") is None
    assert rule("127.0.0.1") == "it leads to 127.0.0.1, an address of this machine"
    assert rule("10.0.0.1") == "it leads to 10.0.0.1, an address of a private network"
    assert only(Area.LOOPBACK)("::1") is None
    assert "the internet" in str(only(Area.LOOPBACK)("8.8.8.8"))
