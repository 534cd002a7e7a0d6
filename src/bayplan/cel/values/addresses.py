"""Parses IP addresses and ranges.

It accepts exactly the syntax of Go's netip (no leading zeros, no partial addresses), with its errors.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from bayplan.cel.values.go_format import quote

_BITS = re.compile("0|[1-9][0-9]{0,17}", re.ASCII)
_HEX = frozenset("0123456789abcdefABCDEF")


def parse_address(text: str) -> tuple[IPv4Address | IPv6Address, str]:
    """The address and its zone; raises `ValueError`."""
    for c in text:
        if c == ".":
            return IPv4Address(_ipv4_fields(text, text)), ""
        if c == ":":
            return _Ipv6(text).parse()
        if c == "%":
            raise _parse_error(text, "missing IPv6 address")
    raise _parse_error(text, "unable to parse IP")


def parse_prefix(text: str) -> tuple[IPv4Address | IPv6Address, int]:
    head, slash, digits = text.rpartition("/")
    if not slash:
        raise _bad_prefix(text, "no '/'")
    try:
        address, zone = parse_address(head)
    except ValueError as error:
        raise _bad_prefix(text, str(error)) from None
    if zone:
        raise _bad_prefix(text, "IPv6 zones cannot be present in a prefix")
    if not _BITS.fullmatch(digits):
        raise _bad_prefix(text, f"bad bits after slash: {quote(digits)}")
    if int(digits) > address.max_prefixlen:
        raise _bad_prefix(text, "prefix length out of range")
    return address, int(digits)


def _parse_error(text: str, reason: str, at: str = "") -> ValueError:
    place = f" (at {quote(at)})" if at else ""
    return ValueError(f"ParseAddr({quote(text)}): {reason}{place}")


def _bad_prefix(text: str, reason: str) -> ValueError:
    return ValueError(f"netip.ParsePrefix({quote(text)}): {reason}")


def _ipv4_fields(whole: str, text: str) -> bytes:
    fields, value, digits = bytearray(), 0, 0
    for i, c in enumerate(text):
        if c in "0123456789":
            if digits == 1 and value == 0:
                raise _parse_error(whole, "IPv4 field has octet with leading zero")
            value, digits = value * 10 + int(c), digits + 1
            if value > 255:
                raise _parse_error(whole, "IPv4 field has value >255")
        elif c == ".":
            if i == 0 or i == len(text) - 1 or text[i - 1] == ".":
                raise _parse_error(whole, "IPv4 field must have at least one digit", text[i:])
            if len(fields) == 3:
                raise _parse_error(whole, "IPv4 address too long")
            fields.append(value)
            value, digits = 0, 0
        else:
            raise _parse_error(whole, "unexpected character", text[i:])
    if len(fields) < 3:
        raise _parse_error(whole, "IPv4 address too short")
    fields.append(value)
    return bytes(fields)


class _Ipv6:
    """Groups before and after the `::`, read from left to right."""

    def __init__(self, text: str) -> None:
        self._whole = text
        self._rest, percent, self._zone = text.partition("%")
        if percent and not self._zone:
            raise _parse_error(text, "zone must be a non-empty string")
        self._bytes = bytearray()
        self._gap = -1

    def parse(self) -> tuple[IPv6Address, str]:
        if self._rest.startswith("::"):
            self._gap, self._rest = 0, self._rest[2:]
        more = bool(self._rest) or self._gap < 0
        while more and len(self._bytes) < 16:
            more = self._group()
        if self._rest:
            raise _parse_error(self._whole, "trailing garbage after address", self._rest)
        return IPv6Address(self._to_bytes()), self._zone

    def _to_bytes(self) -> bytes:
        missing = 16 - len(self._bytes)
        if missing and self._gap < 0:
            raise _parse_error(self._whole, "address string too short")
        if not missing and self._gap >= 0:
            raise _parse_error(self._whole, "the :: must expand to at least one field of zeros")
        gap = max(self._gap, 0)
        return bytes(self._bytes[:gap]) + bytes(missing) + bytes(self._bytes[gap:])

    def _group(self) -> bool:
        """Read one group and the colon after it; False at the end of the address."""
        rest = self._rest
        length = next((i for i, c in enumerate(rest) if c not in _HEX), len(rest))
        if length > 4:
            raise _parse_error(self._whole, "each group must have 4 or less digits", rest)
        if length == 0:
            raise _parse_error(self._whole, "each colon-separated field must have at least one digit", rest)
        if rest[length : length + 1] == ".":
            self._parse_embedded_ipv4()
            return False
        self._bytes += int(rest[:length], 16).to_bytes(2, "big")
        self._rest = rest[length:]
        return bool(self._rest) and self._colon()

    def _parse_embedded_ipv4(self) -> None:
        if self._gap < 0 and len(self._bytes) != 12:
            message = "embedded IPv4 address must replace the final 2 fields of the address"
            raise _parse_error(self._whole, message, self._rest)
        if len(self._bytes) > 12:
            message = "too many hex fields to fit an embedded IPv4 at the end of the address"
            raise _parse_error(self._whole, message, self._rest)
        self._bytes += _ipv4_fields(self._whole, self._rest)
        self._rest = ""

    def _colon(self) -> bool:
        if self._rest[0] != ":":
            raise _parse_error(self._whole, "unexpected character, want colon", self._rest)
        if len(self._rest) == 1:
            raise _parse_error(self._whole, "colon must be followed by more characters", self._rest)
        self._rest = self._rest[1:]
        if self._rest[0] != ":":
            return True
        if self._gap >= 0:
            raise _parse_error(self._whole, "multiple :: in address", self._rest)
        self._gap, self._rest = len(self._bytes), self._rest[1:]
        return bool(self._rest)
