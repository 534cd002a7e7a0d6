"""Parsing and formatting as in Go.

CEL's conversions are Go's: number syntax, durations, RFC 3339 times and the shortest decimal form of a double. Parsers
raise `ValueError`.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NANOS = 1_000_000_000
_DAYS_OF_2000_YEARS = 730_485
_FRACTION_DIGITS = 18
_CYCLE_YEARS, _CYCLE_S = 400, 146_097 * 86_400
_UNITS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": NANOS, "m": 60 * NANOS, "h": 3600 * NANOS}
_DURATION_PART = re.compile(r"([0-9]*)(?:\.([0-9]*))?([^0-9.]+)")
_RFC3339 = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?(Z|[+-][0-9]{2}:[0-9]{2})"
)
_FLOAT = re.compile(
    r"[+-]?(?:inf(?:inity)?|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)|nan", re.IGNORECASE | re.ASCII
)
_HEX_FLOAT = re.compile(r"[+-]?0x(?:[0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)p[+-]?[0-9]+", re.IGNORECASE)
_MAX_INT64 = (1 << 63) - 1


def parse_int(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def parse_uint(text: str) -> int:
    if not re.fullmatch(r"[0-9]+", text, re.ASCII):
        raise ValueError(text)
    return int(text)


def parse_float(text: str) -> float:
    if _HEX_FLOAT.fullmatch(text):
        value = float.fromhex(text)
    elif _FLOAT.fullmatch(text):
        value = float(text)
    else:
        raise ValueError(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(text)
    return value


def parse_bool(text: str) -> bool:
    if text in ("1", "t", "T", "true", "TRUE", "True"):
        return True
    if text in ("0", "f", "F", "false", "FALSE", "False"):
        return False
    raise ValueError(text)


def parse_duration(text: str) -> int:
    """Nanoseconds of a text such as `1h2m3.5s`."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text[1:] if text[:1] == "+" else text)
    if rest == "0":
        return 0
    total, at = 0, 0
    while at < len(rest):
        part = _DURATION_PART.match(rest, at)
        if part is None or part[3] not in _UNITS or not (part[1] or part[2]):
            raise ValueError(text)
        unit = _UNITS[part[3]]
        fraction = (part[2] or "0")[:_FRACTION_DIGITS]
        total += int(part[1] or "0") * unit + int(float(int(fraction)) * (unit / 10 ** len(fraction)))
        at = part.end()
    if at == 0 or total > _MAX_INT64 + (sign < 0):
        raise ValueError(text)
    return sign * total


def format_duration(nanos: int) -> str:
    """Seconds with a trailing `s`, as in CEL's string()."""
    whole = abs(nanos) // NANOS * (1 if nanos >= 0 else -1)
    rest = nanos - whole * NANOS
    return format_fixed(float(whole) + rest / 1e9) + "s"


def parse_time(text: str) -> tuple[int, int]:
    """Nanoseconds since 1970, and the offset in the text in seconds."""
    found = _RFC3339.fullmatch(text)
    if found is None:
        raise ValueError(text)
    year, month, day, hour, minute, second = (int(g) for g in found.groups()[:6])
    nanos = int((found[7] or "").ljust(9, "0")[:9])
    offset = _offset(found[8])
    # datetime has no year 0; 2000 has the same calendar.
    at = datetime(year or 2000, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    days = at.days if year else at.days - _DAYS_OF_2000_YEARS
    return (days * 86400 + at.seconds - offset) * NANOS + nanos, offset


def _offset(zone: str) -> int:
    if zone == "Z":
        return 0
    hours, minutes = int(zone[1:3]), int(zone[4:6])
    if hours > 24 or minutes >= 60:
        raise ValueError(zone)
    return (hours * 60 + minutes) * (60 if zone[0] == "+" else -60)


def civil_time(nanos: int, offset_s: int = 0) -> tuple[int, datetime]:
    """The year and the wall clock at an offset, without fractions of a second.

    The clock's own year may be another one with the same calendar, since an offset may lead beyond the range of
    datetime.
    """
    seconds, shift = nanos // NANOS + offset_s, 0
    if not _FIRST_SAFE_S <= seconds <= _LAST_SAFE_S:
        shift = _CYCLE_YEARS if seconds > 0 else -_CYCLE_YEARS
        seconds += -_CYCLE_S if seconds > 0 else _CYCLE_S
    at = _EPOCH + timedelta(seconds=seconds)
    return at.year + shift, at


_FIRST_SAFE_S, _LAST_SAFE_S = -62_135_596_800, 253_402_300_799


def format_time(nanos: int, offset_s: int) -> str:
    year, at = civil_time(nanos, offset_s)
    fraction = f"{nanos % NANOS:09d}".rstrip("0")
    sign, minutes = ("+" if offset_s >= 0 else "-"), abs(offset_s) // 60
    zone = "Z" if offset_s == 0 else f"{sign}{minutes // 60:02d}:{minutes % 60:02d}"
    return f"{year:04d}-{at:%m-%dT%H:%M:%S}{'.' + fraction if fraction else ''}{zone}"


def _special_float(value: float) -> str | None:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return None


def format_general(value: float) -> str:
    """`%v` and `%g`: shortest digits, with an exponent below 1e-4 and from 1e6 on."""
    if special := _special_float(value):
        return special
    digits, exponent = _shortest(value)
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if -4 <= exponent < 6:
        return format_fixed(value)
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def format_fixed(value: float) -> str:
    """Shortest digits without an exponent."""
    if special := _special_float(value):
        return special
    digits, exponent = _shortest(value)
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}" if digits != "0" else f"{sign}0"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    rest = digits[exponent + 1 :]
    return sign + whole + ("." + rest if rest else "")


def _shortest(value: float) -> tuple[str, int]:
    """Digits without trailing zeros, and the exponent of the first one."""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e") if "e" in repr(value) else _scientific(value)
    digits = mantissa.replace(".", "").rstrip("0") or "0"
    return digits, int(exponent)


def _scientific(value: float) -> tuple[str, str, str]:
    whole, _, fraction = repr(abs(value)).partition(".")
    if whole != "0":
        return whole + fraction, "", str(len(whole) - 1)
    stripped = fraction.lstrip("0")
    return (stripped or "0"), "", str(-(len(fraction) - len(stripped)) - 1 if stripped else 0)


_QUOTED = dict(zip('\a\b\f\n\r\t\v\\"', (f"\\{c}" for c in 'abfnrtv\\"'), strict=True))


def quote(text: str) -> str:
    """`%q`."""
    return '"' + "".join(_quoted_char(c) for c in text) + '"'


def _quoted_char(c: str) -> str:
    if c in _QUOTED:
        return _QUOTED[c]
    if c.isprintable():
        return c
    code = ord(c)
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
