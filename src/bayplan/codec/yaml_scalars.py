"""Resolves YAML scalars: string, number, boolean or null.

The rules are those of the YAML 1.1 reader that Kubernetes uses, which differ from PyYAML's and from YAML 1.2's. Called
for every scalar; cost: a dictionary lookup and at most two regular expressions.
"""

from __future__ import annotations

import base64
import math
import re
from datetime import datetime
from decimal import Decimal
from typing import Any

from bayplan.errors import ObjectError

_RESOLVED_TAGS = frozenset({"!!str", "!!bool", "!!int", "!!float", "!!null", "!!timestamp"})

_TRUE_WORDS = ("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON")
_FALSE_WORDS = ("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF")
_KEYWORDS: dict[str, Any] = dict.fromkeys(_TRUE_WORDS, True) | dict.fromkeys(_FALSE_WORDS, False)
_KEYWORDS |= dict.fromkeys(("", "~", "null", "Null", "NULL"))
_KEYWORDS |= dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf)
_KEYWORDS |= dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf) | dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan)

_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_STRAY_UNDERSCORE = re.compile(r"(?<![0-9])_|_(?![0-9])")
_NUMERIC_START = frozenset("+-.0123456789")
_SHORT_FLOAT_DIGITS = 9
_DATE = r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
_TIME = r"([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:[.,][0-9]+)?"
_ZONE = r"(?:Z|[+-]([0-9]{2}):([0-9]{2}))"
_TIMESTAMPS = tuple(map(re.compile, (_DATE, f"{_DATE} {_TIME}", f"{_DATE}[Tt]{_TIME}{_ZONE}")))

_DECIMAL_DIGITS = 20
"""No 64-bit number has more. Longer ones are not parsed, as the interpreter refuses thousands of digits."""

# Beyond this Go writes a whole float with an exponent, so that it does not read back as an integer.
_WHOLE_FLOAT_LIMIT = 1e21


def json_scalar(text: str, tag: str, *, plain: bool) -> Any:
    """The JSON value of a scalar, where a whole float has no decimal point. Parameters as in `resolve_scalar`."""
    _, value = resolve_scalar(text, tag, plain=plain)
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_FLOAT_LIMIT:
        # Via the shortest digits: Go writes those, not the exact value of the float.
        return int(Decimal(repr(value)))
    return value


def resolve_scalar(text: str, tag: str, *, plain: bool) -> tuple[str, Any]:
    """Tag and value of a scalar with this tag ("" for none); `plain`: the scalar has no quotes."""
    if tag == "!!binary":
        return tag, _binary(text)
    if tag == "!!str" or (not tag and not plain):
        return "!!str", text
    if tag and tag not in _RESOLVED_TAGS:
        return tag, text
    if tag in ("", "!!timestamp") and _is_timestamp(text):
        return "!!timestamp", text
    value = _resolve(text)
    found = _tag(value)
    if tag in ("", found):
        return found, value
    if tag == "!!float" and isinstance(value, int) and found == "!!int" and value < 2**63:
        return tag, float(value)
    raise ObjectError(f"yaml: cannot decode {found} `{text}` as a {tag}")


def _is_timestamp(text: str) -> bool:
    """Whether Go takes the text for a date. Its value is a string all the same, but errors call it a timestamp."""
    shapes = (form.fullmatch(text) for form in _TIMESTAMPS) if text[4:5] == "-" else ()
    shape = next((found for found in shapes if found), None)
    if shape is None:
        return False
    numbers = [int(group or 0) for group in shape.groups()] + [0] * 5
    year, month, day, hour, minute, second, zone_hours, zone_minutes = numbers[:8]
    try:
        # A check of ranges only. The year 0 is a leap year, which Python does not have.
        datetime(year or 4, month, day, hour, minute, second)  # noqa: DTZ001
    except ValueError:
        return False
    return zone_hours <= 24 and zone_minutes <= 60


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except ValueError:  # not base64, or not even ASCII
        raise ObjectError("yaml: !!binary value contains invalid base64 data") from None


def _resolve(text: str) -> Any:
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    return _number(text) if text[0] in _NUMERIC_START else text


def _number(text: str) -> int | float | str:
    if text[0] == "." and _STRAY_UNDERSCORE.search(text):
        # Only here must underscores be between digits; elsewhere they are allowed anywhere.
        return text
    digits = text.replace("_", "")
    if _INTEGER.match(digits) and (value := _integer(digits)) is not None and -(2**63) <= value < 2**64:
        return value
    if _FLOAT.match(digits):
        number = float(digits)
        if math.isfinite(number):
            return number
    return text


def _integer(digits: str) -> int | None:
    body = digits.lstrip("+-").lower()
    sign = -1 if digits[0] == "-" else 1
    if body[:2] in ("0x", "0b", "0o"):
        return sign * int(body, 0)
    if body[0] == "0":
        return sign * int(body, 8)
    return sign * int(body) if len(body) <= _DECIMAL_DIGITS else None


def _tag(value: Any) -> str:
    if value is None:
        return "!!null"
    return {bool: "!!bool", int: "!!int", float: "!!float"}.get(type(value), "!!str")


def key_text(key: Any) -> str:
    """The JSON key for a YAML key."""
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int):
        return str(key)
    if not math.isfinite(key):
        return ".nan" if math.isnan(key) else (".inf" if key > 0 else "-.inf")
    return f"{key:.{_SHORT_FLOAT_DIGITS}g}"
