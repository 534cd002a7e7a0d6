"""IP addresses and address ranges."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from bayplan.cel.errors import CelError, no_such_overload
from bayplan.cel.types.declarations import Overload, function, method
from bayplan.cel.types.types import BOOL, CIDR, INT, IP, STRING
from bayplan.cel.values.addresses import parse_address, parse_prefix
from bayplan.cel.values.go_format import quote
from bayplan.cel.values.values import Cidr, Ip

Address = IPv4Address | IPv6Address

_BROADCAST = IPv4Address("255.255.255.255")


def _read_ip(text: str) -> Ip:
    try:
        address, zone = parse_address(text)
    except ValueError as error:
        raise ValueError(f"IP Address {quote(text)} parse error during conversion from string: {error}") from None
    if zone:
        raise ValueError(f"IP address {quote(text)} with zone value is not allowed")
    _refuse_mapped(address, text)
    return Ip(address)


def _read_cidr(text: str) -> Cidr:
    try:
        address, bits = parse_prefix(text)
    except ValueError as error:
        raise ValueError(f"network address parse error during conversion from string: {error}") from None
    _refuse_mapped(address, text)
    return Cidr(address, bits)


def _refuse_mapped(address: Address, text: str) -> None:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {quote(text)} is not allowed")


def to_ip(text: str) -> Ip:
    try:
        return _read_ip(text)
    except ValueError as error:
        raise CelError(str(error)) from None


def to_cidr(text: str) -> Cidr:
    try:
        return _read_cidr(text)
    except ValueError as error:
        raise CelError(f"network address parse error during conversion from string: {error}") from None


def is_ip(text: str) -> bool:
    try:
        _read_ip(text)
    except ValueError:
        return False
    return True


def is_cidr(text: str) -> bool:
    try:
        _read_cidr(text)
    except ValueError:
        return False
    return True


def is_canonical(text: str) -> bool:
    return str(to_ip(text).address) == text


def _mask(range_: Cidr) -> int:
    width = range_.address.max_prefixlen
    return ((1 << range_.bits) - 1) << (width - range_.bits)


def masked(range_: Cidr) -> Cidr:
    return Cidr(type(range_.address)(int(range_.address) & _mask(range_)), range_.bits)


def contains_ip(range_: Cidr, ip: Ip) -> bool:
    if range_.address.version != ip.address.version:
        return False
    return (int(range_.address) ^ int(ip.address)) & _mask(range_) == 0


def contains_ip_text(range_: Cidr, text: str) -> bool:
    try:
        ip = _read_ip(text)
    except ValueError:
        # cel-go loses the reason here.
        raise no_such_overload() from None
    return contains_ip(range_, ip)


def contains_cidr(outer: Cidr, inner: Cidr) -> bool:
    return outer.bits <= inner.bits and contains_ip(outer, Ip(inner.address))


def _is_loopback(a: Address) -> bool:
    return a.is_loopback if a.version == 6 else int(a) >> 24 == 127


def _is_link_local_multicast(a: Address) -> bool:
    return int(a) >> 112 & 0xFF0F == 0xFF02 if a.version == 6 else int(a) >> 8 == 0xE00000


def _is_link_local(a: Address) -> bool:
    return int(a) >> 118 == 0xFE80 >> 6 if a.version == 6 else int(a) >> 16 == 0xA9FE


def _is_global_unicast(a: Address) -> bool:
    """Any address that is in no other category; private ranges count."""
    excluded = a.is_unspecified or _is_loopback(a) or a.is_multicast or _is_link_local(a)
    return not excluded and a != _BROADCAST


OVERLOADS: list[Overload] = [
    function("ip", "string_to_ip", (STRING,), IP, to_ip),
    method("family", "ip_family", (IP,), INT, lambda ip: ip.address.version),
    function("ip.isCanonical", "ip_is_canonical", (STRING,), BOOL, is_canonical),
    method("isUnspecified", "ip_is_unspecified", (IP,), BOOL, lambda ip: ip.address.is_unspecified),
    method("isLoopback", "ip_is_loopback", (IP,), BOOL, lambda ip: _is_loopback(ip.address)),
    method(
        "isLinkLocalMulticast",
        "ip_is_link_local_multicast",
        (IP,),
        BOOL,
        lambda ip: _is_link_local_multicast(ip.address),
    ),
    method("isLinkLocalUnicast", "ip_is_link_local_unicast", (IP,), BOOL, lambda ip: _is_link_local(ip.address)),
    method("isGlobalUnicast", "ip_is_global_unicast", (IP,), BOOL, lambda ip: _is_global_unicast(ip.address)),
    function("isIP", "is_ip", (STRING,), BOOL, is_ip),
    function("string", "ip_to_string", (IP,), STRING, lambda ip: str(ip.address)),
    function("cidr", "string_to_cidr", (STRING,), CIDR, to_cidr),
    method("containsIP", "cidr_contains_ip_string", (CIDR, STRING), BOOL, contains_ip_text),
    method("containsIP", "cidr_contains_ip_ip", (CIDR, IP), BOOL, contains_ip),
    method(
        "containsCIDR", "cidr_contains_cidr_string", (CIDR, STRING), BOOL, lambda c, s: contains_cidr(c, to_cidr(s))
    ),
    method("containsCIDR", "cidr_contains_cidr", (CIDR, CIDR), BOOL, contains_cidr),
    method("ip", "cidr_ip", (CIDR,), IP, lambda c: Ip(c.address)),
    method("prefixLength", "cidr_prefix_length", (CIDR,), INT, lambda c: c.bits),
    method("masked", "cidr_masked", (CIDR,), CIDR, masked),
    function("isCIDR", "is_cidr", (STRING,), BOOL, is_cidr),
    function("string", "cidr_to_string", (CIDR,), STRING, lambda c: f"{c.address}/{c.bits}"),
]
