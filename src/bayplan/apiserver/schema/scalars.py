"""Canonical forms of quantities, times and base64, and Go's errors for invalid ones.

Called for every such value of every object that is written. Values repeat, so results are cached; a cached one costs a
dictionary lookup.
"""

from __future__ import annotations

import base64
import binascii
import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from bayplan.codec.go_text import quote
from bayplan.codec.quantity import FORMAT_ERROR, QuantityError, parse_quantity

_ALPHABET = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
_LAYOUT = "2006-01-02T15:04:05Z07:00"
_MICRO_LAYOUT = "2006-01-02T15:04:05.000000Z07:00"


class ScalarError(ValueError):
    """A string is not valid for its field. The message is Go's."""


@lru_cache(maxsize=16_384)
def canonical_quantity(value: str | int | float) -> str:
    """For example `0.5` is `500m` and 1024Mi is `1Gi`."""
    if isinstance(value, str) and value != value.strip():
        raise ScalarError(FORMAT_ERROR)
    try:
        return str(parse_quantity(value))
    except QuantityError as error:
        raise ScalarError(error.reason) from None


@lru_cache(maxsize=4096)
def canonical_time(text: str) -> str:
    """RFC 3339 in UTC, whole seconds."""
    return _parse(text, _LAYOUT).strftime("%Y-%m-%dT%H:%M:%SZ")


def canonical_micro_time(text: str) -> str:
    """RFC 3339 in UTC with six decimals, which are required.

    No two events have the same time, but many share the second, so only the seconds are cached.
    """
    whole = _PLAIN_MICRO.fullmatch(text)
    if whole is not None:
        with suppress(ScalarError):
            canonical_time(f"{whole[1]}Z")
            return text
    return _parse(text, _MICRO_LAYOUT).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


# The elements of Go's layouts: the text that errors show, the pattern, the bounds and their name.
_ELEMENTS = (
    ("2006", r"\d{4}", (0, 9999), "year"),
    ("-", "-", None, ""),
    ("01", r"\d{2}", (1, 12), "month"),
    ("-", "-", None, ""),
    ("02", r"\d{2}", (1, 31), "day"),
    ("T", "T", None, ""),
    ("15", r"\d{1,2}", (0, 23), "hour"),
    (":", ":", None, ""),
    ("04", r"\d{2}", (0, 59), "minute"),
    (":", ":", None, ""),
    ("05", r"\d{2}", (0, 59), "second"),
)
_PLAIN_MICRO = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{6}Z", re.ASCII)
_FRACTION = re.compile(r"[.,]\d+")
_ZONE = re.compile(r"Z|[+-]\d{2}:\d{2}")


def _parse(text: str, layout: str) -> datetime:
    rest, found = text, []
    for shown, pattern, bounds, name in _ELEMENTS:
        match = re.match(pattern, rest, re.ASCII)
        if match is None:
            raise _time_error(text, layout, f": cannot parse {quote(rest)} as {quote(shown)}")
        rest = rest[match.end() :]
        if bounds is not None:
            number = int(match.group())
            if not bounds[0] <= number <= bounds[1]:
                raise _time_error(text, layout, f": {name} out of range")
            found.append(number)
    fraction = _FRACTION.match(rest)
    if layout is _MICRO_LAYOUT and (fraction is None or len(fraction.group()) != 7):
        raise _time_error(text, layout, f": cannot parse {quote(rest)} as {quote('.000000')}")
    rest = rest[fraction.end() :] if fraction else rest
    zone = _ZONE.match(rest)
    if zone is None:
        raise _time_error(text, layout, f": cannot parse {quote(rest)} as {quote('Z07:00')}")
    if zone.end() < len(rest):
        raise _time_error(text, layout, f": extra text: {quote(rest[zone.end() :])}")
    return _to_datetime(found, fraction.group()[1:7] if fraction else "0", zone.group(), text, layout)


def _to_datetime(found: list[int], fraction: str, zone: str, text: str, layout: str) -> datetime:
    try:
        moment = datetime(*found[:6], int(fraction.ljust(6, "0")), tzinfo=UTC)  # type: ignore[arg-type,misc]
        if zone != "Z":
            ahead = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:6]))
            moment -= ahead if zone[0] == "+" else -ahead
    except (ValueError, OverflowError):
        raise _time_error(text, layout, ": day out of range") from None
    return moment


def _time_error(text: str, layout: str, why: str) -> ScalarError:
    if why.endswith("out of range"):
        return ScalarError(f"parsing time {quote(text)}{why}")
    return ScalarError(f"parsing time {quote(text)} as {quote(layout)}{why}")


def canonical_base64(text: str) -> str:
    """The same bytes as Go encodes them. Line breaks are allowed in the input."""
    plain = text.replace("\n", "").replace("\r", "")
    try:
        decoded = base64.b64decode(plain, validate=True)
    except (binascii.Error, ValueError):
        raise ScalarError(f"illegal base64 data at input byte {_corrupt_position(text)}") from None
    return base64.b64encode(decoded).decode()


def _corrupt_position(text: str) -> int:
    """The position that Go reports: of the illegal byte, the end of incomplete padding, or the last group of four."""
    seen = start = 0
    for at, char in enumerate(text):
        if char in "\r\n":
            continue
        if char in _ALPHABET:
            start = at if seen % 4 == 0 else start
            seen += 1
            continue
        if char != "=" or seen % 4 < 2:
            return at
        rest = text[at + 1 :].lstrip("\r\n")
        if seen % 4 == 2:
            if not rest:
                return len(text)
            if rest[0] != "=":
                return at
            return len(text) - len(rest) + 1
        return len(text) - len(rest)
    return start
