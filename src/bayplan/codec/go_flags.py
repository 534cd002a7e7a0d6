"""Flag values in Go's notation, with the errors of Go's libraries.

Called for every flag on the command line. Each function takes a text and returns a value, or raises `ValueError` with
the message of the library that kube-scheduler uses.
"""

from __future__ import annotations

import csv
import ipaddress
import re

from bayplan.codec.go_duration import DurationError, GoDuration, parse_duration
from bayplan.codec.go_text import quote

_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})
_INTEGER = re.compile(r"[+-]?[0-9]+")


def go_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise _parse_error("ParseBool", text)


def go_int(text: str, bits: int = 64) -> int:
    return _integer("ParseInt", text, -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def go_int32(text: str) -> int:
    return go_int(text, 32)


def go_level(text: str) -> int:
    """A log verbosity: an unsigned 32-bit integer."""
    return _integer("ParseUint", text, 0, (1 << 32) - 1)


def go_float32(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise _parse_error("ParseFloat", text) from None
    if "_" in text or text != text.strip():
        raise _parse_error("ParseFloat", text)
    return value


def go_duration(text: str) -> GoDuration:
    try:
        return parse_duration(text)
    except DurationError as fault:
        raise ValueError(str(fault)) from None


def go_ip(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text.strip()))
    except ValueError:
        raise ValueError(f"failed to parse IP: {quote(text)}") from None


def go_strings(text: str) -> tuple[str, ...]:
    """A list separated by commas. A value that contains a comma is quoted."""
    if not text:
        return ()
    try:
        return tuple(next(csv.reader([text], strict=True)))
    except csv.Error as fault:
        raise ValueError(f"parse error: {fault}") from None


def go_map(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs `key=value` separated by commas. A text with a single `=` is one pair, even if it contains commas."""
    pairs = []
    for each in (text.strip('"'),) if text.count("=") == 1 else go_strings(text):
        key, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"{each} must be formatted as key=value")
        pairs.append((key, value))
    return tuple(pairs)


def go_vmodule(text: str) -> str:
    """Verbosities of single files: `pattern=N` separated by commas."""
    for each in filter(None, text.split(",")):
        pattern, equals, level = each.partition("=")
        if not equals or not pattern or not level:
            raise ValueError(f"{quote(each)} does not have the pattern=N format")
        go_level(level)
    return text


def _integer(function: str, text: str, low: int, high: int) -> int:
    if not _INTEGER.fullmatch(text) or (low == 0 and text[0] in "+-"):
        raise _parse_error(function, text)
    value = int(text)
    if not low <= value <= high:
        raise ValueError(f"strconv.{function}: parsing {quote(text)}: value out of range")
    return value


def _parse_error(function: str, text: str) -> ValueError:
    return ValueError(f"strconv.{function}: parsing {quote(text)}: invalid syntax")
