"""Kubernetes quantities."""

from __future__ import annotations

from typing import Any

from bayplan.cel.errors import CelError
from bayplan.cel.types.declarations import Implementation, Overload, function, method
from bayplan.cel.types.types import BOOL, DOUBLE, INT, QUANTITY, STRING
from bayplan.cel.values.quantities import DerivedQuantity, ParseQuantity, QuantityValue
from bayplan.errors import BayplanError

PAIR = (QUANTITY, QUANTITY)
_LONGEST = 10**18 - 1


def _plain(value: Any) -> QuantityValue:
    quantity: QuantityValue = value.value if isinstance(value, DerivedQuantity) else value
    return quantity


def _compare(left: Any, right: Any) -> int:
    return _plain(left).compare(_plain(right))


def _as_integer(value: Any) -> int:
    whole = _plain(value).as_integer()
    if whole is None:
        raise CelError("cannot convert value to integer")
    return whole


def _readable(number: int) -> list[int]:
    """Parts of at most 18 digits; the form of a longer text has no integer value."""
    sign, rest, parts = (-1 if number < 0 else 1), abs(number), list[int]()
    while rest > _LONGEST:
        parts.append(sign * _LONGEST)
        rest -= _LONGEST
    return [*parts, sign * rest]


def _arithmetic(parse: ParseQuantity, name: str) -> list[Overload]:
    def run(left: Any, right: Any) -> DerivedQuantity:
        return DerivedQuantity(getattr(_plain(left), name)(_plain(right)))

    def run_int(left: Any, right: int) -> DerivedQuantity:
        total = _plain(left)
        for part in _readable(right):
            total = getattr(total, name)(parse(str(part)))
        return DerivedQuantity(total)

    return [
        method(name, f"quantity_{name}", PAIR, QUANTITY, run),
        method(name, f"quantity_{name}_int", (QUANTITY, INT), QUANTITY, run_int),
    ]


def _readers(parse: ParseQuantity) -> tuple[Implementation, Implementation]:
    def quantity(text: str) -> QuantityValue:
        try:
            return parse(text)
        except (ValueError, BayplanError) as error:
            # Upstream's message is the bare reason.
            raise CelError(str(getattr(error, "reason", error))) from None

    def is_quantity(text: str) -> bool:
        try:
            parse(text)
        except (ValueError, BayplanError):
            return False
        return True

    return quantity, is_quantity


def overloads(parse: ParseQuantity) -> list[Overload]:
    quantity, is_quantity = _readers(parse)
    return [
        function("quantity", "string_to_quantity", (STRING,), QUANTITY, quantity),
        function("isQuantity", "is_quantity_string", (STRING,), BOOL, is_quantity),
        function("sign", "quantity_sign", (QUANTITY,), INT, lambda q: _plain(q).sign()),
        method("isGreaterThan", "quantity_is_greater_than", PAIR, BOOL, lambda a, b: _compare(a, b) == 1),
        method("isLessThan", "quantity_is_less_than", PAIR, BOOL, lambda a, b: _compare(a, b) == -1),
        method("compareTo", "quantity_compare_to", PAIR, INT, _compare),
        method("asApproximateFloat", "quantity_get_float", (QUANTITY,), DOUBLE, lambda q: _plain(q).as_float()),
        method("asInteger", "quantity_get_int", (QUANTITY,), INT, _as_integer),
        method("isInteger", "quantity_is_integer", (QUANTITY,), BOOL, lambda q: _plain(q).as_integer() is not None),
        *_arithmetic(parse, "add"),
        *_arithmetic(parse, "sub"),
    ]
