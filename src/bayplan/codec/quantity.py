"""Quantities such as "1.5Gi": parsing, arithmetic and canonical form.

Used for resource lists and for the capacities of volumes and devices. The results equal those of apimachinery's
`resource.Quantity` to the last bit, also on overflow, so that a manifest with an absurd number is placed or refused as
in kube-scheduler.

A quantity is `amount * 10**exponent`, in one of two forms. The *narrow* form is a 64-bit integer and a power of ten.
The *wide* form has no bounds; long, fractional binary and overflowing numbers have it. The two forms round and overflow
differently, and only the narrow one has an integer value. So the form is part of the state, although it never makes two
quantities unequal.

Cost: parsing takes a few microseconds and is cached by text; arithmetic is a handful of integer operations.
"""

from __future__ import annotations

import re
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

import msgspec

from bayplan.errors import ObjectError

_PATTERN_TEXT = "^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
FORMAT_ERROR = f"quantities must match the regular expression '{_PATTERN_TEXT}'"
NUMBER_ERROR = "unable to parse numeric part of quantity"
SUFFIX_ERROR = "unable to parse quantity's suffix"

# More permissive than the expression in the error, exactly like upstream's scanner: every part may be missing as long
# as one is present ("+", "." and "k" all mean zero).
_SHAPE = re.compile(r"([+-]?)(0*)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)")
_POWER = re.compile(r"[eE]([+-]?)(?=[0-9])0*([0-9]*)")

_INT64_MAX = 2**63 - 1
_INT64_MIN = -(2**63)
_NANO = -9
_MAX_NARROW_DIGITS = 18
_MAX_SHIFT = 512  # beyond this gap between exponents, a comparison must not write out the zeros


class QuantityFormat(StrEnum):
    """The family of suffixes of a quantity, for input and output."""

    DECIMAL_EXPONENT = "DecimalExponent"
    BINARY_SI = "BinarySI"
    DECIMAL_SI = "DecimalSI"


