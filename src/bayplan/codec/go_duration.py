"""Durations in Go's notation, such as "1h30m".

Durations in configurations are Go texts. They have nanosecond precision as in Go, so that the output equals
kube-scheduler's. Used a few times per configuration.
"""

from __future__ import annotations

from dataclasses import dataclass

from bayplan.errors import ObjectError

_NANOSECOND = 1
_MICROSECOND = 1_000
_MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

_UNITS = {
    "ns": _NANOSECOND,
    "us": _MICROSECOND,
    "µs": _MICROSECOND,  # U+00B5, the micro sign
    "μs": _MICROSECOND,  # U+03BC, the Greek letter
    "ms": _MILLISECOND,
    "s": SECOND,
    "m": MINUTE,
    "h": HOUR,
}
_LIMIT = 1 << 63
_DIGITS = "0123456789"


class DurationError(ObjectError):
    """The text is not a duration. The message is Go's."""


@dataclass(frozen=True, slots=True, order=True)
class GoDuration:
    """A duration in whole nanoseconds. Prints as Go does ("1m30s", "1h0m0s", "1.5s")."""

    nanoseconds: int = 0

    @classmethod
    def of_seconds(cls, seconds: int) -> GoDuration:
        return cls(seconds * SECOND)

    @property
    def seconds(self) -> float:
        return self.nanoseconds / SECOND

    def __bool__(self) -> bool:
        return self.nanoseconds != 0

    def __str__(self) -> str:
        size = abs(self.nanoseconds)
        sign = "-" if self.nanoseconds < 0 else ""
        if size == 0:
            return "0s"
        for unit, name in ((_MICROSECOND, "ns"), (_MILLISECOND, "µs"), (SECOND, "ms")):
            if size < unit:
                return f"{sign}{_decimal(size, unit // 1_000)}{name}"
        hours, rest = divmod(size, HOUR)
        minutes, rest = divmod(rest, MINUTE)
        text = f"{_decimal(rest, SECOND)}s"
        if size >= MINUTE:
            text = f"{minutes}m{text}"
        return f"{sign}{hours}h{text}" if hours else f"{sign}{text}"


def _decimal(amount: int, unit: int) -> str:
    whole, rest = divmod(amount, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"


def parse_duration(text: str) -> GoDuration:
    """The duration of a Go text such as "1h30m" or "-1.5s"."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if rest == "0":
        return GoDuration(0)
    invalid = DurationError(f"time: invalid duration {_quote(text)}")
    if not rest:
        raise invalid
    total = 0
    while rest:
        amount, rest = _parse_term(rest, text, invalid)
        total += amount
        if total > _LIMIT:
            raise invalid
    if sign > 0 and total > _LIMIT - 1:
        raise invalid
    return GoDuration(sign * total)


def _parse_term(rest: str, text: str, invalid: DurationError) -> tuple[int, str]:
    """The nanoseconds of the first number and its unit, and the rest of the text."""
    whole, rest = _split(rest, _DIGITS)
    fraction, pointed = "", rest.startswith(".")
    if pointed:
        fraction, rest = _split(rest[1:], _DIGITS)
    if not whole and not fraction:
        raise invalid
    unit_name = rest[: next((i for i, char in enumerate(rest) if char == "." or char in _DIGITS), len(rest))]
    if not unit_name:
        raise DurationError(f"time: missing unit in duration {_quote(text)}")
    if unit_name not in _UNITS:
        raise DurationError(f"time: unknown unit {_quote(unit_name)} in duration {_quote(text)}")
    unit = _UNITS[unit_name]
    amount = int(whole or "0")
    if amount > _LIMIT // unit:
        raise invalid
    return amount * unit + _fraction(fraction, unit), rest[len(unit_name) :]


def _fraction(digits: str, unit: int) -> int:
    """Nanoseconds after the decimal point. Float arithmetic, and digits beyond 63 bits dropped, as in Go."""
    value, scale = 0, 1.0
    for digit in digits:
        grown = value * 10 + int(digit)
        if value > (_LIMIT - 1) // 10 or grown > _LIMIT:
            break
        value, scale = grown, scale * 10
    return int(float(value) * (float(unit) / scale))


def _split(text: str, allowed: str) -> tuple[str, str]:
    tail = text.lstrip(allowed)
    return text[: len(text) - len(tail)], tail


def _quote(text: str) -> str:
    escaped = "".join(_escape(char) for char in text)
    return f'"{escaped}"'


def _escape(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    if " " <= char < "\x80":
        return char
    return "".join(f"\\x{byte:02x}" for byte in char.encode())