class QuantityError(ObjectError):
    """A text is not a quantity. `reason` is the API server's message."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"{text!r} is not a quantity: {reason}; write a number and a suffix, such as 500m or 1.5Gi")
        self.text, self.reason = text, reason


class _Suffix(NamedTuple):
    base: int
    exponent: int
    format: QuantityFormat


_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_SUFFIXES = {
    **{text: _Suffix(10, power, QuantityFormat.DECIMAL_SI) for text, power in _DECIMAL.items()},
    **{text: _Suffix(2, power, QuantityFormat.BINARY_SI) for text, power in _BINARY.items()},
}
_DECIMAL_TEXT = {power: text for text, power in _DECIMAL.items()}
_BINARY_TEXT = {power: text for text, power in _BINARY.items()}


class Quantity(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An exact amount. Immutable; equality and hash depend on the value alone, not on form or suffix."""

    amount: int = 0
    exponent: int = 0
    wide: bool = False
    format: QuantityFormat = QuantityFormat.DECIMAL_SI
    text: str = ""
    """The original text, stored only where upstream writes it back instead of the canonical form."""

    @staticmethod
    def parse(text: str) -> Quantity:
        """Parse a quantity; raises `QuantityError`. Spaces are refused: use `parse_quantity` for fields of objects."""
        return _parse(text)

    @staticmethod
    def of(value: int, format: QuantityFormat = QuantityFormat.DECIMAL_SI) -> Quantity:  # noqa: A002 (the word of the domain)
        return Quantity(amount=value, format=format)

    @staticmethod
    def of_milli(value: int, format: QuantityFormat = QuantityFormat.DECIMAL_SI) -> Quantity:  # noqa: A002
        """A quantity from a number of thousandths."""
        return Quantity(amount=value, exponent=-3, format=format)

    def value(self) -> int:
        """The integer value, rounded away from zero. Values beyond 64 bits overflow as upstream's do."""
        return self._scaled(0)

    def milli_value(self) -> int:
        """The number of thousandths, with the rounding and overflow of `value`."""
        return self._scaled(-3)

    def sign(self) -> int:
        return (self.amount > 0) - (self.amount < 0)

    def is_zero(self) -> bool:
        return self.amount == 0

    def as_integer(self) -> int | None:
        """The 64-bit integer of a narrow whole number, else None.

        "1.5Gi" and "1.0" have none, although they are whole.
        """
        if self.wide or self.exponent < 0:
            return None
        integer, fits = _shift_up(self.amount, self.exponent)
        return integer if fits else None

    def as_float(self) -> float:
        """The nearest float of the digits times the float power of ten: two roundings, as in upstream."""
        base = _float(self.amount)
        return base if self.exponent == 0 else base * _pow10(self.exponent)

    def compare(self, other: Quantity) -> int:
        """-1, 0 or 1 for less than, equal to or greater than `other`."""
        gap = self.exponent - other.exponent
        if abs(gap) > _MAX_SHIFT:
            own, other_value = _decimal(self), _decimal(other)
            return (own > other_value) - (own < other_value)
        left = self.amount * _ten(gap) if gap > 0 else self.amount
        right = other.amount * _ten(-gap) if gap < 0 else other.amount
        return (left > right) - (left < right)

    def add(self, other: Quantity) -> Quantity:
        """The sum, in this quantity's format unless this is zero."""
        unit = self.format if self.amount else other.format
        if not (self.wide or other.wide):
            total = _add_narrow(self, other)
            if total is not None:
                return Quantity(*total, False, unit)
        return Quantity(*_add_wide(self, other), True, unit)

    def sub(self, other: Quantity) -> Quantity:
        """The difference, in this quantity's format unless this is zero."""
        return self.add(other.neg())

    def neg(self) -> Quantity:
        amount = -self.amount if self.wide else int64(-self.amount)
        return Quantity(amount, self.exponent, self.wide, self.format)

    def larger(self, other: Quantity) -> Quantity:
        """The larger of the two.

        If `other` is larger than a wide quantity, the result is wide too, which matters for overflow.
        """
        if other.compare(self) <= 0:
            return self
        return Quantity(other.amount, other.exponent, True, other.format) if self.wide else other

    def _scaled(self, scale: int) -> int:
        if self.wide:
            return _scaled_wide(self.amount, self.exponent - scale)
        shift = self.exponent - scale
        if shift >= 0:
            return _shift_up(self.amount, shift)[0]
        away = -(-abs(self.amount) // _ten(-shift))
        return away if self.amount >= 0 else -away

    def __add__(self, other: Quantity) -> Quantity:
        return self.add(other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Quantity) and self.compare(other) == 0

    def __ne__(self, other: object) -> bool:
        """Explicit, because the generated method of the struct would compare the form, not the value."""
        return not self == other

    def __hash__(self) -> int:
        return hash(_without_zeros(self.amount, self.exponent))

    def __lt__(self, other: Quantity) -> bool:
        return self.compare(other) < 0

    def __str__(self) -> str:
        """The canonical text, as the API server shows it."""
        return self.text or _canonical(self)


@lru_cache(maxsize=16_384)
def parse_quantity(text: QuantityText) -> Quantity:
    """Parse a quantity from a field of an object: a number or a string, with optional spaces around it."""
    if isinstance(text, str):
        return _parse(text.strip())
    if isinstance(text, float) and text.is_integer() and abs(text) < 1e21:
        return _parse(str(int(text)))  # a whole float has no decimal point or exponent after JSON
    return _parse(str(text))


def _parse(text: str) -> Quantity:
    shape = _SHAPE.fullmatch(text)
    if not text or shape is None:
        raise QuantityError(text, FORMAT_ERROR)
    if text == "0":
        return Quantity(text="0")
    sign, zeros, whole, fraction, ending = shape.groups(default="")
    suffix = _read_suffix(ending)
    if suffix is None:
        raise QuantityError(text, SUFFIX_ERROR)
    narrow = _read_narrow(sign, whole or "0", fraction, suffix, text)
    if narrow is not None:
        return narrow
    if not (zeros or whole or fraction):
        raise QuantityError(text, NUMBER_ERROR)
    return _read_wide(sign, whole + fraction, len(fraction), suffix, text)


def _read_suffix(text: str) -> _Suffix | None:
    known = _SUFFIXES.get(text)
    if known is not None:
        return known
    power = _POWER.fullmatch(text)
    if power is None or len(power[2]) > 19:
        return None
    exponent = int(power[1] + (power[2] or "0"))
    if not _INT64_MIN <= exponent <= _INT64_MAX:
        return None
    return _Suffix(10, _int32(exponent), QuantityFormat.DECIMAL_EXPONENT)


def _read_narrow(sign: str, whole: str, fraction: str, suffix: _Suffix, text: str) -> Quantity | None:
    """The narrow form, or None where upstream uses the wide form (too many digits, a binary fraction, below nano)."""
    digits = whole + fraction
    if suffix.base == 2:
        # Digits of the number and about three for each Ki must stay within fifteen: "1Pi" and "100000Gi" do not.
        if fraction or len(whole) + suffix.exponent * 3 // 10 > 14:
            return None
        exponent, keep = 0, int(digits) % 8 != 0
        amount = int(digits) << suffix.exponent
    else:
        exponent = _int32(suffix.exponent - len(fraction))
        if len(digits) > _MAX_NARROW_DIGITS or exponent < _NANO:
            return None
        keep = exponent % 3 == 0 and not digits.endswith("000") and digits[0] != "0"
        amount = int(digits)
    amount = -amount if sign == "-" else amount
    return Quantity(amount, exponent, False, suffix.format, text if keep else "")


def _read_wide(sign: str, digits: str, places: int, suffix: _Suffix, text: str) -> Quantity:
    try:
        amount = int(digits or "0")
    except ValueError as error:  # thousands of digits, which the interpreter refuses to convert
        raise QuantityError(text, NUMBER_ERROR) from error
    exponent = -places
    if suffix.base == 2:
        amount <<= suffix.exponent
    else:
        exponent += suffix.exponent
    if amount:
        amount, exponent = _round_up_to_nano(amount, exponent, text), _NANO
    unit = suffix.format
    if unit is QuantityFormat.BINARY_SI and amount > _INT64_MAX * 10**9:
        amount, exponent = _INT64_MAX, 0
    elif unit is QuantityFormat.BINARY_SI and 0 < amount < 10**9:
        unit = QuantityFormat.DECIMAL_SI
    return Quantity(-amount if sign == "-" else amount, exponent, True, unit)


def _round_up_to_nano(amount: int, exponent: int, text: str) -> int:
    shift = exponent - _NANO
    if shift > _MAX_SHIFT * 8:
        raise QuantityError(text, NUMBER_ERROR)  # writing out the zeros would exhaust the memory
    if shift >= 0:
        return amount * _ten(shift)
    if -shift > amount.bit_length():  # fewer digits than places: any remainder counts as one nano
        return 1
    return -(-amount // _ten(-shift))


def _add_narrow(a: Quantity, b: Quantity) -> tuple[int, int] | None:
    """Amount and exponent of the sum, or None when it exceeds 64 bits on the way."""
    if b.amount == 0:
        return a.amount, a.exponent
    if a.amount == 0:
        return b.amount, b.exponent
    low = min(a.exponent, b.exponent)
    left, left_fits = _shift_up(a.amount, a.exponent - low)
    right, right_fits = _shift_up(b.amount, b.exponent - low)
    total = left + right
    if not (left_fits and right_fits and _INT64_MIN <= total <= _INT64_MAX):
        return None
    return total, low


def _add_wide(a: Quantity, b: Quantity) -> tuple[int, int]:
    low = min(a.exponent, b.exponent)
    if max(a.exponent, b.exponent) - low > _MAX_SHIFT * 8:
        raise QuantityError(f"{a} + {b}", "the sum has thousands of digits")
    return a.amount * _ten(a.exponent - low) + b.amount * _ten(b.exponent - low), low


def _shift_up(amount: int, places: int) -> tuple[int, bool]:
    """`amount * 10**places` and whether it fits 64 bits. If it does not, the amount is upstream's overflow value."""
    if amount == 0:
        return 0, True
    if places > _MAX_NARROW_DIGITS:
        return 0, False
    product = amount * _ten(places)
    if _INT64_MIN <= product <= _INT64_MAX:
        return product, True
    # These steps are single multiplications that wrap around; all other shifts stop at the first digit too many.
    return (int64(product) if places in (1, 2, 3, 6, 9) else 0), False


def _scaled_wide(amount: int, shift: int) -> int:
    """The wide form's `amount * 10**shift` as 64 bits: rounded up, except that short negatives are rounded up twice."""
    if shift == 0:
        return int64(amount)
    if shift > 0:
        factor = _ten(shift) if shift <= _MAX_NARROW_DIGITS else _INT64_MIN
        return int64(int64(amount) * factor)
    divisor = _ten(-shift)
    if amount < _INT64_MAX and -shift <= _MAX_NARROW_DIGITS:
        low = int64(amount)
        towards_zero = abs(low) // divisor * (1 if low >= 0 else -1)
        return towards_zero + (low % divisor != 0)
    return int64(int64(amount // divisor) + (amount % divisor != 0))


def _canonical(quantity: Quantity) -> str:
    if quantity.amount == 0:
        return "0"
    if quantity.format is QuantityFormat.BINARY_SI:
        whole = _whole(quantity)
        if whole is not None and abs(whole) >= 1024:
            return _binary_text(whole)
    amount, exponent = _without_zeros(quantity.amount, quantity.exponent)
    spare = exponent % 3
    amount, exponent = amount * _ten(spare), exponent - spare
    if quantity.format is QuantityFormat.DECIMAL_EXPONENT:
        return f"{amount}e{exponent}" if exponent else str(amount)
    return f"{amount}{_DECIMAL_TEXT.get(exponent, '')}"  # beyond exa upstream has no suffix and writes none


def _binary_text(whole: int) -> str:
    power = 0
    while whole % 1024 == 0:
        whole //= 1024
        power += 10
    return f"{whole}{_BINARY_TEXT.get(power, '')}"


def _whole(quantity: Quantity) -> int | None:
    if quantity.exponent >= 0:
        return quantity.amount * _ten(quantity.exponent)
    whole, rest = divmod(quantity.amount, _ten(-quantity.exponent))
    return None if rest else whole


def _without_zeros(amount: int, exponent: int) -> tuple[int, int]:
    """The same value with the trailing zeros moved to the exponent, so that the form is unique."""
    if amount == 0:
        return 0, 0
    while amount % 10 == 0:
        amount //= 10
        exponent += 1
    return amount, exponent


def _decimal(quantity: Quantity) -> Decimal:
    digits = tuple(int(digit) for digit in str(abs(quantity.amount)))
    return Decimal((int(quantity.amount < 0), digits, quantity.exponent))


def _ten(power: int) -> int:
    ten: int = 10**power
    return ten


def int64(number: int) -> int:
    """The low 64 bits, read as two's complement."""
    return (number - _INT64_MIN) % 2**64 + _INT64_MIN


def _int32(number: int) -> int:
    return (number + 2**31) % 2**32 - 2**31


def _float(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _pow10(exponent: int) -> float:
    """Go's `math.Pow10`: a product (or quotient) of two table entries, so not always the nearest float."""
    if exponent > 308:
        return float("inf")
    if exponent >= 0:
        return float(f"1e{exponent // 32 * 32}") * float(f"1e{exponent % 32}")
    if exponent >= -323:
        return float(f"1e-{-exponent // 32 * 32}") / float(f"1e{-exponent % 32}")
    return 0.0


QuantityText = str | int | float
"""A quantity in a manifest: `"500m"`, `2` or `0.5`."""
